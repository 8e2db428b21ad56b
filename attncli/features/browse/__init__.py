"""`attn browse`."""
