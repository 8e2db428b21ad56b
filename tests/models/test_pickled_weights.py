"""Weights saved by torch.save equal those from safetensors, and no code in them runs."""

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel

from attncli.errors import UserError
from attncli.models import loading, number_sources, pickled_weights, stored
from attncli.models.folder import check_model_folder, num_parameters, weight_files
from attncli.models.loading import load_pretrained
from attncli.models.number_sources import WeightFile, in_file
from attncli.models.pickled_weights import pickled_arrays, pickled_tensors
from attncli.models.stored import Stored
from tests.conftest import Attn, some_seldom
from tests.model_folders import save_model, save_writer

TEXT = "the cat sat because it was tired"


def save(state: object, path: Path) -> Path:
    torch.save(state, path)
    return path


def numbers_in(path: Path) -> dict[str, Tensor]:
    file = WeightFile(path)
    return {name: in_file(file, about).whole() for name, about in pickled_tensors(path).items()}


def pickled(folder: Path, *, name: str = "pytorch_model.bin") -> Path:
    """The same folder with only pickled weights."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save(state, folder / name)
    return folder


def of_many_kinds() -> dict[str, Any]:
    numbers = torch.randn(7, 5, generator=torch.Generator().manual_seed(3))
    dtypes = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16)
    state: dict[str, Any] = {str(dtype): (numbers * 50).to(dtype) for dtype in dtypes}
    state |= {"int8": numbers.to(torch.int8), "bool": numbers > 0, "uint8": numbers.abs().to(torch.uint8)}
    state |= {"transposed": numbers.t(), "column": numbers[:, 3], "rows": numbers[2:5], "tied": numbers}
    state |= {"permuted": torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), "again": numbers}
    state |= {
        "scalar": torch.tensor(3.5),
        "none of it": torch.empty(0, 3),
        "parameter": nn.Parameter(numbers),
    }
    return state | {"é/ ": torch.ones(2), "one": torch.arange(6.0).view(1, 6).expand(1, 6), "epoch": 3}


def test_every_tensor_equals_what_torch_loads(tmp_path: Path) -> None:
    path = save(of_many_kinds(), tmp_path / "a.pt")
    expected = torch.load(path, weights_only=True)
    numbers = numbers_in(path)
    assert [*numbers] == [name for name in expected if name not in ("epoch", "none")]
    for name, tensor in numbers.items():
        assert tensor.dtype == expected[name].dtype
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=0, atol=0)
    file = WeightFile(path)
    for name, about in pickled_tensors(path).items():
        if about.shape and about.shape[0] > 2:
            torch.testing.assert_close(in_file(file, about).rows(1, 3), expected[name].detach()[1:3])
        mapped = in_file(file, about).mapped() if 0 not in about.shape else None
        if mapped is not None:
            torch.testing.assert_close(mapped, expected[name].detach(), rtol=0, atol=0)


def test_the_state_dict_of_a_module_is_read(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    state = module.state_dict()
    assert isinstance(state, OrderedDict) and vars(state)["_metadata"]
    numbers = numbers_in(save(state, tmp_path / "a.pt"))
    assert numbers.keys() == state.keys()
    assert all(torch.equal(numbers[name], tensor) for name, tensor in state.items())


class Runs:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    "hide",
    [
        lambda code: code,
        lambda code: {"weight": torch.ones(2), "more": code},
        lambda code: {"weight": torch.ones(2), code: torch.ones(2)},
        lambda code: OrderedDict(weight=torch.ones(2), more=[{"deep": (code,)}]),
    ],
)
def test_code_is_refused_and_does_not_run(
    tmp_path: Path, hide: Callable[[object], object], attn: Attn
) -> None:
    made = tmp_path / "made"
    folder = save_model(tmp_path / "a", "BERT")
    (folder / "model.safetensors").unlink()
    path = save(hide(Runs(made)), folder / "pytorch_model.bin")
    result = attn(["heads", "--model", str(folder), TEXT])
    assert (result.code, result.out) == (2, "")
    assert result.err == f"--model: {path}: contains posix.mkdir, which is not a tensor and may be code\n"
    assert not made.exists()
    with pytest.raises(FileExistsError):  # the file does hold code
        made.mkdir()
        torch.load(path, weights_only=False)


def compressed(path: Path) -> None:
    whole = path.with_suffix(".whole")
    path.rename(whole)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.infolist():
            new.writestr(part.filename, old.read(part))
    whole.unlink()


def scripted(path: Path) -> None:
    torch.jit.save(torch.jit.trace(nn.Linear(2, 3), torch.ones(1, 2)), path)


UNREAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nested": (
        lambda path: save({"epoch": 1, "state_dict": {"a": torch.ones(2)}}, path),
        "has its weights under 'state_dict': extract them with torch.save(torch.load(FILE, ",
    ),
    "one tensor": (lambda path: save(torch.ones(2), path), "contains one tensor, not a dict of tensors: "),
    "a list": (lambda path: save([torch.ones(2)], path), "contains a list, not a dict of tensors"),
    "no tensor": (lambda path: save({"a": 1}, path), "contains no tensors: save it with torch.save("),
    "a module": (lambda path: save(nn.Linear(2, 3), path), "contains torch.nn.modules.linear.Linear"),
    "complex": (
        lambda path: save({"a": torch.ones(2) + 1j}, path),
        "has a, of type complex64: save it dense, as float32, ",
    ),
    "sparse": (lambda path: save({"a": torch.eye(3).to_sparse()}, path), "has a, of type sparse_coo"),
    "expanded": (
        lambda path: save({"mask": torch.ones(1).expand(10**6)}, path),
        "has mask that was expanded from fewer numbers: call .contiguous() before saving it",
    ),
    "a plain pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "or is damaged"),
    "a number of names": (
        lambda path: save({1: torch.ones(2)}, path),
        "has a tensor with the key 1, which must be a string",
    ),
    "empty": (lambda path: path.write_bytes(b""), "or is damaged"),
    "text": (lambda path: path.write_text("weights"), "or is damaged"),
    "compressed": (lambda path: (save({"a": torch.ones(2)}, path), compressed(path)), "has compressed parts"),
    "TorchScript": (scripted, "is a TorchScript archive, which contains code"),
    "torch before 1.6": (
        lambda path: torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False),
        'is in the format of torch before 1.6: convert it with torch.save(torch.load(FILE, ',
    ),
    "negated": (
        lambda path: save({"a": torch.view_as_complex(torch.ones(3, 2)).conj().imag}, path),
        "has a, of type negated float32: save it dense",
    ),
    "axes": (lambda path: save({"a": torch.ones([1] * 9)}, path), "has a, of 9 axes: at most 8 are"),
    "big-endian": (
        lambda path: with_part(save({"a": torch.ones(2)}, path), "archive/byteorder", b"big"),
        "has numbers in another machine's byte order",
    ),
    "longer than its part": (
        lambda path: bomb(path, b"}" + text("w") + tensor(4) + b"s", num_numbers=2),
        "or is damaged",
    ),
    "NumPy": (lambda path: path.write_bytes(npz()), "or is damaged"),
}  # fmt: skip


def npz() -> bytes:
    import numpy as np

    stream = io.BytesIO()
    np.savez(stream, a=np.ones(3))
    return stream.getvalue()


def with_part(path: Path, name: str, content: bytes) -> None:
    """Rewrite the file with different content in one part."""
    with zipfile.ZipFile(path) as old:
        parts = {part.filename: old.read(part) for part in old.infolist()}
    with zipfile.ZipFile(path, "w") as new:
        for part, written in (parts | {name: content}).items():
            new.writestr(part, written)


def text(written: str) -> bytes:
    return b"X" + struct.pack("<I", len(written)) + written.encode()


def tensor(num_numbers: int) -> bytes:
    """The pickle opcodes for a vector of this many numbers."""
    count = b"J" + struct.pack("<i", num_numbers)
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + count + b"tQ"
    ordered = b"ccollections\nOrderedDict\n)R"
    sizes = b"(" + count + b"t(K\x01t\x89"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + sizes + ordered + b"tR"


def bomb(path: Path, steps: bytes, *, num_numbers: int = 2) -> None:
    """A file of torch.save with the object of these pickle opcodes."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + steps + b".")
        archive.writestr("a/data/0", bytes(4 * num_numbers))
        archive.writestr("a/data/1", bytes(64))
        archive.writestr("a/version", "3\n")


