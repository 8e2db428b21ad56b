"""The steps around several heads: how the axes move, what that does to strides, and the last projection."""

import torch
from torch import Tensor

from attncli.experiments.explained.row import Row
from attncli.experiments.explained.terms import (
    MOST_DIMS,
    cell,
    dot_product,
    largest_difference,
    part,
    shapes_of,
    terms,
)
from attncli.report import Cell, Shape, Step


def _shape(name: str, axes: tuple[str, ...], tensor: Tensor) -> Shape:
    return Shape(name, axes, tuple(tensor.shape), tensor.stride())


def _of_first_item(row: Row, name: str) -> Tensor:
    """A tensor of the report for batch item 0, with its own strides."""
    named = row.tensors[name]
    place = tuple(0 if axis == "batch" else slice(None) for axis in named.axes)
    return torch.from_numpy(named.values[place])


def _wide_query(row: Row) -> Tensor:
    """The queries of all heads side by side for each token: input W_Q^T with all rows in one matrix."""
    if "input" not in row.tensors:
        return _of_first_item(row, "query").transpose(0, 1).reshape(len(row.report.tokens), -1)
    source = _of_first_item(row, "input")
    if "query_projection" not in row.tensors:
        return source
    return source @ _of_first_item(row, "query_projection").flatten(0, 1).mT


def split_step(row: Row) -> Step:
    """One wide product is split by a view and a transpose: no number moves, only strides change."""
    name = row.projected("query")
    num_heads, num_tokens, dim = _of_first_item(row, name).shape
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
        "All heads' queries come from one wide product, a slice of each row for each head. View and "
        "transpose then only relabel: a stride is how far the next number along an axis lies in memory, and "
        "place = token · its stride + head · its stride + dim."
    )
    kv_heads = row.tensors["key"].values.shape[row.tensors["key"].axes.index("head")]
    if kv_heads != num_heads:
        serving = row.head // (num_heads // kv_heads)
        prose += f" Here {num_heads} heads share {kv_heads} key/value heads: head {row.head} uses {serving}."
        values["key/value head used"] = serving
    formula, question = "(token, head·dim) → (head, token, dim)", "Why does splitting cost nothing?"
    return Step("Split into heads", formula, prose, shapes, values, (table,), question)


def _view_refused(heads: Tensor) -> str | None:
    """torch's error for viewing transposed heads as wide rows; None where that works."""
    num_heads, num_tokens, dim = heads.shape
    try:
        heads.transpose(0, 1).view(num_tokens, num_heads * dim)
    except RuntimeError as error:
        return str(error)
    return None


def _merge_step(row: Row) -> Step:
    heads = _of_first_item(row, "head_outputs").contiguous()
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
        "A head's rows lie together; a token's numbers must: after the transpose the strides no longer fall, "
        "and one stride cannot step through a row, so .view alone fails and .contiguous() copies first."
        if refused
        else "With one head, or one token, the transpose moves nothing, and .view works without a copy."
    )
    if "output_projection" not in row.tensors and "input" not in row.tensors:
        prose += " The model's own output layer mixes the heads then."
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
    values: dict[str, Cell] = {"torch says to .view without .contiguous()": refused or "nothing: it works"}
    name = "merged" if "merged" in row.tensors else "output" if row.tensors.keys() >= {"input"} else None
    if name is not None:
        difference = largest_difference(merged.double().numpy(), part(row.tensors[name], batch=0))
        values[f"largest difference from {name} in the report"] = difference
    formula = "(head, token, dim) → (token, head·dim)"
    return Step("Merge the heads", formula, prose, shapes, values, (table,), question)


def merge_steps(row: Row) -> tuple[Step, ...]:
    """The heads side by side, then one number of the output that unifies them."""
    merge = _merge_step(row)
    if "output_projection" not in row.tensors:
        return (merge,)
    merged, matrix = row.of_query("merged"), part(row.tensors["output_projection"])
    bias, output = part(row.tensors["output_bias"]), row.of_query("output")
    computed = matrix @ merged + bias
    values = {
        "bias dim 0": cell(bias[0]),
        "sum and bias": cell(computed[0]),
        "output dim 0 in the report": cell(output[0]),
        "largest difference over all dims": largest_difference(computed, output),
    }
    title = f"dim 0 of output {row.token}: its merged row · row 0 of W_O"
    product = dot_product(title, ("merged", merged), ("W_O", matrix[0]), axis="column")
    prose = "Up to here no head knew of the others: the last matrix mixes what they found, back to embed_dim."
    shapes = shapes_of(row.tensors, "merged", "output_projection", "output_bias", "output")
    formula, question = "y = merged W_Oᵀ + b", "Why one more matrix?"
    return merge, Step("Output projection", formula, prose, shapes, values, (product,), question)
