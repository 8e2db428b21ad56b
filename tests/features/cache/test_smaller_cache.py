"""`attn cache` as typed: its screens, its tables, and what it refuses."""

import csv
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import attncli
from attncli.core.progress import Stage
from attncli.features.cache.limited_heads import limited_heads
from attncli.models.loading import in_use
from attncli.models.predicted import read_judged
from attncli.models.removal_runs import RemovalRuns
from attncli.records.report import plain
from tests.conftest import Attn

TEXT = "the code is b7q. to be or not to be, that is all. the code is"


def report(attn: Attn, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(attn(["cache", *arguments, "--format", "json"]).out)
    return found


def test_the_needle_is_appended_and_orders_the_heads(attn: Attn) -> None:
    found = report(attn, TEXT, "--needle", "b7q")
    assert "".join(found["tokens"]).endswith("b7q") and len(found["tokens"]) == len(TEXT) + 1 + 3 + 1
    needs = [row["needle"] for row in found["statistics"]["heads"]]
    assert needs == sorted(needs, reverse=True)
    again = report(attn, f"{TEXT} b7q", "--needle", "b7q")
    assert again["statistics"]["heads"] == found["statistics"]["heads"], "it stands there twice"


def test_an_induction_head_forgets_the_token_after_the_first_copy(attn: Attn) -> None:
    """On the probe an induction head looks at what came after the first copy: 23 tokens before."""
    for row in report(attn)["statistics"]["heads"][:2]:
        assert row["layer"] == 1 and row["query"] - row["key"] == 23 and row["key_weight"] > 0.9
        assert row["query"] == row["worst_at"] - 1


def test_a_budget_names_heads_in_json_and_on_the_screen(attn: Attn) -> None:
    found = report(attn, "--budget", "0.6")["statistics"]
    assert found["full"] and found["at_budget"]["cache"] <= 0.6
    names = ", ".join(f"{row['layer']}:{row['head']}" for row in found["full"])
    lines = attn(["cache", "--budget", "0.6"]).out
    assert f"Heads that keep all keys: {names}" in " ".join(lines.split())
    assert "kl 10.48, loss +10.48. Heads that keep all keys: none" in attn(["cache", "--budget", "0.05"]).out
    assert found["baseline"]["sink"] == 1 and found["baseline"]["window"] == 7


def test_results_have_typed_columns(attn: Attn) -> None:
    """What Python gives is what the command's JSON says, column by column."""
    saved = report(attn, TEXT, "--needle", "b7q", "--budget", "0.7")
    model = attncli.open_model()
    result = attncli.cache(model, TEXT, needle="b7q", budget=0.7)
    assert "kind" not in saved and plain(result.heads) == saved["statistics"]["heads"]
    first = result.heads[0]
    assert first.needle == first["needle"] == result.heads.column("needle").max()
    assert result.heads.grid("needle")[first.layer, first.head] == first.needle
    assert result.at_budget is not None and result.at_budget.cache <= 0.7
    assert (result.sink, result.window) == (result.baseline.sink, result.baseline["window"])
    assert attncli.cache(model, TEXT).full is None
    saved = report(attn, "--policy", "sinks,h2o")
    assert saved["kind"] == "cache of policies"
    assert [line["budget"] for line in saved["statistics"]["lines"]] == [[0.1, 0.3, 0.5]] * 2
    by_policy = {line["policy"]: line["kl"] for line in saved["statistics"]["lines"]}
    rows = saved["statistics"]["policies"]
    assert by_policy["h2o"] == [row["kl"] for row in rows if row["policy"] == "h2o"]


def test_policies_and_budgets_are_a_row_each(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    assert attn(["cache", "--policy", "sinks,tova", "--budget", "0.3,0.6", "-o", str(path)]).code == 0
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert [(row["policy"], row["budget"]) for row in rows] == [
        ("sinks", "0.3"), ("sinks", "0.6"), ("tova", "0.3"), ("tova", "0.6")
    ]  # fmt: skip
    screen = attn(["cache", "--policy", "sinks,tova", "--budget", "0.3,0.6", "--bits", "8"]).out
    assert "8 bits" in screen and "all keys" in screen


def test_windows_judge_a_text_longer_than_the_model_reads(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("to be or not to be that is all. " * 30)
    flags = ["--file", str(tmp_path / "long.txt"), "--policy", "sinks", "--budget", "0.5"]
    assert "must be at most" in attn(["cache", *flags]).err
    found = report(attn, *flags, "--every", "40")["statistics"]
    assert found["baseline"]["judged"] % 40 == 0 and found["baseline"]["judged"] >= 800
    assert len(found["policies"]) == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["a"],
            "--window: a limited head keeps 1 + 1 keys, but no evaluated token sees more than 1 key: use a",
        ),
        (
            ["abcabc", "--sink", "3", "--window", "3"],
            "--window: a limited head keeps 3 + 3 keys, but no evaluated token sees",
        ),
        (["--budget", "0.1,0.2"], "--budget: several shares need --policy: use one share, or set --policy"),
        (
            ["--policy", "sinks", "--window", "3"],
            "--window: cannot be combined with --policy",
        ),
        (["--policy", "h3o"], "--policy: must be one of window, sinks, h2o"),
        (["--every", "3"], "--every: needs --policy or --bits"),
        (["--needle", "x"], "--needle: needs --sentence or --file"),
        ([TEXT, "--needle", "zzz"], "--needle: must occur verbatim in the text (got zzz)"),
        (["--budget", "8"], "--budget: must be a share of the cache, above 0 and at most 1 (got 8)"),
        (["--budget", "1"], "--budget: must be a share of the cache below 1 (got 1)"),
        (["--budget", "0.05", "--window", "7"], "--budget: must be at least 0.16"),
        (["ab", "--policy", "sinks"], "TEXT: is too short for a prompt and judged tokens"),
        (["--texts", "x.txt"], "--texts: "),
    ],
)
def test_wrong_arguments_are_one_line_each(attn: Attn, arguments: list[str], line: str) -> None:
    ended = attn(["cache", *arguments])
    assert ended.code == 2 and line in ended.err and ended.err.count("\n") <= 2, ended.err


