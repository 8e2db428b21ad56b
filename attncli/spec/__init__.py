"""The settings of each experiment: what may be asked, and reading it with errors that point to the place."""

from attncli.spec.attention import CrossSpec, MultiheadSpec, SelfSpec
from attncli.spec.fields import Spec
from attncli.spec.heads import HeadsSpec
from attncli.spec.lessons import AverageSpec, NormSpec, ScaleDemoSpec
from attncli.spec.pitfalls import PitfallsSpec

SPECS: dict[str, type[Spec]] = {
    spec.experiment: spec
    for spec in (
        AverageSpec,
        SelfSpec,
        MultiheadSpec,
        CrossSpec,
        ScaleDemoSpec,
        NormSpec,
        HeadsSpec,
        PitfallsSpec,
    )
}

__all__ = ["SPECS", "Spec"]
