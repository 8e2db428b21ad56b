"""A browser for heads in the terminal. Importing this package imports no textual; its `app` does."""
