"""`attn average`."""
