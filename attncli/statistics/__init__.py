"""Numbers that describe attention: each one formula with its source."""
