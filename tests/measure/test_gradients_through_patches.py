"""Gradients through changed heads equal those of the model's eager attention, changed the same way."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hvp
from torch.func import jvp
from transformers import PreTrainedModel

import attncli
from attncli.core import engines
from tools.tiny_architectures import ARCHITECTURES

IDS = torch.tensor([[5, 6, 7, 5, 8, 9, 6, 3, 7, 11, 2], [4, 8, 2, 6, 6, 9, 1, 3, 12, 5, 7]])
MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "query": lambda query: query * 0.7 + 0.1,
    "key": lambda key: key.flip(-1),
    "value": lambda value: value * 1.4,
    "pattern": lambda pattern: pattern.square(),
    "output": lambda output: 0.2 - output / 2,
}
PLACES = {
    "Llama": {"0:1": "layers.0.self_attn", "1:2": "layers.1.self_attn"},
    "Gemma 2": {"0:1": "layers.0.self_attn", "1:2": "layers.1.self_attn"},
    "GPT-OSS": {"0:1": "layers.0.self_attn", "1:2": "layers.1.self_attn"},
    "T5": {
        "encoder:0:1": "encoder.block.0.layer.0.SelfAttention",
        "decoder:1:2": "decoder.block.1.layer.0.SelfAttention",
        "cross:0:3": "decoder.block.0.layer.1.EncDecAttention",
    },
}
"""Heads of each architecture, with the modules that they are in."""


@contextmanager
def changed_eagerly(model: PreTrainedModel, heads: Mapping[str, str], part: str) -> Iterator[None]:
    """Inside the block, change transformers' eager attention in these heads of these modules."""
    model.set_attn_implementation("eager")
    code: Any = sys.modules[type(model).__module__]
    eager = code.eager_attention_forward
    number = {model.get_submodule(module): int(name.split(":")[-1]) for name, module in heads.items()}

    def changed(module: Any, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> Any:
        group = query.shape[1] // key.shape[1]
        tensors = {
            "query": query.clone(),
            "key": key.repeat_interleave(group, dim=1),
            "value": value.repeat_interleave(group, dim=1),
        }
        head = number.get(module)
        if head is not None and part in tensors:
            tensors[part][:, head] = MADE[part](tensors[part][:, head])
        module.num_key_value_groups = 1
        output, weights = eager(module, *tensors.values(), *others, **named)
        module.num_key_value_groups = group
        if head is None or part in tensors:
            return output, weights
        output = output.clone()
        if part == "pattern":
            output[:, :, head] = MADE[part](weights[:, head]) @ tensors["value"][:, head]
        else:
            output[:, :, head] = MADE[part](output[:, :, head])
        return output, weights

    code.eager_attention_forward = changed
    try:
        yield
    finally:
        code.eager_attention_forward = eager


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    """The output, and the gradients of its mean square by parameter."""
    inputs = {"input_ids": IDS} | ({"decoder_input_ids": IDS[:, :7]} if "T5" in type(model).__name__ else {})
    model.zero_grad()
    output = model(**inputs)[0]
    output.square().mean().backward()
    return {"output": output.detach()} | {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def furthest(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """The largest difference of a tensor, relative to its largest number."""
    return max(
        float((some[name] - others[name]).abs().max() / others[name].abs().max().clamp(min=1e-12))
        for name in others
    )


@pytest.fixture(params=["weights", "fused"])
def computed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute unchanged layers with weights, or with fused attention, as layers with many scores are."""
    if request.param == "fused":
        monkeypatch.setattr(engines, "LEAST_FUSED", 0)


@pytest.mark.usefixtures("computed")
def test_gradients_are_the_same_if_layers_are_fused() -> None:
    model = ARCHITECTURES["Llama"].build().requires_grad_()
    heads = {"1:2": "layers.1.self_attn"}
    with attncli.patch(attncli.open_model(model), "1:2", lambda head: MADE["output"](head.output)):
        patched = gradients(model)
    with changed_eagerly(model, heads, "output"):
        expected = gradients(model)
    assert furthest(patched, expected) < 2e-5


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
def test_gradients_of_an_added_vector_equal_finite_differences() -> None:
    """First (backward and forward mode) and second derivatives, in float64."""
    model = ARCHITECTURES["GPT-2"].build().double()
    start, direction = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    added = start

    def given(vector: Tensor) -> Tensor:
        nonlocal added
        added = vector
        output: Tensor = model(IDS)[0].square().mean()
        return output

    with attncli.patch(attncli.open_model(model), "0:2", lambda head: head.value + added, part="value"):
        step = 1e-4
        low, middle, high = (given(start + by * direction).item() for by in (-step, 0.0, step))
        along = (high - low) / (2 * step)
        curved = (high - 2 * middle + low) / step**2
        vector = start.clone().requires_grad_()
        given(vector).backward()
        assert vector.grad is not None
        assert float(vector.grad @ direction) == pytest.approx(along, rel=1e-6)
        assert float(jvp(given, (start,), (direction,))[1]) == pytest.approx(along, rel=1e-6)
        assert float(direction @ hvp(given, start, direction)[1]) == pytest.approx(curved, rel=1e-3)


@pytest.mark.parametrize("name", PLACES)
def test_outputs_and_gradients_equal_eager_attention_with_the_same_change(name: str) -> None:
    """For every parameter: projections, norms, sinks, position biases, embeddings."""
    model = ARCHITECTURES[name].build().requires_grad_()
    opened, plain = attncli.open_model(model), gradients(model)
    for part, made in MADE.items():
        heads = PLACES[name]
        with attncli.patch(opened, [*heads], lambda head: made(getattr(head, part)), part=part):  # type: ignore[arg-type]  # noqa: B023
            patched = gradients(model)
        with changed_eagerly(model, heads, part):
            expected = gradients(model)
        assert furthest(patched, expected) < 2e-5, part
        assert furthest(plain, expected) > 1e-3, part
