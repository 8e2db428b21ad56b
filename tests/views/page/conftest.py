"""Chromium, and pages opened in it from disk."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.views.page.pages import Opened

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
ARGUMENTS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium; where it is not installed the tests are skipped, and in CI that is a failure."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        missing = "no Chromium on this machine: apt install chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """Opens a page from disk once it is drawn. At the end nothing was asked of a network, told or thrown."""
    told: list[str] = []
    asked: list[str] = []
    contexts = []

    def open_file(text: str, *, width: int = 1280, **options: Any) -> Any:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        context.route("**/*", lambda route: route.continue_() if is_own(route.request) else route.abort())
        is_own = lambda request: request.url == path.as_uri()  # noqa: E731
        page = context.new_page()
        page.told, page.asked = told, asked
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("dialog", lambda dialog: (told.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: is_own(request) or asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]")
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert told == [] and asked == []
