"""The results of norm: the moments of a feature and of an example before and after each norm."""

from dataclasses import dataclass

from attncli.records.columns import Record, Result, column, group


class FirstMoments(Record):
    """The mean and unbiased std of feature 0 over the batch, and of example 0 over its features."""

    feature0_mean: float | None
    feature0_std: float | None
    example0_mean: float | None
    example0_std: float | None


class NormDifferences(Record):
    """The largest differences from torch's own layers; None if torch divides by a different number."""

    batch_norm: float | None = column(is_needed=False)
    batch_norm_eval: float | None = column(is_needed=False)
    layer_norm: float | None = column(is_needed=False)
    rms_norm: float | None = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class NormEffects(Result):
    """The moments of the first feature and the first example, before and after each norm."""

    input: FirstMoments = group()
    batch_norm: FirstMoments | None = group(is_needed=False)
    batch_norm_eval: FirstMoments | None = group(is_needed=False)
    layer_norm: FirstMoments | None = group(is_needed=False)
    rms_norm: FirstMoments | None = group(is_needed=False)
    agreement_with_torch: NormDifferences | None = group(is_needed=False)

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
