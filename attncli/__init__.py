"""attn: see attention at work in a terminal."""

__version__ = "0.1.0"
