"""`attn watch`: what is read from steps, resumed, followed and refused."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from attncli.cli import run
from attncli.commands.command import resolved_file
from attncli.features.watch import question as page
from attncli.features.watch.checkpoints import is_settled, logged_loss
from attncli.features.watch.door import Watch
from attncli.features.watch.screens import sparkline
from attncli.models.folder import SHIPPED_MODEL
from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Report, Table
from attncli.runs.runner import Session
from attncli.views import Display, load_view
from attncli.views.matrices import report_curves
from attncli.views.terminal import dotted_lines
from tests.commands.test_walks import terminal
from tests.conftest import Attn

PROBE = ["--num-tokens", "6"]
STEPS = {2: 1.0, 10: 3.0, 9: 2.0}
"""Of each checkpoint, and how much larger its scores are."""


def model_with(scale: float) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_positions=32, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for layer in model.transformer.h:
            layer.attn.c_attn.weight *= 20 * scale
    return model


def save(folder: Path, scale: float) -> Path:
    model_with(scale).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(SHIPPED_MODEL) / name, folder)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    for step, scale in STEPS.items():
        save(folder / f"checkpoint-{step}", scale)
    history = [{"step": 5, "loss": 2.5}, {"step": 9, "loss": 1.5}, {"step": 9, "eval_loss": 9.0}]
    state = json.dumps({"log_history": history})
    (folder / "checkpoint-9" / "trainer_state.json").write_text(state)
    (folder / "checkpoint-2" / "trainer_state.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def surveyed(checkpoints: Path) -> Path:
    """A store of the checkpoints."""
    store = checkpoints.parent / f"{checkpoints.name}.db"
    assert run(["watch", f"{checkpoints}/*", *PROBE, "-o", str(store)]) == 0
    return store


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_checkpoints_are_surveyed_in_the_order_of_their_steps(
    checkpoints: Path, surveyed: Path, attn: Attn
) -> None:
    ended = attn(["watch", f"{checkpoints}/checkpoint-*", *PROBE, "--format", "csv"])
    assert ended.code == 0
    table = rows(ended.out)
    assert [row["step"] for row in table] == ["2", "9", "10"]
    assert [row["loss"] for row in table] == ["", "1.5", ""]
    for row in table:
        one = attn(
            ["heads", "--model", f"{checkpoints}/checkpoint-{row['step']}", *PROBE, "--format", "json"]
        )
        assert one.code == 0, one.err
        heads = json.loads(one.out)["statistics"]["heads"]
        assert float(row["largest_max_score"]) == max(head["max_score"] for head in heads)
        assert float(row["mean_entropy"]) == pytest.approx(np.mean([head["entropy"] for head in heads]))
    one_head = rows(attn(["watch", str(surveyed), "--head", "1:2", "--format", "csv"]).out)
    assert [row["step"] for row in one_head] == ["2", "9", "10"]
    assert float(one_head[-1]["max_score"]) == heads[5]["max_score"]
    of_grid = rows(attn(["watch", str(surveyed), "--show", "max_score", "--format", "csv"]).out)
    assert [(row["step"], row["layer"], row["head"]) for row in of_grid][-2:] == [
        ("10", "1", "1"),
        ("10", "1", "2"),
    ]
    assert float(of_grid[-1]["max_score"]) == heads[5]["max_score"]


def test_a_store_resumes_and_replaces_a_checkpoint_that_changed(
    checkpoints: Path, tmp_path: Path, attn: Attn, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = tmp_path / "run", tmp_path / "kept.db"
    shutil.copytree(checkpoints, folder)
    asked = ["watch", f"{folder}/*", *PROBE, "-o", str(store)]
    surveyed: list[str] = []
    run = Session.run

    def counted(self: Session, spec: object, **how: bool) -> object:
        surveyed.append(Path(str(vars(spec)["model"])).name)
        return run(self, spec, **how)

    monkeypatch.setattr(Session, "run", counted)
    first = attn(asked)
    assert (first.code, surveyed) == (0, ["checkpoint-2", "checkpoint-9", "checkpoint-10"])
    assert attn(asked) == first and len(surveyed) == 3, "nothing was left to do"
    assert attn(["watch", str(store)]).out == first.out
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    asked[1] = f"{moved}/*"
    assert attn(asked).code == 0 and len(surveyed) == 3, "it is known by its content"
    save(moved / "checkpoint-9", 5.0)
    assert attn(asked).code == 0 and surveyed[3:] == ["checkpoint-9"]
    table = rows(attn(["watch", str(store), "--format", "csv"]).out)
    scores = [float(row["largest_max_score"]) for row in table]
    assert len(scores) == 3 and scores[0] < scores[2] < scores[1]
    other = attn([*asked[:2], "--sentence", "to be", "-o", str(store)])
    assert (other.code, other.err) == (
        2,
        f"-o {store}: has steps on another text or with other settings: use another name, or --fresh\n",
    )
    assert attn(["heads", "--store", str(store)]).err == (
        f"--store: {store} has steps of a training run: use attn watch {store} to show them\n"
    )
    tidy = rows(attn(["results", str(store), "--tidy"]).out)
    assert {row["id"] for row in tidy} == {"2", "9", "10"}


def test_expectations_end_with_exit_code_1_and_name_step_and_head(
    checkpoints: Path, surveyed: Path, tmp_path: Path, attn: Attn
) -> None:
    store = Path(shutil.copy(surveyed, tmp_path))
    asked = ["watch", f"{checkpoints}/*", *PROBE, "-o", str(store)]
    table = rows(attn(["watch", str(store), "--format", "csv"]).out)
    scores = [float(row["largest_max_score"]) for row in table]
    between = (scores[1] + scores[2]) / 2
    for command in (asked, ["watch", str(store)]):
        ended = attn([*command, "--expect", f"max_score < {between}"])
        assert ended.code == 1
        assert ended.err.startswith(f"step 10: expected max_score < {between}: got ")
        assert attn([*command, "--expect", f"max_score < {scores[2] + 1}"]).code == 0
    (first, *_), (least, *_) = (
        attn(["watch", str(store), "--expect", condition]).err.splitlines()
        for condition in ("max_score < 0", "entropy > 9")
    )
    for line, name, sign in ((first, "max_score", 1), (least, "entropy", -1)):
        grid = rows(attn(["watch", str(store), "--show", name, "--format", "csv"]).out)
        worst = max((row for row in grid if row["step"] == "2"), key=lambda row: sign * float(row[name]))
        assert line.endswith(
            f": got {float(worst[name])!r} in {worst['layer']}:{worst['head']} (and in 5 more)"
        )
    assert attn(["watch", str(store), "--expect", "max_scor < 1"]).code == 1
    unknown = attn([*asked, "--expect", "max_scor < 1"])
    assert unknown.code == 2 and unknown.err.startswith("--expect 'max_scor < 1': no run will have max_scor")


REFUSED = [
    (["watch", "{}/none-*"],
     "{}/none-*: no checkpoints or store of this name: a checkpoint is a model folder with a "
     "step number in its name, such as run/checkpoint-500"),
    (["watch", "{}"], "{}: is not a checkpoint, but contains checkpoints: use attn watch '{}/*'"),
    (["watch", "{}/empty"],
     "{}/empty: no checkpoints in it: a checkpoint is a model folder with a step number in its name, such as "
     "{}/empty/checkpoint-500"),
    (["watch", "{}/checkpoint-2", "a.db"],
     "a.db: is a store, which must be the only argument: use attn watch a.db"),
    (["watch", "{}/*", "--head", "7:0", *PROBE],
     "--head: must be a head of checkpoint-10: layers 0 to 1, heads 0 to 2 (got 7:0)"),
    (["watch", "owner/tiny@step*"],
     "owner/tiny: no such folder (a hub id needs --allow-download), and none of its revisions is "
     "in the cache"),
    (["watch", "{}/*", "--fresh"], "--fresh: needs a store: -o FILE.db"),
    (["watch", "lessons/learning-to-copy.db", "--fresh"],
     "--fresh: is only for checkpoints: {lesson} is a store"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "line"), REFUSED, ids=lambda each: str(each)[:40])
def test_wrong_arguments_are_one_line_each(
    words: list[str], line: str, checkpoints: Path, attn: Attn
) -> None:
    (checkpoints / "empty").mkdir(exist_ok=True)
    ended = attn([word.replace("{}", str(checkpoints)) for word in words])
    told = line.replace("{}", str(checkpoints)).replace("{lesson}", resolved_file(LEARNED))
    assert (ended.code, ended.err) == (2, f"{told}\n")


@pytest.mark.nightly
def test_checkpoints_that_a_shell_names_one_by_one_are_watched_together(
    checkpoints: Path, attn: Attn
) -> None:
    names = [f"{checkpoints}/checkpoint-{step}" for step in STEPS]
    one_by_one = attn(["watch", *names, *PROBE])
    assert one_by_one.code == 0
    assert one_by_one == attn(["watch", f"{checkpoints}/*", *PROBE])


def test_checkpoints_without_a_step_or_that_cannot_be_read_are_reported(
    checkpoints: Path, tmp_path: Path, attn: Attn
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(checkpoints, folder)
    (folder / "checkpoint-9" / "model.safetensors").write_bytes(b"cut off")
    ended = attn(["watch", f"{folder}/*", *PROBE, "--format", "csv"])
    assert ended.code == 3 and [row["step"] for row in rows(ended.out)] == ["2", "10"]
    assert ended.err.startswith(f"{folder}/checkpoint-9: ")
    shutil.copytree(checkpoints / "checkpoint-2", folder / "best")
    ended = attn(["watch", f"{folder}/*"])
    assert ended.err == f"{folder}/best: must contain a step number, such as checkpoint-500\n"
    (folder / "best").rename(folder / "step-10")
    ended = attn(["watch", f"{folder}/*"])
    assert ended.err == (f"{folder}/checkpoint-10 and {folder}/step-10 have the same step number (10)\n")


def test_follow_goes_on_with_checkpoints_as_they_are_written(
    checkpoints: Path, tmp_path: Path, attn: Attn, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, table = tmp_path / "run", tmp_path / "steps.csv"
    folder.mkdir()
    new = iter([2, None, 9, 10, None])
    monkeypatch.setattr(
        "attncli.features.watch.checkpoints.is_settled", lambda path: (path / "tokenizer.json").is_file()
    )
    seen = []

    def sleep(_: float) -> None:
        seen.append([row["step"] for row in rows(table.read_text())] if table.exists() else [])
        try:
            step = next(new)
        except StopIteration:
            raise KeyboardInterrupt from None
        if step is not None:
            shutil.copytree(checkpoints / f"checkpoint-{step}", folder / f"checkpoint-{step}")

    monkeypatch.setattr(time, "sleep", sleep)
    asked = ["watch", f"{folder}/*", "--follow", *PROBE, "-o", str(table)]
    assert attn(asked).code == 0
    assert seen == [[], ["2"], ["2"], ["2", "9"], ["2", "9", "10"], ["2", "9", "10"]]
    without_store = attn(["watch", f"{folder}/*", "--follow", *PROBE]).out
    assert without_store.endswith("\nNext, with attn watch: --head 0:0 | -o checkpoints.db\n")


class _Hub(BaseHTTPRequestHandler):
    """What huggingface_hub asks a hub: the branches of one model, and the files of each."""

    folders: ClassVar[dict[str, Path]]
    asked: ClassVar[list[str]]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        body, headers, status = b"{}", {"X-Error-Code": "EntryNotFound"}, 404
        _, _, rest = path.removeprefix("/api/models").partition("/owner/tiny/")
        kind, _, rest = rest.partition("/")
        revision, _, file = rest.partition("/")
        names = {commit: name for name in self.folders for commit in (name, _commit(name))}
        folder = self.folders.get(names.get(revision, ""))
        if kind == "refs":
            branches = [
                {"name": name, "ref": f"refs/heads/{name}", "targetCommit": _commit(name)}
                for name in self.folders
            ]
            body, status = json.dumps({"branches": branches, "converts": [], "tags": []}).encode(), 200
        elif kind == "revision" and folder is not None:
            body, status = json.dumps({"id": "owner/tiny", "sha": _commit(revision)}).encode(), 200
        elif kind == "tree" and folder is not None and not file:
            files = [{"type": "file", "path": path.name, "oid": "", "size": 0} for path in folder.iterdir()]
            body, status = json.dumps(files).encode(), 200
        elif kind == "resolve" and folder is not None and (folder / file).is_file():
            body, status = (folder / file).read_bytes(), 200
            headers = {"X-Repo-Commit": _commit(names[revision]), "ETag": f'"{sha256(body).hexdigest()}"'}
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _commit(revision: str) -> str:
    return sha256(revision.encode()).hexdigest()[:40]


def test_a_log_that_cannot_be_read_has_no_losses(tmp_path: Path) -> None:
    log = tmp_path / "trainer_state.json"
    log.write_text('{"log_history": [{"step": 5, "loss": 1.5}]}')
    assert logged_loss(tmp_path, 5) == 1.5
    for written in (
        *("", "[]", "[" * 100_000, '{"log_history": 5}', '{"log_history": [5]}', "\ud800"),
        f'{{"log_history": [{{"step": 5, "loss": {"9" * 400}}}]}}',
    ):
        log.write_bytes(written.encode("utf-8", "surrogatepass"))
        assert logged_loss(tmp_path, 5) is None
    os.truncate(log, 2**33)
    tracemalloc.start()
    try:
        assert logged_loss(tmp_path, 5) is None
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.nightly
def test_revisions_of_a_hub_id_are_read_online_and_from_the_cache(
    checkpoints: Path, tmp_path: Path, attn: Attn, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Hub.folders = {f"step{step}-tokens1B": checkpoints / f"checkpoint-{step}" for step in STEPS}
    _Hub.folders["main"] = checkpoints / "checkpoint-10"
    _Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        **os.environ,
        **{
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "0",
        },
    }

    asked = ["watch", "owner/tiny@step*", *PROBE, "--allow-download"]
    command = [sys.executable, "-m", "attncli", *asked, "-o", str(tmp_path / "kept.db"), "--format", "csv"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    finally:
        server.shutdown()
        server.server_close()
    assert (done.returncode, done.stderr) == (0, "")
    folders = attn(["watch", f"{checkpoints}/*", *PROBE, "--format", "csv"])
    assert rows(done.stdout) == [
        {name: cell for name, cell in row.items() if name != "loss"} for row in rows(folders.out)
    ]
    assert not any("/main/model" in path for path in _Hub.asked), "of no other revision any weights are read"
    with monkeypatch.context() as offline:
        offline.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        offline.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        offline.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        assert attn([*asked, "--format", "csv"]) == (0, done.stdout, "")
        with offline.context() as kept:
            kept.setattr(Session, "run", None)  # by their commits all are known
            assert attn([*asked, "-o", str(tmp_path / "kept.db"), "--format", "csv"]).out == done.stdout
        assert attn([*asked[:1], "owner/tiny@ste9*", "--allow-download"]).err == (
            "owner/tiny@ste9*: no revision of owner/tiny matches ste9*: its revisions are "
            "step10-tokens1B, step2-tokens1B, step9-tokens1B\n"
        )
        assert attn([*asked[:1], "owner/other@*", "--allow-download"]).err == (
            "owner/other: HF_HUB_OFFLINE is set, and none of its revisions is in the cache\n"
        )
        refs = tmp_path / "hub" / "models--owner--tiny" / "refs"
        (refs / "stepX").write_bytes(b"\xff")
        assert (
            "a revision cannot be read: 'utf-8' codec"
            in attn([*asked[:1], "owner/tiny@*", "--allow-download"]).err
        )
        shutil.rmtree(refs)
        one = attn(["heads", "--model", "owner/tiny@step9-tokens1B", *PROBE, "--allow-download"])
        assert one.code == 2 and one.err.endswith(
            "run hf download owner/tiny --revision step9-tokens1B "
            "--local-dir tiny@step9-tokens1B on another machine, and use that folder\n"
        )


def test_a_folder_that_is_being_written_is_not_read_yet(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not is_settled(tmp_path)
    assert not is_settled(tmp_path / "removed")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a model whose scores grow, on tokens and on a text."""
    path, model = tmp_path_factory.mktemp("watched") / "run.db", model_with(0.1)
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    with Watch(model, tokenizer, every=5, store=path, text="to be", num_tokens=6) as watch:
        for step in range(0, 40, 5):
            watch.step(step, loss=4 / (step + 1))
            with torch.no_grad():
                model.transformer.h[1].attn.c_attn.weight *= 1.6
    return path


