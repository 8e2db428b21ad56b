"""Commands from Python: reports that display themselves, and an open model with a method per question."""
