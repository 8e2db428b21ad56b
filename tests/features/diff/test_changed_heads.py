"""`attn diff` of two surveys: heads whose intervals do not overlap, compared with a naive loop."""

import json
from pathlib import Path

from attncli.core.names import HEAD_PATTERNS
from attncli.features.diff.question import compare
from tests.commands.test_models_together import SENTENCES
from tests.conftest import Attn
from tests.running import run


def test_heads_whose_intervals_do_not_overlap(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("\n".join(SENTENCES))
    second.write_text("\n".join(sentence[::-1] * 2 for sentence in SENTENCES))
    a, b = run("heads", texts=str(first)), run("heads", texts=str(second))
    found = compare(a, b)
    expected = {}
    naming = {pattern.statistic for pattern in HEAD_PATTERNS.values()}
    for row in a.table("intervals"):
        for other in b.table("intervals"):
            same = all(row[name] == other[name] for name in ("stack", "layer", "head", "statistic"))
            meet = row["lower"] <= other["upper"] and other["lower"] <= row["upper"]  # type: ignore[operator]
            if same and row["statistic"] in naming and row["mean"] == row["mean"] and not meet:
                difference = other["mean"] - row["mean"]  # type: ignore[operator]
                expected[row["layer"], row["head"], row["statistic"]] = difference
    changed = found.table("changed_heads")
    assert {(row["layer"], row["head"], row["statistic"]): row["difference"] for row in changed} == expected
    sizes = [abs(float(str(row["difference"]))) for row in changed]
    assert sizes == sorted(sizes, reverse=True) and sizes
    heads = {(row["layer"], row["head"]) for row in changed}
    told = f"{len(heads)} of 8 heads changed beyond their 95 % intervals."
    assert found.notes[0] == f"{told} With this many comparisons, some changes are due to chance."
    patterns = {(row["layer"], row["head"]): row["pattern"] for row in b.table("heads")}
    assert all(row["pattern_b"] == patterns[row["layer"], row["head"]] for row in changed)
    same = compare(a, a)
    assert not same.table("changed_heads")
    assert same.notes[0] == "0 of 8 heads changed beyond their 95 % intervals."


def test_edited_intervals_are_refused(attn: Attn, tmp_path: Path) -> None:
    texts, saved = tmp_path / "a.txt", tmp_path / "a.json"
    texts.write_text("\n".join(SENTENCES))
    assert attn(["heads", "--texts", str(texts), "-o", str(saved)]).code == 0
    content = saved.read_text()
    for column, cell in (("upper", []), ("mean", "much"), ("statistic", 3)):
        report = json.loads(content)
        for row in report["statistics"]["intervals"]:
            row[column] = cell
        saved.write_text(json.dumps(report))
        ended = attn(["diff", str(saved), str(saved)])
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith("intervals: invalid in this survey: ") and ended.err.count("\n") == 1
