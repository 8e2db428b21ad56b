"""The first steps: from a text to tokens, and from tokens to vectors."""

from collections.abc import Sequence

import numpy as np

from attncli.experiments.explained.row import Row
from attncli.experiments.explained.terms import first_dims, part, shapes_of, terms
from attncli.report import Step, Terms
from attncli.spec.text import SAMPLED_EMBEDDINGS, TextSpec

SAMPLED = {
    "gaussian": ("x ~ N(0, 1)", "Each number is sampled by itself, from a standard normal."),
    "integers": ("x ∈ {0, …, 9}", "Each number is a whole one from 0 to 9."),
}


def token_steps(spec: TextSpec, row: Row) -> tuple[Step, ...]:
    """Tokens, and their embeddings where the report has them (a model keeps its own)."""
    return (_tokens(spec, row), *([_embeddings(spec, row)] if "input" in row.tensors else []))


def _table(row: Row, title: str, axis: str, tokens: Sequence[str], ids: str, notable: int) -> Terms:
    id_column = {"id": row.tensors[ids].values} if ids in row.tensors else {}
    return terms(title, {axis: range(len(tokens)), "text": tokens, **id_column}, notable=[notable])


def _tokens(spec: TextSpec, row: Row) -> Step:
    tables = [_table(row, "tokens", "token", row.report.tokens, "token_ids", row.token)]
    if context := row.report.context_tokens:
        tables.append(_table(row, "context tokens", "key", context, "context_token_ids", row.strongest))
    formula, question = "text → tokens", "Why is the text cut up?"
    parts = [
        "A network computes with vectors, and each token gets one. Equal words are equal tokens at different "
        "positions."
    ]
    if spec.num_tokens:
        formula, question = "x0, x1, …", "Why can there be attention without a text?"
        parts = ["It computes with vectors alone: here random ones stand for the tokens."]
    elif "token_ids" in row.tensors:
        formula = "text → tokens → ids"
        parts.append("The id of a token is its row in the table of vectors.")
    parts.append(f"What query {row.token} takes from every key that it sees is computed below.")
    if row.place:
        parts.append(f"It is explained in head {row.head}; the others do the same with their own numbers.")
    if spec.batch_size:
        parts.append("It is that of batch item 0: batch items never talk to each other.")
    values = {"query explained": row.token}
    return Step("Tokens", formula, " ".join(parts), (), values, tuple(tables), question)


def _embeddings(spec: TextSpec, row: Row) -> Step:
    source, tokens = part(row.tensors["input"], batch=0), row.report.tokens
    columns = {"token": range(len(tokens)), "text": tokens}
    tables = [first_dims("input", columns, source, notable=[row.token])]
    if "context" in row.tensors:
        context = part(row.tensors["context"], batch=0)
        columns = {"key": range(len(context)), "text": row.key_tokens}
        tables.append(first_dims("context", columns, context, notable=[row.strongest]))
    if spec.embedding in SAMPLED:
        formula, prose = SAMPLED[spec.embedding]
        question = "Why random vectors?"
        prose += " Whatever is computed with them holds for the vectors of words as well."
    else:
        formula, question = "x_t = E[id_t]", "Why a vector, and not the id alone?"
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
