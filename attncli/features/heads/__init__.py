"""`attn heads`."""
