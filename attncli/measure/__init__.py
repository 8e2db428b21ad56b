"""Measurements of the heads of a model's layers, and functions for users."""
