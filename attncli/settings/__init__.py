"""The settings of each experiment: what may be asked, and reading it with errors that point to the place."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from attncli.core.runtime import Plugin, added, imported_or_told, load_place
from attncli.feature import GROUP, Question, switched_on
from attncli.index import FEATURES, installed_features

if TYPE_CHECKING:
    from attncli.settings.fields import Spec
    from attncli.settings.pages import Page


class Experiment(NamedTuple):
    """A row of `attn --help`, which imports no pydantic; the place of the Spec, which says the rest.

    What runs it is PAGE beside the Spec, or what `page` names, and `model_page` where a model is given.
    """

    summary: str
    spec: str
    group: str = "See"
    plugin: Plugin | None = None
    page: str = ""
    model_page: str = ""


def row_of(question: Question, card_entry: Plugin | None = None) -> Experiment:
    """The row of a question: of another package with its entry point, else with places as those below."""
    spec, page, model_page = question.spec, question.page, question.model_page
    if card_entry is None:
        spec, page, model_page = (place.removeprefix("attncli.") for place in (spec, page, model_page))
    plugin = None if card_entry is None else card_entry._replace(name=question.name, place=spec)
    return Experiment(question.summary, spec, question.group, plugin, page, model_page)


EXPERIMENTS = {
    "average": Experiment(
        "Average each token with its past, in three ways", "features.average.question:AverageSpec", "Learn"
    ),
    "self": Experiment(
        "Self-attention of one sentence, with one head",
        "features.attention.settings:SelfSettings",
        page="features.attention.question:SELF",
        model_page="features.attention.in_models:PAGE",
    ),
    "multihead": Experiment(
        "Multi-head attention of one sentence",
        "features.attention.settings:MultiheadSettings",
        page="features.attention.question:MULTIHEAD",
        model_page="features.attention.in_models:PAGE",
    ),
    "cross": Experiment(
        "Cross-attention from a sentence to a context",
        "features.attention.settings:CrossSettings",
        page="features.attention.question:CROSS",
        model_page="features.attention.in_models:PAGE",
    ),
    "scale-demo": Experiment(
        "Why scores are scaled: variance and sharpness", "features.scale_demo.question:ScaleDemoSpec", "Learn"
    ),
    "norm": Experiment("Batch, layer and RMS normalisation", "features.norm.question:NormSpec", "Learn"),
    "heads": Experiment(
        "What each head of a pretrained model does",
        "settings.heads:HeadsSpec",
        "Models",
        page="features.heads.question:PAGE",
    ),
    "generate": Experiment(
        "Where a model looks while it writes", "features.generate.question:GenerateSpec", "Models"
    ),
    "ablate": Experiment(
        "What is lost without each head (swap: activation patching)",
        "features.ablate.question:AblateSpec",
        "Models",
    ),
    **{
        question.name: row_of(question)
        for feature in switched_on(FEATURES).values()
        for question in feature.questions
    },
    "why": Experiment(
        "What each head adds to a logit: direct logit attribution", "features.why.question:WhySpec", "Models"
    ),
    "source": Experiment(
        "Which sources an answer came from", "features.source.question:SourceSpec", "Models"
    ),
    "separate": Experiment(
        "Which heads tell two groups of texts apart", "features.separate.question:SeparateSpec", "Models"
    ),
    "circuit": Experiment(
        "Which heads feed which: QK and OV circuits", "features.circuit.question:CircuitSpec", "Models"
    ),
    "pitfalls": Experiment(
        "Classic mistakes, each next to the right way", "features.pitfalls.question:PitfallsSpec", "Learn"
    ),
}


OTHER_COMMANDS = frozenset({
    "lesson", "watch", "record", "show", "diff", "browse", "serve", "batch", "results", "export", "info",
    "plugins", "config", "report", "help", "version",
})  # fmt: skip
"""Names of the command line that no experiment of a plugin may have."""
PLUGINS_GROUP = "Plugins"
for feature_name, card_entry in added(GROUP, {*FEATURES}).items():
    EXPERIMENTS |= {
        question.name: row_of(question, card_entry)
        for name, feature in installed_features().items()
        for question in feature.questions
        if name == feature_name and question.name not in {*EXPERIMENTS, *OTHER_COMMANDS}
    }
EXPERIMENTS |= {
    name: Experiment(f"From {plugin.package}", plugin.place, PLUGINS_GROUP, plugin)
    for name, plugin in added("experiments", {*EXPERIMENTS, *OTHER_COMMANDS}).items()
}


def page_of(experiment: str, module: str, *, is_of_model: bool) -> "Page":
    """What runs an experiment, imported now; of a plugin the `run` of its module, where that is named."""
    row = EXPERIMENTS[experiment]
    if module:
        from attncli.settings.pages import SampledPage

        name, _, function = module.partition(":")
        return SampledPage(run=load_place(f"{name}:{function or 'run'}"))
    place = (row.model_page if is_of_model else "") or row.page or f"{row.spec.partition(':')[0]}:PAGE"
    page: Page = load_place(place if row.plugin else f"attncli.{place}")
    return page


class Specs(Mapping[str, "type[Spec]"]):
    """The Spec of each experiment, imported when it is asked for."""

    def __getitem__(self, experiment: str) -> "type[Spec]":
        row = EXPERIMENTS[experiment]
        if row.plugin is not None and imported_or_told(row.plugin) is None:
            raise KeyError(experiment)
        spec_class: type[Spec] = load_place(row.spec if row.plugin else f"attncli.{row.spec}")
        return spec_class

    def __iter__(self) -> Iterator[str]:
        return (name for name in EXPERIMENTS if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, experiment: object) -> bool:
        row = EXPERIMENTS.get(str(experiment))
        return row is not None and (row.plugin is None or imported_or_told(row.plugin) is not None)


SPECS = Specs()
