"""Weights that stay in their files and are read and widened when they are used.

Only a file's header is read in advance, since it describes everything that a model needs.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from attncli.core.few_rows import MOST_ROWS, write_products
from attncli.core.row_tiles import run_jobs
from attncli.core.runtime import torch_threads
from attncli.errors import UserError
from attncli.models.folder import tensors_in, weight_files
from attncli.models.number_sources import (
    AHEAD_BYTES,
    DTYPES,
    Cast,
    InGguf,
    NumberSource,
    Processed,
    WeightFile,
    chunks,
    in_file,
)
from attncli.models.side_by_side import product_for_all
from attncli.models.weight_headers import ARCHITECTURE, ROPE_TENSORS, gguf_header

SMALL_NUMBERS = 2**18
"""Weights with fewer numbers are read when the model is loaded: norms, biases, and small tables."""
FEW_ROWS = 32
"""The number of vectors in a product up to which torch's threads wait longer than they work."""
JOBS_PER_THREAD = 4
"""The fewest parts of a weight per thread with which threads hardly wait for each other.

For fewer parts, torch's own threads are used.
"""
TRIED_BYTES = 2**26
"""The number of bytes that are read to estimate how long reading everything takes."""


@dataclass
class Made(NumberSource):
    """One output of a function of several tensors, such as a conversion of file tensors by transformers."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    position: int
    shape: torch.Size
    dtype: torch.dtype

    def __post_init__(self) -> None:
        self.stored_bytes = sum(part.source.stored_bytes for part in self._parts())

    def _parts(self) -> Iterator["Stored"]:
        return (part for part in _tensors_in([self.args, self.named]) if isinstance(part, Stored))

    def whole(self) -> Tensor:
        arguments, keywords = _changed([self.args, self.named], Stored.read)
        return [*_tensors_in(self.function(*arguments, **keywords))][self.position]

    def rows(self, start: int, stop: int) -> Tensor:
        parts = self.args[0] if self.args else ()
        axis = self.args[1] if len(self.args) > 1 else self.named.get("dim", 0)
        # A layer's experts are stored separately and can be read separately.
        if self.function is torch.stack and axis == 0:
            return torch.stack([_loaded(part) for part in parts[start:stop]])
        if self.function is torch.cat and axis not in (0, -len(self.shape)):
            return torch.cat([_row_range(part, start, stop) for part in parts], axis)
        return self.whole()[start:stop]

    def will_be_read(self) -> None:
        for part in self._parts():
            part.source.will_be_read()


@dataclass(frozen=True)
class WholeWeight:
    """A weight that is read as a whole when the model is loaded."""

    source: NumberSource

    def __getitem__(self, _index: object) -> Tensor:
        return self.source.whole()


@dataclass
class Use:
    """The use of a model's weights: their order, and the widened weights that are kept in memory.

    Nothing is kept during the first run. Later runs keep everything if `keeps` is True; if `maps` is True,
    they keep the weights in the pages of the file, which other processes share. While `is_loading` is True,
    operations on the model's weights are only recorded.
    """

    device: torch.device
    keeps: bool = False
    maps: bool = False
    is_loading: bool = True
    _order: Sequence["Stored"] = ()
    _places: dict[int, int] = field(default_factory=dict)
    _begun: int = 0
    _announced: int = 0
    _bytes_ahead: int = 0
    _held: list["Stored"] | None = None

    def follow(self, order: Sequence["Stored"]) -> None:
        """Set the order in which each run of the model uses its weights."""
        self._order, self._places = order, {id(weight): place for place, weight in enumerate(order)}

    def one_run(self) -> tuple[int, float]:
        """Return the bytes that a run reads, and a run's seconds per vector, estimated on a few weights."""
        total = sum(weight.source.stored_bytes for weight in self._order)
        read, begun = 0, time.monotonic()
        for weight in self._order:
            source = weight.source
            if len(source.shape) == 2:
                row = torch.zeros(1, source.shape[1], dtype=source.dtype, device=self.device)
                _multiplied_in_parts(row, source, None)
            else:
                for start, stop in chunks(source):
                    source.passing(start, stop)
            read += source.stored_bytes
            if read >= TRIED_BYTES:
                break
        return total, (time.monotonic() - begun) * total / max(1, read)

    def begin(self, weight: "Stored") -> bool:
        """Start reading ahead from a weight that is about to be read.

        Return True if the weight is to be kept.
        """
        place = self._places.get(id(weight))
        if place is not None:
            self._read_ahead(place)
        if self._held is not None:
            self._held.append(weight)
            return True
        weight.num_uses += 1
        return self.keeps and weight.num_uses > 1

    def _read_ahead(self, place: int) -> None:
        """Announce weights to the system some time before they are needed, once per run of the model."""
        if not self._begun <= place < self._announced:
            self._announced, self._bytes_ahead = place + 1, 0
        else:
            passed = self._order[self._begun + 1 : place + 1]
            self._bytes_ahead -= sum(weight.source.stored_bytes for weight in passed)
        self._begun = place
        while self._bytes_ahead < AHEAD_BYTES and self._announced < len(self._order):
            ahead = self._order[self._announced]
            if ahead.numbers is None:
                ahead.source.will_be_read()
            self._bytes_ahead += ahead.source.stored_bytes
            self._announced += 1

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep the weights that are read inside the block, since they are used several times."""
        self._held = []
        try:
            yield
        finally:
            held, self._held = self._held, None
            if not self.keeps:
                for weight in held:
                    weight.numbers = None


class Stored(Tensor):
    """A weight that takes no memory: its numbers are read when a computation uses them.

    Its shape, dtype and device are known. Everything else is computed from its numbers: linear layers use a
    few rows at a time, and tables use only the rows that are looked up.
    """

    source: NumberSource
    use: Use
    numbers: Tensor | None
    """The numbers of the weight, if they are kept in memory."""
    num_uses: int

    @staticmethod
    def of(source: NumberSource, use: Use) -> "Stored":
        """Return the weight whose numbers come from a source."""
        # The tensor is all NaN, so that an operation that bypasses this class is noticed.
        device = source.device if isinstance(source, Cast) else "cpu"
        filler = torch.full(
            (), torch.nan if source.dtype.is_floating_point else 0, dtype=source.dtype, device=device
        )
        stored = filler.expand(source.shape).as_subclass(Stored)
        stored.source, stored.use, stored.numbers, stored.num_uses = source, use, None, 0
        return stored

    def read(self) -> Tensor:
        """Return all numbers."""
        if self.numbers is not None:
            return self.numbers
        if not self.use.begin(self):
            return self.source.whole()
        self.numbers = self._kept()
        return self.numbers

    def _kept(self) -> Tensor:
        mapped = self.source.mapped() if self.use.maps and self.use.device.type == "cpu" else None
        return self.source.whole() if mapped is None else mapped

    def keep_if_wanted(self) -> None:
        """If the numbers are to be kept, read them now, before they are used."""
        if self.numbers is None and self.use.begin(self):
            self.numbers = self._kept()

    def parts(self) -> Iterator[tuple[int, int, Tensor]]:
        """Yield the rows, some at a time, as (start, stop, numbers)."""
        self.keep_if_wanted()
        if self.numbers is not None:
            yield 0, self.shape[0], self.numbers
            return
        for start, stop in chunks(self.source):
            yield start, stop, self.source.passing(start, stop)

    def looked_up(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of the distinct requested rows, and each requested row's index among these."""
        if self.numbers is not None:
            return self.numbers, rows
        wanted, places = torch.unique(rows, return_inverse=True)
        runs: list[tuple[int, int]] = []
        for row in wanted.tolist():
            if not 0 <= row < self.shape[0]:
                raise IndexError("index out of range in self")
            if runs and runs[-1][1] == row:
                runs[-1] = (runs[-1][0], row + 1)
            else:
                runs.append((row, row + 1))
        rows_read = [self.source.rows(start, stop) for start, stop in runs]
        return torch.cat(rows_read) if rows_read else self.source.rows(0, 0), places

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if func in DESCRIBES or (_describes(func) and func not in (DATA.__get__, DATA.__set__)):
            # torch does not annotate this
            return super().__torch_function__(func, types, args, keywords)  # type: ignore[no-untyped-call]
        if func in SAME:
            return _again(args[0])
        if func is Tensor.requires_grad_:
            return args[0]
        if isinstance(args[0], Stored) and (func in SETTERS or CHANGES.fullmatch(func.__name__)):
            raise TypeError("a weight that stays in its file cannot be changed")
        if func in (torch.equal, Tensor.equal):  # transformers compares weights before tying them
            return _are_equal(*args)
        use = next(weight.use for weight in _tensors_in([args, keywords]) if isinstance(weight, Stored))
        if use.is_loading:
            return _deferred(func, args, keywords, use)
        if func in COMPUTED and (result := COMPUTED[func](*args, **keywords)) is not None:
            return result
        arguments, by_name = _changed([args, keywords], Stored.read)
        return func(*arguments, **by_name)

    def __repr__(self) -> str:  # type: ignore[override]  # torch's method has an argument for printed numbers
        return f"Stored({tuple(self.shape)}, {self.dtype})"


