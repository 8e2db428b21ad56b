"""Concurrent runs of a model have the same numbers as sequential runs."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from attncli.core.row_tiles import run_jobs
from attncli.core.runtime import torch_threads
from attncli.errors import UserError
from attncli.models import at_once
from attncli.models.at_once import can_run_at_once, run_at_once, with_separate_modules
from attncli.models.capture import capture
from attncli.models.pretrained import Pretrained
from attncli.runs import runner
from tests.commands.test_models_together import SENTENCES
from tests.conftest import Attn
from tests.model_folders import save_model
from tools.tiny_architectures import ARCHITECTURES, random_inputs


def loaded(model: PreTrainedModel) -> Pretrained:
    return Pretrained("a model", model, None)


def weights(inputs: Mapping[str, Tensor], own: Pretrained) -> Tensor:
    """The mean weights of every layer, in one row."""
    found: list[Tensor] = []
    capture(own.model, inputs, lambda layer: found.append(layer.weights().mean(dim=-2).flatten()))
    return torch.cat(found)


@pytest.mark.parametrize("name", ["BERT", "GPT-OSS", "T5"])
def test_concurrent_runs_give_the_same_numbers(name: str) -> None:
    model = ARCHITECTURES[name].build()
    texts = [random_inputs(model, num_tokens) for num_tokens in (7, 13, 9, 11, 5, 8, 12)]
    works = [partial(weights, inputs) for inputs in texts * 2]
    with torch_threads(3):
        together = [*run_at_once(loaded(model), works)]
    alone = [weights(inputs, loaded(ARCHITECTURES[name].build())) for inputs in texts]
    for found, expected in zip(together, alone * 2, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_runs_have_separate_modules_and_shared_parameters() -> None:
    model = ARCHITECTURES["Llama"].build()
    texts = [random_inputs(model, num_tokens) for num_tokens in (5, 6, 7)]
    barrier = threading.Barrier(2, timeout=60)
    seen: list[tuple[int, str, list[int], int]] = []

    def work(own: Pretrained, inputs: Mapping[str, Tensor], *, waits: bool) -> Tensor:
        if waits:
            barrier.wait()  # both run now
        pointers = [parameter.data_ptr() for parameter in own.model.parameters()]
        seen.append((id(own.model), threading.current_thread().name, pointers, torch.get_num_threads()))
        return weights(inputs, own)

    works = [partial(work, inputs=inputs, waits=number > 0) for number, inputs in enumerate(texts)]
    with torch_threads(2):
        assert len([*run_at_once(loaded(model), works)]) == 3
    models, threads, pointers, num_threads = zip(*seen, strict=True)
    assert models[0] == id(model) and len({*models[1:]}) == len({*threads[1:]}) == 2
    assert pointers[0] == pointers[1] == pointers[2] and num_threads == (2, 1, 1)


def test_the_first_error_ends_all_runs() -> None:
    model = ARCHITECTURES["BERT"].build()
    inputs = random_inputs(model, 7)

    def fail(_own: Pretrained) -> Tensor:
        raise UserError("the third fails")

    works = [partial(weights, inputs), partial(weights, inputs), fail, *[partial(weights, inputs)] * 4]
    with torch_threads(2), pytest.raises(UserError, match="the third fails"):
        [*run_at_once(loaded(model), works)]
    torch.testing.assert_close(weights(inputs, loaded(model)), works[0](loaded(model)))


def test_a_callers_model_runs_in_the_callers_thread() -> None:
    model = ARCHITECTURES["BERT"].build()
    assert can_run_at_once(loaded(model))
    assert not can_run_at_once(Pretrained("mine", model, None, lent=model))


def test_hooks_and_settings_of_a_copy_do_not_reach_the_model() -> None:
    model = ARCHITECTURES["BERT"].build()
    own = with_separate_modules(loaded(model)).model
    own.register_forward_hook(lambda *_: None)
    own.config._attn_implementation_internal = "another"
    assert not model._forward_hooks and model.config._attn_implementation != "another"


@pytest.mark.nightly
def test_a_store_is_the_same_with_one_thread_and_with_three(
    tmp_path: Path, attn: Attn, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counted(jobs: Sequence[Any], num_threads: int) -> Iterator[Any]:
        counts.append(num_threads)
        return run_jobs(jobs, num_threads)

    monkeypatch.setattr(at_once, "run_jobs", counted)
    monkeypatch.setattr(runner, "SMALL_MODEL", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # whatever cores are idle
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(SENTENCES * 3))
    folder = str(save_model(tmp_path / "model", "BERT"))
    tables = []
    for number in (1, 3):
        store = str(tmp_path / f"{number}.db")
        with torch_threads(number):
            assert attn(["heads", "--model", folder, "--texts", str(texts), "-o", store]).code == 0
        exported = attn(["results", "--tidy", store])
        assert exported.code == 0
        tables.append(exported.out)
    assert tables[0] == tables[1] and counts == [3]
