"""The first screen of `attn generate`: where each new token looked."""

from collections.abc import Iterator
from dataclasses import replace

from attncli.features.generate.results import NeedleCounts, WriterHead, WrittenText, WrittenToken
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import named_head, number, quoted, words_of
from attncli.views.first_screen import (
    FirstScreen,
    HeadLabel,
    NamingLine,
    Notes,
    PlaceCells,
    Ranked,
    Sentences,
    ShortenedLine,
    Special,
    StatisticCells,
    field_rows,
)
from attncli.views.head_screens import LINEAR, SIGNED_HEADS, size_of
from attncli.views.matrices import pictured
from attncli.views.model_screens import token_cell
from attncli.views.report_sections import TableLabels, model_name
from attncli.views.screens import LooksAtPictures
from attncli.views.sections import LEAST_ROWS, Column, Elastic, Grid, ScreenParts
from attncli.views.texts import NO_NUMBER, file_text, fixed, place_text, shortened, wrap_cells

MOST_TOKENS = 9
LINES_FOR_TOKENS = 12  # of 30, for the text, the tokens and the notes
MOST_WRITERS = 5
TEXT_LINES = 3
SHARES = {"first_key": "first", "written_mass": "written", "needle_mass": "needle"}
HEAD_ORDER = (
    *("retrieval", "needle_mass", "text_mass", "prompt_mass", "written_mass"),
    *("lookback_ratio", "sink_mass", "distance", "entropy", "special_mass"),
)


def _written_title(report: Report) -> str:
    """Return the title, such as `generate: SmolLM2, 30 layers × 9 heads, 366 tokens, 24 new`."""
    counts = report.result_of(WrittenText).counts
    new = "in the answer" if report.spec.get("answer") else "new"
    sizes = [counted(counts.prompt_tokens, "token"), f"{counts.new_tokens} {new}"]
    linear = field_rows(report, "linear")
    linear_size = size_of(LINEAR, linear) if linear and field_rows(report, "heads") else ""
    parts = [model_name(report), place_text(report.spec), *sizes, linear_size]
    return f"generate: {', '.join(filter(None, parts))}"


def _prompt(report: Report) -> str:
    """Return the line that shows the prompt."""
    file = report.spec.get("file")
    prompt = report.spec.get("sentence") or (file_text("file", file) if file else "")
    names = " ".join(picture.name for picture in report.pictures)
    return f"prompt: {names} {prompt} {report.spec.get('question') or ''}"


def _wrote(report: Report, display: Display) -> Iterator[str]:
    """Yield the new text, on a few lines."""
    width = display.columns
    label = "answer" if report.spec.get("answer") else "wrote"
    lines = wrap_cells(f"{label}: {plain_text(' '.join((report.written or '').split()))}", width)
    if len(lines) > TEXT_LINES:
        lines = [*lines[: TEXT_LINES - 1], shortened(" ".join(lines[TEXT_LINES - 1 :]), width)]
    yield from lines


def _where_it_looked(report: Report, display: Display) -> ScreenParts:
    """Yield the first new tokens and the keys that they looked at."""
    width, result = display.columns, report.result_of(WrittenText)
    labels = TableLabels(report, replace(display, width=min(width, 100)))
    room = LINES_FOR_TOKENS - len([*_wrote(report, display)])
    room -= sum(len(wrap_cells(plain_text(note), width)) for note in report.notes)
    room -= len(wrap_cells(_tokens_title(report, result.tokens, MOST_TOKENS), width)) - 1
    overlays = pictured(report)
    # A picture leaves little room for tokens and heads.
    usual = min(LEAST_ROWS if overlays else MOST_TOKENS, room)
    least, rank = (0, 1) if overlays else (min(LEAST_ROWS, usual), 0)
    yield Elastic(
        lambda count: [_tokens(report, result.tokens, labels, display, count)] if count else [],
        usual,
        least,
        len(result.tokens),
        rank,
    )


def _tokens(
    report: Report, tokens: Records[WrittenToken], labels: TableLabels, display: Display, most: int
) -> Grid:
    """Return one line per token: its query, shares of the row, and its strongest keys without the first."""
    places = _chosen(tokens, most)
    chosen, precision = tokens.taken(places), display.precision
    columns = [Column(("", "chosen"), [token_cell(token.token) for token in chosen], left=True)]
    columns += [
        Column(("", header), [fixed(share, precision) for share in chosen.column(name)])
        for name, header in SHARES.items()
        if name in chosen.cells
    ]
    for rank in range(len(chosen[0].keys_beside_first)):
        cells = [_key_seen(token, rank, labels, precision) for token in chosen]
        columns.append(Column(("", f"key {rank + 1}"), cells, left=True))
    queries = labels.rows("query", len(tokens))
    label = Column(("", "query"), [queries.cells[place] for place in places], left=True)
    return Grid(_tokens_title(report, tokens, len(chosen)), label, columns).first_group(display.width)


