"""Reports as sections of text and tables, and their tables on a screen."""
