"""A model's output without some heads, next to the output with all: exactly, and by gradients of gates."""

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
from attncli.statistics.divergence import mean_divergence, mean_loss, relative_change

EFFECTS = ("loss", "kl", "probability", "logit_difference", "output_change", "approximate")
"""In the order of reports."""
LOWERED = ("probability", "logit_difference")
"""Effects where a number below zero says that the head helps."""
FLOAT_BYTES = 4
KEPT_PER_SCORE, KEPT_PER_ENTRY = 4, 30
"""Numbers that a layer keeps for the backward pass, per score of a head and per entry of a token's vector."""

Effects = dict[str, float]


class Baseline:
    """The output with all heads, and how each output without some compares to it.

    loss, in nats per token; of an answer its probability, and by how much its logit is above that of the
    token it is compared with. Their effects are differences: without the heads, minus with them. kl is
    sum p ln(p / q) of the predictions with all heads (p) and without (q); output_change, of a model
    without a head, ||y' - y|| / ||y||.
    """

    def __init__(self, output: Float[Tensor, "place vocabulary_or_dim"], reading: Predicted) -> None:
        self.reading = reading
        self.output = _wide(output)
        self.expected = self.output.log_softmax(dim=-1)
        self.numbers = self._numbers(self.output, self.expected) if reading.num_places else {}

    def _numbers(
        self, output: Float[Tensor, "place vocabulary"], log_probabilities: Float[Tensor, "place vocabulary"]
    ) -> Effects:
        targets = self.reading.targets.to(output.device)
        numbers = {"loss": float(mean_loss(log_probabilities, targets))}
        if self.reading.is_answer:
            numbers["probability"] = float(log_probabilities[0, targets[0]].exp())
        if self.reading.against is not None:
            numbers["logit_difference"] = float(output[0, targets[0]] - output[0, self.reading.against])
        return numbers

    def effects(self, outputs: Float[Tensor, "copy place vocabulary_or_dim"]) -> list[Effects]:
        """Those of each output, one after the other: a single copy of the predictions is in memory."""
        return [self._effects(_wide(output)) for output in outputs]

    def _effects(self, output: Float[Tensor, "place vocabulary_or_dim"]) -> Effects:
        if not self.numbers:
            return {"output_change": float(relative_change(self.output, output))}
        log_probabilities = output.log_softmax(dim=-1)
        numbers = self._numbers(output, log_probabilities)
        changes = {name: number - self.numbers[name] for name, number in numbers.items()}
        divergence = float(mean_divergence(self.expected, log_probabilities))
        return {"loss": changes.pop("loss"), "kl": divergence, **changes}


def _wide(output: Tensor) -> Tensor:
    """Half precision as float32."""
    return output.to(torch.promote_types(output.dtype, torch.float32))


def gate_gradients(pretrained: Pretrained, reading: Predicted) -> list[Float[Tensor, " head"]]:
    """By call, |d loss / d gate| of one text, where a gate of 1 multiplies each head's output: Michel et al.
    2019 (1905.10650), equation 2.
    """
    gates: list[Tensor] = []

    def gated(layer: CapturedLayer) -> Tensor:
        assert isinstance(layer.attention, AttentionLayer)
        output = attend(layer.attention)
        gates.append(torch.ones_like(output[:1, :, :1, :1], requires_grad=True))
        return output * gates[-1]

    model, inputs = pretrained.whole, pretrained.inputs([reading])
    check_computed_here(model, inputs)
    _refuse_what_does_not_fit(pretrained, reading)
    with torch.enable_grad():
        logits = run_model(model, inputs, gated)["logits"][0, reading.places]
        loss = mean_loss(logits.float().log_softmax(dim=-1), reading.targets.to(logits.device))
    gradients = torch.autograd.grad(loss, gates)
    return [gradient.flatten().abs().double().cpu() for gradient in gradients]


def _refuse_what_does_not_fit(pretrained: Pretrained, reading: Predicted) -> None:
    """UserError where the backward pass needs more of the forward pass than fits into memory."""
    config = pretrained.model.config.get_text_config()
    num_tokens, layers = max(reading.counts), pretrained.num_layers
    scores = num_tokens**2 * getattr(config, "num_attention_heads", 1) * KEPT_PER_SCORE
    vectors = num_tokens * getattr(config, "hidden_size", 1) * KEPT_PER_ENTRY
    logits = num_tokens * config.vocab_size * KEPT_PER_SCORE
    needed = FLOAT_BYTES * (layers * (scores + vectors) + logits)
    refuse_bytes("ablate", needed, "fewer tokens, or leave out --approximate")
