"""`attn why`: against direct logit attribution by its published formula, on transformers' own runs.

Elhage et al. 2021, A mathematical framework for transformer circuits; TransformerLens' `stack_head_results`,
`apply_ln_to_stack` with a cached scale, times a column of W_U, is the same sum.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

import attncli
from attncli.models.folder import SHIPPED_MODEL
from attncli.records.report import Report
from attncli.settings.heads import HeadsSpec
from tests.conftest import Attn
from tests.model_folders import save_model, save_tokenizer
from tools.tiny_architectures import GROUPED, HIDDEN, USUAL, VOCABULARY

SHIPPED = str(HeadsSpec.default_model)
SENTENCE = "the cat walks on the street because it was tired"
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY}
OPT = {**HIDDEN, "ffn_dim": 40, "word_embed_proj_dim": 32}
NEOX = {**USUAL, "use_parallel_residual": True}
PRE_NORM = {
    "GPT2LMHeadModel": GPT2,
    "LlamaForCausalLM": {**GROUPED, "tie_word_embeddings": True},
    "Qwen3ForCausalLM": GROUPED,
    "Phi3ForCausalLM": {**USUAL, "num_key_value_heads": 2, "pad_token_id": 0},
    "GPTNeoXForCausalLM": NEOX,
    "OPTForCausalLM": OPT,
    "PhiForCausalLM": {**USUAL, "pad_token_id": 0},
    "OlmoForCausalLM": GROUPED,
}
FULL, SLIDING = "full_attention", "sliding_attention"
GRANITE = {**GROUPED, "residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 4.0}
WITH_FACTORS: dict[str, tuple[dict[str, Any], float]] = {
    "CohereForCausalLM": ({**GROUPED, "logit_scale": 0.5, "use_qk_norm": True}, 0.5),
    "GraniteForCausalLM": (GRANITE, 0.5 / 4),
    "GraniteSWAForCausalLM": ({**GRANITE, "layer_types": [FULL, SLIDING], "sliding_window": 5}, 0.5 / 4),
}
"""Of each what a head's output is multiplied by until it is in a logit, beside the norm."""
MIMO: dict[str, Any] = {
    **GROUPED,
    "v_head_dim": 6,
    "sliding_window": 5,
    "num_hidden_layers": 3,
    "mlp_layer_types": ["dense"] * 3,
}
NO_SUM = {
    "OPTForCausalLM": (
        {**OPT, "do_layer_norm_before": False},
        "is not its input plus the outputs of its heads and its MLP",
    ),
    "Gemma2ForCausalLM": ({**GROUPED, "query_pre_attn_scalar": 4}, "is not its input plus"),
    "NanoChatForCausalLM": (GROUPED, "are changed after W_U by more than a factor"),
}


def save(folder: Path, name: str, settings: dict[str, Any]) -> PreTrainedModel:
    """Save a model with random norms and biases."""
    kind = getattr(transformers, name)
    torch.manual_seed(1)
    model: PreTrainedModel = kind(kind.config_class(**settings)).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter) * 0.3)
        else:
            parameter.mul_(5)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def by_formula(model: Any, ids: Tensor, token: int, against: int) -> tuple[Tensor, float]:
    """Return the contribution of each head (layer, head) and the logit difference, from a run with hooks."""
    is_gpt2 = hasattr(model, "transformer")
    blocks = model.transformer.h if is_gpt2 else model.model.layers
    norm = model.transformer.ln_f if is_gpt2 else model.model.norm
    read: dict[Any, Tensor] = {}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        read[module] = inputs[0][0, -1].double()

    of_block = [block.attn.c_proj if is_gpt2 else block.self_attn.o_proj for block in blocks]
    for module in (*of_block, norm):
        module.register_forward_pre_hook(keep)
    logits = model(ids.unsqueeze(0)).logits[0, -1].double()
    stream, gain = read[norm], norm.weight.double()
    column = model.lm_head.weight[token].double() - model.lm_head.weight[against].double()
    found = []
    for module in of_block:
        matrix = (module.weight if is_gpt2 else module.weight.mT).double()  # (heads x value_dim, embed)
        heads = read[module].view(4, -1)
        results = torch.einsum("hv,hve->he", heads, matrix.view(4, heads.shape[-1], -1))
        if is_gpt2 or "Cohere" in type(model).__name__:
            centered = results - results.mean(dim=-1, keepdim=True)
            size = (stream.var(unbiased=False) + (norm.eps if is_gpt2 else norm.variance_epsilon)).sqrt()
        else:
            centered, size = results, (stream.square().mean() + norm.variance_epsilon).sqrt()
        found.append(centered / size * gain @ column)
    return torch.stack(found), float(logits[token] - logits[against])


