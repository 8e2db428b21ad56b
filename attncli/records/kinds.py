"""The kinds of results, by the names that a report's JSON has for them."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from attncli.records.attention import AverageStatistics, LayerStatistics, OutsideWeights
from attncli.records.caches import LimitedHeads, PolicyCosts
from attncli.records.changes import ReportDifferences, TextDifferences
from attncli.records.circuit import Compositions, HeadEdges
from attncli.records.columns import Result, UntypedResult
from attncli.records.demonstrations import MistakeComparison, Mistakes, NormEffects, ScaleEffects
from attncli.records.detectors import AppliedDetector, SeparatedTexts
from attncli.records.effects import HeadEffects
from attncli.records.examples import HeadExamples
from attncli.records.explanations import ComparedWays, Explanations, LearnedWeights
from attncli.records.known_pairs import HeadsOnPairs
from attncli.records.logits import LogitAttribution, ScoreParts
from attncli.records.recordings import RecordedHeads
from attncli.records.relations import HeadRelations
from attncli.records.sources import AnswerSources, RetrievingHeads
from attncli.records.spoken_words import AligningHeads, SpokenWords
from attncli.records.steps import HeadInTraining, HeadsInTraining
from attncli.records.store_summaries import StoreSummary
from attncli.records.surveys import HeadSurvey
from attncli.records.values import NamedTensor, Statistic, is_table_of_heads
from attncli.records.writings import WrittenText

KINDS: dict[str, type[Result]] = {
    "self": LayerStatistics,
    "multihead": LayerStatistics,
    "cross": LayerStatistics,
    "show": OutsideWeights,
    "average": AverageStatistics,
    "scale-demo": ScaleEffects,
    "norm": NormEffects,
    "pitfalls": Mistakes,
    "pitfalls of one": MistakeComparison,
    "ablate": HeadEffects,
    "heads": HeadSurvey,
    "record": RecordedHeads,
    "diff of texts": TextDifferences,
    "diff": ReportDifferences,
    "generate": WrittenText,
    "cache": LimitedHeads,
    "cache of policies": PolicyCosts,
    "heads of examples": HeadExamples,
    "heads of relations": HeadRelations,
    "heads of pairs": HeadsOnPairs,
    "heads of words": SpokenWords,
    "heads of alignment": AligningHeads,
    "results": StoreSummary,
    "source": AnswerSources,
    "source of heads": RetrievingHeads,
    "source of explanations": Explanations,
    "source of ways": ComparedWays,
    "source of weights": LearnedWeights,
    "watch": HeadsInTraining,
    "watch of a head": HeadInTraining,
    "why": LogitAttribution,
    "why of a score": ScoreParts,
    "circuit": HeadEdges,
    "circuit of weights": Compositions,
    "separate": SeparatedTexts,
    "separate of texts": AppliedDetector,
}
"""An experiment with one kind has its name; more begin with it.

Of a report that does not name its kind, the first one is that its statistics fit.
"""


def kind_of(result: Result, experiment: str) -> str:
    """The name of the kind of a result of an experiment; empty where the class has none, as a plugin's."""
    if isinstance(result, UntypedResult):
        return result.kind
    every = {**kinds_of(experiment), **KINDS}
    return next((name for name, kind in every.items() if type(result) is kind), "")


def result_of(
    kind: str, statistics: Mapping[str, Statistic], tensors: Mapping[str, NamedTensor] = MappingProxyType({})
) -> Result:
    """The result of a kind whose statistics these are; untyped without a kind, or where they do not fit."""
    try:
        return KINDS.get(kind, UntypedResult).read(statistics, tensors)
    except TypeError:  # of another tool, or edited
        return UntypedResult(undeclared=statistics, kind=kind)


def known_kind(name: str) -> str:
    """The name of a kind; ValueError for another one."""
    if name not in KINDS:
        raise ValueError(f"unknown kind {name!r:.40}: must be of {', '.join(KINDS)}")
    return name


def kind_named(experiment: str, names: Iterable[str]) -> str:
    """The kind of an experiment whose report does not name one, by the names of its statistics; else none.

    Of several that fit it is the one that needs most of them.
    """
    given = {*names}
    fitting = {name: kind for name, kind in kinds_of(experiment).items() if kind.fits(given)}
    return max(fitting, key=lambda name: fitting[name].num_needed(), default="")


def kinds_of(experiment: str) -> dict[str, type[Result]]:
    """The kinds of results that an experiment has."""
    return {name: kind for name, kind in KINDS.items() if name.split(" of ")[0] == experiment}


def may_lack_heads(kind: str) -> bool:
    """Whether the table of heads of a kind may have no rows; false without a kind."""
    groups = KINDS[kind].groups() if kind else ()
    return any(place.may_be_empty for place in groups if is_table_of_heads(place.name))


def units_of_heads() -> dict[str, str]:
    """The units of what is measured of heads, by the names of the columns, which are those of the grids."""
    return {
        name: column.unit
        for kind in KINDS.values()
        for group in kind.groups()
        if is_table_of_heads(group.name) and group.kind is not None
        for name, column in group.kind.columns.items()
        if column.unit
    }