def test_watch_shows_each_text_and_every_view_holds_it(watched: Path, tmp_path: Path, attn: Attn) -> None:
    shown = attn(["watch", str(watched)]).out
    assert shown.count("watch: GPT2LMHeadModel, 6 heads, 8 steps from 0 to 35") == 2
    assert "probe: 6 random tokens, twice" in shown and "\nto be\n" in shown
    assert "\nloss  " in shown and "0.11 to 4.00" in shown
    for suffix in ("json", "html", "md", "jsonl"):
        assert attn(["watch", str(watched), "-o", str(tmp_path / f"w.{suffix}")]).code == 0
    saved = attn(["show", str(tmp_path / "w.json")])
    of_file = "Next, with attn show: --show all | --format heatmap | -o page.html"
    assert saved.code == 0 and saved.out == re.sub("Next, with attn watch: .*", of_file, shown)
    first = json.loads((tmp_path / "w.json").read_text())[0]
    assert np.array(first["tensors"]["max_score"]["values"]).shape == (8, 2, 3)
    assert first["tensors"]["max_score"]["axes"] == ["step", "layer", "head"]
    drawn = attn(["watch", str(watched), "--format", "heatmap"])
    assert drawn.code == 0 and "step 35" in drawn.out


@pytest.mark.parametrize("lines", [16, 24, 50])
def test_the_screen_fits_the_terminal(watched: Path, lines: int) -> None:
    from attncli.runs.reading import reading

    with reading(watched) as reader:
        report = page.watch_reports(watched, reader)[0]
    stream = StringIO()
    load_view("table")([report], stream, Display(width=80, height=lines))
    text = stream.getvalue()
    assert text.count("\n") <= lines and max(map(len, text.split("\n"))) <= 80
    assert "largest max score" in text and "layer 1" in text
    assert ("\nNot shown: changes of patterns at 2 steps. " in text) == (lines < 50)
    assert ("more lines. See --show all." in text) == (lines == 16)
    stream = StringIO()
    load_view("table")([replace(report, spec={**report.spec, "store": None})], stream, Display(width=80))
    assert "Next, with attn watch: --follow" in stream.getvalue()


