"""`attn why`."""
