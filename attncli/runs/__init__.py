"""Run experiments: one text or a million, singly, together, in workers, into a store."""
