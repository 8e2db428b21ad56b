"""Damaged and malicious model files: one line, quickly, and without much memory."""

import json
import random
import resource
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from safetensors import SafetensorError, safe_open
from transformers import AlbertConfig, AlbertModel

from attncli.cli import run
from attncli.errors import UserError
from attncli.models import child, tokenizer_files
from attncli.models.folder import check_model_folder
from attncli.models.loading import load_pretrained
from attncli.models.tokenizer_files import check_tokenizer
from attncli.models.weight_headers import check_gguf
from tests.conftest import Attn, some_seldom
from tests.model_folders import save_model, save_tokenizer
from tests.models.test_gguf_keys import FREQ_BASE, NUM_TOKENS, model_of, write

SPACE = "\u0120"
WORDS = ["<unk>", "<s>", "</s>", *"theca", SPACE, f"{SPACE}t", "th", "the", f"{SPACE}the"]
BYTE_LEVEL = {"model": "gpt2", "tokens": WORDS + [chr(0x41 + i) for i in range(NUM_TOKENS - len(WORDS))]}


def save_gguf(path: Path) -> bytes:
    """A Llama of two blocks in one file."""
    write(path, "llama", model_of("Llama", {}), FREQ_BASE, tokenizer=BYTE_LEVEL)
    return path.read_bytes()


FORMS = dict(enumerate("BbHhIif?")) | dict(zip((10, 11, 12), "Qqd", strict=True))


def sections(content: bytes) -> list[tuple[str, int, int]]:
    """Name, start and stop of everything in a GGUF file; only the first item of an array."""
    found = [("magic", 0, 4), ("version", 4, 8)]
    place = 8

    def number(form: str, name: str) -> int:
        nonlocal place
        start, place = place, place + struct.calcsize(form)
        found.append((name, start, place))
        return int(struct.unpack_from(f"<{form}", content, start)[0])

    def text(name: str) -> str:
        nonlocal place
        length = number("Q", f"length of {name}")
        start, place = place, place + length
        found.append((name, start, place))
        return content[start:place].decode()

    def value(kind: int, name: str) -> None:
        if kind == 8:
            text(name)
        elif kind == 9:
            kind, count = number("I", f"kind of items of {name}"), number("Q", f"count of {name}")
            for index in range(count):
                value(kind, f"item of {name}")
                del found[len(found) if index == 0 else -2 if kind == 8 else -1 :]
        else:
            number(FORMS[kind], name)

    num_tensors, num_values = number("Q", "count of tensors"), number("Q", "count of values")
    for _ in range(num_values):
        key = text("key")
        value(number("I", f"kind of {key}"), key)
    for _ in range(num_tensors):
        name = text("tensor")
        for _ in range(number("I", f"axes of {name}")):
            number("Q", f"size of {name}")
        number("I", f"kind of {name}")
        number("Q", f"offset of {name}")
    return [*found, ("data", place, len(content))]


LARGE = (0, 9, 10**9, 10**12, 2**64 - 1)


def damaged_sections(content: bytes) -> Iterator[tuple[str, bytes]]:
    for name, start, stop in sections(content):
        if "blk.0.attn" in name or "ffn" in name:
            continue  # like the other tensors
        for value in LARGE if stop - start in (1, 4, 8) else ():
            if value < 256 ** (stop - start):
                changed = value.to_bytes(stop - start, "little")
                yield f"{name} = {value}", content[:start] + changed + content[stop:]
        yield f"{name} of ones", content[:start] + b"\xff" * (stop - start) + content[stop:]
        yield f"without {name}", content[:start] + content[stop:]


def cut_off(content: bytes) -> Iterator[tuple[str, bytes]]:
    drawn = random.Random(5)
    for place in (0, 3, 4, 8, 24, len(content) - 1, *(drawn.randrange(len(content)) for _ in range(60))):
        yield f"cut at {place}", content[:place]


def flipped(content: bytes) -> Iterator[tuple[str, bytes]]:
    drawn = random.Random(7)
    _, header, _ = sections(content)[-1]
    for _ in range(90):
        place, bit = drawn.randrange(header), drawn.randrange(8)
        yield f"bit {bit} of {place}", bytes([
            *content[:place], content[place] ^ 1 << bit, *content[place + 1 :]
        ])  # fmt: skip


