"""The classic mistakes of attention: a wrong and a right computation on the same numbers."""
