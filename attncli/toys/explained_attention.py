"""Explanations of softmax(query key^T scale) value, step by step, for one query."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attncli.records.report import Cell, Report, Shape, Step, Terms
from attncli.toys.attention import AttentionForm
from attncli.toys.explained_rows import (
    MOST_DIMS,
    MOST_PRODUCTS,
    ExplainedRow,
    TermColumns,
    cell,
    difference_step,
    dot_product,
    explained_row,
    first_dims,
    key_table,
    largest_difference,
    mask_step,
    no_softmax_step,
    part,
    row_scores,
    scale_step,
    scores_step,
    softmax_step,
    steps_after_scale,
    tensor_shapes,
    terms,
    weighted_sum_step,
)

TABLES = ("random", "previous")
SAMPLED = {
    "gaussian": ("x ~ N(0, 1)", "Each number is sampled independently from a standard normal."),
    "integers": ("x ∈ {0, …, 9}", "Each number is an integer from 0 to 9."),
}


def token_steps(row: ExplainedRow, *, embedding: str, is_sampled: bool, is_batched: bool) -> tuple[Step, ...]:
    """Explain the tokens and, if the report has them, their embeddings (a model keeps its own)."""
    tokens = _tokens(row, is_sampled=is_sampled, is_batched=is_batched)
    return (tokens, *([_embeddings(row, embedding)] if "input" in row.tensors else []))


def _table(row: ExplainedRow, title: str, axis: str, tokens: Sequence[str], ids: str, notable: int) -> Terms:
    id_column = {"id": row.tensors[ids].values} if ids in row.tensors else {}
    return terms(title, {axis: range(len(tokens)), "text": tokens, **id_column}, notable=[notable])


def _tokens(row: ExplainedRow, *, is_sampled: bool, is_batched: bool) -> Step:
    tables = [_table(row, "tokens", "token", row.report.tokens, "token_ids", row.token)]
    if context := row.report.context_tokens:
        tables.append(_table(row, "context tokens", "key", context, "context_token_ids", row.strongest))
    formula, question = "text → tokens", "Why is the text split?"
    parts = [
        "A network computes with vectors, one per token. A repeated word is one token at several positions."
    ]
    if is_sampled:
        formula, question = "x0, x1, …", "Why can there be attention without a text?"
        parts = ["Attention only needs vectors: here random ones stand in for the tokens."]
    elif "token_ids" in row.tensors:
        formula = "text → tokens → ids"
        parts.append("The id of a token is its row in the table of vectors.")
    parts.append(f"The steps compute what query {row.token} takes from each visible key.")
    if row.place:
        parts.append(f"They show head {row.head}; the other heads do the same with their own numbers.")
    if is_batched:
        parts.append("They show batch item 0: batch items never interact.")
    values = {"query explained": row.token}
    return Step("Tokens", formula, " ".join(parts), (), values, tuple(tables), question)


def _embeddings(row: ExplainedRow, embedding: str) -> Step:
    source, tokens = part(row.tensors["input"], batch=0), row.report.tokens
    columns = {"token": range(len(tokens)), "text": tokens}
    tables = [first_dims("input", columns, source, notable=[row.token])]
    if "context" in row.tensors:
        context = part(row.tensors["context"], batch=0)
        columns = {"key": range(len(context)), "text": row.key_tokens}
        tables.append(first_dims("context", columns, context, notable=[row.strongest]))
    if embedding in SAMPLED:
        formula, prose = SAMPLED[embedding]
        question = "Why random vectors?"
        prose += " The same computation applies to the vectors of words."
    else:
        formula, question = "x_t = E[id_t]", "Why a vector, and not just the id?"
        prose = (
            "Vectors can be similar, ids cannot. A token's vector is its row of the table E, so equal "
            "words have equal vectors."
        )
        prose += (
            " The table is read from the word-vector file."
            if embedding not in TABLES
            else " The table is sampled from a standard normal; training would change it."
        )
    shapes = tensor_shapes(row.tensors, "input", "context")
    values = {"mean square of the explained vector": float(np.square(source[row.token]).mean())}
    return Step("Embeddings", formula, prose, shapes, values, tuple(tables), question)


NAMES = ("query", "key", "value")


def projection_step(row: ExplainedRow, projection: str) -> Step:
    """Compute one number of the query as a dot product, and show the query, key and value vectors."""
    head = "_h" if row.has_heads else ""
    tables, values = [_first_dims(row)], {}
    names: tuple[str, ...] = NAMES
    if row.from_model:
        formula = f"q{head}, k{head}, v{head} from the model"
        question = "Why are query, key and value not the word's own vector?"
        prose = (
            "The model computes query, key and value from the output of earlier layers, with its own "
            "matrices and any further operations (biases, norms, rotations); the final vectors are shown."
        )
    elif projection == "none":
        formula = "q_h = k_h = v_h = x[h's slice]" if row.has_heads else "q = k = v = x"
        question = "Why are there usually projections?"
        prose = (
            "Without projections the vectors themselves are query, key and value: a word can only look for "
            "words like itself."
        )
        if row.has_heads:
            prose += " Each head sees its own slice of the vectors."
        names = ("input", "context", *NAMES)
    else:
        is_transposed = row.tensors["query_projection"].axes[-1] == "embed"
        power, first = ("ᵀ", "row") if is_transposed else ("", "column")
        formula = ",  ".join(f"{n[0]}{head} = x W_{n[0].upper()}{head}{power}" for n in NAMES)
        question = "Why three vectors for each token?"
        prose = (
            "A token searches with its query, is found by its key and passes on its value: three learned "
            "views of one vector, which may differ. Below are the first number of the query, then the first "
            "numbers of all three."
        )
        if row.report.context_tokens:
            prose += " Queries come from the sentence, keys and values from the context."
        source, matrix = row.query_row("input"), row.whole("query_projection")
        matrix = matrix.T if is_transposed else matrix
        reported = row.query_row(row.projected("query"))
        values = {
            "query dim 0 in the report": cell(reported[0]),
            "largest difference over all dims": largest_difference(source @ matrix, reported),
        }
        title = f"dim 0 of query {row.token}{row.place}: its vector · {first} 0 of W_Q{head}"
        factors = (f"x_{row.token}", source), (f"W_Q{head}", matrix[:, 0])
        tables.insert(0, dot_product(title, *factors, axis="embed"))
        names = ("input", "context", *(name for n in NAMES for name in (f"{n}_projection", n)))
    shapes = tensor_shapes(row.tensors, *names)
    return Step("Query, key and value", formula, prose, shapes, values, tuple(tables), question)


def _first_dims(row: ExplainedRow) -> Terms:
    """Show the first numbers of the explained query, and of the key and value with the largest weight."""
    key = row.strongest
    beginnings = {
        f"query of {row.token}": row.query_row(row.projected("query")),
        f"key of {key}": row.whole(row.projected("key"))[key],
        f"value of {key}": row.whole("value")[key],
    }
    sizes = [len(numbers) for numbers in beginnings.values()]
    dims = range(min(MOST_DIMS, *sizes))
    return terms(
        f"all three{row.place}" + ("" if max(sizes) == len(dims) else f": the first {len(dims)} dims"),
        {"vector": list(beginnings)} | {str(d): [part[d] for part in beginnings.values()] for d in dims},
    )


def qk_norm_and_rope_steps(form: AttentionForm, row: ExplainedRow) -> list[Step]:
    """Explain the operations between the projected query and the scores, if qk_norm or rope is on."""
    if row.from_model:
        return []
    steps = []
    query, eps, base = row.query_row(row.projected("query")), form.qk_norm_eps, form.rope_base
    if eps is not None:
        normalised = query / np.sqrt(np.square(query).mean() + eps)
        steps.append(_norm_step(row, query, normalised, eps, is_last=base is None))
        query = normalised
    if base is not None:
        steps.append(_rope_step(row, query, base))
    return steps


def _norm_step(
    row: ExplainedRow, query: np.ndarray, normalised: np.ndarray, eps: float, *, is_last: bool
) -> Step:
    squares = np.square(query)
    table = terms(
        f"query {row.token}{row.place}",
        {"dim": range(len(query)), "projected": query, "squared": squares, "normalised": normalised},
        totals=[("sum", "", squares.sum(), "")],
        most=MOST_PRODUCTS,
    )
    values = {
        "mean square": cell(squares.mean()),
        "root of it and eps": cell(np.sqrt(squares.mean() + eps)),
    } | (row.compared(normalised, "query") if is_last else {})
    prose = (
        "Each query and each key is divided by its root mean square. All lengths become √head_dim, so scores "
        "cannot grow with them. The query is shown; keys are treated the same way."
    )
    shapes = tensor_shapes(row.tensors, "projected_query", "query")
    formula, question = "q / √(Σ q² / n + eps)", "Why normalise query and key?"
    return Step("Normalise query and key", formula, prose, shapes, values, (table,), question)


def _rope_step(row: ExplainedRow, query: np.ndarray, base: float) -> Step:
    pairs = len(query) // 2
    angles = row.token * base ** (-np.arange(pairs) * 2 / len(query))
    first, second = query[:pairs], query[pairs:]
    cos, sin = np.cos(angles), np.sin(angles)
    rotated = first * cos - second * sin, second * cos + first * sin
    columns: TermColumns = {
        "pair": range(pairs),
        "angle": angles,
        "cos": cos,
        "sin": sin,
        "dim n": first,
        f"n + {pairs}": second,
        "turned n": rotated[0],
        f"turned n + {pairs}": rotated[1],
    }
    title = f"query {row.token}{row.place}: dims n and n + {pairs} are a point in a plane"
    table = terms(title, columns, most=MOST_PRODUCTS)
    values: dict[str, Cell] = {
        "position": row.token,
        "base": base,
        "length before": cell(np.linalg.norm(query)),
        "length after": cell(np.linalg.norm(np.concatenate(rotated))),
    }
    values |= row.compared(np.concatenate(rotated), "query")
    prose = (
        "Each pair of dims is rotated by an angle that grows with the position, fast for the first pair and "
        "slowly for the last. Keys are rotated likewise, so a product depends only on i - j."
    )
    shapes = tensor_shapes(row.tensors, "projected_query", "query")
    formula = "(x cos a - y sin a, y cos a + x sin a),  a = position · base^(-2n / head_dim)"
    question = "Why does a rotation encode the distance between two words?"
    return Step("Rotary positions", formula, prose, shapes, values, (table,), question)


def _shape(name: str, axes: tuple[str, ...], tensor: Tensor) -> Shape:
    return Shape(name, axes, tuple(tensor.shape), tensor.stride())


def _first_batch_item(row: ExplainedRow, name: str) -> Tensor:
    """Return one tensor of the report for batch item 0, with its strides."""
    named = row.tensors[name]
    place = tuple(0 if axis == "batch" else slice(None) for axis in named.axes)
    return torch.from_numpy(named.values[place])


def _wide_query(row: ExplainedRow) -> Tensor:
    """Return all heads' queries side by side for each token: input W_Q^T, with all rows in one matrix."""
    if "input" not in row.tensors:
        return _first_batch_item(row, "query").transpose(0, 1).reshape(len(row.report.tokens), -1)
    source = _first_batch_item(row, "input")
    if "query_projection" not in row.tensors:
        return source
    return source @ _first_batch_item(row, "query_projection").flatten(0, 1).mT


