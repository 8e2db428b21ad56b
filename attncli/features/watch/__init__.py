"""`attn watch`."""
