"""Cross-attention: queries from one sequence, keys and values from another."""

from attncli.experiments.attending import attended
from attncli.experiments.attention_report import build_report, explained_ids, explained_vectors, named
from attncli.experiments.self_attention import project
from attncli.experiments.session import Session
from attncli.experiments.sources import embed
from attncli.experiments.texts import Texts
from attncli.experiments.variants import draw_parameters, parameter_sizes
from attncli.report import Report
from attncli.spec.attention import CrossSpec


def run(spec: CrossSpec, texts: Texts, session: Session) -> Report:
    """Weights (query, key) from the sentence's tokens to the context's, and the output for each query."""
    if spec.model is not None:
        from attncli.experiments.model_runs import run_model

        return run_model(spec, texts, session)
    source, context = embed(spec, texts, session)
    vectors, projections = project(spec, source, context, session)
    drawn = session.draw(draw_parameters, *parameter_sizes(spec))
    attention = attended(spec, vectors, drawn=drawn, progress=session.progress)

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
