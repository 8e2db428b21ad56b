"""Multi-head attention: several heads side by side, each with its own query, key and value."""

from attncli.experiments.attention_report import build_report, named
from attncli.experiments.draws import Draws
from attncli.experiments.reading.texts import Texts
from attncli.experiments.sampled_attention.attention import sampled_attention
from attncli.experiments.sources import embed
from attncli.inputs.vectors import sample_linear, sample_linear_bias
from attncli.mechanisms.heads import merge_heads
from attncli.report import Report
from attncli.spec.attention import MultiheadSpec


def _head_note(spec: MultiheadSpec) -> str:
    if spec.num_kv_heads != spec.num_heads:
        shared = spec.num_heads // spec.num_kv_heads
        return f"Each key/value head serves {shared} query heads (grouped-query attention)."
    if spec.projection == "none":
        return "Without projections each head sees a slice of the embedding as query, key and value alike."
    return "Each head has its own query, key and value, so that each can look for something else."


def run(spec: MultiheadSpec, texts: Texts, draws: Draws) -> Report:
    """Weights (head, query, key), the output of each head, and the heads merged and unified."""
    attention = sampled_attention(spec, embed(spec, texts, draws), draws)
    tensors, merged = attention.tensors, merge_heads(attention.output)
    tensors["head_outputs"] = named(attention.output, "head", "query", "dim")
    output = merged
    if spec.output_projection:
        matrix = draws.draw(sample_linear, spec.embed_dim, merged.shape[-1])
        bias = draws.draw(sample_linear_bias, spec.embed_dim, merged.shape[-1])
        output = merged @ matrix.to(merged.device).mT + bias.to(merged.device).unsqueeze(-2)
        if spec.explain:
            tensors["merged"] = named(merged, "query", "dim")
            tensors["output_projection"] = named(matrix, "dim", "embed")
            tensors["output_bias"] = named(bias, "dim")
    tensors["output"] = named(output, "query", "dim")

    notes = [_head_note(spec)]
    if spec.batch_size:
        notes.append("Batch items never talk to each other.")
    return build_report(spec, texts, tensors, attention.statistics, [*notes, *attention.notes])
