"""Cross-attention: queries from one sequence, keys and values from another."""

from attncli.experiments.attention_report import build_report, named
from attncli.experiments.draws import Draws
from attncli.experiments.reading.texts import Texts
from attncli.experiments.sampled_attention.attention import sampled_attention
from attncli.experiments.sources import embed
from attncli.report import Report
from attncli.spec.cross import CrossSpec


def run(spec: CrossSpec, texts: Texts, draws: Draws) -> Report:
    """Weights (query, key) from the sentence's tokens to the context's, and the output for each query."""
    attention = sampled_attention(spec, embed(spec, texts, draws), draws)
    tensors = attention.tensors | {"output": named(attention.output, "query", "dim")}
    note = "Cross-attention takes keys and values from another source: here columns are the context's tokens."
    return build_report(spec, texts, tensors, attention.statistics, [note, *attention.notes])
