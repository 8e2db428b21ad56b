"""Properties of a call besides its numbers: errors, progress, threads, interrupts, state, repeatability."""

import gc
import pickle
import threading
import time
from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest
import torch

from attncli.core import rows, tiles
from attncli.core import tiles as head_jobs
from attncli.core import tiles as passes
from attncli.core.attention_statistics import attention_statistics, computed_statistics
from attncli.core.engines import attend
from attncli.core.layer import Wanted
from attncli.core.names import ROW_STATISTICS, RowStatistic
from tests.layers import checked_layer


@pytest.fixture(params=[1, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def everything(seed: int = 0) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(4, 1500, 8, generator=generator) for _ in range(3))
    found = attention_statistics(query, key, value, causal=True, top_k=5, keys=True, pooled=64)
    numbers = [each for name, each in vars(found).items() if name != "rows"]
    return b"".join(each.numpy().tobytes() for each in (*numbers, *found.rows.values()))


@pytest.mark.parametrize("rows_at_once", [700, 2048])  # 512 rows of a job lie in two parts, or in one
def test_the_same_bytes_on_any_number_of_threads(
    num_threads: int, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (head_jobs, passes):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", rows_at_once)
    assert everything() == everything()
    torch.set_num_threads(1)
    alone = everything()
    torch.set_num_threads(num_threads)
    assert everything() == alone


def test_global_state_is_restored(num_threads: int) -> None:
    tensor = torch.randn(2, 600, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention_statistics(tensor, tensor, tensor)
    assert found.output is not None and not found.output.requires_grad
    assert torch.equal(found.entropy, attention_statistics(tensor.detach(), tensor.detach()).entropy)
    assert torch.get_num_threads() == num_threads and torch.is_grad_enabled()


@pytest.mark.parametrize("num_tokens", [900, 1100])
def test_progress_rises_to_one_in_the_calling_thread(num_threads: int, num_tokens: int) -> None:
    seen: list[tuple[float, int]] = []
    tensor = torch.randn(2, num_tokens, 4)
    attention_statistics(
        tensor, tensor, keys=True, progress=lambda done: seen.append((done, threading.get_ident()))
    )
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions) and len(fractions) > 3 and fractions[-1] == 1
    assert {thread for _, thread in seen} == {threading.get_ident()}


def threads_of_a_new_thread() -> int:
    """Number of threads that torch uses in a new thread."""
    found: list[int] = []
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    return found[0]


@pytest.mark.parametrize("num_tokens", [1100, 3000])
def test_other_threads_keep_their_torch_threads(num_threads: int, num_tokens: int) -> None:
    """Other threads, running or new, keep their torch threads: torch.set_num_threads would change both."""
    found: set[int] = set()
    is_over = threading.Event()

    def train() -> None:
        while not is_over.is_set():
            found.update((torch.get_num_threads(), threads_of_a_new_thread()))

    training = threading.Thread(target=train)
    training.start()
    tensor = torch.randn(1, 4, num_tokens, 8)
    for engine in (rows.attend, tiles.attend):
        engine(checked_layer(tensor, tensor, tensor, causal=True), Wanted(rows=("entropy",), output=True))
        attention_statistics(tensor, tensor, progress=lambda _: found.add(threads_of_a_new_thread()))
    is_over.set()
    training.join()
    assert found == {num_threads} and torch.get_num_threads() == num_threads


def bytes_of_tensors() -> int:
    """Bytes of all live tensors."""
    gc.collect()
    storages = [each.untyped_storage() for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def test_a_long_call_leaves_one_small_buffer(num_threads: int) -> None:
    """64 heads share a key head, so a tile with whole rows of all heads takes 77 MB."""
    query, key = torch.randn(1, 64, 6, 4), torch.randn(1, 1, 100_000, 4)
    layer, before = checked_layer(query, key, key), bytes_of_tensors()
    for engine in (rows.attend, tiles.attend):
        engine(layer, Wanted(rows=("entropy",)))
        assert bytes_of_tensors() - before <= 16 * 2**20


def test_concurrent_calls_restore_torch_threads(num_threads: int) -> None:
    tensor = torch.randn(1, 4, 1100, 8)
    calls = [threading.Thread(target=attention_statistics, args=(tensor, tensor)) for _ in range(4)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert threads_of_a_new_thread() == num_threads and torch.get_num_threads() == num_threads


def test_an_interrupt_ends_the_call_at_once(num_threads: int) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    tensor = torch.randn(64, 4096, 16)
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        attention_statistics(tensor, tensor, progress=interrupt)
    assert time.perf_counter() - began < 2  # the whole call takes several
    assert torch.get_num_threads() == num_threads


def test_every_row_statistic_is_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    """All row statistics, one from a plugin included, by name and as attributes; copies are complete."""
    tensor = torch.randn(2, 7, 5)
    monkeypatch.setitem(ROW_STATISTICS, "added", RowStatistic("attncli.core.formulas:sink_mass"))
    for found in (
        attention_statistics(tensor, tensor),
        pickle.loads(pickle.dumps(attention_statistics(tensor, tensor))),
    ):
        assert list(found.rows) == list(ROW_STATISTICS) and {*ROW_STATISTICS} <= {*dir(found)}
        assert torch.equal(found.added, found.sink_mass) and found.entropy is found.rows["entropy"]
        assert torch.equal(copy(found).participation, found.participation)
        with pytest.raises(AttributeError, match=r"no attribute 'entropi'; its row statistics are entropy, "):
            _ = found.entropi


T = torch.zeros


def unchecked(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None = None, **options: Any
) -> object:
    """Call without the type checks that only tests turn on."""
    settings = dict(causal=False, window=None, softcap=None, scale=None, top_k=0, keys=False, pooled=None)
    masks = options.pop("key_mask", None), options.pop("sink", None)
    return computed_statistics(query, key, value, *masks, **{**settings, **options}, engine=attend)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((T(3, 7), T(3, 5)), "key has dim 5, query has dim 7: both must be equal"),
        ((T(3, 7), T(5, 7), T(3, 7)), "value has 3 rows, key has 5: both must have the same number"),
        ((T(2, 3, 7), T(3, 7)), "key has 2 axes, query has 3"),
        ((T(7), T(7)), "query has 1 axes"),
        ((T(5, 3, 7), T(3, 3, 7)), r"key has leading axes \(3,\), query has \(5,\)"),
        ((T(3, 3, 7), T(3, 3, 7), T(1, 3, 7)), r"value has leading axes \(1,\), key has \(3,\)"),
        ((T(3, 7).long(), T(3, 7).long()), "query has type torch.int64"),
        ((T(3, 7), T(3, 7).double()), "key is torch.float64 on cpu, query is torch.float32 on cpu"),
        ((T(3, 7), T(3, 7) + torch.nan), "key has entries that are NaN"),
        ((T(3, 7) + torch.inf, T(3, 7)), "query has entries that are NaN, infinite"),
        ((T(3, 7), T(3, 7), T(3, 7) + torch.nan), "value has entries that are NaN"),
        ((T(3, 0), T(3, 0)), r"the dim of query must be at least 1 \(got 0\)"),
        ((T(3, 7) + 1e15, T(3, 7) + 1e15), "scores may reach"),
    ],
)
def test_wrong_tensors_are_named(tensors: tuple[torch.Tensor, ...], message: str) -> None:
    query, key, value = (*tensors, None)[:3]
    with pytest.raises(ValueError, match=message):
        unchecked(query, key, value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, r"window must be at least 1 \(got 0\)"),
        ({"softcap": 0.0}, r"softcap must be between 1e-30 and 1e\+30 \(got 0.0\)"),
        ({"scale": float("nan")}, "scale must be finite"),
        ({"top_k": -1}, r"top_k must be at least 0 \(got -1\)"),
        ({"softcap": 1e300}, "softcap must be between"),
        ({"softcap": 1e-46}, "softcap must be between"),
        ({"key_mask": torch.zeros(3)}, "key_mask has type torch.float32: it must be bool"),
        ({"pooled": 0}, "pooled must be at least 1"),
        (
            {"key_mask": torch.ones(5, 3, dtype=torch.bool)},
            r"key_mask has shape \(5, 3\): it must broadcast to",
        ),
        ({"sink": torch.zeros(3)}, r"sink has shape \(3,\): it must broadcast to"),
        ({"sink": torch.tensor(torch.nan)}, "sink has entries that are NaN or"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unchecked(T(2, 3, 7), T(2, 3, 7), **options)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(0, 3), (3, 0), (0, 0)])
def test_empty_input_gives_empty_results_and_nulls(num_queries: int, num_keys: int) -> None:
    found = attention_statistics(
        T(2, num_queries, 7), T(2, num_keys, 7), T(2, num_keys, 5), keys=True, pooled=4
    )
    assert found.output is not None and found.output.shape == (2, num_queries, 5)
    assert found.entropy.isnan().all() and found.score_mean.isnan().all()


@pytest.mark.parametrize("num_tokens", [50, 1100])
def test_inference_mode_and_parameters_change_nothing(num_threads: int, num_tokens: int) -> None:
    """Buffers are kept between calls: one made in inference mode would break the next call."""
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, num_tokens, 6, generator=generator)
    sink = torch.nn.Parameter(torch.randn(2, generator=generator))
    before = attention_statistics(query, query, sink=sink.detach())
    with torch.inference_mode():
        inside = attention_statistics(query + 0, query + 0, sink=sink)
    after = attention_statistics(query, query, sink=sink)
    assert torch.equal(inside.entropy, before.entropy) and torch.equal(after.entropy, before.entropy)
