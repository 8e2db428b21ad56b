"""Run experiments on one text or a million: singly, together or in worker processes, into a store."""
