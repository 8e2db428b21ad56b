"""How much the loss depends on each head, for all heads in one backward pass through the model."""

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.differentiable import attend
from attncli.attention.layer import AttentionLayer
from attncli.experiments.ablate.predicted import Predicted
from attncli.inputs.capture.capture import check_computed_here, run_model
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.inputs.models.pretrained import Pretrained
from attncli.memory import refuse_bytes
from attncli.statistics.divergence import mean_loss

FLOAT_BYTES = 4
KEPT_PER_SCORE, KEPT_PER_ENTRY = 4, 30
"""Numbers that a layer keeps for the backward pass, per score of a head and per entry of a token's vector."""


def gate_gradients(pretrained: Pretrained, reading: Predicted) -> list[Float[Tensor, " head"]]:
    """By call, |d loss / d gate| of one text, where a gate of 1 multiplies each head's output: Michel et al.
    2019 (1905.10650), equation 2.
    """
    _refuse_what_does_not_fit(pretrained, reading)
    gates: list[Tensor] = []

    def gated(layer: CapturedLayer) -> Tensor:
        assert isinstance(layer.attention, AttentionLayer)
        output = attend(layer.attention)
        gates.append(torch.ones_like(output[:1, :, :1, :1], requires_grad=True))
        return output * gates[-1]

    model, inputs = pretrained.whole, pretrained.inputs([reading])
    check_computed_here(model, inputs)
    with torch.enable_grad():
        logits = run_model(model, inputs, gated)["logits"][0, reading.places]
        loss = mean_loss(logits.float().log_softmax(dim=-1), reading.targets.to(logits.device))
    gradients = torch.autograd.grad(loss, gates)
    return [gradient.flatten().abs().double().cpu() for gradient in gradients]


def _refuse_what_does_not_fit(pretrained: Pretrained, reading: Predicted) -> None:
    """UserError where the backward pass needs more of the forward pass than fits into memory."""
    config = pretrained.model.config.get_text_config()
    num_tokens, layers = max(reading.counts), getattr(config, "num_hidden_layers", 1)
    scores = num_tokens**2 * getattr(config, "num_attention_heads", 1) * KEPT_PER_SCORE
    vectors = num_tokens * getattr(config, "hidden_size", 1) * KEPT_PER_ENTRY
    logits = num_tokens * config.vocab_size * KEPT_PER_SCORE
    needed = FLOAT_BYTES * (layers * (scores + vectors) + logits)
    refuse_bytes("ablate", needed, "fewer tokens, or leave out --approximate")
