"""The building blocks of explanations: tables of terms, and the steps of an explained query row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attncli.core.layer import score_factor
from attncli.core.mechanisms import alibi_slopes
from attncli.records.report import Cell, NamedTensor, Report, Shape, Step, Terms
from attncli.toys.attention import AttentionForm

MOST_ROWS, FIRST_ROWS, LAST_ROWS = 12, 4, 2
MOST_PRODUCTS = 6
MOST_DIMS = 6

TermColumns = Mapping[str, Sequence[object] | np.ndarray]


def cell(number: object) -> Cell:
    """Return a number or string as a cell: None for infinity and NaN."""
    if isinstance(number, str):
        return number
    if isinstance(number, int | np.integer):
        return int(number)
    # Numbers of Python, NumPy and torch share no type.
    value = float(np.float64(number))  # type: ignore[arg-type]
    return value if np.isfinite(value) else None


def part(tensor: NamedTensor, **index: int) -> np.ndarray:
    """Return a tensor, in float64, at these indices of its axes; axes that it lacks are ignored."""
    place = tuple(index.get(axis, slice(None)) for axis in tensor.axes)
    return np.asarray(tensor.values[place], dtype=np.float64)


def tensor_shapes(tensors: Mapping[str, NamedTensor], *names: str) -> tuple[Shape, ...]:
    """Return the shapes of the named tensors that exist."""
    there = {name: tensors[name] for name in names if name in tensors}
    return tuple(Shape(name, tensor.axes, tensor.values.shape) for name, tensor in there.items())


def terms(
    title: str,
    columns: TermColumns,
    *,
    notable: Sequence[int] = (),
    totals: Sequence[Sequence[object]] = (),
    most: int | None = None,
) -> Terms:
    """Build a table from columns; of over 12 rows, keep only the first, the last and the notable rows."""
    count = len(next(iter(columns.values())))
    rows: Sequence[int] = range(count if most is None else min(most, count))
    if most is None and count > MOST_ROWS:
        rows = sorted({*range(FIRST_ROWS), *notable, *range(count - LAST_ROWS, count)})
    cells = tuple(tuple(cell(column[row]) for column in columns.values()) for row in rows)
    sums = tuple(tuple(map(cell, total)) for total in totals)
    return Terms(title, tuple(columns), cells, count, sums)


def dot_product(
    title: str, left: tuple[str, np.ndarray], right: tuple[str, np.ndarray], *, axis: str = "dim"
) -> Terms:
    """Show Σ left right: the first products, and the sum over all of them."""
    products = left[1] * right[1]
    columns = {axis: range(len(products)), left[0]: left[1], right[0]: right[1], "product": products}
    return terms(title, columns, totals=[("sum", "", "", products.sum())], most=MOST_PRODUCTS)


def first_dims(
    title: str,
    columns: TermColumns,
    matrix: np.ndarray,
    *,
    notable: Sequence[int] = (),
) -> Terms:
    """Show the columns, then the first numbers of each row of a matrix."""
    dims = range(min(MOST_DIMS, matrix.shape[1]))
    left_out = f": the first {len(dims)} of {matrix.shape[1]} dims" if len(dims) < matrix.shape[1] else ""
    return terms(f"{title}{left_out}", {**columns, **{str(d): matrix[:, d] for d in dims}}, notable=notable)


def largest_difference(computed: np.ndarray, reported: np.ndarray) -> Cell:
    """Return the largest difference between the recomputed and the reported numbers where both are finite."""
    both = np.isfinite(computed) & np.isfinite(reported)
    return cell(np.abs(computed - reported)[both].max(initial=0.0))


BIASES = ("bias", "position_bias")


@dataclass(frozen=True)
class ExplainedRow:
    """One query of a report, in one head, and in batch item 0 if there are several items.

    In differential attention, whose two softmaxes each use half of query and key, `half` is 0 or 1.
    """

    report: Report
    token: int
    head: int = 0
    half: int | None = None

    @property
    def tensors(self) -> Mapping[str, NamedTensor]:
        """The tensors of the report."""
        return self.report.tensors

    @property
    def key_tokens(self) -> Sequence[str]:
        """The tokens of the keys."""
        return self.report.context_tokens or self.report.tokens

    @property
    def place(self) -> str:
        """`, head 2` if there are several heads, and `, first half` in differential attention."""
        head = f", head {self.head}" if self.has_heads else ""
        return head if self.half is None else f"{head}, {('first', 'second')[self.half]} half"

    @property
    def has_heads(self) -> bool:
        """True if there is a head axis."""
        return "head" in self.tensors["weights"].axes

    @property
    def from_model(self) -> bool:
        """True for a model's layer, which has its own rule for the scores."""
        return "score_rule" in self.report.statistics

    @property
    def strongest(self) -> int:
        """The key with the largest weight, whose numbers are written out."""
        return int(self.query_row("weights").argmax())

    def in_half(self, half: int) -> "ExplainedRow":
        """Return this row in one half of differential attention."""
        return replace(self, half=half)

    def name(self, name: str) -> str:
        """Return the name of this half's tensor."""
        if self.half is None or name not in ("scores", "scaled_scores", "weights"):
            return name
        return f"second_{name}" if self.half else {"weights": "first_weights"}.get(name, name)

    def projected(self, name: str) -> str:
        """Return the name of the query or key before it is normalised or rotated."""
        return f"projected_{name}" if f"projected_{name}" in self.tensors else name

    def whole(self, name: str) -> np.ndarray:
        """Return the whole tensor of this head and half; a key/value head serves several query heads."""
        tensor, weights = self.tensors[self.name(name)], self.tensors["weights"]
        head = self.head
        if "head" in tensor.axes:
            num_heads = weights.values.shape[weights.axes.index("head")]
            head //= num_heads // tensor.values.shape[tensor.axes.index("head")]
        numbers = part(tensor, batch=0, head=head)
        if self.half is not None and name in ("query", "key", "projected_query", "projected_key"):
            numbers = np.split(numbers, 2, axis=-1)[self.half]
        return numbers

    def query_row(self, name: str) -> np.ndarray:
        """Return the explained query's row in a tensor."""
        return np.asarray(self.whole(name)[self.token])

    def compared(self, computed: np.ndarray, name: str) -> dict[str, Cell]:
        """Return the largest difference between the query's recomputed numbers and the reported ones."""
        return {"largest difference from the report": largest_difference(computed, self.query_row(name))}


