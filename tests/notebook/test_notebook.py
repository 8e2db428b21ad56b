"""docs/notebook.ipynb run by Jupyter, and its cells in Chromium: offline, each in a frame."""

import os
import subprocess
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest

import attncli
from tests.views.page.conftest import browser  # noqa: F401 (a fixture)
from tests.views.page.test_page_in_browser import HOSTILE

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""
ESCAPES = "<script>parent.document.title='taken'</script>"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook with its outputs; a failing cell is an error."""
    folder = tmp_path_factory.mktemp("jupyter")
    places = {name: str(folder) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, NOTEBOOK, folder / "executed.ipynb"],
        env={**os.environ, **places, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return nbformat.read(folder / "executed.ipynb", 4)


def outputs(notebook: Any, kind: str) -> list[Any]:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs if output.output_type == kind]


def test_the_notebook_is_stored_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    assert all(cell.outputs == [] for cell in notebook.cells if cell.cell_type == "code")


def test_cells_show_a_page_and_the_first_screen_as_text(executed: Any) -> None:
    shown = [output.data for output in outputs(executed, "execute_result")]
    assert [set(data) for data in shown] == [{"text/html", "text/plain"}] * 5
    *tables, first, second, third = shown
    assert "previous token" in tables[0]["text/plain"] and "induction" in tables[1]["text/plain"]
    shown = [first, second, third]
    assert all("<iframe " in data["text/html"] for data in shown)
    assert shown[0]["text/plain"].startswith("self: the cat walks on the street\n6 tokens")
    assert outputs(executed, "display_data") == []  # rich would show its tables by itself here
    told = "".join(o.text for o in outputs(executed, "stream") if o.name == "stdout").splitlines()
    assert told[0] == "heads 7.82 of a logit of 15.07"
    assert told[1] == "('head', 'query', 'key') (4, 6, 6)"
    assert told[-1].startswith("layer 1, head ")


def cells_page(*cells: str) -> str:
    return f"<!doctype html><meta charset=utf-8><title>notebook</title>{''.join(cells)}"


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_each_cell_is_drawn_in_a_frame(
    executed: Any,
    browser: Any,  # noqa: F811
    width: int,
    scheme: str,
) -> None:
    shown = [output.data["text/html"] for output in outputs(executed, "execute_result")]
    cells = [html for html in shown if "<iframe " in html]
    hostile = attncli.run("self", sentence=f"{ESCAPES} {' '.join(HOSTILE)}", tokenizer="whitespace")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    told: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("dialog", lambda dialog: (told.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    cells_html = [f"<div>{cell}</div>" for cell in (*cells, hostile._repr_html_())]
    page.set_content(cells_page(*cells_html))
    frames = page.query_selector_all("body iframe")
    assert len(frames) == len(cells) + 1
    for frame in frames:
        inside = frame.content_frame()
        inside.wait_for_selector("html[data-drawn]")
        assert inside.evaluate("window.origin") == "null"  # neither the notebook's cookies nor its page
        box = frame.bounding_box()
        assert box["height"] == 720 and 0.9 * width < box["width"] <= width
        assert inside.evaluate("document.documentElement.scrollWidth") <= box["width"]
        dark = inside.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 28)"
        assert dark == (scheme == "dark")
    assert page.title() == "notebook"
    assert page.evaluate("document.querySelectorAll('body *').length") == 6 * len(frames)
    texts = page.query_selector_all(".attn-text")
    assert not any(text.is_visible() for text in texts)  # the page takes its place
    frames[0].evaluate("(frame) => frame.remove()")  # as where the notebook is not trusted
    frames = frames[1:]
    assert texts[0].is_visible()
    assert ESCAPES in frames[-1].content_frame().inner_text("body")
    assert told == [] and [url for url in asked if url != "about:srcdoc"] == []
    context.close()


GROWS = """<!doctype html><body>{cell}<script>
new ResizeObserver(() => parent.postMessage(document.body.offsetHeight + 16, "*")).observe(document.body);
</script>"""
"""An output in Colab: a frame of another origin, as high as its content."""


class SanitisedByNbconvert(HTMLParser):
    """The HTML that `nbconvert --sanitize-html` leaves: other tags become text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        kept = "".join(f' {name}="{escape(value)}"' for name, value in attrs if name == "class")
        self.html += (
            f"<{tag}{kept}>" if tag in ("div", "pre", "code") else escape(self.get_starttag_text() or "")
        )

    def handle_endtag(self, tag: str) -> None:
        self.html += f"</{tag}>" if tag in ("div", "pre", "code") else escape(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.html += escape(data)


@pytest.mark.parametrize("rule", [".lm-Widget.lm-mod-hidden", ".hidden"])
def test_nbconvert_sanitises_a_cell_to_its_first_screen(browser: Any, rule: str) -> None:  # noqa: F811
    """The templates lab and classic have these rules, which a trusted notebook may have, too."""
    report = attncli.run("self", sentence=f"{ESCAPES} sat", tokenizer="whitespace")
    style = f"<style>{rule} {{ display: none !important }}</style>"
    page = browser.new_page()
    page.set_content(f"{style}{SanitisedByNbconvert(report._repr_html_()).html}")
    text = page.inner_text("body")
    assert "the notebook." in text and "iframe" not in text and "attn-text" not in text
    assert text.startswith(f"self: {ESCAPES} sat\n")
    page.set_content(f"{style}{report._repr_html_()}")
    assert page.query_selector("iframe").is_visible() and not page.query_selector("pre").is_visible()
    page.close()


@pytest.mark.nightly
def test_a_frame_that_grows_with_its_content_shows_a_cell(browser: Any) -> None:  # noqa: F811
    """Two outputs in two frames that imitate Colab."""
    cells = [attncli.run("self", sentence=text)._repr_html_() for text in ("the cat", "a dog sat")]
    frames = [
        f'<iframe sandbox="allow-scripts" style="width: 100%; height: 40px" '
        f'srcdoc="{escape(GROWS.format(cell=cell))}"></iframe>'
        for cell in cells
    ]
    page = browser.new_page(viewport={"width": 900, "height": 700})
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.set_content(
        f"""{cells_page(*frames)}<script>addEventListener("message", (told) => {{
        for (const frame of document.querySelectorAll("iframe"))
            if (frame.contentWindow === told.source) frame.style.height = told.data + "px"; }});</script>"""
    )
    for output, text in zip(page.query_selector_all("body > iframe"), ("cat", "dog"), strict=True):
        cell = output.content_frame().wait_for_selector("iframe")
        inside = cell.content_frame()
        inside.wait_for_selector("html[data-drawn]")
        assert text in inside.inner_text("#heading")
        page.wait_for_function("(output) => output.offsetHeight > 500", arg=output, timeout=5000)
        assert cell.bounding_box()["height"] >= 500
    assert told == []
    page.close()


def test_a_line_explains_a_frame_that_blocks_scripts(browser: Any) -> None:  # noqa: F811
    """Mail programs and some notebook viewers have such a policy."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = browser.new_page()
    page.set_content(f"{meta}{attncli.run('self', sentence='the cat')._repr_html_()}")
    inside = page.query_selector("iframe").content_frame()
    inside.wait_for_selector(".unscripted", state="attached")
    inside.evaluate("document.getAnimations().forEach((animation) => animation.finish())")
    assert "trust the notebook" in inside.inner_text("body")
    page.close()
