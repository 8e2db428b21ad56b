"""The results of norm: the moments of a feature and of an example before and after each norm."""

from dataclasses import dataclass

from attncli.records.columns import Record, Result, column, group
from attncli.records.meanings import Meaning


class FirstMoments(Record):
    """The moments of feature 0 over the batch, and of example 0 over its features."""

    feature0_mean: float | None = column(about="Mean of feature 0 over the batch")
    feature0_std: float | None = column(about="Unbiased standard deviation of feature 0 over the batch")
    example0_mean: float | None = column(about="Mean of example 0 over its features")
    example0_std: float | None = column(about="Unbiased standard deviation of example 0 over its features")


AGREEMENT = {
    name: Meaning(
        f"Largest difference from torch's {label}; none if torch divides by another number", label=label
    )
    for name, label in (
        ("batch_norm", "batch norm"),
        ("batch_norm_eval", "batch norm with running moments"),
        ("layer_norm", "layer norm"),
        ("rms_norm", "RMS norm"),
    )
}


class NormDifferences(Record, shared=AGREEMENT):
    """The largest differences from torch's own layers."""

    batch_norm: float | None = column(is_needed=False)
    batch_norm_eval: float | None = column(is_needed=False)
    layer_norm: float | None = column(is_needed=False)
    rms_norm: float | None = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class NormEffects(Result):
    """The moments of the first feature and the first example, before and after each norm."""

    input: FirstMoments = group(label="Input")
    batch_norm: FirstMoments | None = group(label="Batch norm", is_needed=False)
    batch_norm_eval: FirstMoments | None = group(label="Batch norm with running moments", is_needed=False)
    layer_norm: FirstMoments | None = group(label="Layer norm", is_needed=False)
    rms_norm: FirstMoments | None = group(label="RMS norm", is_needed=False)
    agreement_with_torch: NormDifferences | None = group(label="Agreement with torch", is_needed=False)

    def states(self) -> dict[str, FirstMoments]:
        """The moments of the input, and of the output of each computed norm, by name."""
        states = {
            "input": self.input,
            "batch_norm": self.batch_norm,
            "batch_norm_eval": self.batch_norm_eval,
            "layer_norm": self.layer_norm,
            "rms_norm": self.rms_norm,
        }
        return {name: moments for name, moments in states.items() if moments is not None}