def test_policies_from_python() -> None:
    model = attncli.open_model()
    costs = attncli.cache_policies(model, TEXT, policies="sinks,h2o", budgets=[0.5], needle="b7q")
    assert [row["policy"] for row in costs.policies] == ["sinks", "h2o"] and "needle" in costs.policies[0]
    with pytest.raises(attncli.UserError, match="policies: must be one of"):
        attncli.cache_policies(model, TEXT, policies="lru")


def test_listed_heads_have_their_forgotten_keys(attn: Attn) -> None:
    """Five of them, with the first in the row of the head; of the heads that are listed alone."""
    found = report(attn, "--top", "2")["statistics"]
    for row in found["heads"]:
        of_head = [
            key for key in found["forgotten"] if (key["layer"], key["head"]) == (row["layer"], row["head"])
        ]
        weights = [key["key_weight"] for key in of_head]
        assert 1 <= len(of_head) <= 5 and weights == sorted(weights, reverse=True)
        assert all(of_head[0][name] == row[name] for name in ("query", "key", "key_token", "key_weight"))
        assert all(1 <= key["key"] <= key["query"] - 7 for key in of_head), "neither a sink nor in the window"
    assert len({(row["layer"], row["head"]) for row in found["forgotten"]}) == 2


@pytest.mark.parametrize("budget", [None, 0.6])
def test_the_expected_work_covers_all_passes(budget: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemovalRuns, "num_together", lambda _run: 1)
    stages: list[Stage] = []
    with in_use(attncli.open_model()) as pretrained:
        reading = read_judged(pretrained, TEXT)
        limited_heads(pretrained, reading, sink=1, window=4, budget=budget, progress=stages.append)
    shares = [stage.done for stage in stages]
    assert shares == sorted(shares) and shares[0] == 0 and 0.9 < shares[-1] < stages[-1].end <= 1
    assert len({*shares}) >= 18 and max(after - before for before, after in pairwise(shares)) <= 0.125
