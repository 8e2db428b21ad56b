"""Watching a training run: what it leaves untouched, what it keeps, and what cannot end the training."""

import os
import random
import sys
import time
import types
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import attncli
from attncli.errors import RunError, UserError
from attncli.features.watch.door import Watch
from attncli.features.watch.training_steps import StoredSteps, stored_steps
from attncli.models.folder import SHIPPED_MODEL
from attncli.runs.reading import reading
from tests.conftest import some_seldom
from tests.features.watch.small_training import FEW, TOKENS, seeded, small_model, trained
from tests.forked import run_python
from tests.running import ROOT
from tools.refresh_outputs import start_python


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(SHIPPED_MODEL)


def steps_in(path: Path) -> StoredSteps:
    with reading(path) as reader:
        return stored_steps(reader)[0]


class Forgetful(nn.Module):
    """A part that draws random numbers and changes a buffer, in evaluation mode, too."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.of = of
        self.register_buffer("calls", torch.zeros(3))
        self.seen: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen = hidden
        random.random()
        np.random.random()
        return self.of(hidden) + 0 * torch.rand(1)


def numbers_after(tokenizer: PreTrainedTokenizerBase, store: Path | None) -> list[object]:
    """The bytes of the weights and buffers after a training, watched or not, and the next random numbers."""
    model = small_model()
    model.transformer.h[1].mlp = Forgetful(model.transformer.h[1].mlp)
    handle = model.transformer.h[0].register_forward_hook(lambda *_: None)
    seeded()
    if store is None:
        trained(model, 6)
    else:
        watch = Watch(model, tokenizer, every=2, store=store, text="abc", **FEW)

        def step(number: int, loss: torch.Tensor) -> None:
            before = [vars(module).copy() for module in model.modules()]
            assert (watch.step(number, loss=loss) is None) == bool(number % 2)
            assert [vars(module) for module in model.modules()] == before
            assert model.training and model.config.use_cache
            assert list(model.transformer.h[0]._forward_hooks) == [handle.id]
            assert all(parameter.grad is not None for parameter in model.parameters())

        trained(model, 6, step)
        watch.close()
        assert watch.last_step == 6
    weights = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    assert "transformer.h.1.mlp.calls" in weights
    return [weights, random.random(), np.random.random(), torch.rand(1).item()]


def test_watching_changes_no_byte_of_the_training(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    assert numbers_after(tokenizer, None) == numbers_after(tokenizer, tmp_path / "run.db")


def test_each_step_stores_the_survey_of_the_model_at_that_step(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    model = small_model()
    surveys = []
    with Watch(model, tokenizer, every=2, store=tmp_path / "run.db", text="to be or not", **FEW) as watch:

        def step(number: int, loss: torch.Tensor) -> None:
            numbers = watch.step(number, loss=loss)
            if numbers is not None:
                of_probe = attncli.heads(model, tokenizer=tokenizer, num_tokens=TOKENS).table("heads")
                of_text = attncli.heads(model, "to be or not", tokenizer=tokenizer).table("heads")
                surveys.append((number, loss.item(), of_probe, of_text))
                assert numbers["attn/loss"] == loss.item()
                assert numbers["attn/largest_max_score"] == max(row["max_score"] for row in of_probe)
                assert [row["entropy"] for row in watch.heads] == pytest.approx(
                    [row["entropy"] for row in of_probe]
                )

        trained(model, 5, step)
    with reading(tmp_path / "run.db") as reader:
        probe, text = stored_steps(reader, None)
    assert probe.steps == text.steps == [2, 4]
    assert probe.losses() == [loss for _, loss, *_ in surveys] and text.losses() is None
    for stored, which in ((probe, 2), (text, 3)):
        (over,) = stored.stacks()
        for place, survey in enumerate(surveys):
            for row in survey[which]:
                for name, values in over.statistics.items():
                    kept = values[place, row["layer"], row["head"]]
                    assert kept == pytest.approx(row[name], abs=1e-6, nan_ok=True), name


TRAINING = """
import sys, torch, attncli
from transformers import AutoTokenizer
from attncli.models.folder import SHIPPED_MODEL
from tests.features.watch.small_training import small_model, trained
torch.set_num_threads(1)
model = small_model()
watch = attncli.Watch(model, AutoTokenizer.from_pretrained(SHIPPED_MODEL), every=1, store=sys.argv[1],
    num_tokens=5, resume=len(sys.argv) > 2)
