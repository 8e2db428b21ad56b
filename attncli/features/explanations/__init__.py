"""Ways to read a model, beside what an answer loses without its sources."""
