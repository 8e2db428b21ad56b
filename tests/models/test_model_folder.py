"""Folders without a valid model: one clear line each, mostly before torch is imported."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from attncli.cli import run
from attncli.errors import UserError
from attncli.models.folder import check_model_folder, panics_in_one_line
from attncli.models.loading import load_pretrained
from tests.conftest import Attn, in_turn
from tests.model_folders import save_model

WEIGHTS = "model.safetensors"


def written(name: str, content: str | bytes) -> Callable[[Path], object]:
    """Write this content into a file of the folder."""
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def removed(name: str, instead: Callable[[Path], object] = lambda path: None) -> Callable[[Path], object]:
    """Remove a file of the folder, and put something else in its place."""
    return lambda folder: ((folder / name).unlink(), instead(folder / name))


def cut_off(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])


def offsets(*places: object) -> Callable[[Path], None]:
    """Change the place of the first tensor in the header of the weights."""

    def change(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        header[next(name for name in header if name != "__metadata__")]["data_offsets"] = places
        text = json.dumps(header).encode()
        (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + data[end:])

    return change


def index_of(index: object) -> Callable[[Path], None]:
    """Leave a folder with an index and a shard that the index does not list."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
        (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))

    return change


def shard(name: object) -> Callable[[Path], None]:
    return index_of({"weight_map": {"a": name}})


