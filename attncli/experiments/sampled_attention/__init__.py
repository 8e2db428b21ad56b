"""Attention whose weights are sampled: self-, multi-head and cross-attention without a pretrained model."""