def contributions(report: Report) -> Tensor:
    return torch.from_numpy(report.tensors["contribution"].values)


def check_formula(
    folder: Path, name: str, settings: dict[str, Any], factor: float = 1
) -> tuple[Any, Tensor, Report]:
    """Compare the heads, the parts and the tokens of the largest head with the formula."""
    model = save(folder, name, settings)
    report = attncli.run("why", model=folder, sentence=SENTENCE, answer="cat", against="street")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor(tokenizer(SENTENCE)["input_ids"])
    expected, difference = by_formula(model, ids, *tokenizer.convert_tokens_to_ids(["cat", "street"]))
    torch.testing.assert_close(contributions(report), expected * factor, atol=1e-4, rtol=1e-4)
    parts = report.numbers("parts")
    assert (parts["logit"], parts["sum"]) == pytest.approx((difference, difference), abs=1e-4)
    keys = report.tensors_of("keys")["contribution"].values
    assert keys.sum() == pytest.approx(report.table("heads")[0]["contribution"], abs=1e-4)
    return model, ids, report


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_contributions_match_the_formula(name: str, tmp_path: Path) -> None:
    model, ids, report = check_formula(tmp_path, name, PRE_NORM[name])
    model.set_attn_implementation("eager")
    for row in report.table("heads"):
        of_last = model(ids.unsqueeze(0), output_attentions=True).attentions[row["layer"]][0, row["head"], -1]
        assert row["query"] == len(ids) - 1 and row["key_token"] == report.tokens[row["key"]]
        assert row["key_weight"] == pytest.approx(float(of_last.max()), abs=1e-5)
        assert of_last[row["key"]] == pytest.approx(float(of_last.max()), abs=1e-5)


@pytest.mark.parametrize("name", WITH_FACTORS)
def test_contributions_include_factors_of_the_stream_and_the_logits(name: str, tmp_path: Path) -> None:
    """Granite multiplies the outputs of heads and MLPs, and divides its logits, as Cohere does.

    Granite-SWA has a list of rotary embeddings outside its blocks.
    """
    settings, factor = WITH_FACTORS[name]
    check_formula(tmp_path, name, settings, factor)


@pytest.mark.parametrize("kinds", [[FULL, SLIDING, FULL], [SLIDING, FULL, SLIDING]])
def test_contributions_with_sinks_in_some_layers(kinds: list[str], tmp_path: Path) -> None:
    """The sliding layers of MiMo-V2-Flash have sinks, and are computed in other ways than the full layers."""
    check_formula(tmp_path, "MiMoV2FlashForCausalLM", {**MIMO, "layer_types": kinds})


