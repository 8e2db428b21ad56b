"""A model's output without some heads, in numbers next to the output with all of them."""

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.experiments.ablate.predicted import Predicted
from attncli.statistics.divergence import mean_divergence, mean_loss, relative_change

EFFECTS = ("loss", "kl", "probability", "logit_difference", "output_change", "approximate")
"""In the order of reports."""
LOWERED = ("probability", "logit_difference")
"""Effects where a number below zero says that the head helps."""

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
        self,
        output: Float[Tensor, "place vocabulary"],
        log_probabilities: Float[Tensor, "place vocabulary"],
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