trained(model, 100_000, lambda step, loss: watch.step(step, loss=loss))
"""


def test_a_killed_run_leaves_a_store_that_opens_and_a_second_one_is_refused(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    path = tmp_path / "run.db"
    process = start_python(TRAINING, [str(path)], folder=ROOT, environment=os.environ, stdout=1, stderr=2)
    try:
        deadline = time.monotonic() + 60
        while not (path.exists() and len(_steps_of(path)) > 3):
            assert process.exitcode is None and time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(RunError, match=r"run\.db: is being written by another attn process \(\d+\)"):
            Watch(small_model(), tokenizer, store=path, **FEW)
    finally:
        process.kill()
        process.join()
    steps = _steps_of(path)
    assert steps == list(range(1, len(steps) + 1))
    with pytest.raises(
        UserError, match=rf"steps 1 to {len(steps)} of a training run: use another name, or resume=T"
    ):
        Watch(small_model(), tokenizer, store=path, **FEW)
    with pytest.raises(UserError, match="of another model, or on other texts"):
        Watch(small_model(), tokenizer, store=path, num_tokens=6, resume=True)
    with Watch(small_model(), tokenizer, every=1, store=path, resume=True, **FEW) as watch:
        watch.step(3, loss=0.5)
        watch.step(4)
    assert _steps_of(path) == [1, 2, 3, 4], "steps from the first that came are replaced"
    assert steps_in(path).losses()[2:] == [0.5, None]


def _steps_of(path: Path) -> list[int]:
    with reading(path) as reader:
        return [step.step for step in reader.steps()]


def test_a_full_disk_is_one_warning_and_steps_stay_in_memory(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    model = small_model()
    with Watch(model, tokenizer, every=1, store=tmp_path / "run.db", **FEW) as watch:
        watch.step(1)
        disk = watch._store._connection  # the same error as on a disk with no page left
        (pages,) = disk.execute("PRAGMA page_count").fetchone()
        disk.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.warns(RuntimeWarning, match="cannot be written: database or disk is full") as told:
            trained(model, 10, lambda step, loss: watch.step(step + 1))
        assert len(told) == 1
        assert 0 < len(watch.unwritten) < 11 and watch.unwritten[-1].step == 11
        disk.execute("PRAGMA max_page_count = 100000")
        watch.step(12)
        assert not watch.unwritten
    assert steps_in(tmp_path / "run.db").steps == list(range(1, 13))


@pytest.mark.nightly
def test_unstored_steps_are_reported_at_the_end(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    watch = Watch(small_model(), tokenizer, every=1, store=tmp_path / "run.db", **FEW)
    watch._store._connection.execute("PRAGMA max_page_count = 1")
    with pytest.warns(RuntimeWarning) as told:
        for step in range(10):
            watch.step(step)
        watch.close()
    assert [str(one.message).split(": ")[-1] for one in told] == [
        "steps stay in memory",
        f"{len(watch.unwritten)} runs could not be stored; they are in `unwritten`",
    ]


def test_expectations_name_the_head_and_the_step(tokenizer: PreTrainedTokenizerBase) -> None:
    model = small_model()
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight *= 100
    watch = Watch(model, tokenizer, every=10, expect="max_score < 5", **FEW)
    with pytest.warns(
        RuntimeWarning, match=r"attn: step 10: expected max_score < 5: got [\d.]+ in \d:\d"
    ) as told:
        watch.step(10)
    worst = max(watch.heads, key=lambda row: row["max_score"])
    assert f"got {worst['max_score']!r} in {worst['layer']}:{worst['head']} (and" in str(told[0].message)
    strict = Watch(model, tokenizer, every=10, expect=["loss < 2", "max_score < 5"], on_fail="raise", **FEW)
    with pytest.raises(UserError) as failed:
        strict.step(20, loss=3.5)
    assert failed.value.lines[0] == "step 20: expected loss < 2: got 3.5"
    assert failed.value.lines[1].startswith("step 20: expected max_score < 5: got")
    with pytest.raises(UserError, match="expect 'max_scor < 5': no run will have max_scor"):
        Watch(model, tokenizer, expect="max_scor < 5")


WRONG = {
    "every: must be at least 1 (got 0)": {"every": 0},
    "store: must be a file name (got 5)": {"store": 5},
    "text: must be text (got ['a'])": {"text": ["a"]},
    "text: must hold at least one token (got an empty text)": {"text": ""},
    "expect: must be a condition or a list of them (got [5])": {"expect": [5]},
    "on_fail: must be one of warn or raise (got 3)": {"on_fail": 3},
}


@pytest.mark.parametrize(("line", "wrong"), WRONG.items(), ids=WRONG)
def test_wrong_arguments_are_one_line_each(
    line: str, wrong: dict[str, Any], tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(UserError) as failed:
        Watch(small_model(), tokenizer, **wrong)
    assert failed.value.lines == (line,)


def test_nan_weights_are_measured_and_reported(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    model = small_model()
    expected = "max_score < 5"
    with Watch(model, tokenizer, every=1, store=tmp_path / "run.db", expect=expected, **FEW) as watch:
        watch.step(1, loss=1.0)
        with torch.no_grad():
            model.transformer.wte.weight.fill_(torch.nan)
        with (
            pytest.warns(RuntimeWarning, match="step 2: 6 heads have NaN .the first is 0:0"),
            pytest.warns(RuntimeWarning, match="got no number in 0:0 .and in 5 more."),
        ):
            watch.step(2, loss=float("nan"))
    assert steps_in(tmp_path / "run.db").steps == [1, 2]


def test_a_later_failure_is_one_warning(tokenizer: PreTrainedTokenizerBase) -> None:
    model = small_model()
    watch = Watch(model, tokenizer, every=1, **FEW)

    def fail(*_: object) -> None:
        raise ValueError("no more")

    model.transformer.h[0].register_forward_pre_hook(fail)
    with pytest.warns(RuntimeWarning, match="step 1 is not measured: .*ValueError: no more") as told:
        assert watch.step(1) is None and watch.step(2) is None
    assert len(told) == 1 and model.training


COMPILED = """
import warnings
import torch
from transformers import AutoTokenizer
from attncli.models.folder import SHIPPED_MODEL
from attncli.features.watch.door import Watch
from tests.features.watch.small_training import FEW, small_model, trained

