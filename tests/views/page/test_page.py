"""The page as a file: its size, numbers, policy, and that no text of a user is markup."""

import base64
import hashlib
import json
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncli.records.report import NamedTensor, Report
from attncli.views.page import LAYOUT, MAX_EXACT, STYLES, encoded
from attncli.views.page.blocks import BLOCKS, OF_FILE, SHARED, SOURCES, modules
from tests.running import run
from tests.views.page.pages import (
    MARKUP,
    NUM_HEADS,
    NUM_LAYERS,
    exports_and_imports,
    heads_report,
    page_of,
    pooled_report,
    random_weights,
)
from tests.views.test_views import CASES

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--",
    "<img src=x onerror=alert(1)>",
    "\u2028",
    "a\u202eb",
    "&lt;",
)


class Elements(HTMLParser):
    """Every tag with its attributes, and the text of each script and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, dict[str, str | None], str]] = []
        self.open: tuple[str, dict[str, str | None]] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.open = self.tags[-1]
            self.texts.append((*self.open, ""))

    def handle_endtag(self, tag: str) -> None:
        self.open = None

    def handle_data(self, data: str) -> None:
        if self.open is not None:
            self.texts[-1] = (*self.open, self.texts[-1][2] + data)


def reports_in(page: str) -> list[dict[str, Any]]:
    return [
        json.loads(text)
        for _, attributes, text in Elements(page).texts
        if attributes.get("class") == "report"
    ]


def unpacked(text: str, dtype: str) -> np.ndarray:
    """Unpack the numbers as the page's script does."""
    planes = zlib.decompress(base64.b64decode(text), wbits=-15)
    size = np.dtype(dtype).itemsize
    columns = np.frombuffer(planes, dtype=np.uint8).reshape(size, -1)[::-1]
    return np.ascontiguousarray(columns.T).view(f"<{np.dtype(dtype).str[1:]}").ravel()


def decoded(data: dict[str, Any]) -> np.ndarray:
    values = unpacked(data["bytes"], data["type"])
    if "table" in data:
        values = unpacked(data["table"]["bytes"], data["table"]["type"])[values]
    elif "step" in data:
        values = np.where(values == 65_535, np.nan, data["low"] + data["step"] * values.astype(np.float64))
    return values.reshape(data["shape"])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_few_numbers_are_exact(dtype: str) -> None:
    values = (np.random.default_rng(0).normal(size=(3, 5, 7)) * 1000).astype(dtype)
    if dtype != "int32":
        values[0, 0, :2] = np.nan
    np.testing.assert_array_equal(decoded(encoded(values)), values)


