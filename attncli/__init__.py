"""attn: see attention at work, in a terminal and from Python (docs/python.md)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attncli.runs.threads import limit_spinning

if TYPE_CHECKING:
    from attncli.api import NotebookReport, heads, run
    from attncli.core.attention_statistics import AttentionStatistics, attention_statistics
    from attncli.errors import UserError
    from attncli.report import Report


__version__ = "0.2.0"
__all__ = [
    "AttentionStatistics",
    "NotebookReport",
    "Report",
    "UserError",
    "attention_statistics",
    "heads",
    "run",
]

_MODULES = {
    "AttentionStatistics": "core.attention_statistics",
    "NotebookReport": "api",
    "Report": "report",
    "UserError": "errors",
    "attention_statistics": "core.attention_statistics",
    "heads": "api",
    "run": "api",
}


# Before torch is there, whoever imports it.
limit_spinning()


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for: `attn --help` needs none of them."""
    if name in _MODULES:
        return getattr(import_module(f"attncli.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
