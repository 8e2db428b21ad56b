"""How a command ends: its exit code."""

DONE, FAILED, INTERRUPTED = 0, 1, 130
