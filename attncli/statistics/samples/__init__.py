"""Statistics of numbers, whatever they are of: moments, quantiles, intervals, ranks."""
