"""The step from embeddings to query, key and value."""

from attncli.experiments.explained.row import Row
from attncli.experiments.explained.terms import (
    MOST_DIMS,
    cell,
    dot_product,
    largest_difference,
    shapes_of,
    terms,
)
from attncli.report import Step, Terms
from attncli.spec.attention import AttentionSpec

NAMES = ("query", "key", "value")


def projection_step(spec: AttentionSpec, row: Row) -> Step:
    """One number of the query as a dot product, then the worked query, and key and value of a key it sees."""
    head = "_h" if row.has_heads else ""
    table = _first_dims(row)
    if spec.model is not None:
        prose = (
            "The model makes query, key and value of what the layers before handed on, with its own matrices "
            "and whatever else it does to them (biases, norms, rotations); here they are as it uses them."
        )
        formula = f"q{head}, k{head}, v{head} from the model"
        question = "Why are they not the word's own vector?"
        shapes = shapes_of(row.tensors, *NAMES)
        return Step("Query, key and value", formula, prose, shapes, {}, (table,), question)
    if spec.projection == "none":
        formula = "q_h = k_h = v_h = x[h's slice]" if row.has_heads else "q = k = v = x"
        question = "Why are there usually projections?"
        prose = (
            "Without them the vectors themselves are query, key and value: a word can only look for what is "
            "like itself."
        )
        if row.has_heads:
            prose += " Each head sees its own slice of them."
        shapes = shapes_of(row.tensors, "input", "context", *NAMES)
        return Step("Query, key and value", formula, prose, shapes, {}, (table,), question)
    transposed = "ᵀ" if row.tensors["query_projection"].axes[-1] == "embed" else ""
    formula = ",  ".join(f"{n[0]}{head} = x W_{n[0].upper()}{head}{transposed}" for n in NAMES)
    prose = (
        "What a token looks for (query), what it is found by (key) and what it hands on (value) may differ: "
        "three learned views of one vector. Below is the first number of the query, then how the three begin."
    )
    if spec.experiment == "cross":
        prose += " Queries come from the sentence, keys and values from the context."
    source, matrix = row.of_query("input"), row.whole("query_projection")
    column = matrix[0] if transposed else matrix[:, 0]
    reported = row.of_query(_projected(row, "query"))
    every = source @ (matrix.T if transposed else matrix)
    values = {
        "query dim 0 in the report": cell(reported[0]),
        "largest difference over all dims": largest_difference(every, reported),
    }
    part_of_matrix = "row" if transposed else "column"
    product = dot_product(
        f"dim 0 of query {row.token}{row.place}: its vector · {part_of_matrix} 0 of W_Q{head}",
        (f"x_{row.token}", source),
        (f"W_Q{head}", column),
        axis="embed",
    )
    names = ("input", "context", *(name for n in NAMES for name in (f"{n}_projection", n)))
    shapes, tables = shapes_of(row.tensors, *names), (product, table)
    return Step(
        "Query, key and value", formula, prose, shapes, values, tables, "Why three vectors for each token?"
    )


def _projected(row: Row, name: str) -> str:
    """The tensor of query or key before anything turned or normalised it."""
    return f"projected_{name}" if f"projected_{name}" in row.tensors else name


def _first_dims(row: Row) -> Terms:
    """The beginnings of the worked query and of the key and value that it takes most from."""
    key = row.strongest
    beginnings = {
        f"query of {row.token}": row.of_query(_projected(row, "query")),
        f"key of {key}": row.whole(_projected(row, "key"))[key],
        f"value of {key}": row.whole("value")[key],
    }
    dims = range(min(MOST_DIMS, *(len(numbers) for numbers in beginnings.values())))
    whole = all(len(numbers) == len(dims) for numbers in beginnings.values())
    return terms(
        f"all three{row.place}" + ("" if whole else f": the first {len(dims)} dims"),
        ("vector", *(str(dim) for dim in dims)),
        (list(beginnings), *([numbers[dim] for numbers in beginnings.values()] for dim in dims)),
    )
