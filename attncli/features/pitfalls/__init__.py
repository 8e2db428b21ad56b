"""`attn pitfalls`."""