def split_step(row: ExplainedRow) -> Step:
    """Explain how a view and a transpose split one wide product: no number moves; only strides change."""
    name = row.projected("query")
    num_heads, num_tokens, dim = _first_batch_item(row, name).shape
    wide = _wide_query(row)
    viewed = wide.view(num_tokens, num_heads, dim)
    split = viewed.transpose(0, 1)
    query = split[row.head, row.token].double().numpy()
    shapes = (
        _shape("wide query", ("token", "head·dim"), wide),
        _shape(".view", ("token", "head", "dim"), viewed),
        _shape(".transpose(0, 1)", ("head", "token", "dim"), split),
    )
    dims = range(min(MOST_DIMS, dim))
    first_column, first_place = row.head * dim, row.token * wide.stride(0) + row.head * dim
    table = terms(
        f"query {row.token}{row.place}: where its numbers lie",
        {
            "dim": dims,
            "column of the wide row": [first_column + d for d in dims],
            "place in memory": [first_place + d for d in dims],
            "number": query,
        },
    )
    values = row.compared(query, name)
    prose = (
        "All heads' queries come from one wide product, with a slice of each row per head. View and "
        "transpose only relabel that product: a stride is the distance in memory between neighbours along an "
        "axis, and place = token · its stride + head · its stride + dim."
    )
    kv_heads = row.tensors["key"].values.shape[row.tensors["key"].axes.index("head")]
    if kv_heads != num_heads:
        serving = row.head // (num_heads // kv_heads)
        prose += f" Here {num_heads} heads share {kv_heads} key/value heads: head {row.head} uses {serving}."
        values["key/value head used"] = serving
    formula, question = "(token, head·dim) → (head, token, dim)", "Why does splitting cost nothing?"
    return Step("Split into heads", formula, prose, shapes, values, (table,), question)


