"""A tiny randomly initialised model of each architecture, made on the spot: no download."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

VOCABULARY = 61
HIDDEN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY}
USUAL = {**HIDDEN, "intermediate_size": 40}
GROUPED = {**USUAL, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1}
SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Architecture:
    """The name of a config and of a model in transformers, the config's settings, and what is special."""

    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    special: str = ""

    def build(self) -> PreTrainedModel:
        """The model, seeded, its parameters larger than usual so that attention is not almost uniform."""
        config = getattr(transformers, self.model.removesuffix("Model") + "Config")(**self.settings)
        torch.manual_seed(7)
        model: PreTrainedModel = getattr(transformers, self.model)(config).eval().requires_grad_(False)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(8)
                else:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        return model


ARCHITECTURES = {
    "BERT": Architecture("BertModel", USUAL),
    "RoBERTa": Architecture("RobertaModel", USUAL, "positions start after the padding index"),
    "DistilBERT": Architecture(
        "DistilBertModel",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "vocab_size": VOCABULARY},
    ),
    "ELECTRA": Architecture("ElectraModel", {**USUAL, "embedding_size": 16}),
    "GPT-2": Architecture("GPT2Model", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY}),
    "GPT-NeoX": Architecture("GPTNeoXModel", USUAL, "rotary positions"),
    "OPT": Architecture("OPTModel", {**HIDDEN, "ffn_dim": 40, "word_embed_proj_dim": 32}),
    "Llama": Architecture("LlamaModel", GROUPED, "grouped-query"),
    "Mistral": Architecture(
        "MistralModel", {**GROUPED, "sliding_window": 5}, "grouped-query, sliding window"
    ),
    "Qwen3": Architecture("Qwen3Model", GROUPED, "grouped-query, normalised query and key"),
    "Gemma 2": Architecture(
        "Gemma2Model",
        {**GROUPED, "sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 4},
        "grouped-query, softcap, sliding window in every other layer",
    ),
    "GPT-OSS": Architecture(
        "GptOssModel",
        {
            **GROUPED,
            "sliding_window": 5,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "experts_implementation": "eager",
        },
        "grouped-query, a sink (rows sum to less than one), sliding window in every other layer",
    ),
    "Phi-3": Architecture(
        "Phi3Model", {**USUAL, "num_key_value_heads": 2, "pad_token_id": 0}, "grouped-query"
    ),
    "BLOOM": Architecture(
        "BloomModel", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY}, "ALiBi"
    ),
    "T5": Architecture(
        "T5Model",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 40,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": VOCABULARY,
            "initializer_factor": 0.35,  # it scales no scores: beyond 100, float32 itself is 1e-4 off
        },
        "encoder, decoder, cross; relative position bias",
    ),
    "BART": Architecture("BartModel", SEQ2SEQ, "encoder, decoder, cross"),
    "Marian": Architecture("MarianModel", SEQ2SEQ, "encoder, decoder, cross"),
    "DeBERTa-v2": Architecture(
        "DebertaV2Model",
        {**USUAL, "relative_attention": True, "position_buckets": 8, "pos_att_type": "p2c|c2p"},
        "disentangled attention",
    ),
    "ModernBERT": Architecture(
        "ModernBertModel",
        {
            **USUAL,
            "local_attention": 6,
            "layer_types": ["full_attention", "sliding_attention"],
            "pad_token_id": 0,
        },
        "sliding window in both directions in some layers",
    ),
    "ViT": Architecture(
        "ViTModel",
        {k: v for k, v in USUAL.items() if k != "vocab_size"} | {"image_size": 12, "patch_size": 4},
        "patches instead of tokens: `--image`",
    ),
    "BigBird": Architecture("BigBirdModel", USUAL, "up to 704 tokens, where it attends fully"),
    "Mamba": Architecture(
        "MambaModel", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
    ),
}


def random_inputs(model: PreTrainedModel, num_tokens: int = 13) -> dict[str, Tensor]:
    """Random tokens (and fewer for a decoder), or a random image."""
    generator = torch.Generator().manual_seed(3)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(1, 3, 12, 12, generator=generator)}
    tokens = torch.randint(3, VOCABULARY, (1, num_tokens), generator=generator)
    return {
        "input_ids": tokens,
        **({"decoder_input_ids": tokens[:, :7]} if model.config.is_encoder_decoder else {}),
    }
