"""Explanations: steps(spec, report) gives the steps of a report, from its own tensors."""
