"""Cross-attention: queries from one sequence, keys and values from another."""

from attncli.experiments.attended.attending import attended
from attncli.experiments.attended.variants import draw_parameters, parameter_sizes
from attncli.experiments.attention_report import build_report, explained_ids, explained_vectors, named
from attncli.experiments.draws import Draws
from attncli.experiments.reading.texts import Texts
from attncli.experiments.self_attention import project
from attncli.experiments.sources import embed
from attncli.report import Report
from attncli.spec.cross import CrossSpec


def run(spec: CrossSpec, texts: Texts, draws: Draws) -> Report:
    """Weights (query, key) from the sentence's tokens to the context's, and the output for each query."""
    source, context = embed(spec, texts, draws)
    vectors, projections = project(spec, source, context, draws)
    drawn = draws.draw(draw_parameters, *parameter_sizes(spec))
    attention = attended(spec, vectors, drawn=drawn, progress=draws.progress)

    tensors = {
        "input": named(source.vectors, "token", "dim"),
        "context": named(context.vectors, "key", "dim"),
        **explained_ids(spec, source, context),
        **projections,
        **explained_vectors(spec, vectors),
        **attention.tensors,
        "output": named(attention.output, "query", "dim"),
    }
    note = "Cross-attention takes keys and values from another source: here columns are the context's tokens."
    return build_report(spec, texts, tensors, attention.statistics, [note, *attention.notes])
