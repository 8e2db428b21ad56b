"""Attention with sampled weights, its variants and averages, and explanations of their computation."""
