"""The positions of each call that are there; of queries in cross-attention, by an earlier self-attention."""

import torch
from jaxtyping import Bool
from torch import Tensor

from attncli.core.row_tiles import LayerOrWeights
from attncli.features.record.listening.heard_calls import HeardCall
from attncli.features.record.padding import PositionsThere, place_of_first_query, positions_of


class CallPositions:
    """Remembers the queries of the self-attention of each module that are there, for its cross-attention."""

    def __init__(self) -> None:
        self._queries_there: dict[str, tuple[int, Bool[Tensor, "text query"]]] = {}

    def of_call(self, call: HeardCall, layer: LayerOrWeights) -> PositionsThere:
        """The positions of each text that are there: in cross-attention the queries that the same part of the
        program had in its self-attention.
        """
        num_texts, _, num_queries, _ = layer.shape
        if call.kind == "self":
            first_query = place_of_first_query(layer) if call.first_query is None else call.first_query
            positions = positions_of(layer, first_query=first_query)
            self._queries_there.pop(call.module, None)
            self._queries_there[call.module] = call.outermost, positions.queries
            is_unknown = first_query is None and num_queries > 1 and not bool(positions.keys.all())
            return positions._replace(is_unclear=positions.is_unclear or is_unknown)
        alike = [
            queries
            for module, (outermost, queries) in self._queries_there.items()
            if outermost == call.outermost
            and queries.shape == (num_texts, num_queries)
            and _are_near(module, call.module)
        ]
        positions = positions_of(layer, first_query=None)
        # A text that is attended to is another than the one that attends, where there are several.
        alike = [queries for queries in alike if not torch.equal(queries, positions.keys)] or alike
        if not alike:
            return positions
        if any(not torch.equal(queries, alike[0]) for queries in alike):
            return positions._replace(is_unclear=True)
        return positions._replace(queries=alike[0])


def _are_near(module: str, other: str) -> bool:
    """True if two modules belong to one layer: their paths differ in the last two names at most."""
    names, others = module.split("."), other.split(".")
    shared = max(len(others) - 2, min(len(others) - 1, 1))
    return names[:shared] == others[:shared]
