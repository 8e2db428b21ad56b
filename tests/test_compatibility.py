"""Files of earlier releases are opened, shown and computed again, as docs/compatibility.md promises."""

import copy
import csv
import gzip
import io
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from attncli.runs.saved_reports import report_schema
from attncli.runs.upgrade import upgrade
from tests.conftest import Attn
from tests.running import ROOT
from tools.release_examples import BATCH, FOLDER, REPORTS

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
VERSIONS = [version for version in re.findall(r"^## ([\d.]+)", CHANGELOG, re.MULTILINE) if version >= "0.4"]
"""Each kept by tools/release_examples.py; earlier ones were never published."""


@cache
def reports(version: str) -> dict[str, dict[str, Any]]:
    """The saved reports of a release by experiment."""
    lines = (FOLDER / f"{version}.jsonl").read_text().splitlines()
    found = {report["experiment"]: report for report in map(json.loads, lines)}
    assert all(report["environment"]["attncli"] == version for report in found.values())
    return found


CASES = [(version, experiment) for version in VERSIONS for experiment in reports(version)]


@pytest.fixture
def saved(version: str, experiment: str, tmp_path: Path) -> Path:
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(reports(version)[experiment]))
    return path


@pytest.fixture
def store(version: str, tmp_path: Path) -> Path:
    path, upgraded = tmp_path / "store.db", tmp_path / "upgraded.db"
    path.write_bytes(gzip.decompress((FOLDER / f"{version}.db.gz").read_bytes()))
    upgrade(path, upgraded)
    return upgraded


def assert_still_there(old: Any, new: Any, place: str, *, tolerance: float = 0) -> None:
    """Assert that every old name and value is in the new report; numbers may differ by the tolerance."""
    if isinstance(old, dict):
        assert isinstance(new, dict) and old.keys() <= new.keys(), place
        for name, value in old.items():
            assert_still_there(value, new[name], f"{place}.{name}", tolerance=tolerance)
    elif isinstance(old, list):
        assert isinstance(new, list) and len(old) == len(new), place
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            assert_still_there(one, other, f"{place}[{i}]", tolerance=tolerance)
    elif isinstance(old, float) and tolerance:
        assert new == pytest.approx(old, abs=tolerance, rel=tolerance), place
    else:
        assert old == new, place


@pytest.mark.parametrize(("version", "experiment"), CASES)
def test_an_old_report_opens_and_loses_nothing(
    saved: Path, version: str, experiment: str, attn: Attn
) -> None:
    old = reports(version)[experiment]
    jsonschema.Draft202012Validator(report_schema()).validate(old)
    shown = {view: attn(["show", str(saved), "--format", view]) for view in ("table", "json", "csv", "html")}
    assert {(ended.code, ended.err) for ended in shown.values()} == {(0, "")}
    assert_still_there(old, json.loads(shown["json"].out), experiment)


SHORT = 10
"""Below so many tokens CHANGELOG.md says that the first token no longer names a head."""
NAMED = ("patterns", "strongest")


def comparable(report: dict[str, Any]) -> dict[str, Any]:
    """The report without what CHANGELOG.md says has changed: patterns of short texts, the order of edges."""
    report = copy.deepcopy(report)
    if "edges" in report["statistics"]:  # sorted by another number now, and more of them
        edges = report["statistics"]["edges"]
        report["statistics"]["edges"] = {f"{row['from']} {row['side']} {row['to']}": row for row in edges}
    is_short = 0 < len(report["tokens"]) < SHORT
    for name in NAMED if is_short else ():
        report["statistics"].pop(name, None)
    for rows in report["statistics"].values():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict) and "head" in rows[0]:
            for row in rows:
                for name in ("pattern", "rest_pattern") if is_short else ():
                    row.pop(name, None)
    return report


KEPT = [command for command in REPORTS if any(command.split()[0] in reports(version) for version in VERSIONS)]


@pytest.mark.parametrize("command", KEPT)
def test_the_same_command_gives_the_numbers_of_every_release(command: str, attn: Attn) -> None:
    ended = attn([*shlex.split(command), "--format", "json"])
    new = comparable(json.loads(ended.out))
    for version in VERSIONS:
        if new["experiment"] in reports(version):
            old = comparable(reports(version)[new["experiment"]])
            for part in ("tokens", "tensors", "statistics"):
                assert_still_there(old[part], new[part], f"{version}: {part}", tolerance=1e-5)


def values_exported(attn: Attn, store: Path) -> dict[tuple[int, str], float]:
    rows = csv.DictReader(io.StringIO(attn(["results", str(store), "--tidy"]).out))
    return {(int(row["run"]), row["statistic"]): float(row["value"]) for row in rows}


def values_computed_again(attn: Attn, folder: Path) -> dict[tuple[int, str], float]:
    batch, store = folder / "again.yaml", folder / "again.db"
    batch.write_text(json.dumps(BATCH))
    assert attn(["batch", str(batch), "-o", str(store), "--workers", "1"]).code == 0
    return values_exported(attn, store)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_store_is_upgraded_summarised_exported_and_resumed(
    store: Path, version: str, attn: Attn, tmp_path: Path
) -> None:
    results = attn(["results", str(store), "--group-by", "causal"])
    assert results.code == 0 and f"made with attncli {version}, torch" in results.out
    exported = values_exported(attn, store)
    assert len(exported) > 100
    assert exported == pytest.approx(values_computed_again(attn, tmp_path), rel=1e-5, abs=1e-7)
    batch = tmp_path / "batch.yaml"
    batch.write_text(json.dumps(BATCH | {"sweep": BATCH["sweep"] | {"seed": [0, 1, 2]}}))
    ended = attn(["batch", str(batch), "-o", str(store), "--workers", "1"])
    assert ended.code == 0 and "6 of 6 runs, 2 done now" in ended.err + ended.out
    assert values_exported(attn, store).keys() > exported.keys()
