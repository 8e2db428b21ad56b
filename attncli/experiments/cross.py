"""Cross-attention: queries from one sequence, keys and values from another."""

from attncli.experiments.attention_report import (
    NO_SOFTMAX_NOTE,
    attention_statistics,
    build_report,
    explained,
    named,
)
from attncli.experiments.model_attention import run_model
from attncli.experiments.self_attention import project
from attncli.experiments.session import Session
from attncli.experiments.sources import embed
from attncli.experiments.texts import Texts
from attncli.mechanisms.masks import full_mask
from attncli.mechanisms.scaled_dot_product import attend
from attncli.report import Report
from attncli.spec.attention import CrossSpec


def run(spec: CrossSpec, texts: Texts, session: Session) -> Report:
    """Weights (query, key) from the sentence's tokens to the context's, and the output for each query."""
    if spec.model is not None:
        return run_model(spec, texts)
    source, context = embed(spec, texts, session)
    vectors, projections = project(spec, source, context, session)
    visible = full_mask(*texts.counts()).to(source.vectors.device)
    attention = attend(**vectors, mask=visible, scale=spec.scale, softmax=spec.softmax)

    tensors = {
        "input": named(source.vectors, "token", "dim"),
        "context": named(context.vectors, "key", "dim"),
        **projections,
        **explained(spec, attention, vectors),
        "scores": named(attention.scores, "query", "key"),
        "weights": named(attention.weights, "query", "key"),
        "output": named(attention.output, "query", "dim"),
    }
    statistics = attention_statistics(spec, attention, visible)
    notes = [
        "Cross-attention takes keys and values from another source: here columns are the context's tokens."
    ]
    if not spec.softmax:
        notes.append(NO_SOFTMAX_NOTE)
    return build_report(spec, texts, tensors, statistics, notes)
