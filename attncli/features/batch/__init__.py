"""`attn batch`."""
