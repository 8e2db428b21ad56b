"""Weights that stay in their files give the same numbers as weights in memory, for every use."""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quant_shape_to_byte_shape
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

import attncli
from attncli.core.few_rows import MOST_ROWS
from attncli.core.runtime import torch_threads
from attncli.errors import UserError
from attncli.models import loading, number_sources, stored
from attncli.models.capture import capture, in_step, with_eager_attention
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.loading import load_pretrained
from attncli.models.number_sources import Cast, InGguf, InRows, WeightFile
from attncli.models.stored import Stored, Use, stored_use
from attncli.models.weight_headers import TensorInFile, safetensors_tensors
from tests.conftest import Attn, in_turn
from tests.model_folders import save_model, save_tokenizer, save_writer
from tests.models.test_damaged_models import save_gguf
from tools.tiny_architectures import ARCHITECTURES, GROUPED, Architecture, random_inputs

TEXT = "the cat sat on the street and the cat sat"
EXPERTS = {**GROUPED, "num_experts_per_tok": 2}
OTHERS = {
    "Mixtral": Architecture("MixtralModel", {**EXPERTS, "num_local_experts": 4}),
    "Qwen2 MoE": Architecture(
        "Qwen2MoeModel",
        {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24},
    ),
}
KINDS = {
    name: one for name, one in (ARCHITECTURES | OTHERS).items() if name not in ("ViT", "Mamba", "BigBird")
}
FAR_APART = ["BERT", "GPT-NeoX", "GPT-2", "Llama", "GPT-OSS", "Qwen2 MoE", "T5"]
"""One architecture for each way of storing matrices."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every matrix in its file, to be read a few rows at a time."""
    monkeypatch.setattr(stored, "SMALL_NUMBERS", 200)
    monkeypatch.setattr(number_sources, "CHUNK_NUMBERS", 100)
    monkeypatch.setattr(loading, "READ_FIRST_BYTES", 0)


def opened(folder: Path, load: str, *, with_head: bool = False) -> PreTrainedModel:
    found = load_pretrained(
        str(folder), allow_download=False, device="cpu", load=load, with_head=with_head
    ).whole
    assert (stored_use(found) is None) == (load == "memory")
    return found


@pytest.mark.parametrize("name", FAR_APART)
def test_outputs_are_the_same_in_memory_and_from_files(name: str, tmp_path: Path) -> None:
    made = KINDS[name].build()
    # As large models are stored: half precision, several files, experts one by one.
    made.to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="20kB")
    save_tokenizer(tmp_path)
    inputs = random_inputs(made)
    outputs: list[Tensor] = []
    layers: list[list[Tensor]] = []
    for load in ("memory", "disk", "auto"):
        model = opened(tmp_path, load)
        # The second run reads again with disk, and keeps what it reads with auto.
        for _ in range(1 if load == "memory" else 2):
            weights: list[Tensor] = []

            def keep(layer: CapturedLayer, weights: list[Tensor] = weights) -> None:
                weights.append(layer.weights())

            capture(model, inputs, keep)
            with torch.no_grad(), with_eager_attention(model):
                outputs.append(model(**inputs)[0])
            layers.append(weights)
        kept = [weight.numbers is not None for weight in model.parameters() if isinstance(weight, Stored)]
        assert any(kept) == (load == "auto")
    for output, weights in zip(outputs, layers, strict=True):
        torch.testing.assert_close(output, outputs[0], rtol=1e-5, atol=1e-5)
        assert len(weights) == len(layers[0]) > 0
        for one, expected in zip(weights, layers[0], strict=True):
            torch.testing.assert_close(one, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype"), in_turn(["GPT-2", "Qwen2 MoE", "GPT-NeoX", "GPT-OSS"], ["bfloat16", "float16"])
)
def test_in_half_precision_each_sum_is_rounded_once(name: str, dtype: str, tmp_path: Path) -> None:
    """Bit for bit the same as for a weight in memory: Conv1D, products with a bias, experts. In float16,
    torch sums in another order if it multiplies by a few rows of a weight, which changes the last digit.
    """
    KINDS[name].build().save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    outputs = []
    for load in ("memory", "disk"):
        options: Any = {"allow_download": False, "device": "cpu", "dtype": dtype, "load": load}
        model = load_pretrained(str(tmp_path), **options).whole
        with torch.no_grad(), with_eager_attention(model):
            outputs.append(model(**random_inputs(model))[0])
    assert outputs[0].dtype == getattr(torch, dtype)
    last_digit = (
        2 * torch.finfo(torch.float16).eps * float(outputs[0].abs().max()) if dtype == "float16" else 0.0
    )
    torch.testing.assert_close(*outputs, rtol=0, atol=last_digit)


