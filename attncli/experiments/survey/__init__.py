"""The survey of a model's heads."""
