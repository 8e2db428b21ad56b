"""Ways to read a model other than measuring what an answer loses without its sources."""