def sharing(first: bytes, each: bytes, levels: int) -> bytes:
    """Opcodes for an object, then repeatedly for another that contains several of the previous one (`h.`)."""
    others = (each.replace(b"h.", b"h" + bytes([k])) + b"q" + bytes([k + 1]) for k in range(levels))
    return first + b"q\x00" + b"".join(others)


MANY, DEEP = "has more than 100,000 objects", "has more than 64 levels of nesting"
BOMBS: dict[str, tuple[bytes, str]] = {
    "lists that share lists": (sharing(tensor(2), b"](" + b"h." * 10 + b"e", 12), MANY),
    "empty lists that share lists": (sharing(b"]", b"](" + b"h." * 10 + b"e", 12), MANY),
    "a list in itself": (b"]q\x00h\x00a", DEEP),
    "a million lists": (b"]" * 1_000_000 + b"a" * 999_999, DEEP),
    "a key of tuples that share tuples": (
        b"}(" + sharing(b")", b"h.h.\x86", 60) + tensor(2) + b"u",
        "cannot be read by torch.load(weights_only=True): it takes more than 1 s",
    ),
    "a key of nested tuples": (
        b"})" + b"\x85" * 300_000 + tensor(2) + b"s",
        "cannot be read by torch.load(weights_only=True): it crashed its process",
    ),
}


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.eye(3).to_sparse(), "has a tensor of type sparse_coo: save it dense"),
        (torch.ones(1).expand(10**6), "has a tensor that was expanded from fewer numbers"),
    ],
)
def test_a_refused_bare_tensor_is_described_without_a_name(
    tmp_path: Path, tensor: torch.Tensor, reason: str
) -> None:
    torch.save(tensor, path := tmp_path / "bare.pt")
    with pytest.raises(UserError) as caught:
        pickled_arrays(path)
    assert caught.value.lines[0].startswith(f"{path}: {reason}")


