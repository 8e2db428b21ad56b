"""The keys of a GGUF header that change a model's computation, as settings of the transformers config.

transformers reads the sizes and drops everything else: scaled positions, windows, softcaps, biases. Any other
key is refused by name, unless it is known to have no effect, so that no file is measured as if it were a
different model. The keys are described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; missing
ones have llama.cpp's defaults.
"""

import io
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from functools import partial
from math import isclose, log
from pathlib import Path
from typing import Any

from tokenizers import normalizers, pre_tokenizers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from attncli.core.process import quiet_warnings
from attncli.errors import UserError
from attncli.models.architectures import tokenizer_class
from attncli.models.folder import panics_in_one_line
from attncli.models.stored import gguf_numbers
from attncli.models.weight_headers import (
    ARCHITECTURE,
    ROPE_FREQS,
    ROPE_LONG,
    ROPE_SHORT,
    ROPE_TENSORS,
    GgufHeader,
    gguf_header,
    gguf_settings,
)

DEFAULT_BASE, DEFAULT_SWA_BASE = 10000.0, 10000.0
WINDOW, PATTERN, CONTEXT = "attention.sliding_window", "attention.sliding_window_pattern", "context_length"
RMS_EPSILON, EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
KEY_LENGTH, VALUE_LENGTH, ROTARY = "attention.key_length", "attention.value_length", "rope.dimension_count"
MOST_ROTATED = 2**16
"""The most dimensions of a head that are rotated; each pair of them has a factor."""
SIZES = frozenset(
    (CONTEXT, "embedding_length", "block_count", "feed_forward_length", "vocab_size", "attention.head_count",
     "attention.head_count_kv", "attention.relative_buckets_count", "decoder_start_token_id",
     "shortconv.l_cache")
)  # fmt: skip
"""Keys that transformers reads from every file.

A wrong value changes the shapes of weights, which raises an error.
"""
WITHOUT_EFFECT = frozenset(("rope.scaling.finetuned", "tensor_data_layout", "pooling_type"))
NO_CHANGE: Mapping[str, tuple[float, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "expert_weights_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.alpha": (0,),
    "rope.scaling.yarn_log_multiplier": (0,),
}
"""For each key that is not read, the values at which it has no effect."""
EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
BIASES = {"attn_q.bias": "attention_bias", "ffn_up.bias": "mlp_bias"}


@dataclass(frozen=True)
class Architecture:
    """The names that the transformers config of one architecture uses for the keys of a GGUF header."""

    epsilon: str = "rms_norm_eps"
    has_head_dim: bool = True
    """True if a head may be wider or narrower than embedding_length / head_count."""
    has_rotary: bool = True
    is_partly_rotated: bool = False
    has_window: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further keys, with the names of the settings that take their values unchanged."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Settings that are true if the first block has the named tensor."""


SOFTCAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
SPARSE = EXPERTS | {"expert_feed_forward_length": "moe_intermediate_size"}
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(parts=BIASES),
    "qwen2": Architecture(),
    "qwen2moe": Architecture(
        settings=SPARSE | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
    ),
    "qwen3": Architecture(parts={"attn_q.bias": "attention_bias"}),
    "qwen3moe": Architecture(settings=SPARSE, parts={"attn_q.bias": "attention_bias"}),
    "falcon": Architecture("layer_norm_epsilon", has_head_dim=False, parts={"attn_qkv.bias": "bias"}),
    "phi3": Architecture(has_head_dim=False, is_partly_rotated=True, has_window=True),
    "bloom": Architecture("layer_norm_epsilon", has_head_dim=False, has_rotary=False),
    "gpt2": Architecture(
        "layer_norm_epsilon",
        has_head_dim=False,
        has_rotary=False,
        settings={CONTEXT: "n_positions", "feed_forward_length": "n_inner"},
    ),
    "t5": Architecture(
        "layer_norm_epsilon", has_rotary=False, settings={"decoder_block_count": "num_decoder_layers"}
    ),
    "t5encoder": Architecture("layer_norm_epsilon", has_rotary=False),
    "stablelm": Architecture(
        "layer_norm_eps",
        has_head_dim=False,
        is_partly_rotated=True,
        settings={"use_parallel_residual": "use_parallel_residual"},
        parts={"attn_q_norm.weight": "qk_layernorm"},
    ),
    "starcoder2": Architecture(
        "norm_epsilon", has_head_dim=False, has_window=True, parts={"attn_q.bias": "use_bias"}
    ),
    "nemotron": Architecture("norm_eps", is_partly_rotated=True, parts=BIASES),
    "gemma2": Architecture(has_window=True, settings=SOFTCAPS, parts={"attn_q.bias": "attention_bias"}),
    "gemma3": Architecture(
        has_window=True,
        settings={"final_logit_softcapping": "final_logit_softcapping"},
        parts={"attn_q.bias": "attention_bias"},
    ),
    "lfm2": Architecture("norm_eps", has_head_dim=False),
}
"""The keys of other architectures: only the keys that transformers reads."""
LARGEST_GEMMAS = {"gemma2": 46, "gemma3": 62}
"""Block counts of the models (27B) that scale scores by embedding_length / head_count; no key records it."""