def _view_refused(heads: Tensor) -> str | None:
    """Return torch's error for viewing transposed heads as wide rows, or None if the view works."""
    num_heads, num_tokens, dim = heads.shape
    try:
        heads.transpose(0, 1).view(num_tokens, num_heads * dim)
    except RuntimeError as error:
        return str(error)
    return None


def _merge_step(row: ExplainedRow) -> Step:
    heads = _first_batch_item(row, "head_outputs").contiguous()
    num_heads, num_tokens, dim = heads.shape
    moved = heads.transpose(0, 1)
    copied = moved.contiguous()
    merged = copied.view(num_tokens, num_heads * dim)
    unmoved = heads.view(num_tokens, num_heads * dim)
    shapes = (
        _shape("head_outputs", ("head", "token", "dim"), heads),
        _shape(".transpose(0, 1)", ("token", "head", "dim"), moved),
        _shape(".contiguous()", ("token", "head", "dim"), copied),
        _shape(".view", ("token", "head·dim"), merged),
    )
    refused = _view_refused(heads)
    question = f"Why {'a' if refused else 'no'} copy before the view?"
    prose = (
        "In memory a head's rows are adjacent, but the merged row needs a token's numbers to be. After the "
        "transpose no single stride steps through such a row, so .view fails until .contiguous() copies."
        if refused
        else "With one head or one token the transpose changes no order, and .view works without a copy."
    )
    if "output_projection" not in row.tensors and "input" not in row.tensors:
        prose += " The model's own output layer then mixes the heads."
    columns = [head * dim for head in range(num_heads)]
    flat = [row.token * num_heads * dim + column for column in columns]
    table = terms(
        f"merged row of token {row.token}, at the first dim of each head; viewed without the transpose",
        {
            "column": columns,
            "head": range(num_heads),
            "merged": merged[row.token, columns].double().numpy(),
            "unmoved": unmoved[row.token, columns].double().numpy(),
            "is of token": [place % (num_tokens * dim) // dim for place in flat],
            "of head": [place // (num_tokens * dim) for place in flat],
        },
    )
    values: dict[str, Cell] = {"error of .view without .contiguous()": refused or "none"}
    name = "merged" if "merged" in row.tensors else "output" if row.tensors.keys() >= {"input"} else None
    if name is not None:
        difference = largest_difference(merged.double().numpy(), part(row.tensors[name], batch=0))
        values[f"largest difference from {name} in the report"] = difference
    formula = "(head, token, dim) → (token, head·dim)"
    return Step("Merge the heads", formula, prose, shapes, values, (table,), question)


def merge_steps(row: ExplainedRow) -> tuple[Step, ...]:
    """Explain how the heads are put side by side, and then one number of the output projection."""
    merge = _merge_step(row)
    if "output_projection" not in row.tensors:
        return (merge,)
    merged, matrix = row.query_row("merged"), part(row.tensors["output_projection"])
    bias, output = part(row.tensors["output_bias"]), row.query_row("output")
    computed = matrix @ merged + bias
    values = {
        "bias dim 0": cell(bias[0]),
        "sum and bias": cell(computed[0]),
        "output dim 0 in the report": cell(output[0]),
        "largest difference over all dims": largest_difference(computed, output),
    }
    title = f"dim 0 of output {row.token}: its merged row · row 0 of W_O"
    product = dot_product(title, ("merged", merged), ("W_O", matrix[0]), axis="column")
    prose = "Until now the heads were separate: the last matrix mixes their outputs, back to embed_dim."
    shapes = tensor_shapes(row.tensors, "merged", "output_projection", "output_bias", "output")
    formula, question = "y = merged W_Oᵀ + b", "Why one more matrix?"
    return merge, Step("Output projection", formula, prose, shapes, values, (product,), question)


def attention_steps(
    report: Report,
    form: AttentionForm,
    *,
    token: int | None,
    head: int | None,
    projection: str = "linear",
    embedding: str = "random",
    is_sampled: bool = False,
    is_batched: bool = False,
) -> tuple[Step, ...]:
    """Explain a query's attention from tokens to output; `form` is ignored for a model's report."""
    row = explained_row(report, token, head)
    first = token_steps(row, embedding=embedding, is_sampled=is_sampled, is_batched=is_batched)
    if "query" not in row.tensors:
        return (*first, _weights_only(row))
    projections = [projection_step(row, projection), *([split_step(row)] if row.has_heads else [])]
    last = [weighted_sum_step(row), *(merge_steps(row) if row.has_heads else ())]
    return (*first, *projections, *_weights_steps(form, row), *last)


def _weights_steps(form: AttentionForm, row: ExplainedRow) -> list[Step]:
    """Explain the steps from query and key to the weights, or only the softmax for a second half."""
    half = row.in_half(0) if form.is_differential else row
    scores = row_scores(form, half)
    steps = [*qk_norm_and_rope_steps(form, half), scores_step(half, scores), scale_step(form, half, scores)]
    steps += [*steps_after_scale(half, scores), mask_step(form, half, scores)]
    steps.append(softmax_step(half, scores.sink) if form.softmax else no_softmax_step(half))
    if form.lambda_init is not None:
        steps += [softmax_step(row.in_half(1), scores.sink), difference_step(row, form.lambda_init)]
    return steps


def _weights_only(row: ExplainedRow) -> Step:
    """Explain the weights of a model that exposes nothing else."""
    weights = row.query_row("weights")
    table = key_table(row, "weights", {"weight": weights}, ("sum", "", weights.sum()))
    prose = (
        "This model exposes only its weights, without query, key and scores, so the row cannot be explained "
        "term by term."
    )
    entropies = row.report.tensors_of("rows")["entropy"].values[..., row.token].ravel()
    values = {"entropy": cell(entropies[row.head])}
    shapes = tensor_shapes(row.tensors, "weights")
    formula, question = "w_i = softmax(scores_i)", "Why is the row not explained?"
    return Step("Weights", formula, prose, shapes, values, (table,), question)
