"""What an engine is asked for, and what it gives; detection patterns as matrices of 0 and 1."""

from dataclasses import dataclass, field
from functools import cached_property
from threading import local
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.formulas import Places, load_formula
from attncli.core.row_statistics import PATTERNS

MAX_KEPT_ENTRIES = 2**21
"""Entries of patterns that stay from layer to layer: 8 MB, texts of some 600 tokens."""


class Marks(NamedTuple):
    """Places of some texts: keys that are special tokens, and the queries and keys that were asked for.

    Where the two sides are different texts, the shorter one is padded with places that are none of these.
    """

    special: Bool[Tensor, "text token"]
    from_queries: Bool[Tensor, "text token"]
    to_keys: Bool[Tensor, "text token"]


@dataclass(frozen=True)
class Patterns:
    """The patterns of these names on some texts of one length, `ids` on both sides."""

    names: tuple[str, ...]
    ids: Int[Tensor, "text token"]
    marks: Marks
    first_key: int = 0
    repeat: int = 0

    @cached_property
    def _kept(self) -> dict[tuple[int, ...], Tensor]:
        return {}

    def block(self, texts: slice, queries: slice, keys: slice) -> Float[Tensor, "text pattern query key"]:
        """For each text and pattern 1 where a key counts for a query, else 0."""
        place = (texts.start, texts.stop, queries.start, queries.stop, keys.start, keys.stop)
        is_short = self.ids.numel() * self.ids.shape[1] * len(self.names) <= MAX_KEPT_ENTRIES
        kept: dict[tuple[int, ...], Tensor] = (
            self._kept if is_short else vars(self._last).setdefault("kept", {})
        )
        block = kept.get(place)
        if block is None:
            masks = self._masks(texts, queries, keys)
            block = torch.stack(
                [mask.expand(texts.stop - texts.start, -1, -1) for mask in masks], dim=1
            ).float()
            if not is_short:
                kept.clear()
            kept[place] = block
        return block

    @cached_property
    def _last(self) -> local:
        """The last block of each thread: the other heads of these queries come next."""
        return local()

    def _masks(self, texts: slice, queries: slice, keys: slice) -> list[Bool[Tensor, "#text query key"]]:
        ids, marks = self.ids[texts], self.marks
        num_tokens = ids.shape[1]
        ids_before = torch.nn.functional.pad(ids[:, :-1], (1, 0), value=-1)
        at = Places(
            torch.arange(queries.start, queries.stop, device=ids.device).unsqueeze(1),
            torch.arange(keys.start, keys.stop, device=ids.device),
            ids[:, queries, None],
            ids[:, None, keys],
            ids_before[:, None, keys],
            marks.special[texts, None, keys],
            marks.from_queries[texts, queries, None],
            marks.to_keys[texts, None, keys],
            self.first_key,
            num_tokens,
            self.repeat,
        )
        shape = (queries.stop - queries.start, keys.stop - keys.start)
        masks = (load_formula(PATTERNS[name])(at) for name in self.names)
        return [mask.expand(*mask.shape[:-2], *shape).reshape(-1, *shape) for mask in masks]

    @cached_property
    def rows(self) -> Bool[Tensor, "text pattern query"]:
        """The rows in which a pattern is not empty."""
        num_texts, num_tokens = self.ids.shape
        step = max(1, MAX_KEPT_ENTRIES // (self.ids.numel() * len(self.names)))
        found = []
        for start in range(0, num_tokens, step):
            queries = slice(start, min(start + step, num_tokens))
            masks = self._masks(slice(0, num_texts), queries, slice(0, num_tokens))
            found.append(torch.stack([mask.any(dim=-1).expand(num_texts, -1) for mask in masks], dim=1))
        return torch.cat(found, dim=-1)


MAP_SIZE = 64
"""Blocks along each side of a pooled map."""


@dataclass(frozen=True)
class Wanted:
    """What to compute beside the logsumexp and the sum of each row.

    `rows` are names of row statistics, `previous_token` asks for the weight on the key before each query,
    `weights` and `scores` ask for whole matrices, `kept_heads` for the weights of some heads, `pooled` for
    maps of at most that many blocks along each side.
    """

    rows: tuple[str, ...] = ()
    top_k: int = 0
    previous_token: bool = False
    output: bool = False
    weights: bool = False
    scores: bool = False
    kept_heads: tuple[int, ...] = ()
    head_mean: bool = False
    score_moments: bool = False
    received_mass: bool = False
    pooled: int | None = None
    patterns: Patterns | None = None


@dataclass(frozen=True)
class Moments:
    """Mean, unbiased variance and range of the scores over the visible entries of each head, in float64.

    NaN where there are none, the variance below two of them.
    """

    mean: Float[Tensor, "text head"]
    variance: Float[Tensor, "text head"]
    smallest: Float[Tensor, "text head"]
    largest: Float[Tensor, "text head"]


@dataclass(frozen=True)
class Computed:
    """What was asked for; the rest is None or empty. A query that sees no key has NaN in `rows`.

    `raw_scores` are query . key, `scores` as the softmax takes them, hidden ones -inf. `top_keys` are -1 and
    `top_weights` NaN beyond the visible keys. `pattern_mass` is a sum over the rows.
    """

    rows: dict[str, Float[Tensor, "text head query"]] = field(default_factory=dict)
    sums: Float[Tensor, "text head query"] | None = None
    logsumexp: Float[Tensor, "text head query"] | None = None
    visible: Int[Tensor, "text query"] | None = None
    previous_token: Float[Tensor, "text head query"] | None = None
    top_keys: Int[Tensor, "text head query rank"] | None = None
    top_weights: Float[Tensor, "text head query rank"] | None = None
    output: Float[Tensor, "text head query value_dim"] | None = None
    weights: Float[Tensor, "text head query key"] | None = None
    raw_scores: Float[Tensor, "text head query key"] | None = None
    scores: Float[Tensor, "text head query key"] | None = None
    kept_weights: Float[Tensor, "text kept query key"] | None = None
    head_mean: Float[Tensor, "text query key"] | None = None
    moments: Moments | None = None
    received_mass: Float[Tensor, "text head key"] | None = None
    pooled_mean: Float[Tensor, "text head query_block key_block"] | None = None
    pooled_max: Float[Tensor, "text head query_block key_block"] | None = None
    pattern_mass: Float[Tensor, "text head pattern"] | None = None

    @property
    def seeing(self) -> Bool[Tensor, "text query"]:
        """The queries that see a key."""
        assert self.visible is not None
        return self.visible > 0
