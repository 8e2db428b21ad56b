"""Other activity during measurements: threads, forks, Ctrl-C, hooks that call attn."""

import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

import attncli
from attncli.core.process import SharedChange, quiet_warnings
from attncli.models.folder import SHIPPED_MODEL
from tests.models.test_loaded_model import state

TEXT = "the cat sat on the mat and the cat sat on the hat"
OTHER = "a dog runs in the park with a dog that runs in it"


def lent_model() -> tuple[Any, Any]:
    """A caller's model in training mode, and its tokenizer."""
    return AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL).train(), AutoTokenizer.from_pretrained(
        SHIPPED_MODEL
    )


def of_process() -> list[Any]:
    """State of the whole process."""
    stance = torch._dynamo.eval_frame._stance
    return [
        logging.get_verbosity(),
        logging.is_progress_bar_enabled(),
        stance,
        torch.get_rng_state().tolist(),
    ]


def measurements(model: Any) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Rows of functions that change a model in each possible way: hooks, forward, its generate."""
    return {
        "survey": lambda: attncli.survey(model, TEXT, weighted=True).heads,
        "ablate": lambda: attncli.ablate(model, TEXT, heads=["0:1", "1:1"], method="mean").heads,
        "edges": lambda: attncli.head_edges(model, OTHER, heads=["1:1"]).rows,
        "generate": lambda: attncli.generate(model, TEXT, max_new_tokens=4, temperature=1.0, seed=3).heads,
    }


def in_threads(works: list[Callable[[], Any]]) -> list[Any]:
    """Result or error of each work, run in a separate thread; all begin at once."""
    results: list[Any] = [None] * len(works)
    begin = threading.Barrier(len(works))

    def run(place: int) -> None:
        begin.wait()
        try:
            results[place] = works[place]()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("is_lent", [True, False], ids=["lent", "named"])
def test_concurrent_measurements_equal_sequential_ones(is_lent: bool) -> None:
    """Including two open models of the same loaded model."""
    model, tokenizer = lent_model()
    models: list[Any] = (
        [attncli.open_model(model, tokenizer) for _ in range(2)] if is_lent else [SHIPPED_MODEL] * 2
    )
    expected = {name: measure() for name, measure in measurements(models[0]).items()}
    before = state(model), of_process()
    works = [measure for each in models for measure in measurements(each).values()]
    for result, name in zip(in_threads(works), [*expected] * 2, strict=True):
        assert result == expected[name], name
    assert (state(model), of_process()) == before


def test_models_that_share_code_are_measured_separately() -> None:
    """Expected attention records functions of a model's module, which other models share."""
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
    }
    opened = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=2 + seed))
        opened.append(attncli.open_model(model, tokenizer))
    works = [
        lambda each=each: attncli.cache_policies(each, TEXT, policies=["expected"], budgets=[0.3])
        for each in opened
    ]
    expected = [work().policies for work in works]
    code = vars(__import__("sys").modules[LlamaForCausalLM.__module__])
    before = code["apply_rotary_pos_emb"]
    assert [found.policies for found in in_threads(works * 3)] == expected * 3
    assert code["apply_rotary_pos_emb"] is before


def test_a_hook_that_measures_its_own_model_is_refused() -> None:
    model, tokenizer = lent_model()
    opened = attncli.open_model(model, tokenizer)
    expected = attncli.survey(opened, TEXT).heads
    lines: set[str] = set()
    others: list[Any] = []

    def hook(*call: object) -> None:
        with pytest.raises(attncli.UserError) as raised:
            attncli.survey(attncli.open_model(model.base_model, tokenizer), TEXT)
        lines.add(str(raised.value))
        others.append(attncli.survey(SHIPPED_MODEL, TEXT).heads)

    handle = model.transformer.h[0].register_forward_hook(hook)
    before = state(model)
    assert attncli.survey(opened, TEXT).heads == expected
    assert state(model) == before
    handle.remove()
    assert len(lines) == 1 and "call attn after the measurement" in lines.pop()
    assert others and all(rows == others[0] for rows in others)


