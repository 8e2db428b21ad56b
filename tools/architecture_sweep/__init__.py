"""Every text architecture of transformers, tiny and random: `attn` beside its own eager attention."""
