"""Measurements of the heads of a model's layers, and the functions for users."""