class GgufKeys:
    """The keys of one architecture in a GGUF header, all of which must be read."""

    def __init__(self, header: GgufHeader, path: Path) -> None:
        self.architecture = str(header.settings[ARCHITECTURE])
        self._path, self._prefix = path, f"{self.architecture}."
        self._values = {
            key.removeprefix(self._prefix): value
            for key, value in header.settings.items()
            if key.startswith(self._prefix)
        }
        self._read: set[str] = {*WITHOUT_EFFECT}

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, which then counts as read."""
        self._read.add(key)
        return self._values.get(key, default)

    def number(self, key: str, default: int | float) -> int | float:
        """Return the number at a key. Raises UserError for any other value."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
            raise self.refused(key, "must be a number")
        return value

    def refused(self, key: str, reason: str) -> UserError:
        """Return an error that names the file, the key and its value."""
        return UserError(
            f"model: {self._path}: {self._prefix}{key:.200} {reason} (got {self._values.get(key)!s:.40})"
        )

    def check(self) -> None:
        """Raise UserError for the first key that was not read and may have an effect."""
        for key, value in self._values.items():
            if key not in self._read and value not in NO_CHANGE.get(key, ()):
                instead = "use the model folder that the file was converted from"
                raise self.refused(key, f"is not supported and may change what the model computes: {instead}")


def gguf_config(
    config: PreTrainedConfig, header: GgufHeader, path: Path, numbers: Callable[[str], list[float]]
) -> PreTrainedConfig:
    """Return the transformers config of a GGUF file, completed from its header and tensors.

    `numbers` reads a tensor of the file. Raises UserError for an unsupported key.
    """
    keys = GgufKeys(header, path)
    described = ARCHITECTURES.get(keys.architecture)
    changes: dict[str, Any] = {}
    if f"{keys.architecture}.vocab_size" not in header.settings:
        changes["vocab_size"] = header.num_tokens
    if described is None:
        mapping: Any = GGUF_CONFIG_MAPPING  # typed as `object` in transformers
        mapped = mapping.get(config.model_type.removesuffix("_text"), {})
        for key in SIZES | {key for key, name in mapped.items() if name is not None}:
            keys.get(key)
        # For these, the functions of transformers read every key.
        if config.model_type.startswith("qwen3_5"):
            return _changed(config, changes)
        changes |= _positions(
            keys, config, header, numbers, is_partly_rotated=config.model_type == "minimax_m2"
        )
    else:
        for key in SIZES:
            keys.get(key)
        changes |= _settings(keys, config, header, described)
        if described.has_rotary:
            sized = _changed(config, changes)
            partly = described.is_partly_rotated
            changes |= _positions(keys, sized, header, numbers, is_partly_rotated=partly)
    keys.check()
    return _changed(config, changes)