def test_other_stores_and_files_are_refused(tmp_path: Path, attn: Attn) -> None:
    (tmp_path / "a.yaml").write_text("experiment: self\nsentence: a b\n")
    store = tmp_path / "batch.db"
    assert attn(["batch", str(tmp_path / "a.yaml"), "-o", str(store)]).code == 0
    ended = attn(["watch", str(store)])
    expected = f"{store}: has no training steps: use attn results {store}\n"
    assert (ended.code, ended.err) == (2, expected)
    waits = "use --follow to wait until a training run creates it"
    assert attn(["watch", str(tmp_path / "no.db")]).err == f"{tmp_path / 'no.db'}: no such file: {waits}\n"


def test_without_a_run_it_shows_the_one_that_ships(tmp_path: Path, attn: Attn) -> None:
    ended = attn(["watch"])
    title, read, *others = attn(["watch", "lessons/learning-to-copy.db"]).out.split("\n")
    assert ended.out.split("\n") == [
        title,
        f"{read}. It ships with attn; attn watch RUN shows yours",
        *others,
    ]
    assert attn(["watch", "--head", "1:1", "--format", "csv"]).out.startswith("step,loss,pattern,")
    refused = "--sentence: is only for checkpoints: lessons/learning-to-copy.db is a store\n"
    assert attn(["watch", "--sentence", "a b"]).err == refused


