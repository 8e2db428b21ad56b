"""`attn cache`: losses with a smaller cache, per head and per policy."""