def check_sizes(header: GgufHeader, path: Path) -> None:
    """Raise UserError for sizes that differ between layers, which transformers does not support."""
    keys = GgufKeys(header, path)
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(keys.get(key), tuple) and keys.architecture not in ("lfm2", "gemma4"):
            raise keys.refused(key, "must be one number for all blocks")


def _changed(config: PreTrainedConfig, changes: Mapping[str, Any]) -> PreTrainedConfig:
    stored = config.to_dict()
    if "rope_parameters" in changes:
        # A default value would be merged into the new one.
        stored = {key: value for key, value in stored.items() if key not in ("rope_theta", "rope_scaling")}
    if "layer_types" in changes or "sliding_window" in changes:
        stored.pop("layer_types", None)
    return type(config).from_dict(stored | dict(changes))


def _settings(
    keys: GgufKeys, config: PreTrainedConfig, header: GgufHeader, described: Architecture
) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for key, setting in described.settings.items():
        if (value := keys.get(key)) is not None:
            changes[setting] = value
    for part, setting in described.parts.items():
        changes[setting] = f"blk.0.{part}" in header.tensors
    epsilons = {key: value for key in (RMS_EPSILON, EPSILON) if (value := keys.get(key)) is not None}
    if len({*epsilons.values()}) > 1:
        raise keys.refused(EPSILON, f"must equal {RMS_EPSILON}")
    changes |= dict.fromkeys([described.epsilon] if epsilons else [], *epsilons.values() or (None,))
    head_dim = _head_dim(keys, config)
    if described.has_head_dim:
        changes["d_kv" if config.model_type in ("t5", "umt5") else "head_dim"] = head_dim
    elif keys.get(KEY_LENGTH) not in (None, config.hidden_size // config.num_attention_heads):
        raise keys.refused(KEY_LENGTH, "must be embedding_length / attention.head_count")
    if keys.architecture == "falcon":
        changes |= _falcon(keys, header)
    if keys.architecture.startswith("t5"):
        changes |= _t5_feed_forward(header)
    if keys.architecture in LARGEST_GEMMAS:
        is_largest = config.num_hidden_layers == LARGEST_GEMMAS[keys.architecture]
        width = config.hidden_size // config.num_attention_heads if is_largest else head_dim
        changes["query_pre_attn_scalar"] = round(keys.number("attention.scale", width**-0.5) ** -2)
    elif not isclose(keys.number("attention.scale", 0) or head_dim**-0.5, head_dim**-0.5, rel_tol=1e-5):
        raise keys.refused("attention.scale", "must be 1 / sqrt(attention.key_length)")
    return changes | _window(keys, config, has_window=described.has_window)


def _head_dim(keys: GgufKeys, config: PreTrainedConfig) -> int:
    whole = config.hidden_size // config.num_attention_heads
    head_dim: int = keys.get(KEY_LENGTH, whole)
    if keys.get(VALUE_LENGTH, head_dim) != head_dim:
        raise keys.refused(VALUE_LENGTH, f"must equal attention.key_length, {head_dim}")
    return head_dim


def _falcon(keys: GgufKeys, header: GgufHeader) -> dict[str, Any]:
    """Return the settings of Falcon 7B, where all query heads share one key head.

    Other sizes have their rows in a different order and are refused.
    """
    if keys.get("attention.head_count_kv", 1) != 1:
        raise keys.refused("attention.head_count_kv", "must be 1: other Falcon files are not supported")
    is_parallel = "blk.0.ffn_norm.weight" not in header.tensors
    return {
        "multi_query": True,
        "num_kv_heads": 1,
        "new_decoder_architecture": False,
        "parallel_attn": is_parallel,
    }


def _t5_feed_forward(header: GgufHeader) -> dict[str, Any]:
    side = "enc" if any(name.startswith("enc.") for name in header.tensors) else "dec"
    is_gated = f"{side}.blk.0.ffn_gate.weight" in header.tensors
    return {"feed_forward_proj": "gated-gelu" if is_gated else "relu"}


def _window(keys: GgufKeys, config: PreTrainedConfig, *, has_window: bool) -> dict[str, Any]:
    """Return the number of keys that a query may look back to, or 0 for all."""
    window = keys.number(WINDOW, 0)
    pattern = keys.get(PATTERN)
    if not has_window:
        if 0 < window < config.max_position_embeddings:
            raise keys.refused(
                WINDOW, f"must be 0 or at least {CONTEXT}: windows are not supported for {keys.architecture}"
            )
        return {"sliding_window": None} if hasattr(config, "sliding_window") else {}
    changes: dict[str, Any] = {"sliding_window": int(window) or None}
    if keys.architecture not in LARGEST_GEMMAS:
        if pattern is not None:
            raise keys.refused(PATTERN, f"is not supported for {keys.architecture}")
        return changes
    num_layers = config.num_hidden_layers
    if pattern is None:
        pattern = 2 if keys.architecture == "gemma2" else 6
    if not isinstance(pattern, tuple):
        pattern = tuple(bool((layer + 1) % pattern) if pattern > 0 else False for layer in range(num_layers))
    if len(pattern) != num_layers:
        raise keys.refused(PATTERN, f"must have one value for each of {num_layers} blocks")
    if not window:
        if any(pattern):
            pattern = (False,) * num_layers
        # transformers needs a number even if no layer uses it.
        changes["sliding_window"] = config.max_position_embeddings
    changes["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    return changes


def _positions(
    keys: GgufKeys,
    config: PreTrainedConfig,
    header: GgufHeader,
    numbers: Callable[[str], list[float]],
    *,
    is_partly_rotated: bool,
) -> dict[str, Any]:
    """Return the settings of rotary positions: their base, the rotated share of a head, and their scaling."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotary = int(keys.number(ROTARY, head_dim))
    if rotary > MOST_ROTATED:
        raise keys.refused(ROTARY, f"must be at most {MOST_ROTATED}: the head width is {head_dim}")
    if rotary != head_dim and (not is_partly_rotated or not 0 < rotary < head_dim or rotary % 2):
        limit = "even and at most" if is_partly_rotated else "equal to"
        raise keys.refused(ROTARY, f"must be {limit} the head width, {head_dim}")
    context = config.max_position_embeddings
    original = int(keys.number("rope.scaling.original_context_length", context))
    factors = {name: numbers(name) for name in ROPE_TENSORS if name in header.tensors}
    for name, values in factors.items():
        if len(values) != rotary // 2 or not all(0 < value < float("inf") for value in values):
            wrong = f"must have {rotary // 2} positive numbers, one per frequency (got {len(values)} numbers)"
            raise UserError(f"model: {keys._path}: {name}: {wrong}")
    scaling = _scaling(keys, factors, original, rotary // 2)
    rope = {"rope_theta": keys.number("rope.freq_base", DEFAULT_BASE), **scaling}
    if is_partly_rotated:
        rope["partial_rotary_factor"] = rotary / head_dim
    if keys.architecture != "gemma3":
        phi_settings = {"original_max_position_embeddings": original} if config.model_type == "phi3" else {}
        return {"rope_parameters": rope, **phi_settings}
    local = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", DEFAULT_SWA_BASE)}
    return {"rope_parameters": {"full_attention": rope, "sliding_attention": local}}


def _scaling(
    keys: GgufKeys, factors: Mapping[str, list[float]], original: int, num_frequencies: int
) -> dict[str, Any]:
    """Return the divisors of the frequencies, and the factor on cosines and sines.

    A factor without a type is linear; `rope.scale_linear` is its old name. A scaling with one divisor per
    frequency (`rope_freqs.weight` of Llama 3.1) is called longrope in transformers.
    """
    kind = keys.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise keys.refused("rope.scaling.type", "must be none, linear, yarn or longrope")
    old = keys.number("rope.scale_linear", 0)
    factor = float(keys.number("rope.scaling.factor", 0) or old or 1)
    if factor <= 0:
        raise keys.refused("rope.scaling.factor", "must be positive")
    if kind == "none":
        factor = 1.0
    attention_factor = float(keys.number("rope.scaling.attn_factor", 1) or 1)
    attention_factor *= float(keys.number("rope.scaling.yarn_attn_factor", 1))
    mixed, betas = keys.number("rope.scaling.yarn_ext_factor", -1), {}
    for name, key in (
        ("beta_fast", "rope.scaling.yarn_beta_fast"),
        ("beta_slow", "rope.scaling.yarn_beta_slow"),
    ):
        if (value := keys.get(key)) is not None:
            betas[name] = value
    if mixed >= 0 and mixed != (kind == "yarn"):
        raise keys.refused("rope.scaling.yarn_ext_factor", "must be 1 for yarn and 0 for any other scaling")
    if (ROPE_LONG in factors) != (ROPE_SHORT in factors) or (kind == "longrope" and not factors):
        raise keys.refused("rope.scaling.type", f"needs {ROPE_LONG} and {ROPE_SHORT}")
    if kind == "yarn":
        if any(value != 1 for values in factors.values() for value in values):
            raise keys.refused("rope.scaling.type", f"is not supported together with {next(iter(factors))}")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": attention_factor * (1 + 0.1 * log(factor)),
            **betas,
        }
    if not factors and factor == attention_factor == 1:
        return {"rope_type": "default"}
    shared = factors.get(ROPE_FREQS, [1.0] * num_frequencies)
    long, short = (
        [value * factor for value in factors.get(name, shared)] for name in (ROPE_LONG, ROPE_SHORT)
    )
    if attention_factor == 1 and all(value == 1 for value in (*long, *short)):
        return {"rope_type": "default"}
    return {
        "rope_type": "longrope",
        "long_factor": long,
        "short_factor": short,
        "attention_factor": attention_factor,
        "original_max_position_embeddings": original,
    }


ADD_BOS, ADD_PREFIX = "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix"
ADD_SEP, PRE_TOKENIZER = "tokenizer.ggml.add_sep_token", "tokenizer.ggml.pre"
LLAMA3_PRE_TOKENIZERS = ("llama3", "llama-v3", "llama-bpe")
"""Tokenizers that begin every text with the BOS token unless a key overrides this."""


def tokenizer_options(header: GgufHeader, path: Path) -> dict[str, bool]:
    """Return the tokenizer options that transformers does not take from the header.

    Raises UserError for an unsupported key.
    """
    if header.settings.get(ADD_SEP):
        raise UserError(f"model: {path}: {ADD_SEP} is not supported: it adds tokens (got True)")
    is_llama3 = header.settings.get(PRE_TOKENIZER) in LLAMA3_PRE_TOKENIZERS
    return {"add_bos_token": True} if is_llama3 and ADD_BOS not in header.settings else {}


def remove_space_prefix(tokenizer: PreTrainedTokenizerBase, header: GgufHeader) -> None:
    """Keep a SentencePiece tokenizer from prepending a space to a text if the header says so."""
    if header.settings.get(ADD_PREFIX, True):
        return
    backend = tokenizer.backend_tokenizer
    if isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace):
        backend.pre_tokenizer.prepend_scheme = "never"
    elif backend.normalizer is not None and backend.normalizer.normalize_str("a") != "a":
        backend.normalizer = normalizers.Replace(" ", "\u2581")


def config_and_tokenizer(
    path: Path, options: Mapping[str, Any]
) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Return the config and the tokenizer in a GGUF file. Raises UserError for an unsupported key."""
    header = gguf_header(path)
    check_sizes(header, path)
    # The client's progress bar is dropped, because attn reports one line.
    with panics_in_one_line(), redirect_stderr(io.StringIO()), quiet_warnings():
        with gguf_settings(path) as short:
            config = AutoConfig.from_pretrained(short.parent, gguf_file=short.name, **options)
        config = gguf_config(config, header, path, partial(gguf_numbers, path))
        # Loaded by its class, since the auto class would read the config again, which takes seconds.
        its_class = tokenizer_class(config.model_type)
        overrides = tokenizer_options(header, path)
        tokenizer = its_class.from_pretrained(str(path.parent), gguf_file=path.name, **overrides, **options)
        remove_space_prefix(tokenizer, header)
    return config, tokenizer