COMMANDS = ("heads", "why", "ablate --method gradient", "generate", "multihead")


@pytest.mark.parametrize(("command", "kind"), in_turn(COMMANDS, ["Llama", "GPT-2", "T5"]))
def test_commands_print_the_same_in_memory_and_from_files(
    kind: str, command: str, attn: Attn, tmp_path: Path
) -> None:
    folder = save_writer(tmp_path, kind)
    asked = [*command.split(), "--model", str(folder), TEXT]
    if kind == "T5" and command == "heads":
        asked += ["--context", "the dog ran"]
    in_memory, on_disk = (attn([*asked, "--load", load]) for load in ("memory", "disk"))
    assert in_memory.out == on_disk.out and in_memory.code == on_disk.code


def test_many_texts_are_read_block_by_block(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block is read once for all texts, whatever their lengths."""
    folder = save_writer(tmp_path, "Llama")
    file = tmp_path / "texts.txt"
    words = TEXT.split()
    file.write_text("".join(f"{' '.join(words[: 2 + n % 8])}\n" for n in range(24)))
    read: list[int] = []
    threads: set[threading.Thread] = set()
    read_into = WeightFile.read_into

    def counted(self: WeightFile, buffer: memoryview, offset: int) -> None:
        read.append(len(buffer))
        threads.add(threading.current_thread())
        read_into(self, buffer, offset)

    monkeypatch.setattr(WeightFile, "read_into", counted)
    asked = ["heads", "--texts", str(file), "--model", str(folder), "--format", "csv"]
    on_disk = attn([*asked, "--load", "disk"])
    num_read, size = sum(read), sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert on_disk.out == attn([*asked, "--load", "memory"]).out
    assert on_disk.code == 0 and len(threads) > 2 and not alive_beside_this(threads)
    # The table of words for each length; the trial reads two blocks twice for each length under eight.
    assert num_read < 8 * size


def alive_beside_this(threads: Iterable[threading.Thread]) -> list[threading.Thread]:
    """The threads that are still running; transformers also has threads, which end later."""
    return [one for one in threads if one is not threading.current_thread() and one.is_alive()]


def test_runs_side_by_side_end_with_the_first_error(tmp_path: Path) -> None:
    model = opened(save_writer(tmp_path, "Llama"), "disk")
    ids = torch.arange(3, 9)[None]
    reached: list[int] = []
    threads: list[threading.Thread] = []

    def work(number: int) -> Tensor:
        threads.append(threading.current_thread())
        with torch.no_grad():
            reached.append(number)
            found: Tensor = model(ids[:, : 2 + number])[0]
        if number == 1:
            raise UserError("the second fails")
        return found

    with pytest.raises(UserError, match="the second fails"):
        in_step(model, [lambda number=number: work(number) for number in range(3)])
    assert reached == [0, 1, 2] and len({*threads}) == 3 and not alive_beside_this(threads)
    # Later runs find the model unchanged.
    with torch.no_grad():
        torch.testing.assert_close(in_step(model, [lambda: model(ids)[0]] * 2)[1], model(ids)[0])


@pytest.mark.parametrize("name", FAR_APART)
def test_runs_side_by_side_multiply_their_rows_together(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = KINDS[name].build()
    made.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    texts = [random_inputs(made, num_tokens) for num_tokens in (7, 9, 13)]
    product = stored.COMPUTED[functional.linear]
    num_rows: list[int] = []

    def counted(rows: Tensor, *weights: Any) -> Tensor | None:
        if threading.current_thread() is threading.main_thread():
            num_rows.append(rows.numel() // rows.shape[-1])
        return product(rows, *weights)

    monkeypatch.setitem(stored.COMPUTED, functional.linear, counted)

    def of_texts(load: str) -> list[Tensor]:
        model = opened(tmp_path, load)

        def of_text(inputs: Mapping[str, Tensor]) -> Tensor:
            found: list[Tensor] = []
            capture(model, inputs, lambda layer: found.append(layer.weights().mean(dim=-2).flatten()))
            return torch.cat(found)

        return in_step(model, [partial(of_text, inputs) for inputs in texts])

    expected = of_texts("memory")
    assert not num_rows
    for found, weights in zip(of_texts("auto"), expected, strict=True):
        torch.testing.assert_close(found, weights, rtol=0, atol=1e-6)
    if name != "GPT-2":  # its layers are Conv1D
        assert 7 + 9 + 13 in num_rows


def test_runs_side_by_side_may_end_at_different_points(tmp_path: Path) -> None:
    """One run that stops after the first layer, and one that fails in the middle."""
    model = opened(save_writer(tmp_path, "Llama"), "auto")
    ids = torch.arange(3, 9)[None]

    def weights(most_layers: int, *, fails: bool = False) -> Tensor:
        found: list[Tensor] = []

        def take(layer: CapturedLayer) -> None:
            found.append(layer.weights().flatten())
            if fails:
                raise ZeroDivisionError
            if len(found) == most_layers:
                raise StopCapture

        capture(model, {"input_ids": ids}, take)
        return torch.cat(found)

    works = [partial(weights, 1), partial(weights, 9), partial(weights, 9)]
    alone = [work() for work in works]
    for found, own in zip(in_step(model, works), alone, strict=True):
        torch.testing.assert_close(found, own, rtol=0, atol=1e-6)
    with pytest.raises(ZeroDivisionError):
        in_step(model, [works[1], partial(weights, 9, fails=True), works[1]])
    torch.testing.assert_close(works[1](), alone[1], rtol=0, atol=1e-6)


def test_runs_side_by_side_have_their_own_gradients(tmp_path: Path) -> None:
    model = opened(save_writer(tmp_path, "Llama"), "auto")

    def gradient(num_tokens: int) -> Tensor:
        ids = torch.arange(3, 3 + num_tokens)[None]
        vectors = model.get_input_embeddings()(ids).detach().requires_grad_()
        (found,) = torch.autograd.grad(model(inputs_embeds=vectors)[0].sum(), vectors)
        return found

    works = [partial(gradient, num_tokens) for num_tokens in (4, 6)]
    for found, own in zip(in_step(model, works), [work() for work in works], strict=True):
        torch.testing.assert_close(found, own)


SHAPE = (12, 64)


@pytest.fixture
def numbers() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def weight(tmp_path: Path, numbers: Tensor) -> Stored:
    path = tmp_path / "numbers.bin"
    path.write_bytes(numbers.numpy().tobytes())
    use = Use(torch.device("cpu"), is_loading=False)
    return Stored.of(InRows(WeightFile(path), TensorInFile("F32", SHAPE, 0)), use)


def test_operations_on_a_stored_weight_equal_those_in_memory(weight: Stored, numbers: Tensor) -> None:
    x = torch.randn(2, 5, 64, requires_grad=True)
    bias = torch.randn(12)
    product = functional.linear(x, weight, bias)
    expected = functional.linear(x, numbers, bias)
    torch.testing.assert_close(product, expected)
    (gradient,) = torch.autograd.grad(product.square().sum(), x)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)
    rows = torch.tensor([[3, 3], [11, 0]])
    torch.testing.assert_close(functional.embedding(rows, weight), numbers[rows])
    for index in (3, -1, slice(2, 5), [4, 1], rows, torch.tensor(7), (slice(None), 3), rows > 2):
        index = index[0, 0] if isinstance(index, Tensor) and index.dtype == torch.bool else index
        torch.testing.assert_close(weight[index], numbers[index])
    for from_the_end in ([2, -1], torch.tensor([-12, 0, -1]), torch.tensor(-3)):
        torch.testing.assert_close(weight[from_the_end], numbers[from_the_end])
    y = torch.randn(3, 12)
    torch.testing.assert_close(
        torch.addmm(torch.ones(64), y, weight), torch.addmm(torch.ones(64), y, numbers)
    )
    torch.testing.assert_close(weight.T @ y.T, numbers.T @ y.T)
    torch.testing.assert_close(weight.double().sum(), numbers.double().sum())
    torch.testing.assert_close(torch.stack([weight, weight])[1], numbers)
    assert weight.numbers is None
    assert weight.shape == SHAPE and weight.dtype == torch.float32 and weight.numel() == 12 * 64
    assert type(deepcopy(weight)) is Stored and repr(weight) == "Stored((12, 64), torch.float32)"
    assert type(weight.clone()) is Tensor
    for change in (
        lambda: weight.zero_(),
        lambda: weight.__setitem__(0, 1.0),
        lambda: weight.mul_(2),
        lambda: setattr(weight, "data", numbers),
    ):
        with pytest.raises(TypeError, match="cannot be changed"):
            change()
    with pytest.raises(IndexError):
        functional.embedding(torch.tensor([12]), weight)


@pytest.mark.parametrize(("kind", "num_threads"), in_turn(["BF16", "F16", "F32"], [1, 2, 3]))
def test_products_of_any_number_of_rows_are_right(kind: str, num_threads: int, tmp_path: Path) -> None:
    """Few rows are multiplied with the stored half-precision weight, more rows with the widened one; in
    threads.
    """
    shape, generator = (83, 67), torch.Generator().manual_seed(2)
    numbers = torch.randn(shape, generator=generator).to(number_sources.DTYPES[kind])
    path = tmp_path / "numbers.bin"
    path.write_bytes(bytes(3) + numbers.view(torch.uint8).numpy().tobytes())
    device, use = torch.device("cpu"), Use(torch.device("cpu"), is_loading=False)
    source = Cast(InRows(WeightFile(path), TensorInFile(kind, shape, 3)), torch.float32, device)
    weight, bias = Stored.of(source, use), torch.randn(shape[0], generator=generator)
    for num_rows in (1, 2, MOST_ROWS, MOST_ROWS + 1, 40):
        # Also in memory that is not contiguous.
        for x in (torch.randn(num_rows, 67, generator=generator), torch.randn(67, num_rows).mT):
            with torch_threads(num_threads):
                product, without = functional.linear(x, weight, bias), functional.linear(x, weight)
            expected = x.double() @ numbers.double().T
            torch.testing.assert_close(without.double(), expected, rtol=1e-5, atol=2e-5)
            torch.testing.assert_close(product.double(), expected + bias, rtol=1e-5, atol=2e-5)
    x = torch.randn(2, 67, requires_grad=True)
    with torch_threads(num_threads):
        (gradient,) = torch.autograd.grad(functional.linear(x, weight, bias).sum(), x)
    torch.testing.assert_close(gradient, numbers.float().sum(0).expand(2, -1), rtol=1e-4, atol=1e-4)


QUANTIZED = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *(f"Q{n}_K" for n in range(2, 7))]


@pytest.mark.parametrize("kind", QUANTIZED)
def test_gguf_blocks_equal_those_of_the_gguf_package(kind: str, tmp_path: Path) -> None:
    """Any bytes are valid numbers in these types; reading rows equals reading the whole."""
    of_kind, shape = GGMLQuantizationType[kind], (6, 512)
    of_blocks = quant_shape_to_byte_shape(shape, of_kind)
    blocks = np.random.default_rng(0).integers(0, 120, of_blocks, dtype=np.uint8)
    path = tmp_path / "blocks.bin"
    path.write_bytes(b"before" + blocks.tobytes())
    source = InGguf(WeightFile(path), TensorInFile(of_kind.value, shape, 6))
    expected = torch.from_numpy(dequantize(blocks, of_kind).copy())
    torch.testing.assert_close(source.whole(), expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(source.rows(2, 5), expected[2:5], rtol=0, atol=0, equal_nan=True)


def test_a_gguf_model_is_the_same_in_memory_and_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    save_gguf(path)
    whole, parts = (opened(path, load, with_head=True) for load in ("memory", "disk"))
    ids = torch.tensor([[1, 4, 2, 9]])
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, parts(ids).logits)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path, "BERT")


def runs_of(folder: Path) -> Iterator[None]:
    pretrained = attncli.open_model(folder, load="disk")
    while True:
        attncli.survey(pretrained, TEXT)
        yield


def test_a_file_that_changes_while_it_is_read_is_one_line(folder: Path) -> None:
    (path,) = folder.glob("*.safetensors")
    runs = runs_of(folder)
    next(runs)
    content = path.read_bytes()
    os.utime(path, (1, 1))
    with pytest.raises(UserError, match="changed while it was being read"):
        next(runs)
    runs = runs_of(folder)
    next(runs)
    os.truncate(path, len(content) // 2)
    with pytest.raises(UserError, match="changed while it was being read"):
        next(runs)


def test_a_model_that_does_not_fit_is_refused_before_reading(
    attn: Attn, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = folder.glob("*.safetensors")
    size = sum(tensor.numel() for tensor in load_file(path).values()) * 4
    assert len(safetensors_tensors(path)) == len(load_file(path))
    monkeypatch.setattr(loading, "available_bytes", lambda: size - 1)
    refused = attn(["heads", "--model", str(folder), "--load", "memory", TEXT])
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"--model: {folder.name}: needs ") and "--load disk" in refused.err
    # By default, weights are then read as they are used.
    assert attn(["heads", "--model", str(folder), TEXT]).code == 0
    assert attn(["heads", "--load", "disk", TEXT]).code == 0
    assert attn(["self", "--load", "disk", TEXT]).err == "--load: needs --model\n"
