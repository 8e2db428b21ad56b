"""The server of `attn serve`: who is answered, one question after the other, over HTTP."""
