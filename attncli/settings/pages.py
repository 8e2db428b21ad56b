"""What runs an experiment: the functions of its page, by their types; the table of experiments names it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncli.models.pretrained import Pretrained
    from attncli.records.report import Report, Step
    from attncli.settings.text import Texts


@dataclass(frozen=True, kw_only=True)
class Page:
    """What every experiment has: `steps` explain a report of it, where it can be asked to."""

    steps: "Callable[[Any, Report], tuple[Step, ...]] | None" = None


@dataclass(frozen=True, kw_only=True)
class SampledPage(Page):
    """An experiment on sampled weights: `run` takes the settings, the texts, and the draws."""

    run: "Callable[[Any, Texts, Any], Report]"


def read_no_text(spec: Any, texts: "Texts", pretrained: "Pretrained", generator: Any) -> Any:
    """What a model reads for a question about itself, which needs no text: a token and its copy."""
    from attncli.models.probes import read_probe

    return read_probe(pretrained, 1, generator)


def _reads_many(spec: Any, texts: "Texts", pretrained: "Pretrained", generator: Any) -> Any:
    raise AssertionError(f"{spec.experiment} reads many texts itself")


@dataclass(frozen=True, kw_only=True)
class ModelPage(Page):
    """A question about a pretrained model. The first argument of each function is the settings.

    `read` takes the texts, the model and a generator, and gives what is read, unless `report_many` always
    reads. `report` is about one reading, `report_each` about some that run together, with equal counts and
    settings that differ in the texts alone. `report_many` reads many texts itself, if settings name a file of
    them. `values_each` are the values of readings without a report, or None, and the environment.
    """

    read: "Callable[[Any, Texts, Pretrained, Any], Any]" = _reads_many
    report: "Callable[[Any, Any, Pretrained, Any], Report] | None" = None
    report_each: "Callable[[Sequence[Any], Sequence[Any], Pretrained, Any], Sequence[Report]] | None" = None
    report_many: "Callable[[Any, Pretrained, Callable[[float], None]], Report] | None" = None
    values_each: "Callable[[Sequence[Any], Sequence[Any], Pretrained], tuple[Any, Any]] | None" = None

    def reports(
        self, specs: Sequence[Any], readings: Sequence[Any], pretrained: "Pretrained", progress: Any
    ) -> "list[Report]":
        """The reports of readings: all at once, where it can do that, else one after the other."""
        if self.report_each is not None:
            return [*self.report_each(specs, readings, pretrained, progress)]
        assert self.report is not None, "one of the two"
        pairs = zip(specs, readings, strict=True)
        return [self.report(spec, reading, pretrained, progress) for spec, reading in pairs]
