"""One attention as a report shows it: its layer, variants, matrices and statistics."""
