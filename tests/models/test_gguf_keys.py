"""Keys of GGUF headers that change attention, against the model that each file was written from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import attncli
from attncli.errors import UserError
from attncli.models.weight_headers import gguf_header
from tests.conftest import Attn

NUM_TOKENS, CONTEXT, LAYERS, WIDTH, HEADS = 64, 128, 2, 32, 4
SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}
IDS = [1] + [3 + (7 * i) % 61 for i in range(39)]
BASE = {"rope_type": "default", "rope_theta": 5000.0}
FREQ_BASE = {"rope.freq_base": 5000.0}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}
YARN_KEYS = FREQ_BASE | {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}
BETAS = {"beta_fast": 16.0, "beta_slow": 2.0}
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
LINEAR_KEYS = FREQ_BASE | {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 5000.0,
    "short_factor": [1.0, 1.3, 2.0],
    "long_factor": [1.5, 3.0, 7.0],
    "attention_factor": 1.2,
    "original_max_position_embeddings": 20,
    "partial_rotary_factor": 0.75,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
EXPERT_KEYS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24}


def rows_for_pairs(weight: Tensor, heads: int) -> Tensor:
    """Llama's rows in llama.cpp's order: the two numbers that rotate together are adjacent."""
    return weight.view(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def stored(kind: str, name: str, weight: Tensor, config: Any) -> dict[str, Tensor]:
    """A weight under its GGUF names, as llama.cpp's converter changes it."""
    if kind == "llama" and ("attn_q." in name or "attn_k." in name):
        return {name: rows_for_pairs(weight, HEADS if "attn_q." in name else config.num_key_value_heads)}
    if kind in ("gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
        return {name: weight + 1}
    if kind == "gpt2" and weight.ndim == 2 and name.startswith("blk"):
        return {name: weight.T}
    if kind == "bloom" and "attn_qkv" in name:
        parts = weight.view(HEADS, 3, -1, *weight.shape[1:])
        return {name: parts.transpose(0, 1).reshape(weight.shape)}
    if name.endswith("gate_up_exps.weight"):
        gate, up = weight.chunk(2, dim=1)
        return {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
    return {name: weight}


def write(
    path: Path,
    kind: str,
    model: PreTrainedModel,
    keys: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
) -> None:
    """A GGUF file of a model, from keys without the architecture in front, and further tensors."""
    config = model.config
    writer = GGUFWriter(path, kind)
    sizes = {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "block_count": LAYERS,
        "feed_forward_length": 48,
        "attention.head_count": HEADS,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", HEADS),
    }
    for key, value in (sizes | dict(keys)).items():
        add(writer, f"{kind}.{key}", value)
    spelled = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(NUM_TOKENS - 3))],
        "scores": [-float(i) for i in range(NUM_TOKENS)],
        "token_type": [2, 3, 3] + [1] * (NUM_TOKENS - 3),
        "merges": ["t h", "th e"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 0,
    } | dict(tokenizer or {})
    if spelled["model"] == "llama":
        del spelled["merges"]
    for key, value in spelled.items():
        add(writer, f"tokenizer.ggml.{key}", value)
    (architecture,) = (number for number, name in MODEL_ARCH_NAMES.items() if name == kind)
    names = get_tensor_name_map(architecture, LAYERS)
    tied = "lm_head.weight" if config.get_text_config().tie_word_embeddings else ""
    for name, weight in model.state_dict().items():
        if name == tied:
            continue
        stem, _, suffix = name.rpartition(".")
        if suffix not in ("weight", "bias"):
            stem, suffix = name, "weight"
        found = names.get_name(stem) or names.get_name(stem.removeprefix("transformer."))
        if found is None and name.endswith("experts.gate_up_proj"):
            found = f"blk.{name.split('.')[2]}.ffn_gate_up_exps"
        assert found is not None, name
        for key, numbers in stored(kind, f"{found}.{suffix}", weight, config).items():
            writer.add_tensor(key, np.ascontiguousarray(numbers.squeeze().float().numpy()))
    for name, values in (extra or {}).items():
        writer.add_tensor(name, np.asarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: GGUFWriter, key: str, value: Any) -> None:
    """Add a key with the type of its value."""
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds.get(type(value), writer.add_array)(key, value)