@pytest.mark.parametrize("name", PRE_NORM)
def test_the_parts_sum_to_the_logit(name: str, tmp_path: Path) -> None:
    model = save(tmp_path, name, PRE_NORM[name])
    report = attncli.run("why", model=tmp_path, sentence=SENTENCE)
    parts = report.numbers("parts")
    ids = torch.tensor(AutoTokenizer.from_pretrained(tmp_path)(SENTENCE)["input_ids"])
    logit = float(model(ids.unsqueeze(0)).logits[0, -1].max())
    assert parts["logit"] == pytest.approx(logit, abs=1e-4)
    assert parts["sum"] == pytest.approx(logit, abs=1e-4)
    added = [parts[part] for part in ("embedding", "heads", "mlps", "biases")]
    assert sum(filter(None, added)) == pytest.approx(parts["sum"], abs=1e-9)
    assert float(contributions(report).sum()) == pytest.approx(parts["heads"], abs=1e-6)
    layers = report.table("layers")
    assert sum(row["mlp"] for row in layers) == pytest.approx(parts["mlps"], abs=1e-9)  # type: ignore[misc]
    keys = report.tensors_of("keys")
    layer, head = map(int, report.spec["head"].split(":"))
    assert keys["contribution"].values.sum() == pytest.approx(
        float(contributions(report)[layer, head]), abs=1e-4
    )
    assert keys["weight"].values.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", NO_SUM)
def test_a_residual_stream_that_is_not_a_sum_is_refused(attn: Attn, name: str, tmp_path: Path) -> None:
    settings, reason = NO_SUM[name]
    save(tmp_path, name, settings)
    ended = attn(["why", "--model", str(tmp_path), "--sentence", SENTENCE])
    assert ended.code == 2 and ended.out == "" and len(ended.err.splitlines()) == 1
    assert "are not a sum over its heads: " in ended.err and reason in ended.err
    assert ended.err.endswith(
        ": use a decoder such as GPT-2 or Llama, or attn ablate, which does not need this sum\n"
    )


@pytest.mark.parametrize("name", ["BERT", "T5"])
def test_encoders_are_refused(attn: Attn, name: str, tmp_path: Path) -> None:
    ended = attn(["why", "--model", str(save_model(tmp_path, name)), "--sentence", SENTENCE])
    assert ended.code == 2 and "it is not a decoder that predicts the next token" in ended.err


def test_half_precision_is_refused(attn: Attn) -> None:
    ended = attn(["why", "--dtype", "bfloat16"])
    assert ended.code == 2 and ended.out == ""
    line = "--dtype: must be float32, because rounded parts do not add up to the logit (got bfloat16)\n"
    assert ended.err == line


def test_induction_heads_write_the_token_after_the_first_copy() -> None:
    """The probe ends in the last token of r; the first time, the first token of r followed it."""
    report = attncli.run("why", seed=4)
    best = report.table("heads")[0]
    assert best["layer"] == 1 and best["pattern"] == "induction"
    moved = report.tensors_of("keys")["contribution"].values
    assert moved.argmax() == 25 and f"logit of {report.tokens[1]!r}" in report.how_to_read


PROMPTS = [
    {"id": "be", "text": "to be or not to b", "answer": "e", "against": "o"},
    {"id": "do", "text": "so do or not so d", "answer": "o", "against": "e"},
    {"id": "go", "text": "ho go and no ho g", "answer": "o", "against": "n"},
]