def explained_row(report: Report, token: int | None, head: int | None = None) -> ExplainedRow:
    """Return the row of a token in a head; by default, the last token and head 0."""
    row = ExplainedRow(report, len(report.tokens) - 1 if token is None else token)
    return replace(row, head=head or 0) if row.has_heads else row


@dataclass(frozen=True)
class RowScores:
    """finished = (softcap(factor raw) + bias) / temperature for every key, including the hidden keys.

    Masking follows later. `bias` names a tensor of the report; `sink` is the logit in the softmax.
    """

    factor: float
    softcap: float | None
    bias: str | None
    temperature: float
    sink: float | None
    raw: np.ndarray
    scaled: np.ndarray
    capped: np.ndarray
    biased: np.ndarray
    finished: np.ndarray

    @property
    def has_only_scale(self) -> bool:
        """True if nothing follows the scale before the softmax."""
        return self.softcap is None and self.bias is None and self.temperature == 1


def row_scores(form: AttentionForm, row: ExplainedRow) -> RowScores:
    """Compute a row's scores step by step; a model's layer has its own rule, which its report stores."""
    query = row.query_row("query")
    factor, softcap, temperature, sink = 0.0, form.softcap, form.temperature, form.sink
    if row.from_model:
        rule = row.report.numbers("score_rule")
        factor, softcap, sink = rule["scale"] or 0.0, rule["softcap"], rule["sink"]
    else:
        factor = score_factor(form.scale, len(query))
    bias = next((name for name in BIASES if name in row.tensors), None)
    raw = np.asarray(row.whole("key") @ query)
    scaled = raw * factor
    capped = scaled if softcap is None else softcap * np.tanh(scaled / softcap)
    biased = capped if bias is None else capped + row.query_row(bias)
    sink = None if sink is None else sink / temperature
    return RowScores(
        factor, softcap, bias, temperature, sink, raw, scaled, capped, biased, biased / temperature
    )


def key_table(row: ExplainedRow, title: str, columns: TermColumns, *totals: tuple[object, ...]) -> Terms:
    """Build one row per key, with its position, its text, and the given columns."""
    return terms(
        f"{title} of query {row.token}{row.place}",
        {"key": range(len(row.key_tokens)), "text": row.key_tokens, **columns},
        notable=[row.token, row.strongest],
        totals=totals,
    )


