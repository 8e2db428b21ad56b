"""attn from Python: the same settings as the command line, and reports that show themselves in a notebook."""
