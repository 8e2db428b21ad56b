"""Computations on tensors: the attention of a layer, its visibility, the engines, and statistics."""
