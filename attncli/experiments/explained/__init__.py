"""Following a computation by hand: each experiment's report -> its steps, from the report's own tensors."""

from collections.abc import Callable
from importlib import import_module

from attncli.report import Report, Step
from attncli.spec import Spec

# The module of each experiment's steps; its function steps(spec, report) gives them.
EXPLANATIONS = {
    "average": "attncli.experiments.explained.average",
    "self": "attncli.experiments.explained.attention",
    "multihead": "attncli.experiments.explained.attention",
    "cross": "attncli.experiments.explained.attention",
    "scale-demo": "attncli.experiments.explained.scale_demo",
    "norm": "attncli.experiments.explained.norm",
}


def explained_steps(spec: Spec, report: Report) -> tuple[Step, ...]:
    """The steps of a finished report; none where the spec does not ask to explain."""
    if not getattr(spec, "explain", False):
        return ()
    steps: Callable[[Spec, Report], tuple[Step, ...]] = import_module(EXPLANATIONS[spec.experiment]).steps
    return steps(spec, report)
