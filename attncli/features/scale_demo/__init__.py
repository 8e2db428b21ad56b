"""`attn scale-demo`."""