warnings.simplefilter("ignore")  # torch's own, as it compiles
for is_watched in (False, True):
    torch.compiler.reset()
    counted = []

    def note(graph, _inputs):
        counted.append(graph)
        return graph.forward

    compiled = torch.compile(small_model(), backend=note)
    if is_watched:
        watch = Watch(compiled, AutoTokenizer.from_pretrained(SHIPPED_MODEL), every=2, **FEW)
        trained(compiled, 6, lambda step, _: watch.step(step))
        assert watch.last_step == 6
    else:
        trained(compiled, 6)
    print(len(counted))
"""


@pytest.mark.nightly
def test_a_compiled_model_is_not_compiled_again() -> None:
    """In a process of its own: others that ran here may have made torch give up."""
    ended = run_python(COMPILED)
    assert ended.code == 0, ended.err
    alone, watched = map(int, ended.out.split())
    assert alone == watched > 0


def test_wrapped_models_are_unwrapped(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    adapted = nn.Module()
    adapted.get_base_model = small_model  # as PEFT's has it
    assert Watch(adapted, tokenizer, every=1, **FEW).step(1) is not None
    adapted.active_peft_config = types.SimpleNamespace(is_prompt_learning=True)
    with pytest.raises(UserError, match=r"puts learned vectors before a text \(prompt or prefix tuning\)"):
        Watch(adapted, tokenizer, **FEW)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(small_model())
        watch = Watch(parallel, tokenizer, every=2, **FEW)
        trained(parallel, 4, lambda step, _: watch.step(step))
        assert watch.last_step == 4
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = small_model()
        watch = Watch(model, tokenizer, every=1, **FEW)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.warns(RuntimeWarning, match="split over several processes: nothing is measured"):
            assert watch.step(1) is None
        with pytest.raises(UserError, match=r"split over several processes \(FSDP, .*attn watch"):
            Watch(model, tokenizer)
    finally:
        torch.distributed.destroy_process_group()
    with pytest.raises(UserError, match=r"model: must be a transformers PreTrainedModel \(got Linear\)"):
        Watch(nn.Linear(2, 2), tokenizer)
    with pytest.raises(UserError, match=r"^text: must be at most \d+ tokens for .* \(got \d+\)$"):
        Watch(small_model(), tokenizer, text="the cat " * 999, **FEW)
    with pytest.raises(UserError, match="tokenizer: must be the loaded model's"):
        Watch(small_model(), None)


TOGETHER = """
import hashlib
import sys
import warnings
from datetime import timedelta
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from transformers import AutoTokenizer
from attncli.errors import UserError
from attncli.models.folder import SHIPPED_MODEL
from attncli.features.watch.door import Watch
from tests.features.watch.small_training import FEW, seeded, small_model, trained

