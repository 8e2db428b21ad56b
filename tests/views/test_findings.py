"""Findings, the sentences that a page begins with, against numbers that other code takes from the report."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from attncli.features.diff.question import compare
from attncli.index import FEATURES
from attncli.records.kinds import KINDS, RESULT_CLASSES, read_result
from attncli.records.report import Mask, NamedTensor, Numbers, Report, Table, Tensors
from attncli.views.findings import listed, number, percent, quoted, signed
from attncli.views.page import report_data
from attncli.views.tables import FIRST_SCREENS
from attncli.views.texts import readable
from tests.running import run
from tests.views.test_views import HOSTILE

MOST = 240
"""The most characters of a finding with short names."""
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
CELLS: Mapping[type, Any] = {float: 0.5, int: 1, bool: False, str: "text", list: [0.5, 0.6]}
"""A cell of each type."""


def rows(text: str) -> list[dict[str, Any]]:
    """Return the rows of `layer=5 head=11; layer=1 pattern=first~token`, where ~ is a blank and none None."""
    split = ([cell.partition("=") for cell in row.split()] for row in text.split(";"))
    return [{name: cell_of(cell) for name, _, cell in row} for row in split]


def cell_of(text: str) -> Any:
    with suppress(ValueError):
        return float(text) if "." in text else int(text)
    return None if text == "none" else text.replace("~", " ")


def made(kind: str, *tokens: str, spec: Mapping[str, Any] = NO_SETTINGS, **tables: str) -> Report:
    """Return a report whose tables have the given rows; other needed tables have one row of any cells."""
    statistics: dict[str, Any] = {}
    for group in KINDS[kind].groups():
        if group.kind is None and group.is_needed:
            statistics[group.name] = Tensors({"entropy": NamedTensor(("query",), np.zeros(1))})
        if group.kind is None or not (group.name in tables or (group.is_needed and not group.may_be_empty)):
            continue
        needed = [column for column in group.kind.columns.values() if column.is_needed]
        usual = {each.name: next(CELLS[kind] for kind in CELLS if kind in each.kinds) for each in needed}
        table = [usual | row for row in rows(tables.get(group.name, ""))]
        if group.axes:
            tensors = {
                name: NamedTensor(group.axes, np.array([row[name] for row in table])) for name in usual
            }
            statistics[group.name] = Tensors(tensors)
        else:
            statistics[group.name] = Numbers(table[0]) if group.is_single else Table(table)
    return Report(
        kind.split(" of ")[0],
        {"sort": "entropy", "head": "1:2", "group_by": [], "store": "store.db", **spec},
        {},
        tokens,
        result=read_result(kind, statistics),
        about="What it is about.",
        how_to_read="How to read it.",
    )


def finding(report: Report) -> str:
    text: str = report_data(report)["finding"]
    return text


OF_TENSORS = ("average", "self", "multihead", "cross", "scale-demo", "show", "diff", "record", "heads")
"""The kinds whose finding needs tensors or a table that may be empty, which have cases below."""
NEEDED: Mapping[str, dict[str, str]] = {
    "norm": {"batch_norm": ""},
    "heads of pairs": {"measures": "measure=hit"},
    "source": {"sources": "ranked_by=lost"},
    "separate": {"detectors": "kind=baseline"},
    "watch of a head": {"head": "pattern=induction"},
}
"""Rows without which these results have nothing to say."""


@pytest.mark.parametrize("kind", [kind for card in FEATURES.values() for kind in card.results])
def test_every_result_has_a_finding(kind: str) -> None:
    screen = FIRST_SCREENS.get(RESULT_CLASSES[kind])
    assert screen is not None and screen.finding is not None, "declare finding= in the result's FirstScreen"
    if kind not in OF_TENSORS:
        assert finding(made(kind, **NEEDED.get(kind, {}))).endswith("."), kind


def heads_of(data: Mapping[str, Any], column: str) -> list[tuple[float, str]]:
    """Return the numbers and names of heads, largest first."""
    heads = data["statistics"]["heads"]
    return sorted(((row[column], f"{row['layer']}:{row['head']}") for row in heads), reverse=True)


def clearest(data: Mapping[str, Any]) -> str:
    """The largest weight of a map in which every token sees all keys."""
    weights, tokens = np.array(data["tensors"]["weights"]["values"]), data["tokens"]
    *head, query, key = np.unravel_index(weights.argmax(), weights.shape)
    where = [f" (token {at})" if tokens.count(name) > 1 else "" for at, name in enumerate(tokens)]
    names = [f'"{name}"{place}' for name, place in zip(tokens, where, strict=True)]
    keys = [f'"{name}"' for name in data["context_tokens"]] or names
    in_map = f", in head {head[0]}" if head else ""
    times = weights.max() * weights.shape[-1]
    weight = f"{keys[key]} {weights.max():.2f} of its weight, {times:.1f} times an even share."
    return f"The clearest look{in_map}: {names[query]} gives {weight} "


def spread(data: Mapping[str, Any]) -> str:
    mean, count = np.mean(data["statistics"]["rows"]["participation"]), len(data["tokens"])
    return f"spreads its weight over {mean:.1f} of {count} tokens, nearly evenly (random, untrained weights)."


def ablated(data: Mapping[str, Any]) -> str:
    (first, name), (after, second), *_ = heads_of(data, "loss")
    before = data["statistics"]["baseline"]["loss"]
    return (
        f"Removing {name} raises the loss most: +{first:.2f} nats, from {before:.2f} with all heads. "
        f"The next is {second} with {after:.2f}."
    )


def policies(data: Mapping[str, Any]) -> str:
    texts = []
    for budget in (0.1, 0.5):
        costs = (row for row in data["statistics"]["policies"] if row["budget"] == budget)
        loss, name = min((row["loss"], row["policy"]) for row in costs)
        texts.append(f"with {100 * budget:.0f} % of the cache, {name} (+{loss:.2f})")
    return f"The policies that cost least loss, in nats per token: {'; '.join(texts)}."


def attributed(data: Mapping[str, Any]) -> str:
    parts, (adds, name) = data["statistics"]["parts"], heads_of(data, "contribution")[0]
    sizes = f"{parts['logit']:.2f}: the heads add {parts['heads']:.2f}, the MLPs {parts['mlps']:.2f}, "
    embedding = f"the embedding {parts['embedding']:.2f}, biases {parts['biases']:.2f}"
    return f"The logit of 's' is {sizes}{embedding}. Head {name} adds most: +{adds:.2f}, giving "


def edges(data: Mapping[str, Any]) -> str:
    every = [row for row in data["statistics"]["edges"] if row["from_head"] is not None]
    between = max((row for row in every if row["to"] != "logits"), key=lambda row: abs(row["logit"]))
    into = max((row for row in every if row["to"] == "logits"), key=lambda row: abs(row["logit"]))
    return (
        f"The strongest edge between heads: {between['from']} writes into the keys of {between['to']} (share "
        f"{between['share']:.2f}, {between['logit']:+.2f} on the logit of the likeliest next token). "
        f"Of the heads, {into['from']} adds most to the logits: {into['logit']:+.2f}."
    )


def compositions(data: Mapping[str, Any]) -> str:
    best = max(data["statistics"]["edges"], key=lambda row: row["score"])
    copies = max(data["statistics"]["copying"], key=lambda row: row["score"])
    return (
        f"{best['from']} can write into the keys of {best['to']} (composition {best['score']:.2f}). "
        f"Head {copies['layer']}:{copies['head']} copies best: {copies['score']:.2f}, "
    )


def induction(data: Mapping[str, Any]) -> str:
    named = [name for value, name in heads_of(data, "induction") if value > 0.4]
    previous, clearest_previous = heads_of(data, "previous_token")[0]
    return (
        f"{len(named)} of 8 heads give more than 0.4 of their weight to the token after an earlier copy of "
        f"the current one (induction): {', '.join(named[:-1])} and {named[-1]}. Clearest of the others: "
        f"{clearest_previous} gives {previous:.2f} to the previous token."
    )


def source(data: Mapping[str, Any]) -> str:
    losses = ((row["lost"], row["name"]) for row in data["statistics"]["sources"])
    (first, name), (after, second), *_ = sorted(losses, reverse=True)
    falls = f"its log-probability falls by {first:.2f} nats ({second}: {after:.2g})"
    return f"The answer comes from {name}: without {name}, {falls}."


def written(data: Mapping[str, Any]) -> str:
    weight, head = heads_of(data, "text_mass")[0]
    gives = f"gives the text of the prompt {weight:.2f} of its weight, the most of 8 heads."
    return f'The model wrote "{data["written"]}". Head {head} {gives}'


def least_entropy(data: Mapping[str, Any]) -> str:
    entropy, head = heads_of(data, "entropy")[-1]
    return f"Head {head} has the smallest entropy of 8 heads: {entropy:.2f} nats."


def numbers_of(*path: str | int, text: str) -> Callable[[Mapping[str, Any]], str]:
    """Return the text with the number at a path of the report's statistics."""

    def expected(data: Mapping[str, Any]) -> str:
        value: Any = data["statistics"]
        for name in path:
            value = value[name]
        return text.format(value)

    return expected


