"""A browser for heads in the terminal. Importing this package imports no textual; `browse` does."""

import gc
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attncli.views.browser.choice import Choice

# What textual calls the depths of colour.
COLOR_SYSTEMS = {"none": "standard", "16": "standard", "256": "256", "truecolor": "truecolor"}


def browse(choice: "Choice", *, colors: str) -> int:
    """Show the browser until the user leaves it; return its exit code."""
    os.environ["TEXTUAL_COLOR_SYSTEM"] = COLOR_SYSTEMS[colors]  # textual reads it when it is imported
    from attncli.views.browser.app import Browser

    gc.freeze()  # What was imported and read stays until the end; only later objects are collected.
    gc.enable()
    browser = Browser(choice, depth=colors)
    browser.run()
    return browser.return_code or 0
