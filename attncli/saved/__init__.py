"""What was computed before: saved reports, and attention arrays of others, read from files."""