COMPUTED: list[tuple[str, dict[str, Any], Callable[[Mapping[str, Any]], str]]] = [
    ("self", {}, clearest),
    ("self", {}, spread),
    ("multihead", {}, clearest),
    ("cross", {}, clearest),
    ("average", {}, lambda _: 'looks evenly at what it sees: "street" at 6 tokens, 0.17 each. '),
    ("heads", {}, induction),
    ("heads", {"sort": "entropy", "ascending": True}, least_entropy),
    ("ablate", {}, ablated),
    ("cache", {"policy": ["all"]}, policies),
    ("cache", {}, numbers_of("heads", 0, "worst", text='moves the prediction after "·" by {:.2f} nats, ')),
    ("why", {}, attributed),
    ("circuit", {}, edges),
    ("circuit", {"weights": True}, compositions),
    ("source", {}, source),
    ("generate", {}, written),
    ("norm", {}, numbers_of("input", "feature0_mean", text="takes feature 0 from mean {:.2f}, std ")),
    ("scale-demo", {}, numbers_of("variance", -1, "raw_scores", text=" to {:.2f} before scaling, ")),
    ("pitfalls", {}, numbers_of("pitfalls", 1, "wrong", text="no-scaling makes score variance {:.2f} ")),
    (
        "pitfalls",
        {"pitfall": "late-mask"},
        numbers_of("wrong", "smallest_row_sum", text="Smallest row sum is {:.2f} instead of 1.00."),
    ),
]


