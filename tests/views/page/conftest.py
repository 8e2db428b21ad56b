"""Chromium, and pages opened from disk."""

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
    """Debian's Chromium. Without it, the tests are skipped, except in CI, where they fail."""
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


Tabs = dict[str, list[Any]]


@pytest.fixture(scope="module")
def tabs(browser: Any) -> Tabs:
    """Idle tabs by the options of their context, because a new tab takes half a second."""
    return {}


def new_tab(browser: Any, **options: Any) -> Any:
    """A tab that records messages and errors of its page in `told`, and its network requests in `asked`."""
    context = browser.new_context(**options)
    page = context.new_page()

    def is_own(request: Any) -> bool:
        return request.url.partition("#")[0] == page.file

    context.route("**/*", lambda route: route.continue_() if is_own(route.request) else route.abort())
    page.on("console", lambda message: page.told.append(message.text))
    page.on("pageerror", lambda error: page.told.append(str(error)))
    page.on("dialog", lambda dialog: (page.told.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: is_own(request) or page.asked.append(request.url))
    return page


@pytest.fixture
def opened(browser: Any, tabs: Tabs, tmp_path: Path) -> Iterator[Opened]:
    """Open a page, wait until it is drawn, and unfold all numbers, unless `unfolded` is false.

    At the end, check that it made no request, message or error.
    """
    told: list[str] = []
    asked: list[str] = []
    taken: list[tuple[str, Any]] = []

    def open_file(text: str, *, width: int = 1600, unfolded: bool = True, **options: Any) -> Any:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        idle = tabs.setdefault(repr(options), [])
        page = idle.pop() if idle else new_tab(browser, **options)
        taken.append((repr(options), page))
        page.told, page.asked, page.file = told, asked, path.as_uri()
        page.set_viewport_size({"width": width, "height": 900})
        page.mouse.move(-1, -1)  # away from everything, wherever the last test left it
        page.goto(page.file)
        page.wait_for_selector("html[data-drawn]")
        if unfolded:
            page.evaluate("for (const all of document.querySelectorAll('#all')) all.open = true")
        return page

    yield open_file
    for options, page in taken:
        page.goto("about:blank")
        tabs[options].append(page)
    assert told == [] and asked == []