DAMAGED_HEADER = "is not a safetensors file: its header is damaged"
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (removed("config.json"), "is not a model folder: config.json is missing"),
    "cut config": (written("config.json", "{"), "config.json: is not valid JSON"),
    "no model type": (written("config.json", '["bert"]'), "config.json: has no model_type"),
    "long number": (
        written("config.json", '{"model_type": "bert", "size": ' + "9" * 5000 + "}"),
        "config.json: is not valid JSON: Exceeds the limit (4300 digits)",
    ),
    "deep config": (
        written("config.json", '{"model_type": "bert", "a": ' + "[" * 10**5 + "]" * 10**5 + "}"),
        "config.json: is not valid JSON: it is nested too deeply",
    ),
    "another name": (
        lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
        "pytorch_model.bin: is a safetensors file: rename it to model.safetensors",
    ),
    "no weights": (removed(WEIGHTS), "has no weights: model.safetensors is missing"),
    "LFS pointer": (
        written(WEIGHTS, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        "is a Git LFS pointer, not the weights: run git lfs pull",
    ),
    "cut weights": (cut_off, "is truncated"),
    "pickled weights": (written(WEIGHTS, b"\x80\x02}q\x00." * 50), "is not a safetensors file"),
    "empty weights": (written(WEIGHTS, b""), "is not a safetensors file, or is truncated"),
    "offsets of text": (offsets("0", "4"), DAMAGED_HEADER),
    "one offset of text": (offsets(0, "4"), DAMAGED_HEADER),
    "endless offset": (offsets(0, 10**4000), DAMAGED_HEADER),
    "pipe for weights": (removed(WEIGHTS, os.mkfifo), "model.safetensors: is a pipe, not a file"),
    "folder for weights": (removed(WEIGHTS, Path.mkdir), "model.safetensors: is a folder, not a file"),
    "pipe for settings": (
        removed("tokenizer_config.json", os.mkfifo),
        "tokenizer_config.json: is a pipe, not a file",
    ),
    "device for a vocabulary": (
        lambda folder: (folder / "vocab.txt").symlink_to("/dev/zero"),
        "vocab.txt: is a device, not a file",
    ),
    "broken link": (
        lambda folder: (folder / "generation_config.json").symlink_to("/no/such"),
        "generation_config.json: is a broken link, not a file",
    ),
    "shard outside": (
        shard("../other.safetensors"),
        "index.json: lists ../other.safetensors, but the folder has no such file",
    ),
    "missing shard": (
        shard("model-00002-of-00002.safetensors"),
        "index.json: lists model-00002-of-00002.safetensors, but the folder has no such file",
    ),
    "number of a shard": (shard(5), "index.json: lists 5, but the folder has no such file"),
    "no shards": (index_of([]), "index.json: has no weight_map"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_folder_is_one_line(tmp_path: Path, name: str) -> None:
    damage, said = BROKEN[name]
    folder = save_model(tmp_path, "BERT")
    check_model_folder(folder)
    damage(folder)
    with pytest.raises(UserError) as caught:
        check_model_folder(folder)
    (line,) = caught.value.lines
    assert line.startswith(f"model: {folder}") and said in line


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({"transformers": None}, "has an adapter (adapter_config.json): needs: pip install peft"),
        ({"transformers": None, "peft": None}, "adapter_model.safetensors is missing"),
    ],
)
def test_an_unusable_adapter_is_refused(
    tmp_path: Path, packages: dict[str, None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model(tmp_path, "Llama")
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.bin").write_bytes(b"pickled")
    monkeypatch.setattr("attncli.models.folder.find_spec", lambda name: name in packages or None)
    with pytest.raises(UserError) as caught:
        check_model_folder(folder)
    (line,) = caught.value.lines
    assert line.startswith(f"model: {folder}") and said in line


def test_learned_vectors_before_a_text_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_model(tmp_path, "Llama")
    (folder / "adapter_config.json").write_text('{"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 3}')
    (folder / "adapter_model.safetensors").hardlink_to(folder / "model.safetensors")
    monkeypatch.setattr("attncli.models.folder.find_spec", lambda name: name)
    with pytest.raises(UserError, match=r"puts learned vectors before a text \(prompt or prefix tuning\)"):
        check_model_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(
        UserError, match="has only an adapter: put the files of the base model beside the adapter"
    ):
        check_model_folder(folder)


def change_config(folder: Path, **settings: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_type": "no-such-model"}, "cannot be loaded"),
        ({"hidden_size": "wide"}, "cannot be loaded"),
        ({"hidden_size": 64}, "weights that are missing or have the wrong shape"),
        ({"use_return_dict": True}, "cannot be loaded"),
        ({"rope_scaling": "x"}, "cannot be loaded"),
        ({"intermediate_size": 0}, "weights that are missing or have the wrong shape"),
        (
            {"hidden_size": 4 * 10**7},
            "config.json: describes more than 1,076 MB of weights, but its files have 0.1 MB",
        ),
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
    assert line.startswith(f"--model: {folder}") and said in line


@pytest.mark.parametrize(
    ("settings", "model"),
    in_turn(
        [
            {"attn_implementation": "evil/attn"},
            {"attn_implementation": "flash_attention_2"},
            {"_attn_implementation": "evil/attn"},
            {"attn_implementation": {"": "evil/attn"}},
            {"experts_implementation": "deepgemm"},
        ],
        ["Llama", "GPT-OSS"],
    ),
    ids=str,
)
def test_a_config_chooses_no_kernel(
    model: str, settings: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the package `kernels` were installed, which fetches and runs code that a config names."""
    asked: list[object] = []
    for name in ("is_kernels_available", "is_flash_attn_2_available"):
        monkeypatch.setattr(f"transformers.modeling_utils.{name}", lambda: True, raising=False)
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", asked.append)
    monkeypatch.setattr("transformers.integrations.hub_kernels.get_kernel", asked.append)
    folder = save_model(tmp_path, model)
    change_config(folder, **settings)
    found = load_pretrained(str(folder), allow_download=False, device="cpu")
    assert not asked
    change_config(folder, **{name: None for name in settings})
    plain = load_pretrained(str(folder), allow_download=False, device="cpu")
    for name in ("_attn_implementation", "_experts_implementation"):
        assert getattr(found.model.config, name) == getattr(plain.model.config, name)


def save_with_regex(folder: Path, pattern: str) -> Path:
    """A model whose tokenizer splits by this pattern."""
    save_model(folder, "BERT")
    path = folder / "tokenizer.json"
    file = json.loads(path.read_text())
    file["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False
    }  # fmt: skip
    path.write_text(json.dumps(file))
    return folder


def test_a_panic_of_the_tokenizer_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = save_with_regex(tmp_path, "(a|aa)+$")
    code = run(["heads", "--model", str(folder), "--sentence", "a" * 60 + "b"])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    reason = "fails: Onig: Regex search error: retry-limit-in-match over"
    assert err == f"--model: the tokenizer of {folder.name} {reason}\n"


def test_messages_of_a_tokenizer_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with panics_in_one_line():
        os.write(2, b"a warning")
    assert capfd.readouterr().err == "a warning"


def test_a_token_without_a_name_is_its_number(tmp_path: Path) -> None:
    pretrained = load_pretrained(str(save_model(tmp_path, "BERT")), allow_download=False, device="cpu")
    assert pretrained.labels([3, 99]) == ("[SEP]", "[99]")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--allow-download"], "--allow-download: needs --model"),
        (["--sort", "entrop"], "did you mean 'entropy'"),
        (["--sentence", "x", "--sort", "induction_stripe"], "induction_stripe cannot be combined with"),
        (["--rollout"], "--rollout: needs --sentence or --file"),
        (["--num-tokens", "100"], "--num-tokens: must be at most 62 for tiny-induction (got 100)"),
        (
            ["--sentence", "a", "--context", "b"],
            "--context: tiny-induction has no decoder and reads only one text",
        ),
    ],
)
def test_usage_errors_of_heads(attn: Attn, flags: list[str], said: str) -> None:
    ended = attn(["heads", *flags])
    assert ended.code == 2 and ended.out == "" and len(ended.err.splitlines()) == 1
    assert said in ended.err
