"""A page that opens from disk: its data, and the sources that show them."""
