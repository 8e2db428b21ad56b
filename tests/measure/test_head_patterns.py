"""The names of heads, the weights between named tokens, and truncated texts, as users see them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AddedToken, AutoTokenizer, GPT2Config, GPT2LMHeadModel

import attncli
from attncli.core.names import NOT_MEASURED, UNNAMED
from attncli.measure.patterns import (
    most_frequent_pattern,
    pattern_names,
    pattern_table,
    strongest_heads,
)
from attncli.models.folder import SHIPPED_MODEL
from attncli.records.surveys import Stack
from attncli.views.texts import token_in_line
from tests.conftest import Attn
from tests.model_folders import save_model
from tests.running import run

SENTENCE = "the cat sat because the cat was tired"
NOTHING = dict.fromkeys(
    ("previous_token", "next_token", "current_token", "duplicate_token", "induction", "special_mass",
     "sink_mass", "one_key_mass", "normalized_entropy"),
    0.0,
)  # fmt: skip


def heads(*statistics: dict[str, float]) -> dict[str, np.ndarray]:
    """The statistics of heads, which are 0 except for these."""
    return {name: np.array([head.get(name, 0.0) for head in statistics]) for name in NOTHING}


def stack(*, starts_special: bool = False, **num_rows: int) -> Stack:
    return Stack("self", dict.fromkeys(NOTHING, 9) | num_rows, starts_special)


def pattern_of(of_stack: Stack, **statistics: float) -> str:
    (name,) = pattern_names(heads(statistics), of_stack)
    return name


def test_a_head_is_named_by_its_largest_statistic_above_the_threshold() -> None:
    assert pattern_of(stack(), sink_mass=0.5, previous_token=0.6) == "previous token"
    assert pattern_of(stack(), sink_mass=0.31, previous_token=0.4) == "first token"
    assert pattern_of(stack(), sink_mass=0.3, previous_token=0.4) == UNNAMED
    uniform = pattern_of(stack(), sink_mass=0.95, normalized_entropy=0.91)
    assert uniform == "uniform", "which goes before all others"
    equal = pattern_of(stack(), next_token=0.5, current_token=0.5)
    assert equal == "next token", "the first of equal ones"
    assert pattern_of(stack(), next_token=np.nan, current_token=0.5) == "current token"


def test_even_weights_name_no_head_on_texts_of_any_length() -> None:
    for num_tokens in range(1, 60):
        even = torch.ones(num_tokens, num_tokens).tril()
        even /= even.sum(dim=-1, keepdim=True)
        numbers = {"sink_mass": float(even[:, 0].mean()), "current_token": float(even.diagonal().mean())}
        for num_texts in (1, 7):
            rows = dict.fromkeys(NOTHING, num_texts * num_tokens)
            rows["normalized_entropy"] -= num_texts  # a row with one key has no normalized entropy
            unnamed = UNNAMED if num_tokens >= 10 else NOT_MEASURED
            assert pattern_of(stack(**rows), **numbers) == unnamed, num_tokens
            # A head that looks there is named as soon as even weights would no longer be.
            for name, statistic, fewest in (
                ("first token", "sink_mass", 10),
                ("current token", "current_token", 7),
            ):
                named = pattern_of(stack(**rows), **{statistic: 0.9})
                assert (named == name) == (num_tokens >= fewest), (name, num_tokens)
    # In an encoder, every row sees every key: with four tokens, each has a quarter.
    assert pattern_of(stack(), sink_mass=0.9) == "first token"


def test_each_head_has_its_own_name() -> None:
    some = heads({"induction": 0.9}, {}, {"previous_token": 0.5, "induction": 0.45})
    assert pattern_names(some, stack()) == ["induction", UNNAMED, "previous token"]


def test_the_first_token_does_not_count_as_special() -> None:
    first = {"sink_mass": 0.6, "special_mass": 0.9}
    assert pattern_of(stack(starts_special=True), **first) == "first token"
    assert pattern_of(stack(starts_special=False), **first) == "special tokens"
    assert pattern_of(stack(starts_special=True), sink_mass=0.1, special_mass=0.6) == "special tokens"


def test_a_pattern_with_fewer_than_five_rows_names_no_head() -> None:
    numbers = heads({"induction": 0.9})
    for num_rows, name in ((4, UNNAMED), (5, "induction")):
        few = stack(induction=num_rows)
        assert pattern_of(few, induction=0.9) == name
        (row,) = pattern_table(numbers, [UNNAMED], few).where(lambda row: row.pattern == "induction")
        assert row.num_rows == row["rows"] == num_rows and row.heads == (None if num_rows < 5 else 1)
        named = {head.pattern for head in strongest_heads(numbers, few)}
        assert ("induction" in named) == (num_rows >= 5)


def test_punctuation_keys_are_quoted_on_the_screen(attn: Attn) -> None:
    lines = attn(["heads", "--sentence", "a,b,c", "--model", SHIPPED_MODEL]).out
    assert re.search(r'→ \d ","', lines) and not re.search(r"→ \d ,", lines), lines


@pytest.mark.parametrize(
    ("token", "shown"),
    {",": '","', "...": '"..."', "=": '"="', '"': '"""', "·,": "·,", "·": "·", "↵": "↵", "a,": "a,"}.items(),
)
def test_only_punctuation_is_quoted(token: str, shown: str) -> None:
    assert token_in_line(token) == shown


