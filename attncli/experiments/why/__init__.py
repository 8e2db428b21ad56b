"""What each head adds to the logit of a token."""
