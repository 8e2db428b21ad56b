"""`attn average`: average each token with its past, which equals attention whose scores are all zero."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from attncli.core.names import WEIGHT_STATISTICS
from attncli.records.report import Report, Step
from attncli.settings.fields import (
    BYTES_PER_TOP_KEY,
    BYTES_PER_VECTOR_ENTRY,
    BYTES_PER_WEIGHT,
    Contradictions,
    Count,
    Everyday,
    ExplainRowSpec,
    Heading,
    contradiction,
)
from attncli.settings.pages import SampledPage
from attncli.settings.text import TOKENIZER_HELP, Texts, TextSpec, explained_token


class AverageSpec(TextSpec, ExplainRowSpec):
    experiment = "average"
    title = "Averages over tokens"
    examples = (
        'attn average "the cat walks on the street" --embed-dim 2',
        "attn average --num-tokens 8 --batch-size 4 --embed-dim 2 --seed 1337",
        "attn average --embedding integers --num-tokens 3 --embed-dim 2 --aggregate sum",
    )
    next_steps = ("--over all", "--embed-dim 2", "--explain", "--show output")
    group = "Averaging"
    needs: ClassVar[Mapping[str, str]] = {"softmax_twice": "method=softmax"}
    heading_keys = ("file", "batch_size", "embedding", "embed_dim", "method", "over", "aggregate", "seed")

    tokenizer: Literal["words", "whitespace"] = Field("words", description=TOKENIZER_HELP)

    method: Annotated[
        Literal["loop", "matmul", "softmax", "all"], Everyday("method: loop, matmul, softmax, or all")
    ] = Field("all", description="method: a loop, a matrix product, a masked softmax, or all three, compared")
    over: Annotated[Literal["past", "all"], Everyday("average with the past or with all tokens")] = Field(
        "past", description="average each token with its past or with all tokens"
    )
    aggregate: Annotated[Literal["mean", "sum"], Everyday()] = Field(
        "mean", description="compute the mean or the sum"
    )
    softmax_twice: bool = Field(
        False, description="apply softmax to the finished weights, a mistake that leaks the future"
    )
    top_k: Annotated[Count, Heading("Output")] = Field(
        3, description="number of top keys to report for each query"
    )

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        rows = (self.batch_size or 1) * num_queries
        row_bytes = self.embed_dim * BYTES_PER_VECTOR_ENTRY + min(self.top_k, num_queries) * BYTES_PER_TOP_KEY
        return num_queries**2 * BYTES_PER_WEIGHT + rows * row_bytes

    def row_statistics(self) -> tuple[str, ...]:
        return (*WEIGHT_STATISTICS, "logsumexp", "received_mass") if self.aggregate == "mean" else ()

    def result_kind(self) -> str:
        return self.experiment

    def unmeasured(self) -> set[str]:
        return set() if self.method == "all" else {"agreement"}

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.method == "softmax" and self.aggregate == "sum":
            message = "must be loop or matmul with `aggregate` sum: a softmax can only average"
            yield contradiction("method", message, "aggregate")


def _form(spec: AverageSpec) -> Any:
    from attncli.features.average.averaging import AverageForm

    return AverageForm(
        method=spec.method,
        over=spec.over,
        aggregate=spec.aggregate,
        softmax_twice=spec.softmax_twice,
    )


def steps(spec: AverageSpec, report: Report) -> tuple[Step, ...]:
    """Explain each way of averaging step by step."""
    from attncli.features.average.explained import average_steps

    return average_steps(
        report,
        _form(spec),
        token=explained_token(spec.token, report.tokens),
        embedding=spec.embedding,
        is_sampled=spec.num_tokens is not None,
        is_batched=spec.batch_size is not None,
    )


def run(spec: AverageSpec, texts: Texts, draws: Any) -> Report:
    """Report each token's mean or sum over the tokens that it sees, by each selected method."""
    from attncli.features.average.averaging import average, averaging_statistics, differences_from_loop
    from attncli.features.average.results import AverageStatistics
    from attncli.records.values import Mask
    from attncli.runs.report_parts import build_report, named
    from attncli.runs.runner import embedded
    from attncli.runs.weight_rows import LeadingAxes, RowTensors, row_tensors

    (source,) = embedded(spec, texts, draws)
    vectors, form = source.vectors, _form(spec)
    averaged = average(vectors, form)
    notes = [
        "Attention is message passing on a directed graph: each token receives from the tokens that it sees."
    ]
    if spec.over == "past":
        notes.append("In an encoder, every token sees all tokens (--over all).")
    if spec.softmax_twice:
        notes.append("A deliberate mistake: a softmax of finished weights gives weight to hidden tokens.")
    agreement, measured = None, RowTensors()
    if spec.method == "all":
        # Texts that run together have no `batch_size`.
        by_text = spec.batch_size is None and vectors.dim() > 2
        agreement = differences_from_loop(vectors, averaged.output, form, by_text=by_text)
        if spec.aggregate == "sum":
            notes.append("A softmax row sums to one, so it can average but not sum.")
    if spec.aggregate == "mean":
        lead = LeadingAxes.of(vectors, has_head=False)
        rows = averaging_statistics(lead.layered(vectors), form, top_k=spec.top_k)
        measured = row_tensors(rows, lead, None)
    weights = averaged.weights.expand(*vectors.shape[:-2], -1, -1)
    # A second softmax also gives weight to hidden keys.
    mask = Mask(causal=spec.over == "past" and not spec.softmax_twice)
    tensors = {
        "input": named(vectors, "token", "dim"),
        "weights": named(weights, "query", "key", mask=mask),
        "output": named(averaged.output, "query", "dim"),
    }
    result = AverageStatistics(agreement=agreement, rows=measured.rows, keys=measured.keys)
    return build_report(spec, texts, tensors, result, notes)


PAGE = SampledPage(run=run, steps=steps)