def scores_step(row: ExplainedRow, scores: RowScores) -> Step:
    """Write out one dot product, then show the whole row."""
    key, reported = row.strongest, row.query_row("scores")
    left, right = (f"q_{row.token}", row.query_row("query")), (f"k_{key}", row.whole("key")[key])
    product = dot_product(f"query {row.token} · key {key}{row.place}", left, right)
    prose = (
        "A score measures how well a key fits a query: it is large if their vectors point the same way. The "
        "key with the largest weight is written out; the others are computed the same way."
    )
    if row.half is not None:
        prose += " Differential attention does this twice, each time with half of query and key."
    values = {
        f"score of key {key} in the report": cell(reported[key]),
        "largest difference over visible keys": largest_difference(scores.raw, reported),
    }
    shapes = tensor_shapes(row.tensors, "query", "key", row.name("scores"))
    tables = product, key_table(row, "scores", {"score": scores.raw})
    return Step(
        "Scores", "s_ij = q_i · k_j = Σ_d q_id k_jd", prose, shapes, values, tables, "Why a dot product?"
    )


def scale_step(form: AttentionForm, row: ExplainedRow, scores: RowScores) -> Step:
    """Show the row of scores before and after the scale factor."""
    head_dim = row.query_row("query").shape[-1]
    values: dict[str, Cell] = {"head_dim": head_dim, "factor": scores.factor}
    root = "A score is a sum of head_dim products: its variance grows with head_dim. "
    scale = "model" if row.from_model else form.scale if isinstance(form.scale, str) else "number"
    formula, prose = {
        "sqrt": ("s / √head_dim", f"{root}Dividing by √head_dim prevents this, and softmax stays diffuse."),
        "fourth-root": (
            "(q · head_dim^-¼) · (k · head_dim^-¼)",
            f"{root}Here query and key are each divided by the fourth root: the same result, with smaller "
            "intermediate numbers.",
        ),
        "none": ("s", f"{root}Here the scores are not scaled."),
        "number": ("factor · s", f"{root}The factor was set; 1 / √head_dim would keep the variance."),
        "model": ("factor · s", f"{root}The factor is the model's own."),
    }[scale]
    if scale == "fourth-root":
        values["factor on query and key each"] = head_dim**-0.25
    if scores.has_only_scale and not row.place:
        for name in ("scores", "scaled_scores"):
            label = f"variance of all visible {name.replace('_', ' ')}"
            values[label] = cell(row.report.numbers(name)["variance"])
    if scores.has_only_scale:
        values |= row.compared(scores.scaled, "scaled_scores")
    table = key_table(row, "scores", {"score": scores.raw, "scaled": scores.scaled})
    shapes = tensor_shapes(row.tensors, row.name("scores"), row.name("scaled_scores"))
    return Step("Scale", formula, prose, shapes, values, (table,), "Why are scores scaled?")


def steps_after_scale(row: ExplainedRow, scores: RowScores) -> list[Step]:
    """Explain the soft cap, the bias and the temperature, if they are used."""
    steps = []
    if scores.softcap is not None:
        table = key_table(row, "scaled scores", {"scaled": scores.scaled, "capped": scores.capped})
        values = {"cap": cell(scores.softcap)}
        if scores.bias is None and scores.temperature == 1:
            values |= row.compared(scores.capped, "scaled_scores")
        prose = (
            "No score exceeds ±cap, so no key wins by more than twice the cap; small scores hardly change."
        )
        steps.append(Step("Soft cap", "c tanh(s / c)", prose, (), values, (table,), "Why bend the scores?"))
    if scores.bias is not None:
        steps.append(_bias_step(row, scores, scores.bias))
    if scores.temperature != 1:
        table = key_table(row, "scores", {"score": scores.biased, "divided": scores.finished})
        values = {"temperature": cell(scores.temperature)} | row.compared(scores.finished, "scaled_scores")
        effect = "a value above 1 makes" if scores.temperature > 1 else "a value below 1 makes"
        shape = "flatter" if scores.temperature > 1 else "sharper"
        prose = f"The input of the softmax is divided by the temperature: {effect} the row {shape}."
        steps.append(Step("Temperature", "s / T", prose, (), values, (table,), "Why divide once more?"))
    return steps


