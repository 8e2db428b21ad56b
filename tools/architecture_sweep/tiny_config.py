"""A tiny configuration of any text architecture: its defaults, shrunk by the names of the fields."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from .classes import model_class
from .exceptions import EXCEPTIONS

VOCABULARY, HEADS, HEAD_DIM, WINDOW = 100, 4, 16, 8
FULL, SLIDING = "full_attention", "sliding_attention"
FEW_LAYERS, SEVERAL_LAYERS = 2, 4
HIDDEN = HEADS * HEAD_DIM
POSITIONS = 160
PLAIN_TOKENS = {"pad": 0, "unk": 1, "bos": 2, "cls": 2, "eos": 3, "sep": 3}
"""The ids of the tokenizer's special tokens; those of images and the like stand at the vocabulary's end."""


@dataclass(frozen=True)
class Sizes:
    """What is tried in turn until a model runs: key and value heads, and whether rotary sections are set."""

    kv_heads: int = 2
    rotary_sections: bool = False


ATTEMPTS = tuple(Sizes(kv_heads, sections) for kv_heads in (2, HEADS) for sections in (False, True))


def same(size: int) -> Callable[[int, Sizes], int]:
    """The same size whatever the default is, unless the default is smaller."""
    return lambda value, sizes: min(value, size) if value > 0 else value


LAYERS = (
    r"(.*_)?num_hidden_layers|n_layers?|(num_)?(.*_)?(num_)?layers|depth|.*_depth|num_blocks|(.*_)?n_layers"
)
PERIODS = r".*(_pattern|_interval|_period|_frequency|_offset|_step)|num_kv_shared_layers"

RULES: tuple[tuple[str, Callable[[int, Sizes], int]], ...] = (
    # What looks like a size of a rule below and is none.
    (
        r"type_vocab_size|.*_dropout.*|hc_.*|num_.*token.*_per_second|.*attn_k|num_mel_bins|num_channels",
        same(10**9),
    ),
    (r"base_channels|upsample_groups|upsample_initial_channel", same(32)),
    (r".*_linear_units|.*_predictor_channels", same(HIDDEN)),
    (r"num_filters|n_filters|index_kpool", same(4)),
    (r"codebook_size|num_embeddings", same(64)),
    (r"(.*_)?vocab_size|vocab_size_.*|.*vocab_size_base|.*_vocab", lambda value, sizes: VOCABULARY),
    (
        r"kv_n_heads|n_head_kv|num_kv_heads|(.*_)?num_key_value_heads|.*num_kv_heads|multi_query_group_num|num_key_value_heads_.*",
        lambda value, sizes: min(value, sizes.kv_heads),
    ),
    (r"linear_num_key_heads", same(2)),
    (
        r"n_heads?|num_heads|(.*_)?num_attention_heads|(.*_)?attention_heads|.*num_.*heads|.*_n_heads|.*_num_head",
        same(HEADS),
    ),
    (r"mamba_d_head|mamba_head_dim", same(2 * HEAD_DIM)),
    (r"qk_head_dim", same(HEAD_DIM + HEAD_DIM // 2)),
    (r"qk_nope_head_dim", same(HEAD_DIM // 2)),
    (r"v_head_dim", same(HEAD_DIM - 4)),
    (r"rotary_dim", same(HEAD_DIM // 2)),
    (r"(.*_)?head_dim|d_kv|dim_head|d_head|attention_head_dim|kv_channels|head_size", same(HEAD_DIM)),
    (
        r"(.*_)?intermediate_size|.*ffn_(hidden_size|dim)|d_ff|n_inner|hidden_dim|mlp_dim|.*_ff_dim|.*ffn_size|mlp_hidden_size",
        same(HIDDEN + 16),
    ),
    (r"hidden_size_per_layer_input", same(16)),
    (
        r"(.*_)?hidden_size|d_model|n_embd|dim|(.*_)?embed_dim|emb_dim|embedding_size|embedding_dim|(.*_)?proj(ection)?_dim"
        r"|(.*_)?output_dim|lru_width|hidden_size_.*|model_dim|.*bottleneck_.*|(.*_)?hidden_dim|d_embed|width|d_inner",
        same(HIDDEN),
    ),
    (r".*_lora_rank|lora_.*rank|.*low_rank_dim", same(HIDDEN // 2)),
    (
        r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts|.*num_experts|n_experts)",
        same(4),
    ),
    (
        r"num_experts_per_tok(en)?|moe_topk|moe_k|top_k_experts|.*num_experts_per_tok|experts_per_.*|moe_top_?k",
        same(2),
    ),
    (r"n_group|topk_group|num_expert_group|(.*_)?shared_experts|n_shared_experts|zero_expert_num", same(1)),
    (r"first_k_dense_replace|num_dense_layers|num_nextn_predict_layers|moe_layer_start_index", same(1)),
    (r"index_topk|index_n_heads|index_block_size", same(WINDOW)),
    (r"index_topk_blocks", same(2)),
    (
        r".*(max_position_embeddings|n_positions|n_ctx|max_seq_len|max_source_positions|max_target_positions)"
        r"|max_2d_position_embeddings|model_max_length|max_sequence_length|max_length",
        lambda value, sizes: POSITIONS,
    ),
    (
        r".*(sliding_window|sliding_window_size|local_attention|local_attention_window_len|attention_window"
        r"|window_size|attention_chunk_size|local_radius|global_block_size|attention_window_size|swa_window.*)"
        r"|block_size",
        same(WINDOW),
    ),
    (r".*_offset", same(1)),
    (PERIODS, same(2)),
    (r"(.*_)?(d_state|ssm_state_size|state_size|time_step_rank|dt_rank)", same(8)),
    (r"n_groups|mamba_n_?groups|ngroups", same(2)),
    (r"image_size|.*_image_size", same(32)),
    (r"patch_size", same(16)),
    (r"num_position_embeddings", same(16)),
    (r"num_(image_)?(patches|query_tokens|queries)|.*_num_latents|.*seq_len(gth)?", same(16)),
)


def _num_layers(values: Mapping[str, Any]) -> set[int]:
    names = (
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
        "encoder_layers",
        "decoder_layers",
        "depth",
    )
    return {values[name] for name in names if isinstance(values.get(name), int)}


def _kinds(values: Sequence[Any]) -> list[Any]:
    """Each kind of layer in its order of appearance."""
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _tiny_layers(values: Mapping[str, Any], lengths: set[int]) -> int:
    """Few layers where all are of a kind, more where a list or a period says which are of another."""
    lists = [value for value in values.values() if isinstance(value, list | tuple) and len(value) in lengths]
    periods = [name for name in values if re.fullmatch(PERIODS, name)]
    several = periods or any(len(_kinds(value)) > 1 for value in lists)
    return SEVERAL_LAYERS if several else FEW_LAYERS


def _scaled(sections: list[int], total: int) -> list[int]:
    """The sections of a rotary embedding, cut to `total` dimensions."""
    parts = [max(1, part * total // sum(sections)) for part in sections]
    parts[0] += total - sum(parts)
    return parts


def _rope(parameters: dict[str, Any], half_dim: int) -> dict[str, Any]:
    """Rotary parameters for a short head: its sections, and the lengths that frequencies are made for."""
    changed: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, dict):
            changed[name] = _rope(value, half_dim)
        elif name == "mrope_section":
            changed[name] = _scaled(
                list(value), int(half_dim * (parameters.get("partial_rotary_factor") or 1))
            )
        elif name in ("short_factor", "long_factor"):
            changed[name] = [1.0] * half_dim
        elif name == "original_max_position_embeddings":
            changed[name] = POSITIONS
        else:
            changed[name] = value
    return changed


def _with_sections(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters with sections for time, height and width, which some models take for granted."""
    return {"mrope_section": [2, 3, 3], **parameters}


