"""The steps between the projections and the scores: normalising query and key, and turning them."""

import numpy as np

from attncli.experiments.explained.row import Row
from attncli.experiments.explained.terms import (
    MOST_PRODUCTS,
    Numbers,
    cell,
    largest_difference,
    shapes_of,
    terms,
)
from attncli.report import Cell, Step
from attncli.spec.attention import AttentionSpec
from attncli.spec.variants import PositionSpec


def meeting_steps(spec: AttentionSpec, row: Row) -> list[Step]:
    """How the projected query becomes the one that meets the keys, where anything is done to it."""
    if spec.model is not None:
        return []
    steps = []
    query = row.of_query("projected_query" if "projected_query" in row.tensors else "query")
    turns = isinstance(spec, PositionSpec) and spec.rope
    if spec.qk_norm:
        normalised = query / np.sqrt(np.square(query).mean() + spec.qk_norm_eps)
        steps.append(_norm_step(row, query, normalised, spec.qk_norm_eps, is_last=not turns))
        query = normalised
    if isinstance(spec, PositionSpec) and spec.rope:
        steps.append(_rope_step(row, query, spec.rope_base))
    return steps


def _norm_step(row: Row, query: Numbers, normalised: Numbers, eps: float, *, is_last: bool) -> Step:
    squares = np.square(query)
    table = terms(
        f"query {row.token}{row.place}",
        ("dim", "projected", "squared", "normalised"),
        (range(len(query)), query, squares, normalised),
        totals=[("sum", "", squares.sum(), "")],
        most=MOST_PRODUCTS,
    )
    values: dict[str, Cell] = {
        "mean square": cell(squares.mean()),
        "root of it and eps": cell(np.sqrt(squares.mean() + eps)),
    }
    if is_last:
        values["largest difference from the report"] = largest_difference(normalised, row.of_query("query"))
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
    turned, turned_second = first * cos - second * sin, second * cos + first * sin
    table = terms(
        f"query {row.token}{row.place}: dims n and n + {pairs} are a point in a plane",
        ("pair", "angle", "cos", "sin", "dim n", f"n + {pairs}", "turned n", f"turned n + {pairs}"),
        (range(pairs), angles, cos, sin, first, second, turned, turned_second),
        most=MOST_PRODUCTS,
    )
    values: dict[str, Cell] = {
        "position": row.token,
        "base": base,
        "length before": cell(np.linalg.norm(query)),
        "length after": cell(np.linalg.norm([*turned, *turned_second])),
    }
    worked = np.concatenate([turned, turned_second])
    values["largest difference from the report"] = largest_difference(worked, row.of_query("query"))
    prose = (
        "Each pair of dims is turned by an angle that grows with the position, fast for the first pair and "
        "slowly for the last. Keys are turned by theirs: a product of two depends on i - j alone."
    )
    shapes = shapes_of(row.tensors, "projected_query", "query")
    formula = "(x cos a - y sin a, y cos a + x sin a),  a = position · base^(-2n / head_dim)"
    question = "Why does a turn tell how far apart two words stand?"
    return Step("Rotary positions", formula, prose, shapes, values, (table,), question)
