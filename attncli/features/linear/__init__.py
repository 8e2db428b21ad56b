"""Layers without a softmax whose state is a matrix: gated delta nets, Mamba, lightning attention."""
