"""The types of an experiment's page, which holds the functions that run it; the cards name the pages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncli.models.pretrained import Pretrained
    from attncli.records.report import Report, Step
    from attncli.settings.text import Texts


@dataclass(frozen=True, kw_only=True)
class Page:
    """The base class of all pages. If there is a `steps` function, it returns the explanation of a report."""

    steps: "Callable[[Any, Report], tuple[Step, ...]] | None" = None


@dataclass(frozen=True, kw_only=True)
class SampledPage(Page):
    """An experiment on sampled weights: `run` takes the settings, the texts and the sampler."""

    run: "Callable[[Any, Texts, Any], Report]"


def read_no_text(spec: Any, texts: "Texts", pretrained: "Pretrained", generator: Any) -> Any:
    """Read a probe of one token and its copy, for a question about the model itself."""
    from attncli.models.probes import read_probe

    return read_probe(pretrained, 1, generator)


def _reads_many(spec: Any, texts: "Texts", pretrained: "Pretrained", generator: Any) -> Any:
    raise AssertionError(f"{spec.experiment} reads many texts itself")


@dataclass(frozen=True, kw_only=True)
class ModelPage(Page):
    """A question about a pretrained model. Each function takes the settings as its first argument.

    `read` takes the texts, the model and a generator and returns what the model reads; it is not called if
    `report_many` handles all input. `report` makes the report of one reading; `report_each` makes the reports
    of several readings that run together, which have equal counts and whose settings differ only in the
    texts. `report_many` reads the texts itself if the settings name a file of many texts. `values_each`
    returns two things without making reports: the values of readings, or None, and the environment.
    """

    read: "Callable[[Any, Texts, Pretrained, Any], Any]" = _reads_many
    report: "Callable[[Any, Any, Pretrained, Any], Report] | None" = None
    report_each: "Callable[[Sequence[Any], Sequence[Any], Pretrained, Any], Sequence[Report]] | None" = None
    report_many: "Callable[[Any, Pretrained, Callable[[float], None]], Report] | None" = None
    values_each: "Callable[[Sequence[Any], Sequence[Any], Pretrained], tuple[Any, Any]] | None" = None

    def reports(
        self, specs: Sequence[Any], readings: Sequence[Any], pretrained: "Pretrained", progress: Any
    ) -> "list[Report]":
        """Return the reports of the readings, computed together if possible, otherwise one after another."""
        if self.report_each is not None:
            return [*self.report_each(specs, readings, pretrained, progress)]
        assert self.report is not None, "one of the two"
        pairs = zip(specs, readings, strict=True)
        return [self.report(spec, reading, pretrained, progress) for spec, reading in pairs]