@pytest.mark.parametrize("name", some_seldom(BOMBS, ["empty lists that share lists", "a million lists"]))
def test_small_files_that_hang_or_crash_their_reader_are_one_line(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickled_weights, "MOST_OBJECTS", 100_000)
    monkeypatch.setattr(pickled_weights, "MOST_SECONDS", 1.0 if "share tuples" in name else 60.0)
    steps, reason = BOMBS[name]
    path = tmp_path / "weights.pt"
    bomb(path, steps)
    with pytest.raises(UserError) as caught:
        pickled_arrays(path)
    (line,) = caught.value.lines
    assert line.startswith(f"{path}: ") and reason in line


@pytest.mark.parametrize(("mebibytes", "seconds"), [(1, 5), (20, 17), (2000, 60)])
def test_the_time_limit_grows_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mebibytes: int, seconds: int
) -> None:
    """60,000 small tensors, as for many experts, take 20 MiB and about 6 s."""
    limits: list[float] = []

    def made_in_child(make: Callable[[], str], *, most_seconds: float, **others: object) -> str:
        limits.append(most_seconds)
        return make()

    monkeypatch.setattr(pickled_weights, "made_in_child", made_in_child)
    path = save({"w": torch.ones(3)}, tmp_path / "small.bin")
    state = mebibytes * 2**20, 0
    monkeypatch.setattr(pickled_weights, "_state", lambda _: state)
    assert {*pickled_tensors(path)} == {"w"} and limits == [seconds]


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_files_without_a_state_dict_are_one_line(tmp_path: Path, name: str) -> None:
    write, said = UNREAD[name]
    path = tmp_path / "pytorch_model.bin"
    write(path)
    with pytest.raises(UserError) as caught:
        pickled_tensors(path)
    (line,) = caught.value.lines
    assert line.startswith(f"model: {path}: ") and said in line