def _bias_step(row: ExplainedRow, scores: RowScores, name: str) -> Step:
    """Explain the bias that is added to each score regardless of the words."""
    values: dict[str, Cell] = {}
    formula, prose = (
        "s_ij + b_ij",
        "Products of vectors do not depend on order. So a number is added to each score that depends only on "
        "the positions, not on the words.",
    )
    columns: dict[str, Sequence[object] | np.ndarray] = {"score": scores.capped}
    if not row.from_model:
        columns["distance"] = [abs(row.token - j) for j in range(len(row.key_tokens))]
        if "bias_table" in row.tensors:
            prose += " Each bucket of distances has one number, sampled here and learned in a model."
        else:
            formula = "s_ij - slope |i - j|"
            num_heads = len(row.tensors[name].values) if row.has_heads else 1
            values["slope"] = cell(alibi_slopes(num_heads)[row.head].item())
            prose = (
                "Products of vectors do not depend on order. ALiBi subtracts the head's slope times the "
                "distance from each score, so that near keys win."
            )
    columns |= {"bias": row.query_row(name), "sum": scores.biased}
    if scores.temperature == 1:
        values |= row.compared(scores.biased, "scaled_scores")
    shapes = tensor_shapes(row.tensors, name, "bias_table")
    table, question = key_table(row, "scores and bias", columns), "Why add a number that ignores the words?"
    return Step("Bias", formula, prose, shapes, values, (table,), question)


def mask_step(form: AttentionForm, row: ExplainedRow, scores: RowScores) -> Step:
    """Show the keys that the query may attend to; hidden scores become -infinity."""
    everywhere = np.isneginf(row.whole("scaled_scores"))
    hidden = everywhere[row.token]
    values: dict[str, Cell] = {
        "hidden in this row": int(hidden.sum()),
        "hidden in the whole matrix": int(everywhere.sum()),
        "scores in the whole matrix": everywhere.size,
    }
    shapes = tensor_shapes(row.tensors, row.name("scaled_scores"))
    if not everywhere.any():
        prose = "The whole text is known in advance: every query sees every key."
        if not row.report.context_tokens and not row.from_model:
            prose += " A decoder would hide the future: --causal."
        return Step("Mask", "s_ij, for every j", prose, shapes, values, question="Why is nothing hidden?")
    prose = (
        "A hidden key gets a score of -∞, and so a weight of 0, whatever its score was. Hiding comes before "
        "the softmax, so that the remaining weights still sum to 1."
    )
    if form.window is not None:
        prose += " The window hides keys that are too far away."
    if not hidden.any():
        prose += f" Query {row.token} sees every key; choose an earlier token with --token."
    columns: TermColumns = {
        "score": scores.finished,
        "sees": ["no" if h else "yes" for h in hidden],
        "masked": row.query_row("scaled_scores"),
    }
    table = key_table(row, "scores", columns)
    formula, question = "s_ij where i sees j, else -∞", "Why -∞ before the softmax, and not 0 after it?"
    return Step("Mask", formula, prose, shapes, values, (table,), question)


MOST_WEIGHTED_DIMS = 2


def softmax_step(row: ExplainedRow, sink: float | None) -> Step:
    """Show the scores minus the largest, the exponentials, their sum with the sink's, and the quotients."""
    scores = row.query_row("scaled_scores")
    everything = scores if sink is None else np.append(scores, sink)
    # Without visible keys there is no largest score, and all weights are zero.
    largest = everything.max() if np.isfinite(everything.max()) else 0.0
    shifted = scores - largest
    exponentials = np.exp(shifted)
    total = np.exp(everything - largest).sum()
    weights = exponentials / total if total else exponentials
    columns = {"score": scores, "minus the max": shifted, "exp": exponentials, "weight": weights}
    values: dict[str, Cell] = {"largest score": cell(largest), "sum of exponentials": cell(total)}
    prose = (
        "Exponentials are positive for any score, and dividing them by their sum gives the weights; a hidden "
        "key has exp(-∞) = 0. Subtracting the largest score prevents overflow and changes no weight."
    )
    if sink is not None:
        share = np.exp(sink - largest)
        values |= {"sink": sink, "exponential of the sink": cell(share)}
        values["weight of the sink"] = cell(share / total)
        prose += " The sink is an extra score without a key: it is in the sum, so the keys share less than 1."
    values["ln Σ exp(score)"] = cell(largest + np.log(total)) if total else None
    values |= row.compared(weights, "weights")
    sums = ("sum", "", "", "", exponentials.sum(), weights.sum())
    table = key_table(row, "softmax", columns, sums)
    shapes = tensor_shapes(row.tensors, row.name("scaled_scores"), row.name("weights"))
    title = "Second softmax" if row.half else "Softmax"
    formula = "w_ij = exp(s_ij - m) / Σ_k exp(s_ik - m),  m = max_k s_ik"
    return Step(title, formula, prose, shapes, values, (table,), "Why exponentials?")