def _tokens_title(report: Report, tokens: Records[WrittenToken], most: int) -> str:
    left = f" ({most} of {len(tokens)})" if most < len(tokens) else ""
    row = "this head" if report.spec.get("head") is not None else "the heads' mean"
    if report.spec.get("head") is None and "head" in tokens.cells:
        best = plain_text(str(tokens[0].head))
        return f"the strongest keys of the best head, {best}{left}, without the first key"
    row = row if field_rows(report, "heads") else f"{row}, shares of |w|"
    return f"the strongest keys per token{left}: {row}, without the first key"


def _chosen(tokens: Records[WrittenToken], most: int) -> list[int]:
    """Return the first tokens or, with a needle, the places of the tokens that looked at it most."""
    shares = [token.needle_mass or 0.0 for token in tokens] if "needle_mass" in tokens.cells else []
    order = sorted(range(len(tokens)), key=lambda place: -shares[place] if shares else 0.0)
    return sorted(order[:most])


def _key_seen(token: WrittenToken, rank: int, labels: TableLabels, precision: int) -> str:
    key, weight = token.keys_beside_first[rank], token.weights[rank]
    return NO_NUMBER if key is None else f"{labels.place('key', key)} {fixed(weight, precision)}"


def _order(report: Report) -> str:
    """Return the statistic that the heads are sorted by."""
    return report.result_of(WrittenText).sort_statistic(str(report.spec.get("sort")))


def _heads_title(report: Report, heads: Records[WriterHead], total: int) -> str:
    least = "smallest" if report.spec.get("ascending") else "largest"
    return plain_text(f"heads with the {least} {_order(report)}, means over the new tokens")


def _shown_statistics(report: Report, heads: Records[WriterHead]) -> list[str]:
    """Return the statistic that the heads are sorted by, followed by the most informative statistics."""
    return [name for name in dict.fromkeys([_order(report), *HEAD_ORDER]) if name in heads.cells]


MOST_WRITTEN = 60
GIVES = {
    "text_mass": "the text of the prompt",
    "prompt_mass": "the prompt",
    "written_mass": "the new tokens",
    "needle_mass": "the needle",
    "sink_mass": "the first token",
    "special_mass": "special tokens",
}
"""The keys whose weight a statistic is."""


def _finding(report: Report) -> Iterator[str]:
    """Yield the new text, and the head that comes first."""
    result, sort = report.result_of(WrittenText), _order(report)
    text = quoted(report.written or "", MOST_WRITTEN)
    if report.spec.get("answer"):
        yield f"The answer {text} has log-probability {number(result.counts.log_probability)} nats."
    else:
        copied = "" if result.needle is None else _copied(result.needle, result.counts.new_tokens)
        yield f"The model wrote {text}{copied}."
    if sort not in result.heads.cells or not result.heads:
        return
    is_least = bool(report.spec.get("ascending"))
    ranked = result.ranked(sort, ascending=is_least)
    value = ranked[0].number(sort)
    if value is None or not (float(number(value)) or is_least):
        is_copying = sort == "retrieval"
        what = "copied from where it looked" if is_copying else f"has any {words_of(sort)}"
        yield f"No head {what}."
        return
    of_heads = "" if report.spec.get("top") else f" of {len(ranked):,} heads"
    which = "least" if is_least else "most"
    among = "" if len(ranked) == 1 else f", the {which}{of_heads}"
    does = f"has {words_of(sort)} {number(value)}"
    if sort in GIVES:
        does = f"gives {GIVES[sort]} {number(value)} of its weight"
    yield f"Head {named_head(ranked[0])} {does}{among}."


def _copied(needle: NeedleCounts, num_new: int) -> str:
    if "copied" not in needle:
        return ""
    return f"; {needle.copied} of its {counted(num_new, 'token')} are in the needle"


WRITER_SCREEN = FirstScreen(
    WrittenText,
    (
        NamingLine(_written_title),
        ShortenedLine(_prompt),
        Sentences(_wrote),
        LooksAtPictures(),
        Special(_where_it_looked, "with a needle, its rows are the tokens that looked at it most"),
        Ranked(
            "heads",
            (PlaceCells(), StatisticCells(_shown_statistics)),
            title=_heads_title,
            label=HeadLabel(has_stacks=False),
            # A picture leaves little room for tokens and heads.
            usual=lambda report, _: LEAST_ROWS if pictured(report) else MOST_WRITERS,
            least=lambda report, _: 0 if pictured(report) else LEAST_ROWS,
            rank=1,
            is_cut=True,
            shows=lambda report: bool(field_rows(report, "heads")),
        ),
        # Shown below the attention heads if there is room for both.
        replace(
            SIGNED_HEADS,
            usual=lambda report, _: MOST_WRITERS,
            least=lambda report, _: 0 if field_rows(report, "heads") else LEAST_ROWS,
            rank=2,
            is_cut=True,
        ),
        Notes(),
    ),
    finding=_finding,
)
"""The prompt and the new text; where each token looked; the first heads; notes."""
