"""Running experiments: one after another, many together, on a model."""