warnings.simplefilter("ignore")
folder, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
group = {"init_method": f"file://{folder}/group", "rank": rank, "world_size": 2}
distributed.init_process_group("gloo", **group, timeout=timedelta(minutes=2))
tokenizer = AutoTokenizer.from_pretrained(SHIPPED_MODEL)
for store in (None, f"{folder}/run.db"):
    model = small_model()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    seeded()
    torch.manual_seed(rank)
    if store is None:
        trained(parallel, 4)
    else:
        with Watch(parallel, tokenizer, every=2, store=store, **FEW) as watch:
            trained(parallel, 4, lambda step, loss: watch.step(step, loss=loss))
        print(watch.last_step)
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    print(hashlib.sha256(weights).hexdigest())
cpu, mesh = torch.device("cpu"), init_device_mesh("cpu", (2,))
part = small_model()
fully_shard(part.transformer.h[0], mesh=mesh)
for sharded in (
    FullyShardedDataParallel(small_model(), device_id=cpu),
    fully_shard(small_model(), mesh=mesh),
    part,
):
    try:
        Watch(sharded, tokenizer, **FEW)
    except UserError as error:
        print(error)
later = small_model()
watch = Watch(later, tokenizer, every=2, **FEW)
wrapped = FullyShardedDataParallel(later, device_id=cpu, use_orig_params=True)
trained(wrapped, 2, lambda step, loss: watch.step(step, loss=loss))
print(watch.last_step)
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.nightly
def test_two_processes_that_train_together(tmp_path: Path) -> None:
    """The first measures, both keep their weights; of weights in parts each says at once that it cannot."""
    with ThreadPoolExecutor() as both:
        ended = [*both.map(lambda rank: run_python(TOGETHER, tmp_path, rank), range(2))]
    assert [process.code for process in ended] == [0, 0], ended
    first, second = (process.out.splitlines() for process in ended)
    assert (first.pop(1), second.pop(1)) == ("4", "None")
    assert first == second
    alone, watched, *lines, later = first
    assert alone == watched and later == "None"
    assert len(lines) == 3 and all("split over several processes" in line for line in lines)
    assert steps_in(tmp_path / "run.db").steps == [2, 4]


def test_only_the_first_process_measures(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with Watch(small_model(), tokenizer, every=1, store=tmp_path / "run.db", **FEW) as watch:
        assert watch.step(1) is None
    assert not (tmp_path / "run.db").exists()


def test_a_step_that_is_not_due_costs_less_than_ten_microseconds(tokenizer: PreTrainedTokenizerBase) -> None:
    watch, loss = Watch(small_model(), tokenizer, every=10**9, **FEW), torch.tensor(1.0)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        for step in range(1, 2001):
            watch.step(step, loss=loss)
        seconds.append((time.perf_counter() - start) / 2000)
    assert min(seconds) < 1e-5


class Examples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(7) + place
        return {"input_ids": tokens, "labels": tokens}


def train(
    watches: Sequence[Watch],
    folder: Path,
    *,
    resume: Path | None = None,
    others: Sequence[Any] = (),
    **settings: Any,
) -> dict[int, float]:
    """Trains the model that they watch; the losses that transformers logs, by step."""
    from transformers import Trainer, TrainingArguments

    usual = {"max_steps": 7, "save_strategy": "no", "per_device_train_batch_size": 2}
    how = TrainingArguments(
        output_dir=str(folder), report_to=[], disable_tqdm=True, use_cpu=True, **{**usual, **settings}
    )
    callbacks = [*(watch.callback() for watch in watches), *others]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        examples = Examples()
        model = watches[0]._model
        trainer = Trainer(model, how, train_dataset=examples, eval_dataset=examples, callbacks=callbacks)
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}


