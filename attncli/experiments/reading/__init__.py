"""Texts: as tokens, from files with many of them, and merged into words."""
