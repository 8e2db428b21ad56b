"""Checkpoints as layers: opening a model, reading text, capturing each layer's attention, and generating."""
