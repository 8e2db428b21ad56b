"""Which heads look along syntactic relations: from a word to its syntactic head, and back."""
