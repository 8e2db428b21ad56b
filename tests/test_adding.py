"""The wheel of examples/attn-spread, and the additions of docs/adding.md in a copy of attncli."""

import ast
import csv
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest

from attncli.records.columns import Result, StatisticGroup
from attncli.records.kinds import KINDS
from attncli.settings.heads import HeadsSpec
from tests.conftest import some_seldom
from tests.views.page.conftest import browser as browser
from tests.views.page.conftest import opened as opened
from tests.views.page.conftest import tabs as tabs
from tests.views.page.pages import Opened

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"((?:^[^`#\n][^\n]*\n)+)\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"[Tt]he (first|last) (?:row|line) of `(\w+)` in `([^`]+)`:")
EXAMPLE = ROOT / "examples" / "attn-spread"
SENTENCE = "the cat sat on the mat because it was tired of the long walk home"
TEXT = "to be or not to be"


class Addition(NamedTuple):
    """A block of docs/adding.md: its code, and the table or class to which it adds a row."""

    file: str
    row_of: str
    is_first: bool
    code: str


def additions() -> list[Addition]:
    page = (ROOT / "docs" / "adding.md").read_text()
    blocks = [(match[1].replace("\n", " "), match[2]) for match in BLOCK.finditer(page)]
    rows = [(ROW.search(text), code) for text, code in blocks]
    assert all(row for row, _ in rows)
    return [Addition(row[3], row[2], row[1] == "first", code) for row, code in rows if row]


def code_of_package() -> dict[str, str]:
    """The files of examples/attn-spread."""
    files = (path for path in EXAMPLE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(EXAMPLE).as_posix(): path.read_text() for path in files}


@cache
def wheel() -> bytes:
    """The wheel of that package."""
    with TemporaryDirectory() as name:
        return built(Path(name), code_of_package())


def built(folder: Path, files: Mapping[str, str]) -> bytes:
    """Write the files to a folder and return their wheel."""
    for file, code in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(code)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (file,) = (folder / "dist").iterdir()
    return file.read_bytes()


def install_wheel(site: Path, content: bytes | None = None) -> None:
    """Install a wheel as `pip install --target` does, by default that of examples/attn-spread."""
    with zipfile.ZipFile(io.BytesIO(content or wheel())) as archive:
        archive.extractall(site)


def put(addition: Addition, root: Path) -> None:
    path = root / addition.file
    lines = path.read_text().splitlines(keepends=True)
    tree = ast.parse("".join(lines))
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    if kind := next((node for node in classes if node.name == addition.row_of), None):
        last = [node for node in kind.body if isinstance(node, ast.AnnAssign)][-1]
        lines.insert(last.end_lineno or 0, addition.code)
    else:
        table = next(
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            == addition.row_of
        )
        assert isinstance(table, ast.Dict | ast.Tuple) and table.end_lineno is not None, "a literal table"
        lines.insert(table.lineno if addition.is_first else table.end_lineno - 1, addition.code)
    path.write_text("".join(lines))


RUN_EACH = """if True:
    import contextlib, io, json, os, sys, traceback
    from attncli.cli import run
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # commands without a text would read the requests
    for line in requests:
        asked = json.loads(line)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = run(asked) if isinstance(asked, list) else exec(asked, {}) or 0
            except Exception:  # shown by the test that asked; others go on asking
                code = traceback.print_exc() or 1
        print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


class Package(NamedTuple):
    """A copy of attncli, and a process that runs it and imports torch only once."""

    folder: Path
    site: Path
    process: "subprocess.Popen[str]"

    def attn(self, *arguments: str) -> str:
        """Run a command of the copy and return its standard output."""
        return self._printed(arguments)

    def python(self, script: str) -> str:
        """Run a script that imports the copy and return its output."""
        return self._printed(script)

    def report(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.attn(*arguments, "--format", "json"))
        return found

    def _printed(self, asked: str | tuple[str, ...]) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        code, out, err = json.loads(self.process.stdout.readline())
        assert code == 0, err
        return str(out)


# What has a report of each kind of result: one more column of its first table that a store keeps, else of its
# first table, is in every form. What a batch takes is given as settings.
TEXTS_OF_HEAD = [
    *("--texts", str(ROOT / "configs" / "alice.txt"), "--truncate"),
    *("--head", "1:2", "--sort", "entropy", "--examples", "1"),
]
KINDS_SHOWN: dict[str, dict[str, str | bool] | list[str]] = {
    "self": {"sentence": "a b a b"},
    "multihead": {"sentence": "a b a b"},
    "cross": {"sentence": "a b", "context": "c d e"},
    "show": [],  # arrays have only statistics of rows, which no class lists
    "average": {"sentence": "a b a b"},
    "scale-demo": {"scale": "none"},
    "norm": {"kind": "all"},
    "pitfalls": {"sentence": "a b a b"},
    "pitfalls of one": {"sentence": "a b a b", "pitfall": "late-mask"},
    "ablate": {"sentence": "a b a b"},
    "cache": {"sentence": "a b a b a b"},
    "cache of policies": {"sentence": "a b a b a b", "policy": "sinks"},
    "circuit": {"sentence": "a b a b"},
    "circuit of weights": {"weights": True},
    "generate": {"sentence": "a b a b"},
    "heads": {"sentence": "a b a b"},
    "diff of texts": ["diff", "a b a b", "a b c b", "--model", str(HeadsSpec.default_model)],
    "diff": ["diff", "self", "--set", "causal=true"],
    "results": ["results", "lessons/learning-to-copy.db"],
    "heads of examples": ["heads", *TEXTS_OF_HEAD],
    "heads of relations": {"relations": str(ROOT / "configs" / "alice.conllu")},
    "heads of pairs": {"pairs": str(ROOT / "configs" / "alice.conllu")},
    "heads of words": [],  # these need a model that hears, and none ships with attn
    "heads of alignment": [],
    "record": [],  # its report is on standard error, and its flags precede a program
    "separate": {"label": "answered"},
    "separate of texts": [],  # its detector is in a file
    "source": {"split": "sentence"},
    "source of explanations": {"split": "sentence", "compare": True},
    "source of ways": [],  # its prompts are in a file
    "source of weights": [],  # so are these
    "source of heads": [],  # its contexts are longer than the shipped model reads
    "watch": ["watch", "lessons/learning-to-copy.db"],
    "watch of a head": ["watch", "lessons/learning-to-copy.db", "--head", "1:2"],
    "why": {"sentence": "a b a b"},
    "why of a score": {"sentence": "a b a b", "head": "1:2"},
}
ONE_OF_A_FORM = {
    *("self", "norm", "pitfalls of one", "heads", "circuit of weights", "diff", "results", "watch of a head")
}
"""Reports of rows, of single numbers, of heads, of two reports and of stores: others are alike."""
MORE = "third"


def first_table(kind: type[Result]) -> StatisticGroup:
    """The first table that a store keeps, or else the first one, among tables with declared columns."""
    tables = [group for group in kind.groups() if not group.is_numbers and group.kind is not None]
    return next((table for table in tables if table.is_kept), tables[0])


def add_columns(root: Path) -> None:
    """Add a column to the class of the first such table of each kind, with one line each."""
    rows = {first_table(kind).kind for kind in KINDS.values()}
    for kind in sorted(rows, key=lambda kind: kind.__name__):
        file = Path(inspect.getfile(kind)).relative_to(ROOT)
        line = f"    {MORE}: float = column(of=lambda row: 1 / 3)\n"
        put(Addition(str(file), kind.__name__, False, line), root)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Package]:
    """A copy of attncli with what docs/adding.md adds, beside the installed examples/attn-spread."""
    root, site = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "attncli", root / "attncli")  # with what is compiled already
    add_columns(root)
    for addition in additions():
        put(addition, root)
    install_wheel(site)
    command, environment = [sys.executable, "-c", RUN_EACH], {**os.environ, "PYTHONPATH": str(site)}
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Package(root, site, process)


def test_every_part_of_the_package_is_used(package: Package) -> None:
    assert package.attn("info", "plugins").split() == ["features", "spread", "attn-spread", "1.0", "ok"]


def test_papers_of_the_package_are_cited(package: Package, tmp_path: Path) -> None:
    """One paper is in attn's bibliography, the other in the package's, for a statistic of all reports."""
    files = [str(tmp_path / f"{name}.json") for name in ("spread", "self")]
    package.attn("spread", TEXT, "-o", files[0])
    package.attn("self", TEXT, "-o", files[1])
    cited = package.attn("info", "cite", files[0])
    assert (
        "2019. Analyzing the Structure" in cited
        and "    for spread\n" in cited
        and "sperber2018" not in cited
    )
    assert "2018. Self-Attentional Acoustic Models. arXiv:1803.09519\n    for nearby_mass\n" in package.attn(
        "info", "cite", files[1]
    )


def test_the_folder_of_the_package_works_as_a_built_in_feature(package: Package, tmp_path: Path) -> None:
    """The folder is moved to features/, its modules are renamed, and the index is written again."""
    shutil.copytree(ROOT / "attncli", tmp_path / "attncli")  # with the compiled modules
    folder = tmp_path / "attncli" / "features" / "spread"
    (folder / "lessons").mkdir(parents=True)
    for name, code in code_of_package().items():
        if name.startswith("attn_spread/"):
            renamed = code.replace("from attn_spread", "from attncli.features.spread")
            (folder / name.removeprefix("attn_spread/")).write_text(renamed)
    writer = [sys.executable, ROOT / "tools" / "write_index.py", "--package", tmp_path / "attncli"]
    subprocess.run(writer, check=True)
    commands = [["spread", TEXT], ["similarity", TEXT], ["self", TEXT, "--format", "tsv"]]
    commands += [["spread", TEXT, "--format", "html"]]
    code = f"from attncli.cli import run\nfor command in {commands}:\n    run(command)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "".join(package.attn(*command) for command in commands)


def nearby_mass(weights: np.ndarray) -> np.ndarray:
    places = np.arange(weights.shape[-1])
    nearby = np.abs(np.subtract.outer(np.arange(weights.shape[-2]), places)) < 8
    return np.where(nearby, weights, 0).sum(-1)


def test_a_statistic_of_a_row_is_in_reports_and_tables(package: Package) -> None:
    found = package.report("multihead", "--sentence", SENTENCE, "--num-heads", "2", "--causal")
    weights = np.array(found["tensors"]["weights"]["values"])
    rows = np.array(found["statistics"]["rows"]["nearby_mass"])
    np.testing.assert_allclose(rows, nearby_mass(weights), atol=1e-6)
    assert rows.min() < 1, "some weight lies further away"
    table = package.attn("self", "--sentence", SENTENCE, "--show", "rows")
    assert re.search(r"nearby", table) and "mass" in table


@pytest.mark.nightly
def test_a_statistic_of_a_row_is_in_both_engines(package: Package) -> None:
    settings = ["--num-tokens", "1100", "--embed-dim", "8", "--causal", "--embedding", "gaussian"]
    found = [
        package.report("self", *settings, "--engine", engine)["statistics"]["rows"]["nearby_mass"]
        for engine in ("streaming", "dense")
    ]
    np.testing.assert_allclose(*found, atol=1e-5)


def test_a_statistic_of_a_row_is_available_in_python(package: Package) -> None:
    script = """if True:
        import attncli, torch
        tensor = torch.randn(23, 5, generator=torch.Generator().manual_seed(0))
        found = attncli.attention_statistics(tensor, tensor)
        weights = (tensor @ tensor.T / 5**0.5).softmax(dim=-1)
        places = torch.arange(23)
        nearby = (places.unsqueeze(-1) - places).abs() < 8
        torch.testing.assert_close(found.nearby_mass.float(), (weights * nearby).sum(dim=-1))
        assert found.rows["nearby_mass"] is found.nearby_mass
    """
    package.python(script)


def test_a_statistic_of_a_row_is_in_the_survey_of_heads(package: Package) -> None:
    heads = package.report("heads", "--sort", "nearby_mass")["statistics"]["heads"]
    values = [row["nearby_mass"] for row in heads]
    assert values == sorted(values, reverse=True) and 0 < values[-1] < values[0] <= 1
    grid = package.report("heads", "--statistic", "nearby_mass")["tensors"]["nearby_mass"]
    assert grid["axes"] == ["layer", "head"]


def test_a_statistic_of_a_row_is_in_batches_and_exports(package: Package, tmp_path: Path) -> None:
    config, store = tmp_path / "config.yaml", tmp_path / "runs.db"
    config.write_text("experiment: self\nsweep:\n  causal: [true, false]\n")
    package.attn("batch", str(config), "-o", str(store), "--workers", "1")
    summary = package.report("results", str(store), "--statistic", "nearby_mass.mean", "--group-by", "none")
    (row,) = summary["statistics"]["summary"]
    assert row["count"] == 2 and 0 < row["mean"] <= 1 + 1e-6
    rows = list(csv.DictReader(io.StringIO(package.attn("results", "--tidy", str(store)))))
    assert sum(row["statistic"] == "nearby_mass.mean" for row in rows) == 2


def test_a_reading_is_a_flag_of_the_questions_that_read_files(package: Package, tmp_path: Path) -> None:
    board = tmp_path / "x.board"
    board.write_text("a b c\nb c a\nc a b\n")
    asked = ("--board", str(board), "--model", str(HeadsSpec.default_model))
    heads = package.report("heads", *asked, "--sort", "neighbour")["statistics"]["heads"]
    values = [row["neighbour"] for row in heads]
    assert values == sorted(values, reverse=True) and values[0] > 0.3
    assert "adjacent patches" in package.attn("heads", *asked)
    assert "--board" in package.attn("self", "--help-all")


def test_an_experiment_is_a_command(package: Package) -> None:
    assert "--centered" in package.attn("similarity", "--help-all")
    settings = ["--sentence", "the cat sees the cat", "--centered", "--embed-dim", "5"]
    found = package.report("similarity", *settings)
    vectors = np.array(package.report("self", *settings[:2], *settings[3:])["tensors"]["input"]["values"])
    vectors -= vectors.mean(axis=0)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(found["tensors"]["similarity"]["values"], units @ units.T, atol=1e-6)
    assert "similarity: 5 tokens, embedding random, embed_dim 5, centered true, seed 0" in package.attn(
        "similarity", *settings
    )
    assert package.attn("similarity").endswith("--centered | --show statistics | -o page.html\n")
    assert "--centered" not in package.attn("similarity", "--centered").splitlines()[-1]


def test_a_question_about_a_model_is_a_command_a_function_and_a_kind_of_result(
    package: Package, tmp_path: Path
) -> None:
    script = f"""if True:
        import json, attncli
        model = attncli.open_model()
        weights = [layer.weights()[0].tolist() for layer in attncli.layers(model, {TEXT!r})]
        heads = attncli.spread(model, {TEXT!r}).heads
        assert heads == model.spread({TEXT!r}).heads
        print(json.dumps([[dict(head) for head in heads], weights]))
    """
    heads, weights = json.loads(package.python(script))
    assert len(heads) == 8 and heads == sorted(heads, key=lambda head: -head["spread"])
    for head in heads:
        rows = np.array(weights[head["layer"]][head["head"]])
        places = np.arange(rows.shape[-1])
        spreads = [np.average((places - row @ places) ** 2, weights=row) ** 0.5 for row in rows]
        assert abs(head["spread"] - np.mean(spreads)) < 1e-4
    saved = tmp_path / "x.json"
    package.attn("spread", TEXT, "-o", str(saved))
    report = json.loads(saved.read_text())
    assert report["statistics"]["heads"] == heads and report["experiment"] == "spread"
    assert package.report("spread", "--sentence", TEXT, "--top", "2")["statistics"]["heads"] == heads[:2]
    rows = list(csv.DictReader(io.StringIO(package.attn("spread", TEXT, "--format", "csv"))))
    assert [float(row["spread"]) for row in rows] == [head["spread"] for head in heads]
    of_form = package.report("heads", "--spread", TEXT)
    assert (of_form["kind"], of_form["statistics"]["heads"]) == ("heads of spread", heads)
    screen = package.attn("spread", TEXT)
    assert screen.startswith("spread: tiny-induction, 8 heads, on 19 tokens\nto be or not to be\n\n8 heads\n")
    assert package.attn("show", str(saved)).splitlines()[:12] == screen.splitlines()[:12]
    config, store = tmp_path / "config.yaml", tmp_path / "runs.db"
    config.write_text(f"experiment: spread\nsentence: {TEXT}\n")
    package.attn("batch", str(config), "-o", str(store), "--expect", "spread > 0")
    kept = package.report("results", str(store), "--statistic", "spread")["statistics"]["summary"]
    of_heads = {(head["layer"], head["head"]): head["spread"] for head in heads}
    assert {(row["layer"], row["head"]): round(row["mean"], 5) for row in kept} == {
        place: round(spread, 5) for place, spread in of_heads.items()
    }


def test_a_block_of_the_page_shows_the_result(package: Package, opened: Opened, tmp_path: Path) -> None:
    file = tmp_path / "x.html"
    package.attn("spread", TEXT, "-o", str(file))
    heads = package.report("spread", TEXT)["statistics"]["heads"]
    page = opened(file.read_text())
    bars = page.locator("#spread li")
    names = [f"{head['layer']}:{head['head']}" for head in heads]
    assert bars.all_text_contents() == [
        f"{name} {head['spread']:.2f}" for name, head in zip(names, heads, strict=True)
    ]
    widths = [bar.bounding_box()["width"] for bar in bars.all()]
    np.testing.assert_allclose(
        np.array(widths) / widths[0], [head["spread"] / heads[0]["spread"] for head in heads], atol=0.01
    )
    page.locator("#aside").get_by_role("button", name=f"Show head {names[2]}").click()
    assert page.locator("#spread .picked").all_text_contents() == [bars.nth(2).text_content()]
    package.attn("self", TEXT, "-o", str(file))
    assert 'id="spread"' not in file.read_text(), "no part of the block"


def test_a_lesson_is_listed_after_the_built_in_lessons_and_runs(package: Package) -> None:
    listed = package.attn("lesson").splitlines()
    assert listed[-2:] == ["23  How far a head looks", "Next: attn lesson 1"]
    shown = package.attn("lesson", "spread")
    assert "Lesson 23: How far a head looks" in shown and package.attn("spread", TEXT) in shown


def test_each_kind_has_a_command_here() -> None:
    assert KINDS_SHOWN.keys() == KINDS.keys()


@pytest.mark.parametrize(
    "kind",
    some_seldom([kind for kind, asked in KINDS_SHOWN.items() if asked], KINDS_SHOWN.keys() - ONE_OF_A_FORM),
)
def test_a_column_of_each_kind_is_in_every_form(package: Package, tmp_path: Path, kind: str) -> None:
    first = first_table(KINDS[kind])
    asked, experiment = KINDS_SHOWN[kind], kind.split(" of ")[0]
    settings = {} if isinstance(asked, list) else asked
    flags = [
        part for name, value in settings.items() for part in (f"--{name}", value) if isinstance(part, str)
    ]
    arguments = asked if isinstance(asked, list) else [experiment, *flags]
    report = package.report(*arguments)
    statistic = report["statistics"][first.name]
    rows = [statistic] if first.is_single else statistic
    assert report.get("kind", report["experiment"]) == kind
    assert rows and {row[MORE] for row in rows} == {1 / 3}
    part = "statistics" if first.is_single else first.name  # a tensor may have the name of single numbers
    # What a store holds is one table.
    parts = [] if experiment == "results" else ["--show", part]
    table = list(csv.DictReader(io.StringIO(package.attn(*arguments, *parts, "--format", "csv"))))
    if first.is_single:
        table = [{MORE: row["value"]} for row in table if row["statistic"] == f"{first.name}.{MORE}"]
    assert {float(row[MORE]) for row in table} == {1 / 3}
    page, config, store = (tmp_path / name for name in ("page.html", "config.yaml", "runs.db"))
    package.attn(*arguments, "-o", str(page))
    assert f'"{MORE}"' in page.read_text()
    if not settings:
        return
    config.write_text(json.dumps({"experiment": experiment} | settings))
    place = "" if first.is_single else ".0"
    name = MORE if first.name == "heads" else f"{first.name}{place}.{MORE}"
    package.attn("batch", str(config), "-o", str(store), "--expect", f"{name} = {1 / 3}")
    summary = package.report("results", str(store), "--statistic", name)["statistics"]["summary"]
    assert summary and all(abs(row["mean"] - 1 / 3) < 1e-6 for row in summary)


COLUMN = "size"


def test_a_column_of_a_result_is_on_screens_and_in_python(package: Package) -> None:
    text = "to be or not to be"
    heads = package.report("why", text)["statistics"]["heads"]
    sizes = [abs(head["contribution"]) for head in heads]
    assert [head[COLUMN] for head in heads] == sizes == sorted(sizes, reverse=True)
    for screen in (package.attn("why", text), package.attn("why", text, "--format", "md")):
        assert re.search(rf"head\W+{COLUMN}\W+(pattern\W+)?on average", screen), "behind the heads"
        assert all(f"{size:.2f}" in screen for size in sizes[:6])
    script = f"""if True:
        import attncli
        heads = attncli.why(attncli.open_model(), {text!r}).heads
        assert heads.column({COLUMN!r}).min() >= 0 and heads[0].size == heads[0]["size"]
        assert list(heads.to_pandas()["size"]) == [head.size for head in heads]
    """
    package.python(script)


def test_a_view_is_a_format_and_a_suffix(package: Package, tmp_path: Path) -> None:
    shown = package.attn("self", "--sentence", "a b", "--format", "tsv", "--precision", "2").splitlines()
    place = shown.index("# weights (query × key)")
    assert shown[place + 1] == "a\tb"
    assert [len(line.split("\t")) for line in shown[place + 2 : place + 4]] == [2, 2]
    package.attn("self", "--sentence", "a b", "-o", str(tmp_path / "x.tsv"), "--precision", "2")
    assert (tmp_path / "x.tsv").read_text().splitlines() == shown
    assert "|tsv" in package.attn("self", "--help-all")


def test_an_engine_computes_what_it_suits(package: Package) -> None:
    found = package.report("self", "--sentence", "a b c", "--embed-dim", "4", "--explain")
    weights = np.array(found["tensors"]["weights"]["values"])
    scores = np.array(found["tensors"]["scaled_scores"]["values"])
    expected = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    assert np.abs(weights - expected).max() < 1e-14, "in float64, which no other engine takes for float32"
