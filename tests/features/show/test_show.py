"""`attn show` and pictures on the command line: exit code, standard output, standard error."""

import io
import json
import os
import pty
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from attncli.runs.saved_reports import parse_reports
from attncli.views import VIEWS
from attncli.views.texts import subtitle
from tests.conftest import Attn
from tests.forked import run_attn

ATTN = [sys.executable, "-m", "attncli"]
PNG = b"\x89PNG\r\n\x1a\n"

EVERY = [name for name in VIEWS if name not in ("dot", "srt", "vtt")]
"""A graph is of edges alone: test_which_heads_feed has it. Subtitles are of spoken words."""


@pytest.fixture
def saved(attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with saved reports and an array."""
    monkeypatch.chdir(tmp_path)
    assert attn(["multihead", "--num-heads", "2", "--sentence", "a b c", "-o", "x.json"]).code == 0
    Path("two.yaml").write_text("steps:\n- experiment: self\n- experiment: scale-demo\n")
    assert attn(["batch", "two.yaml", "-o", "two.jsonl"]).code == 0
    assert attn(["batch", "two.yaml", "-o", "two.json"]).code == 0
    weights = np.random.default_rng(0).dirichlet(np.ones(5), (2, 3, 5))
    np.savez("w.npz", all=weights, scores=np.log(weights[0]))
    np.save("w.npy", weights.astype(np.float32)[0])
    Path("tokens.txt").write_text("the\ncat\n\x1b[31m\n$x$\nthe\n")
    return tmp_path


@pytest.mark.parametrize("view", [name for name in EVERY if not VIEWS[name].writes_bytes])
def test_every_view_shows_a_saved_report_like_the_run(attn: Attn, saved: Path, view: str) -> None:
    run = attn(["multihead", "--num-heads", "2", "--sentence", "a b c", "--format", view])
    shown = attn(["show", "x.json", "--format", view])
    is_read = view in ("table", "md")  # by people, who are told what to type next about the file
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.partition("Next, with attn ")[0] == run.out.partition("Next, with attn ")[0]
    assert (
        "Next, with attn show: --show all | --format heatmap | -o page.html" in shown.out.replace("\\|", "|")
    ) == is_read


def test_several_reports_stay_several_and_one_is_chosen(attn: Attn, saved: Path) -> None:
    for file, view in (("two.json", "json"), ("two.jsonl", "jsonl")):
        assert attn(["show", file, "--format", view]).out == Path(file).read_text()
    chosen = attn(["show", "two.jsonl", "--report", "1", "--format", "json"])
    assert json.loads(chosen.out)["experiment"] == "scale-demo"


def test_a_report_comes_through_a_pipe(attn: Attn, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path("x.json").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert attn(["show", "-", "--format", "json"]).out.encode() == text
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join(ATTN)} show <(cat x.json) --format json"], capture_output=True, cwd=saved
    )
    assert done.stdout == text, done.stderr


def test_standard_input_is_named_in_headings_and_errors(attn: Attn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is a dash in another setting stays a dash."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat sat")))
    shown = attn(["heads", "--file", "-"]).out.splitlines()
    assert shown[1] == "standard input"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat-sat")))
    report = attn(["why", "--file", "-", "--answer", "-", "--format", "json"]).out
    (report,) = parse_reports(report, "why").reports
    assert subtitle(report).endswith(", standard input, model tiny-induction, answer -")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\x93NUMPY\x01\xff")))
    assert attn(["show", "-"]).err.startswith("standard input: is not text: attn show reads saved reports")


def test_an_array_has_the_statistics_of_weights(attn: Attn, saved: Path) -> None:
    ended = attn(["show", "w.npz", "--array", "all", "--tokens", "tokens.txt", "--format", "json"])
    report = json.loads(ended.out)
    assert report["tokens"] == ["the", "cat", "\x1b[31m", "$x$", "the"] and "\x1b" not in ended.out
    weights = torch.from_numpy(np.load("w.npz")["all"])
    assert report["tensors"]["weights"] == {
        "axes": ["layer", "head", "query", "key"],
        "values": weights.tolist(),
    }
    rows, keys = report["statistics"]["rows"], report["statistics"]["keys"]
    expected = torch.special.entr(weights).sum(dim=-1)
    np.testing.assert_allclose(rows["entropy"], expected, rtol=1e-12)
    np.testing.assert_array_equal(rows["top_keys"], weights.argsort(descending=True)[..., :3])
    np.testing.assert_allclose(keys["received_mass"], weights.sum(dim=-2), rtol=1e-12)
    assert report["statistic_axes"]["rows"]["top_keys"] == ["layer", "head", "query", "rank"]
    Path("y.json").write_text(ended.out)
    assert attn(["show", "y.json", "--format", "json"]).out == ended.out


def test_hidden_keys_do_not_count_as_visible(attn: Attn, saved: Path) -> None:
    """normalized_entropy is 1 for uniform causal rows, and missing for rows with one visible key."""
    np.save("causal.npy", np.tri(4) / np.arange(1, 5)[:, np.newaxis])
    report = json.loads(attn(["show", "causal.npy", "--format", "json"]).out)
    assert report["statistics"]["rows"]["normalized_entropy"] == [None, *[pytest.approx(1)] * 3]


@pytest.mark.parametrize(
    ("array", "note"),
    [
        (np.full((3, 3), 0.5), "Rows sum to 1.5, not to one"),
        (np.array([[2.0, -1.0], [0.5, 0.5]]), "Some weights are negative"),
        (np.array([[np.nan, 1.0], [0.5, 0.5]]), "1 entry is not a number"),
    ],
)
def test_rows_that_do_not_sum_to_one_have_no_statistics(
    attn: Attn, saved: Path, array: np.ndarray, note: str
) -> None:
    np.save("no.npy", array)
    report = json.loads(attn(["show", "no.npy", "--format", "json"]).out)
    assert report["statistics"] == {} and report["notes"][-1] == f"{note}, so there are no row statistics."
    assert attn(["show", "no.npy"]).code == 0


def test_rounded_weights_are_distributions(attn: Attn, saved: Path) -> None:
    from safetensors.torch import save_file

    weights = torch.rand(2, 64, 64, generator=torch.Generator().manual_seed(0)).mul(9).softmax(-1)
    save_file({"w": weights.to(torch.bfloat16)}, "w.safetensors")
    report = json.loads(attn(["show", "w.safetensors", "--format", "json"]).out)
    assert set(report["statistics"]) == {"rows", "keys"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nowhere.json"], "nowhere.json: no such file"),
        (["show", "."], ".: is a directory, not a file"),
        (["show", "two.yaml"], "two.yaml:1:1: is not valid JSON: expecting value"),
        (["show", "x.json", "--tokens", "tokens.txt"], "--tokens: is only for arrays (.npz, .npy, .safetensors, .pt), but x.json is not an array"),
        (["show", "w.npz"], "w.npz: contains 2 arrays: choose one with --array NAME: all, scores"),
        (["show", "w.npy", "--tokens", "two.yaml"], "--tokens: must contain 5 tokens, one for each query (got 3)"),
        (["show", "w.npy", "--tokens", "-", "--context-tokens", "-"], "--context-tokens: cannot read stdin, which --tokens already reads"),
        (["show", "two.jsonl", "--report", "-1"], "--report: must be below 2, the number of reports in two.jsonl (got -1)"),
        (["show", "two.jsonl", "--report", "2"], "--report: must be below 2, the number of reports in two.jsonl (got 2)"),
        (["show", "model.bin"], "model.bin: is a pickled file, which can run code when it is read: save the arrays as .npz or .safetensors"),
        (
            ["batch", "two.yaml", "-o", "two.png"],
            "--format png: a picture shows one report, but there are several: save the reports as .jsonl, then draw one with attn show FILE --report NUMBER",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_errors_are_one_line(attn: Attn, saved: Path, arguments: list[str], message: str) -> None:
    assert attn(arguments) == (2, "", f"{message}\n")
    assert not list(saved.glob("*.p*ng*"))


def test_a_damaged_list_writes_nothing(attn: Attn, saved: Path) -> None:
    Path("half.jsonl").write_text(Path("two.jsonl").read_text()[:-100])
    ended = attn(["show", "half.jsonl", "--format", "jsonl"])
    assert (ended.code, ended.out) == (2, "") and ended.err.startswith("half.jsonl:2:"), ended


def test_a_picture_is_written_to_a_file_or_a_pipe(attn: Attn, saved: Path) -> None:
    assert attn(["show", "x.json", "-o", "x.png"]) == (0, "", "")
    assert attn(["multihead", "--num-heads", "2", "--sentence", "a b c", "-o", "y.PNG"]) == (0, "", "")
    assert Path("x.png").read_bytes() == Path("y.PNG").read_bytes()
    done = subprocess.run([*ATTN, "show", "x.json", "--format", "png"], capture_output=True, cwd=saved)
    assert done.stdout == Path("x.png").read_bytes() and done.stdout.startswith(PNG) and done.stderr == b""
    closed = subprocess.run(
        ["bash", "-c", f"{shlex.join(ATTN)} show x.json --format png | head -c 0; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        cwd=saved,
    )
    assert (closed.returncode, closed.stderr) == (0, b"")


@pytest.mark.nightly
def test_a_picture_is_refused_for_a_terminal(saved: Path) -> None:
    terminal, child = pty.openpty()
    done = subprocess.run(
        [*ATTN, "show", "x.json", "--format", "png"], stdout=child, stderr=subprocess.PIPE, cwd=saved
    )
    os.close(child)
    message = b"--format png: is binary and cannot be shown in a terminal: use -o FILE.png or a pipe\n"
    assert (done.returncode, done.stderr) == (2, message)
    os.close(terminal)


def test_a_picture_without_matplotlib_names_the_extra(saved: Path) -> None:
    script = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from attncli.cli import run\n"
        "code = run(['self', '-o', 'z.png'])\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=saved)
    message = '--format png: needs: pip install "attncli[plot]"\n'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert not Path("z.png").exists()


@pytest.mark.nightly
def test_without_a_home_matplotlib_tells_nothing(saved: Path) -> None:
    no_folder = str(saved / "tokens.txt" / "x")
    environment = {**os.environ, "HOME": no_folder, "MPLCONFIGDIR": no_folder}
    assert run_attn(["show", "x.json", "-o", "x.svg"], folder=saved, environment=environment) == (0, "", "")


def test_saved_reports_need_no_torch(saved: Path) -> None:
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from attncli.cli import run\n"
        "codes = [run(['show', 'x.json', '--format', view, '-o', 'y']) for view in sys.argv[1:]]\n"
        "assert not any(codes), codes\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *EVERY], capture_output=True, text=True, cwd=saved)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_title_is_refused_for_views_without_one(attn: Attn, saved: Path) -> None:
    assert attn(["show", "x.json", "--title", "Mine & <yours>", "-o", "x.svg"]).code == 0
    assert "Mine &amp; &lt;yours&gt;" in Path("x.svg").read_text()
    refused = attn(["show", "x.json", "--title", "Mine"])
    assert refused.code == 2
    assert (
        refused.err == "--title: table has no title; --title works with heatmap, html, png, svg, pdf, dot\n"
    )


def test_a_report_without_a_matrix_is_refused_as_a_picture(attn: Attn, saved: Path) -> None:
    refused = attn(["pitfalls", "-o", "x.png"])
    assert refused.code == 2 and not Path("x.png").exists()
    assert refused.err == (
        "--format png: this pitfalls report has no matrix or curve to draw: try attn pitfalls late-mask\n"
    )
    assert attn(["pitfalls", "late-mask", "-o", "x.png"]).code == 0


def test_a_store_is_refused_with_the_commands_that_show_it(tmp_path: Path, attn: Attn) -> None:
    store = tmp_path / "runs.db"
    sqlite3.connect(store).execute("CREATE TABLE store (plan)").connection.close()
    ended = attn(["show", str(store)])
    wanted = "is a database: if it is a store, use attn results, watch or heads --store to show it"
    assert (ended.code, ended.err) == (2, f"{store}: {wanted}\n")


def edited(report: Path, keys: str, value: object) -> list[str]:
    """Return the command that shows a saved report with an edited value, as `statistics.heads.3.entropy`."""
    data = json.loads(report.read_text())
    *path, last = (int(key) if key.isdigit() else key for key in keys.split("."))
    place = data
    for key in path:
        place = place[key]
    place[last] = value
    report.with_name("edited.json").write_text(json.dumps(data))
    return ["show", str(report.with_name("edited.json"))]


@pytest.mark.parametrize(
    ("command", "keys", "value", "line"),
    [
        (["heads", "--words", "aa bb aa bb"], "spec.top", "x", "heads"),
        (["ablate", "abcabc"], "spec.top", "x", "ablate"),
        (["heads", "aba"], "statistics.without_first.6.special_mass", [1], "heads"),
        (["why", "--head", "1:2", "--from", "5", "--to", "2", "ababab"], "experiment", "zzz", "why"),
    ],
)
def test_an_edited_report_is_shown_without_the_edit(
    command: list[str], keys: str, value: object, line: str, attn: Attn, tmp_path: Path
) -> None:
    """The edited values have the right form but another type, which only a screen reads."""
    report = tmp_path / "report.json"
    assert attn([*command, "-o", str(report)]).code == 0
    ended = attn(edited(report, keys, value))
    assert (ended.code, ended.err) == (0, "") and ended.out.startswith(line)
    assert attn([*edited(report, keys, value), "--show", "all"]).code == 0