@pytest.mark.nightly
def test_at_a_terminal_it_waits_for_a_store_that_the_training_has_yet_to_make(
    watched: Path, tmp_path: Path
) -> None:
    waits = re.compile("run.db: no such file yet: waiting for the training run \\(Ctrl-C to stop\\)")
    with terminal(["watch", "run.db", "--follow"], tmp_path) as opened:
        assert opened.read(waits), opened.screen
        shutil.copy(watched, tmp_path / "part")
        (tmp_path / "part").rename(tmp_path / "run.db")
        assert opened.read(re.compile("Next, with attn watch")) and opened.code() == 0
    with terminal(["watch", "none.db"], tmp_path) as opened:
        assert opened.read(re.compile("none.db: no such file: --follow waits")) and opened.code() == 2
    with terminal(["watch", "none.db", "--follow"], tmp_path) as opened:
        assert opened.read(re.compile("none.db: no such file yet"))
        opened.press("\x03")
        assert opened.code() == 130
    with terminal(["watch", "none/run.db", "--follow"], tmp_path) as opened:
        assert not opened.read(waits) and "none/run.db: no such file\n" in opened.screen


def test_sparklines_start_at_0_and_end_at_the_largest_number() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5, 5], 8) == sparkline([5.1, 4.9, 5.0], 8) == "███"
    assert sparkline([0, 0], 8) == "▁▁" and sparkline([4], 8) == "█"
    assert sparkline([-1, 0, 1], 8) == "▁▅█"
    assert sparkline([0.05, 0.01, 0.09], 8, is_share=True) == "▁▁▁"
    assert sparkline([0.05, 0.5, 1.0], 8, is_share=True) == "▁▅█"
    assert sparkline([np.nan, 0, np.inf, 1], 8) == " ▁ █" and sparkline([np.nan, np.nan], 8) == "  "
    assert sparkline([0, 9, 0, 0, 0, 0], 3) == "█▁▁"
    assert sparkline([9, 0, 9, 9, 9, 9], 3, keeps_least=True) == "▁██"