def test_the_strongest_of_equal_heads_are_the_first() -> None:
    equal = heads(*({"previous_token": 0.5 + 1e-9 * number} for number in range(5)))
    assert [head.place for head in strongest_heads(equal, stack())] == [0, 1, 2]


@pytest.mark.parametrize("flags", [["--to", "cat"], ["--from", "tired", "--to", "cat", "--to", "2"]])
def test_heads_are_ranked_by_the_weight_between_tokens(attn: Attn, tmp_path: Path, flags: list[str]) -> None:
    folder = str(save_model(tmp_path, "BERT"))
    common = ["heads", "--model", folder, "--sentence", SENTENCE]
    rows = json.loads(attn([*common, *flags, "--format", "json"]).out)["statistics"]["heads"]
    numbers = [row["from_to_weight"] for row in rows]
    assert numbers == sorted(numbers, reverse=True) and len(rows) > 2
    report = run("heads", model=folder, sentence=SENTENCE, maps="self")
    words = report.tokens
    queries = [i for i, word in enumerate(words) if word == "tired" or "--from" not in flags]
    keys = {i for i, word in enumerate(words) if word == "cat" or (i == 2 and "2" in flags)}
    for row in rows:
        weights = report.tensors["weights"].values[row["layer"], row["head"]]
        assert row["from_to_weight"] == pytest.approx(
            weights[queries][:, sorted(keys)].sum(-1).mean(), abs=1e-6
        )
        others = [query for query in range(len(words)) if query not in queries]
        assert ("others_to_weight" in row) == bool(others)
        if others:
            mean = weights[others][:, sorted(keys)].sum(-1).mean()
            assert row["others_to_weight"] == pytest.approx(mean, abs=1e-6)
    assert "from_to_weight" in attn([*common, *flags, "--format", "csv"]).out.splitlines()[0]


def test_other_queries_are_those_that_see_the_key(attn: Attn) -> None:
    """In a causal model, queries before the key do not count, since they do not see it."""
    text = "abcdabcefabc"
    report = run("heads", sentence=text, maps="self", **{"from": ["last"], "to": ["e"]})
    key = report.tokens.index("e")
    for row in report.table("heads"):
        weights = report.tensors["weights"].values[row["layer"], row["head"]]
        assert row["others_to_weight"] == pytest.approx(weights[key:-1, key].mean(), abs=1e-6)
    shown = attn(["heads", text, "--from", "last", "--to", "e", "--top", "2"]).out
    assert re.search("from to +others to", shown)