def _token_ids(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Special tokens within the vocabulary; those that are no part of a text at its end."""
    unusual = VOCABULARY - 1
    for name, value in values.items():
        kind = re.fullmatch(r"(.*?)_?token_(id|index)", name)
        if not kind and not re.fullmatch(r"bo[ia]_token_index|eo[ia]_token_index|.*_token", name):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            continue
        if kind and kind[1] in PLAIN_TOKENS:
            yield name, PLAIN_TOKENS[kind[1]]
        elif kind and kind[1] == "decoder_start":
            # The token that it is by default: some models hide padding from themselves.
            roles = (role for role in ("pad", "eos", "bos") if values.get(f"{role}_token_id") == value)
            yield name, PLAIN_TOKENS[next(roles, "pad")]
        elif kind and kind[1] in ("forced_bos", "forced_eos"):
            yield name, {"forced_bos": 2, "forced_eos": 3}[kind[1]]
        elif value >= VOCABULARY - 20:
            yield name, unusual
            unusual -= 1


def changes(config: PreTrainedConfig, sizes: Sizes) -> dict[str, Any]:
    """What to set in a configuration of defaults to make it tiny, sub-configurations included."""
    values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    lengths = _num_layers(values)
    changed: dict[str, Any] = dict(_token_ids(values))
    layers = _tiny_layers(values, lengths)
    for name, value in values.items():
        if isinstance(value, PreTrainedConfig):
            changed[name] = {"model_type": value.model_type, **changes(value, sizes)}
        elif name in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            changed[name] = _rope(_with_sections(value) if sizes.rotary_sections else value, HEAD_DIM // 2)
        elif name in ("use_sliding_window", "sliding_window") and not value:  # off by default
            changed[name] = True if name.startswith("use") else WINDOW
        elif name == "layer_types" and value and {*value} == {FULL} and "sliding_window" in values:
            changed[name] = [FULL, SLIDING] * (layers // 2)
        elif isinstance(value, list | tuple) and len(value) in lengths and len(value) > layers:
            changed[name] = list(islice(cycle(_kinds(value)), layers))
        elif re.fullmatch(r".*_(layers|indexes|indices)", name) and isinstance(value, list | tuple) and value:
            changed[name] = list(range(1, layers, 2))[: len(value)]
        elif isinstance(value, int) and not isinstance(value, bool) and name not in changed:
            if re.fullmatch(LAYERS, name) and "shared" not in name and value > 0:
                changed[name] = min(value, layers)
                continue
            rule = next((rule for pattern, rule in RULES if re.fullmatch(pattern, name)), None)
            if rule is not None:
                changed[name] = rule(value, sizes)
        elif value is None and name in ("head_dim", "num_key_value_heads"):
            changed[name] = HEAD_DIM if name == "head_dim" else sizes.kv_heads
    return changed


def _merged(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Settings overridden by others, sub-configurations one by one."""
    merged = dict(settings)
    for name, value in others.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping) and "rope" not in name
        merged[name] = _merged(merged[name], value) if nested else value
    return merged


def tiny_config(model_type: str, sizes: Sizes) -> PreTrainedConfig:
    """The configuration; whatever transformers raises where these sizes are not its own."""
    kind = CONFIG_MAPPING[model_type]
    exception = EXCEPTIONS.get(model_type)
    settings = _merged(changes(kind(), sizes), exception.settings if exception else {})
    config = kind(**settings)
    config.architectures = [str(model_class(model_type))]
    return config
