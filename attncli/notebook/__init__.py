"""Commands from Python: reports that show themselves, and an open model with a method per question."""
