"""Tiny models whose states decay as those of trained models do."""

import torch
from transformers import PreTrainedModel

from .folders import tiny_model


def decaying(name: str) -> PreTrainedModel:
    """The tiny model of an architecture; half of a state is left after 2 to 200 tokens."""
    return with_decay(tiny_model(name))


def with_decay(model: PreTrainedModel) -> PreTrainedModel:
    """The model with other decays."""
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.data.uniform_(-2, 1, generator=generator)
        if name.endswith(("dt_bias", "dt_proj.bias")):
            parameter.data.uniform_(-4, -1, generator=generator)
    return model