@pytest.mark.parametrize("sharpness", [0.1, 1, 30])
def test_many_weights_round_to_the_same_four_decimals(sharpness: float) -> None:
    weights = random_weights(MAX_EXACT // 32, 33, sharpness=sharpness)
    ties = np.array([0, 1, 0.03125, 0.09375, 0.5, 0.00005, 0.00015, 0.9999, 0.99995, 1e-12], dtype=np.float32)
    weights[0, : len(ties)] = ties
    weights[1, 0] = np.nan
    found = decoded(encoded(weights))
    assert np.isnan(found[1, 0]) and np.isnan(found).sum() == 1
    sample = np.random.default_rng(0).choice(weights.size, 20_000)
    for index in {*range(33), *sample.tolist()} - {33}:
        assert f"{found.flat[index]:.4f}" == f"{weights.flat[index]:.4f}"
    seen = weights > 1e-9
    assert np.abs(found[seen] / weights[seen] - 1).max() < 0.1, "small weights keep their size"


def test_many_other_numbers_keep_the_decimals_that_they_claim() -> None:
    scores = np.random.default_rng(0).normal(size=(331, 337)) * 3
    scores[0, 0] = np.nan
    data = encoded(scores)
    assert data["decimals"] == 3
    found = decoded(data)
    assert np.isnan(found[0, 0])
    assert np.nanmax(np.abs(found - scores)) < 0.5 * 10.0 ** -data["decimals"]


@pytest.mark.parametrize(
    "values", [np.zeros((400, 300)), np.full((400, 300), -2.5), np.full((400, 300), np.nan)]
)
def test_many_equal_numbers(values: np.ndarray) -> None:
    np.testing.assert_array_equal(decoded(encoded(values)), values)


def test_a_page_of_144_heads_takes_4_megabytes_and_one_of_pooled_maps_12() -> None:
    weights = random_weights(NUM_LAYERS, NUM_HEADS, 128, 128, sharpness=3)
    page = page_of(heads_report([f"word{i}" for i in range(128)], weights))
    assert len(page.encode()) < 4e6
    page = page_of(pooled_report(512, [(layer, layer) for layer in range(12)]))
    assert len(page.encode()) < 12e6


@pytest.mark.parametrize("case", CASES)
def test_every_experiment_reads_back_from_its_page(case: str) -> None:
    experiment, settings = CASES[case]
    report = run(experiment, **settings)
    (data,) = reports_in(page_of(report))
    assert len(data["tokens"]) == len(report.tokens) and data["experiment"] == experiment
    assert [tensor["name"] for tensor in data["tensors"]] == list(report.tensors)
    for tensor, whole in zip(data["tensors"], report.tensors.values(), strict=True):
        values = np.broadcast_to(decoded(tensor), whole.values.shape)
        assert (*tensor["shared"], *tensor["axes"]) == whole.axes
        # The weight of a hidden key is 0, and missing on the page.
        is_hidden = np.isnan(values) & (whole.values == 0)
        np.testing.assert_array_equal(values[~is_hidden], whole.values[~is_hidden])
        if values.ndim > 1:
            assert not np.tril(is_hidden).any()
    for kind in ("rows", "keys"):
        for tensor, whole in zip(data[kind], report.statistics.get(kind, {}).values(), strict=True):
            np.testing.assert_array_equal(np.broadcast_to(decoded(tensor), whole.values.shape), whole.values)


def test_texts_are_only_in_json() -> None:
    report = Report("self", {"sentence": HOSTILE[0]}, {}, HOSTILE, notes=(HOSTILE[2],))
    page = page_of(report)
    assert not any(token in page for token in HOSTILE)
    elements = Elements(page)
    assert [tag for tag, _ in elements.tags if tag in ("img", "iframe", "object", "link")] == []
    scripts = [attributes for tag, attributes in elements.tags if tag == "script"]
    assert [attributes.get("type") for attributes in scripts] == ["application/json"] * 2 + [
        "application/json",
        "module",
    ]
    (data,) = reports_in(page)
    assert data["tokens"] == [*HOSTILE[:3], r"\u2028", r"a\u202eb", "&lt;"]
    assert data["settings"]["sentence"] == HOSTILE[0] and data["notes"] == [HOSTILE[2]]


def test_the_policy_allows_only_this_script_and_this_style() -> None:
    elements = Elements(page_of(run("self")))
    (policy,) = [a["content"] for _, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and "unsafe" not in policy and "http" not in policy
    for tag, attributes, text in elements.texts:
        if attributes.get("type") != "application/json":
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert not any(
        name.startswith("on") or name in ("style", "src", "href") for _, a in elements.tags for name in a
    )


BEGINNINGS = {"a file": (OF_FILE, SOURCES)} | {
    place: (block.script, block.folder) for place, block in BLOCKS.items()
}
"""What a page and each block begin with."""


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_the_scripts_make_no_markup_and_fetch_nothing(beginning: str) -> None:
    assert not any(map(MARKUP.search, modules(*BEGINNINGS[beginning]).values()))


def test_all_files_of_the_page_are_in_it() -> None:
    """Files of a block are only in pages of its reports."""
    scripts = {name.removeprefix(SHARED) for beginning in BEGINNINGS.values() for name in modules(*beginning)}
    for folder, names in (("scripts", scripts), ("styles", {*STYLES, LAYOUT})):
        root = Path(str(SOURCES / folder))
        assert {file.relative_to(root).as_posix() for file in root.rglob("*.*")} <= names
    alone, both = (page_of(*reports) for reports in ([run("self")], [run("self"), run("circuit")]))
    assert "blocks.set(" not in alone and both.count("blocks.set(") == 1
    assert 'class="block"' not in alone and both.count('class="block"') == 1


def test_modules_import_what_others_export_and_nothing_twice() -> None:
    """The joined modules share a scope: each name is declared once, before any module that needs it."""
    names = [exports_and_imports(modules(*beginning)) for beginning in BEGINNINGS.values()]
    exported, imported = (set().union(*each) for each in zip(*names, strict=True))
    assert exported - imported == {"blocks", "show"}


def test_several_reports_are_one_page() -> None:
    page = page_of(run("self"), run("norm"), run("scale-demo"))
    assert [data["experiment"] for data in reports_in(page)] == ["self", "norm", "scale-demo"]
    assert reports_in(page_of()) == []


def test_the_page_names_tensors_that_are_too_large_for_it() -> None:
    scores = NamedTensor(("query", "key"), np.full((2100, 2100), -1, dtype=np.float32))
    (data,) = reports_in(page_of(Report("self", {}, {}, tensors={"scores": scores})))
    assert data["tensors"] == [] and data["left_out"] == ["scores: 2100 × 2100"]
