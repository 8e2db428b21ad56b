"""`Watch`: measures attention heads while a model trains, and stores the measurements."""

import os
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from operator import index
from os import fspath
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from transformers import PreTrainedModel

from attncli.errors import UserError, WriteError
from attncli.features.record.calls import heads_of_call
from attncli.features.watch.training import step_rows
from attncli.features.watch.training_steps import (
    LOSS,
    MeasuredStep,
    StepSpec,
    StoredSteps,
    WatchedModuleSpec,
    broken_at,
    measured_step,
    parse_expectations,
    run_settings,
    spec_text_key,
    step_key,
    store_step,
    text_key,
    with_loss,
)
from attncli.models.capture import undisturbed
from attncli.models.in_turn import random_state_restored
from attncli.models.loading import IN_PARTS, borrowed, is_sharded, measuring, short_name, unwrapped
from attncli.models.reading_text import read_text
from attncli.records.arguments import Conditions, Every, FilePath, Seed, Size, checked, conditions
from attncli.records.report import Report
from attncli.runs.keys import resolved_settings
from attncli.runs.reading import StepOnText, model_of, reading
from attncli.runs.report_values import Expectations
from attncli.runs.runner import model_page_of
from attncli.runs.store import Store, open_store
from attncli.runs.store_files import check_header
from attncli.settings.fields import Given, checked_spec
from attncli.settings.heads import HeadsSpec
from attncli.settings.text import Texts

if TYPE_CHECKING:
    from transformers import TrainerCallback

NUM_TOKENS = 24


