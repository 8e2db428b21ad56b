"""From text to tokens, from tokens to embeddings, from embeddings to query, key and value."""
