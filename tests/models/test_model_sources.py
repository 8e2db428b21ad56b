"""Other values of `--model`: a GGUF file, and a package, whose code is not run."""

from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

from attncli.models import folder as models
from attncli.models import loading
from tests.conftest import Attn
from tests.model_folders import save_writer


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, with a separate cache folder."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    models._package_model.cache_clear()
    return folder


def install(site: Path, name: str, *extra: str) -> Path:
    """A package that fails on import, with its files listed as pip lists them."""
    package = site / name
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    about = site / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    files = [str(path.relative_to(site)) for path in package.rglob("*") if path.is_file()]
    (about / "RECORD").write_text("".join(f"{file},,\n" for file in [*files, *extra]))
    return package


def test_a_package_that_ships_a_folder_is_a_model(site: Path, attn: Attn) -> None:
    save_writer(site / "ships_llama" / "weights", "Llama")
    install(site, "ships_llama")
    ended = attn(["generate", "--model", "ships-llama", "the cat sat", "--max-new-tokens", "2"])
    assert (ended.code, ended.err) == (0, "") and ended.out.startswith(
        "generate: ships-llama, 5 tokens, 2 new"
    )
    assert attn(["heads", "--model", "ships-llama", "the cat sat on the street"]).code == 0


def test_a_package_that_ships_two_models_is_refused(site: Path, attn: Attn) -> None:
    for name in ("a.gguf", "b.GGUF"):
        (site / "two").mkdir(exist_ok=True)
        (site / "two" / name).write_bytes(b"GGUF")
    install(site, "two")
    line = f"--model: two ships several models: use one of {site}/two/a.gguf, {site}/two/b.GGUF"
    assert sorted(attn(["heads", "--model", "two"]).err.strip().split()) == sorted(line.split())


def test_a_package_without_a_supported_model_is_reported(site: Path, attn: Attn) -> None:
    (site / "looks" / "models").mkdir(parents=True)
    (site / "looks" / "models" / "vit.onnx").write_bytes(b"")
    install(site, "looks")
    install(site, "plain")
    ships = "ships no model that attn can read (config.json beside weights, or a .gguf file)"
    convert = "; convert its vit.onnx to such a folder, as in docs/images.md"
    for name, instead in (("looks", convert), ("plain", "")):
        line = f"--model: the installed package {name} {ships}{instead}; a hub id needs --allow-download\n"
        assert attn(["heads", "--model", name]) == (2, "", line)
    assert "no such folder or installed package: none" in attn(["heads", "--model", "none"]).err


def test_files_that_are_not_gguf_are_one_line(
    site: Path, attn: Attn, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site / "model.gguf"
    path.write_bytes(b"no such thing")
    assert attn(["heads", "--model", str(path)]).err == f"--model: {path}: is not a GGUF file\n"
    path.write_bytes(b"GGUF" + bytes(100))
    damaged = attn(["heads", "--model", str(path)])
    missing = "does not contain a model: general.architecture is missing"
    assert (damaged.code, damaged.err) == (2, f"--model: {path}: {missing}\n")
    assert damaged.err.count("\n") == 1

    def without_gguf(name: str) -> ModuleSpec | None:
        return None if name == "gguf" else find_spec(name)

    monkeypatch.setattr(loading, "find_spec", without_gguf)
    missing = attn(["heads", "--model", str(path)])
    assert missing.err == '--model: a GGUF file needs: pip install "attncli[gguf]"\n'


def test_half_precision_needs_a_model(attn: Attn, tmp_path: Path) -> None:
    asked = ["multihead", "--model", str(save_writer(tmp_path, "Llama")), "--sentence", "the cat sat"]
    assert '"dtype": "bfloat16"' in attn([*asked, "--dtype", "bfloat16", "--format", "json"]).out
    assert '"dtype"' not in attn([*asked, "--format", "json"]).out
    assert attn(["self", "--dtype", "float16"]).err == "--dtype: needs --model\n"


def test_an_unknown_name_lists_models_and_a_download(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal, the message lists the available models, and the command that would download this one."""
    (tmp_path / "runs" / "whisker").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "runs" / "whisker" / name).touch()
    (tmp_path / "hub" / "models--owner--named" / "snapshots" / "1a2b").mkdir(parents=True)
    (tmp_path / "hub" / "models--owner--nothing").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("attncli.models.folder.is_command_line", lambda: True)
    monkeypatch.setattr("attncli.models.folder.models_in_packages", lambda: ["packed"])
    for name, here, fetched in (
        ("whiskers", "./runs/whisker, packed, owner/named (downloaded)", "to download it"),
        ("owner/named", "owner/named (downloaded), ./runs/whisker, packed", "to use the download"),
    ):
        typed = ["heads", "it's", "--model", name]
        monkeypatch.setattr("sys.argv", ["attn", *typed])
        line = attn(typed).err
        assert line.startswith(f"--model: no such folder or installed package: {name} (")
        command = f"attn heads 'it'\"'\"'s' --model {name} --allow-download"
        assert line.endswith(f"; models here: {here}; {fetched}: {command}\n")
