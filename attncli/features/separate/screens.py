"""The first screens of `separate`: detectors on held-out groups and heads, or a detector applied to texts."""

from collections.abc import Iterator

from attncli.features.separate.results import (
    AppliedDetector,
    AppliedScore,
    DetectorAuroc,
    SeparatedTexts,
    SeparatingFeature,
    TextScore,
)
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import ends, named_head, number, quoted, words_of
from attncli.views.first_screen import (
    FirstScreen,
    IntervalCells,
    NamingLine,
    Notes,
    NumberCells,
    PageTable,
    Ranked,
    RowCells,
    Sentences,
    SpecialCells,
    TextCells,
    interval,
)
from attncli.views.report_sections import model_name
from attncli.views.sections import Column
from attncli.views.texts import NO_NUMBER, file_name, fixed

DECIMALS = 2
MOST_HEADS, MOST_NOTE_LINES = 4, 4
LABEL_WIDTH, MEAN_WIDTH, CELL_WIDTH, INTERVAL_WIDTH = 17, 40, 9, 17
SHORTEST = 24
"""The number of lines on the shortest terminal."""


def _title(report: Report) -> str:
    result, name = report.result_of(SeparatedTexts), file_name(report.spec.get("texts"))
    positive = "positive" if not result.fitted else result.fitted[0].positive
    texts = f"{counted(result.num_texts, 'text')} of {name}: {result.num_positive:,} {positive}"
    by = report.spec.get("hold_out")
    groups = f"{result.num_groups} groups by {by}" if by else f"{result.num_groups} parts"
    return f"{model_name(report)}, {texts}; {groups}"


def _verdict(report: Report, display: Display) -> Iterator[str]:
    """The verdict on whether the heads do better than the baselines."""
    if report.about:
        yield plain_text(f"separate: {report.about[0].lower()}{report.about[1:]}")


def _over_baseline(row: DetectorAuroc) -> str:
    return NO_NUMBER if row.difference is None else f"{row.difference:+.2f}"


def _by_group(report: Report, rows: Records[DetectorAuroc], display: Display) -> list[Column]:
    """One column per group, with intervals if there is room; if the groups do not all fit, only the worst."""
    result = report.result_of(SeparatedTexts)
    names = [row.group for row in result.by_group if rows and row.detector == rows[0].detector]
    cells = {(row.detector, row.group): row for row in result.by_group}
    room = display.columns - LABEL_WIDTH - MEAN_WIDTH
    widths = [max(len(part) for part in plain_text(name).split()) for name in names]
    if room < sum(max(width, 4) + 2 for width in widths):
        return [Column(("worst", "group"), [fixed(row.lowest, DECIMALS) for row in rows])]
    has_intervals = room >= sum(max(width, INTERVAL_WIDTH) + 2 for width in widths)
    columns = []
    for name in names:
        if any((row.detector, name) not in cells for row in rows):  # edited
            continue
        group_cells = [cells[row.detector, name] for row in rows]
        numbers = [fixed(each.auroc, DECIMALS) for each in group_cells]
        if has_intervals:
            numbers = [
                f"{number} {interval(each.lower, each.upper, DECIMALS)}"
                for number, each in zip(numbers, group_cells, strict=True)
            ]
        first, _, remainder = plain_text(name).partition(" ")
        columns.append(Column((first, remainder) if remainder else ("", first), numbers, left=has_intervals))
    return columns


def _heads_title(report: Report, rows: Records[SeparatingFeature], total: int) -> str:
    count = report.result_of(SeparatedTexts).num_features
    return f"{len(rows)} of {count:,} head statistics over all texts, sorted by distance of AUROC from 0.5"


def _wrong_title(report: Report, rows: Records[TextScore], total: int) -> str:
    result = report.result_of(SeparatedTexts)
    count = len(result.predictions) - sum(row.is_right for row in result.predictions)
    return f"{counted(count, 'text')} misclassified by all heads, the farthest from the threshold first:"


def _usual(report: Report, display: Display) -> int:
    return MOST_HEADS if display.height is None or display.height > SHORTEST else 3


MEANS = (
    NumberCells("auroc", ("held", "out"), DECIMALS),
    IntervalCells(),
    NumberCells("choosing", ("in", "training"), DECIMALS),
    RowCells(("over", "baseline"), _over_baseline),
)
STATISTICS = (
    TextCells("statistic"),
    NumberCells("auroc", "AUROC", DECIMALS),
    IntervalCells(),
    NumberCells("p_value", "p", 3),
    NumberCells("effect_size", ("Hedges'", "g"), DECIMALS),
)
TEXT = RowCells("text", lambda row: plain_text(row.id or str(row.text)))


