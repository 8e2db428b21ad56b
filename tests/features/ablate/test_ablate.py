"""`attn ablate` against runs of transformers, the intervals of scipy and the autograd of torch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

import attncli
from attncli.models.loading import kept_pretrained
from attncli.models.predicted import predicted_reading
from attncli.models.probes import repeated_probe
from attncli.models.reading_text import read_text
from attncli.records.report import Report
from attncli.settings.heads import HeadsSpec
from tests.conftest import Attn
from tests.model_folders import GEMMAS, save_gemma, save_model, save_tokenizer, save_writer
from tools.tiny_architectures import VOCABULARY

SHIPPED = str(HeadsSpec.default_model)
VALUE_DIM = 16
LOOKED_AT = ("query", "query_token", "key", "key_token", "key_weight")
LINES = ("ab cab", "hello world", "a cat sat on the mat", "abcabc")


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(SHIPPED).eval()
    return loaded


@contextmanager
def without(model: Any, layer: int, *heads: int) -> Iterator[None]:
    """Set rows of c_proj, which is W_O transposed, to zero in the shipped model, a GPT-2."""
    rows = model.transformer.h[layer].attn.c_proj.weight
    kept = rows.detach().clone()
    with torch.no_grad():
        for head in heads:
            rows[head * VALUE_DIM : (head + 1) * VALUE_DIM] = 0
    yield
    with torch.no_grad():
        rows.copy_(kept)


@torch.no_grad()
def log_probabilities(model: PreTrainedModel, ids: Tensor) -> Tensor:
    logits: Tensor = model(ids.unsqueeze(0)).logits[0]
    return logits.log_softmax(dim=-1)


def loss(model: PreTrainedModel, ids: Tensor, first: int = 1) -> float:
    """Return the loss of the tokens from `first` on, each predicted from the tokens before it."""
    found = log_probabilities(model, ids)[first - 1 : -1]
    return -float(found.gather(-1, ids[first:, None]).mean())


def probe(seed: int, length: int) -> Tensor:
    pretrained = kept_pretrained(SHIPPED, allow_download=False, device="cpu", with_head=True)
    return repeated_probe(pretrained, length, torch.Generator().manual_seed(seed)).ids


def text_ids(text: str) -> Tensor:
    return torch.tensor(AutoTokenizer.from_pretrained(SHIPPED)(text)["input_ids"])


def effects(report: Report, name: str) -> dict[tuple[Any, Any], Any]:
    return {(row["layer"], row["head"]): row[name] for row in report.table("heads")}


@pytest.mark.parametrize(("seed", "length"), [(0, 24), (5, 13)])
def test_loss_on_the_second_copy_without_each_head_is_that_of_transformers(
    model: PreTrainedModel, seed: int, length: int
) -> None:
    report = attncli.run("ablate", seed=seed, num_tokens=length)
    ids = probe(seed, length)
    first = 1 + length + 1  # after BOS, the first copy, and the token that nothing tells
    assert len(ids) == 1 + 2 * length
    before = loss(model, ids, first)
    assert report.numbers("baseline")["loss"] == pytest.approx(before, abs=1e-6)
    found, divergences = effects(report, "loss"), effects(report, "kl")
    p = log_probabilities(model, ids)[first - 1 : -1]
    for (layer, head), effect in found.items():
        with without(model, layer, head):
            assert effect == pytest.approx(loss(model, ids, first) - before, abs=1e-6, rel=1e-6)
            q = log_probabilities(model, ids)[first - 1 : -1]
        expected = torch.nn.functional.kl_div(q, p, log_target=True, reduction="batchmean")
        assert divergences[layer, head] == pytest.approx(float(expected), abs=1e-6, rel=1e-6)
    assert len(found) == 8 and list(found) == sorted(found, key=lambda place: -found[place])
    of_first_layer = [row for row in report.table("heads") if row["layer"] == 0]
    assert of_first_layer[0]["pattern"] == "previous token", "it is what copying needs"
    torch.testing.assert_close(report.tensors["loss"].values[1, 2].item(), found[1, 2])


def test_several_heads_at_once(model: PreTrainedModel) -> None:
    report = attncli.run("ablate", sentence="abcabcabc", heads="1:0,1:3,1:2", jointly=True)
    ids = text_ids("abcabcabc")
    before = loss(model, ids)
    with without(model, 1, 0, 2, 3):
        assert report.numbers("joint")["loss"] == pytest.approx(loss(model, ids) - before, abs=1e-6)
    assert {*effects(report, "loss")} == {(1, 0), (1, 3), (1, 2)}


def test_an_answer_is_measured_after_the_text(model: PreTrainedModel) -> None:
    report = attncli.run("ablate", sentence="abcdabc", answer="d", against="a")
    ids, (answer, against) = text_ids("abcdabc"), text_ids("da")[-2:].tolist()
    before = log_probabilities(model, ids)[-1]
    baseline = report.numbers("baseline")
    assert baseline["probability"] == pytest.approx(float(before[answer].exp()), abs=1e-6)
    assert baseline["logit_difference"] == pytest.approx(float(before[answer] - before[against]), abs=1e-4)
    with without(model, 1, 3):
        after = log_probabilities(model, ids)[-1]
    change = float(after[answer].exp() - before[answer].exp())
    assert effects(report, "probability")[1, 3] == pytest.approx(change, abs=1e-6)
    assert effects(report, "loss")[1, 3] == pytest.approx(float(before[answer] - after[answer]), abs=1e-5)
    order = list(effects(report, "probability").values())
    assert order == sorted(order), "what makes it less likely to be gone comes first"


@torch.no_grad()
def eager_attentions(ids: Tensor) -> Tensor:
    """Return the weights (layer, head, query, key) of the shipped model, computed by transformers."""
    eager = AutoModelForCausalLM.from_pretrained(SHIPPED, attn_implementation="eager").eval()
    return torch.cat(eager(ids.unsqueeze(0), output_attentions=True).attentions)


@pytest.mark.parametrize("text", ["abcabcabc", "the cat sat. the cat"])
def test_keys_are_those_at_the_token_that_loses_most(model: PreTrainedModel, text: str) -> None:
    report = attncli.run("ablate", sentence=text)
    ids, weights = text_ids(text), eager_attentions(text_ids(text))

    def losses() -> Tensor:
        return -log_probabilities(model, ids)[:-1].gather(-1, ids[1:, None])[:, 0]

    before, num_missed = losses(), 0
    for row in report.table("heads"):
        layer, head = row["layer"], row["head"]
        with without(model, layer, head):
            rise = losses() - before
        if rise.max() <= 1e-4:
            assert [row[name] for name in LOOKED_AT] == [None] * 5, "it is missed nowhere"
            continue
        num_missed += 1
        query, key = int(rise.argmax()), int(row["key"])
        of_query = weights[layer, head, query]
        assert (row["query"], row["query_token"]) == (query, report.tokens[query])
        assert of_query[key] == pytest.approx(float(of_query.max()), abs=1e-6)
        assert row["key_weight"] == pytest.approx(float(of_query.max()), abs=1e-6)
        assert row["key_token"] == report.tokens[key]
    assert num_missed > 3


def test_with_an_answer_keys_are_those_of_the_last_token(attn: Attn) -> None:
    command = ["ablate", "abcdabc", "--answer", "d"]
    weights = eager_attentions(text_ids("abcdabc"))[:, :, -1]
    for row in json.loads(attn([*command, "--format", "json"]).out)["statistics"]["heads"]:
        of_query = weights[row["layer"], row["head"]]
        assert (row["query"], row["key"]) == (7, int(of_query.argmax()))
    shown = attn(command).out
    assert "from 7 c" in shown and "1:1  not measured    4 d 1.00" in shown


def test_each_line_may_have_its_own_answer(attn: Attn, tmp_path: Path) -> None:
    prompts = [
        ("to be or not to b", "e", "o"),
        ("so do or not so d", "o", "e"),
        ("no go and so no g", "o", "n"),
    ]
    lines = [dict(zip(("text", "answer", "against"), prompt, strict=True)) for prompt in prompts]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ["ablate", "--texts", str(tmp_path / "prompts.jsonl"), "--sort", "logit_difference"]
    report = json.loads(attn([*asked, "--format", "json"]).out)
    assert any("only on the prediction of the answer" in note for note in report["notes"])
    model = attncli.open_model()
    readings = [
        predicted_reading(read_text(model, text), model, torch.Generator(), answer=answer, against=against)
        for text, answer, against in prompts
    ]
    alone = [attncli.ablate(model, reading) for reading in readings]
    differences = np.mean([result.heads.numbers("logit_difference") for result in alone], axis=0)
    assert [result.baseline.logit_difference for result in alone] == pytest.approx(
        [attncli.why(model, t, answer=a, against=b).parts.logit for t, a, b in prompts], abs=1e-4
    )
    expected = dict(zip([(row // 4, row % 4) for row in range(8)], differences, strict=True))
    rows = {(row["layer"], row["head"]): row["logit_difference"] for row in report["statistics"]["heads"]}
    assert rows == pytest.approx(expected, abs=1e-5)


def test_means_over_texts_have_the_intervals_of_scipy(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    report = attncli.run("ablate", texts=str(tmp_path / "lines.txt"))
    assert "4 texts" in report.about and "key" not in report.table("heads")[0]
    each = [effects(attncli.run("ablate", sentence=line), "loss") for line in LINES]
    for row in report.table("heads"):
        numbers = [one[row["layer"], row["head"]] for one in each]
        mean, error = sum(numbers) / 4, stats.sem(numbers)
        assert row["loss"] == pytest.approx(mean, abs=1e-6)
        expected = stats.t.interval(0.95, 3, mean, error)
        assert (row["loss_low"], row["loss_high"]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("texts", [LINES[:1], LINES])
def test_the_approximation_is_the_gradient_of_a_gate(
    model: PreTrainedModel, tmp_path: Path, texts: tuple[str, ...]
) -> None:
    """Multiply what c_proj reads in transformers by gates, and compare the mean of |d loss / d gate|."""
    (tmp_path / "lines.txt").write_text("\n".join(texts))
    report = attncli.run("ablate", texts=str(tmp_path / "lines.txt"), approximate=True, sort="approximate")
    total = torch.zeros(2, 4)
    for text in texts:
        gates = torch.ones(2, 4, requires_grad=True)
        hooks = [
            block.attn.c_proj.register_forward_pre_hook(
                lambda module, read, gate=gate: (
                    (read[0].unflatten(-1, (4, -1)) * gate[:, None]).flatten(-2),
                )
            )
            for block, gate in zip(model.transformer.h, gates, strict=True)
        ]
        ids = text_ids(text).unsqueeze(0)
        (gradient,) = torch.autograd.grad(model(ids, labels=ids).loss, gates)
        total += gradient.abs() / len(texts)
        for hook in hooks:
            hook.remove()
    found = effects(report, "approximate")
    for place, importance in found.items():
        assert importance == pytest.approx(float(total[place]), rel=1e-4, abs=1e-7)
    exact = effects(attncli.run("ablate", texts=str(tmp_path / "lines.txt")), "loss")
    expected = stats.spearmanr([found[place] for place in exact], [abs(exact[place]) for place in exact])
    correlation = report.numbers("approximation")
    assert correlation["rank_correlation"] == pytest.approx(expected.statistic, abs=1e-6)
    assert correlation["heads"] == 8


def test_heads_that_are_not_removed_have_only_the_approximation() -> None:
    report = attncli.run("ablate", approximate=True, heads="0:1,1:0,1:3")
    rows = report.table("heads")
    assert len(rows) == 8 and report.numbers("approximation")["heads"] == 3
    assert sum(row["loss"] is not None for row in rows) == 3
    assert all(row["approximate"] is not None for row in rows)


def masked_model(folder: Path) -> BertForMaskedLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    model = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, initializer_range=0.5, **sizes)).eval()
    model.save_pretrained(folder)
    save_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.mask_token = "w9"
    tokenizer.save_pretrained(folder)
    return model


def test_an_encoder_predicts_what_is_masked(tmp_path: Path) -> None:
    model = masked_model(tmp_path)
    sentence = "the cat walks on the street because it was tired and the cat sat"
    report = attncli.run("ablate", model=tmp_path, sentence=sentence, seed=3)
    places = [i for i, token in enumerate(report.tokens) if token == "w9"]
    assert len(places) == 2, "15 % of 14 words"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = torch.tensor(tokenizer(sentence)["input_ids"])
    masked = ids.clone()
    masked[places] = tokenizer.mask_token_id

    def masked_loss() -> float:
        found = log_probabilities(model, masked)[places]
        return -float(found.gather(-1, ids[places, None]).mean())

    before = masked_loss()
    assert report.numbers("baseline")["loss"] == pytest.approx(before, abs=1e-5)
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.output.dense.weight[:, 8:16] = 0
    assert effects(report, "loss")[1, 1] == pytest.approx(masked_loss() - before, abs=1e-5)


def test_an_encoder_predicts_the_answer_at_its_mask(attn: Attn, tmp_path: Path) -> None:
    masked_model(tmp_path)
    command = ["ablate", "--model", str(tmp_path), "--answer", "cat", "--format", "json", "--sentence"]
    found = json.loads(attn([*command, "the w9 sat"]).out)
    assert 0 < found["statistics"]["baseline"]["probability"] < 1
    ended = attn([*command, "the cat sat"])
    assert ended.code == 2 and "must contain exactly one w9, which the answer replaces (got 0)" in ended.err


def test_a_model_without_a_prediction_head_compares_outputs(tmp_path: Path) -> None:
    folder = save_model(tmp_path, "BERT")
    report = attncli.run("ablate", model=folder, sentence="the cat sat")
    assert {"output_change"} == {*report.table("heads")[0]} - {
        "layer", "head", "kind", "module", "stack", "pattern", *LOOKED_AT
    }  # fmt: skip
    assert all(row["output_change"] > 0 for row in report.table("heads"))
    with pytest.raises(attncli.UserError, match="predicts no tokens, so it has no loss"):
        attncli.run("ablate", model=folder, sentence="the cat sat", approximate=True)


def test_heads_of_an_encoder_decoder_have_a_stack(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    report = attncli.run("ablate", model=tmp_path, sentence="the cat sat", heads="cross:1:2,encoder:0:3")
    assert {row["stack"] for row in report.table("heads")} == {"cross", "encoder"}
    assert all("loss" in row for row in report.table("heads"))
    looks = {row["stack"]: [row[name] for name in LOOKED_AT] for row in report.table("heads")}
    assert looks["encoder"] == [None] * 5, "its queries are not the tokens that are predicted"
    assert looks["cross"][3] == report.context_tokens[looks["cross"][2]]
    with pytest.raises(attncli.UserError, match="heads: must name a stack"):
        attncli.run("ablate", model=tmp_path, sentence="the cat sat", heads="1:2")


@pytest.mark.parametrize("name", GEMMAS)
def test_heads_are_removed_from_layers_that_share_keys_and_values(name: str, tmp_path: Path) -> None:
    """Blocks whose keys and values later blocks share all run again."""
    sentence = "the cat walks on the street because it was tired"
    report = attncli.run("ablate", model=save_gemma(tmp_path, name), sentence=sentence)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids = torch.tensor(AutoTokenizer.from_pretrained(tmp_path)(sentence)["input_ids"])
    before = loss(model, ids)
    assert report.numbers("baseline")["loss"] == pytest.approx(before, abs=1e-5)
    found = effects(report, "loss")
    assert len(found) == 16
    for (layer, head), effect in found.items():
        columns = model.model.layers[layer].self_attn.o_proj.weight.data
        dim = columns.shape[1] // 4
        kept = columns.clone()
        columns[:, head * dim : (head + 1) * dim] = 0
        assert effect == pytest.approx(loss(model, ids) - before, abs=1e-5)
        columns.copy_(kept)
    for settings in ({"method": "sink"}, {"approximate": True}):
        more = attncli.run("ablate", model=tmp_path, sentence=sentence, heads="3:1", **settings)
        assert more.table("heads")


@pytest.mark.parametrize("settings", [{}, {"approximate": True}], ids=str)
def test_models_that_compute_attention_themselves_are_refused(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(attncli.UserError, match="computes its attention itself"):
        attncli.run("ablate", model=save_writer(tmp_path, "BLOOM"), sentence="the cat sat", **settings)


def test_the_start_token_may_only_be_in_the_generation_config(tmp_path: Path) -> None:
    """transformers saves T5 like this. The loss is that of its labels except the last, which is not read."""
    folder = save_writer(tmp_path, "T5")
    assert "decoder_start_token_id" not in json.loads((folder / "config.json").read_text())
    report = attncli.run("ablate", model=folder, sentence="the cat sat", heads="cross:1:2")
    model = T5ForConditionalGeneration.from_pretrained(folder)
    model.config.decoder_start_token_id = 0
    ids = AutoTokenizer.from_pretrained(folder)("the cat sat", return_tensors="pt")["input_ids"]
    labels = ids.clone()
    labels[0, -1] = -100
    with torch.no_grad():
        expected = model(input_ids=ids, labels=labels).loss
    assert report.numbers("baseline")["loss"] == pytest.approx(float(expected), abs=1e-5)
    survey = attncli.run("heads", model=folder, sentence="the cat sat")
    assert {row["stack"] for row in survey.table("heads")} == {"encoder", "decoder", "cross"}


@pytest.mark.parametrize("flags", [["--approximate"], ["--top", "1"]], ids=" ".join)
def test_the_summary_counts_the_named_heads(attn: Attn, flags: list[str]) -> None:
    shown = attn(["ablate", "--sentence", "abcabc", "--heads", "0:0,1:1", "--jointly", *flags]).out
    assert "without 2 heads at once: loss " in shown


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--heads", "0:7"], "--heads: must be from 0:0 to 1:3 in tiny-induction (got 0:7)"),
        (["--jointly"], "--jointly: needs two or more --heads"),
        (["--sentence", "abc", "--against", "a"], "--against: needs --answer"),
        (["--approximate", "--method", "mean"], "--approximate: needs --method zero"),
        (["--sort", "output_change"], "--sort: must be one of loss, kl for tiny-induction"),
        (["--sort", "probability"], "--sort: probability needs --answer"),
    ],
)
def test_errors_are_one_line(attn: Attn, flags: list[str], line: str) -> None:
    ended = attn(["ablate", *flags])
    assert ended.code == 2 and ended.out == "" and line in ended.err


def test_induction_needs_the_previous_token_head(attn: Attn) -> None:
    """Induction heads find nothing if no head has looked at the previous token."""
    found = {}
    for name, flags in {"with": [], "without": ["--ablate", "0:1"]}.items():
        report = json.loads(attn(["heads", *flags, "--format", "json"]).out)
        found[name] = {(row["layer"], row["head"]): row["induction"] for row in report["statistics"]["heads"]}
        assert ("ablate" in report["spec"]) == (name == "without")
    assert min(found["with"][1, head] for head in range(4)) > 0.9
    assert max(found["without"][1, head] for head in range(4)) < 0.2
    assert attn(["diff", "heads", "--set", "ablate=0:1"]).out.startswith(
        "diff\nFrom A to B: ablate none -> 0:1."
    )


def test_weights_of_a_layer_change_without_a_lower_head(attn: Attn, model: PreTrainedModel) -> None:
    command = ["self", "--model", SHIPPED, "--sentence", "abcabc", "--head", "1:2"]
    report = json.loads(attn([*command, "--ablate", "0:1", "--format", "json"]).out)
    eager = AutoModelForCausalLM.from_pretrained(SHIPPED, attn_implementation="eager").eval()
    with without(eager, 0, 1), torch.no_grad():
        expected = eager(text_ids("abcabc").unsqueeze(0), output_attentions=True).attentions[1][0, 2]
    torch.testing.assert_close(
        torch.tensor(report["tensors"]["weights"]["values"]), expected, atol=1e-6, rtol=0
    )
    ended = attn([*command, "--ablate", "2:0"])
    assert "--ablate: must not be above the layer shown, 1 (got 2:0)" in ended.err


@pytest.mark.parametrize("settings", [{}, {"approximate": True}, {"method": "mean", "heads": "0:1"}], ids=str)
def test_a_loaded_model_is_left_unchanged(settings: dict[str, Any]) -> None:
    """The model is in half precision and in training mode, and has a prediction head."""
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.bfloat16)
    model.train()
    before = [dict(vars(module)) for module in model.modules()], model.config.to_dict()
    report = attncli.run("ablate", model=model, tokenizer=AutoTokenizer.from_pretrained(SHIPPED), **settings)
    assert report.numbers("baseline")["loss"] < 0.1
    after = [dict(vars(module)) for module in model.modules()], model.config.to_dict()
    assert [list(one) for one in after[0]] == [list(one) for one in before[0]]
    assert model.training and after[1] == before[1]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
