"""Folders that are no model: one clear line each, most of them before torch is imported."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from attncli.errors import UserError
from attncli.inputs.models.model_folder import check_model_folder
from tests.conftest import Attn
from tests.model_folders import save_model


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def no_model_type(folder: Path) -> None:
    (folder / "config.json").write_text('["bert"]')


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def lfs_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def not_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x80\x02}q\x00." * 50)


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


BROKEN: dict[Callable[[Path], None], str] = {
    no_config: "is not a model folder: config.json is missing",
    break_config: "config.json: is not valid JSON",
    no_model_type: "config.json: names no model_type",
    only_pickled: "has only pickled weights (pytorch_model.bin)",
    no_weights: "has no weights: model.safetensors is missing",
    lfs_pointer: "is a Git LFS pointer, not the weights: run git lfs pull",
    cut_off: "is cut off",
    not_safetensors: "is not a safetensors file",
    empty_weights: "is not a safetensors file, or is cut off",
    no_tokenizer: "has no tokenizer: tokenizer.json is missing",
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_a_bad_folder_is_one_line(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = save_model(tmp_path, "BERT")
    check_model_folder(folder)
    damage(folder)
    with pytest.raises(UserError) as caught:
        check_model_folder(folder)
    (line,) = caught.value.lines
    assert line.startswith(f"model: {folder}") and BROKEN[damage] in line


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({"transformers": None}, "holds an adapter (adapter_config.json): needs: pip install peft"),
        ({"transformers": None, "peft": None}, "adapter_model.safetensors is missing"),
    ],
)
def test_an_adapter_is_not_left_out(
    tmp_path: Path, packages: dict[str, None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model(tmp_path, "Llama")
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.bin").write_bytes(b"pickled")
    monkeypatch.setattr("attncli.inputs.models.model_folder.find_spec", lambda name: name in packages or None)
    with pytest.raises(UserError) as caught:
        check_model_folder(folder)
    (line,) = caught.value.lines
    assert line.startswith(f"model: {folder}") and said in line


def change_config(folder: Path, **settings: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_type": "no-such-model"}, "cannot be loaded"),
        ({"hidden_size": "wide"}, "cannot be loaded"),
        ({"num_attention_heads": 5}, "cannot be loaded"),
        ({"hidden_size": 64}, "weights are missing or have another shape"),
        ({"num_hidden_layers": 3}, "weights are missing or have another shape"),
        (
            {"model_type": "own", "auto_map": {"AutoModel": "code.Model", "AutoConfig": "code.Config"}},
            "cannot be",
        ),
    ],
)
def test_a_damaged_config_is_one_line(
    attn: Attn, tmp_path: Path, settings: dict[str, object], said: str
) -> None:
    folder = save_model(tmp_path, "BERT")
    (folder / "code.py").write_text("raise SystemExit('foreign code ran')")
    change_config(folder, **settings)
    ended = attn(["heads", "--model", str(folder)])
    assert ended.code == 2 and ended.out == ""
    (line,) = ended.err.splitlines()
    assert line.startswith(f"--model: {folder}: ") and said in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "/no/such"], "--model: no such folder: /no/such"),
        (["--model", "gpt2"], "--model: no such folder: gpt2 (a hub id needs allow_download)"),
        (["--allow-download"], "--allow-download: needs model"),
        (
            ["--sentence", "x", "--probe", "repeated"],
            "--sentence: cannot be combined with probe: give one of them",
        ),
        (["--sort", "entrop"], "did you mean 'entropy'"),
        (["--sentence", "x", "--sort", "induction_stripe"], "induction_stripe needs probe: repeated"),
        (["--rollout"], "--rollout: needs sentence or file"),
        (["--num-tokens", "100"], "--num-tokens: must be at most 62 for tiny-induction (got 100)"),
        (["--sentence", "a" * 200], "--sentence: must be at most 128 tokens for tiny-induction (got 201)"),
        (
            ["--sentence", "a", "--context", "b"],
            "--context: tiny-induction has no decoder: it reads one text",
        ),
    ],
)
def test_usage_errors_of_heads(attn: Attn, flags: list[str], said: str) -> None:
    ended = attn(["heads", *flags])
    assert ended.code == 2 and ended.out == "" and len(ended.err.splitlines()) == 1
    assert said in ended.err
