"""`attn heads --examples`."""
