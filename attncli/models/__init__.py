"""A checkpoint as layers: open it, read text, capture the attention of each layer, and generate."""