def test_the_screen_and_json_list_the_named_tokens(attn: Attn, tmp_path: Path) -> None:
    """the cat sat because the cat was tired, with [CLS] and [SEP] around it."""
    command = ["heads", "--model", str(save_model(tmp_path, "BERT")), "--sentence", SENTENCE]

    def meant(*flags: str) -> tuple[list[tuple[str, str, int, str]], list[float]]:
        found = json.loads(attn([*command, *flags, "--format", "json"]).out)["statistics"]
        named = [
            (row["setting"], row["name"], row["position"], row["token"]) for row in found["named_tokens"]
        ]
        return named, [row["from_to_weight"] for row in found["heads"]]

    both, of_both = meant("--from", "cat", "--to", "-3")
    assert both == [("from", "cat", 2, "cat"), ("from", "cat", 6, "cat"), ("to", "-3", 7, "was")]
    second, of_second = meant("--from", "cat#2", "--to", "was")
    assert second == [("from", "cat#2", 6, "cat"), ("to", "was", 7, "was")]
    assert of_second == meant("--from", "6", "--to", "7")[1] != of_both
    assert meant("--to", "last")[0] == [("to", "last", 9, "[SEP]")]
    shown = " ".join(attn([*command, "--from", "cat", "--to", "the", "--top", "3"]).out.split())
    assert "sorted by weight from 2 cat, 6 cat (their mean) to 1 the, 5 the (summed), largest first" in shown
    assert "weight on 9 [SEP]" in attn([*command, "--to", "last"]).out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--to", "cat#3"], "--to: must be cat#1 to cat#2 (got cat#3)"),
        (
            ["--to", "catt"],
            "--to: must be a token of the text (got catt) (did you mean 'cat'?): its tokens are [CLS], the,",
        ),
        (
            ["--to", "99"],
            "--to: must be a position from 0 to 9, or from -1 to -10, counted from the end (got 99)",
        ),
        (["--ascending"], "--ascending: needs --sort"),
        (["--sort", "from_to_weight"], "--sort: from_to_weight needs --to"),
    ],
)
def test_tokens_outside_the_text_are_one_line(
    attn: Attn, tmp_path: Path, flags: list[str], said: str
) -> None:
    folder = str(save_model(tmp_path, "BERT"))
    ended = attn(["heads", "--model", folder, "--sentence", SENTENCE, *flags])
    assert ended.code == 2 and ended.err.startswith(said) and len(ended.err.splitlines()) == 1, ended.err


def test_a_long_text_is_truncated_on_request(attn: Attn, tmp_path: Path) -> None:
    folder, text = str(save_model(tmp_path, "BERT")), "the cat " * 300
    command = ["heads", "--model", folder, "--sentence", text, "--format", "json"]
    ended = attn(command)
    assert ended.code == 2 and "must be at most 512 tokens" in ended.err
    report = json.loads(attn([*command, "--truncate"]).out)
    assert len(report["tokens"]) == 512 and report["tokens"][-1] == "[SEP]"
    assert "The last 90 tokens of the text are left out: the model reads 512." in report["notes"]


def test_rows_without_a_number_do_not_count_for_a_pattern(attn: Attn, tmp_path: Path) -> None:
    """Row 0 of a causal model sees one key, so its normalized entropy is null."""
    folder = str(save_model(tmp_path, "Llama"))
    for words, flags, rows in ((3, (), 4), (4, (), 5), (4, ("--skip-sink", "1"), 4)):
        command = ["heads", "--model", folder, "--sentence", " ".join(["cat"] * words), *flags]
        patterns = json.loads(attn([*command, "--format", "json"]).out)["statistics"]["patterns"]
        (uniform,) = [row for row in patterns if row["pattern"] == "uniform"]
        assert uniform["rows"] == rows and (uniform["heads"] is None) == (rows < 5)


@pytest.mark.parametrize("flags", [[], ["--skip-sink", "1"]])
def test_a_short_text_with_special_tokens_is_noted(attn: Attn, tmp_path: Path, flags: list[str]) -> None:
    command = ["heads", "--model", str(save_model(tmp_path, "BERT")), "cat", *flags]
    (said,) = [line for line in attn(command).out.splitlines() if line.startswith("S special tokens")]
    assert "  only 3 rows: use a longer text" in said


def test_special_tokens_exclude_unknown_words(tmp_path: Path) -> None:
    """w20 has no role; [UNK] has a role, but stands for a word."""
    folder = save_model(tmp_path, "BERT")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken("w20", special=True)])
    tokenizer.save_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).all_special_tokens == ["[UNK]", "[SEP]", "[PAD]", "[CLS]"]
    sentence = "cat w20 nosuchword on street"
    report = run("heads", model=str(folder), sentence=sentence, maps="self")
    special = [report.tokens.index(token) for token in ("[CLS]", "w20", "[SEP]")]
    assert "[UNK]" in report.tokens
    for row in report.statistics["heads"]:
        weights = report.tensors["weights"].values[row["layer"], row["head"]]
        assert row["special_mass"] == pytest.approx(weights[:, special].sum(-1).mean(), abs=1e-5)
    probe = run("heads", model=str(folder), probe="repeated", num_tokens=str(len(tokenizer) - 5)).tokens
    assert not {"w20", "[UNK]", "[SEP]"} & {*probe}


