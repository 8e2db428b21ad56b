"""Packages that add to attn, of the code that docs/adding.md prints, seen through the command line."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from attncli.cli import COMMANDS
from attncli.core.runtime import GROUPS
from attncli.settings import EXPERIMENTS, TAKEN
from attncli.views import VIEWS
from tests.test_adding import ROOT, SENTENCE, additions, nearby_mass

NEARBY = {
    "statistics": {"nearby_mass": "attn_nearby:nearby_mass", "entropy": "attn_nearby:nearby_mass"},
    "views": {"tsv": "attn_nearby_tsv:write"},
}
SIMILARITY = {
    "experiments": {"similarity": "attn_similarity:SimilaritySpec", "show": "attn_similarity:SimilaritySpec"},
    "engines": {"exact": "attn_similarity_exact:EXACT"},
}
BROKEN = {group: {f"gone_{group}": "attn_broken:nothing"} for group in GROUPS}
WHY = "cannot be imported: ModuleNotFoundError: No module named 'a_package_that_is_not_there'"
RUN = """if True:
    import io, json, sys
    from contextlib import redirect_stderr, redirect_stdout
    from attncli.cli import run
    ended = []
    for arguments in json.load(sys.stdin):
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = run(arguments)
        ended.append([code, out.getvalue(), err.getvalue()])
    print(json.dumps(ended))
"""


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


def install(site: Path, name: str, modules: dict[str, str], entry_points: dict[str, dict[str, str]]) -> None:
    """What `pip install --target` makes of a package: its modules, and its metadata."""
    for module, code in modules.items():
        (site / f"{module}.py").write_text(code)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = [
        "\n".join([f"[attncli.{group}]", *(f"{key} = {place}" for key, place in of_group.items())])
        for group, of_group in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(sections) + "\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two packages, as one of site-packages."""
    site = tmp_path_factory.mktemp("site")
    code = {Path(one.file).stem: one.code for one in additions() if one.row_of is None}
    similarity = code["similarity"]
    engine = "from attncli.core.engines import Engine\n\nEXACT = Engine(attend, suits)\n"
    install(site, "attn_nearby", {"attn_nearby": code["nearby_mass"], "attn_nearby_tsv": code["tsv"]}, NEARBY)
    modules = {"attn_similarity": similarity, "attn_similarity_exact": f"{code['exact']}\n{engine}"}
    install(site, "attn_similarity", modules, SIMILARITY)
    return site


def attn(
    commands: Sequence[Sequence[str]], folder: Path, *sites: Path, root: Path = ROOT, off: str = ""
) -> list[Ended]:
    """What commands print in one process that has the packages of these folders, and attn from `root`."""
    path = ":".join(map(str, (*sites, root)))
    process = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **{"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(folder)},
            **{"OMP_NUM_THREADS": "1", "ATTN_OFF": off},
        },
        timeout=120,
        check=True,
    )
    return [Ended(*ended) for ended in json.loads(process.stdout)]


