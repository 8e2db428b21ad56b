"""`attn generate`."""
