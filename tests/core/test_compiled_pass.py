"""The compiled pass against float64, after a fork, and under sanitizers."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.core import reference, rows, runtime, tiles
from attncli.core import row_tiles as row_softmax
from attncli.core.layer import AttentionLayer, Computed, Wanted
from attncli.core.names import ROW_STATISTICS
from attncli.core.tile_sums import TileSizes
from tests.layers import checked_layer

ROOT = Path(__file__).parent.parent.parent
ROWS = ("logsumexp", "sums", "previous_token", "output", "received_mass", "pooled_mean", "pooled_max")
WANTED = Wanted(
    rows=tuple(ROW_STATISTICS),
    top_k=4,
    previous_token=True,
    output=True,
    score_moments=True,
    received_mass=True,
    pooled=3,
)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(runtime.SWITCH, "0")
    runtime.library.cache_clear()
    yield
    runtime.library.cache_clear()


def build_hook() -> Any:
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layer(seed: int, num_queries: int, num_keys: int, factor: float = 1.0, **masks: Any) -> AttentionLayer:
    """A layer with scores of about `factor`: one text, two heads."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(1, 2, size, dim, generator=generator)
        for size, dim in ((num_queries, 5), (num_keys, 5), (num_keys, 3))
    )
    return checked_layer(query, key, value, scale=factor / 5**0.5, **masks)


def assert_close(found: Computed, expected: Computed, tolerance: float) -> None:
    numbers = {name: (getattr(found, name), getattr(expected, name)) for name in ROWS}
    numbers |= {name: (found.rows[name], expected.rows[name]) for name in ROW_STATISTICS}
    for moment in ("mean", "variance", "smallest", "largest"):
        numbers[moment] = (getattr(found.moments, moment), getattr(expected.moments, moment))
    for name, (one, other) in numbers.items():
        torch.testing.assert_close(
            one.double(),
            other.double(),
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@needs_compiler
def test_it_is_installed() -> None:
    assert runtime.tile_pass_in_use() == "compiled"


@given(
    seed=st.integers(0, 2**31),
    num_queries=st.integers(1, 70),
    more_keys=st.integers(0, 40),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 50),
    softcap=st.none() | st.floats(0.5, 30),
    sizes=st.builds(TileSizes, queries=st.integers(1, 80), keys=st.integers(1, 150)),
    factor=st.sampled_from([0.0, 1.0, 30.0]),
)
@settings(max_examples=40, deadline=None)
def test_any_shape_and_mask_matches_float64(
    seed: int,
    num_queries: int,
    more_keys: int,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sizes: TileSizes,
    factor: float,
) -> None:
    made = layer(
        seed, num_queries, num_queries + more_keys, factor, causal=causal, window=window, softcap=softcap
    )
    tolerance, expected = 3e-5 * max(1.0, factor), reference.attend(made, WANTED)
    assert_close(tiles.attend(made, WANTED, None, sizes), expected, tolerance)
    assert_close(rows.attend(made, WANTED), expected, tolerance)


def test_torch_gives_the_same(torch_alone: None) -> None:
    assert runtime.tile_pass_in_use() == "torch"
    made = layer(3, 61, 67, causal=True)
    expected = reference.attend(made, WANTED)
    assert_close(tiles.attend(made, WANTED, None, TileSizes(16, 32)), expected, 3e-5)
    assert_close(rows.attend(made, WANTED), expected, 3e-5)


def test_overflowing_scores_give_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose scores are all -inf sees keys, and a row with +inf has no weights."""
    query = torch.tensor([[[[1e30], [-1e30], [1.0]]]])
    made = checked_layer(query, query.abs(), query, scale=1e20)
    found = rows.attend(made, WANTED)
    monkeypatch.setattr(row_softmax, "tile_pass", lambda: None)
    assert found.output.isnan().all(dim=-1).tolist() == [[[True, True, True]]]
    assert torch.equal(found.output.isnan(), rows.attend(made, WANTED).output.isnan())


AFTER_A_FORK = """
import os, torch
torch.set_num_threads(1)
from tests.core.test_compiled_pass import WANTED, layer
from attncli.core import tiles
made = layer(5, 80, 80, causal=True)
mine = tiles.attend(made, WANTED).output
child = os.fork()
if not child:
    os._exit(0 if torch.equal(tiles.attend(made, WANTED).output, mine) else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_after_a_fork() -> None:
    done = subprocess.run([sys.executable, "-c", AFTER_A_FORK], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SANITIZED = """
import ctypes, sys
from attncli.core import runtime
libraries = dict(zip((runtime.TILE_PASS, runtime.FEW_ROWS), map(ctypes.CDLL, sys.argv[1:]), strict=True))
runtime.library = libraries.get
from tests.core import test_compiled_pass as tests, test_few_rows
tests.test_any_shape_and_mask_matches_float64()
for dtype in test_few_rows.HALVES:
    test_few_rows.test_any_shape_matches_float64(dtype)
    test_few_rows.assert_every_number_is_widened(dtype)
"""


@pytest.mark.nightly
@needs_compiler
def test_the_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Address and undefined-behaviour sanitizers, over the tests above."""
    hook, libraries = build_hook(), []
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
    for source in (runtime.TILE_PASS, runtime.FEW_ROWS):
        libraries.append(tmp_path / f"{source.stem}.so")
        command = ["cc", *hook.FLAGS, *flags, "-o", libraries[-1], source, "-lm"]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("the compiler has no sanitizers")
    libasan = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True)
    environment = {**os.environ, "LD_PRELOAD": libasan.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED, *libraries],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
