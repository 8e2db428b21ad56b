"""A model writes, and where each head looked for each new token."""
