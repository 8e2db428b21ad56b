"""Layers that mix tokens without a softmax are always listed, whatever the architecture."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

import attncli
from attncli.errors import UserError
from attncli.models.architectures import MIXERS, layers_without_softmax, mixer_name, unshown_layers
from attncli.models.layers import CapturedLayer, Numbering, handing_over
from attncli.models.stored import blocks_of
from tests.conftest import some_seldom
from tests.running import run
from tools.architecture_sweep.folders import head_class, save_model, text_of, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

HYBRIDS = (
    *("bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "glm5_next_text", "granitemoehybrid"),
    *("inkling_text", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "lfm3", "mamba", "mamba2", "minimax"),
    *("nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp_text"),
    *("recurrent_gemma", "zamba", "zamba2"),
)
WITHOUT = ("llama", "qwen2", "gpt_oss", "mixtral", "zaya", "deepseek_v3")
NOT_RUN_HERE = {"convbert", "inkling2", "lfm3_vl", "qwen3_5", "qwen3_5_moe", "glm5_next", "qwen4_exp"}
"""Eager attention (half of its heads are convolutions); refused; the same layers with a part for pictures."""
MOVED, NUM_TOKENS = 5, 13


def moved_input(_block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """The inputs of a block, with different numbers at one token."""

    def moved(states: Tensor) -> Tensor:
        states = states.clone()
        states[:, MOVED] += torch.linspace(-1, 1, states.shape[-1])
        return states

    if inputs and isinstance(inputs[0], Tensor):
        return (moved(inputs[0]), *inputs[1:]), named
    return inputs, {**named, "hidden_states": moved(named["hidden_states"])}


def output_of(model: PreTrainedModel, block: nn.Module, change: Callable[..., Any] | None = None) -> Tensor:
    """The output of a block if all captured attention returns zeros."""
    outputs: list[Tensor] = []

    def zeros(layer: CapturedLayer) -> Tensor:
        return torch.zeros(*layer.attention.shape[:3], layer.attention.value.shape[-1])  # type: ignore[union-attr]

    def keep(_block: nn.Module, _inputs: Any, output: Any) -> None:
        outputs.append(output[0] if isinstance(output, tuple | list) else output)

    hooks = [block.register_forward_hook(keep)]
    if change is not None:
        hooks.append(block.register_forward_pre_hook(change, with_kwargs=True))
    with handing_over(model, zeros, Numbering(has_two_stacks=False, num_tokens=None)):
        model(input_ids=torch.arange(10, 10 + NUM_TOKENS).unsqueeze(0))
    for hook in hooks:
        hook.remove()
    return outputs[0]


def mixing_layers(model: PreTrainedModel) -> set[int]:
    """The blocks in which a change to one token affects others, although attention returns zeros."""
    mixing = set()
    model.config.use_cache = False
    (blocks,) = [stack for stack in blocks_of(model, in_memory=True) if len(stack) == layers_of(model)]
    for number, block in enumerate(blocks):
        change = (output_of(model, block) - output_of(model, block, moved_input)).abs().amax(dim=-1)
        change = change.reshape(NUM_TOKENS, -1).amax(dim=-1) / change.max()
        neighbours = [token for token in (MOVED + 1, MOVED + 2) if change[token] > 1e-4]
        if neighbours:
            mixing.add(number)
    return mixing


def layers_of(model: PreTrainedModel) -> int:
    count: int = model.config.get_text_config().num_hidden_layers
    return count


@torch.no_grad()
@pytest.mark.parametrize("name", some_seldom([*HYBRIDS, *WITHOUT], HYBRIDS[1::2]))
def test_layers_that_mix_tokens_without_attention_are_named(name: str) -> None:
    """The oracle: attention returns zeros, and one token is changed before each block."""
    model = tiny_model(name)
    named, idle = layers_without_softmax(model)
    layers = {layer for of_mixer in named.values() for layer in of_mixer}
    assert layers == mixing_layers(model)
    assert bool(layers) == (name in HYBRIDS) == bool(unshown_layers(model))
    assert not layers & {*idle}


def test_every_architecture_with_such_layers_is_tested() -> None:
    """From the classes in transformers' source: a new one needs a line here."""
    folder = Path(transformers.__file__).parent / "models"
    mixing = {
        path.parent.name
        for path in folder.glob("*/modeling_*.py")
        if any(map(mixer_name, re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)))
    }
    assert mixing - NOT_RUN_HERE == {name.removesuffix("_text") for name in HYBRIDS} - NOT_RUN_HERE
    assert len(MIXERS) == len({mixer for mixer in MIXERS.values()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hybrid") / "model"
    save_model("qwen3_next", path, head_class("qwen3_next"))
    return path


LINE = "Without a softmax and therefore not shown: gated delta net in layers 0, 2."


@pytest.mark.parametrize("experiment", ["self", "multihead", "cache"])
def test_every_command_begins_with_the_missing_layers(folder: Path, experiment: str) -> None:
    report = run(experiment, model=str(folder), sentence=text_of(29))
    assert report.missing == report.sentences[0] == LINE
    assert report.sentences.count(LINE) == 1 and report.to_data()["missing"] == LINE


def test_surveys_and_the_library_name_the_missing_layers(folder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text(f"{text_of(19)}\n{text_of(23)}\n")
    assert run("heads", model=str(folder), texts=str(texts), skip_sink=1).missing == LINE
    assert attncli.survey(str(folder), text_of(19), skip_sink=1).notes[0] == LINE


def test_a_model_with_only_attention_has_no_missing_layers(tmp_path: Path) -> None:
    save_model("qwen2", tmp_path)
    report = run("heads", model=str(tmp_path), sentence=text_of(19))
    assert report.missing == "" and "missing" not in report.to_data()


@pytest.mark.parametrize(("experiment", "asked"), [("multihead", {"layer": "0"}), ("self", {"head": "2:1"})])
def test_a_layer_without_a_softmax_is_refused_by_its_mechanism(
    folder: Path, experiment: str, asked: dict[str, str]
) -> None:
    with pytest.raises(UserError, match=r"layer [02] \(gated delta net\) has no softmax"):
        run(experiment, model=str(folder), sentence=text_of(11), **asked)
    with pytest.raises(UserError, match=r"must be (one of 1, 3|from 1:0 to 3:3)"):
        run(
            experiment,
            model=str(folder),
            sentence=text_of(11),
            **dict.fromkeys(asked, "9" if "layer" in asked else "9:1"),
        )