def test_threads_whose_hooks_measure_each_others_model_do_not_deadlock() -> None:
    models = [lent_model() for _ in range(2)]
    opened = [attncli.open_model(*each) for each in models]
    met = threading.Barrier(2)

    def crossing(place: int) -> Any:
        def hook(*call: object) -> None:
            if not met.broken:
                met.wait(20)
                met.abort()
            attncli.survey(opened[1 - place], TEXT)

        models[place][0].transformer.h[0].register_forward_hook(hook)
        return lambda: attncli.survey(opened[place], TEXT)

    results = in_threads([crossing(place) for place in range(2)])
    assert any(isinstance(result, Exception) for result in results)


@pytest.mark.parametrize("is_lent", [True, False], ids=["lent", "opened"])
def test_an_interrupt_restores_the_model(is_lent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any point: during a run, and between adding and removing a hook."""
    model, tokenizer = lent_model()
    opened = attncli.open_model(model, tokenizer) if is_lent else attncli.open_model()
    whole = opened.lent or opened.whole
    expected = attncli.ablate(opened, TEXT).heads
    register, calls_left = torch.nn.Module.register_forward_hook, 0

    def count(*call: Any) -> None:
        nonlocal calls_left
        calls_left -= 1
        if not calls_left:
            raise KeyboardInterrupt

    def registered(*call: Any, **named: Any) -> Any:
        handle = register(*call, **named)
        count()
        return handle

    whole.get_submodule("transformer.ln_f").register_forward_hook(count)
    before = state(whole), of_process()
    for number in (1, 2, 3):
        calls_left = number
        with pytest.raises(KeyboardInterrupt):
            attncli.ablate(opened, TEXT)
        assert (state(whole), of_process()) == before
    for number in (1, 2):
        calls_left = number
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(torch.nn.Module, "register_forward_hook", registered)
            attncli.ablate(opened, TEXT)
        assert (state(whole), of_process()) == before
    assert attncli.ablate(opened, TEXT).heads == expected


def test_a_fork_during_a_measurement_gets_the_unchanged_model() -> None:
    """Neither side waits for a thread that does not exist, nor for the torch threads of its parent."""
    model, tokenizer = lent_model()
    opened = attncli.open_model(model, tokenizer)
    expected = attncli.survey(opened, TEXT).heads
    before = state(model), of_process()
    reached, goes_on = threading.Event(), threading.Event()

    def wait(*call: object) -> None:
        reached.set()
        goes_on.wait(60)

    handle = model.transformer.h[1].register_forward_hook(wait)
    thread = threading.Thread(target=attncli.survey, args=(opened, TEXT))
    thread.start()
    reached.wait(60)
    with quiet_warnings():
        child = os.fork()
    if not child:
        code = 1
        try:
            handle.remove()
            is_as_before = (state(model), of_process()) == before
            code = 0 if is_as_before and attncli.survey(opened, TEXT).heads == expected else 2
        finally:
            os._exit(code)
    try:
        for _ in range(600):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            time.sleep(0.1)
        else:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child waits for ever")
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        goes_on.set()
        thread.join()


def test_a_shared_change_is_undone_by_the_last_user() -> None:
    now = ["before"]
    change = SharedChange(lambda: lambda: now.__setitem__(0, "before"), lambda: now.__setitem__(0, "changed"))
    first, second = change.made(), change.made()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert now == ["changed"]
    second.__exit__(None, None, None)
    assert now == ["before"]


def test_the_callers_warning_filters_are_restored() -> None:
    """With catch_warnings, the last of two loading threads would restore the other's filters."""
    before = warnings.filters[:]
    inside = threading.Barrier(2)

    def quiet(seconds: float) -> None:
        inside.wait()
        with quiet_warnings():
            time.sleep(seconds)

    in_threads([lambda: quiet(0.05), lambda: quiet(0.1)])
    assert warnings.filters == before


@pytest.mark.parametrize("experiment", ["self", "heads"])
def test_a_callers_autocast_changes_no_number(experiment: str) -> None:
    expected = attncli.run(experiment, sentence=TEXT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        report = attncli.run(experiment, sentence=TEXT)
        assert torch.is_autocast_enabled("cpu")
    assert repr(report) == repr(expected)
    for name, tensor in expected.tensors.items():
        assert np.array_equal(report.tensors[name].values, tensor.values, equal_nan=True), name
