"""`attn heads --sound FILE --words` and `attn heads --find-heads`."""