class TooSlow(BaseException):
    """An alarm that no `except Exception` catches."""


@contextmanager
def bounded(seconds: int, num_bytes: int) -> Iterator[None]:
    """Raise TooSlow after this much processor time, and MemoryError for this much additional memory."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlow

    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    handler = signal.signal(signal.SIGPROF, ring)
    resource.setrlimit(resource.RLIMIT_AS, (size + num_bytes, before[1]))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def opened(path: Path) -> str:
    """The error line for a GGUF file; empty for one that opens."""
    try:
        check_gguf(path)
        load_pretrained(str(path), allow_download=False, device="cpu")
    except UserError as error:
        (line,) = error.lines
        assert "\n" not in line and line.startswith("model: ") and len(line) < 600
        return line
    return ""


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that opens, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    save_gguf(path)
    assert opened(path) == ""
    return path


@pytest.mark.parametrize("damage", [damaged_sections, cut_off, flipped], ids=lambda damage: damage.__name__)
def test_a_damaged_gguf_opens_or_is_one_line(
    damage: Callable[[bytes], Iterator[tuple[str, bytes]]], gguf: Path, pytestconfig: pytest.Config
) -> None:
    content = gguf.read_bytes()
    num_refused, step = 0, 1 if pytestconfig.getoption("--nightly") else 6
    for name, changed in islice(damage(content), 0, None, step):
        gguf.write_bytes(changed)
        try:
            with bounded(seconds=10, num_bytes=2**30):
                num_refused += opened(gguf) != ""
        except BaseException as error:
            pytest.fail(f"{name}: {error!r}")
    assert num_refused > 30 / step


def with_value(content: bytes, kind: int, value: bytes) -> bytes:
    """The file with one more value in its header."""
    (count,) = struct.unpack_from("<Q", content, 16)
    key = b"x.y"
    more = struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value
    return content[:16] + struct.pack("<Q", count + 1) + more + content[24:]


HEADERS: dict[str, tuple[int, bytes]] = {
    "endless-bytes": (9, struct.pack("<IQ", 0, 10**12)),
    "endless-texts": (9, struct.pack("<IQ", 8, 10**12)),
    "nested": (9, struct.pack("<IQ", 9, 1) * 100_000),
    "many-bytes": (9, struct.pack("<IQ", 0, 5_000_000) + bytes(5_000_000)),
    "unknown": (77, b""),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_would_take_hours_to_read_is_one_line(name: str, gguf: Path) -> None:
    gguf.write_bytes(with_value(gguf.read_bytes(), *HEADERS[name]))
    with bounded(seconds=10, num_bytes=2**28):
        assert opened(gguf) == f"model: {gguf}: is not a GGUF file: its header is damaged"


def test_a_gguf_with_more_blocks_than_tensors_is_refused(gguf: Path) -> None:
    content = gguf.read_bytes()
    ((start, stop),) = [(a, b) for name, a, b in sections(content) if name == "llama.block_count"]
    gguf.write_bytes(content[:start] + (10**9).to_bytes(4, "little") + content[stop:])
    with bounded(seconds=10, num_bytes=2**28):
        reason = "llama.block_count must be at most 2, the number of blocks in its tensors (got 1000000000)"
        assert opened(gguf) == f"model: {gguf}: {reason}"


def changed_json(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_more_labels_than_tensors_are_allowed(tmp_path: Path) -> None:
    """LXMERT's own defaults: 9,500 answers, 1,600 objects."""
    folder = save_model(tmp_path, "BERT")
    changed_json(folder / "config.json", num_qa_labels=9500, num_object_labels=1600, num_labels=20_000)
    check_model_folder(folder)
    load_pretrained(str(folder), allow_download=False, device="cpu")


