"""attn: see attention at work in a terminal."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncli.attention.attention_statistics import attention_statistics
    from attncli.attention.result import AttentionStatistics

__version__ = "0.2.0"
__all__ = ["AttentionStatistics", "attention_statistics"]


def __getattr__(name: str) -> Any:
    """Import torch's share of the package when it is first asked for: `attn --help` needs none of it."""
    if name in __all__:
        from attncli.attention import attention_statistics as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
