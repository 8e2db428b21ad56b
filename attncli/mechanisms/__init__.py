"""Attention and its surroundings as pure functions of tensors."""
