"""`attn show`."""