@pytest.mark.parametrize(("experiment", "given", "expected"), COMPUTED, ids=[each[0] for each in COMPUTED])
def test_a_finding_has_the_numbers_of_its_report(
    experiment: str, given: dict[str, Any], expected: Callable[[Mapping[str, Any]], str]
) -> None:
    report = readable(run(experiment, **given))
    text = finding(report)
    assert expected(report.to_data()) in text
    assert len(text) <= MOST and text.endswith(".")


MADE: list[tuple[Report, str]] = [
    (
        made(
            "heads of pairs",
            measures="stack=self layer=5 head=11 measure=hit held_out=0.62 lower=0.5 upper=0.7 offset=-1 "
            "offset_share=0.4",
        ),
        "Head 5:11 finds 62 % (50 % to 70 %) of known partners on texts that it was not chosen on; "
        "the best fixed offset, -1: 40 %.",
    ),
    (
        made(
            "heads of relations",
            relations="relation=all~relations; relation=det words=40 layer=3 head=1 share=0.75 lower=0.6 "
            "offset=1 offset_share=0.25 offset_upper=0.4",
        ),
        "For 1 of 1 relation, a head finds more words than any fixed offset. The largest "
        "difference is for det: 3:1 finds 75 % of 40 words, the offset +1 finds 25 %.",
    ),
    (
        made(
            "heads of words",
            words="word=Mister begin=0.5 probability=0.9; word=Quilter end=1.25 probability=0.25",
            sound="seconds=5.0",
        ),
        '2 words in 5.00 s of sound: from "Mister", which begins at 0.50 s, to "Quilter", which ends at '
        '1.25 s. The least certain word is "Quilter" (probability 0.25).',
    ),
    (
        made(
            "heads of alignment",
            heads="error=0.06; layer=1 head=2 error=0.04",
            speech="error_of_found=0.03 num_found=2 error_of_published=none",
        ),
        "Head 1:2 finds best where words begin, with a median error of 40 ms. The median error is 30 ms for "
        "the first 2 heads together.",
    ),
    (
        made(
            "source of heads",
            heads="stack=self layer=5 head=11 found=0.95 weight=0.5",
            chosen="chosen_head=5:11; chosen_head=1:2",
        ),
        "Head 5:11 looks most at the right sentence in 95 % of the contexts, with 0.50 of its weight. "
        "The 2 heads chosen: 5:11 and 1:2.",
    ),
    (
        made(
            "source of explanations",
            sources="name=doc1 lost=-0.25; name=doc2 lost=5.5",
            ways="way=rollout first_agrees=1; way=alti first_agrees=0",
        ),
        "Without doc2, the answer loses the most: 5.50 nats; without doc1, -0.25 nats. 1 of 2 ways to read "
        "the model rank this source first, too.",
    ),
    (
        made(
            "source of weights",
            heads="weight=0.25; stack=self layer=5 weight=-0.5",
            learned="correlation=0.75",
        ),
        "Head 5:1 has the largest learned weight of 2 heads: -0.5000. With these weights, heads predict "
        "what answers lose (correlation 0.75; equal ones: 0.50).",
    ),
    (
        made(
            "separate",
            held_out="auroc=0.92 lower=0.8 upper=0.97 baseline=0.75",
            detectors="kind=baseline detector=length",
            strongest="stack=self layer=5 head=11 statistic=sink_mass auroc=0.12 p_value=0.01",
            fitted="positive=true negative=made~up",
        ),
        'On new texts, heads tell "true" from "made up" with AUROC 0.92 (0.80 to 0.97); length alone, 0.75. '
        "On the texts that it was chosen on, the best single head is 5:11, "
        'whose sink mass is lower in "true" (AUROC 0.12, p = 0.010).',
    ),
    (
        made(
            "separate of texts",
            scores="id=a margin=0.5; id=b margin=-2.5 predicted=true",
            texts="num_texts=2 num_positive=1",
        ),
        '1 of 2 texts are called positive. The clearest is b, "true", 2.50 deviations from the threshold.',
    ),
    (
        made(
            "watch",
            steps="step=50 loss=4.0; step=2500 loss=0.002",
            patterns="pattern=induction stack=self first_step=300 heads=4; pattern=uniform heads=9",
        ),
        "The first head with the pattern induction is 1:1 at step 300; at step 2,500, 4 heads have it. "
        "The loss goes from 4.00 at step 50 to 0.002 at step 2,500.",
    ),
    (
        made("watch of a head", head="step=1 pattern=unnamed; step=3000 pattern=induction"),
        "Head 1:2 has no pattern before step 3,000 and the pattern induction from then on.",
    ),
    (
        made(
            "results",
            spec={"group_by": ["heads"]},
            summary="heads=8 statistic=entropy.mean mean=1.5; heads=1 statistic=entropy.mean mean=1.25",
            failed="",
        ),
        "The mean of entropy.mean goes from 1.25 (heads 1) to 1.50 (heads 8). 1 run failed.",
    ),
    (
        made(
            "heads of examples",
            head="mean=0.5 lower=0.4 upper=0.6 num_texts=3",
            examples="kind=strongest text=seven value=1.75 query_token=it key_token=·cat key_weight=0.62",
        ),
        "Head 1:2 has entropy 0.50 (0.40 to 0.60) on average over 3 texts. It does so most in text seven "
        '(1.75): "it" gives "cat" 0.62 of its weight.',
    ),
    (
        made(
            "diff of texts",
            heads="stack=self layer=5 head=11 query_a_token=it query_b_token=it key_a_token=cat "
            "weight_a=0.62 "
            "key_b_token=dog weight_b=0.5",
            predictions="token=·sat a=0.9 b=0.25",
        ),
        'Head 5:11 changes most: from "it", it looks at "cat" (0.62) in A and at "dog" (0.50) in B. '
        'The probability of "sat" as next token goes from 0.90 to 0.25.',
    ),
    (
        made(
            "why of a score",
            *("the", "cat", "it"),
            score="query=2 key=1 weight=0.83",
            sides="side=key part=0:1 score=5.0 weight_without=0.09; side=key part=0:3 score=1.0; "
            "side=query part=embedding weight_without=0.25",
        ),
        'Head 1:2 gives "cat" 0.83 of the weight of "it". Without what 0:1 wrote at every key, the '
        'weight would be 0.09, and without what the embedding wrote at "it", 0.25.',
    ),
    (
        made(
            "heads",
            spec={"sort": None},
            patterns="stack=encoder pattern=first~token threshold=0.3 heads=2; stack=encoder "
            "pattern=induction heads=none; stack=decoder pattern=uniform heads=1",
            heads="stack=encoder; stack=encoder; stack=decoder; stack=decoder",
        ),
        "Encoder: all 2 heads give more than 0.3 of their weight to the first token; decoder: 1 of 2 heads "
        "spreads its weight almost evenly.",
    ),
    (
        made("heads", spec={"sort": None}, patterns="pattern=induction heads=0"),
        "No head looks mainly at one kind of token, such as the first or the previous one.",
    ),
    (
        made("heads", spec={"sort": None}, patterns="pattern=induction heads=none"),
        "No head shows a known pattern here.",
    ),
    (
        made(
            "heads",
            spec={"sort": "from_to_weight", "from": ["it"], "to": ["cat", "last"]},
            patterns="",
            heads="stack=self layer=5 head=11 from_to_weight=0.62",
        ),
        'Head 5:11 gives "cat" and the last token 0.62 of the weight of "it", the most of 1 head.',
    ),
    (
        made("heads", patterns="", heads="entropy=none"),
        "No head has a number for entropy: the text has no such tokens.",
    ),
    (
        made(
            "heads",
            patterns="",
            spec={"sort": "from_to_weight", "from": ["cat"], "to": ["tired"]},
            heads="from_to_weight=0.0",
        ),
        'No head gives "tired" any of the weight of "cat".',
    ),
    (
        made("ablate", spec={"sort": "loss"}, heads="loss=-0.5"),
        "No head matters here: removing one makes loss no worse.",
    ),
    (
        made("circuit", edges="from_head=none"),
        "No head feeds another: a head feeds only heads of later layers.",
    ),
    (
        made("generate", spec={"sort": "retrieval"}, heads="retrieval=0.0", needle="copied=0"),
        'The model wrote ""; 0 of its 1 token are in the needle. No head copied from where it looked.',
    ),
]
"""Reports with known numbers, and with nothing to find."""


