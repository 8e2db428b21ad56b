"""The tables of docs/studies/patterns.md, from what its batch wrote.

    attn batch docs/studies/patterns.yaml -o patterns.jsonl
    python tools/study_patterns.py patterns.jsonl [FIGURE.svg]

A head has changed its name where an interval of what names it (95 %, over the texts) is above the pattern's
threshold on one kind of text and below on the other.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attncli.core.names import HEAD_PATTERNS

Head = tuple[int, int]
FIRST, NONE = "first token", "unnamed"
KNOWN = ("induction", "duplicate token", "previous token")


class Kind:
    """What heads do on one kind of text."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self.name = Path(report["spec"]["texts"]).stem
        rows = report["statistics"]["heads"]
        self.names = {(row["layer"], row["head"]): row["pattern"] for row in rows}
        self.rest = {(row["layer"], row["head"]): row["rest_pattern"] for row in rows}
        self._intervals = {
            (row["layer"], row["head"], row["statistic"]): (row["lower"], row["upper"])
            for row in report["statistics"]["intervals"]
        }

    def is_surely(self, head: Head, pattern: str) -> bool | None:
        """Whether the interval of a pattern's statistic is above its threshold, or below; else None."""
        known = HEAD_PATTERNS[pattern]
        lower, upper = self._intervals.get((*head, known.statistic), (None, None))
        if lower is None or upper is None:
            return None
        return True if lower > known.threshold else False if upper < known.threshold else None


def has_changed(head: Head, a: Kind, b: Kind) -> bool:
    """Whether a head has another name on b than on a, beyond the intervals of what names it."""
    if a.names[head] == b.names[head]:
        return False
    named = [(a, b, a.names[head]), (b, a, b.names[head])]
    return any(
        has.is_surely(head, name) is True and lacks.is_surely(head, name) is False
        for has, lacks, name in named
        if name != NONE
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """As Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def tables(kinds: Sequence[Kind]) -> list[str]:
    """Names by kind of text, changed names, and the heads that are known by their names."""
    heads = list(kinds[0].names)
    counts = [Counter(kind.names.values()) for kind in kinds]
    names = [name for name in [*HEAD_PATTERNS, NONE] if any(count[name] for count in counts)]
    first = table(
        ["name", *(kind.name for kind in kinds)],
        [[name, *(count[name] for count in counts)] for name in names],
    )
    plain, *others = kinds
    changed = [[head for head in heads if has_changed(head, plain, kind)] for kind in others]
    rows = []
    for kind, of_kind in zip(others, changed, strict=True):
        moves = Counter((plain.names[head], kind.names[head]) for head in of_kind)
        most = "; ".join(f"{a} to {b}: {count}" for (a, b), count in moves.most_common(3))
        differ = sum(plain.names[head] != kind.names[head] for head in heads)
        rows.append([kind.name, differ, len(of_kind), most])
    second = table(["kind", "other name than on prose", "beyond the intervals", "most often"], rows)
    named = [
        [pattern, *(" ".join(f"{h[0]}:{h[1]}" for h in heads if kind.names[h] == pattern) for kind in kinds)]
        for pattern in KNOWN
    ]
    third = table(["name", *(kind.name for kind in kinds)], named)
    same = [head for head in heads if len({kind.names[head] for kind in kinds}) == 1]
    of_same = ", ".join(
        f"{count} {name}" for name, count in Counter(plain.names[head] for head in same).most_common()
    )
    return [first, second, third, f"{len(same)} of {len(heads)} heads have one name on all kinds: {of_same}."]


def draw(kinds: Sequence[Kind], file: str) -> None:
    """Each head a cell, coloured by its name, a grid for each kind of text."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "attn", "font.size": 8})
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    counts = Counter(name for kind in kinds for name in kind.names.values())
    names = [name for name, _ in counts.most_common()]
    colours = dict(
        zip(names, ["#d9d9d9", "#f7f7f7", "#4477aa", "#66ccee", "#228833", "#ccbb44"], strict=False)
    )
    colours |= {
        name: colour for name, colour in zip(names[6:], ["#ee6677", "#aa3377", "#000000"], strict=False)
    }
    heads = list(kinds[0].names)
    num_layers, num_heads = (1 + max(head[axis] for head in heads) for axis in (0, 1))
    figure, panels = pyplot.subplots(1, len(kinds), figsize=(7, 4.4), sharey=True, layout="constrained")
    for panel, kind in zip(panels, kinds, strict=True):
        grid = [
            [names.index(kind.names[layer, head]) for head in range(num_heads)] for layer in range(num_layers)
        ]
        panel.imshow(
            grid,
            cmap=ListedColormap([colours[name] for name in names]),
            vmin=-0.5,
            vmax=len(names) - 0.5,
            aspect="auto",
        )
        panel.set_title(kind.name)
        panel.set_xlabel("head")
    panels[0].set_ylabel("layer")
    legend = [Patch(facecolor=colours[name], edgecolor="#888888", label=name) for name in names]
    figure.legend(handles=legend, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Print the tables; draw the figure where a file is named."""
    reports = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    kinds = [Kind(report) for report in reports]
    print("\n\n".join(tables(kinds)))
    if len(sys.argv) > 2:
        draw(kinds, sys.argv[2])


if __name__ == "__main__":
    main()