def _separate_finding(report: Report) -> Iterator[str]:
    """Yield the detector over all heads beside the best baseline, and the head that separates best."""
    result = report.result_of(SeparatedTexts)
    held_out, baseline = result.held_out, plain_text(result.best_baseline().detector)
    sides = "the two groups"
    if result.fitted:
        sides = f"{quoted(result.fitted[0].positive)} from {quoted(result.fitted[0].negative)}"
    if held_out.auroc is None:
        yield f"It is not known how well heads tell {sides} on new texts."
    else:
        auroc = f"AUROC {number(held_out.auroc)}{ends(held_out)}"
        is_shown = held_out.lower is None or held_out.lower > 0.5
        do = f"tell {sides} with" if is_shown else f"are not shown to tell {sides}:"
        yield f"On new texts, heads {do} {auroc}; {baseline} alone, {number(held_out.baseline)}."
    for row in result.strongest[:1]:
        side = "higher" if row.auroc > 0.5 else "lower"
        best = f"{named_head(row)}, whose {words_of(row.statistic)} is {side}"
        where = quoted(result.fitted[0].positive) if result.fitted else "positive texts"
        numbers = f"AUROC {number(row.auroc)}, p = {fixed(row.p_value, 3)}"
        yield f"On the texts that it was chosen on, the best single head is {best} in {where} ({numbers})."


SEPARATE_SCREEN = FirstScreen(
    SeparatedTexts,
    (
        Sentences(_verdict, "title"),
        NamingLine(_title, ""),
        Ranked(
            "detectors",
            (*MEANS, SpecialCells(_by_group)),
            label=TextCells("detector"),
            usual=9,
            least=9,
        ),
        Ranked(
            "strongest",
            STATISTICS,
            title=_heads_title,
            usual=_usual,
            least=1,
            rank=1,
        ),
        Ranked(
            "wrong",
            (
                TextCells("group", most=16),
                TextCells("label", "is", most=18),
                TextCells("start", "begins", beside=50),
            ),
            label=TEXT,
            title=_wrong_title,
            usual=0,
            least=0,
            rank=2,
            shows=lambda report: bool(report.result_of(SeparatedTexts).wrong),
        ),
        Notes(apart=True, usual=MOST_NOTE_LINES),
    ),
    page_table=lambda _: PageTable("detectors", ("detector", "auroc", "lower", "upper")),
    finding=_separate_finding,
    main=("auroc_above_chance",),
)
"""The verdict; each detector by group; heads; misclassified texts."""


def _applied_title(report: Report) -> str:
    result, name = report.result_of(AppliedDetector), file_name(report.spec.get("texts"))
    positive = f"{result.num_positive:,} of {counted(result.num_texts, 'text')} of {name} are positive"
    return f"separate: {model_name(report)}, {positive}"


def _measured(report: Report, display: Display) -> Iterator[str]:
    """The performance of the detector, if the texts have labels."""
    if report.result_of(AppliedDetector).measured:
        yield plain_text(report.about)


def _after_applying(report: Report, steps: tuple[str, ...]) -> tuple[str, ...]:
    """The next steps that apply to scores, which have no detector and no groups."""
    return tuple(step for step in steps if step == "-o page.html")


def _clearest(result: AppliedDetector) -> AppliedScore:
    """Return the text that is farthest from the threshold."""
    return max(result.scores, key=lambda row: abs(row.margin))


def _applied_page_table(report: Report) -> PageTable:
    """Return the texts, highest score first, below the clearest one."""
    columns = ("text", "predicted", "score", "margin", "start")
    clearest = _clearest(report.result_of(AppliedDetector))
    return PageTable("scores", columns, by="margin", first=("text", clearest.text))


def _applied_finding(report: Report) -> Iterator[str]:
    """Yield the number of positive texts, and how well they match their labels or the farthest one."""
    result = report.result_of(AppliedDetector)
    yield f"{result.num_positive:,} of {counted(result.num_texts, 'text')} are called positive."
    if result.measured and result.measured.get("auroc") is not None:
        yield f"They match their labels with AUROC {number(result.measured.auroc)}{ends(result.measured)}."
        return
    row = _clearest(result)
    name, predicted = plain_text(row.id or f"text {row.text}"), quoted(row.predicted)
    yield f"The clearest is {name}, {predicted}, {number(abs(row.margin))} deviations from the threshold."


APPLIED_SCREEN = FirstScreen(
    AppliedDetector,
    (
        NamingLine(_applied_title),
        Sentences(_measured),
        Ranked(
            "scores",
            (
                TextCells("predicted", most=24),
                NumberCells("margin", decimals=DECIMALS),
                TextCells("start", "begins", beside=45),
            ),
            label=TEXT,
            usual=20,
            least=3,
        ),
        Notes(apart=True, rank=0),
    ),
    next_steps=_after_applying,
    page_table=_applied_page_table,
    finding=_applied_finding,
)
