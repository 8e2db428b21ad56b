"""The first steps: from a text to tokens, and from tokens to vectors."""

from collections.abc import Sequence

import numpy as np

from attncli.experiments.explained.row import Row
from attncli.experiments.explained.terms import part, shapes_of, terms, vectors
from attncli.report import NamedTensor, Step, Terms
from attncli.spec.text import SAMPLED_EMBEDDINGS, TextSpec

DRAWN = {
    "gaussian": ("x ~ N(0, 1)", "Each number is sampled by itself, from a standard normal."),
    "integers": ("x ∈ {0, …, 9}", "Each number is a whole one from 0 to 9."),
}


def token_steps(spec: TextSpec, row: Row) -> tuple[Step, ...]:
    """Tokens, and their embeddings where the report has them (a model keeps its own)."""
    return (_tokens(spec, row), *([_embeddings(spec, row)] if "input" in row.tensors else []))


def _table(title: str, axis: str, tokens: Sequence[str], ids: NamedTensor | None, worked: int) -> Terms:
    columns, values = [axis, "text"], [range(len(tokens)), tokens]
    if ids is not None:
        columns.append("id")
        values.append(ids.values.tolist())
    return terms(title, columns, values, notable=[worked])


def _tokens(spec: TextSpec, row: Row) -> Step:
    report = row.report
    ids, context_ids = (row.tensors.get(name) for name in ("token_ids", "context_token_ids"))
    tables = [_table("tokens", "token", report.tokens, ids, row.token)]
    if report.context_tokens:
        tables.append(_table("context tokens", "key", report.context_tokens, context_ids, row.strongest))
    question = "Why is the text cut up?"
    parts = [
        "A network computes with vectors, and each token gets one. Equal words are equal tokens at different "
        "positions."
    ]
    if spec.num_tokens:
        question = "Why can there be attention without a text?"
        parts = ["It computes with vectors alone: here random ones stand for the tokens."]
    elif ids is not None:
        parts.append("The id of a token is its row in the table of vectors.")
    parts.append(f"What query {row.token} takes from every key that it sees is computed below.")
    if row.place:
        parts.append(f"It is explained in head {row.head}; the others do the same with their own numbers.")
    if spec.batch_size:
        parts.append("It is that of batch item 0: batch items never talk to each other.")
    values = {"query explained": row.token}
    formula = (
        "x0, x1, …" if spec.num_tokens else "text → tokens → ids" if ids is not None else "text → tokens"
    )
    return Step("Tokens", formula, " ".join(parts), values=values, tables=tuple(tables), question=question)


def _embeddings(spec: TextSpec, row: Row) -> Step:
    source = part(row.tensors["input"], batch=0)
    tables = [vectors("input", "token", row.report.tokens, source, notable=[row.token])]
    if "context" in row.tensors:
        context = part(row.tensors["context"], batch=0)
        tables.append(vectors("context", "key", row.key_tokens, context, notable=[row.strongest]))
    if spec.embedding in DRAWN:
        formula, prose = DRAWN[spec.embedding]
        question = "Why random vectors?"
        prose += " Whatever is computed with them holds for the vectors of words as well."
    else:
        question = "Why a vector, and not the id alone?"
        formula = "x_t = E[id_t]"
        prose = (
            "Vectors can be near each other, ids cannot. A token's vector is its row of the table E: equal "
            "words, equal vectors."
        )
        prose += (
            " The table is read from the word-vector file."
            if spec.embedding not in SAMPLED_EMBEDDINGS
            else " The table is sampled from a standard normal; training would move it."
        )
    shapes = shapes_of(row.tensors, "input", "context")
    values = {"mean square of the worked vector": float(np.square(source[row.token]).mean())}
    return Step("Embeddings", formula, prose, shapes, values, tuple(tables), question)