class Watch:
    """Measures a model's heads while it trains: on random tokens read twice, and on an optional `text`.

    A module that is not a transformers model is instead called with the same `inputs` at each step: a tensor,
    a tuple of arguments or a dict of keyword arguments. An input that is a single row of integers is taken as
    the tokens. All attention that `attncli.record` detects is measured.

    Every `every` steps, all statistics of a survey are measured for each head (`heads`) and written to the
    `store`, which `attn watch` shows while it grows; without a store, only the last step is kept. The model
    is unwrapped (torch.compile, DDP, PEFT) and measured in evaluation mode, without gradients; weights,
    buffers, modes, hooks and random generators do not change. Only the first of several processes measures.

    `expect` has conditions on the statistics of every head or on the loss, such as "max_score < 100". A
    condition that does not hold causes a warning or, with on_fail="raise", a UserError, which ends the
    training. Nothing else ends the training: failed measurements and writes cause one warning each, and steps
    that cannot be stored stay in memory (`unwritten`) until they can be stored.

    A store that already has steps needs `resume`; the next step then replaces the stored steps from its
    number on. Raises UserError at once for a model that cannot be measured, and RunError if another process
    writes to the store.
    """

    @checked
    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        inputs: Any = None,
        every: Every = 100,
        store: FilePath | None = None,
        text: str | None = None,
        num_tokens: Size = NUM_TOKENS,
        seed: Seed = 0,
        expect: Conditions = (),
        on_fail: Literal["warn", "raise"] = "warn",
        resume: bool = False,
    ) -> None:
        # In every process: if only one fails, the others wait forever.
        self._model = _unwrapped_model(model) if inputs is None else _unwrapped_module(model)
        self.every, self.on_fail = every, on_fail
        self.heads: list[dict[str, Any]] = []
        self.last_step: int | None = None
        self.unwritten: list[MeasuredStep] = []
        self._last: list[MeasuredStep] = []
        self._completed: list[MeasuredStep] = []
        self._store: Store | None = None
        self._open = ExitStack()
        self._warned: set[str] = set()
        self._removes = resume
        self._is_closed = False
        self.is_measuring = is_first_process()
        if not self.is_measuring:
            return
        self._probe: _TextProbe | _InputsProbe
        with self._undisturbed():
            if inputs is None:
                self._probe = _TextProbe(self._model, tokenizer, text, num_tokens, seed)
            else:
                _refuse_beside_inputs(tokenizer, text, num_tokens)
                self._probe = _InputsProbe(self._model, inputs)
            specs = self._probe.specs
            self._expectations = Expectations(parse_expectations(conditions(expect), specs, "expect"))
            # The first measurement must fail now rather than during the training.
            self._probe.begin()
            if store is not None:
                path = Path(fspath(store))
                self._store = self._open.enter_context(opened(path, specs, resume=resume))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def step(
        self, step: int, *, loss: float | torch.Tensor | None = None, now: bool = False
    ) -> dict[str, float] | None:
        """Measure the heads at this step. Returns numbers for a logger, or None if the step is not due.

        A step is due if it is a multiple of `every` or if `now` is set. `loss` is read only if the step is
        due.
        """
        try:
            step = index(step)  # also for numpy and torch integers
        except TypeError:
            self._warn("step", f"step: must be a whole number (got {step!r:.40}): nothing is measured")
            return None
        if step % self.every and not now:
            return None
        if step == self.last_step or not self.is_measuring or not is_first_process():
            return None
        if self._is_closed:
            self._warn("closed", f"step {step} is not measured: the watch was closed")
            return None
        is_later = self.last_step is None or step > self.last_step
        if not is_later:
            after = f"step {step} is measured after step {self.last_step}"
            self._warn("order", f"{after}, so it is not stored: count steps over all epochs")
        with self._undisturbed():
            measured = self._measured(step, self._number(loss))
            if measured is None:
                return None
            self._warn_of_nan(measured[0])
            if is_later:
                self.last_step, self._last = step, measured
                self._keep(measured)
            lines = broken_at(self._expectations, measured)
            numbers = step_numbers(measured)
        self._report_broken(lines)
        return numbers

    def add_loss(self, step: int, loss: float | torch.Tensor) -> None:
        """Store the loss of the last measured step, if the loss becomes known only after `step` was called.

        The loss of any other step is ignored, and so is a second loss.
        """
        if step != self.last_step or not self._last or self._is_closed:
            return
        first, *further = self._last
        if LOSS in first.columns or (number := self._number(loss)) is None:
            return
        whole = with_loss(first, number)
        self._last = [whole, *further]
        places = [place for place, each in enumerate(self.unwritten) if each is first]
        for place in places:
            self.unwritten[place] = whole
        if self._store is not None and not places:
            self._completed.append(whole)
            self._keep([])
        conditions = self._expectations.conditions
        on_loss = Expectations([each for each in conditions if each.name == LOSS.statistic])
        self._report_broken(broken_at(on_loss, [whole]))

    def _report_broken(self, lines: Sequence[str]) -> None:
        """Warn about each condition that does not hold, or raise UserError with on_fail="raise"."""
        if lines and self.on_fail == "raise":
            self.close()
            raise UserError(*lines)
        for line in lines:
            warnings.warn(f"attn: {line}", RuntimeWarning, stacklevel=3)

    def close(self) -> None:
        """Write the steps that could not be written earlier, and close the store."""
        if self._store is not None and (self.unwritten or self._completed):
            self._keep([])
            if self.unwritten:
                self._warn("left", f"{len(self.unwritten)} runs could not be stored; they are in `unwritten`")
        self._store = None
        self._is_closed = True
        try:
            self._open.close()
        except WriteError as error:
            self._warn("left", str(error))

    @checked
    def callback(self, of: Literal["transformers", "lightning"] = "transformers") -> Any:
        """Return a callback for the Trainer of transformers or Lightning that calls `step`, then `close`.

        With transformers, the loss of a step is the loss logged at that step, if any. With Lightning, it is
        the loss of the batch that ended the step. Raises UserError if Lightning is not installed.
        """
        return (_trainer_callback if of == "transformers" else _lightning_callback)(self)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Reserve the model for this thread; afterwards, restore the model and all random generators."""
        name = type(self._model).__name__
        with measuring(name, self._model), random_state_restored(), undisturbed(self._model):
            yield

    def _number(self, loss: Any) -> float | None:
        """Return the loss as one number (the mean of several), or None with a warning for anything else."""
        if loss is None:
            return None
        try:
            if isinstance(loss, torch.Tensor):
                numbers = loss.detach()
            else:  # Python floats have more digits than torch's default type
                numbers = torch.as_tensor(loss, dtype=torch.float64)
            if not numbers.is_complex():
                return float(numbers.double().mean())
        except (TypeError, ValueError, RuntimeError, OverflowError):  # torch raises these for non-numbers
            pass
        self._warn("loss", f"loss: must be a number (got {type(loss).__name__}): the loss is not stored")
        return None

    def _warn_of_nan(self, measured: MeasuredStep) -> None:
        """Warn once if any heads have NaN."""
        lost = [
            f"{column.layer}:{column.head}"
            for column, value in zip(measured.columns, measured.values, strict=True)
            if column.statistic.endswith("entropy") and column.layer is not None and np.isnan(value)
            if not column.statistic.endswith("normalized_entropy")
        ]
        if lost:
            count = f"{len(lost)} heads have" if len(lost) > 1 else "1 head has"
            self._warn("numbers", f"step {measured.step}: {count} NaN (the first is {lost[0]})")

    def _measured(self, step: int, loss: float | None) -> list[MeasuredStep] | None:
        """Return the measurements of a step, or None with a warning if measuring fails."""
        if is_sharded(self._model):
            self._warn("model", "weights are now split over several processes: nothing is measured")
            return None
        try:
            reports = self._probe.reports()
        except Exception as error:  # the training must continue
            self._warn(
                "model",
                f"step {step} is not measured: {type(error).__name__}: {' '.join(str(error).split())}",
            )
            return None
        self.heads = [dict(row) for row in reports[0].table("heads")]
        measured: list[MeasuredStep] = []
        specs: Sequence[StepSpec] = self._probe.specs
        for spec, report in zip(specs, reports, strict=True):
            first_loss = None if measured else loss
            measured.append(measured_step(step, spec, step_key(spec, step), report, first_loss))
        return measured

    def _keep(self, measured: Sequence[MeasuredStep]) -> None:
        """Store a step and any steps not yet written. Warns once if that fails."""
        if self._store is None:
            return
        self.unwritten += measured
        try:
            if self._removes:
                self._store.remove_steps(self.unwritten[0].step)
                self._removes = False
            if self.unwritten:
                store_step(self._store, self.unwritten)
                self.unwritten.clear()
            for each in self._completed:
                self._store.replace_values(each.key, each.columns, each.values)
            self._completed.clear()
        except (sqlite3.Error, OSError) as error:
            self._warn("store", f"{self._store.path}: cannot be written: {error}: steps stay in memory")

    def _warn(self, about: str, line: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(f"attn: {line}", RuntimeWarning, stacklevel=4)


def step_numbers(measured: Sequence[MeasuredStep]) -> dict[str, float]:
    """Return a step's numbers on its first text, by name, for loggers."""
    first = measured[0]
    steps = StoredSteps({})
    steps.add(StepOnText(first.step, 0, None, first.columns, first.values))
    (row,) = step_rows(steps.stacks(), steps.losses())
    return {
        f"attn/{name}": number
        for name, number in row.numbers().items()
        if name != "step" and number is not None
    }