@pytest.mark.parametrize(
    ("key", "count", "said"),
    [
        ("num_hidden_layers", 10**9, "num_hidden_layers must be at most 1000"),
        ("num_labels", 10**12, "num_labels must be at most 1000000 (got 1000000000000)"),
    ],
)
def test_a_config_of_endless_parts_is_one_line(
    key: str, count: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_model(tmp_path, "BERT")
    changed_json(folder / "config.json", **{key: count})
    with bounded(seconds=10, num_bytes=2**28):
        assert run(["heads", "--model", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.nightly
def test_parts_are_counted_whatever_their_setting_is_called(tmp_path: Path) -> None:
    config = AlbertConfig(
        hidden_size=8, embedding_size=8, num_attention_heads=2, intermediate_size=8, vocab_size=99
    )
    AlbertModel(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    changed_json(tmp_path / "config.json", inner_group_num=10**9)
    check_model_folder(tmp_path)
    with bounded(seconds=60, num_bytes=2**30), pytest.raises(UserError, match=r"more than \d+ tensors, but"):
        load_pretrained(str(tmp_path), allow_download=False, device="cpu")


def nested(inner: str, key: str, depth: int) -> str:
    return f'{{"type": "Sequence", "{key}": [' * depth + inner + "]}" * depth


BOMB = '{"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}'
DEEP = nested('{"type": "Whitespace"}', "pretokenizers", 10_000)
TOKENIZERS = {
    "normalizer": (BOMB, "retry-limit-in-match over"),
    "pre_tokenizer": (DEEP, "tokenizer.json: is not valid JSON: it is nested too deeply"),
}


@pytest.mark.parametrize("part", TOKENIZERS)
def test_a_tokenizer_that_would_take_forever_is_one_line(
    part: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = save_model(tmp_path, "BERT") / "tokenizer.json"
    content, said = TOKENIZERS[part]
    file = json.loads(path.read_text()) | {part: "@"}
    path.write_text(json.dumps(file).replace('"@"', content))
    with bounded(seconds=20, num_bytes=2**29):
        assert run(["heads", "--model", str(tmp_path), "--sentence", "a" * 5000 + "b"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert said in line


def replacing(old: dict[str, str], new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": old, "content": new}


def in_order(*normalizers: dict[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": normalizers}}


SPECIAL = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
A_TEXT = {"Sequence": {"id": "A", "type_id": 0}}


def template(pieces: list[Any], num_ids: int = 1) -> dict[str, Any]:
    token = {"id": "[CLS]", "ids": [2] * num_ids, "tokens": ["[CLS]"] * num_ids}
    what = {"single": pieces, "pair": pieces, "special_tokens": {"[CLS]": token}}
    return {"post_processor": {"type": "TemplateProcessing", **what}}


TOO_MUCH = "expands a short text too much: it takes more than"
GROWING: dict[str, tuple[dict[str, Any], str]] = {
    "doubled": (in_order(*[replacing({"String": "a"}, "aa")] * 40), TOO_MUCH),
    "of-a-rare-letter": (in_order(*[replacing({"String": "Ω"}, "ΩΩ")] * 40), TOO_MUCH),
    "by-a-pattern": (in_order(*[replacing({"Regex": "."}, "a" * 16)] * 12), TOO_MUCH),
    "long-template": (template([SPECIAL] * 20_000 + [A_TEXT]), "adds 20,000 tokens to every text"),
    "long-token": (template([SPECIAL, A_TEXT], 30_000), "adds 30,000 tokens to every text"),
    "decoder": (
        {"decoder": {"type": "Sequence", "decoders": [replacing({"String": "t"}, "tt")] * 40}},
        TOO_MUCH,
    ),
}


@pytest.mark.parametrize("name", some_seldom(GROWING, ["of-a-rare-letter", "by-a-pattern", "long-token"]))
def test_a_tokenizer_that_expands_short_texts_is_one_line(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "MOST_SECONDS", 1.0)
    parts, said = GROWING[name]
    changed_json(save_model(tmp_path, "BERT") / "tokenizer.json", **parts)
    assert run(["heads", "--model", str(tmp_path), "--sentence", "the cat"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert f"{tmp_path / 'tokenizer.json'}: {said}" in line


def test_a_tokenizer_of_many_small_changes_is_tried_and_read(tmp_path: Path) -> None:
    """The product of their factors would be a trillion."""
    many = in_order(*(replacing({"String": chr(0x2460 + i)}, f"({i})") for i in range(40)))
    changed_json(save_model(tmp_path, "BERT") / "tokenizer.json", **many)
    check_model_folder(tmp_path)


def test_a_checked_tokenizer_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer_files, "SMALL_BYTES", 0)
    path, reads = tmp_path / "tokenizer.json", list[int]()
    for number, text in enumerate(('{"normalizer": null}', '{"normalizer": null}', '{"decoder": null}')):
        path.write_text(text)
        check_tokenizer(path, lambda number=number: reads.append(number) or json.loads(path.read_bytes()))
    assert reads == [0, 2]


def header_of(folder: Path) -> tuple[dict[str, Any], bytes]:
    content = (folder / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:begin]), content[begin:]


def with_header(folder: Path, header: dict[str, Any], numbers: bytes) -> None:
    written = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(written).to_bytes(8, "little") + written + numbers)


def test_bytes_shared_by_tensors_or_left_out_are_refused(tmp_path: Path) -> None:
    """As in the package safetensors: thousands of names of the same bytes would take gigabytes."""
    folder = save_model(tmp_path, "BERT")
    header, numbers = header_of(folder)
    name = next(name for name in header if name != "__metadata__")
    same = header | {f"more.{i}": header[name] for i in range(6_000)}
    hole = {key: entry for key, entry in header.items() if key != name}
    shifted = json.loads(json.dumps(header))
    shifted[name]["data_offsets"] = [place - 4 for place in shifted[name]["data_offsets"]]
    negative = json.loads(json.dumps(header))
    name = next(name for name, entry in header.items() if len(entry.get("shape", ())) == 2)
    negative[name]["shape"] = [-length for length in negative[name]["shape"]]
    for changed in (same, hole, shifted, negative):
        with_header(folder, changed, numbers)
        with pytest.raises(SafetensorError), safe_open(folder / "model.safetensors", "pt"):
            pass
        with pytest.raises(UserError, match="is not a safetensors file: its header is damaged"):
            check_model_folder(folder)


@pytest.fixture
def downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `owner/NAME`, with the test's name, in the cache of a machine without a network."""
    of_model = tmp_path / "hub" / f"models--owner--{tmp_path.name}"
    folder = save_model(of_model / "snapshots" / ("5" * 40), "BERT")
    (of_model / "refs").mkdir()
    (of_model / "refs" / "main").write_text("5" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for module in ("huggingface_hub.constants", "transformers.utils.hub.constants"):
        monkeypatch.setattr(f"{module}.HF_HUB_CACHE", str(tmp_path / "hub"))
    return folder


@pytest.mark.usefixtures("downloaded")
def test_a_downloaded_model_opens_without_a_network(tmp_path: Path, attn: Attn) -> None:
    ended = attn(["heads", "--model", f"owner/{tmp_path.name}", "--allow-download", "the cat sat"])
    assert (ended.code, ended.err) == (0, "") and ended.out.startswith(f"heads: {tmp_path.name}")


def damaged_tokenizer(folder: Path) -> None:
    changed_json(folder / "tokenizer.json", post_processor={
        "type": "TemplateProcessing", "pair": [], "special_tokens": {"x": {"id": "x", "ids": [1] * 200_000}},
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
    })  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damaged_tokenizer, "tokenizer.json: adds 200,000 tokens to every text"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "is not a safetensors file"),
    ],
    ids=["tokenizer", "weights"],
)
def test_a_downloaded_model_is_checked_like_a_folder(
    damage: Callable[[Path], object], said: str, downloaded: Path, tmp_path: Path, attn: Attn
) -> None:
    damage(downloaded)
    ended = attn(["heads", "--model", f"owner/{tmp_path.name}", "--allow-download", "the cat sat"])
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith(f"--model: {downloaded}") and said in ended.err


SPARSE_BYTES = 2**33


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"],
)
def test_a_sparse_file_is_one_line(name: str, tmp_path: Path) -> None:
    """Eight gigabytes that take no space on disk, but would take it in memory."""
    folder = save_model(tmp_path, "BERT")
    with (folder / name).open("wb") as file:
        file.truncate(SPARSE_BYTES)
    said = "is larger than|is not a safetensors file"
    with bounded(seconds=10, num_bytes=2**28), pytest.raises(UserError, match=rf"{name}: .*({said})"):
        check_model_folder(folder)


@pytest.mark.parametrize("count", [-1, 0])
def test_a_model_without_heads_is_refused(count: int, tmp_path: Path) -> None:
    folder = save_model(tmp_path, "GPT-2")
    changed_json(folder / "config.json", n_head=count)
    with pytest.raises(UserError, match=rf"config.json: n_head must be at least 1 \(got {count}\)"):
        check_model_folder(folder)
