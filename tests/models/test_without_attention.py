"""Models that mix tokens without attention are refused, by the classes of their modules."""

import pytest
import torch
import transformers

from attncli.errors import UserError
from attncli.models.architectures import has_attention
from attncli.models.loading import check_has_attention

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
WITHOUT = {
    "Mamba": {**SMALL, "state_size": 4},
    "Mamba2": {**SMALL, "state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1},
    "FalconMamba": {**SMALL, "state_size": 4},
    "Rwkv": SMALL,
    "FNet": {**SMALL, "intermediate_size": 16},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8], "depths": [1]},
    "ConvNext": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
}
WITH = {
    "Llama": {**SMALL, "num_attention_heads": 2, "intermediate_size": 16},
    "XLNet": {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16, "vocab_size": 32},
    "T5": {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 16, "vocab_size": 32},
}


def built(name: str, settings: dict[str, object]) -> transformers.PreTrainedModel:
    with torch.device("meta"):
        model: transformers.PreTrainedModel = transformers.AutoModel.from_config(
            getattr(transformers, f"{name}Config")(**settings)
        )
    return model


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_without_attention_is_reported(name: str) -> None:
    model = built(name, WITHOUT[name])
    with pytest.raises(UserError, match="has no attention"):
        check_has_attention(name, model)


@pytest.mark.parametrize("name", WITH)
def test_a_model_with_attention_is_read(name: str) -> None:
    assert has_attention(built(name, WITH[name]))
