"""The settings of each experiment: what may be asked, and reading it with errors that point to the place."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from attncli.spec.fields import Spec


class Experiment(NamedTuple):
    """A row of `attn --help`, which imports no pydantic; and the Spec, which says everything else."""

    summary: str
    spec: str


EXPERIMENTS = {
    "average": Experiment("Average each token with its past, in three ways", "lessons.AverageSpec"),
    "self": Experiment("Self-attention of one sentence, with one head", "attention.SelfSpec"),
    "multihead": Experiment("Multi-head attention of one sentence", "attention.MultiheadSpec"),
    "cross": Experiment("Cross-attention from a sentence to a context", "cross.CrossSpec"),
    "scale-demo": Experiment("Why scores are scaled: variance and sharpness", "lessons.ScaleDemoSpec"),
    "norm": Experiment("Batch, layer and RMS normalisation", "lessons.NormSpec"),
    "heads": Experiment("What each head of a pretrained model does", "models.heads.HeadsSpec"),
    "generate": Experiment("Where a model looks while it writes", "models.generate.GenerateSpec"),
    "ablate": Experiment("What a model loses without each of its heads", "models.ablate.AblateSpec"),
    "why": Experiment("What each head adds to the logit of the next token", "models.why.WhySpec"),
    "pitfalls": Experiment("Classic mistakes, each next to the right way", "pitfalls.PitfallsSpec"),
}


class Specs(Mapping[str, "type[Spec]"]):
    """The Spec of each experiment, imported when it is asked for."""

    def __getitem__(self, experiment: str) -> "type[Spec]":
        module, _, name = EXPERIMENTS[experiment].spec.rpartition(".")
        spec_class: type[Spec] = getattr(import_module(f"attncli.spec.{module}"), name)
        return spec_class

    def __iter__(self) -> Iterator[str]:
        return iter(EXPERIMENTS)

    def __len__(self) -> int:
        return len(EXPERIMENTS)


SPECS = Specs()
