"""The Markdown view: its form, and that a Markdown parser reads no text of a report as markup."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Numbers, Report, Shape, Step, Table, Tensors, Terms
from attncli.system.plain_text import plain_text
from tests.running import run
from tests.views.test_views import CASES, HOSTILE, shown

LIKE_OTHERS = ("self", "self-22-tokens", "self-explained-22-tokens", "pitfalls-late-mask")
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MARKED = (
    r"[x](y) ![i](j) `code` ``` ~~no~~ **b** __u__ _i_ <b>bold</b> <!-- &amp; a|b \| \\ # $x$ 1. - + > [^1] "
    "https://x.y www.x.y"
)

SMALL = Report(
    "self",
    {"embedding": "random", "causal": True},
    {},
    ("a|b", "*c*"),
    tensors={"weights": NamedTensor(("query", "key"), np.array([[1.0, np.nan], [0.25, 0.75]]))},
    result=read_result(
        "",
        {
            "rows": Tensors(entropy=NamedTensor(("query",), np.array([0.0, 0.5]))),
            "keys": Tensors(received_mass=NamedTensor(("key",), np.array([1.25, 0.75]))),
            "scores": Numbers(mean=0.5),
            "sharpness": Table([{"factor": 1, "name": "_x_"}]),
        },
    ),
    steps=(
        Step(
            "Scale",
            "s * d_i",
            "1. Divide.",
            (Shape("key", ("dim",), (2,)),),
            {"sum": 2.0, "said": "<b>"},
            (Terms("t", ("key", "text", "w"), ((0, "a|b", 0.5),), 2),),
        ),
    ),
    notes=("- no list", "# no heading"),
)
EXPECTED = r"""# self: 2 tokens, embedding random, causal true

## 1 of 1: Scale

s \* d\_i

key 2

1\. Divide.

### t (1 of 2 rows)

| key | w |
| :-- | --: |
| 0 a\|b | 0.5000 |
| ⋮ | ⋮ |

- said: \<b\>
- sum: 2.0000

## the report

### weights (query × key)

| query | 0 a\|b | 1 \*c\* | entropy |
| :-- | --: | --: | --: |
| 0 a\|b | **1.0000** | \- | 0.0000 |
| 1 \*c\* | 0.2500 | **0.7500** | 0.5000 |
| received mass | 1.2500 | 0.7500 |  |

### sharpness

|  | factor | name |
| :-- | --: | :-- |
| 0 | 1 | \_x\_ |

### statistics

|  | mean |
| :-- | --: |
| scores | 0.5000 |

\- no list

\# no heading
"""


def test_a_report_is_headings_tables_and_lists() -> None:
    assert shown("md", [SMALL], width=80, colors="16", show=("all",)) == EXPECTED


def cells(text: str) -> list[list[str]]:
    """The cells of every row of every table, as read by a parser."""
    rows: list[list[str]] = []
    for before, token in pairwise(PARSER.parse(text)):
        if token.type == "tr_open":
            rows.append([])
        elif before.type in ("td_open", "th_open"):
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows


def assert_no_markup(text: str) -> None:
    """Assert that there are only headings, paragraphs, lists, tables and code, and bold only for numbers."""
    blocks = {"heading", "paragraph", "bullet_list", "list_item", "table", "thead", "tbody", "tr", "th", "td"}
    for token in PARSER.parse(text):
        kind = token.type.removesuffix("_open").removesuffix("_close")
        assert kind in {*blocks, "inline", "code_block"}, token
        children = token.children or []
        assert {child.type for child in children} <= {"text", "strong_open", "strong_close"}, token
        bold = [after.content for before, after in pairwise(children) if before.type == "strong_open"]
        assert all(text == "-" or np.isfinite(float(text)) for text in bold)


@pytest.mark.parametrize("case", [case for case in CASES if case not in LIKE_OTHERS])
def test_every_report_is_plain_markdown(case: str) -> None:
    experiment, given_settings = CASES[case]
    report = run(experiment, **given_settings)
    assert_no_markup(shown("md", [report], width=80))
    text = shown("md", [report], width=80, show=("all",))
    assert_no_markup(text)
    assert "…" not in text.replace("x0, x1, …", "")
    words = {cell for row in cells(text) for cell in row}
    if "weights" in report.tensors:
        assert {f"{i} {plain_text(token)}" for i, token in enumerate(report.tokens)} <= {
            " ".join(word.split(maxsplit=1)) for word in words
        }


def labelled(tokens: list[str]) -> Report:
    weights = NamedTensor(("query", "key"), np.eye(len(tokens)))
    return Report("self", {}, {}, tuple(tokens), tensors={"weights": weights}, notes=tuple(tokens))


@pytest.mark.parametrize("text", [HOSTILE, MARKED])
def test_hostile_tokens_are_texts(text: str) -> None:
    tokens = [*text.split(), text]
    written = shown("md", [labelled(tokens)], show=("all",))
    assert_no_markup(written)
    header, *rows = cells(written)
    assert header[1:] == [f"{i} {plain_text(token)}" for i, token in enumerate(tokens)]
    assert [row[0].split(maxsplit=1)[1] for row in rows] == [plain_text(token) for token in tokens]


@settings(deadline=None)
@given(
    st.lists(
        st.text(st.sampled_from("\\`*_[]<>|~&$#!-+=1.): \n\rax/www"), min_size=1), min_size=1, max_size=4
    )
)
def test_any_tokens_are_texts(tokens: list[str]) -> None:
    written = shown("md", [labelled(tokens)], show=("all",))
    assert_no_markup(written)
    header, *rows = cells(written)
    wanted = [f"{i} {plain_text(token)}".rstrip() for i, token in enumerate(tokens)]
    assert header[1:] == wanted and [row[0] for row in rows] == wanted


def test_a_matrix_too_large_for_a_table_is_code_that_no_token_ends() -> None:
    values = np.random.default_rng(0).random((300, 300))
    tokens = ("```", "    ", "~~~", *["x"] * 297)
    report = Report("self", {}, {}, tokens, tensors={"weights": NamedTensor(("query", "key"), values)})
    text = shown("md", [report], show=("all",))
    assert_no_markup(text)
    (code,) = (token for token in PARSER.parse(text) if token.type == "code_block")
    assert code.content.count("\n") > 100