@pytest.mark.nightly
def test_steps_of_another_run_are_never_replaced(
    checkpoints: Path, surveyed: Path, watched: Path, tmp_path: Path, attn: Attn
) -> None:
    store = tmp_path / "run.db"
    shutil.copy(watched, store)
    before = attn(["watch", str(store), "--format", "csv", "-o", str(tmp_path / "before.csv")])
    asked = ["watch", f"{checkpoints}/*", "-o", str(store)]
    asked += ["--num-tokens", "5"]
    ended = attn(asked)
    assert before.code == 0 and ended.code == 2 and ended.err.count("\n") == 1, ended.err
    assert "--fresh" in ended.err
    attn(["watch", str(store), "--format", "csv", "-o", str(tmp_path / "after.csv")])
    assert (tmp_path / "before.csv").read_text() == (tmp_path / "after.csv").read_text()
    kept, other = shutil.copy(surveyed, tmp_path), save(tmp_path / "other" / "checkpoint-9", 4.0)
    ended = attn(["watch", *PROBE, "-o", kept, str(other)])
    assert ended.code == 2 and f"has checkpoints in {checkpoints}" in ended.err


def test_a_checkpoint_of_another_size_is_reported_and_left_out(tmp_path: Path, attn: Attn) -> None:
    save(tmp_path / "run" / "checkpoint-1", 1.0)
    folder = save(tmp_path / "run" / "checkpoint-2", 1.0)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=12, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    ended = attn(["watch", f"{tmp_path}/run/*", *PROBE, "--format", "csv"])
    assert ended.code == 3 and "checkpoint-2: layers and heads differ" in ended.err
    assert [row["step"] for row in rows(ended.out)] == ["1"]


