"""`attn lesson`."""
