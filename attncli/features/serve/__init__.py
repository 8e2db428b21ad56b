"""`attn serve`."""
