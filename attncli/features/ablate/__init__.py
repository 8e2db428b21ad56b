"""`attn ablate`."""
