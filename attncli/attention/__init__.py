"""Attention: one layer, who sees whom, the rules of its scores, and the engines that compute it."""