def test_show_statistics_and_a_malformed_head(watched: Path, attn: Attn) -> None:
    ended = attn(["watch", str(watched), "--show", "statistics"])
    assert ended.code == 0 and "internal" not in ended.err, ended.err
    ended = attn(["watch", str(watched), "--head", "x"])
    assert (ended.code, ended.err) == (2, "--head: must be LAYER:HEAD, such as 5:11 (got x)\n")


LEARNED = "lessons/learning-to-copy.db"


def test_conditions_may_use_every_column_of_the_tables(attn: Attn) -> None:
    report = json.loads(attn(["watch", LEARNED, "--format", "json"]).out)
    of_head = json.loads(attn(["watch", LEARNED, "--head", "1:1", "--format", "json"]).out)
    for statistics, flags in ((report["statistics"], []), (of_head["statistics"], ["--head", "1:1"])):
        # Of every head or step, or of none: no name is unknown.
        impossible = {
            f"{column} = -7"
            for table in statistics.values()
            for column, cell in table[-1].items()
            if not isinstance(cell, list)
        }
        expected = [word for each in impossible for word in ("--expect", each)]
        ended = attn(["watch", LEARNED, *flags, *expected])
        assert ended.code == 1 and len(impossible) > 5
        assert [each for each in impossible if f"expected {each}: got" not in ended.err] == []


