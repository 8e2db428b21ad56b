"""Special files and files that are too large are refused before they are read; a shell's pipes are read."""

import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from attncli.errors import UserError
from attncli.features.pairs.pair_files import SentenceFile
from attncli.models.text_files import TextFile
from attncli.runs.saved_reports import read_reports
from attncli.settings.config_file import read_yaml
from attncli.settings.text import find_word_vectors, read_text, vector_file_dim
from attncli.system import files
from attncli.system.files import open_file, read_whole
from tests.conftest import Attn, in_turn

SPARSE_BYTES = 2**33


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SPARSE_BYTES)


def listening(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as bound:  # a socket's path must be short
        bound.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
    "socket": (listening, "it is a socket, not a file"),
    "folder": (lambda path: path.mkdir(), "Is a directory"),
    "sparse": (sparse, "is larger than"),
}


def counted(file: str) -> int:
    with TextFile(file) as texts:
        return texts.count()


READERS: dict[str, Callable[[str], object]] = {
    "text": read_text,
    "yaml": lambda file: read_yaml(Path(file)),
    "texts": counted,
    "csv": lambda file: TextFile(file).count(),
    "conllu": lambda file: SentenceFile(file).count(),
    "vectors": lambda file: find_word_vectors(Path(file), ["cat"], 3),
    "json": lambda file: read_reports(file, most_bytes=2**28),
    "npy": lambda file: read_reports(file, most_bytes=2**28),
}


def test_a_short_file_takes_no_more_memory_than_it_holds(tmp_path: Path) -> None:
    """Even with a large limit, a short text needs little memory."""
    (tmp_path / "short").write_bytes(b"a b")
    tracemalloc.start()
    try:
        assert read_whole(tmp_path / "short", files.TEXT_BYTES) == b"a b"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("suffix", "kind"), in_turn(READERS, KINDS))
def test_every_reader_refuses_special_and_endless_files(kind: str, suffix: str, tmp_path: Path) -> None:
    make, _ = KINDS[kind]
    make(tmp_path / f"a.{suffix}")
    with pytest.raises((UserError, OSError)) as raised:
        READERS[suffix](str(tmp_path / f"a.{suffix}"))
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_names_the_kind_of_file(kind: str, tmp_path: Path) -> None:
    make, said = KINDS[kind]
    make(tmp_path / "a.txt")
    with pytest.raises(UserError, match=said):
        read_text(str(tmp_path / "a.txt"))


def written_late(pipe: Path, content: bytes) -> threading.Thread:
    """A thread that opens a named pipe and writes to it in two parts, each after a pause."""

    def write() -> None:
        time.sleep(0.2)
        with pipe.open("wb", buffering=0) as file:
            for part in (content[:3], content[3:]):
                time.sleep(0.2)
                file.write(part)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("suffix", "content", "expected"),
    [("text", b"a cat", "a cat"), ("yaml", b"seed: 1\n", {"seed": 1}), ("texts", b"a b\nc d\n", 2)],
)
def test_a_named_pipe_is_waited_for_to_its_end(
    suffix: str,
    content: bytes,
    expected: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(files, "WAIT_SECONDS", 0.05)
    pipe = tmp_path / f"a.{suffix}"
    os.mkfifo(pipe)
    thread = written_late(pipe, content)
    read = READERS[suffix](str(pipe))
    thread.join()
    assert read == expected or suffix == "yaml"
    assert capsys.readouterr().err == f"{pipe}: waiting for a writer of this pipe\n"


def test_readers_of_regular_files_refuse_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(OSError, match="it is a pipe, not a file"):
        open_file(tmp_path / "a.npy")


def test_a_vector_file_without_lines_is_one_line(tmp_path: Path) -> None:
    sparse(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="it has a line of more than 1 MiB"):
        vector_file_dim(tmp_path / "a.txt")


def test_standard_input_has_a_limit() -> None:
    program = (
        "from attncli.system.files import read_whole\n"
        "try: read_whole('-', 1000)\nexcept OSError as error: print(error.strerror)"
    )
    with Path("/dev/zero").open("rb") as endless:
        done = subprocess.run([sys.executable, "-c", program], stdin=endless, capture_output=True, text=True)
    assert "is larger than 0 MiB" in done.stdout


def test_a_pipe_with_a_writer_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "named")
    writer = threading.Thread(target=(tmp_path / "named").write_bytes, args=(b"the cat",))
    writer.start()
    assert read_whole(tmp_path / "named", 100, may_be_pipe=True) == b"the cat"
    writer.join()
    reading, writing = os.pipe()
    os.write(writing, b"sat")
    os.close(writing)
    assert read_whole(f"/dev/fd/{reading}", 100, may_be_pipe=True) == b"sat"
    with pytest.raises(OSError, match="it is a pipe, not a file"):
        open_file(f"/dev/fd/{reading}")
    os.close(reading)


def test_more_than_the_limit_is_refused_from_a_pipe(tmp_path: Path, attn: Attn) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"x" * 101)
    os.close(writing)
    with pytest.raises(OSError, match="is larger than"):
        read_whole(f"/dev/fd/{reading}", 100, may_be_pipe=True)
    os.close(reading)
    (tmp_path / "a.txt").symlink_to("/dev/zero")
    ended = attn(["self", "--file", str(tmp_path / "a.txt")])
    assert (ended.code, ended.out) == (2, "") and "it is a device, not a file" in ended.err
