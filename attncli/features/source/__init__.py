"""`attn source`."""