@pytest.mark.parametrize(("report", "expected"), MADE, ids=lambda value: getattr(value, "kind", ""))
def test_a_finding_of_known_numbers(report: Report, expected: str) -> None:
    assert finding(report) == expected


def weights(values: Any, *tokens: str, mask: Mask | None = None) -> str:
    """Return the finding of weights from another tool."""
    tensor = NamedTensor(("query", "key"), np.array(values, dtype=np.float64), mask)
    result = read_result("show", {}, {"weights": tensor})
    return finding(Report("show", {}, {}, tokens, tensors={"weights": tensor}, result=result))


def test_the_finding_of_weights_without_a_look() -> None:
    causal = Mask(causal=True)
    assert weights([[1.0]], "one") == "Each token sees only one token."
    assert weights(np.zeros((3, 3))) == "Every weight is 0."
    assert weights(np.full((3, 3), np.nan)) == "No weight is known."
    nan = [[0.5, 0.5], [np.nan, np.nan]]
    assert weights(nan).startswith("Each token with a known weight looks evenly at what it sees")
    assert weights([[0.9, 0.1], [0.5, 0.5]], "", "b").startswith("The clearest look: token 0 gives itself")
    even = weights([[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]], "a", "cat", "sat", mask=causal)
    assert even == 'Each token looks evenly at what it sees: "sat" at 3 tokens, 0.33 each.'
    # The first row of a causal map sees one key, so its 1 says nothing; of equal looks, the first is named.
    seen = weights([[1, 0, 0], [0.4, 0.6, 0], [0.3, 0.3, 0.4]], "a", "cat", "a", mask=causal)
    assert seen == 'The clearest look: "cat" gives itself 0.60 of its weight, 1.2 times an even share.'
    assert weights([[-2.0, 1.0], [0.5, 3.0]]) == "The clearest look: token 1 gives itself 3.00."
    partly_missing = weights([[0.75, 0.25], [np.nan, np.nan]], "a", "b")
    assert (
        partly_missing == 'The clearest look: "a" gives itself 0.75 of its weight, 1.5 times an even share.'
    )