def test_damaged_files_are_read_or_one_line(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    content = save(of_many_kinds(), tmp_path / "a.pt").read_bytes()
    drawn, refused = random.Random(7), 0
    path = tmp_path / "b.pt"
    count = 150 if pytestconfig.getoption("--nightly") else 20
    for number in range(count):
        damaged = bytearray(content)
        if number % 3:
            for _ in range(drawn.randrange(1, 4)):
                damaged[drawn.randrange(len(damaged))] = drawn.randrange(256)
        else:
            del damaged[drawn.randrange(len(damaged)) :]
        path.unlink(missing_ok=True)
        path.write_bytes(damaged)
        try:
            for about in pickled_tensors(path).values():
                assert about.begin <= len(damaged)
            numbers_in(path)
        except UserError as error:
            assert len(error.lines) == 1
            refused += 1
    assert refused > count / 3


def tiny(folder: Path, kind: str) -> Path:
    if kind != "ALBERT":
        return save_writer(folder, kind) if kind in ("GPT-2", "Llama") else save_model(folder, kind)
    from transformers import AlbertConfig, AlbertModel

    save_model(folder, "BERT")
    sizes = {"vocab_size": 61, "embedding_size": 12, "hidden_size": 20, "intermediate_size": 28}
    torch.manual_seed(5)
    config = AlbertConfig(**sizes, num_hidden_layers=3, num_attention_heads=5)
    AlbertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every matrix in its file, to be read a few rows at a time."""
    monkeypatch.setattr(stored, "SMALL_NUMBERS", 200)
    monkeypatch.setattr(number_sources, "CHUNK_NUMBERS", 100)
    monkeypatch.setattr(loading, "READ_FIRST_BYTES", 0)


@pytest.mark.parametrize("kind", ["GPT-2", "ALBERT"])
@pytest.mark.usefixtures("small")
def test_reports_equal_those_of_safetensors(tmp_path: Path, kind: str, attn: Attn) -> None:
    folder = tiny(tmp_path / "model", kind)
    asked = ["heads", "--model", str(folder), TEXT, "--format", "json", "--load"]
    expected = {load: attn([*asked, load]) for load in ("memory", "disk")}
    count = num_parameters(folder)
    pickled(folder)
    assert num_parameters(folder) == count and [path.name for path in weight_files(folder)] == [
        "pytorch_model.bin"
    ]
    for load, result in expected.items():
        again = attn([*asked, load])
        assert again.code == result.code == 0 and again.out == result.out
        note = "model: pytorch_model.bin is pickled (no code in it is run); to convert it to safetensors: "
        assert again.err.startswith(note) and "save_pretrained(FOLDER)" in again.err
    model = load_pretrained(str(folder), allow_download=False, device="cpu", load="disk").whole
    assert any(isinstance(weight, Stored) for weight in model.parameters())


@pytest.mark.usefixtures("small")
def test_pickled_half_precision_and_tied_weights_are_read(tmp_path: Path, attn: Attn) -> None:
    folder = save_writer(tmp_path / "model", "GPT-2")
    state = {
        name: tensor.to(torch.bfloat16) for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    asked = ["why", "--model", str(folder), TEXT, "--format", "json", "--load"]
    expected = {load: attn([*asked, load]).out for load in ("memory", "disk")}
    count = num_parameters(folder)
    (folder / "model.safetensors").unlink()
    tied = {
        **state,
        "lm_head.weight": state["transformer.wte.weight"],
        "transformer.unknown": torch.ones(3),
    }
    save(tied, folder / "pytorch_model.bin")
    assert num_parameters(folder) == count + 3
    for load, out in expected.items():
        assert attn([*asked, load]).out == out


def test_shards_and_other_file_names_are_read(tmp_path: Path, attn: Attn) -> None:
    folder = save_model(tmp_path / "model", "BERT")
    asked = ["heads", "--model", str(folder), TEXT, "--format", "json"]
    expected = attn(asked).out
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = [*state]
    parts = {f"part-{i}.bin": {name: state[name] for name in names[i::3]} for i in range(3)}
    for file, part in parts.items():
        save(part, folder / file)
    (folder / "training_args.bin").write_bytes(b"what a trainer writes")
    with pytest.raises(
        UserError, match=r"several files that may contain its weights \(part-0.bin, part-1.bin, part-2.bin\)"
    ):
        check_model_folder(folder)
    weight_map = {name: file for file, part in parts.items() for name in part}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert attn(asked).out == expected
    (folder / "part-1.bin").unlink()
    with pytest.raises(
        UserError, match=r"pytorch_model.bin.index.json: lists part-1.bin, but the folder has no such file"
    ):
        check_model_folder(folder)
    (folder / "pytorch_model.bin.index.json").unlink()
    for file in ("part-0.bin", "part-2.bin"):
        (folder / file).unlink()
    for name in ("weights.pt", "model.pth"):
        path = save(state, folder / name)
        assert attn(asked).out == expected
        path.unlink()
    os.mkfifo(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model.bin: is a pipe, not a file"):
        check_model_folder(folder)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_adapter_applies_to_pickled_weights(tmp_path: Path, attn: Attn) -> None:
    peft = pytest.importorskip("peft")
    folder = save_model(tmp_path / "model", "Llama")
    asked = ["heads", "--model", str(folder), TEXT, "--format", "json"]
    without = attn(asked).out
    settings = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False, r=2)
    peft.get_peft_model(AutoModel.from_pretrained(folder), settings).save_pretrained(folder)
    expected = attn(asked).out
    assert expected != without
    pickled(folder)
    assert attn(asked).out == expected
