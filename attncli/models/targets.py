"""The tokens by which a model's output is judged: an answer, or a token that is compared with another one."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn
from transformers import DynamicCache

from attncli.models.pretrained import Pretrained


@dataclass(frozen=True)
class Target:
    """The tokens of an answer, after a text or at its mask.

    `against` is the token with which a one-token answer is compared. `cache` is the model's cache of the
    prompt if the model itself wrote the answer. `notes` describe how the answer became tokens.
    """

    ids: list[int]
    against: int | None = None
    cache: DynamicCache | None = None
    notes: tuple[str, ...] = ()

    @property
    def compared_ids(self) -> list[int]:
        """The answer's tokens, followed by the token with which they are compared."""
        return self.ids if self.against is None else [*self.ids, self.against]

    def logit(self, logits: Float[Tensor, " vocabulary"]) -> float:
        """Return the logit of the answer's first token, minus the logit of `against`."""
        return float(self._difference(logits[self.compared_ids]))

    def direction(self, unembedding: nn.Linear) -> tuple[Float[Tensor, " embed"], float]:
        """Return the vector and bias, in float64, with logit = x · vector + bias for an x that W_U reads."""
        vector = self._difference(unembedding.weight.detach()[self.compared_ids].double())
        bias = unembedding.bias
        return vector, 0.0 if bias is None else float(self._difference(bias[self.compared_ids]))

    def _difference(self, values: Float[Tensor, "compared ..."]) -> Float[Tensor, "..."]:
        return values[0] if self.against is None else values[0] - values[-1]


def token_text(pretrained: Pretrained, token: int) -> str:
    """Return the text of a token or, for a special token, its name in the vocabulary."""
    return pretrained.text_of([token]) or pretrained.labels([token])[0]
