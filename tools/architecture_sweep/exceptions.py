"""Settings of single architectures that no general rule gives, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FULL_AND_SLIDING = ["full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Special:
    """Settings on top of the general rules."""

    reason: str
    settings: Mapping[str, Any]


QWEN4_INDEX = {
    "indexer_compress_ratio": 2,
    "indexer_budget": 8,
    "indexer_head_dim": 16,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
}

DOTS3_SLIDING = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 32,
    "swa_kv_lora_rank": 32,
    "swa_head_dim": 24,
    "swa_qk_nope_head_dim": 8,
    "swa_v_head_dim": 12,
}

SMALL_STAGES = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2, "hidden_size": 32}
SMALL_PARTS = [[32, 64], [64, 32], [64, 64]]
NO_WINDOW = {"text_config": {"sliding_window": None}}
NO_TYPES = "the defaults name no kinds of layers"
ONE_TYPE = "the defaults have one kind of layers"
MINIMAX_SPARSE = {"layer_types": ["full_attention", "minimax_m3_sparse"]}
NO_DROPOUT = "the defaults lack a dropout"
WIDTH = "the size of one part must be that of another"

EXCEPTIONS: dict[str, Special] = {
    "bamba": Special("the defaults name no layer with attention", {"attn_layer_indices": [1]}),
    "big_bird": Special(
        "few enough blocks, so that 100 tokens are attended sparsely, and 19 fully",
        {"block_size": 4, "num_random_blocks": 1},
    ),
    "bigbird_pegasus": Special("as BigBird", {"block_size": 4, "num_random_blocks": 1}),
    "chameleon": Special("an image token must be named", {"vocabulary_map": {"<image>": 90}}),
    "cohere_compass": Special(
        NO_TYPES,
        {
            "text_config": {
                "layer_types": FULL_AND_SLIDING,
                "rope_parameters": {
                    kind: {"rope_type": "default", "rope_theta": 1e4} for kind in FULL_AND_SLIDING
                },
            }
        },
    ),
    "cohere_compass_text": Special(
        NO_TYPES,
        {
            "layer_types": FULL_AND_SLIDING,
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": 1e4} for kind in FULL_AND_SLIDING
            },
        },
    ),
    "dbrx": Special(
        "the defaults lack the base of the rotation and a bound",
        {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}},
    ),
    "deberta-v2": Special(
        "plain attention is the default",
        {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["c2p", "p2c"]},
    ),
    "deepseek_ocr2": Special(
        NO_TYPES, {"text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}}
    ),
    **{
        name: Special("each stage has its heads", SMALL_STAGES)
        for name in ("donut-swin", "maskformer-swin", "swin", "swinv2")
    },
    "dots1": Special(
        "the defaults name no number of experts",
        {
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
        },
    ),
    "deepseek_v2": Special("the defaults name no experts for a token", {"num_experts_per_tok": 2}),
    "diffusion_gemma": Special(
        "the defaults name no experts",
        {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}},
    ),
    "dots3_note": Special(
        "sliding layers have sizes of their own, and parts share a width",
        {
            "text_config": DOTS3_SLIDING,
            "vision_config": {"adapter_in_dim": 64, "adapter_out_dim": 64},
            "audio_config": {"adapter_input_size": 64, "adapter_out_dim": 64},
        },
    ),
    "dots3_note_text": Special("sliding layers have sizes of their own", DOTS3_SLIDING),
    "ernie4_5_vl_moe": Special(
        "height and width turn alike",
        {
            "text_config": {
                "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [3, 3, 2]}
            }
        },
    ),
    "falcon_h1": Special(WIDTH, {"mamba_d_ssm": 64, "mamba_d_head": 16}),
    "florence2": Special(
        "the image part has its sizes in lists",
        {
            "vision_config": {
                "embed_dim": [16] * 4,
                "num_heads": [2] * 4,
                "num_groups": [2] * 4,
                "depths": [1] * 4,
            }
        },
    ),
    "granite4_vision": Special(
        "the defaults map no layers", {"deepstack_layer_map": [[-1, 0]], "downsample_rate": "1/2"}
    ),
    "emu3": Special("tokens must be named", {"vocabulary_map": {"<|extra_200|>": 89, "<image>": 90}}),
    "esm": Special(
        "the defaults name no vocabulary", {"vocab_size": 100, "mask_token_id": 98, "pad_token_id": 0}
    ),
    "falcon": Special("rotary positions, as in 7B and 40B", {"alibi": False, "multi_query": True}),
    "fun_asr_nano": Special(WIDTH, {"adaptor_config": {"intermediate_size": 16}}),
    "gemma3": Special("a picture is four tokens", {"mm_tokens_per_image": 4}),
    "gemma3n_text": Special(
        "of each kind of layers one has keys of its own",
        {"layer_types": FULL_AND_SLIDING * 2, "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0]},
    ),
    "gradium_phonon_tts": Special(WIDTH, {"flow_head_config": {"condition_dim": 64}}),
    "granitemoehybrid": Special(
        "the defaults name no layer with attention",
        {"layer_types": ["linear_attention", "full_attention"]},
    ),
    **{
        name: Special("parts of a picture are as small as the model", {"image_grid_pinpoints": SMALL_PARTS})
        for name in ("llava_next", "llava_next_video", "llava_onevision")
    },
    "layoutlmv3": Special("coordinates and shapes share the width", {"coordinate_size": 12, "shape_size": 8}),
    "lfm2": Special(ONE_TYPE, {"layer_types": ["conv", "full_attention"] * 2}),
    "lfm2_vl": Special(ONE_TYPE, {"text_config": {"layer_types": ["conv", "full_attention"] * 2}}),
    "lfm2_moe": Special(NO_TYPES, {"layer_types": ["conv", "full_attention"]}),
    "lilt": Special("the width is cut by six", {"hidden_size": 48}),
    "muse_spark": Special(
        "the audio part has its sizes in lists",
        {"audio_config": {"hidden_sizes": [16] * 4, "depths": [1] * 4}},
    ),
    "t5gemma2_encoder": Special(NO_DROPOUT, {"text_config": {"dropout_rate": 0.0}}),
    "mamba2": Special(WIDTH, {"num_heads": 8, "head_dim": 16, "hidden_size": 64}),
    "minimax_m3_vl": Special(ONE_TYPE, {"text_config": MINIMAX_SPARSE}),
    "minimax_m3_vl_text": Special(ONE_TYPE, MINIMAX_SPARSE),
    "mistral4": Special("a half of each head turns", {"qk_nope_head_dim": 16, "head_dim": 32}),
    "molmo2": Special(
        "the adapter names layers of the image part", {"adapter_config": {"vision_feature_layer": [-1, -2]}}
    ),
    "neomme": Special(
        "of sliding layers each second one has a longer window",
        {
            "per_layer_config": {
                i: {"sliding_window": window} for i, window in ((1, None), (2, 11), (3, None))
            }
        },
    ),
    "nystromformer": Special(
        "landmarks that are all tokens: other texts than of one length fail",
        {"segment_means_seq_len": 8, "num_landmarks": 8},
    ),
    "pix2struct": Special(
        "a patch is as many numbers as it has", {"vision_config": {"patch_embed_hidden_size": 768}}
    ),
    "pocket_tts": Special(WIDTH, {"flow_head_config": {"condition_dim": 64}}),
    "qwen2_5_vl": Special("a window holds four patches", {"vision_config": {"window_size": 56}}),
    "qwen2_5_omni_thinker": Special("the defaults lack a token", {"vision_start_token_id": 90}),
    "qwen4_exp": Special("the defaults name no index", {"text_config": QWEN4_INDEX}),
    "qwen4_exp_text": Special("the defaults name no index", QWEN4_INDEX),
    "step3p7": Special("the defaults name no window", {"text_config": {"layer_types": FULL_AND_SLIDING * 2}}),
    "qwen3_vl_moe": Special("its cache would heed a window, and its mask not", NO_WINDOW),
    "qwen3_omni_moe_thinker": Special("the defaults lack a token", {"vision_start_token_id": 90}),
    "recurrent_gemma": Special("the third layer has attention", {"num_hidden_layers": 3}),
    "reformer": Special(
        "positions are a product, their vectors a sum",
        {
            "axial_pos_shape": [8, 20],
            "axial_pos_embds_dim": [16, 48],
            "attention_head_size": 16,
            "attn_layers": ["local", "lsh"] * 2,
            "local_attn_chunk_length": 10,
            "lsh_attn_chunk_length": 10,
        },
    ),
    "zaya": Special(ONE_TYPE, {"layer_types": ["hybrid", "hybrid_sliding"]}),
    "xmod": Special("a language must be named", {"default_language": "en_XX"}),
    "zamba": Special(
        "attention is twice as wide",
        {
            "attention_hidden_size": 128,
            "attention_head_dim": 32,
            "layers_block_type": ["linear_attention", "hybrid"] * 2,
        },
    ),
    "zamba2": Special(
        "attention is twice as wide",
        {
            "attention_hidden_size": 128,
            "attention_head_dim": 32,
            "kv_channels": 16,
            "mamba_headdim": 16,
            "n_mamba_heads": 8,
            "hybrid_layer_ids": [1, 3],
            "layers_block_type": ["linear_attention", "hybrid"] * 2,
        },
    ),
}
