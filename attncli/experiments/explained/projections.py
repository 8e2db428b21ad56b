"""The steps from embeddings to query, key and value, and to the query and key that the scores multiply."""

import numpy as np

from attncli.experiments.explained.row import Row
from attncli.experiments.explained.terms import (
    MOST_DIMS,
    MOST_PRODUCTS,
    Columns,
    Numbers,
    cell,
    dot_product,
    largest_difference,
    shapes_of,
    terms,
)
from attncli.report import Cell, Step, Terms
from attncli.spec.attention import AttentionSpec

NAMES = ("query", "key", "value")


def projection_step(spec: AttentionSpec, row: Row) -> Step:
    """One number of the query as a dot product, then the query, and key and value of a key it sees."""
    head = "_h" if row.has_heads else ""
    tables, values = [_first_dims(row)], {}
    names: tuple[str, ...] = NAMES
    if spec.model is not None:
        formula = f"q{head}, k{head}, v{head} from the model"
        question = "Why are they not the word's own vector?"
        prose = (
            "The model makes query, key and value of what the layers before handed on, with its own matrices "
            "and whatever else it does to them (biases, norms, rotations); here they are as it uses them."
        )
    elif spec.projection == "none":
        formula = "q_h = k_h = v_h = x[h's slice]" if row.has_heads else "q = k = v = x"
        question = "Why are there usually projections?"
        prose = (
            "Without them the vectors themselves are query, key and value: a word can only look for what is "
            "like itself."
        )
        if row.has_heads:
            prose += " Each head sees its own slice of them."
        names = ("input", "context", *NAMES)
    else:
        is_transposed = row.tensors["query_projection"].axes[-1] == "embed"
        power, first = ("ᵀ", "row") if is_transposed else ("", "column")
        formula = ",  ".join(f"{n[0]}{head} = x W_{n[0].upper()}{head}{power}" for n in NAMES)
        question = "Why three vectors for each token?"
        prose = (
            "What a token looks for (query), what it is found by (key) and what it hands on (value) may "
            "differ: three learned views of one vector. Below is the first number of the query, then how the "
            "three begin."
        )
        if spec.experiment == "cross":
            prose += " Queries come from the sentence, keys and values from the context."
        source, matrix = row.of_query("input"), row.whole("query_projection")
        matrix = matrix.T if is_transposed else matrix
        reported = row.of_query(row.projected("query"))
        values = {
            "query dim 0 in the report": cell(reported[0]),
            "largest difference over all dims": largest_difference(source @ matrix, reported),
        }
        title = f"dim 0 of query {row.token}{row.place}: its vector · {first} 0 of W_Q{head}"
        factors = (f"x_{row.token}", source), (f"W_Q{head}", matrix[:, 0])
        tables.insert(0, dot_product(title, *factors, axis="embed"))
        names = ("input", "context", *(name for n in NAMES for name in (f"{n}_projection", n)))
    shapes = shapes_of(row.tensors, *names)
    return Step("Query, key and value", formula, prose, shapes, values, tuple(tables), question)


def _first_dims(row: Row) -> Terms:
    """The first numbers of the explained query and of the key and value that it takes most from."""
    key = row.strongest
    beginnings = {
        f"query of {row.token}": row.of_query(row.projected("query")),
        f"key of {key}": row.whole(row.projected("key"))[key],
        f"value of {key}": row.whole("value")[key],
    }
    sizes = [len(numbers) for numbers in beginnings.values()]
    dims = range(min(MOST_DIMS, *sizes))
    return terms(
        f"all three{row.place}" + ("" if max(sizes) == len(dims) else f": the first {len(dims)} dims"),
        {"vector": list(beginnings)} | {str(d): [part[d] for part in beginnings.values()] for d in dims},
    )


def qk_norm_and_rope_steps(spec: AttentionSpec, row: Row) -> list[Step]:
    """Steps from the projected query to the one that the scores multiply, where qk_norm or rope is on."""
    if spec.model is not None:
        return []
    steps = []
    query = row.of_query(row.projected("query"))
    positions = spec.positions()
    base = positions.rope_base if positions and positions.rope else None
    if spec.qk_norm:
        normalised = query / np.sqrt(np.square(query).mean() + spec.qk_norm_eps)
        steps.append(_norm_step(row, query, normalised, spec.qk_norm_eps, is_last=base is None))
        query = normalised
    if base is not None:
        steps.append(_rope_step(row, query, base))
    return steps


def _norm_step(row: Row, query: Numbers, normalised: Numbers, eps: float, *, is_last: bool) -> Step:
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
        "Each query and each key is divided by its root mean square: its length is √head_dim, whatever it "
        "was, and scores cannot grow with it. Shown is the query; the keys go the same way."
    )
    shapes = shapes_of(row.tensors, "projected_query", "query")
    formula, question = "q / √(Σ q² / n + eps)", "Why normalise query and key?"
    return Step("Normalise query and key", formula, prose, shapes, values, (table,), question)


def _rope_step(row: Row, query: Numbers, base: float) -> Step:
    pairs = len(query) // 2
    angles = row.token * base ** (-np.arange(pairs) * 2 / len(query))
    first, second = query[:pairs], query[pairs:]
    cos, sin = np.cos(angles), np.sin(angles)
    rotated = first * cos - second * sin, second * cos + first * sin
    columns: Columns = {
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
        "Each pair of dims is turned by an angle that grows with the position, fast for the first pair and "
        "slowly for the last. Keys are turned by theirs: a product of two depends on i - j alone."
    )
    shapes = shapes_of(row.tensors, "projected_query", "query")
    formula = "(x cos a - y sin a, y cos a + x sin a),  a = position · base^(-2n / head_dim)"
    question = "Why does a turn tell how far apart two words stand?"
    return Step("Rotary positions", formula, prose, shapes, values, (table,), question)
