"""Running experiments: one text or a million, alone, together, in workers, into a store."""
