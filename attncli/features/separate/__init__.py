"""`attn separate`."""
