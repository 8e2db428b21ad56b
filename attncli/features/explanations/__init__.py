"""Ways to read a model, apart from measuring what an answer loses without its sources."""
