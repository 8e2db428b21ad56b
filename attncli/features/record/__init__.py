"""`attn record`."""