LOGGED = {
    "never": {"logging_strategy": "no"},
    "between evaluations, of several batches": {
        **{"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 1},
        **{"gradient_accumulation_steps": 2},
    },
}


@pytest.mark.parametrize("settings", some_seldom(LOGGED, {"never"}))
def test_losses_logged_by_the_trainer_belong_to_their_steps(
    settings: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    model = small_model()
    watches = [Watch(model, tokenizer, every=n, store=tmp_path / f"{n}.db", **FEW) for n in (2, 3)]
    logged = train(watches, tmp_path, **LOGGED[settings])
    for every, steps in ((2, [0, 2, 4, 6, 7]), (3, [0, 3, 6, 7])):
        stored = steps_in(tmp_path / f"{every}.db")
        losses = [logged.get(step) for step in steps]
        assert stored.steps == steps
        assert stored.losses() == (losses if any(losses) else None)


@pytest.mark.nightly
def test_a_resumed_trainer_keeps_the_loss_of_its_first_step(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    store, settings = tmp_path / "run.db", {"logging_steps": 2, "save_strategy": "steps", "save_steps": 4}
    train([Watch(small_model(), tokenizer, every=2, store=store, **FEW)], tmp_path, **settings)
    losses = steps_in(store).losses()
    again = Watch(small_model(), tokenizer, every=2, store=store, resume=True, **FEW)
    logged = train([again], tmp_path, resume=tmp_path / "checkpoint-4", **settings)
    assert steps_in(store).steps == [0, 2, 4, 6, 7]
    assert steps_in(store).losses() == [None, logged[2], logged[4], logged[6], None]
    assert losses is not None and losses[:3] == [None, logged[2], logged[4]]


@pytest.mark.nightly
def test_the_last_step_is_of_the_last_weights_not_of_the_best(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    from transformers import TrainerCallback

    class Spoiled(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == 1:  # from here on the loss is larger
                with torch.no_grad():
                    model.lm_head.weight.mul_(20)

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            norms.append(model.lm_head.weight.norm().item())

    model, norms = small_model(), []
    watch = Watch(model, tokenizer, every=10, **FEW)
    settings = {"load_best_model_at_end": True, "save_strategy": "steps", "eval_strategy": "steps"}
    train([watch], tmp_path, others=[Spoiled()], max_steps=3, save_steps=1, eval_steps=1, **settings)
    assert model.lm_head.weight.norm().item() < norms[-1] / 2, "the best weights are there at the end"
    best = attncli.heads(model, tokenizer=tokenizer, num_tokens=TOKENS).table("heads")
    assert watch.last_step == 3
    assert [row["max_score"] for row in watch.heads] != [row["max_score"] for row in best]


@pytest.mark.nightly
def test_a_loss_that_comes_later_is_expected_and_kept_when_the_disk_is_full(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    with Watch(
        small_model(), tokenizer, every=1, store=tmp_path / "run.db", text="abc", expect="loss < 2", **FEW
    ) as watch:
        watch.step(1)
        with pytest.warns(RuntimeWarning, match=r"attn: step 1: expected loss < 2: got 3\.5"):
            watch.add_loss(1, 3.5)
        watch.add_loss(1, 1.0)
        disk = watch._store._connection
        disk.execute("PRAGMA query_only = ON")
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            watch.step(2)
        watch.add_loss(2, 1.25)
        watch.add_loss(1, 9.0)
        assert watch.unwritten[0].values[-1] == 1.25
        disk.execute("PRAGMA query_only = OFF")
        watch.step(3)
        disk.execute("PRAGMA query_only = ON")
        watch.add_loss(3, 1.5)
        disk.execute("PRAGMA query_only = OFF")
    assert steps_in(tmp_path / "run.db").losses() == [3.5, 1.25, 1.5]
    with reading(tmp_path / "run.db") as reader:
        of_probe, of_text = stored_steps(reader)
    assert of_probe.settings["sentence"] is None and of_text.losses() is None


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """Stands in for the package, which is not installed: its callbacks are subclasses of this class."""

    class Callback:
        def on_train_start(self, trainer: Any, pl_module: Any) -> None: ...
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None: ...
        def on_train_end(self, trainer: Any, pl_module: Any) -> None: ...
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None: ...

    package, module = types.ModuleType("lightning"), types.ModuleType("lightning.pytorch")
    vars(module)["Callback"] = Callback
    monkeypatch.setitem(sys.modules, "lightning", package)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", module)
    yield Callback


def test_lightning_calls_it(tokenizer: PreTrainedTokenizerBase, tmp_path: Path, lightning: type) -> None:
    watch = Watch(small_model(), tokenizer, every=2, store=tmp_path / "run.db", **FEW)
    callback, trainer = watch.callback("lightning"), types.SimpleNamespace(global_step=0)
    assert isinstance(callback, lightning)
    callback.on_train_start(trainer, None)
    for batch in range(6):
        trainer.global_step = (batch + 1) // 2  # two batches a step
        callback.on_train_batch_end(trainer, None, {"loss": torch.tensor(float(batch))}, None, batch)
    callback.on_train_end(trainer, None)
    stored = steps_in(tmp_path / "run.db")
    assert stored.steps == [0, 2, 3] and stored.losses() == [None, 3.0, 5.0]


@pytest.mark.nightly
def test_lightning_losses_belong_to_the_batch_that_ended_the_step(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, lightning: type
) -> None:
    watch = Watch(small_model(), tokenizer, every=2, store=tmp_path / "run.db", **FEW)
    callback = watch.callback("lightning")
    trainer = types.SimpleNamespace(global_step=4, accumulate_grad_batches=2)
    callback.on_train_start(trainer, None)
    for batch, (step, loss) in enumerate([(4, 1.0), (5, 2.0), (5, 3.0), (6, 4.0), (6, None), (7, None)]):
        trainer.global_step = step
        outputs = None if loss is None else {"loss": torch.tensor(loss / 2)}  # as Lightning hands it over
        callback.on_train_batch_end(trainer, None, outputs, None, batch)
    callback.on_train_batch_end(trainer, None, {"loss": torch.tensor(9.0)}, None, 6)
    callback.on_train_end(trainer, None)
    stored = steps_in(tmp_path / "run.db")
    assert stored.steps == [4, 6, 7] and stored.losses() == [None, 4.0, None]


def test_lightning_that_is_not_installed_is_one_line(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match="of: lightning is not installed: pip install lightning"):
        Watch(small_model(), tokenizer, **FEW).callback("lightning")


def test_steps_of_numpy_and_torch_and_losses_of_several_devices(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    store = tmp_path / "run.db"
    with attncli.Watch(small_model(), tokenizer, every=1, store=store, **FEW) as watch:
        assert watch.step(np.int64(1), loss=torch.tensor([1.0, 2.0]))
        assert watch.step(torch.tensor(2), loss=np.float32(3.0))
        with pytest.warns(RuntimeWarning, match="loss: must be a number \\(got dict\\)"):
            assert watch.step(3, loss={"loss": 1})
        with pytest.warns(RuntimeWarning, match="step: must be a whole number"):
            assert watch.step(4.5) is None
    assert steps_in(store).losses() == [1.5, 3.0, None]
    with pytest.warns(RuntimeWarning, match="was closed"):
        assert watch.step(5) is None


def test_steps_that_start_again_are_reported_and_the_first_ones_kept(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    store = tmp_path / "run.db"
    with attncli.Watch(small_model(), tokenizer, every=2, store=store, **FEW) as watch:
        for step in (0, 2):
            watch.step(step, loss=step)
        with pytest.warns(RuntimeWarning, match="step 0 is measured after step 2, so it is not stored"):
            assert watch.step(0, loss=9.0)
    assert steps_in(store).steps == [0, 2] and steps_in(store).losses() == [0.0, 2.0]


class CausalLayer(nn.Module):
    """Three heads, one after another and by hand, in a model that transformers does not know."""

    num_heads = 3

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.parts, self.dropout = nn.Linear(dim, 3 * dim), nn.Dropout(0.2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        texts, tokens, dim = hidden.shape
        query, key, value = (
            self.parts(hidden).view(texts, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return hidden + self.dropout(mixed.transpose(1, 2).reshape(texts, tokens, dim))


class OwnModel(nn.Module):
    """Two such layers between an embedding and the scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.scores = nn.Embedding(11, 12), nn.Linear(12, 11)
        self.layers = nn.Sequential(CausalLayer(12), CausalLayer(12))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.scores(self.layers(self.embedding(tokens)))


TWICE = torch.tensor([[1, 5, 3, 1, 5, 3, 7]])


def own_model_trained(watches: bool, store: Path | None = None) -> tuple[OwnModel, list[object], list[float]]:
    """The model, the bytes of its weights and buffers with the next random number, entropies by step."""
    model, entropies = OwnModel(), list[float]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    handle = model.layers.register_forward_hook(lambda *_: None)
    watch = Watch(model, inputs=TWICE, every=2, store=store) if watches else None
    seeded()
    for step in range(5):
        optimizer.zero_grad()
        loss = model(torch.randint(11, (2, 5))).logsumexp(dim=-1).mean()
        loss.backward()
        optimizer.step()
        if watch is not None and watch.step(step, loss=loss) is not None:
            model.eval()
            with torch.no_grad(), attncli.record(tokens=[str(token) for token in TWICE[0].tolist()]) as seen:
                model(TWICE)
            model.train()
            for layer in model.layers:
                layer.calls -= 1
            for row, expected in zip(watch.heads, seen.heads, strict=True):
                assert {name: row[name] for name in ("layer", "head", "pattern")} == {
                    name: expected[name] for name in ("layer", "head", "pattern")
                }
                assert [row["entropy"], row["induction"]] == [expected.entropy, expected.induction]
            entropies.append(float(seen.heads.column("entropy").mean()))
        assert model.training and list(model.layers._forward_hooks) == [handle.id]
    if watch is not None:
        watch.close()
    weights = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    return model, [weights, torch.rand(1).item()], entropies


@pytest.mark.nightly
def test_any_module_is_called_with_the_same_inputs_at_each_step(tmp_path: Path) -> None:
    store = tmp_path / "run.db"
    _, without, _ = own_model_trained(False)
    model, watched, entropies = own_model_trained(True, store)
    assert watched == without
    steps = steps_in(store)
    assert steps.steps == [0, 2, 4] and steps.name == "OwnModel" and len({*entropies}) == 3
    rows = steps.all_heads().steps
    assert rows.column("mean_entropy").tolist() == pytest.approx(entropies, abs=1e-6)
    assert np.isfinite(rows.column("loss")).all() and np.isfinite(rows.column("largest_induction")).all()
    with pytest.raises(
        UserError, match="has steps 0 to 4 of a training run of another model, or on other texts or inp"
    ):
        Watch(model, inputs=TWICE + 1, store=store, resume=True)
    with Watch(model, inputs=TWICE, every=2, store=store, resume=True) as again:
        again.step(4)
    with torch.autocast("cpu", dtype=torch.bfloat16), attncli.record() as seen:
        named = Watch(nn.DataParallel(model), inputs={"tokens": TWICE}, every=1)
        assert named.step(4) is not None and named.heads == again.heads
        model(TWICE)
    assert len(seen.heads) == 6


NO_INPUTS = "for any other module, also pass the inputs of the measured calls: attncli.Watch"
OF_OWN_MODELS = [
    ({}, NO_INPUTS),
    (
        {"inputs": TWICE.float()},
        "inputs: OwnModel cannot be called with these inputs: RuntimeError: Expected tensor",
    ),
    ({"inputs": TWICE, "text": "a"}, "inputs: cannot be combined with text"),
    (
        {"inputs": TWICE, "expect": "entrop < 3"},
        r"no head has entrop \(did you mean 'entropy'\?\); known: lo",
    ),
]


@pytest.mark.parametrize(("given", "line"), OF_OWN_MODELS, ids=[line[:20] for _, line in OF_OWN_MODELS])
def test_wrong_arguments_for_another_module_are_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        Watch(OwnModel(), **given)
    with pytest.raises(UserError, match="model: no attention was detected in Linear: "):
        Watch(nn.Linear(3, 2), inputs=torch.ones(2, 3))
