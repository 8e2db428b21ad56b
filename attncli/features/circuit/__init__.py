"""`attn circuit`."""