def test_names_in_findings_hide_nothing() -> None:
    text = weights([[0.1, 0.9], [0.5, 0.5]], HOSTILE, "b")
    assert not {"\x1b", "\u202e", "\n"} & {*text}
    assert quoted('"') == "'\"'" and quoted("·it") == '"it"' and quoted("·") == '"·"'


def test_a_diff_names_the_row_that_moved_furthest() -> None:
    before, after = run("self"), run("self", causal=True)
    data = compare(before, after).to_data()
    row = max(data["statistics"]["changed_rows"], key=lambda row: row["jensen_shannon"])
    assert row["query"] == row["gained_key"] == 0
    lost = f'{-row["lost"]:.2f} less to "{data["tokens"][row["lost_key"]]}"'
    moved = f'"the" (token 0) gives {row["gained"]:.2f} more weight to itself and {lost} than in A.'
    assert finding(compare(before, after)) == f"What changed most: in B, {moved}"
    assert finding(compare(before, before)) == "No row of weights moved."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number(None), "-"), (number(0.0), "0.00"), (number(0.0123), "0.012"), (number(-0.05), "-0.05"),
        (number(1e-9), "0.00"), (number(12.346), "12.35"), (signed(0.5), "+0.50"), (signed(-0.5), "-0.50"),
        (signed(0.0001), "0.00"), (percent(0.625), "62 %"), (listed([]), ""), (listed("ab"), "a and b"),
        (listed("abcde"), "a, b, c, d and e"), (listed("abcdef"), "a, b, c, d and 2 more"),
    ],
)  # fmt: skip
def test_numbers_and_lists_in_findings(text: str, expected: str) -> None:
    assert text == expected
