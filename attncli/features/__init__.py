"""Built-in features: one folder per feature, with a card in its feature.py."""
