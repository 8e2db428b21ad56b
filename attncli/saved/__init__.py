"""Saved reports, and attention arrays from other tools, read from files."""