def is_first_process() -> bool:
    """Return True in the first of the processes that train together, or in a single process."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    # Set by torchrun and Lightning before there is a process group.
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK"))


def _unwrapped_model(model: Any) -> PreTrainedModel:
    """Return the transformers model inside a wrapper. Raises UserError, with advice, for any other module."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    is_peft_model = hasattr(model, "get_base_model")
    if not is_peft_model and not any(isinstance(part, PreTrainedModel) for part in parts):
        name = type(model).__name__
        raise UserError(
            f"model: must be a transformers PreTrainedModel (got {name}): for any other module, also "
            "pass the inputs of the measured calls: attncli.Watch(model, inputs=x)"
        )
    return unwrapped(model)


def _unwrapped_module(model: Any) -> nn.Module:
    """Return the module inside a torch.compile, DDP or DataParallel wrapper.

    Raises UserError for anything but a module, and for a module whose weights are split over processes.
    """
    inner = model
    while hasattr(inner, "_orig_mod") or isinstance(inner, DistributedDataParallel | DataParallel):
        inner = inner._orig_mod if hasattr(inner, "_orig_mod") else inner.module
    if not isinstance(inner, nn.Module):
        raise UserError(f"model: must be a torch.nn.Module (got {type(inner).__name__})")
    if is_sharded(model) or is_sharded(inner):
        raise UserError(f"{IN_PARTS}: use attn record -o run.db -- COMMAND to record each part")
    return inner


class _TextProbe:
    """Measures a transformers model on random tokens read twice, and on an optional text."""

    def __init__(self, model: Any, tokenizer: Any, text: str | None, num_tokens: int, seed: int) -> None:
        self._model, self._tokenizer = model, tokenizer
        self.specs = _text_specs(model, text, num_tokens, seed)
        self._page = model_page_of(self.specs[0])

    def begin(self) -> None:
        """Read and measure for the first time. Raises UserError for a model that cannot be measured."""
        first, *further = self.specs
        with borrowed(str(first.model), self._model, self._tokenizer) as self._pretrained:
            self._readings = [
                self._page.read(first, Texts(), self._pretrained, _generator(first)),
                *(read_text(self._pretrained, str(spec.sentence), truncate=None) for spec in further),
            ]
            self.reports()
        self.reports()

    def reports(self) -> list[Report]:
        """Return a survey for each text."""
        pairs = zip(self.specs, self._readings, strict=True)
        return [self._page.reports([spec], [read], self._pretrained, None)[0] for spec, read in pairs]


