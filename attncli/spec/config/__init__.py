"""Reading settings: YAML with its lines, flags and overrides, grids, and every error at its place."""
