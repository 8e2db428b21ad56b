"""Tensors to numbers: one attention layer, who sees whom, the engines, and the statistics."""
