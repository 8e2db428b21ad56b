"""The next run removes the temporary files of killed runs, but not those of running ones."""

import os
import subprocess
import sys
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

from attncli.commands.output import written_stream
from attncli.views import VIEWS
from tests.conftest import Attn


def process_that_is_gone() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_parts_of_killed_runs_are_removed(attn: Attn, tmp_path: Path) -> None:
    gone = process_that_is_gone()
    left = {tmp_path / f".x.json.{gone}.part", tmp_path / f".x.json.{gone}.2.part"}
    other = tmp_path / "other"
    other.write_text("of somebody")
    stays = {
        tmp_path / f".x.json.{os.getppid()}.part",  # of a running process
        tmp_path / f".y.json.{gone}.part",  # of another file
        tmp_path / ".x.json.mine.part",
        tmp_path / f".x.json.{gone}.part.bak",
        tmp_path / f".x.json.{gone}.3.part",  # locked by another machine that shares the folder
        tmp_path / f".x.json.{gone}.4.part",  # a link
        tmp_path / f".x.json.{gone}.5.part",  # a folder
    }
    for path in sorted(left | stays):
        if path.name.endswith(".4.part"):
            path.symlink_to(other)
        elif path.name.endswith(".5.part"):
            path.mkdir()
        else:
            path.write_text("half of a rep")
    with (tmp_path / f".x.json.{gone}.3.part").open("w") as locked:
        flock(locked, LOCK_EX)
        assert attn(["average", "-o", str(tmp_path / "x.json")]).code == 0
    assert {*tmp_path.iterdir()} == {*stays, other, tmp_path / "x.json"}
    assert other.read_text() == "of somebody"


def test_two_writers_of_one_file_have_separate_parts(tmp_path: Path) -> None:
    """Processes on two machines may have the same number."""
    path = tmp_path / "x.txt"
    with written_stream(path, VIEWS["table"]) as first:
        first.write("first")
        with written_stream(path, VIEWS["table"]) as second:
            second.write("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.nightly
def test_torch_leaves_no_empty_folder(tmp_path: Path) -> None:
    """torch creates one for compiled code when transformers imports it."""
    command = [sys.executable, "-m", "attncli", "heads", "the cat", "--format", "json"]
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    subprocess.run(command, env=environment | {"TMPDIR": str(tmp_path)}, check=True, capture_output=True)
    assert not [*tmp_path.iterdir()]
