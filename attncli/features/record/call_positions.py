"""The positions of a call that are not padding; self-attention shows which queries of cross-attention are."""

import torch
from jaxtyping import Bool
from torch import Tensor

from attncli.core.row_tiles import LayerOrWeights
from attncli.features.record.listening.heard_calls import HeardCall
from attncli.features.record.padding import RealPositions, first_query_place, real_positions


class CallPositions:
    """Remembers which queries of self-attention are real, for the cross-attention of the same layer."""

    def __init__(self) -> None:
        self._queries_there: dict[str, tuple[int, Bool[Tensor, "text query"]]] = {}

    def positions(self, call: HeardCall, layer: LayerOrWeights) -> RealPositions:
        """Return the positions of each text that are not padding.

        In cross-attention the queries are those of the self-attention in the same layer.
        """
        num_texts, _, num_queries, _ = layer.shape
        if call.kind == "self":
            first_query = first_query_place(layer) if call.first_query is None else call.first_query
            positions = real_positions(layer, first_query=first_query)
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
        positions = real_positions(layer, first_query=None)
        # Among several candidates, prefer those that are not the positions of the keys.
        alike = [queries for queries in alike if not torch.equal(queries, positions.keys)] or alike
        if not alike:
            return positions
        if any(not torch.equal(queries, alike[0]) for queries in alike):
            return positions._replace(is_unclear=True)
        return positions._replace(queries=alike[0])


def _are_near(module: str, cross_module: str) -> bool:
    """Return True if two modules belong to one layer: their paths may differ only in the last two names."""
    names, cross_names = module.split("."), cross_module.split(".")
    shared = max(len(cross_names) - 2, min(len(cross_names) - 1, 1))
    return names[:shared] == cross_names[:shared]