def looking_back(folder: Path, *distances: int) -> GPT2LMHeadModel:
    """A model of one layer whose heads look back by these distances, whatever the tokens are."""
    places, count = 64, len(distances)
    config = GPT2Config(
        vocab_size=64, n_positions=places, n_embd=places * count, n_layer=1, n_head=count, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    attention = model.transformer.h[0].attn.c_attn
    with torch.no_grad():
        model.transformer.wte.weight.mul_(0.01)
        model.transformer.wpe.weight.copy_(torch.eye(places, places * count))
        attention.weight.zero_()
        for head, distance in enumerate(distances):
            query = attention.weight[:places, head * places : (head + 1) * places]
            query.copy_(5 * torch.eye(places).roll(-distance, dims=1).tril())
            start = places * (count + head)
            attention.weight[:places, start : start + places] = torch.eye(places)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(SHIPPED_MODEL).save_pretrained(folder)
    return model


@pytest.mark.parametrize("num_tokens", [24, 5])
def test_a_head_with_a_fixed_distance_is_not_an_induction_head(
    num_tokens: int, tmp_path: Path, attn: Attn
) -> None:
    model = looking_back(tmp_path, num_tokens - 1, num_tokens, 1)
    flags = ["--model", str(tmp_path), "--num-tokens", str(num_tokens), "--seed", str(num_tokens)]
    names = {"induction", "duplicate token"}
    for command in ("ablate", "heads"):
        report = json.loads(attn([command, *flags, "--format", "json"]).out)
        patterns = {row["head"]: row["pattern"] for row in report["statistics"]["heads"]}
        assert names.isdisjoint(patterns.values()) and patterns[2] == "previous token", command
    counts = {row["pattern"]: row["heads"] for row in report["statistics"]["patterns"]}
    assert {name: counts[name] for name in names} == dict.fromkeys(names, 0)
    assert names.isdisjoint(row.get("rest_pattern") for row in report["statistics"]["heads"])
    rows = {row["head"]: row for row in report["statistics"]["heads"]}
    assert rows[0]["induction_stripe"] > 0.9 > 0.1 > rows[0]["induction"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    with attncli.Watch(model, tokenizer, every=1, num_tokens=num_tokens) as watch:
        numbers = watch.step(1)
    assert names.isdisjoint(row["pattern"] for row in watch.heads)
    assert numbers is not None and numbers["attn/induction_heads"] == 0


def test_induction_heads_have_the_same_numbers_at_any_distance() -> None:
    for num_tokens in (5, 9, 24):
        survey = attncli.heads(str(SHIPPED_MODEL), num_tokens=num_tokens)
        heads = [row for row in survey.table("heads") if row["layer"] == 1]
        assert [row["pattern"] for row in heads] == ["induction"] * 4
        largest = max(row["induction"] for row in heads)
        assert largest == max(row["induction_stripe"] for row in heads), "as the longer probe has it"


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ({}, UNNAMED),
        ({"previous_token": 4}, NOT_MEASURED),
        ({"normalized_entropy": 4}, NOT_MEASURED),
        # Even weights of 6 tokens put 0.41 on the first.
        ({"sink_mass": 6, "current_token": 6, "normalized_entropy": 5}, NOT_MEASURED),
        # In a text without repeated or special tokens, no head can look at these.
        ({"induction": 0, "duplicate_token": 0, "special_mass": 0}, UNNAMED),
    ],
)
def test_a_head_is_unnamed_only_if_positions_were_measured(rows: dict[str, int], named: str) -> None:
    assert pattern_of(stack(**rows)) == named
    table = pattern_table(heads({}), [named], stack(**rows))
    assert (table[-1].pattern, table[-1].heads) == (named, 1)
    assert pattern_of(stack(**rows), one_key_mass=0.9) == "one key for all"


def test_the_most_frequent_pattern_ignores_unmeasured_texts() -> None:
    assert most_frequent_pattern([NOT_MEASURED, NOT_MEASURED, "induction"]) == "induction"
    assert most_frequent_pattern([NOT_MEASURED]) == NOT_MEASURED
