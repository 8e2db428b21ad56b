"""The first screen of a survey."""

from collections.abc import Iterator

from attncli.records.report import Report
from attncli.records.surveys import HeadSurvey
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.first_screen import (
    FirstScreen,
    HeadGrids,
    NamingLine,
    Notes,
    ReadLine,
    Sentences,
    ShortenedLine,
)
from attncli.views.head_screens import (
    HEADS_OR_PATTERNS,
    MAPS,
    SIGNED_HEADS,
    by_stack,
    is_cut,
    is_mostly_first,
    stack_sizes,
    survey_main,
    survey_table,
)
from attncli.views.report_sections import model_name, titled
from attncli.views.texts import text_name, token_name

FEW_ROWS = 5


def _title(report: Report) -> str:
    """Return `heads: minilm, 6 layers × 12 heads, 17 tokens`, or the report's title if heads are selected."""
    survey = report.result_of(HeadSurvey)
    if is_cut(report) and report.about:
        return titled(report)
    count = len(report.tokens), token_name(report)
    if survey.texts is not None:
        count = survey.texts.num_texts, text_name(report)
    return f"heads: {', '.join([model_name(report), *stack_sizes(survey), counted(*count)])}"


def _context(report: Report) -> str:
    context = report.spec.get("context")
    return f"encoder reads: {context}" if context else ""


def _explanation(report: Report, display: Display) -> Iterator[str]:
    if report.how_to_read:
        yield plain_text(report.how_to_read)


def _few_rows(report: Report) -> Iterator[str]:
    """Yield a warning if few rows of a stack have the statistic that the heads are sorted by."""
    sort = report.spec.get("sort")
    if not isinstance(sort, str) or sort == "from_to_weight":
        return
    for row in report.result_of(HeadSurvey).pattern_rows:
        count = row.get(sort)
        if isinstance(count, int) and count < FEW_ROWS:
            rows = (
                f"only {counted(count, 'row')} of this text"
                if count
                else "no row of this text, so the heads are not sorted"
            )
            yield f"{sort} is measured on {rows}."


def _warnings(report: Report, display: Display) -> Iterator[str]:
    if few := [*_few_rows(report)]:
        yield from few if report.notes else ["", *few]


def _next_steps(report: Report, steps: tuple[str, ...]) -> tuple[str, ...]:
    """Suggest --skip-sink if most heads of a stack attend to the first token, --words for sound stacks."""
    stacks = by_stack(report.result_of(HeadSurvey).heads)
    if len(stacks) > 1 and any(picture.seconds for picture in report.pictures):
        return "--words", *steps
    looks_at_first = any(map(is_mostly_first, stacks.values()))
    return ("--skip-sink 1", steps[0], steps[-1]) if looks_at_first else steps


def _finding(report: Report) -> Iterator[str]:
    """Yield the finding of a survey, which only pages and captions show."""
    from attncli.views.survey_findings import survey_finding

    yield from survey_finding(report)


SURVEY_SCREEN = FirstScreen(
    HeadSurvey,
    (
        NamingLine(_title),
        ReadLine(),
        ShortenedLine(_context),
        Sentences(_explanation, "note"),
        *HEADS_OR_PATTERNS,
        SIGNED_HEADS,
        *MAPS,
        HeadGrids(has_numbers=True),
        Notes(apart=True),
        Sentences(_warnings, "note"),
    ),
    next_steps=_next_steps,
    page_table=survey_table,
    finding=_finding,
    main=survey_main,
)
"""The patterns, the heads if they are sorted or requested, or the grid of a statistic."""
