"""`attn heads --pairs` and `attn heads --relations`."""
