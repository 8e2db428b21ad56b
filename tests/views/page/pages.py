"""Reports of a model's heads with synthetic weights, and pages of reports, for the tests of the page."""

import io
import posixpath
import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Report
from attncli.views import Display, load_view
from attncli.views.page.blocks import IMPORT, SHARED

SENTENCE = ("the", "cat", "walks", "on", "the", "street")
NUM_LAYERS, NUM_HEADS = 12, 12
MAP_SIZE = 64

Opened = Callable[..., Any]


def page_of(*reports: Report, **display: Any) -> str:
    stream = io.StringIO()
    load_view("html")(reports, stream, Display(several=len(reports) > 1, **display))
    return stream.getvalue()


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def random_weights(*shape: int, sharpness: float = 1.0, seed: int = 0) -> np.ndarray:
    return softmax(sharpness * np.random.default_rng(seed).normal(size=shape))


def survey(num_layers: int, num_heads: int) -> dict[str, Any]:
    """One row per head, with induction scores that grow from the first head to the last."""
    rows = [
        {"layer": layer, "head": head, "kind": "self", "induction": (layer * num_heads + head) / 1000}
        for layer in range(num_layers)
        for head in range(num_heads)
    ]
    return {"heads": rows, "model": {"sink_rate": 0.25}}


def heads_report(tokens: Sequence[str], weights: np.ndarray) -> Report:
    """Whole weights (layer, head, query, key) of every head."""
    tensors = {"weights": NamedTensor(("layer", "head", "query", "key"), weights)}
    return Report(
        "heads", {"seed": 0}, {}, tuple(tokens), (), tensors, read_result("heads", survey(*weights.shape[:2]))
    )


def pooled_report(num_tokens: int, full: Sequence[tuple[int, int]], seed: int = 0) -> Report:
    """Pooled maps of every head, and whole random weights of the requested heads."""
    size = -(-num_tokens // MAP_SIZE)
    count = -(-num_tokens // size)
    blocks = ("layer", "head", "query_block", "key_block")
    mean = random_weights(NUM_LAYERS, NUM_HEADS, count, count, seed=seed) / size
    tensors = {
        "pooled_mean": NamedTensor(blocks, mean),
        "pooled_max": NamedTensor(blocks, np.minimum(3 * mean, 1)),
    }
    for number, (layer, head) in enumerate(full):
        weights = random_weights(num_tokens, num_tokens, seed=seed + number)
        tensors[f"weights_{layer}_{head}"] = NamedTensor(("query", "key"), weights)
    tokens = tuple(f"word{i}" for i in range(num_tokens))
    return Report("heads", {}, {}, tokens, (), tensors, read_result("heads", survey(NUM_LAYERS, NUM_HEADS)))


def pixels_of(canvas: Any) -> np.ndarray:
    """Red, green, blue and alpha, sent as a PNG because a list of a million numbers takes seconds."""
    _, _, png = canvas.evaluate("canvas => canvas.toDataURL()").partition(",")
    return np.asarray(Image.open(io.BytesIO(b64decode(png))).convert("RGBA")).astype(int)


def token(page: Any, side: str, index: int) -> Any:
    return page.locator(f'.token[data-side="{side}"][data-index="{index}"]')


def weights_beside(page: Any, side: str) -> list[str]:
    return page.locator(f'.token[data-side="{side}"] .weight').all_text_contents()


def texts(numbers: Any) -> list[str]:
    return [f"{number:.4f}" for number in numbers]


def wait_for_title(page: Any, text: str) -> None:
    page.wait_for_function("text => document.getElementById('matrix-title').textContent === text", arg=text)


def wait_for_readout(page: Any, text: str) -> None:
    page.wait_for_function("text => document.getElementById('readout').textContent.includes(text)", arg=text)


MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|XMLHttp|https?:(?!//www\.w3\.org/2000/svg)"
)
"""What makes markup of a text in a script, and what asks a network."""


def exports_and_imports(sources: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """The names that modules export, and those that they import: what others before them export, and use.

    No name is declared twice in the modules of the page, nor in the others.
    """
    exported: dict[str, str] = {}
    imported: set[str] = set()
    declared: list[tuple[bool, str]] = []
    for name, source in sources.items():
        for statement in IMPORT.finditer(source):
            where = posixpath.normpath(posixpath.join(posixpath.dirname(name), statement[1]))
            where = statement[1] if statement[1].startswith(SHARED) else where
            words = re.findall(r"\w+", statement[0].partition("}")[0])[1:]
            assert all(exported[word] == where for word in words), (name, where)
            assert all(len(re.findall(rf"\b{word}\b", source)) > 1 for word in words), (name, words)
            imported |= {*words}
        exported |= dict.fromkeys(re.findall(r"^export (?:async )?\w+ (\w+)", source, re.M), name)
        names = re.findall(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", source, re.M)
        declared += [(name.startswith(SHARED), each) for each in names]
    assert len(declared) == len({*declared})
    return {*exported}, imported
