"""The settings of each experiment: what may be asked, and reading it with errors that point to the place."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.core.runtime import Plugin, added, imported_or_told

if TYPE_CHECKING:
    from attncli.settings.fields import Spec


class Experiment(NamedTuple):
    """A row of `attn --help`, which imports no pydantic; the place of the Spec, which says the rest."""

    summary: str
    spec: str
    group: str = "See"
    plugin: Plugin | None = None


EXPERIMENTS = {
    "average": Experiment(
        "Average each token with its past, in three ways", "commands.average:AverageSpec", "Learn"
    ),
    "self": Experiment("Self-attention of one sentence, with one head", "settings.attention:SelfSettings"),
    "multihead": Experiment("Multi-head attention of one sentence", "settings.attention:MultiheadSettings"),
    "cross": Experiment("Cross-attention from a sentence to a context", "settings.attention:CrossSettings"),
    "scale-demo": Experiment(
        "Why scores are scaled: variance and sharpness", "commands.scale_demo:ScaleDemoSpec", "Learn"
    ),
    "norm": Experiment("Batch, layer and RMS normalisation", "commands.norm:NormSpec", "Learn"),
    "heads": Experiment("What each head of a pretrained model does", "settings.heads:HeadsSpec", "Models"),
    "generate": Experiment("Where a model looks while it writes", "commands.generate:GenerateSpec", "Models"),
    "ablate": Experiment(
        "What is lost without each head (swap: activation patching)", "commands.ablate:AblateSpec", "Models"
    ),
    "cache": Experiment(
        "What a smaller cache loses, by head and policy", "commands.cache:CacheSpec", "Models"
    ),
    "why": Experiment(
        "What each head adds to a logit: direct logit attribution", "commands.why:WhySpec", "Models"
    ),
    "source": Experiment("Which sources an answer came from", "commands.source:SourceSpec", "Models"),
    "circuit": Experiment(
        "Which heads feed which: QK and OV circuits", "commands.circuit:CircuitSpec", "Models"
    ),
    "pitfalls": Experiment(
        "Classic mistakes, each next to the right way", "commands.pitfalls:PitfallsSpec", "Learn"
    ),
}


OTHER_COMMANDS = frozenset({
    "lesson", "watch", "show", "diff", "browse", "batch", "results", "export", "info", "plugins", "config",
    "report", "help", "version",
})  # fmt: skip
"""Names of the command line that no experiment of a plugin may have."""
PLUGINS_GROUP = "Plugins"
EXPERIMENTS |= {
    name: Experiment(f"From {plugin.package}", plugin.place, PLUGINS_GROUP, plugin)
    for name, plugin in added("experiments", {*EXPERIMENTS, *OTHER_COMMANDS}).items()
}


def load(place: str, default: str) -> Any:
    """What stands at `module:name`, imported now; `default` where the place names a module alone."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name or default)


class Specs(Mapping[str, "type[Spec]"]):
    """The Spec of each experiment, imported when it is asked for."""

    def __getitem__(self, experiment: str) -> "type[Spec]":
        row = EXPERIMENTS[experiment]
        if row.plugin is not None and imported_or_told(row.plugin) is None:
            raise KeyError(experiment)
        spec_class: type[Spec] = load(row.spec if row.plugin else f"attncli.{row.spec}", "")
        return spec_class

    def __iter__(self) -> Iterator[str]:
        return (name for name in EXPERIMENTS if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, experiment: object) -> bool:
        row = EXPERIMENTS.get(str(experiment))
        return row is not None and (row.plugin is None or imported_or_told(row.plugin) is not None)


SPECS = Specs()
