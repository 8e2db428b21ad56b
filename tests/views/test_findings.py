"""Findings, the sentences that a page begins with, against numbers that other code takes from the report."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from attncli.features.diff.question import compare
from attncli.records.kinds import KINDS, RESULT_CLASSES, read_result
from attncli.records.report import Mask, NamedTensor, Numbers, Report, Table, Tensors
from attncli.views.findings import listed, number, percent, quoted, signed
from attncli.views.page import report_data
from attncli.views.tables import FIRST_SCREENS
from tests.running import run
from tests.views.test_views import HOSTILE

MOST = 240
"""The most characters of a finding with short names."""
CELLS: Mapping[type, Any] = {float: 0.5, int: 1, bool: False, str: "text", list: [0.5, 0.6]}
"""A cell of each type."""


def made(kind: str, *tokens: str, spec: Mapping[str, Any] = {}, **tables: Any) -> Report:
    """Return a report whose tables have the given rows; other needed tables have one row of any cells."""
    statistics: dict[str, Any] = {}
    for group in KINDS[kind].groups():
        if group.kind is None or not (group.name in tables or (group.is_needed and not group.may_be_empty)):
            continue
        needed = [column for column in group.kind.columns.values() if column.is_needed]
        usual = {
            column.name: next(CELLS[each] for each in CELLS if each in column.kinds) for column in needed
        }
        rows = [usual | row for row in tables.get(group.name, [{}])]
        if group.axes:
            statistics[group.name] = Tensors(
                {name: NamedTensor(group.axes, np.array([row[name] for row in rows])) for name in rows[0]}
            )
        else:
            statistics[group.name] = Numbers(rows[0]) if group.is_single else Table(rows)
    said = {"about": "What it is about.", "how_to_read": "How to read it."}
    given = {"sort": "entropy", "head": "1:2", "group_by": [], "store": "store.db"} | spec
    return Report(kind.split(" of ")[0], given, {}, tokens, result=read_result(kind, statistics), **said)


def finding(report: Report) -> str:
    text: str = report_data(report)["finding"]
    return text


@pytest.mark.parametrize("kind", RESULT_CLASSES)
def test_every_result_has_a_finding(kind: str) -> None:
    """Results with any numbers in them, of which only one is without a sentence: weights are not among them."""
    screen = FIRST_SCREENS.get(RESULT_CLASSES[kind])
    assert screen is not None and screen.finding is not None, "declare finding= in the result's FirstScreen"
    if kind not in OF_WEIGHTS:
        assert finding(made(kind)).endswith("."), kind


OF_WEIGHTS = ("average", "self", "multihead", "cross", "show", "diff", "record", "heads", "generate")
"""The kinds whose result may consist of tensors alone, which have cases below."""


def heads_of(data: Mapping[str, Any], column: str) -> list[tuple[float, str]]:
    rows = data["statistics"]["heads"]
    return sorted(((row[column], f"{row['layer']}:{row['head']}") for row in rows), reverse=True)


def clearest(data: Mapping[str, Any]) -> str:
    """The largest weight of a map in which every token sees all keys."""
    weights, tokens = np.array(data["tensors"]["weights"]["values"]), data["tokens"]
    *head, query, key = np.unravel_index(weights.argmax(), weights.shape)
    names = [
        f'"{name}" (token {at})' if tokens.count(name) > 1 else f'"{name}"' for at, name in enumerate(tokens)
    ]
    keys = [f'"{name}"' for name in data["context_tokens"]] or names
    seen = f", in head {head[0]}" if head else ""
    share = weights.max() * weights.shape[-1]
    weight = f"{keys[key]} {weights.max():.2f} of its weight, {share:.1f} times an even share."
    return f"The clearest look{seen}: {names[query]} gives {weight} "


def spread(data: Mapping[str, Any]) -> str:
    mean, count = (
        np.mean(data["statistics"]["rows"]["participation"]),
        len(data["statistics"]["keys"]["received_mass"]),
    )
    return f"spreads its weight over {mean:.1f} of {count} tokens, nearly evenly (random, untrained weights)."


def ablated(data: Mapping[str, Any]) -> str:
    (first, name), (after, second), *_ = heads_of(data, "loss")
    before = data["statistics"]["baseline"]["loss"]
    return (
        f"Removing {name} raises the loss most: +{first:.2f} nats, from {before:.2f} with all heads. "
        f"The next is {second} with {after:.2f}."
    )


def policies(data: Mapping[str, Any]) -> str:
    rows = data["statistics"]["policies"]
    texts = []
    for budget in (0.1, 0.5):
        loss, name = min((row["loss"], row["policy"]) for row in rows if row["budget"] == budget)
        texts.append(f"with {100 * budget:.0f} % of the cache, {name} (+{loss:.2f})")
    return f"The policies that cost least loss, in nats per token: {'; '.join(texts)}."


def attributed(data: Mapping[str, Any]) -> str:
    parts, (adds, name) = data["statistics"]["parts"], heads_of(data, "contribution")[0]
    sizes = f"the heads add {parts['heads']:.2f}, the MLPs {parts['mlps']:.2f}, the embedding {parts['embedding']:.2f}"
    return f"The logit of 's' is {parts['logit']:.2f}: {sizes}. Head {name} adds most: +{adds:.2f}, giving "


def edges(data: Mapping[str, Any]) -> str:
    rows = [row for row in data["statistics"]["edges"] if row["from_head"] is not None]
    between = max((row for row in rows if row["to"] != "logits"), key=lambda row: abs(row["logit"]))
    into = max((row for row in rows if row["to"] == "logits"), key=lambda row: abs(row["logit"]))
    return (
        f"The strongest edge: {between['from']} writes into the keys of {between['to']} (share "
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
        f"{len(named)} of 8 heads give more than 0.4 of their weight to the token after an earlier copy of the "
        f"current one (induction): {', '.join(named[:-1])} and {named[-1]}. Clearest of the others: "
        f"{clearest_previous} gives {previous:.2f} to the previous token."
    )


def source(data: Mapping[str, Any]) -> str:
    (first, name), (after, second), *_ = sorted(
        ((row["lost"], row["name"]) for row in data["statistics"]["sources"]), reverse=True
    )
    return f"The answer comes from {name}: without {name}, its log-probability falls by {first:.2f} nats ({second}: {after:.2g})."


COMPUTED: list[tuple[str, dict[str, Any], Callable[[Mapping[str, Any]], str]]] = [
    ("self", {}, clearest),
    ("self", {}, spread),
    ("multihead", {}, clearest),
    ("cross", {}, clearest),
    ("average", {}, lambda data: 'looks evenly at what it sees: "street" at 6 tokens, 0.17 each.'),
    ("heads", {}, induction),
    ("heads", {"sort": "entropy"}, lambda data: "Head {1} has the largest entropy of 8 heads: {0:.2f} nats.".format(*heads_of(data, "entropy")[0])),
    ("ablate", {}, ablated),
    ("cache", {"policy": ["all"]}, policies),
    ("why", {}, attributed),
    ("circuit", {}, edges),
    ("circuit", {"weights": True}, compositions),
    ("source", {}, source),
    ("generate", {}, lambda data: f'The model wrote "{data["written"]}". Head {heads_of(data, "text_mass")[0][1]} gives the text of the prompt {heads_of(data, "text_mass")[0][0]:.2f} of its weight, the most of 8 heads.'),
    ("norm", {}, lambda data: f"Batch norm takes feature 0 from mean {data['statistics']['input']['feature0_mean']:.2f}, std "),
    ("scale-demo", {}, lambda data: f"to {data['statistics']['variance'][-1]['raw_scores']:.2f} before scaling, "),
    ("pitfalls", {}, lambda data: "Each of 7 mistakes shows in one number. The largest change: no-scaling makes score variance "),
    ("pitfalls", {"pitfall": "late-mask"}, lambda data: f"Smallest row sum is {data['statistics']['wrong']['smallest_row_sum']:.2f} instead of 1.00."),
]  # fmt: skip


@pytest.mark.parametrize(("experiment", "given", "expected"), COMPUTED, ids=lambda value: str(value)[:30])
def test_a_finding_has_the_numbers_of_its_report(
    experiment: str, given: dict[str, Any], expected: Callable[[Mapping[str, Any]], str]
) -> None:
    report = run(experiment, **given)
    text = finding(report)
    assert expected(report.to_data()) in text
    assert len(text) <= MOST and text.endswith(".")


PLACE = {"stack": "self", "layer": 5, "head": 11}
MADE: list[tuple[Report, str]] = [
    (
        made("heads of pairs", measures=[PLACE | {"measure": "hit", "direction": "forward", "held_out": 0.62, "lower": 0.5, "upper": 0.7, "offset": -1, "offset_share": 0.4}]),
        "Head 5:11 finds 62 % (50 % to 70 %) of known partners on texts that it was not chosen on; the best fixed offset, -1: 40 %.",
    ),
    (
        made("heads of relations", relations=[{"relation": "all relations"}, {"relation": "det", "words": 40, "layer": 3, "head": 1, "share": 0.75, "lower": 0.6, "offset": 1, "offset_share": 0.25, "offset_upper": 0.4}]),
        "For 1 of 1 relation, a head finds more words than any fixed offset. The clearest is det: 3:1 finds 75 % of 40 words, the offset +1 finds 25 %.",
    ),
    (
        made("heads of words", words=[{"word": "Mister", "begin": 0.5, "end": 0.9, "probability": 0.9}, {"word": "Quilter", "begin": 1.0, "end": 1.25, "probability": 0.25}], sound=[{"seconds": 5.0}]),
        '2 words in 5.00 s of sound: from "Mister", which begins at 0.50 s, to "Quilter", which ends at 1.25 s. The least certain word is "Quilter" (probability 0.25).',
    ),
    (
        made("heads of alignment", heads=[PLACE | {"error": 0.06}, {"layer": 1, "head": 2, "error": 0.04}], speech=[{"error_of_found": 0.03, "num_found": 2, "error_of_published": None}]),
        "Head 1:2 finds best where words begin, with a median error of 40 ms. The median error is 30 ms for the first 2 heads together.",
    ),
    (
        made("source of heads", heads=[PLACE | {"found": 0.95, "weight": 0.5}], chosen=[{"chosen_head": "5:11"}, {"chosen_head": "1:2"}]),
        "Head 5:11 looks most at the right sentence in 95 % of the contexts, with 0.50 of its weight. The 2 heads chosen: 5:11 and 1:2.",
    ),
    (
        made("source of explanations", sources=[{"name": "doc1", "lost": -0.25}, {"name": "doc2", "lost": 5.5}], ways=[{"way": "rollout", "first_agrees": 1}, {"way": "alti", "first_agrees": 0}]),
        "Without doc2, the answer loses the most: 5.50 nats; without doc1, -0.25 nats. 1 of 2 ways to read the model rank this source first, too.",
    ),
    (
        made("source of weights", heads=[PLACE | {"weight": 0.25}, {"weight": -0.5, "stack": "self"}], learned=[{"correlation": 0.75}]),
        "Head 1:1 has the largest learned weight of 2 heads: -0.5000. With these weights, heads predict what answers lose (correlation 0.75; equal ones: 0.50).",
    ),
    (
        made("separate", held_out=[{"auroc": 0.92, "lower": 0.8, "upper": 0.97, "baseline": 0.75}], detectors=[{"kind": "baseline", "detector": "length"}], strongest=[PLACE | {"statistic": "sink_mass", "auroc": 0.12, "p_value": 0.01}], fitted=[{"positive": "true", "negative": "made up"}]),
        'On new texts, heads tell "true" from "made up" with AUROC 0.92 (0.80 to 0.97); length alone, 0.75. The best single head is 5:11, whose sink mass is lower in "true" (AUROC 0.12, p = 0.010).',
    ),
    (
        made("separate of texts", scores=[{"id": "a", "margin": 0.5}, {"id": "b", "margin": -2.5, "predicted": "true"}], texts=[{"num_texts": 2, "num_positive": 1}], measured=[{}]),
        '1 of 2 texts are called positive. The clearest is b, "true", 2.50 deviations from the threshold.',
    ),
    (
        made("watch", steps=[{"step": 50, "loss": 4.0}, {"step": 2500, "loss": 0.002}], patterns=[{"pattern": "induction", "stack": "self", "first_step": 300, "layer": 1, "head": 1, "heads": 4, "count": [0, 4]}, {"pattern": "uniform", "stack": "self"}]),
        "The first head with the pattern induction is 1:1 at step 300; at step 2,500, 4 heads have it. The loss goes from 4.00 at step 50 to 0.002 at step 2,500.",
    ),
    (
        made("watch of a head", head=[{"step": 1, "pattern": "unnamed"}, {"step": 3000, "pattern": "induction"}]),
        "Head 1:2 has no pattern before step 3,000 and the pattern induction from then on.",
    ),
    (
        made("results", spec={"group_by": ["heads"]}, summary=[{"heads": 8, "statistic": "entropy.mean", "mean": 1.5}, {"heads": 1, "statistic": "entropy.mean", "mean": 1.25}], failed=[{}]),
        "The mean of entropy.mean goes from 1.25 (heads 1) to 1.50 (heads 8). 1 run failed.",
    ),
    (
        made("heads of examples", head=[{"mean": 0.5, "lower": 0.4, "upper": 0.6, "num_texts": 3}], examples=[{"kind": "strongest", "text": "7", "value": 1.75, "query_token": "it", "key_token": "·cat", "key_weight": 0.62}]),
        'Head 1:2 has entropy 0.50 (0.40 to 0.60) on average over 3 texts. It does so most in text 7 (1.75): "it" gives "cat" 0.62 of its weight.',
    ),
    (
        made("diff of texts", heads=[PLACE | {"query_a_token": "it", "query_b_token": "it", "key_a_token": "cat", "weight_a": 0.62, "key_b_token": "dog", "weight_b": 0.5}], predictions=[{"token": "·sat", "a": 0.9, "b": 0.25}]),
        'Head 5:11 changes most: from "it", it looks at "cat" (0.62) in A and at "dog" (0.50) in B. The probability of "sat" as next token goes from 0.90 to 0.25.',
    ),
    (
        made("why of a score", "the", "cat", "it", score=[{"query": 2, "key": 1, "weight": 0.83}], sides=[{"side": "key", "part": "0:1", "score": 5.0, "weight_without": 0.09}, {"side": "key", "part": "0:3", "score": 1.0}, {"side": "query", "part": "embedding", "weight_without": 0.25}]),
        'Head 1:2 gives "cat" 0.83 of the weight of "it". Without what 0:1 wrote at "cat", the weight would be 0.09, and without what the embedding wrote at "it", 0.25.',
    ),
    (
        made("heads", spec={"sort": None}, patterns=[{"stack": stack, "pattern": pattern, "statistic": "s", "threshold": 0.3, "heads": count} for stack, pattern, count in (("encoder", "first token", 2), ("encoder", "induction", None), ("decoder", "uniform", 1))], heads=[{"stack": stack, "head": head} for stack in ("encoder", "decoder") for head in (0, 1)]),
        "Encoder: all 2 heads give more than 0.3 of their weight to the first token; decoder: 1 of 2 heads spreads its weight almost evenly.",
    ),
    (made("heads", spec={"sort": None}, patterns=[{"stack": "self", "pattern": "induction", "heads": 0}]), "No head looks mainly at one kind of token, such as the first or the previous one."),
    (made("heads", spec={"sort": None}, patterns=[{"stack": "self", "pattern": "induction", "heads": None}]), "The text is too short to tell what each head looks at."),
    (made("heads", spec={"sort": "from_to_weight", "from": ["it"], "to": ["cat", "last"]}, patterns=[{}], heads=[PLACE | {"from_to_weight": 0.62}]), 'Head 5:11 gives "cat" and the last token 0.62 of the weight of "it", the most of 1 head.'),
    (made("heads", patterns=[{}], heads=[PLACE | {"entropy": None}]), "No head has a number for entropy: the text has no such tokens."),
    (made("ablate", spec={"sort": "loss"}, heads=[{"loss": -0.5}]), "No head matters here: removing one makes loss no worse."),
    (made("circuit", edges=[{"from_head": None}]), "No head feeds another: a head feeds only heads of later layers."),
    (made("generate", written=[{}], needle=[{"tokens": 2, "copied": 0}], spec={"sort": "retrieval"}, heads=[{"retrieval": 0.0}]), 'The model wrote ""; 0 of its 1 token are in the needle. No head copied from where it looked.'),
]  # fmt: skip
"""Reports with known numbers, and with nothing to find."""


@pytest.mark.parametrize(("report", "expected"), MADE, ids=lambda value: getattr(value, "kind", "")[:30])
def test_a_finding_of_known_numbers(report: Report, expected: str) -> None:
    assert finding(report) == expected


def weights(values: Any, *tokens: str, mask: Mask | None = None) -> str:
    tensor = NamedTensor(("query", "key"), np.array(values, dtype=np.float64), mask)
    result = read_result("show", {}, {"weights": tensor})
    return finding(Report("show", {}, {}, tokens, tensors={"weights": tensor}, result=result))


def test_the_finding_of_weights_without_a_look() -> None:
    causal = Mask(causal=True)
    assert weights([[1.0]], "one") == "Each token sees only one token."
    even = weights([[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]], "a", "cat", "sat", mask=causal)
    assert even == 'Each token looks evenly at what it sees: "sat" at 3 tokens, 0.33 each.'
    # The first row of a causal map sees one key, so its 1 says nothing; equal looks name the first.
    seen = weights([[1, 0, 0], [0.4, 0.6, 0], [0.3, 0.3, 0.4]], "a", "cat", "a", mask=causal)
    assert seen == 'The clearest look: "cat" gives itself 0.60 of its weight, 1.2 times an even share.'
    assert weights([[-2.0, 1.0], [0.5, 3.0]]) == "The clearest look: token 1 gives itself 3.00."
    assert weights([[0.75, 0.25], [np.nan, np.nan]], HOSTILE, "b").startswith("The clearest look: ")


def test_names_in_findings_hide_nothing() -> None:
    text = weights([[0.1, 0.9], [0.5, 0.5]], HOSTILE, "b")
    assert not {"\x1b", "\u202e", "\n"} & {*text}
    assert quoted('"') == "'\"'" and quoted("·it") == '"it"' and quoted("·") == '"·"'


def test_a_diff_names_the_row_that_moved_furthest() -> None:
    before, after = run("self"), run("self", causal=True)
    data = compare(before, after).to_data()
    row, tokens = (
        max(data["statistics"]["changed_rows"], key=lambda row: row["jensen_shannon"]),
        data["tokens"],
    )
    assert row["query"] == row["gained_key"] == 0
    expected = f'"the" (token 0) gives itself {row["gained"]:.2f} more and "{tokens[row["lost_key"]]}" {-row["lost"]:.2f} less'
    assert expected in finding(compare(before, after))
    assert finding(compare(before, before)) == "No row of weights moved."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number(None), "-"), (number(0.0), "0.00"), (number(0.0123), "0.012"), (number(-0.05), "-0.05"),
        (number(1e-9), "0.00"), (number(12.345), "12.35"), (signed(0.5), "+0.50"), (signed(-0.5), "-0.50"),
        (signed(0.0001), "0.00"), (percent(0.625), "62 %"), (listed([]), ""), (listed("ab"), "a and b"),
        (listed("abcde"), "a, b, c, d and e"), (listed("abcdef"), "a, b, c, d and 2 more"),
    ],
)  # fmt: skip
def test_numbers_and_lists_in_findings(text: str, expected: str) -> None:
    assert text == expected
