"""A caller's model, changed in common ways, against its own eager attention."""

import warnings
from collections.abc import Callable
from functools import cache
from logging import WARNING
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as messages

import attncli
from tests.conftest import in_turn, some_seldom
from tests.model_folders import save_tokenizer
from tools.tiny_architectures import ARCHITECTURES, HIDDEN, VOCABULARY, Architecture

SENTENCE = "the cat sat because it was tired die katze sat on the street w21 w22 w23"
MODELS = {
    **{name: ARCHITECTURES[name] for name in ("Llama", "GPT-2", "BERT", "BLOOM", "Mistral", "Gemma 2")},
    "GPT-OSS": ARCHITECTURES["GPT-OSS"],
    "Falcon": Architecture("FalconModel", {**HIDDEN, "alibi": False}),
    "MPT": Architecture("MptModel", {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": VOCABULARY}),
    "GPT-J": Architecture(
        "GPTJModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "vocab_size": VOCABULARY}
    ),
}
ATTENTION = {
    "GPT-2": "h.{}.attn",
    "BERT": "encoder.layer.{}.attention",
    "BLOOM": "h.{}.self_attention",
    "Falcon": "h.{}.self_attention",
    "MPT": "blocks.{}.attn",
    "GPT-J": "h.{}.attn",
}
SCALES = {"BLOOM": "inv_norm_factor", "MPT": "softmax_scale", "GPT-J": "scale_attn", "BERT": "self.scaling"}
"""What a module multiplies or divides its scores by; `scaling` in all others."""


def attention_of(model: PreTrainedModel, name: str, layer: int) -> nn.Module:
    return model.get_submodule(ATTENTION.get(name, "layers.{}.self_attn").format(layer))


def switch_off(model: PreTrainedModel, name: str) -> None:
    """Let the first layer's attention return zeros."""

    def zero(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        return (torch.zeros_like(output[0]), *output[1:])

    attention_of(model, name, 0).register_forward_hook(zero)


def change_what_it_reads(model: PreTrainedModel, name: str) -> None:
    def turn(_module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        changed = tuple(each.roll(3, -1) if isinstance(each, Tensor) else each for each in inputs[:1])
        if "hidden_states" in named:
            named = named | {"hidden_states": named["hidden_states"].roll(3, -1)}
        return (*changed, *inputs[1:]), named

    attention_of(model, name, 1).register_forward_pre_hook(turn, with_kwargs=True)


def act_on_the_whole(model: PreTrainedModel, name: str) -> None:
    model.register_forward_pre_hook(
        lambda _module, inputs, named: (inputs, named | {"input_ids": named["input_ids"].flip(1)}),
        with_kwargs=True,
    )


def scale_scores(model: PreTrainedModel, name: str) -> None:
    *parts, attribute = SCALES.get(name, "scaling").split(".")
    module = attention_of(model, name, 1).get_submodule(".".join(parts))
    setattr(module, attribute, getattr(module, attribute) * 3)


def linear_layers(model: PreTrainedModel) -> list[nn.Module]:
    return [part for part in model.modules() if isinstance(part, nn.Linear | Conv1D)]


def prune_weights(model: PreTrainedModel, name: str) -> None:
    for part in linear_layers(model):
        prune.l1_unstructured(part, "weight", amount=0.4)


def normalise_weights(model: PreTrainedModel, name: str) -> None:
    for part in linear_layers(model):
        parametrizations.weight_norm(part)
        part.parametrizations.weight.original0.data *= 1.5


def normalise_weights_by_a_hook(model: PreTrainedModel, name: str) -> None:
    for part in linear_layers(model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            nn.utils.weight_norm(part)
        part.weight_g.data *= 1.5


def replace_a_module(model: PreTrainedModel, name: str) -> None:
    """Replace linear layers by modules that hold the weights elsewhere, as LoRA does."""

    class Added(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base = base
            self.added = nn.Parameter(0.1 * torch.randn(()))

        def forward(self, hidden: Tensor) -> Tensor:
            return self.base(hidden) + self.added * hidden.roll(1, -1).sum(-1, keepdim=True)

    for path, part in [*model.named_modules()]:
        if isinstance(part, nn.Linear | Conv1D):
            torch.manual_seed(len(path))
            model.set_submodule(path, Added(part))


def compile_in_place(model: PreTrainedModel, name: str) -> None:
    model.forward = torch.compile(model.forward, backend="eager")
    for layer in (0, 1):
        attention_of(model, name, layer).compile(backend="eager")


def offload(model: PreTrainedModel, name: str) -> None:
    cpu_offload(model, torch.device("cpu"))


CHANGES: dict[str, Callable[[PreTrainedModel, str], None]] = {
    change.__name__: change
    for change in (
        switch_off,
        change_what_it_reads,
        act_on_the_whole,
        scale_scores,
        prune_weights,
        normalise_weights,
        normalise_weights_by_a_hook,
        replace_a_module,
        compile_in_place,
        offload,
    )
}
LEFT_OUT = {
    *((change, "GPT-OSS") for change in ("prune_weights", "normalise_weights")),
    *(("scale_scores", name) for name in ("GPT-2", "Falcon")),  # their scales are not attributes
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def own_weights(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """The weights that the model's own eager attention returns: (layer, head, query, key)."""
    model.config._attn_implementation_internal = "eager"
    outputs = model(**tokenizer(SENTENCE, return_tensors="pt"), output_attentions=True, use_cache=False)
    return torch.cat(outputs.attentions)


def shown_weights(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    report = attncli.heads(model, SENTENCE, tokenizer=tokenizer, maps="self")
    return torch.tensor(report.tensors["weights"].values)


@pytest.fixture(scope="module")
def unchanged_weights(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], Tensor]:
    return cache(lambda name: own_weights(MODELS[name].build(), tokenizer))


@pytest.mark.parametrize(("change", "name"), in_turn(CHANGES, [*MODELS]))
def test_a_changed_model_shows_its_own_weights(
    name: str,
    change: str,
    tokenizer: PreTrainedTokenizerBase,
    unchanged_weights: Callable[[str], Tensor],
) -> None:
    """Measured for the first time after the change, again after one before it, and once more."""
    if (change, name) in LEFT_OUT:
        pytest.skip("has nothing of the kind")
    truth, fresh, known = (MODELS[name].build() for _ in range(3))
    unchanged = unchanged_weights(name)
    torch.testing.assert_close(shown_weights(known, tokenizer), unchanged, rtol=0, atol=1e-5)
    for model in (truth, fresh, known):
        CHANGES[change](model, name)
    expected = own_weights(truth if change != "compile_in_place" else MODELS[name].build(), tokenizer)
    if change not in ("compile_in_place", "offload"):
        assert (expected - unchanged).abs().max() > 1e-3, "the change is seen"
    for model in (fresh, known, known):
        torch.testing.assert_close(shown_weights(model, tokenizer), expected, rtol=0, atol=1e-5)


def quantized(model: PreTrainedModel, kind: type[nn.Module]) -> PreTrainedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch plans to remove it
        return torch.ao.quantization.quantize_dynamic(model, {kind}, torch.qint8)


@pytest.mark.parametrize("name", ["Llama", "BERT", "BLOOM"])
def test_an_int8_model_shows_its_own_weights(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    model = quantized(MODELS[name].build(), nn.Linear)
    expected = own_weights(quantized(MODELS[name].build(), nn.Linear), tokenizer)
    assert (expected - own_weights(MODELS[name].build(), tokenizer)).abs().max() > 1e-3
    torch.testing.assert_close(shown_weights(model, tokenizer), expected, rtol=0, atol=1e-5)


WITH_LORA = ["Llama", "BERT", "GPT-2", "BLOOM", "Mistral", "Gemma 2", "Falcon", "MPT", "GPT-J"]


def adapted(name: str, *, inside: bool) -> PreTrainedModel:
    """A model with an effective LoRA, added by transformers (inside the model) or by peft (around it)."""
    peft = pytest.importorskip("peft")
    model = MODELS[name].build()
    targets = [
        path.rpartition(".")[2] for path, part in model.named_modules() if part in linear_layers(model)
    ]
    torch.manual_seed(5)
    config = peft.LoraConfig(r=3, target_modules=targets, init_lora_weights=False)
    if inside:
        model.add_adapter(config)
        return model.eval()
    return peft.get_peft_model(model, config).eval()


@pytest.mark.filterwarnings("ignore:fan_in_fan_out", "ignore:`is_gradient_checkpointing` is deprecated")
@pytest.mark.parametrize("name", some_seldom(WITH_LORA, WITH_LORA[2:]))
def test_a_model_with_lora_shows_its_own_weights(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    expected = own_weights(adapted(name, inside=True), tokenizer)
    assert (expected - own_weights(MODELS[name].build(), tokenizer)).abs().max() > 1e-3
    around = adapted(name, inside=False)
    for model in (adapted(name, inside=True), around.get_base_model()):
        for _ in range(2):
            torch.testing.assert_close(shown_weights(model, tokenizer), expected, rtol=0, atol=1e-5)
    with pytest.raises(
        attncli.UserError, match=rf"\(got PeftModel: pass the {type(model).__name__} inside it\)$"
    ):
        attncli.heads(around, SENTENCE, tokenizer=tokenizer)


def test_the_adapter_in_a_folder_applies(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """If peft is installed, transformers loads the adapter with the model."""
    peft = pytest.importorskip("peft")
    MODELS["Llama"].build().save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    model = AutoModel.from_pretrained(tmp_path)
    before = own_weights(model, tokenizer)
    model.add_adapter(peft.LoraConfig(r=3, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    model.save_pretrained(tmp_path)
    expected = own_weights(AutoModel.from_pretrained(tmp_path), tokenizer)
    assert (expected - before).abs().max() > 1e-3
    report = attncli.run("heads", model=tmp_path, sentence=SENTENCE, maps="self")
    shown = torch.tensor(report.tensors["weights"].values)
    torch.testing.assert_close(shown, expected, rtol=0, atol=1e-5)


def test_weights_on_the_meta_device_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    model = MODELS["Llama"].build()
    model.layers[1].mlp.to("meta")
    message = r"^model: layers\.1\.mlp\.gate_proj\.weight is on the meta device, without data"
    with pytest.raises(attncli.UserError, match=message):
        attncli.heads(model, SENTENCE, tokenizer=tokenizer)


def test_a_model_is_left_unchanged(tokenizer: PreTrainedTokenizerBase) -> None:
    for name, architecture in MODELS.items():
        model = architecture.build().train()
        switch_off(model, name)
        model.config.use_cache = True
        before = {path: {**vars(part)} for path, part in model.named_modules()}
        hooks = {path: [*part._forward_hooks] for path, part in model.named_modules()}
        config = {**vars(model.config)}
        attncli.heads(model, SENTENCE, tokenizer=tokenizer)
        assert {path: vars(part) for path, part in model.named_modules()} == before
        assert {path: [*part._forward_hooks] for path, part in model.named_modules()} == hooks
        assert vars(model.config) == config


def test_transformers_is_quiet_during_measurements(tokenizer: PreTrainedTokenizerBase) -> None:
    level, has_bars = messages.get_verbosity(), messages.is_progress_bar_enabled()
    said = MemoryHandler(100)
    messages.add_handler(said)
    try:
        messages.set_verbosity_warning()
        messages.enable_progress_bar()
        attncli.open_model()
        # Falcon's classes cannot change their attention, and transformers logs that each time.
        attncli.survey(attncli.open_model(MODELS["Falcon"].build(), tokenizer), SENTENCE)
        assert messages.get_verbosity() == WARNING and messages.is_progress_bar_enabled()
        assert said.buffer == []
    finally:
        messages.remove_handler(said)
        messages.set_verbosity(level)
        if not has_bars:
            messages.disable_progress_bar()


def test_torch_contexts_around_a_call_change_nothing() -> None:
    model = attncli.open_model()
    for measured in (attncli.survey, attncli.head_edges):
        expected = repr(measured(model, "abcabc abcabc"))
        for around in (torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.no_grad()):
            with around:
                assert repr(measured(model, "abcabc abcabc")) == expected


WEIGHTED = {
    "hook": lambda part: part.register_forward_hook(lambda _module, _inputs, output: 2 * output),
    "offloaded": lambda part: cpu_offload(part, torch.device("cpu")),
}


@pytest.mark.parametrize("change", WEIGHTED)
def test_weighted_is_refused_if_w_o_is_not_a_plain_matrix(
    change: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = MODELS["Llama"].build()
    attncli.heads(model, SENTENCE, tokenizer=tokenizer, weighted=True)
    WEIGHTED[change](model.layers[1].self_attn.o_proj)
    with pytest.raises(
        attncli.UserError, match=r"^weighted: .*layers\.1\.self_attn of .*leave out `weighted`$"
    ):
        attncli.heads(model, SENTENCE, tokenizer=tokenizer, weighted=True)


def test_weighted_takes_pruned_and_normalised_weights(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """The numbers equal those of a model whose parameters are these weights."""
    for change in (prune_weights, normalise_weights):
        model = MODELS["Llama"].build()
        change(model, "Llama")
        shown = attncli.heads(model, SENTENCE, tokenizer=tokenizer, weighted=True)
        for part in linear_layers(model):
            if change is prune_weights:
                prune.remove(part, "weight")
            else:
                nn.utils.parametrize.remove_parametrizations(part, "weight")
        plain = MODELS["Llama"].build()
        plain.load_state_dict(model.state_dict())
        expected = attncli.heads(plain, SENTENCE, tokenizer=tokenizer, weighted=True)
        for ours, theirs in zip(shown.table("heads"), expected.table("heads"), strict=True):
            assert ours["value_norm"] == pytest.approx(theirs["value_norm"], rel=1e-5)
