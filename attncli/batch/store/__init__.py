"""The store of a batch: one SQLite file, what is beside it, and reading it back."""
