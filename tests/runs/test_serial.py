"""Steps on one generator, and the effect of a failed step on the others."""

from pathlib import Path

import numpy as np
import pytest
import torch

from attncli.errors import UserError
from attncli.records.report import Report
from attncli.runs.jobs import Item
from attncli.runs.plan import Plan, PromptFile, make_plan, plan_files
from attncli.runs.runner import run_items, run_jobs
from tests.toys.test_together import assert_same


def run_text(tmp_path: Path, *texts: str) -> tuple[list[Report], list[str]]:
    paths = [tmp_path / f"{i}.yaml" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    failures: list[str] = []

    def fail(item: Item, error: UserError) -> None:
        failures.extend(error.lines)

    return list(run_items(plan_files(paths), fail)), failures


STEP = "{experiment: self, num_tokens: 3, embed_dim: 2, projection: none"


def test_steps_continue_the_generator_unless_they_have_a_seed(tmp_path: Path) -> None:
    text = f"defaults: {{seed: 9}}\nsteps: [{STEP}}}, {STEP}}}, {STEP}, seed: 9}}]"
    (first, second, third), failures = run_text(tmp_path, text)
    torch.manual_seed(9)
    np.testing.assert_array_equal(first.tensors["input"].values, torch.randn(3, 2))
    np.testing.assert_array_equal(second.tensors["input"].values, torch.randn(3, 2))
    np.testing.assert_array_equal(third.tensors["input"].values, first.tensors["input"].values)
    assert [report.spec["seed"] for report in (first, second, third)] == [9, 9, 9]
    assert any("continue from" in note for note in second.notes) and not any(
        "continue from" in note for note in third.notes
    )
    assert failures == []


def test_each_file_has_a_generator_of_its_own(tmp_path: Path) -> None:
    text = "experiment: norm\nseed: 4"
    (first, second), _ = run_text(tmp_path, text, text)
    assert first.to_data() == second.to_data()


def test_previous_keeps_the_table(tmp_path: Path) -> None:
    cross = "{experiment: cross, sentence: c b, context: a, embedding: previous}"
    text = f"steps: [{{experiment: self, sentence: a b c}}, {cross}]"
    (first, second), _ = run_text(tmp_path, text)
    np.testing.assert_array_equal(second.tensors["input"].values, first.tensors["input"].values[[2, 1]])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("{experiment: self, sentence: '...'}", "no tokens left"),
        ("{experiment: self, scale: 1e38}", "overflow float32"),
    ],
)
def test_a_failed_step_fails_only_the_steps_that_continue_from_it(
    tmp_path: Path, step: str, message: str
) -> None:
    text = f"steps: [{step}, {{experiment: norm}}, {{experiment: norm, seed: 1}}, {{experiment: norm}}]"
    reports, failures = run_text(tmp_path, text, "experiment: norm")
    assert len(reports) == 3
    assert len(failures) == 2 and message in failures[0] and "continues from a failed step" in failures[1]


def test_errors_in_all_files_are_reported_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        run_text(tmp_path, "experiment: nonsense", "experiment: norm", "experiment: norm\neps: -1")
    assert len(caught.value.lines) == 2


def mixed_plan(folder: Path, prompts: PromptFile) -> Plan:
    """A chain of two experiments and two single experiments on each sentence; `d` has no vector."""
    (folder / "v.txt").write_text("a 1 2\nb 3 4\nc 5 6\n")
    (folder / "x.yaml").write_text(
        "steps: [{experiment: self, embedding: v.txt}, {experiment: average}, "
        "{experiment: average, seed: 3}, {experiment: self, embedding: v.txt, seed: 1}]"
    )
    plan = make_plan([folder / "x.yaml"], {}, prompts)
    assert [len(chain) for chain in plan.chains] == [2, 1, 1]
    return plan


SENTENCES = ("a b", "a b c", "d a", "b", "c a b", "b a", "a d", "c c c", "b c")


@pytest.mark.parametrize("num_together", [2, 500])
def test_jobs_that_run_together_equal_single_jobs_in_the_order_of_the_plan(
    tmp_path: Path, num_together: int
) -> None:
    (tmp_path / "p.txt").write_text("\n".join(SENTENCES))
    together: list[Report | UserError] = []
    alone: list[Report | UserError] = []
    with PromptFile(str(tmp_path / "p.txt")) as prompts:
        plan = mixed_plan(tmp_path, prompts)
        found = run_jobs(plan.jobs(), lambda _, error: together.append(error), num_together=num_together)
        for _, report in found:
            together.append(report)
        for job in plan.jobs():
            for report in run_items(job.items(), lambda _, error: alone.append(error)):
                alone.append(report)
    assert len(together) == len(alone) == 36
    for got, expected in zip(together, alone, strict=True):
        assert_same(got, expected)


def test_nothing_is_yielded_after_a_stop(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("\n".join(SENTENCES))
    found, failed = [], []
    with PromptFile(str(tmp_path / "p.txt")) as prompts:
        plan = mixed_plan(tmp_path, prompts)
        for _, report in run_jobs(
            plan.jobs(), lambda item, _: failed.append(item), stopped=lambda: bool(failed), num_together=5
        ):
            found.append(report)
    assert len(failed) == 1 and len(found) == 4
