"""What is asked of a model's layers: heads, patterns, relations, examples, ablation, why, writing."""
