"""`attn pitfalls`: classic mistakes, each next to the correct computation."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from attncli.records.report import Report, pair_names
from attncli.settings.fields import BYTES_PER_WEIGHT, Contradictions, Everyday, Size, contradiction
from attncli.settings.pages import SampledPage
from attncli.settings.text import TOKENIZER_HELP, Texts, TextSpec


class Pitfall(NamedTuple):
    """A mistake, in a few words and in a sentence, with its main metric, a way to notice it, and all data."""

    summary: str
    mistake: str
    metric: str
    notice: str
    metrics: tuple[str, ...]
    tables: tuple[str, ...] = ()


PITFALLS = {
    "softmax-twice": Pitfall(
        "softmax of finished weights: the future leaks in",
        "Softmax of a matrix that is already a distribution: exp(0) = 1, and the future leaks in.",
        "weight_on_future",
        "In a causal model weights.triu(1) must be all zeros; the first row is 1, 0, 0, ...",
        ("weight_on_future", "first_row_on_itself"),
    ),
    "no-scaling": Pitfall(
        "unscaled scores grow with head_dim: softmax saturates",
        "Scores that are not scaled: their variance is head_dim, and the softmax saturates.",
        "score_variance",
        "Print scores.var() for two sizes of head_dim before training: the variance must not grow.",
        ("score_variance", "mean_max_weight"),
        ("growth",),
    ),
    "uniform-projections": Pitfall(
        "positive projections: enormous scores, one-hot rows",
        "Projections sampled from U[0, 1): all are positive, so scores are enormous even when scaled.",
        "mean_max_weight",
        "Print weights.max(-1).values.mean() before training: near 1, the gradient of the softmax vanishes.",
        ("score_variance", "mean_max_weight"),
    ),
    "merged-heads": Pitfall(
        "view before the head axis is moved back: tokens mix",
        "Heads viewed as (token, head * dim) without moving the head axis back: tokens are mixed.",
        "difference_from_input",
        "Split and merge: the result must equal the input. Checking only the shapes is not enough.",
        ("difference_from_input", "rows_of_one_token"),
    ),
    "vocabulary-labels": Pitfall(
        "rows named by the vocabulary, not by the sentence",
        "Heatmap rows labelled with the sorted vocabulary: the labels are wrong, and there are too few.",
        "rows_named_wrongly",
        "Take one label from each token: a word that occurs twice keeps two rows.",
        ("rows_named_wrongly", "labels"),
        ("readings",),
    ),
    "wrong-axis": Pitfall(
        "softmax over queries: columns sum to one, rows do not",
        "Softmax over the queries: columns sum to one, rows do not.",
        "row_sum_error",
        "weights.sum(-1) must be all ones: name the axis, softmax(dim=-1).",
        ("row_sum_error", "column_sum_error"),
    ),
    "late-mask": Pitfall(
        "mask after the softmax: rows do not sum to one",
        "A mask after the softmax, without renormalising: rows lose the weight of the hidden keys.",
        "smallest_row_sum",
        "weights.sum(-1) must be all ones after the mask, too: hide scores with -inf before the softmax.",
        ("smallest_row_sum", "weight_on_future"),
    ),
}

if TYPE_CHECKING:
    PitfallName = str
else:
    PitfallName = Literal[tuple(PITFALLS)]


class PitfallsSpec(TextSpec):
    experiment = "pitfalls"
    title = "A classic mistake"
    examples = (
        "attn pitfalls",
        "attn pitfalls softmax-twice --num-tokens 8",
        "attn pitfalls merged-heads --format json",
    )
    next_steps = ("late-mask", "no-scaling", "--show all")
    argument = "pitfall"
    group = "Pitfalls"
    heading_keys = ("pitfall", "file", "embedding", "embed_dim", "num_heads", "seed")

    tokenizer: Literal["words", "whitespace"] = Field("words", description=TOKENIZER_HELP)
    pitfall: Annotated[PitfallName | None, Everyday()] = Field(
        None, description="mistake to show, wrong beside right (default: a list of all mistakes)"
    )
    num_heads: Annotated[Size, Everyday()] = Field(4, description="number of heads to split and merge")

    def can_run_together(self) -> bool:
        return False

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        pairs = 2 * num_queries * (num_queries + self.embed_dim) + 4 * self.embed_dim**2
        return pairs * BYTES_PER_WEIGHT

    def result_kind(self) -> str:
        return "pitfalls" if self.pitfall is None else "pitfalls of one"

    def unmeasured(self) -> set[str]:
        if self.pitfall is None:
            return set()
        pitfall = PITFALLS[self.pitfall]
        others = {name for other in PITFALLS.values() for name in (*other.metrics, *other.tables)}
        return others.difference(pitfall.metrics, pitfall.tables)

    def unused_keys(self) -> frozenset[str]:
        splits_heads = self.pitfall in (None, "merged-heads")
        return super().unused_keys() | {"batch_size"} | (set() if splits_heads else {"num_heads"})

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.batch_size:
            yield contradiction("batch_size", "does not apply to pitfalls: each pitfall shows one sequence")
        if "num_heads" in self.unused_keys():
            if self.given("num_heads"):
                yield contradiction("num_heads", f"is not used by {self.pitfall}", "pitfall")
        elif self.embed_dim % self.num_heads:
            message = f"({self.embed_dim}) must be divisible by `num_heads` ({self.num_heads})"
            yield contradiction("embed_dim", message, "num_heads")


def run(spec: PitfallsSpec, texts: Texts, draws: Any) -> Report:
    """Report both computations of one mistake with their metrics or, without a name, one line per mistake.

    Every mistake starts from the same vectors and the same generator state.
    """
    from attncli.features.pitfalls.mistakes import COMPARISONS, Comparison, MistakeInputs
    from attncli.features.pitfalls.results import MistakeLine, Mistakes
    from attncli.records.values import Mask
    from attncli.runs.report_parts import build_report, named
    from attncli.runs.runner import embedded

    (source,) = embedded(spec, texts, draws)
    state = draws.generator.get_state()

    def compared(name: str) -> Comparison:
        draws.generator.set_state(state)
        inputs = MistakeInputs(texts.tokens, source.vectors, draws.generator, spec.num_heads)
        return COMPARISONS[name](inputs)

    if spec.pitfall is None:
        lines = [
            MistakeLine.single(
                pitfall=name,
                figure=pitfall.metric,
                wrong=result.wrong[pitfall.metric],
                right=result.right[pitfall.metric],
                mistake=pitfall.summary,
            )
            for name, pitfall in PITFALLS.items()
            for result in [compared(name).result]
        ]
        about = "Use attn pitfalls NAME to show one mistake, wrong beside right, and how to notice it."
        return build_report(spec, texts, {}, Mistakes(pitfalls=MistakeLine.rows(lines)), [], about=about)
    pitfall, both = PITFALLS[spec.pitfall], compared(spec.pitfall)
    notes = [f"The metric {pitfall.metric} exposes the mistake. How to notice it: {pitfall.notice}"]
    if both.result.wrong[pitfall.metric] == both.result.right[pitfall.metric]:
        notes.append("With these settings, both ways give the same metric, so the mistake is not exposed.")
    weights = both.weights
    tensors = {} if weights is None else {"weights": named(weights, "query", "key", mask=Mask())}
    for name, ways in both.pairs.items():
        for full_name, tensor, mask in zip(
            pair_names(name), (ways.wrong, ways.right), ways.masks, strict=True
        ):
            tensors[full_name] = named(tensor, *ways.axes, mask=mask)
    return build_report(spec, texts, tensors, both.result, notes, about=pitfall.mistake)


PAGE = SampledPage(run=run)
