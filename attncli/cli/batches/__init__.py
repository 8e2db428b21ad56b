"""`attn batch`, and the commands that read its stores: `attn results` and `attn export`."""
