"""The same attention without its weight matrix: exact statistics in memory linear in the length."""

from .attention import attention_statistics
from .result import AttentionStatistics

__all__ = ["AttentionStatistics", "attention_statistics"]