def difference_step(row: ExplainedRow, lambda_init: float) -> Step:
    """Explain first - lambda second, in which attention common to both halves cancels."""
    first, second = (row.in_half(half).query_row("weights") for half in (0, 1))
    vectors = part(row.tensors["lambda_vectors"])
    positive, negative = (np.exp(vectors[n] @ vectors[n + 1]) for n in (0, 2))
    factor = positive - negative + lambda_init
    weights = first - factor * second
    columns = {"first": first, "second": second, "lambda · second": factor * second, "weight": weights}
    sums = ("sum", "", *(column.sum() for column in columns.values()))
    values: dict[str, Cell] = {
        "exp(a · b)": cell(positive),
        "exp(c · d)": cell(negative),
        "lambda_init": lambda_init,
        "lambda": cell(factor),
    }
    values |= row.compared(weights, "weights")
    prose = (
        "Lambda, computed from four learned vectors, is the share of the second softmax to subtract from the "
        "first: attention common to both cancels. A row sums to 1 - lambda and may be negative."
    )
    product = dot_product("a · b, two of the vectors behind lambda", ("a", vectors[0]), ("b", vectors[1]))
    table = key_table(row, "difference", columns, sums)
    shapes = tensor_shapes(row.tensors, "first_weights", "second_weights", "lambda_vectors", "weights")
    formula = "w = w1 - λ w2,  λ = exp(a · b) - exp(c · d) + lambda_init"
    question = "Why subtract one softmax from another?"
    return Step("Difference", formula, prose, shapes, values, (product, table), question)


def no_softmax_step(row: ExplainedRow) -> Step:
    """Show the scores as weights; hidden weights are zero."""
    scores = row.query_row("scaled_scores")
    weights = np.where(np.isneginf(scores), 0.0, scores)
    prose = (
        "Without a softmax, the scores are the weights: they may be negative and have any sum; hidden "
        "weights are 0."
    )
    table = key_table(row, "weights", {"score": scores, "weight": weights}, ("sum", "", "", weights.sum()))
    shapes, question = tensor_shapes(row.tensors, "weights"), "Why is there usually a softmax?"
    values = row.compared(weights, "weights")
    return Step("No softmax", "w_ij = s_ij", prose, shapes, values, (table,), question)


def weighted_terms(
    weights: np.ndarray, values: np.ndarray
) -> tuple[dict[str, np.ndarray], tuple[object, ...]]:
    """Return the value and the weighted value for the first dims, and the row of their sums."""
    columns = {"weight": weights}
    sums: list[object] = [weights.sum()]
    for dim in range(min(MOST_WEIGHTED_DIMS, values.shape[1])):
        products = weights * values[:, dim]
        columns |= {f"value dim {dim}": values[:, dim], f"times weight {dim}": products}
        sums += ["", products.sum()]
    return columns, ("sum", "", *sums)


def weighted_sum_step(row: ExplainedRow) -> Step:
    """Show the weights times the values, and their sums: the output of the explained query."""
    weights, values = row.query_row("weights"), row.whole("value")
    name = "head_outputs" if "head_outputs" in row.tensors else "output"
    output = row.query_row(name)
    columns, sums = weighted_terms(weights, values)
    compared = {f"{name} dim {dim} in the report": cell(output[dim]) for dim in range(min(2, len(output)))}
    compared["largest difference over all dims"] = largest_difference(weights @ values, output)
    prose = (
        "A sum takes a little from many keys, and a gradient reaches each of them; choosing only the best "
        "key would have no gradient. Each dim is mixed separately."
    )
    table = key_table(row, "weighted values", columns, sums)
    shapes = tensor_shapes(row.tensors, "weights", "value", name)
    question = "Why a sum, and not just the best key's value?"
    return Step("Weighted sum", "y_i = Σ_j w_ij v_j", prose, shapes, compared, (table,), question)
