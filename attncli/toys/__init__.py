"""Attention with sampled weights, its variants and averages, and explanations of how they are computed."""
