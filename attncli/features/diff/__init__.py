"""`attn diff`."""
