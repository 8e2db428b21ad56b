"""How large the pages of a model's heads are and how long they take to open, beside BertViz and Plotly.

    python benchmarks/pages.py --libraries DIR         12 x 12 heads on 32 to 512 tokens, some minutes
    python benchmarks/pages.py --lengths 32 128 --rounds 5
    python benchmarks/pages.py --folders OLD NEW       attn's own pages of two versions, by the names of files

Needs what attn's own environment lacks: `pip install bertviz==1.4.1 plotly ipython` in one of its own.
BertViz's pages load three libraries from a CDN; DIR holds them as require.min.js, d3.min.js and
jquery.min.js, and the browser is given these instead, so that no time goes to a network. Without DIR its
pages are not opened.

Weights are softmax rows of normal scores, which nothing compresses. Times are medians of rounds in turns,
from navigation until the first head is drawn and a frame later, in Chromium without a GPU, started anew for
each page.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Report, Table
from attncli.views import Display, load_view

NUM_LAYERS, NUM_HEADS = 12, 12
MAP_SIZE = 64
WHOLE_TOKENS = 128  # up to here `attn heads` keeps every weight
LONGEST_WAIT = 60_000  # milliseconds
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def weights(num_tokens: int) -> np.ndarray:
    """Softmax of normal scores, of shape (layer, head, query, key)."""
    scores = np.random.default_rng(0).normal(size=(NUM_LAYERS, NUM_HEADS, num_tokens, num_tokens))
    exponentials = np.exp(scores.astype(np.float32))
    result: np.ndarray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result


def tokens(num_tokens: int) -> tuple[str, ...]:
    """Words of which no two are alike: Plotly draws equal labels as one."""
    return tuple(f"word{i}" for i in range(num_tokens))


def attn_page(path: Path, heads: np.ndarray, *, whole: bool) -> None:
    """Every weight, or maps of blocks of every head's and all weights of 12 heads."""
    num_tokens = heads.shape[-1]
    if whole:
        tensors = {"weights": NamedTensor(("layer", "head", "query", "key"), heads)}
    else:
        size = -(-num_tokens // MAP_SIZE)
        blocks = heads.reshape(NUM_LAYERS, NUM_HEADS, num_tokens // size, size, num_tokens // size, size)
        axes = ("layer", "head", "query_block", "key_block")
        tensors = {
            "pooled_mean": NamedTensor(axes, blocks.mean(axis=(3, 5))),
            "pooled_max": NamedTensor(axes, blocks.max(axis=(3, 5))),
        }
        for layer in range(NUM_LAYERS):
            tensors[f"weights_{layer}_{layer}"] = NamedTensor(("query", "key"), heads[layer, layer])
    rows = Table(
        {"layer": i, "head": j, "stack": "self", "entropy": 1.0}
        for i in range(NUM_LAYERS)
        for j in range(NUM_HEADS)
    )
    report = Report("heads", {}, {}, tokens(num_tokens), (), tensors, read_result("", {"heads": rows}))
    with path.open("w", encoding="utf-8") as stream:
        load_view("html")([report], stream, Display())


def bertviz_page(path: Path, heads: np.ndarray) -> None:
    """BertViz's model view: every head as a thumbnail of lines."""
    import torch
    from bertviz import model_view

    layers = [torch.from_numpy(layer).unsqueeze(0) for layer in heads]
    page = model_view(layers, list(tokens(heads.shape[-1])), html_action="return")
    path.write_text(f"<!doctype html><meta charset=utf-8>{page.data}", encoding="utf-8")


def plotly_page(path: Path, heads: np.ndarray) -> None:
    """A heatmap a head, one of them shown, the others in a list; plotly.js in the page."""
    import plotly.graph_objects as go

    labels = [f"{i} {token}" for i, token in enumerate(tokens(heads.shape[-1]))]
    matrices = heads.reshape(-1, *heads.shape[-2:])
    figure = go.Figure([go.Heatmap(z=z, x=labels, y=labels, visible=i == 0) for i, z in enumerate(matrices)])
    visibilities = [[i == j for j in range(len(matrices))] for i in range(len(matrices))]
    buttons = [
        {"label": str(i), "method": "restyle", "args": ["visible", row]} for i, row in enumerate(visibilities)
    ]
    figure.update_layout(updatemenus=[{"buttons": buttons}])
    figure.write_html(path, include_plotlyjs=True)


Write = Callable[[Path, np.ndarray], None]
# How each page is written, and what is there once its first head is drawn.
PAGES: dict[str, tuple[Write, str]] = {
    "attn": (
        lambda path, heads: attn_page(path, heads, whole=heads.shape[-1] <= WHOLE_TOKENS),
        "html[data-drawn]",
    ),
    "attn, every weight": (lambda path, heads: attn_page(path, heads, whole=True), "html[data-drawn]"),
    "BertViz": (bertviz_page, "#vis svg line"),
    "Plotly": (plotly_page, ".heatmaplayer image"),
}


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        yield browser
        browser.close()


def opening_time(path: Path, drawn: str, libraries: Path | None) -> float | None:
    """Milliseconds; None where nothing is drawn in a minute or the tab dies. A browser for each page."""
    from playwright.sync_api import Error

    def answer(route: Any) -> None:
        name = Path(route.request.url).name
        if libraries is not None and (libraries / name).exists():
            route.fulfill(path=libraries / name)
        else:
            route.abort()

    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto("about:blank")
        page.route("https://**/*", answer)
        begun = time.perf_counter()
        try:
            page.goto(path.as_uri(), timeout=LONGEST_WAIT)
            page.wait_for_selector(drawn, state="attached", timeout=LONGEST_WAIT)
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        except Error:
            return None
        return (time.perf_counter() - begun) * 1000


def compare(num_tokens: int, names: list[str], libraries: Path | None, rounds: int) -> Iterator[str]:
    """A row of the table for each kind of page."""
    heads = weights(num_tokens)
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for name in names:
            paths[name] = Path(folder) / f"{names.index(name)}.html"
            PAGES[name][0](paths[name], heads)
        del heads
        times: dict[str, list[float | None]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                if (name != "BertViz" or libraries is not None) and None not in times[name]:
                    times[name].append(opening_time(paths[name], PAGES[name][1], libraries))
        for name in names:
            size = paths[name].stat().st_size / 1e6
            yield f"| {num_tokens} | {name} | {size:,.2f} MB | {_median(times[name])} |"


def compare_folders(old: Path, new: Path, rounds: int) -> Iterator[str]:
    """A row for each page that is in both folders: bytes, and milliseconds until it is drawn."""
    yield "| page | old, KB | new, KB | old, ms | new, ms |\n| --- | ---: | ---: | ---: | ---: |"
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        for name in sorted(
            {path.name for path in old.glob("*.html")} & {path.name for path in new.glob("*.html")}
        ):
            paths = [folder / name for folder in (old, new)]
            times: list[list[float | None]] = [[], []]
            for _ in range(rounds):
                for path, measured in zip(paths, times, strict=True):
                    page.goto(path.absolute().as_uri())
                    page.wait_for_selector("html[data-drawn]", state="attached", timeout=LONGEST_WAIT)
                    measured.append(float(page.evaluate("document.documentElement.dataset.drawn")))
            sizes = " | ".join(f"{path.stat().st_size / 1000:,.0f}" for path in paths)
            drawn = " | ".join(_median(measured).removesuffix(" ms") for measured in times)
            yield f"| {Path(name).stem} | {sizes} | {drawn} |"


def _median(times: list[float | None]) -> str:
    known = [ms for ms in times if ms is not None]
    if not times:
        return "not opened"
    return f"{statistics.median(known):,.0f} ms" if len(known) == len(times) else "not in 60 s"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128, 256, 512])
    parser.add_argument("--longest-bertviz", type=int, default=256, help="its page of 512 takes 1.7 GB")
    parser.add_argument("--libraries", type=Path)
    parser.add_argument("--folders", type=Path, nargs=2, metavar=("OLD", "NEW"))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.folders is not None:
        old, new = arguments.folders
        for row in compare_folders(old, new, arguments.rounds):
            print(row, flush=True)
        return
    print("| tokens | page | size | opens in |\n| ---: | --- | ---: | ---: |")
    for num_tokens in arguments.lengths:
        names = [
            name
            for name in PAGES
            if (name != "attn, every weight" or num_tokens > WHOLE_TOKENS)
            and (name != "BertViz" or num_tokens <= arguments.longest_bertviz)
        ]
        for row in compare(num_tokens, names, arguments.libraries, arguments.rounds):
            print(row, flush=True)


if __name__ == "__main__":
    main()
