"""What happens to scores between the scale and the weights, in the one order that all models share."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class ScoreRules:
    """score = (softcap(scale query . key) + bias) / temperature; a sink joins the softmax's denominator.

    softcap c: c tanh(score / c), almost the score where it is small, never beyond the cap (Gemma 2,
    2408.00118, section 2; after Bello et al. 2016, 1611.09940). Temperature divides all that the softmax
    takes, the sink too: toward 0 a row becomes one-hot (or empty), toward infinity uniform (Hinton, Vinyals
    & Dean 2015, 1503.02531, section 2). sink: a logit outside the keys, so that a query may attend to
    nothing (GPT-OSS, 2508.10925; after Miller 2023, Attention is off by one, and Xiao et al. 2023,
    2309.17453).
    """

    softcap: float | None = None
    bias: Float[Tensor, "#text #head #query #key"] | None = None
    temperature: float = 1.0
    sink: Float[Tensor, "#text #head"] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether finished scores are scaled scores, but for the temperature."""
        return self.softcap is None and self.bias is None

    @property
    def softmax_sink(self) -> Float[Tensor, "#text #head"] | None:
        """The sink's logit as the softmax takes it."""
        return None if self.sink is None else self.sink / self.temperature


PLAIN = ScoreRules()
