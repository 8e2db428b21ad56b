"""Removing a head equals zero columns of W_O, in every architecture whose attention attn computes."""

from typing import Any

import pytest
import tokenizers
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D

from attncli.core.layer import AttentionLayer
from attncli.errors import UserError
from attncli.models.architectures import output_projection
from attncli.models.layers import CapturedLayer
from attncli.models.predicted import Predicted
from attncli.models.pretrained import ModelText, Pretrained
from attncli.models.removal import HeadPlace, Removal, mean_outputs
from attncli.models.removal_runs import RemovalRuns
from tools.tiny_architectures import ARCHITECTURES, GROUPED, USUAL, Architecture, random_inputs

ALBERT = Architecture("AlbertModel", {**USUAL, "embedding_size": 16})
MORE = {
    "BitNet": Architecture("BitNetModel", {**GROUPED, "eos_token_id": 2}),
    "Qwen3-Next": Architecture(
        "Qwen3NextModel",
        {
            **GROUPED,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "experts_implementation": "eager",
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
}
"""A norm (which rounds to float32), and a gate, between the heads and W_O."""
EAGER = ("BLOOM", "DeBERTa-v2", "BigBird")
"""They compute their attention themselves; and of these there is nothing to read, or no attention."""
NO_TEXT = ("ViT", "Mamba")
COMPUTED_HERE = [name for name in ARCHITECTURES if name not in (*EAGER, *NO_TEXT)]
NUM_TOKENS = 11


def pretrained_of(model: PreTrainedModel) -> Pretrained:
    return Pretrained(
        "tiny",
        model,
        PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel())),
    )


def reading_of(inputs: dict[str, Tensor]) -> Predicted:
    def text(ids: Tensor) -> ModelText:
        return ModelText(tuple(map(str, ids[0].tolist())), ids[0])

    if "decoder_input_ids" in inputs:
        return Predicted(text(inputs["decoder_input_ids"]), text(inputs["input_ids"]))
    return Predicted(text(inputs["input_ids"]))


def text_run(model: PreTrainedModel, inputs: dict[str, Tensor]) -> tuple[RemovalRuns, list[CapturedLayer]]:
    """A run in float64, to rule out rounding, and the layers in the order of their calls."""
    layers: list[CapturedLayer] = []
    run = RemovalRuns(pretrained_of(model.double()), reading_of(inputs), layers.append)
    return run, layers


def weights_of_head(model: PreTrainedModel, layer: CapturedLayer, head: int) -> Tensor:
    """The columns of W_O that belong to a head, as part of the model's parameter."""
    assert isinstance(layer.attention, AttentionLayer)
    value_dim = layer.attention.value.shape[-1]
    projection = output_projection(model, layer.module, layer.attention.num_heads * value_dim)
    assert projection is not None and isinstance(projection.weight, Tensor)
    matrix = projection.weight.mT if isinstance(projection, Conv1D) else projection.weight
    return matrix[:, head * value_dim : (head + 1) * value_dim]


def places(layers: list[CapturedLayer]) -> list[HeadPlace]:
    return [
        HeadPlace(call, head) for call, layer in enumerate(layers) for head in range(layer.attention.shape[1])
    ]


@pytest.mark.parametrize("name", [*COMPUTED_HERE, *MORE])
@torch.no_grad()
def test_removing_a_head_equals_zero_columns_of_w_o(name: str) -> None:
    """Against transformers' own run; every third head, with the heads of a block in one batch."""
    model = (ARCHITECTURES | MORE)[name].build()
    inputs = random_inputs(model, NUM_TOKENS)
    run, layers = text_run(model, inputs)
    blocks = [run.block_of(call) for call in range(len(layers))]
    assert blocks == sorted(blocks) and blocks[-1] > 0, "each run begins at the block of its heads"
    chosen = places(layers)[::3]
    for block in sorted({run.block_of(place.call) for place in chosen}):
        together = [place for place in chosen if run.block_of(place.call) == block]
        outputs = run.without([[place] for place in together], Removal("zero"))
        model.set_attn_implementation("eager")
        for place, output in zip(together, outputs, strict=True):
            columns = weights_of_head(model, layers[place.call], place.head)
            kept = columns.clone()
            columns.zero_()
            expected = model(**inputs)[0][0]
            columns.copy_(kept)
            assert not torch.allclose(expected, run.output, atol=1e-6), "it does something"
            torch.testing.assert_close(output, expected, atol=1e-5 if name in MORE else 1e-6, rtol=0)


@torch.no_grad()
def test_heads_of_layers_that_share_a_module_are_removed_separately() -> None:
    """ALBERT: zero columns would affect all layers, so that heads are zeroed at the input of W_O."""
    model = ALBERT.build()
    inputs = random_inputs(model, NUM_TOKENS)
    run, layers = text_run(model, inputs)
    assert [run.block_of(call) for call in range(len(layers))] == [0, 1]
    outputs = run.without([[HeadPlace(1, head)] for head in range(4)], Removal("zero"))
    (projection,) = [part for name, part in model.named_modules() if name.endswith("attention.dense")]
    model.set_attn_implementation("eager")
    for head, output in enumerate(outputs):
        calls = iter(range(9))

        def without(module: Any, read: tuple[Tensor], head: int = head, calls: Any = calls) -> tuple[Tensor]:
            heads = read[0].unflatten(-1, (4, -1)).clone()
            heads[..., head, :] *= next(calls) != 1
            return (heads.flatten(-2),)

        hook = projection.register_forward_pre_hook(without)
        torch.testing.assert_close(output, model(**inputs)[0][0], atol=1e-6, rtol=0)
        hook.remove()