def test_several_texts_have_means_with_the_intervals_of_scipy(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    report = json.loads(attn(["why", "--texts", str(tmp_path / "prompts.jsonl"), "--format", "json"]).out)
    asked = [{key: prompt[key] for key in ("answer", "against")} for prompt in PROMPTS]
    alone = [
        attncli.why(SHIPPED, prompt["text"], **answers)
        for prompt, answers in zip(PROMPTS, asked, strict=True)
    ]
    statistics = report["statistics"]
    texts = {row["text"]: row["logit"] for row in statistics["texts"]}
    logits = {prompt["id"]: result.parts.logit for prompt, result in zip(PROMPTS, alone, strict=True)}
    assert texts == pytest.approx(logits)
    parts = statistics["parts"]
    assert (parts["above"], parts["above_low"]) == pytest.approx((1.0, 0.4385), abs=1e-4)
    expected = {
        "parts": (parts, "logit", [*logits.values()]),
        "mlp": (statistics["layers"][1], "mlp", [result.layers[1].mlp for result in alone]),
    }
    for row in statistics["heads"]:
        of_texts = [result.heads.grid("contribution")[row["layer"], row["head"]] for result in alone]
        expected[f"{row['layer']}:{row['head']}"] = (row, "contribution", of_texts)
    assert len(expected) == 10
    for row, name, numbers in expected.values():
        low, high = scipy.stats.t.interval(0.95, 2, np.mean(numbers), scipy.stats.sem(numbers))
        ends = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
        assert ends == pytest.approx([np.mean(numbers), low, high], abs=1e-9)
    assert "keys" not in statistics


def test_lines_with_and_without_answers_are_refused(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(PROMPTS[0]) + '\n{"text": "to be"}\n')
    for command in ("why", "ablate"):
        ended = attn([command, "--texts", str(path)])
        assert (ended.code, ended.err) == (
            2,
            "--texts: answer and against must be on every line or on none\n",
        )


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--head", "1:4"], "--head: must be from 0:0 to 1:3 in tiny-induction (got 1:4)"),
        (["--answer", "xyz"], "--answer: must be one token for tiny-induction"),
    ],
)
def test_errors_are_one_line(attn: Attn, flags: list[str], line: str) -> None:
    ended = attn(["why", *flags])
    assert ended.code == 2 and ended.out == "" and line in ended.err


SWAP = ("--method", "swap", "--answer", "c")


def test_an_excluded_setting_does_not_report_what_it_needs(attn: Attn) -> None:
    ended = attn(["why", "--to", "b", "--answer", "c"])
    assert ended.code == 2 and ended.err == "--to: cannot be combined with --answer\n"


@pytest.mark.parametrize(
    "command",
    [
        ["why", "a bc a bd a", "--head", "1:0", "--from", "b"],
        ["why", "a bc a bd a", "--head", "1:0", "--to", "b"],
        ["self", "a bc a bd a", "--model", SHIPPED_MODEL, "--explain", "--token", "b"],
        ["multihead", "a bc a bd a", "--model", SHIPPED_MODEL, "--explain", "--token", "b"],
        ["ablate", "a bc a bd a", *SWAP, "--other", "a cb a bd a", "--token", "b"],
    ],
)
def test_ambiguous_token_names_are_refused_before_weights_are_read(
    command: list[str], attn: Attn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("attncli.models.loading.load_pretrained", read)
    flag = command[-2]
    message = f"{flag}: must be one token: b is at 3, 8: use b#1 to b#2, or a position\n"
    assert attn(command) == (2, "", message)


def test_a_file_of_one_prompt_has_no_intervals(attn: Attn, tmp_path: Path) -> None:
    """The numbers are those of the text, without intervals and without a head split by tokens."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(PROMPTS[0]) + "\n")
    report = json.loads(attn(["why", "--texts", str(path), "--format", "json"]).out)
    alone = attncli.why(SHIPPED, "to be or not to b", answer="e", against="o")
    assert report["statistics"]["texts"] == [{"text": "be", "logit": pytest.approx(alone.parts.logit)}]
    assert "keys" not in report["statistics"] and "contribution_low" not in report["statistics"]["heads"][0]
    assert "head None" not in attn(["why", "--texts", str(path)]).out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            {"text": ["a b", "b a"], "names": ["x"]},
            "names: must contain one name per text, that is 2 names (got 1)",
        ),
        ({"text": "a b", "answer": True}, "answer: must be text or a token id (got True)"),
        (
            {"text": "a b", "answer": 64},
            "answer: must be a token id of tiny-induction, below 64 (got 64)",
        ),
    ],
)
def test_wrong_names_and_answers_are_one_line(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(attncli.UserError) as error:
        attncli.why(SHIPPED, **arguments)
    assert str(error.value) == line
