"""What happens to scores between the scale and the weights, in the one order that all models share."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from attncli.mechanisms.sink import logsumexp_with_sink, softmax_with_sink
from attncli.mechanisms.softcap import softcapped


@dataclass(frozen=True)
class ScoreRules:
    """score = (softcap(scale query . key) + bias) / temperature; weights = softmax with the sink.

    Temperature divides all that the softmax takes, the sink too: toward 0 a row becomes one-hot (or empty),
    toward infinity uniform (Hinton, Vinyals & Dean 2015, 1503.02531, section 2).
    """

    softcap: float | None = None
    bias: Float[Tensor, "*#heads query key"] | None = None
    temperature: float = 1.0
    sink: Float[Tensor, "*#heads"] | None = None

    def finished(self, scaled: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query key"]:
        """The scores as the softmax takes them, from those that are scaled."""
        if self.softcap is not None:
            scaled = softcapped(scaled, self.softcap)
        if self.bias is not None:
            scaled = scaled + self.bias
        return scaled if self.temperature == 1.0 else scaled / self.temperature

    def logsumexp(self, scores: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query"]:
        """The logarithm of the softmax's denominator for finished scores."""
        sink = self.softmax_sink
        return scores.logsumexp(dim=-1) if sink is None else logsumexp_with_sink(scores, sink)

    def weights(self, scores: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query key"]:
        """The weights for finished scores, hidden ones at -inf."""
        sink = self.softmax_sink
        return scores.softmax(dim=-1) if sink is None else softmax_with_sink(scores, sink)

    @property
    def softmax_sink(self) -> Float[Tensor, "*heads"] | None:
        """The sink's logit as the softmax takes it."""
        return None if self.sink is None else self.sink / self.temperature


PLAIN = ScoreRules()
