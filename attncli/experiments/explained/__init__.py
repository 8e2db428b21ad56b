"""An explanation: steps(spec, report) -> its steps, from the report's own tensors."""
