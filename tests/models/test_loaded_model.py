"""A loaded model runs on its device, in its dtype, and is left unchanged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import attncli
from attncli.errors import UserError
from attncli.settings.heads import HeadsSpec
from tests.conftest import in_turn
from tests.model_folders import save_writer

SHIPPED = str(HeadsSpec.default_model)
TEXT = "the cat sat because it was tired"


def state(model: PreTrainedModel) -> list[Any]:
    """Everything about a model that a run might change."""
    return [
        [(name, module.training, dict(module._forward_hooks)) for name, module in model.named_modules()],
        [(name, dict(module._forward_pre_hooks)) for name, module in model.named_modules()],
        [(name, id(part), part.requires_grad, part.dtype) for name, part in model.named_parameters()],
        [(name, id(part)) for name, part in model.named_buffers()],
        model.config.to_dict(),
        model.config._attn_implementation,
        model.config.use_cache,
    ]


@pytest.mark.parametrize(
    ("settings", "implementation"),
    in_turn([{}, {"weighted": True}, {"sentence": "w" * 2000}], ["eager", "sdpa"]),
)
def test_a_model_is_left_unchanged(settings: dict[str, Any], implementation: str) -> None:
    model = AutoModel.from_pretrained(SHIPPED, attn_implementation=implementation)
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    model.train()
    list(model.modules())[-1].eval()
    calls: list[object] = []
    model.register_forward_hook(lambda *call: calls.append(call))
    before = state(model)
    try:
        attncli.run("heads", model=model, tokenizer=tokenizer, **{"sentence": TEXT} | settings)
        assert calls
    except attncli.UserError as error:
        assert "must be at most" in str(error)
    assert state(model) == before


def test_tensors_kept_by_a_hook_can_be_used_in_training() -> None:
    """Such as a probe of activations, which would not work in inference mode."""
    model = AutoModel.from_pretrained(SHIPPED)
    kept: list[torch.Tensor] = []
    model.register_forward_hook(lambda module, inputs, output: kept.append(output[0]))
    attncli.heads(model, TEXT, tokenizer=AutoTokenizer.from_pretrained(SHIPPED))
    probe = torch.nn.Linear(kept[-1].shape[-1], 1)
    probe(kept[-1]).sum().backward()
    assert probe.weight.grad is not None


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 2e-2), (torch.bfloat16, 1e-1), (torch.float64, 1e-5)], ids=str
)
def test_a_model_keeps_its_dtype(dtype: torch.dtype, tolerance: float) -> None:
    """Row statistics against those of the same model in float32."""
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    model = AutoModel.from_pretrained(SHIPPED, dtype=dtype)
    seen: set[torch.dtype] = set()
    model.register_forward_hook(lambda module, inputs, output: seen.add(output[0].dtype))
    settings: dict[str, Any] = {"sentence": TEXT, "layer": 1, "head": 2, "explain": True}
    found = attncli.run("self", model=model, tokenizer=tokenizer, **settings)
    expected = attncli.run("self", model=SHIPPED, **settings)
    assert model.dtype == dtype and not any("as dense matrices" in note for note in found.notes)
    weights = torch.tensor(found.tensors["weights"].values, dtype=torch.float64)
    assert (weights.sum(dim=-1) - 1).abs().max() < 1e-5  # at least float32, however the model rounds
    torch.testing.assert_close(
        weights, torch.tensor(expected.tensors["weights"].values).double(), atol=tolerance, rtol=0
    )
    attncli.run("heads", model=model, tokenizer=tokenizer, sentence=TEXT, weighted=True)
    attncli.run("multihead", model=model, tokenizer=tokenizer, sentence=TEXT).to_html()
    assert seen <= {dtype}


def broken(model: PreTrainedModel, how: str) -> str:
    """Break a model, and return the text that an error must contain."""
    layer = model.model.layers[-1]
    if how == "a module that raises":
        layer.mlp.register_forward_hook(lambda *_: (_ for _ in ()).throw(ValueError("out of tape")))
        return "ValueError: out of tape"
    projection = {"NaN in the output": "o_proj", "NaN in a query": "q_proj", "infinite values": "v_proj"}[how]
    with torch.no_grad():
        number = float("inf" if how == "infinite values" else "nan")
        getattr(layer.self_attn, projection).weight[0, 0] = number
    return f"layers.1.self_attn.({projection}|o_proj) returns NaN"


@pytest.mark.parametrize(
    "how", ["a module that raises", "NaN in the output", "NaN in a query", "infinite values"]
)
def test_a_failing_model_is_reported_with_its_own_error(how: str, tmp_path: Path) -> None:
    """A failing model is not reported as computing its attention itself."""
    folder = save_writer(tmp_path, "Llama")
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected = broken(model, how)
    pretrained = attncli.open_model(model, AutoTokenizer.from_pretrained(folder))
    for ask in (attncli.next_tokens, attncli.why, attncli.ablate, attncli.cache):
        with pytest.raises(UserError, match=expected):
            ask(pretrained, "the cat sat on the street")


def test_nan_after_the_last_weights_leaves_the_heads_readable(
    tmp_path: Path,
) -> None:
    """NaN is reported as such, not as an unsupported architecture."""
    folder = save_writer(tmp_path, "Llama")
    tokenizer, text = AutoTokenizer.from_pretrained(folder), "the cat sat on the street"
    sound, model = (AutoModelForCausalLM.from_pretrained(folder) for _ in range(2))
    broken(model, "NaN in the output")
    expected, found = (
        attncli.run("heads", model=each, tokenizer=tokenizer, sentence=text) for each in (sound, model)
    )
    (note,) = set(found.notes) - set(expected.notes)
    assert note.startswith("Weights come from the model's eager attention, as dense matrices: ")
    for row, of_sound in zip(found.table("heads"), expected.table("heads"), strict=True):
        numbers = {
            name: cell for name, cell in row.items() if isinstance(cell, float) and name != "max_score"
        }
        assert numbers == pytest.approx({name: of_sound[name] for name in numbers}, abs=1e-5) and numbers
        assert row["pattern"] == of_sound["pattern"]


def test_attributes_may_contain_themselves(tmp_path: Path) -> None:
    folder = save_writer(tmp_path, "Llama")
    model = AutoModelForCausalLM.from_pretrained(folder)
    pretrained = attncli.open_model(model, AutoTokenizer.from_pretrained(folder))
    expected = attncli.next_tokens(pretrained, "the cat sat")
    model.itself, model.model.both = {}, []
    model.itself["itself"] = model.itself
    model.model.both += [model.itself, model.model.both]
    model.deep = []
    for _ in range(3000):
        model.deep = [model.deep]
    assert str(attncli.next_tokens(pretrained, "the cat sat")) == str(expected)