@pytest.mark.nightly
def test_conditions_on_head_counts_apply_to_every_step(attn: Attn) -> None:
    ended = attn(["watch", LEARNED, "--expect", "induction_heads > 0"])
    rows = json.loads(attn(["watch", LEARNED, "--format", "json"]).out)["statistics"]["steps"]
    without = [row["step"] for row in rows if not row["induction_heads"]]
    lines = [f"step {step}: expected induction_heads > 0: got 0.0" for step in without]
    assert (ended.code, ended.err.splitlines()) == (1, lines) and 0 < len(without) < len(rows)
    held = ["induction_heads < 5", "largest_induction < 1", "first_step < 301", "pattern != first token"]
    assert attn(["watch", LEARNED, *(word for each in held for word in ("--expect", each))]).code == 0
    assert attn(["watch", LEARNED, "--expect", "entropy = high"]).code == 2


def test_steps_without_a_loss_are_gaps_in_charts() -> None:
    from matplotlib.axes import Axes

    losses = [None, 4.0, None, 3.0, 2.5, None]
    report = Report(
        "watch",
        {"store": "run.db", "model": "small"},
        {},
        tensors={
            "step": NamedTensor(("point",), np.arange(6.0)),
            "loss": NamedTensor(("point",), np.array(losses, dtype=np.float64)),
        },
        result=read_result("", {"steps": Table({"step": i, "loss": loss} for i, loss in enumerate(losses))}),
        about="small, 1 head: 6 steps from 0 to 5.",
    )
    ((curve,),) = (group.curves for group in report_curves(report))
    across, up = curve.x / 5, (curve.y - 2.5) / 1.5
    for line in dotted_lines(across, up, 60, 1):
        dotted = [place for place, cell in enumerate(line) if cell != " "]
        assert dotted[0] == 12 and dotted[1:] == [*range(35, 48)], "one dot, and one line, in sixty columns"
    drawn: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Axes, "plot", lambda _self, *of, **how: drawn.append((of, how)))
        load_view("svg")([report], StringIO(), Display())
    ((x, y, *_), how) = drawn[0]
    assert list(x) == [*range(6)] and list(np.isnan(y)) == [loss is None for loss in losses]
    assert how["markevery"] == [1], "only what stands alone is marked"