def build(name: str, settings: Mapping[str, Any]) -> PreTrainedModel:
    """A model with weights large enough to show positions, windows and softcaps."""
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    ids = {"vocab_size": NUM_TOKENS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model: PreTrainedModel = model_class._from_config(
        model_class.config_class(**ids, **settings), attn_implementation="eager"
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * (0.2 if weight.ndim > 1 else 0.1) + (weight.ndim == 1))
    return model.eval()


def differences(path: Path, model: PreTrainedModel) -> list[float]:
    """The largest difference of weights in each layer."""
    ids = torch.tensor([IDS])
    with torch.no_grad():
        expected = model(ids, output_attentions=True, use_cache=False).attentions
    layers = attncli.layers(attncli.open_model(path), {"ids": IDS, "tokens": [*map(str, IDS)]})
    assert len(layers) == len(expected) == LAYERS
    return [
        float((layer.weights()[0] - one[0]).abs().max()) for layer, one in zip(layers, expected, strict=True)
    ]


RMS, EPS = {"attention.layer_norm_rms_epsilon": 0.03}, {"attention.layer_norm_epsilon": 0.03}
NORM = {"rms_norm_eps": 0.03}
BIASED = {"attention_bias": True}
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama, plain": ("llama", "Llama", {**NORM, "rope_parameters": BASE}, RMS | FREQ_BASE),
    "llama, linear": ("llama", "Llama", {**NORM, "rope_parameters": LINEAR}, RMS | LINEAR_KEYS),
    "llama, a factor without a type": (
        "llama", "Llama", {"rope_parameters": LINEAR}, FREQ_BASE | {"rope.scaling.factor": 4.0}
    ),
    "llama, the old key": (
        "llama", "Llama", {"rope_parameters": LINEAR}, FREQ_BASE | {"rope.scale_linear": 4.0}
    ),
    "llama, a factor that type none leaves out": (
        "llama", "Llama", {"rope_parameters": BASE}, LINEAR_KEYS | {"rope.scaling.type": "none"}
    ),
    "llama, yarn": ("llama", "Llama", {**NORM, "rope_parameters": YARN}, RMS | YARN_KEYS),
    "llama, yarn with all its keys": (
        "llama", "Llama",
        {"rope_parameters": {**YARN, **BETAS, "attention_factor": 1.7 * 1.138629436112}},
        YARN_KEYS | {
            "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0,
            "rope.scaling.attn_factor": 1.7, "rope.scaling.yarn_ext_factor": 1.0,
        },
    ),
    "llama, a base left out": ("llama", "Llama", {"rope_parameters": {**BASE, "rope_theta": 10000.0}}, {}),
    "llama, wide heads and biases": (
        "llama", "Llama", {"head_dim": 12, "attention_bias": True, "mlp_bias": True, "rope_parameters": BASE},
        FREQ_BASE | {"attention.key_length": 12, "attention.value_length": 12, "rope.dimension_count": 12},
    ),
    "qwen2, yarn": ("qwen2", "Qwen2", {**NORM, "rope_parameters": YARN}, RMS | YARN_KEYS),
    "qwen3, linear": (
        "qwen3", "Qwen3", {**NORM, **BIASED, "head_dim": 12, "rope_parameters": LINEAR},
        RMS | LINEAR_KEYS | {"attention.key_length": 12, "attention.value_length": 12},
    ),
    "qwen2moe, yarn": (
        "qwen2moe", "Qwen2Moe",
        {**NORM, **EXPERTS, "shared_expert_intermediate_size": 20, "rope_parameters": YARN},
        RMS | YARN_KEYS | EXPERT_KEYS | {"expert_shared_feed_forward_length": 20},
    ),
    "qwen3moe, linear": (
        "qwen3moe", "Qwen3Moe",
        {**NORM, **EXPERTS, "head_dim": 12, "norm_topk_prob": True, "rope_parameters": LINEAR},
        RMS | LINEAR_KEYS | EXPERT_KEYS | {"attention.key_length": 12},
    ),
    "phi3, longrope and a window": (
        "phi3", "Phi3",
        {**NORM, "sliding_window": 7, "original_max_position_embeddings": 20, "rope_parameters": LONG},
        RMS | FREQ_BASE | {
            "rope.dimension_count": 6, "rope.scaling.attn_factor": 1.2, "attention.sliding_window": 7,
            "rope.scaling.original_context_length": 20,
        },
    ),
    "stablelm, a quarter rotated": (
        "stablelm", "StableLm",
        {
            "layer_norm_eps": 0.03, "use_qkv_bias": True,
            "rope_parameters": {**BASE, "partial_rotary_factor": 0.25},
        },
        EPS | FREQ_BASE | {"rope.dimension_count": 2, "use_parallel_residual": False},
    ),
    "starcoder2, a window": (
        "starcoder2", "Starcoder2",
        {"norm_epsilon": 0.03, "sliding_window": 5, "rope_parameters": LINEAR, "tie_word_embeddings": False},
        EPS | LINEAR_KEYS | {"attention.sliding_window": 5},
    ),
    "nemotron, half rotated": (
        "nemotron", "Nemotron",
        {"norm_eps": 0.03, "head_dim": 12, "rope_parameters": {**LINEAR, "partial_rotary_factor": 0.5}},
        EPS | LINEAR_KEYS | {
            "rope.dimension_count": 6, "attention.key_length": 12, "attention.value_length": 12
        },
    ),
    "gemma2, softcaps and windows": (
        "gemma2", "Gemma2",
        {
            **NORM, "head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 5,
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "rope_parameters": BASE,
        },
        RMS | FREQ_BASE | {
            "attention.key_length": 12, "attention.value_length": 12, "attention.sliding_window": 5,
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3, a base and a scaling for each kind of layer": (
        "gemma3", "Gemma3",
        {
            **NORM, "head_dim": 12, "query_pre_attn_scalar": 25, "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}
            },
        },
        RMS | LINEAR_KEYS | {
            "attention.key_length": 12, "attention.value_length": 12, "attention.sliding_window": 5,
            "attention.sliding_window_pattern": [True, False], "rope.freq_base_swa": 300.0,
            "attention.scale": 0.2,
        },
    ),
    "falcon, one key head": (
        "falcon", "Falcon",
        {"layer_norm_epsilon": 0.03, "rope_parameters": LINEAR, "bias": True, "ffn_hidden_size": 128},
        EPS | LINEAR_KEYS | {"attention.head_count_kv": 1, "feed_forward_length": 128},
    ),
    "bloom": ("bloom", "Bloom", {"layer_norm_epsilon": 0.03}, EPS),
    "gpt2": ("gpt2", "GPT2", {"layer_norm_epsilon": 0.03, "n_positions": CONTEXT, "n_inner": 48}, EPS),
}  # fmt: skip


