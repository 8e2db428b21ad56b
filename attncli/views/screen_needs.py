"""What each first screen takes from a report: a saved one that lacks it, edited since, is shown whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from attncli.report import PLACES, Numbers, Report, Table

ANY = (str, int, float, type(None))
MAYBE = (int, float, type(None))
NUMBER = (int, float)
WHOLE = (int,)
TEXT = (str,)
LIST = (list,)

Columns = Mapping[str, tuple[type, ...]]
"""The columns of a table that a screen reads, and what their cells may be."""


@dataclass(frozen=True)
class Needs:
    """What must be there; and how the tables, single numbers and tensors have to be that are there.

    `tensors` have as many axes, or more; `num_axes` is how many every tensor has, where that matters.
    `said` are the texts of the report that a screen shows.
    """

    must: tuple[str, ...] = ()
    tables: Mapping[str, Columns] = field(default_factory=dict)
    numbers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tensors: Mapping[str, int] = field(default_factory=dict)
    num_axes: int | None = None
    spec: Columns = field(default_factory=dict)
    said: tuple[str, ...] = ()

    def met_by(self, report: Report) -> bool:
        """Whether a report has all of it."""
        return (
            all(name in report.statistics or name in report.tensors for name in self.must)
            and all(getattr(report, name) for name in self.said)
            and _has(report.spec, self.spec)
            and all(self._has_part(report, name) for name in {*self.tables, *self.numbers})
            and all(_has_axes(report, name, axes) for name, axes in self.tensors.items())
            and all(self.num_axes in (None, tensor.values.ndim) for tensor in report.tensors.values())
        )

    def _has_part(self, report: Report, name: str) -> bool:
        match report.statistics.get(name):
            case None:
                return True
            case Numbers() as numbers if name in self.numbers:
                return {*self.numbers[name]} <= numbers.keys()
            case Table() as rows if name in self.tables and rows:
                return all(_has(row, self.tables[name]) for row in rows)
        return False


def _has(row: Mapping[str, object], columns: Columns) -> bool:
    return all(key in row and isinstance(row[key], kinds) for key, kinds in columns.items())


def _has_axes(report: Report, name: str, num_axes: int) -> bool:
    tensor = report.tensors.get(name)
    return tensor is None or (tensor.values.ndim >= num_axes and tensor.values.size > 0)


HEAD = {"layer": WHOLE, "head": WHOLE}
WEIGHTS = Needs(
    tensors={"weights": 2, "pooled_mean": 2},
    numbers={
        "scores": ("mean", "variance"),
        "scaled_scores": ("mean", "variance"),
    },
)
NORM = ("feature0_mean", "feature0_std", "example0_mean", "example0_std")

HEADS = Needs(
    tables={
        "heads": {"stack": TEXT, **HEAD},
        "patterns": {
            **{"stack": TEXT, "pattern": TEXT, "statistic": ANY},
            **{"heads": MAYBE, "threshold": MAYBE, "rows": MAYBE},
        },
        "strongest": {"stack": TEXT, "pattern": TEXT, **HEAD, "value": MAYBE},
        "intervals": {"stack": TEXT, **HEAD, "statistic": TEXT, "mean": MAYBE, "upper": MAYBE},
    },
    tensors={"rollout": 2},
)

NEEDS: dict[str, Needs] = {
    **dict.fromkeys(("self", "multihead", "cross", "show"), WEIGHTS),
    "average": replace(WEIGHTS, numbers={"agreement": ("loop_vs_matmul", "loop_vs_softmax")}),
    "scale-demo": Needs(
        must=("variance", "sharpness", "logits"),
        tables={
            "variance": {"head_dim": WHOLE},
            "sharpness": {"factor": NUMBER, "softmax": LIST, "gradient_norm": MAYBE},
        },
        numbers={"variance": ("head_dim",)},
        tensors={"logits": 1},
    ),
    "norm": Needs(
        must=("input",),
        numbers=dict.fromkeys(("input", "batch_norm", "batch_norm_eval", "layer_norm", "rms_norm"), NORM),
    ),
    "pitfalls": Needs(
        tables={
            "pitfalls": dict.fromkeys(("pitfall", "figure", "wrong", "right", "mistake"), ANY),
        },
    ),
    "heads": HEADS,
    "heads of intervals": replace(
        HEADS,
        tables={
            **HEADS.tables,
            "patterns": {**HEADS.tables["patterns"], "texts": MAYBE},
            "strongest": {**HEADS.tables["strongest"], "upper": MAYBE},
        },
    ),
    "heads of relations": Needs(
        must=("sentences", "heads"),
        numbers={"sentences": ("num_sentences", "num_words")},
        tables={
            "heads": {},
            "relations": {
                **{"relation": TEXT, "words": WHOLE, **HEAD, "direction": TEXT, "offset": WHOLE},
                **dict.fromkeys(("share", "lower", "upper", "offset_share", "offset_upper"), NUMBER),
            },
        },
        said=("about",),
    ),
    "heads of examples": Needs(
        must=("head", "example_weights"),
        numbers={"head": ("mean", "median")},
        tables={
            "examples": {
                "kind": TEXT,
                "rank": WHOLE,
                "text": ANY,
                "value": NUMBER,
                "query": WHOLE,
                "key": WHOLE,
            },
            "example_weights": {"kind": TEXT, "rank": WHOLE, "token": ANY, "weight": NUMBER},
        },
        spec={"sort": TEXT},
        said=("about", "how_to_read"),
    ),
    "generate": Needs(
        must=("writing", "written", "heads"),
        numbers={"writing": ("prompt_tokens", "new_tokens")},
        tables={"written": {"token": ANY, "keys": LIST, "weights": LIST}, "heads": HEAD},
        spec={"sort": TEXT},
    ),
    "ablate": Needs(
        must=("heads",),
        tables={"heads": {"stack": TEXT, **HEAD, "pattern": TEXT}},
        numbers={"approximation": ("rank_correlation", "heads")},
        num_axes=2,
        spec={"sort": TEXT},
        said=("about",),
    ),
    "why": Needs(
        must=("parts", "heads", "layers", "keys"),
        numbers={"parts": ("logit", "embedding", "heads", "mlps", "biases")},
        tables={
            "heads": {**HEAD, "pattern": TEXT, "contribution": MAYBE},
            "layers": {"layer": WHOLE, "mlp": NUMBER},
        },
        spec={"head": ANY},
        said=("about", "how_to_read"),
    ),
    "diff": Needs(tables={"side_by_side": {"statistic": TEXT}}, tensors={"difference": 2}, said=("about",)),
    "results": Needs(must=("summary",), spec={"store": TEXT, "group_by": LIST}),
}


def suits(report: Report) -> bool:
    """Whether a report has what the first screen of its experiment shows."""
    name = report.experiment
    if name == "heads":
        forms = [form for form in ("examples", "relations", "intervals") if report.table(form)]
        name = f"heads of {forms[0]}" if forms else name
    is_met = NEEDS[name].met_by(report)
    if name == "pitfalls" and not report.table("pitfalls"):
        return is_met and _is_wrong_and_right(report)
    if name == "generate" and is_met:
        return str(report.spec["sort"]) in report.table("heads")[0]
    if name == "diff":
        heads = report.table("by_head")
        return is_met and all(
            isinstance(head[axis], int) for head in heads for axis in ("batch", *PLACES) if axis in head
        )
    return is_met


def _is_wrong_and_right(report: Report) -> bool:
    """Whether there is a matrix that was computed wrongly and rightly, and the same numbers of both."""
    names = next(reversed(report.pairs.values()), ("weights",))
    shapes = [report.tensors[name].values.shape for name in names if name in report.tensors]
    is_pair = len(shapes) == len(names) and len({*shapes}) == 1 and len(shapes[0]) > 1
    return is_pair and report.numbers("wrong").keys() <= report.numbers("right").keys()
