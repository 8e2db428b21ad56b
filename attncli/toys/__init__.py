"""Attention with sampled weights: variants, averages, normalisation, scaling, mistakes, each explained."""