@pytest.mark.parametrize("name", ["Llama", "BERT", "T5"])
@torch.no_grad()
def test_runs_are_whole_if_blocks_cannot_be_skipped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ARCHITECTURES[name].build()
    inputs = random_inputs(model, NUM_TOKENS)
    run, layers = text_run(model, inputs)
    removed = [
        [place] for place in places(layers) if run.block_of(place.call) == run.block_of(len(layers) - 1)
    ]
    expected = run.without(removed, Removal("zero"))
    monkeypatch.setattr(RemovalRuns, "_begins_well", lambda self: False)
    whole, _ = text_run(model, inputs)
    assert whole.block_of(len(layers) - 1) == 0
    torch.testing.assert_close(whole.without(removed, Removal("zero")), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", EAGER)
@torch.no_grad()
def test_a_model_that_computes_its_attention_itself_is_refused(name: str) -> None:
    model = ARCHITECTURES[name].build()
    with pytest.raises(UserError, match="attn sees only the weights"):
        text_run(model, random_inputs(model, NUM_TOKENS))


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "BERT"])
@torch.no_grad()
def test_a_head_is_replaced_by_its_mean_or_the_first_value(name: str) -> None:
    """Against a naive loop over the inputs of W_O for two texts, and the value of the first token."""
    model = ARCHITECTURES[name].build()
    texts = [random_inputs(model, count) for count in (NUM_TOKENS, 7)]
    run, layers = text_run(model, texts[0])
    means = mean_outputs(model, texts)
    layer = layers[1]
    assert isinstance(layer.attention, AttentionLayer)
    num_heads, value_dim = layer.attention.num_heads, layer.attention.value.shape[-1]
    projection = output_projection(model, layer.module, num_heads * value_dim)
    assert projection is not None
    model.set_attn_implementation("eager")
    read: list[Tensor] = []
    hook = projection.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
    for inputs in texts:
        model(**inputs)
    hook.remove()
    tokens = [
        token.view(num_heads, value_dim) for each in read for token in each.reshape(-1, num_heads * value_dim)
    ]
    _, values = layer.attention.expanded()
    for head in range(num_heads):
        mean = sum(token[head] for token in tokens) / len(tokens)
        for method, stand_in in (("mean", mean), ("sink", values[0, head, 0])):

            def instead(module: Any, read: tuple[Tensor], head: int = head, stand_in: Any = stand_in) -> Any:
                heads = read[0].unflatten(-1, (num_heads, value_dim)).clone()
                heads[..., head, :] = stand_in
                return (heads.flatten(-2),)

            hook = projection.register_forward_pre_hook(instead)
            expected = model(**texts[0])[0][0]
            hook.remove()
            removal = Removal(method, means)  # type: ignore[arg-type]
            (output,) = run.without([[HeadPlace(1, head)]], removal)
            model.set_attn_implementation("eager")
            torch.testing.assert_close(output, expected, atol=1e-6, rtol=0)


@torch.no_grad()
def test_a_gate_applies_to_the_mean_that_replaces_a_head() -> None:
    """Qwen3-Next: W_O reads the heads times a gate, which is half of the query projection."""
    model = MORE["Qwen3-Next"].build()
    inputs = random_inputs(model, NUM_TOKENS)
    run, layers = text_run(model, inputs)
    ((call, layer),) = enumerate(layers)
    num_heads, value_dim = layer.attention.shape[1], 8
    attention = model.get_submodule(layer.module)
    model.set_attn_implementation("eager")
    gates: list[Tensor] = []
    read: list[Tensor] = []

    def keep_gate(_module: Any, _inputs: Any, output: Tensor) -> None:
        gates.append(output.unflatten(-1, (num_heads, 2, value_dim))[..., 1, :].sigmoid())

    hooks = (
        attention.q_proj.register_forward_hook(keep_gate),
        attention.o_proj.register_forward_pre_hook(
            lambda _module, inputs: read.append(inputs[0].unflatten(-1, (num_heads, value_dim)))
        ),
    )
    model(**inputs)
    for hook in hooks:
        hook.remove()
    means = (read[0] / gates[0]).mean(dim=(0, 1))
    for head in range(num_heads):
        changed = read[0].clone()
        changed[..., head, :] = means[head] * gates[0][..., head, :]
        hook = attention.o_proj.register_forward_pre_hook(
            lambda _module, _inputs, changed=changed: (changed.flatten(-2),)
        )
        expected = model(**inputs)[0][0]
        hook.remove()
        (output,) = run.without([[HeadPlace(call, head)]], Removal("mean", mean_outputs(model, [inputs])))
        model.set_attn_implementation("eager")
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
