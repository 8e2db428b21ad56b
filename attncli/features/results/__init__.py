"""`attn results`."""
