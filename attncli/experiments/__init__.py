"""One file an experiment: what was asked -> what was found."""

# The module of each experiment; its function run(spec, texts, session) gives the Report.
EXPERIMENTS = {
    "average": "attncli.experiments.average",
    "self": "attncli.experiments.self_attention",
    "multihead": "attncli.experiments.multihead",
    "cross": "attncli.experiments.cross",
    "scale-demo": "attncli.experiments.scale_demo",
    "norm": "attncli.experiments.norm",
    "heads": "attncli.experiments.heads",
    "pitfalls": "attncli.experiments.pitfalls.experiment",
}
