"""The version of attn."""

__version__ = "0.4.0"
