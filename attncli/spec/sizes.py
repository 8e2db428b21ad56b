"""Bytes that a number takes at the peak, from scores to a printed report, measured and rounded up."""

BYTES_PER_WEIGHT = 80
BYTES_PER_VECTOR_ENTRY = 80
BYTES_PER_PARAMETER = 8
BYTES_PER_TOP_KEY = 40
MAX_DENSE_BYTES = 64 * 2**20
"""Of weights in float32: larger matrices are streamed."""