NUMERIC_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
"""The properties that are computed from a tensor's numbers; all other properties only describe the tensor."""
DESCRIBES = frozenset(
    {
        *(Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.element_size),
        *(
            Tensor.stride,
            Tensor.storage_offset,
            Tensor.is_floating_point,
            Tensor.is_complex,
            Tensor.is_signed,
        ),
        *(Tensor.is_contiguous, Tensor.data_ptr, Tensor.get_device, Tensor.__len__, Tensor.__hash__),
        *(Tensor.is_inference, Tensor.is_shared, Tensor.register_hook, Tensor.untyped_storage),
        *(torch.is_floating_point, torch.is_complex, torch.numel),
    }
)
"""Tensor functions and attributes that do not need the numbers."""
DATA: Any = Tensor.data
CHANGES = re.compile("[a-z].*[a-z]_")
"""Matches the names of functions that change a tensor."""
SETTERS = frozenset({DATA.__set__, Tensor.__setitem__})
SAME = frozenset({DATA.__get__, Tensor.detach, Tensor.__deepcopy__, Tensor.contiguous})
"""Functions whose result has the same numbers."""


def _describes(func: Any) -> bool:
    name = getattr(getattr(func, "__self__", None), "__name__", "")
    return (func.__name__ == "__get__" and name not in NUMERIC_PROPERTIES) or func.__name__ == "__set__"