def model_of(name: str, settings: Mapping[str, Any]) -> PreTrainedModel:
    sizes = GROUPED
    if name in ("Bloom", "GPT2"):
        sizes = dict(zip(("hidden_size", "n_layer", "n_head"), (WIDTH, LAYERS, HEADS), strict=True))
        sizes = {"n_embd" if key == "hidden_size" and name == "GPT2" else key: n for key, n in sizes.items()}
    return build(f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM", {**sizes, **settings})


@pytest.mark.parametrize("name", MODELS)
def test_a_gguf_file_has_the_attention_of_its_model(name: str, tmp_path: Path) -> None:
    kind, class_name, settings, keys = MODELS[name]
    model = model_of(class_name, settings)
    extra = {}
    if class_name == "Phi3":
        extra = {f"rope_factors_{length}.weight": LONG[f"{length}_factor"] for length in ("long", "short")}
    path = tmp_path / "tiny.gguf"
    write(path, kind, model, keys, extra)
    assert max(differences(path, model)) < 1e-5
    text = {"ids": IDS, "tokens": [*map(str, IDS)]}
    with_head, without_head = (attncli.survey(opened, text) for opened in (attncli.open_model(path), path))
    assert with_head == without_head


def test_a_file_with_an_output_matrix_opens_without_its_head(tmp_path: Path, attn: Attn) -> None:
    """Most large models have a separate matrix; only small ones share it with the embeddings."""
    path = tmp_path / "tiny.gguf"
    for tied in (False, True):
        model = model_of("Llama", {"rope_parameters": BASE, "tie_word_embeddings": tied})
        write(path, "llama", model, FREQ_BASE)
        assert ("output.weight" in gguf_header(path).tensors) != tied
        ended = attn(["heads", "--model", str(path), "w1 w2 w3 w4"])
        assert (ended.code, ended.err) == (0, "")


def llama3_factors() -> list[float]:
    """The numbers of rope_freqs.weight: Llama 3.1's divisor of each frequency."""
    config = transformers.LlamaConfig(hidden_size=WIDTH, num_attention_heads=HEADS, rope_parameters=LLAMA3)
    divided, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return (5000.0 ** -(torch.arange(0, 8, 2) / 8) / divided).tolist()


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_frequencies_are_divided_by_a_tensor(kind: str, tmp_path: Path) -> None:
    model = model_of({"llama": "Llama", "qwen2": "Qwen2"}[kind], {"rope_parameters": LLAMA3})
    write(tmp_path / "tiny.gguf", kind, model, FREQ_BASE, {"rope_freqs.weight": llama3_factors()})
    assert max(differences(tmp_path / "tiny.gguf", model)) < 1e-5


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another scaling": (
        "llama",
        {"rope.scaling.type": "ntk"},
        "rope.scaling.type must be none, linear, yarn",
    ),
    "longrope without its factors": (
        "llama",
        {"rope.scaling.type": "longrope"},
        "rope.scaling.type needs rope_factors_long.weight",
    ),
    "clamped values": ("llama", {"attention.clamp_kqv": 8.0}, "attention.clamp_kqv is not supported"),
    "linear biases": (
        "qwen3",
        {"attention.max_alibi_bias": 8.0},
        "attention.max_alibi_bias is not supported",
    ),
    "a softcap": ("qwen2", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping is not supported"),
    "a window": ("llama", {"attention.sliding_window": 16}, "attention.sliding_window must be 0 or at least"),
    "another scale": ("llama", {"attention.scale": 0.5}, "attention.scale must be 1 / sqrt"),
    "a part rotated": (
        "llama",
        {"rope.dimension_count": 4},
        "rope.dimension_count must be equal to the head width",
    ),
    "values of another width": ("llama", {"attention.value_length": 16}, "attention.value_length must equal"),
    "heads per layer": (
        "llama",
        {"attention.head_count_kv": [2, 1]},
        "attention.head_count_kv must be one number",
    ),
    "nobody's key": ("llama", {"attention.of_tomorrow": 1}, "attention.of_tomorrow is not supported"),
    "not causal": ("qwen2", {"attention.causal": False}, "attention.causal is not supported"),
    "experts": ("llama", {"expert_count": 4}, "expert_count is not supported"),
    "a text for a number": ("llama", {"rope.freq_base": "many"}, "rope.freq_base must be a number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_key_is_named(name: str, tmp_path: Path) -> None:
    kind, keys, reason = REFUSED[name]
    class_name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    write(tmp_path / "tiny.gguf", kind, model_of(class_name, {"head_dim": 8}), keys)
    with pytest.raises(UserError, match=f"tiny.gguf: {kind}.{reason}"):
        attncli.open_model(tmp_path / "tiny.gguf")


def test_keys_without_effect_are_accepted(tmp_path: Path) -> None:
    keys = {
        "attention.clamp_kqv": 0.0, "attention.sliding_window": CONTEXT, "attention.causal": True,
        "attention.scale": 8**-0.5, "rope.scaling.type": "none", "rope.scaling.finetuned": False,
        "rope.dimension_count": 8, "attention.key_length": 8, "rope.scaling.yarn_ext_factor": -1.0,
        "expert_count": 0, "logit_scale": 0.0,
    }  # fmt: skip
    model = model_of("Llama", {"rope_parameters": BASE})
    write(tmp_path / "tiny.gguf", "llama", model, FREQ_BASE | keys, {"rope_freqs.weight": [1.0] * 4})
    assert max(differences(tmp_path / "tiny.gguf", model)) < 1e-5


@pytest.mark.parametrize(
    ("tensor", "numbers"),
    [
        ("blk.1.attn_sinks.weight", [1.0] * HEADS),
        ("blk.0.attn_q_norm.weight", [1.0] * 8),
        ("rope_freqs.weight", [1.0] * 3),
        ("rope_freqs.weight", [1.0, 0.0, 1.0, 1.0]),
    ],
)
def test_an_unsupported_tensor_is_named(tensor: str, numbers: list[float], tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", "llama", model_of("Llama", {}), {}, {tensor: numbers})
    with pytest.raises(UserError, match=tensor):
        attncli.open_model(tmp_path / "tiny.gguf")


BLANKS = {"llama": "\u2581", "gpt2": "\u0120"}
"""Spelling of a space for each kind of tokenizer."""


@pytest.mark.parametrize(
    ("kind", "keys", "first", "last"),
    [
        ("llama", {}, ["<s>", "\u2581t"], "t"),
        ("llama", {"add_bos_token": False, "add_eos_token": True}, ["\u2581t", "h"], "</s>"),
        ("llama", {"add_space_prefix": False}, ["<s>", "the"], "t"),
        ("gpt2", {}, ["the", "\u0120"], "t"),
        ("gpt2", {"add_bos_token": True, "add_eos_token": True}, ["<s>", "the"], "</s>"),
        ("gpt2", {"pre": "llama-bpe"}, ["<s>", "the"], "t"),
        ("gpt2", {"pre": "llama-bpe", "add_bos_token": False}, ["the", "\u0120"], "t"),
    ],
)
def test_keys_choose_the_tokens_around_a_text(
    kind: str, keys: dict[str, Any], first: list[str], last: str, tmp_path: Path
) -> None:
    blank = BLANKS[kind]
    words = ["<unk>", "<s>", "</s>", *"theca", blank, f"{blank}t", "th", "the", f"{blank}the"]
    words += [chr(0x41 + i) for i in range(NUM_TOKENS - len(words))]
    path = tmp_path / "tiny.gguf"
    write(path, "llama", model_of("Llama", {}), {}, tokenizer={"model": kind, "tokens": words, **keys})
    tokens = attncli.open_model(path).tokenizer.tokenize("the cat", add_special_tokens=True)
    assert (tokens[:2], tokens[-1]) == (first, last)
