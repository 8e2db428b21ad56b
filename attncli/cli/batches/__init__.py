"""`attn batch`, and what is made of its stores: `attn results` and `attn export`."""
