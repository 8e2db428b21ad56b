"""What happens to scores between query · key and the softmax, as the spec or the model's layer says."""

from dataclasses import dataclass

import numpy as np

from attncli.experiments.explained.row import Row
from attncli.experiments.explained.terms import Numbers
from attncli.mechanisms.dot_product_attention import scale_factors
from attncli.spec.attention import AttentionSpec

BIASES = ("bias", "position_bias")


@dataclass(frozen=True)
class Rule:
    """finished = (softcap(factor score) + bias) / temperature; `bias` names a tensor of the report."""

    factor: float
    softcap: float | None
    bias: str | None
    temperature: float
    sink: float | None

    @property
    def is_scale_alone(self) -> bool:
        """Whether nothing follows the scale."""
        return self.softcap is None and self.bias is None and self.temperature == 1

    @property
    def softmax_sink(self) -> float | None:
        """The sink's logit as the softmax takes it."""
        return None if self.sink is None else self.sink / self.temperature

    def scaled(self, row: Row) -> Numbers:
        """factor · score, for every key."""
        return row.raw_scores() * self.factor

    def capped(self, row: Row) -> Numbers:
        """The scaled scores, below the cap where there is one."""
        scaled = self.scaled(row)
        return scaled if self.softcap is None else self.softcap * np.tanh(scaled / self.softcap)

    def biased(self, row: Row) -> Numbers:
        """The capped scores with what is added to them."""
        return self.capped(row) if self.bias is None else self.capped(row) + row.of_query(self.bias)

    def finished(self, row: Row) -> Numbers:
        """The scores as the mask finds them."""
        return self.biased(row) / self.temperature


def rule_of(spec: AttentionSpec, row: Row) -> Rule:
    """The rule of a row: a model's layer has its own, which its report holds."""
    bias = next((name for name in BIASES if name in row.tensors), None)
    if spec.model is not None:
        layer = row.report.numbers("score_rule")
        return Rule(layer["scale"] or 0.0, layer["softcap"], bias, 1.0, layer["sink"])
    each, product = scale_factors(spec.scale, row.of_query("query").shape[-1])
    return Rule(each * each * product, spec.softcap, bias, spec.temperature, spec.sink)
