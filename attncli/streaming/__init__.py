"""The same attention without its weight matrix: exact statistics in memory linear in the length."""

from attncli.streaming.attention import attention_statistics
from attncli.streaming.result import AttentionStatistics

__all__ = ["AttentionStatistics", "attention_statistics"]
