"""`attn self`, `attn multihead` and `attn cross`: attention of sentences."""