def test_two_packages_are_seen_through_views_batches_and_exports(site: Path, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("experiment: similarity\nsweep: {embed_dim: [4, 8]}\n")
    (tmp_path / "s.yaml").write_text("experiment: self\nsweep: {causal: [false, true]}\n")
    words, tiny = ["the cat sees the cat", "--embed-dim", "5"], ["a b c", "--embed-dim", "4"]
    commands = {
        "plugins": ["info", "plugins"],
        "help": ["--help"],
        "help of it": ["similarity", "--help-all"],
        "json": ["similarity", *words, "--centered", "--format", "json"],
        "saved": ["similarity", *words, "-o", "x.json"],
        "vectors": ["self", *words, "--format", "json"],
        "table": ["similarity", *words],
        "csv": ["similarity", *words, "--format", "csv"],
        "html": ["similarity", *words, "-o", "x.html"],
        "heatmap": ["similarity", *words, "--format", "heatmap"],
        "md": ["similarity", *words, "--format", "md"],
        "tsv": ["self", "a b", "-o", "x.tsv", "--precision", "2"],
        "batch": ["batch", "b.yaml", "-o", "b.db", "--workers", "1", "--expect", "similarity.max < 1.5"],
        "results": ["results", "b.db"],
        "rows": ["multihead", SENTENCE, "--num-heads", "2", "--causal", "--format", "json"],
        "survey": ["heads", "--sort", "nearby_mass", "--format", "json"],
        "batch of rows": ["batch", "s.yaml", "-o", "s.db", "--workers", "1"],
        "export": ["results", "--tidy", "s.db"],
        "engine": ["self", *tiny, "--explain", "--format", "json"],
        "schema": ["info", "config-schema"],
        "show": ["show", "no.json"],
    }
    # dot draws which heads feed which, subtitles are of spoken words, and nothing else.
    every = [view for view in (*VIEWS, "tsv") if view not in ("dot", "srt", "vtt")]
    commands |= {f"as {view}": ["similarity", *words, "-o", f"y.{view}", "--format", view] for view in every}
    commands["both"] = ["similarity", *words, "--centered", "-o", "y.json"]
    commands["difference"] = ["diff", "y.json", "x.json"]
    commands["export as parquet"] = ["results", "--tidy", "b.db", "-o", "b.parquet"]
    ended = dict(zip(commands, attn([*commands.values()], tmp_path, site), strict=True))
    failed = {name: one for name, one in ended.items() if one.code}
    assert {*failed} == {"plugins", "show"} and failed["show"].err == "no.json: no such file\n"
    taken = "not used: there is one of this name"
    assert [re.split(r"\s{2,}", line) for line in ended["plugins"].out.splitlines()] == [
        ["statistics", "nearby_mass", "attn-nearby 1.0", "ok"],
        ["statistics", "entropy", "attn-nearby 1.0", taken],
        ["views", "tsv", "attn-nearby 1.0", "ok"],
        ["experiments", "similarity", "attn-similarity 1.0", "ok"],
        ["experiments", "show", "attn-similarity 1.0", taken],
        ["engines", "exact", "attn-similarity 1.0", "ok"],
    ]
    assert "\nPlugins:\n  similarity  From attn-similarity 1.0\n" in ended["help"].out
    assert "--centered" in ended["help of it"].out and "|tsv" in ended["help of it"].out

    def report(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ended[name].out)
        return found

    vectors = np.array(report("vectors")["tensors"]["input"]["values"])
    vectors -= vectors.mean(axis=0)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(report("json")["tensors"]["similarity"]["values"], units @ units.T, atol=1e-6)
    assert ended["table"].out.endswith("--centered | --show statistics | -o page.html\n")
    for name in ("csv", "heatmap", "md"):
        assert "similarity" in ended[name].out
    assert "similarity" in (tmp_path / "x.html").read_text()
    assert all((tmp_path / f"y.{view}").stat().st_size for view in every)
    assert (tmp_path / "b.parquet").exists() and "similarity" in ended["difference"].out
    assert (tmp_path / "x.tsv").read_text().startswith("# ")
    assert "similarity.variance" in ended["results"].out
    rows = report("rows")
    weights = np.array(rows["tensors"]["weights"]["values"])
    found = np.array(rows["statistics"]["rows"]["nearby_mass"])
    np.testing.assert_allclose(found, nearby_mass(weights), atol=1e-6)
    heads = [row["nearby_mass"] for row in report("survey")["statistics"]["heads"]]
    assert heads == sorted(heads, reverse=True) and 0 < heads[-1] < heads[0] <= 1
    assert "nearby_mass.mean" in ended["export"].out
    scores = np.array(report("engine")["tensors"]["scaled_scores"]["values"])
    expected = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    exact = np.array(report("engine")["tensors"]["weights"]["values"])
    assert np.abs(exact - expected).max() < 1e-14, "in float64, which no other engine takes for float32"
    assert "similarity" in ended["schema"].out


def test_a_spec_of_a_plugin_may_name_the_module_of_its_run(tmp_path: Path) -> None:
    """As all did before there was a PAGE."""
    (code,) = (one.code for one in additions() if one.file.endswith("similarity.py"))
    former = code.replace("PAGE = SampledPage(run=run)\n", "").replace(
        '    experiment = "similarity"\n', '    experiment, module = "similarity", "attn_former"\n'
    )
    install(
        tmp_path,
        "attn_former",
        {"attn_former": former},
        {"experiments": {"similarity": "attn_former:SimilaritySpec"}},
    )
    (ended,) = attn([["similarity", "a b c", "--format", "json"]], tmp_path, tmp_path)
    assert ended.code == 0 and "similarity" in json.loads(ended.out)["tensors"]


def test_a_broken_one_is_a_line_each_and_the_rest_works(site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    broken.mkdir()
    code = "import a_package_that_is_not_there\n"
    install(broken, "attn_broken", {"attn_broken": code}, BROKEN)
    commands = [
        ["--help"],
        ["self", "a b c", "--format", "json"],
        ["gone_experiments"],
        ["self", "a b", "--format", "gone_views"],
        ["similarity", "a b"],
        ["self", "--no-such-flag"],
        ["info", "plugins"],
    ]
    shown, found, gone, view, works, flag, listed = attn(commands, tmp_path, site, broken)
    assert (shown.code, shown.err) == (0, "") and "gone_experiments" in shown.out
    lines = [f"plugin gone_{group} (attn-broken 1.0) {WHY}" for group in ("engines", "statistics")]
    assert found.code == 0 and sorted(found.err.splitlines()) == lines
    report = json.loads(found.out)
    assert {*report["statistics"]["rows"]["gone_statistics"]} == {None}
    assert None not in report["statistics"]["rows"]["nearby_mass"]
    assert (gone.code, gone.out, gone.err) == (1, "", f"plugin gone_experiments (attn-broken 1.0) {WHY}\n")
    assert (view.code, view.err) == (1, f"plugin gone_views (attn-broken 1.0) {WHY}\n")
    assert works.code == 0 and flag.code == 2
    assert listed.code == 1 and listed.out.count(WHY) == len(GROUPS) and listed.out.count("  ok\n") == 4


def test_damaged_metadata_of_a_package_that_torch_reads_are_named(tmp_path: Path) -> None:
    """A package that is nothing to attn: torch looks for backends in the entry points of all."""
    install(tmp_path, "damaged", {}, {})
    (tmp_path / "damaged-1.0.dist-info" / "entry_points.txt").write_bytes(b"[a]\n\xff")
    done = subprocess.run(
        [sys.executable, "-m", "attncli", "self"],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "damaged 1.0: its entry_points.txt is damaged, and torch, which reads those of all packages, ends: "
        "reinstall it\n"
    )


def test_help_imports_no_plugin(tmp_path: Path) -> None:
    """Names come from metadata alone; damaged metadata names nothing."""
    site = tmp_path / "site"
    site.mkdir()
    for number in range(10):
        install(site, f"attn_p{number}", {f"attn_p{number}": "raise SystemExit(5)"}, {
            "experiments": {f"p{number}": f"attn_p{number}:Spec"},
            "statistics": {f"q{number}": f"attn_p{number}:q"},
        })  # fmt: skip
    for name, content in {
        "cut": b"[attncli.views",
        "binary": b"[attncli.views]\n\xff",
        "odd": b"[attncli.views]\na b",
    }.items():
        (site / f"{name}-1.0.dist-info").mkdir()
        (site / f"{name}-1.0.dist-info" / "entry_points.txt").write_bytes(content)
    (ended,) = attn([["--help"]], tmp_path, site)
    assert ended.code == 0 and all(f"p{number}  " in ended.out for number in range(10))


def test_no_experiment_of_a_plugin_takes_the_name_of_a_command() -> None:
    assert {*COMMANDS} - {*EXPERIMENTS} <= TAKEN
