"""Models in the hub cache of this machine, opened by their ids without the network."""

import socket
from pathlib import Path
from typing import NoReturn

import pytest

import attncli
from tests.conftest import Attn
from tests.model_folders import save_model

COMMIT, OLDER = "5" * 40, "4" * 40
TEXT = "the cat sat"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any socket and any name lookup fails the test."""

    def refuse(*_args: object, **_options: object) -> NoReturn:
        pytest.fail("a socket was opened")

    monkeypatch.setattr(socket.socket, "__init__", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with `owner/tiny`, in huggingface_hub's layout: links to blobs."""
    folder = tmp_path / "hub" / "models--owner--tiny"
    snapshot = folder / "snapshots" / COMMIT
    blobs, saved = folder / "blobs", save_model(tmp_path / "saved", "BERT")
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(saved.iterdir())):
        blob = file.rename(blobs / f"{number:040}")
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", blob.name))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "refs" / "step8").write_text(f"{COMMIT}\n")
    (folder / "refs" / "step9").write_text(OLDER)
    (folder / "snapshots" / OLDER).mkdir()
    (folder / "snapshots" / OLDER / "config.json").write_text("{}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return folder


def test_a_cached_model_opens_without_the_flag(hub_cache: Path, attn: Attn) -> None:
    asked = ["heads", TEXT, "--format", "csv", "--model"]
    of_folder = attn([*asked, str(hub_cache / "snapshots" / COMMIT)])
    for model in ("owner/tiny", f"owner/tiny@{COMMIT}", "owner/tiny@step8"):
        ended = attn([*asked, model])
        assert (ended.code, ended.err) == (0, "") and ended.out == of_folder.out
    assert attn([*asked[:2], "--model", "owner/tiny@step8"]).out.startswith("heads: tiny")


def test_python_opens_a_cached_model_without_the_flag(hub_cache: Path) -> None:
    pretrained = attncli.open_model("owner/tiny")
    assert pretrained.name == "tiny"
    assert len(attncli.survey("owner/tiny", TEXT).heads) == len(attncli.survey(pretrained, TEXT).heads)


@pytest.mark.parametrize("model", ["owner/other", "owner/tiny@step7", "owner/tiny@step9", "owner/tiny@.."])
def test_an_incomplete_download_needs_the_flag(model: str, hub_cache: Path, attn: Attn) -> None:
    """`step9` has a config without weights, as after opening only its tokenizer."""
    line = f"--model: no such folder or installed package: {model} (a hub id needs --allow-download)\n"
    assert attn(["heads", TEXT, "--model", model]) == (2, "", line)


def test_a_damaged_cached_model_is_one_line(hub_cache: Path, attn: Attn) -> None:
    snapshot = hub_cache / "snapshots" / COMMIT
    (snapshot / "model.safetensors").resolve().write_bytes(b"x" * 99)
    ended = attn(["heads", TEXT, "--model", "owner/tiny"])
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith(f"--model: {snapshot}") and "is not a safetensors file" in ended.err


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HF_HUB_CACHE": "a"}, "a"),
        ({"HUGGINGFACE_HUB_CACHE": "b", "HF_HOME": "c"}, "b"),
        ({"HF_HOME": "c", "XDG_CACHE_HOME": "d"}, "c/hub"),
        ({"XDG_CACHE_HOME": "d"}, "d/huggingface/hub"),
        ({"HOME": "e"}, "e/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_huggingface_hub_keeps_it(
    variables: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attncli.models.folder import hub_cache

    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub_cache() == Path(place)


def test_watch_reads_cached_revisions_without_the_flag(hub_cache: Path, attn: Attn) -> None:
    asked = ["watch", "--num-tokens", "5", "--device", "cpu"]
    ended = attn([*asked, "owner/tiny@step8"])
    assert (ended.code, ended.err) == (0, ""), ended.err
    assert attn([*asked, "owner/other@*"]).err == (
        "owner/other: no such folder (a hub id needs --allow-download), and none of its revisions is "
        "in the cache\n"
    )