class _InputsProbe:
    """Measures any other module by calling the module with the inputs and recording its attention."""

    def __init__(self, module: nn.Module, inputs: Any) -> None:
        self._module, self._inputs = module, _copied(inputs)
        self._tokens = _token_names(inputs)
        content = sha256("".join(map(_digest, _input_parts(inputs))).encode()).hexdigest()
        sizes = ", ".join(map(_size, _input_tensors(inputs)))
        settings = {"program": type(module).__name__, "calls": "all", "inputs": sizes, "content": content}
        self.specs = [WatchedModuleSpec.model_validate(settings)]

    def begin(self) -> None:
        """Measure for the first time. Raises UserError if the call fails or no attention is detected."""
        name = type(self._module).__name__
        try:
            self.reports()
        except UserError:
            raise
        except Exception as error:  # a module may raise anything
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(f"inputs: {name} cannot be called with these inputs: {message}") from error

    def reports(self) -> list[Report]:
        """Return the survey of the module's heads."""
        (spec,) = self.specs
        inputs = _copied(self._inputs)  # a module may change its inputs
        if isinstance(inputs, Mapping):
            call = partial(self._module, **inputs)
        elif isinstance(inputs, tuple | list):
            call = partial(self._module, *inputs)
        else:
            call = partial(self._module, inputs)
        with torch.no_grad():
            survey = heads_of_call(call, tokens=self._tokens)
        if survey is None:
            raise UserError(
                f"model: no attention was detected in {spec.program}: the module called none of torch's "
                "attention functions, and multiplied no result of a softmax by values"
            )
        return [Report(spec.experiment, resolved_settings(spec), {}, result=replace(survey, notes=()))]


def _refuse_beside_inputs(tokenizer: Any, text: str | None, num_tokens: int) -> None:
    is_set = {"tokenizer": tokenizer is not None, "text": text is not None}
    is_set |= {"num_tokens": num_tokens != NUM_TOKENS}
    if names := [name for name, value in is_set.items() if value]:
        raise UserError(f"inputs: cannot be combined with {' and '.join(names)}")


def _input_parts(inputs: Any) -> Iterator[Any]:
    """Yield the tensors and other values in a module's inputs, also inside lists, tuples and dicts."""
    if isinstance(inputs, Mapping | tuple | list):
        for part in inputs.values() if isinstance(inputs, Mapping) else inputs:
            yield from _input_parts(part)
    else:
        yield inputs


def _input_tensors(inputs: Any) -> list[torch.Tensor]:
    return [part for part in _input_parts(inputs) if isinstance(part, torch.Tensor)]


def _copied(inputs: Any) -> Any:
    """Return the inputs with copies of the tensors."""
    if isinstance(inputs, torch.Tensor):
        return inputs.detach().clone()
    if isinstance(inputs, Mapping):
        return {name: _copied(part) for name, part in inputs.items()}
    if type(inputs) in (tuple, list):
        return type(inputs)(map(_copied, inputs))
    return inputs


def _size(tensor: torch.Tensor) -> str:
    """Describe a tensor by size and type: `1 × 48 int64`."""
    sizes = " × ".join(map(str, tensor.shape)) or "1"
    return f"{sizes} {str(tensor.dtype).removeprefix('torch.')}"


def _digest(part: Any) -> str:
    """Return a digest of a tensor or a plain value; for anything else return its class."""
    if isinstance(part, torch.Tensor):
        dense = part.detach().to_dense().cpu().reshape(-1)
        return sha256(_size(part).encode() + dense.view(torch.uint8).numpy().tobytes()).hexdigest()
    return repr(part) if isinstance(part, str | int | float | None) else type(part).__name__


def _token_names(inputs: Any) -> list[str] | None:
    """Return token names from the first input that is a single row of integers, or None if no input is.

    Patterns that depend on repeated tokens need these names.
    """
    for tensor in _input_tensors(inputs):
        is_whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
        if is_whole and tensor.ndim and tensor.numel() == tensor.shape[-1] > 1:
            return [str(number) for number in tensor.flatten().tolist()]
    return None