def _again(weight: Stored) -> Stored:
    return Stored.of(weight.source, weight.use)


def _are_equal(a: Any, b: Any) -> bool:
    """Return True if two weights have the same numbers, which are not read if both are at the same place."""
    is_one_place = isinstance(a, Stored) and isinstance(b, Stored) and a.source == b.source
    return is_one_place or torch.equal(_loaded(a), _loaded(b))


def _loaded(part: Any) -> Any:
    return part.read() if isinstance(part, Stored) else part


def _row_range(part: Any, start: int, stop: int) -> Tensor:
    rows: Tensor = part.source.rows(start, stop) if isinstance(part, Stored) else part[start:stop]
    return rows


def _without_numbers(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _tensors_in(part: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists and dicts, in order."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, list | tuple):
        for inner in part:
            yield from _tensors_in(inner)
    elif isinstance(part, Mapping):
        yield from _tensors_in([*part.values()])


def _changed(part: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested lists and dicts with each tensor changed.

    `Stored.read` leaves tensors in memory unchanged.
    """
    if isinstance(part, Tensor):
        return part if change is Stored.read and not isinstance(part, Stored) else change(part)
    if isinstance(part, list | tuple):
        changed = [_changed(inner, change) for inner in part]
        return changed if isinstance(part, list) else tuple(changed)
    if isinstance(part, Mapping):
        return {key: _changed(inner, change) for key, inner in part.items()}
    return part


def _deferred(func: Any, args: tuple[Any, ...], named: Mapping[str, Any], use: Use) -> Any:
    """Return a function's outputs as weights with known shapes, computed when their numbers are needed."""
    if func is Tensor.__getitem__ and args[1] is Ellipsis:
        return args[0]
    if func is Tensor.to and len(args) == 1 and named.keys() <= {"device", "dtype"}:
        source = args[0].source
        return Stored.of(Cast(source, named.get("dtype") or source.dtype, use.device), use)
    meta_args, meta_keywords = _changed([args, named], _without_numbers)
    positions = count()

    def made(like: Tensor) -> Stored:
        return Stored.of(Made(func, args, named, next(positions), like.shape, like.dtype), use)

    return _changed(func(*meta_args, **meta_keywords), made)


class _Linear(torch.autograd.Function):
    """x W^T + b, where the numbers of W are not kept but are read again for the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, holder: list[Stored], bias: Tensor | None) -> Tensor:
        ctx.weight = holder[0]
        return _multiplied(x, holder[0], bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        weight: Stored = ctx.weight
        product = gradient.new_zeros(*gradient.shape[:-1], weight.shape[1])
        for start, stop, rows in weight.parts():
            # Batched gradients (is_grads_batched) do not support a slice of everything.
            is_whole = stop - start == weight.shape[0]
            product += (gradient if is_whole else gradient.narrow(-1, start, stop - start)) @ rows
        return product, None, None


def _multiplied(x: Tensor, weight: Stored, bias: Tensor | None) -> Tensor:
    """Compute x W^T + b, a few rows of W at a time. Each number is rounded once, as for a weight in memory.

    For a large weight, one thread reads, widens and multiplies some rows while another does the same for the
    next rows.
    """
    weight.keep_if_wanted()
    if weight.numbers is not None:
        return functional.linear(x, weight.numbers, bias)
    return _multiplied_in_parts(x, weight.source, bias)


def _multiplied_in_parts(x: Tensor, source: NumberSource, bias: Tensor | None) -> Tensor:
    output = x.new_empty(*x.shape[:-1], source.shape[0])
    flat, flat_output = x.reshape(-1, x.shape[-1]), output.view(-1, source.shape[0])
    narrow = source.narrow() if len(flat) <= MOST_ROWS and type(x) is Tensor else None
    if x.dtype == torch.float32 and x.device.type == "cpu" and narrow is not None:
        multiply = partial(_few_rows_multiplied, flat.contiguous(), narrow, bias, flat_output)
    else:
        multiply = partial(_rows_multiplied, flat, source, bias, flat_output)
    jobs = [partial(multiply, start, stop) for start, stop in chunks(source)]
    num_threads = torch.get_num_threads()
    if source.is_read_by_threads and len(jobs) >= JOBS_PER_THREAD * num_threads:
        with torch_threads(1):
            deque(run_jobs(jobs, num_threads), maxlen=0)
        return output
    with torch_threads(1) if len(flat) <= FEW_ROWS else nullcontext():
        for job in jobs:
            job()
    return output


def _rows_multiplied(
    x: Tensor, source: NumberSource, bias: Tensor | None, output: Tensor, start: int, stop: int
) -> None:
    # Not into a slice (out=): a slice's strides need a different kernel, which sums in a different order.
    bias_rows = None if bias is None else bias[start:stop]
    output[:, start:stop] = functional.linear(x, source.passing(start, stop), bias_rows)


def _few_rows_multiplied(
    x: Tensor, source: NumberSource, bias: Tensor | None, output: Tensor, start: int, stop: int
) -> None:
    write_products(x, source.passing(start, stop), output, start)
    if bias is not None:
        output[:, start:stop] += bias[start:stop]


def _linear(input: Any, weight: Any, bias: Tensor | None = None) -> Tensor | None:
    if not isinstance(weight, Stored) or isinstance(input, Stored) or isinstance(bias, Stored):
        return None
    shared = product_for_all(input, (weight, bias), lambda rows: functional.linear(rows, weight, bias))
    if shared is not None:
        return shared
    if weight.numbers is not None:
        return functional.linear(input, weight.numbers, bias)
    added = None if bias is None else bias.detach()
    if torch.is_grad_enabled() and input.requires_grad:
        # torch does not annotate this
        product: Tensor = _Linear.apply(input, [weight], added)  # type: ignore[no-untyped-call]
        return product
    return _multiplied(input, weight, added)


def _embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    *others: Any,
    **more: Any,
) -> Tensor | None:
    if not isinstance(weight, Stored) or max_norm is not None:
        return None
    rows, places = weight.looked_up(input)
    return functional.embedding(places, rows)


def _item(tensor: Any, index: Any) -> Tensor | None:
    """Return some rows: one row, a range, or a list of rows."""
    if not isinstance(tensor, Stored) or tensor.numbers is not None or tensor.use.begin(tensor):
        return None
    num_rows = tensor.shape[0] if tensor.shape else 0
    is_place = isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)
    if is_place and index.ndim == 0:
        index, is_place = int(index), False
    if isinstance(index, int) and not isinstance(index, bool) and -num_rows <= index < num_rows:
        return tensor.source.rows(index % num_rows, index % num_rows + 1)[0]
    if isinstance(index, slice) and index.step in (None, 1):
        start, stop, _ = index.indices(num_rows)
        return tensor.source.rows(start, max(start, stop))
    if isinstance(index, list) and all(type(row) is int for row in index):
        index, is_place = torch.tensor(index, dtype=torch.long), True
    if is_place and bool((index >= 0).all()):
        rows, places = tensor.looked_up(index)
        return rows[places]
    return None


COMPUTED: dict[Any, Callable[..., Tensor | None]] = {
    functional.linear: _linear,
    functional.embedding: _embedding,
    Tensor.__getitem__: _item,
}
"""Functions that may need only parts of a weight. Implementations that need the whole weight return None."""


def unknown_types(folder: Path) -> set[str]:
    """Return the unsupported types of weights in a folder."""
    files = map(tensors_in, weight_files(folder))
    return {str(about.kind) for tensors in files for about in tensors.values()} - DTYPES.keys()


def folder_weights(folder: Path, use: Use | None) -> dict[str, Any]:
    """Return the weights of a folder by their names in its files; without `use`, they are read on access."""
    weights: dict[str, Tensor | WholeWeight] = {}
    for path in weight_files(folder):
        file = WeightFile(path)
        for name, about in tensors_in(path).items():
            weights[name] = _held(in_file(file, about), use)
    return weights


def gguf_weights(
    path: Path, model: PreTrainedModel, settings: Mapping[str, Any], use: Use | None
) -> dict[str, Any]:
    """Return the weights of a GGUF file by their names in the transformers model.

    `settings` belong to the transformers config for the file. Without `use`, weights are read on access.
    """
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    header = gguf_header(path)
    # transformers does not annotate this
    processor_class: Any = TENSOR_PROCESSORS.get(str(header.settings[ARCHITECTURE]), TensorProcessor)
    processor = processor_class(config=settings)
    whole_names: dict[str, str] = get_gguf_hf_weights_map(_Names(model), processor)
    outer = f"{model.base_model_prefix}." if model.base_model is model else ""
    names = {name: target.removeprefix(outer) for name, target in whole_names.items()}

    def process(numbers: np.ndarray, name: str, made: dict[str, Tensor]) -> np.ndarray | None:
        result = processor.process(
            weights=numbers, name=name, tensor_key_mapping=names, parsed_parameters={"tensors": made}
        )
        return None if result.name is None else result.weights

    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call] # as above
    # Weights that a model without its head does not need.
    unused = () if head is not None else ("output.weight", "output.bias")
    file = WeightFile(path)
    sources: dict[str, NumberSource] = {}
    parts: dict[str, list[tuple[str, NumberSource]]] = {}
    unread: list[str] = []
    for name, about in header.tensors.items():
        source = InGguf(file, about)
        # A dry run without numbers finds the resulting weight; of the experts, only one is run.
        nothing = np.broadcast_to(
            np.float32(0), (1, *about.shape[1:]) if len(about.shape) > 2 else about.shape
        )
        made: dict[str, Tensor] = {}
        processed = process(nothing, name, made)
        if processed is nothing and name in names:
            sources[names[name]] = source
        elif processed is None or name in names:
            target = next(iter(made)) if processed is None else names[name]
            parts.setdefault(target, []).append((name, source))
            if target in shapes:
                sources[target] = Processed(parts[target], process, target, shapes[target])
        elif name not in ROPE_TENSORS and name not in unused:
            unread.append(name)
    if unread:
        raise UserError(f"model: {path}: its tensor {unread[0]:.200} is not supported by transformers")
    return {name: _held(source, use) for name, source in sources.items()}


def gguf_numbers(path: Path, name: str) -> list[float]:
    """Return the numbers of one small tensor of a GGUF file."""
    numbers: list[float] = (
        InGguf(WeightFile(path), gguf_header(path).tensors[name]).whole().flatten().tolist()
    )
    return numbers


class _Names:
    """A stand-in for a model, with only the model and its body, when transformers searches for weight names.

    Otherwise, transformers would visit every part and build the table of all names for each part. A model
    without a head has the names that it has inside a model with a head, because some are found only there.
    """

    def __init__(self, model: Any, *, is_body: bool = False) -> None:
        self.config = model.config
        self._model, self._is_body = model, is_body

    def state_dict(self) -> dict[str, Tensor]:
        """Return the names of all weights."""
        is_inside = not self._is_body and self._model.base_model is self._model
        outer = f"{self._model.base_model_prefix}." if is_inside else ""
        return {f"{outer}{name}": weight for name, weight in self._model.state_dict().items()}

    def named_children(self) -> list[tuple[str, "_Names"]]:
        """Return the body of the model; a body has no children."""
        body = _Names(self._model.base_model, is_body=True)
        return [] if self._is_body else [(self._model.base_model_prefix, body)]


def _held(source: NumberSource, use: Use | None) -> Tensor | WholeWeight:
    if use is None:
        return WholeWeight(source)
    return source.whole() if prod(source.shape) < SMALL_NUMBERS else Stored.of(source, use)


def settled(model: PreTrainedModel, use: Use) -> None:
    """Mark a model as loaded: from now on, its weights are read when they are used."""
    use.is_loading = False
    use.follow([weight for weight in model.parameters() if isinstance(weight, Stored)])
    if use.device.type == "cpu":
        return
    for module in model.modules():
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in tensors:
            if not isinstance(tensor, Stored):
                moved = tensor.to(use.device)
                setattr(module, name, nn.Parameter(moved) if isinstance(tensor, nn.Parameter) else moved)


def stored_use(model: nn.Module) -> Use | None:
    """Return the `Use` of a model's weights if they stay in their files, or None for a model in memory."""
    return next((weight.use for weight in model.parameters() if isinstance(weight, Stored)), None)


def blocks_of(model: nn.Module, *, in_memory: bool = False) -> list[nn.ModuleList]:
    """Return the stacks of blocks whose weights stay in their files or, with `in_memory`, all stacks."""
    stacks: dict[str, nn.ModuleList] = {}
    for name, stack in model.named_modules():
        # A block's experts do not count as blocks.
        if not isinstance(stack, nn.ModuleList) or any(name.startswith(f"{outer}.") for outer in stacks):
            continue
        if in_memory or any(isinstance(weight, Stored) for weight in stack.parameters()):
            stacks[name] = stack
    return [*stacks.values()]


@contextmanager
def showing_blocks(
    model: nn.Module, show: Callable[[int, int], None], *, in_memory: bool = False
) -> Iterator[None]:
    """Inside the block, call `show` before each block runs, with its number from 1 and the number of blocks.

    This applies only to a model whose weights stay in their files, since its blocks take time, or, with
    `in_memory`, to any model.
    """
    blocks = [block for stack in blocks_of(model, in_memory=in_memory) for block in stack]
    with ExitStack() as hooks:
        for number, block in enumerate(blocks, start=1):
            hook = block.register_forward_pre_hook(lambda _b, _inputs, n=number: show(n, len(blocks)))
            hooks.enter_context(hook)
        yield


@contextmanager
def first_blocks(model: PreTrainedModel, *, in_memory: bool = False) -> Iterator[bool]:
    """Inside the block, shorten stacks to the blocks up to the first one of each kind.

    This applies only to a model whose weights stay in their files or, with `in_memory`, to any model. Blocks
    of the same kind have modules with equal settings and weights of equal shapes. Yields True if a stack was
    shortened, and False if the model is still whole. The caller restores parts and configs.
    """
    is_shorter = False
    for stack in blocks_of(model, in_memory=in_memory):
        kinds = [_kind(block) for block in stack]
        needed = max(map(kinds.index, kinds), default=-1) + 1  # a list may be empty (SAM 3)
        if needed < len(stack):
            is_shorter = True
            del stack[needed:]
            for config in (model.config, model.config.get_text_config()):
                if getattr(config, NUM_LAYERS, None) == len(kinds):
                    setattr(config, NUM_LAYERS, needed)
    yield is_shorter


NUM_LAYERS = "num_hidden_layers"
NUMBERING = re.compile(r"idx|index")
"""Matches attributes that hold the number of a block."""


def _kind(block: nn.Module) -> tuple[Any, ...]:
    """Return a key that is equal for blocks with the same computation."""
    traits: list[Any] = []
    for name, module in block.named_modules():
        shapes = [(key, tuple(weight.shape)) for key, weight in module.named_parameters(recurse=False)]
        plain = [
            (key, value)
            for key, value in vars(module).items()
            if isinstance(value, int | float | str | None) and not NUMBERING.search(key)
        ]
        traits.append((name, type(module), *shapes, *plain))
    return tuple(traits)
