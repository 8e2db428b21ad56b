"""attn shows attention at work, in a terminal and from Python (docs/python.md)."""

import os

if os.name == "nt":
    raise ImportError("attn runs on Linux and macOS; on Windows, install attn in WSL")

from attncli.system.signals import end_quietly, is_command_line

if is_command_line():  # before the other imports, which take 50 ms
    end_quietly()

from typing import TYPE_CHECKING, Any

from attncli.core.runtime import limit_spinning
from attncli.feature import load_place, switched_on
from attncli.index import FEATURES, installed_features
from attncli.system.version import __version__ as __version__

if TYPE_CHECKING:
    from attncli.core.attention_statistics import AttentionStatistics
    from attncli.errors import UserError
    from attncli.index import *  # noqa: F403 - the functions of features
    from attncli.measure.library import layers, next_tokens
    from attncli.measure.own_tensors import attention_statistics
    from attncli.measure.patching import activation_cache, hooks, patch
    from attncli.models.probes import read_probe
    from attncli.models.reading_text import read_text
    from attncli.models.words import words_of_characters
    from attncli.notebook.opened import NotebookModel, open_model
    from attncli.notebook.run import NotebookReport, run
    from attncli.records.report import Report

__all__ = [
    "AttentionStatistics",
    "NotebookModel",
    "NotebookReport",
    "Report",
    "UserError",
    "activation_cache",
    "attention_statistics",
    "hooks",
    "layers",
    "next_tokens",
    "open_model",
    "patch",
    "read_probe",
    "read_text",
    "run",
    "words_of_characters",
]
if not TYPE_CHECKING:
    __all__ = sorted(
        {*__all__, *(name for each in switched_on(FEATURES).values() for name in each.functions)}
    )

_NEED_MODELS_EXTRA = {
    **dict.fromkeys(("layers", "next_tokens"), "measure.library"),
    **dict.fromkeys(("activation_cache", "hooks", "patch"), "measure.patching"),
    **dict.fromkeys(("NotebookModel", "open_model"), "notebook.opened"),
    "read_probe": "models.probes",
    "read_text": "models.reading_text",
    "words_of_characters": "models.words",
}
"""Names that need the packages of the extra `models`."""
_MODULES = {
    "AttentionStatistics": "core.attention_statistics",
    "NotebookReport": "notebook.run",
    "Report": "records.report",
    "UserError": "errors",
    "attention_statistics": "measure.own_tensors",
    "run": "notebook.run",
    **_NEED_MODELS_EXTRA,
}


# Must run before anything imports torch.
limit_spinning()


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `attn --help` imports none of them."""
    if name in _MODULES:
        place, needs_models = f"attncli.{_MODULES[name]}:{name}", name in _NEED_MODELS_EXTRA
    else:
        features = () if name.startswith("_") else installed_features().values()
        feature = next((each for each in features if name in each.functions), None)
        if feature is None:
            raise AttributeError(_missing_attribute_message(name))
        place, needs_models = feature.functions[name], "models" in feature.extras
    if needs_models:
        from attncli.models.folder import check_packages

        check_packages()
    return load_place(place)


def _missing_attribute_message(name: str) -> str:
    """Return the message for a missing attribute, with the reason if its feature is switched off."""
    message = f"module {__name__!r} has no attribute {name!r}"
    if any(name in feature.functions for feature in FEATURES.values()):
        from attncli.settings import why_off

        message += f": {name} {why}" if (why := why_off(name)) else ""
    return message


def __dir__() -> list[str]:
    functions = (name for feature in installed_features().values() for name in feature.functions)
    return [*dict.fromkeys([*__all__, *functions]), "__version__"]
