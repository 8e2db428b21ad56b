"""The store of a batch: one SQLite file, the files beside it, and reading it back."""