def _text_specs(model: Any, text: str | None, num_tokens: int, seed: int) -> list[HeadsSpec]:
    """Return the survey settings for each text, as for `attn heads` on that model."""
    name = short_name(getattr(model, "name_or_path", "") or type(model).__name__)
    probe: dict[str, int | str] = {"num_tokens": num_tokens, "seed": seed}
    texts: list[dict[str, int | str]] = [probe] if text is None else [probe, {"sentence": text, "seed": seed}]
    parameters = {"sentence": "text"}
    return [
        checked_spec(
            HeadsSpec,
            {key: Given(value, parameters.get(key, key), is_flag=True) for key, value in settings.items()},
        ).model_copy(update={"model": name})
        for settings in texts
    ]


def _generator(spec: HeadsSpec) -> torch.Generator:
    return torch.Generator().manual_seed(spec.seed)


@contextmanager
def opened(path: Path, specs: Sequence[StepSpec], *, resume: bool) -> Iterator[Store]:
    """Open a store for the steps of a training run; only one process may write to it at a time.

    Raises UserError if the store has steps, unless `resume` is set and the steps have the same settings.
    """
    if path.exists():
        check_header(path)
    with open_store(path, fresh=False, rows=False, weights=False) as store:
        if store.last_run():
            _check_earlier(path, store, specs, resume=resume)
        yield store


def _check_earlier(path: Path, store: Store, specs: Sequence[StepSpec], *, resume: bool) -> None:
    steps = sorted({*store.steps().values()})
    if not steps:
        raise UserError(f"store: {path} has runs that are not training steps: use another name")
    have = f"{path} has steps {steps[0]} to {steps[-1]} of a training run"
    if not resume:
        raise UserError(f"store: {have}: use another name, or resume=True to continue the run")
    with reading(path) as reader:
        stored = reader.step_texts()
    models = {model_of(settings) for settings, _ in stored}
    texts = {text_key(*text) for text in stored}
    if models != {model_of(run_settings(specs[0]))} or texts != set(map(spec_text_key, specs)):
        raise UserError(f"resume: {have} of another model, or on other texts or inputs: use another name")


def _trainer_callback(watch: Watch) -> "TrainerCallback":
    from transformers import TrainerCallback

    class WatchTrainer(TrainerCallback):
        """Calls `step` at the beginning, after each training step and at the end; losses come later."""

        logged: tuple[int, Any] | None = None
        """The step of the last logged loss, and the loss."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            earlier = [(row["step"], row["loss"]) for row in state.log_history if "loss" in row]
            self.logged = earlier[-1] if earlier else None  # from a training run that was resumed
            self._measure(state, now=True)

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self._measure(state, now=False)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            if "loss" in (logs or {}):
                self.logged = state.global_step, logs["loss"]
                watch.add_loss(*self.logged)
            if "train_loss" in (logs or {}):  # logged once, before the best checkpoint is loaded
                self._measure(state, now=True)

        def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self._measure(state, now=True)
            watch.close()

        def _measure(self, state: Any, *, now: bool) -> None:
            step, loss = self.logged or (None, None)
            watch.step(state.global_step, loss=loss if step == state.global_step else None, now=now)

    return WatchTrainer()


def _lightning_callback(watch: Watch) -> Any:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        try:
            from pytorch_lightning import Callback
        except ModuleNotFoundError:
            raise UserError("of: lightning is not installed: pip install lightning") from None

    class WatchLightning(Callback):  # type: ignore[misc]  # the class is unknown to the type checker
        """Calls `step` at the beginning, after each batch, and at the end."""

        step: int | None = None
        """The step of the loss."""
        loss: Any = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.step, self.loss = trainer.global_step, None
            watch.step(self.step, now=True)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *batch: Any) -> None:
            if trainer.global_step != self.step:  # otherwise more batches are needed for this step
                loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
                # Lightning divides a batch's loss by the number of batches in a step.
                num_batches = getattr(trainer, "accumulate_grad_batches", 1)
                self.step, self.loss = trainer.global_step, None if loss is None else loss * num_batches
            watch.step(trainer.global_step, loss=self.loss)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            watch.step(trainer.global_step, loss=self.loss, now=True)
            watch.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            watch.close()

    return WatchLightning()
