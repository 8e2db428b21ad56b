"""`attn norm`."""
