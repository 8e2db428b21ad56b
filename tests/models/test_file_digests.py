"""A file's digest depends on its content, and a large file is read once per state."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from attncli.models import digests
from attncli.models.digests import content_digest


class Reads:
    """Counts the blocks that were read."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose digest is cached once it has been read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "LARGE_BYTES", 1000)
    monkeypatch.setattr(digests, "BLOCK_BYTES", 700)
    monkeypatch.setattr(digests, "SETTLED_SECONDS", -1.0)
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(2003))
    return path


def digest(path: Path, num_blocks: int) -> str:
    """Return the digest; check that it is right and that this many blocks were read."""
    reads = Reads()
    found = content_digest(path, reads)
    assert found == hashlib.sha256(path.read_bytes()).hexdigest()
    assert reads.count == num_blocks
    return found


def test_a_large_file_is_read_once(large: Path, tmp_path: Path) -> None:
    digest(large, 3)
    digest(large, 0)
    (tmp_path / "link").symlink_to(large)
    digest(tmp_path / "link", 0)
    assert len([*(tmp_path / "cache/attncli/digests").iterdir()]) == 1
    small = tmp_path / "small"
    small.write_bytes(b"x" * 999)
    assert digest(small, 2) == digest(small, 2)


@pytest.mark.parametrize("byte", [0, 1000, 2002])
def test_a_change_is_noticed_whatever_the_modification_time(large: Path, byte: int) -> None:
    before, about = digest(large, 3), large.stat()
    with large.open("r+b") as file:
        file.seek(byte)
        other = bytes([file.read(1)[0] ^ 1])
        file.seek(byte)
        file.write(other)
    os.utime(large, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert digest(large, 3) != before
    copy = large.with_name("copy.bin")
    shutil.copy2(large, copy)
    copy.write_bytes(copy.read_bytes()[::-1])
    os.utime(copy, ns=(about.st_atime_ns, about.st_mtime_ns))
    copy.replace(large)
    digest(large, 3)


def test_the_digest_of_a_recently_changed_file_is_not_cached(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change within the same tick of the file system's clock would go unnoticed."""
    monkeypatch.setattr(digests, "SETTLED_SECONDS", 3600.0)
    digest(large, 3)
    digest(large, 3)


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"state": []}', b"\xff", b'{"state": 1, "sha256": "x"}'])
def test_a_damaged_cached_digest_is_ignored(large: Path, tmp_path: Path, damage: bytes) -> None:
    digest(large, 3)
    (note,) = (tmp_path / "cache/attncli/digests").iterdir()
    note.write_bytes(damage)
    digest(large, 3)
    digest(large, 0)


def test_without_a_cache_every_file_is_read(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (large.parent / "cache").write_text("no folder")
    digest(large, 3)
    digest(large, 3)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    digest(large, 3)


def test_unreadable_files_raise_their_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        content_digest(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        content_digest(tmp_path)
