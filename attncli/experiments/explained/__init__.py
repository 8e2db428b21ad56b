"""An explanation: an experiment's report -> its steps, from the report's own tensors."""

from importlib import import_module

from attncli.report import Report, Step
from attncli.spec.explain import ExplainSpec
from attncli.spec.fields import Spec


def explained_steps(spec: Spec, report: Report) -> tuple[Step, ...]:
    """The steps of a finished report; none where the spec does not ask to explain."""
    if not isinstance(spec, ExplainSpec) or not spec.explain:
        return ()
    steps: tuple[Step, ...] = import_module(spec.explained_by).steps(spec, report)
    return steps
