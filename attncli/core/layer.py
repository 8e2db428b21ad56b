"""One attention layer: its visibility, the rules of its scores, and the inputs and results of engines."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import local
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from attncli.core.formulas import Places, Plane, load_formula
from attncli.core.names import PATTERNS


def split_heads(
    vectors: Float[Tensor, "*batch token embed"], num_heads: int
) -> Float[Tensor, "*batch head token dim"]:
    """Split embed = head * dim into heads, and move the head axis before the tokens.

    Returns a view: only strides change.
    """
    *batch, embed_dim = vectors.shape
    return vectors.view(*batch, num_heads, embed_dim // num_heads).transpose(-2, -3)


def merge_heads(heads: Float[Tensor, "*batch head token dim"]) -> Float[Tensor, "*batch token embed"]:
    """Merge the heads of each token: move the head axis behind the tokens, then flatten heads and dims.

    Flattening (head, token, dim) directly would give the right shape but mix the tokens.
    """
    return heads.transpose(-2, -3).flatten(-2)


def repeat_heads(
    kv_heads: Float[Tensor, "*batch kv_head token dim"], num_heads: int
) -> Float[Tensor, "*batch head token dim"]:
    """Repeat each key/value head for the num_heads / kv_heads consecutive query heads that it serves.

    Grouped-query attention, Ainslie et al. 2023 (2305.13245); with one key/value head, multi-query attention,
    Shazeer 2019 (1911.02150).
    """
    return kv_heads.repeat_interleave(num_heads // kv_heads.shape[-3], dim=-3)


Queries = Int[Tensor, " query"]
Keys = Int[Tensor, " key"]


MAX_CACHED_QUERIES = 1024
"""The number of queries up to which each block's visible keys are cached: all layers use these keys."""


@dataclass(frozen=True)
class SeenKeys:
    """A run of keys visible to some queries; some of these queries do not see the `masked` columns.

    `hidden` is added to scores: -inf or 0, or None if all keys are visible. `visible` is the number of keys
    that each query sees; `blind` marks queries that see no key, or is None if every query sees one.
    """

    keys: slice
    masked: slice
    hidden: Float[Tensor, "#text 1 query masked"] | None
    visible: Int[Tensor, "#text 1 query"]
    blind: Bool[Tensor, "#text 1 query"] | None
    positions: Queries
    columns: Keys
    shared: dict[str, Any] = field(default_factory=dict)
    """Values that formulas computed only from these positions."""


@dataclass(frozen=True)
class Visibility:
    """Query i, at position t, sees key j if every active rule agrees.

    t = i; if causal, t = i + num_keys - num_queries, so that the last query stands at the last key; with an
    offset, t = i + offset. causal: j <= t. window: |t - j| < window. key_mask: True for j (padding is False),
    for all texts at once or for each text. rule: any other rule, a function of the indices of queries and
    keys.
    """

    num_queries: int
    num_keys: int
    causal: bool = False
    window: int | None = None
    key_mask: Bool[Tensor, "#text key"] | None = None
    rule: Callable[[Queries, Keys], Bool[Tensor, "#text query key"]] | None = None
    offset: int | None = None

    @property
    def shift(self) -> int:
        """The position of the first query among the keys."""
        if self.offset is not None:
            return self.offset
        return self.num_keys - self.num_queries if self.causal else 0

    @property
    def is_seeing(self) -> bool:
        """True if it is certain, without computing the mask, that every query sees a key."""
        return self.key_mask is None and self.rule is None and self.num_keys >= self.num_queries

    def block(self, queries: Queries, keys: Keys) -> Bool[Tensor, "#text query key"]:
        """True where these queries see these keys, for all texts at once or for each text."""
        behind = queries.unsqueeze(-1) + self.shift - keys
        visible = torch.ones_like(behind, dtype=torch.bool)
        if self.causal:
            visible &= behind >= 0
        if self.window is not None:
            visible &= behind.abs() < self.window
        visible = visible.unsqueeze(0)
        if self.key_mask is not None:
            visible = visible & self.key_mask[:, keys].unsqueeze(1)
        if self.rule is not None:
            visible = visible & self.rule(queries, keys)
        return visible

    def whole(self, device: torch.device) -> Bool[Tensor, "#text query key"]:
        """The matrix for all queries and all keys."""
        queries, keys = (torch.arange(count, device=device) for count in (self.num_queries, self.num_keys))
        return self.block(queries, keys)

    def span(self, queries: slice) -> tuple[slice, slice]:
        """The keys that some of these queries may see, and the subset that is hidden from some of them.

        Keys after the last query (if causal) and before the first query's window cost nothing.
        """
        first, last = queries.start + self.shift, queries.stop - 1 + self.shift
        begin, end = 0, self.num_keys
        if self.window is not None:
            begin, end = max(begin, first - self.window + 1), min(end, last + self.window)
        if self.causal:
            end = min(end, last + 1)
        begin = min(begin, self.num_keys - 1)
        keys = slice(begin, max(end, begin + 1))
        if self.window is not None or self.key_mask is not None or self.rule is not None:
            return keys, keys
        masked = slice(max(begin, first + 1), keys.stop) if self.causal else slice(0, 0)
        return keys, masked

    @cached_property
    def _cache(self) -> dict[tuple[int, int, torch.dtype, torch.device], SeenKeys]:
        return {}

    def seen_keys(self, queries: slice, like: Tensor) -> SeenKeys:
        """The keys that these queries see, for scores of this dtype."""
        place = (queries.start, queries.stop, like.dtype, like.device)
        seen = self._cache.get(place)
        if seen is None:
            seen = self._seen_keys(queries, like)
            if self.num_queries <= MAX_CACHED_QUERIES:
                self._cache[place] = seen
        return seen

    def _seen_keys(self, queries: slice, like: Tensor) -> SeenKeys:
        keys, masked = self.span(queries)
        positions = self.positions(queries, like.device)
        columns = torch.arange(keys.start, keys.stop, device=like.device)
        always = keys.stop - keys.start - max(0, masked.stop - masked.start)
        visible = torch.full_like(positions, always)[None, None]
        hidden = blind = None
        if masked.start < masked.stop:
            seen = self.block(
                positions - self.shift, torch.arange(masked.start, masked.stop, device=like.device)
            )
            hidden = like.new_zeros(seen.shape).masked_fill(~seen, -torch.inf).unsqueeze(1)
            visible = always + seen.sum(dim=-1).unsqueeze(1)
            blind = visible == 0 if (visible == 0).any() else None
        masked_columns = slice(masked.start - keys.start, masked.stop - keys.start)
        return SeenKeys(keys, masked_columns, hidden, visible, blind, positions, columns)

    def positions(self, queries: slice, device: torch.device) -> Queries:
        """The positions of these queries among the keys."""
        return torch.arange(queries.start + self.shift, queries.stop + self.shift, device=device)

    def __getitem__(self, index: tuple[slice, ...]) -> "Visibility":
        """Return the visibility of the last queries only, sliced like a mask (text, head, query, key).

        Some layers of Gemma 4 use only a prompt's last query. Raises NotImplementedError for other slices.
        """
        first, *bounds = index[2].indices(self.num_queries)
        if (*index[:2], *index[3:]) != (slice(None),) * 3 or bounds != [self.num_queries, 1]:
            raise NotImplementedError(f"the slice {index} of a mask")
        if first == 0:
            return self
        if self.causal and self.rule is None and self.offset is None:
            return replace(self, num_queries=self.num_queries - first)
        return Visibility(
            self.num_queries - first,
            self.num_keys,
            rule=lambda queries, keys: self.block(queries + first, keys),
            offset=self.shift + first,
        )

    def for_texts(self, texts: slice) -> "Visibility":
        """Return the visibility of some of the texts."""
        has_text_masks = self.key_mask is not None and len(self.key_mask) > 1
        if not has_text_masks and self.rule is None:
            return self
        mask = self.key_mask[texts] if has_text_masks and self.key_mask is not None else self.key_mask
        return replace(
            self, key_mask=mask, rule=None if self.rule is None else _RuleOfTexts(self.rule, texts)
        )


@dataclass(frozen=True)
class _RuleOfTexts:
    """A rule restricted to some of the texts, if the rule differs between texts."""

    rule: Callable[[Queries, Keys], Bool[Tensor, "#text query key"]]
    texts: slice

    def __call__(self, queries: Queries, keys: Keys) -> Bool[Tensor, "#some query key"]:
        visible = self.rule(queries, keys)
        return visible if len(visible) == 1 else visible[self.texts]


def scale_factors(scale: str | float, head_dim: int) -> tuple[float, float]:
    """The factor applied to query and key individually, and the factor applied to their product.

    sqrt: 1/sqrt(head_dim) on the product; fourth-root: head_dim^-1/4 on each, which gives the same value with
    smaller intermediates; none; or a number, applied to the product. Vaswani et al. 2017 (1706.03762),
    section 3.2.1.
    """
    if isinstance(scale, str):
        return {
            "sqrt": (1.0, head_dim**-0.5),
            "fourth-root": (head_dim**-0.25, 1.0),
            "none": (1.0, 1.0),
        }[scale]
    return 1.0, scale


def score_factor(scale: str | float, head_dim: int) -> float:
    """The total factor on a score, whether it is applied to query and key or to their product."""
    each, product = scale_factors(scale, head_dim)
    return each * each * product


@dataclass(frozen=True)
class ScoreRules:
    """score = (softcap(scale query . key) + bias) / temperature; a sink joins the softmax's denominator.

    softcap c: c tanh(score / c), which hardly changes small scores and never exceeds the cap (Gemma 2,
    2408.00118, section 2; after Bello et al. 2016, 1611.09940). Temperature divides every input of the
    softmax, the sink included: as it approaches 0, a row becomes one-hot (or empty), and as it approaches
    infinity, uniform (Hinton, Vinyals & Dean 2015, 1503.02531, section 2). sink: a logit outside the keys, so
    that a query may attend to nothing (GPT-OSS, 2508.10925; after Miller 2023, Attention is off by one, and
    Xiao et al. 2023, 2309.17453).
    """

    softcap: float | None = None
    bias: Float[Tensor, "#text #head #query #key"] | None = None
    temperature: float = 1.0
    sink: Float[Tensor, "#text #head"] | None = None

    @property
    def is_plain(self) -> bool:
        """True if the softmax takes the scaled scores directly, apart from the temperature."""
        return self.softcap is None and self.bias is None

    @property
    def softmax_sink(self) -> Float[Tensor, "#text #head"] | None:
        """The sink's logit, divided by the temperature."""
        return None if self.sink is None else self.sink / self.temperature


PLAIN = ScoreRules()


@dataclass(frozen=True, repr=False)
class AttentionLayer:
    """The queries, keys and values of the heads of some texts, with the rules of their scores.

    Keys and values are not expanded: each key/value head serves `group` consecutive query heads
    (grouped-query attention).
    """

    query: Float[Tensor, "text head query dim"]
    key: Float[Tensor, "text kv_head key dim"]
    value: Float[Tensor, "text kv_head key value_dim"]
    visibility: Visibility
    scale: float
    rules: ScoreRules = PLAIN

    def __repr__(self) -> str:
        return f"<AttentionLayer {' x '.join(map(str, self.shape))}, scale {self.scale:.4g}>"

    @property
    def num_heads(self) -> int:
        """The number of query heads."""
        return self.query.shape[1]

    @property
    def group(self) -> int:
        """The number of query heads that share a key/value head."""
        return self.query.shape[1] // self.key.shape[1]

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """The numbers of texts, heads, queries and keys."""
        return (*self.query.shape[:3], self.key.shape[2])

    @cached_property
    def like(self) -> Tensor:
        """Create an empty tensor with the dtype and device of the computation."""
        return self.query.new_empty(0, dtype=torch.promote_types(self.query.dtype, torch.float32))

    @cached_property
    def longest_query(self) -> float:
        """The Euclidean length of the longest query."""
        return longest_row(self.query)

    @cached_property
    def longest_key(self) -> float:
        """The Euclidean length of the longest key; its product with `longest_query` bounds the scores."""
        return longest_row(self.key)

    def expanded(self) -> tuple[Tensor, Tensor]:
        """Keys and values, repeated to match the number of query heads."""
        return repeat_heads(self.key, self.num_heads), repeat_heads(self.value, self.num_heads)


def longest_row(rows: Float[Tensor, "*batch row dim"]) -> float:
    """The largest Euclidean length of a row; not finite if any entry is not finite; 0 without rows."""
    lengths = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.promote_types(rows.dtype, torch.float32))
    return float(lengths.max()) if lengths.numel() else 0.0


MAX_CACHED_ENTRIES = 2**21
"""The number of pattern entries cached from layer to layer: 8 MB, for texts of about 600 tokens."""

MAX_CACHED_GRID_ENTRIES = 2**23
"""The number of cached entries for grids, which have few patterns: 34 MB, for 1,370 tokens."""


class Marks(NamedTuple):
    """Tokens marked in some texts: special tokens, and the requested queries and keys.

    If queries and keys belong to different texts, the shorter text is padded with marks that match nothing.
    """

    special: Bool[Tensor, "text token"]
    from_queries: Bool[Tensor, "text token"]
    to_keys: Bool[Tensor, "text token"]


FEW_ENTRIES = 4096
"""Entries per head and tile up to which a matrix product costs more to start than to compute."""


@dataclass(frozen=True)
class Patterns:
    """Named patterns on texts of equal length, with `ids` as both queries and keys.

    `plane` has the position of each token on a grid (see `Rows`), and `seconds` its start time; both are
    equal for all texts. If `looks_ahead`, queries also see later keys, and other rows count.
    """

    names: tuple[str, ...]
    ids: Int[Tensor, "text token"]
    marks: Marks
    first_key: int = 0
    repeat: int = 0
    plane: Plane | None = None
    seconds: Float[Tensor, " token"] | None = None
    looks_ahead: bool = True

    @cached_property
    def _cache(self) -> dict[tuple[int, ...], Tensor]:
        return {}

    def block(self, texts: slice, queries: slice, keys: slice) -> Float[Tensor, "text pattern query key"]:
        """1 where a key counts for a query, otherwise 0, for each text and pattern."""
        place = (texts.start, texts.stop, queries.start, queries.stop, keys.start, keys.stop)
        most = MAX_CACHED_ENTRIES if self.plane is None else MAX_CACHED_GRID_ENTRIES
        is_short = self.ids.numel() * self.ids.shape[1] * len(self.names) <= most
        cache: dict[tuple[int, ...], Tensor] = (
            self._cache if is_short else vars(self._last).setdefault("cache", {})
        )
        block = cache.get(place)
        if block is None:
            masks = self._masks(texts, queries, keys)
            block = torch.stack(
                [mask.expand(texts.stop - texts.start, -1, -1) for mask in masks], dim=1
            ).float()
            if not is_short:
                cache.clear()
            cache[place] = block
        return block

    def mass(
        self,
        weights: Float[Tensor, "text head query key"],
        texts: slice,
        queries: slice,
        keys: slice,
    ) -> Float[Tensor, "text head pattern"]:
        """The sum of the weights on each pattern, in a tile of these queries and keys."""
        patterns = self.block(texts, queries, keys).to(weights.dtype)
        flat = weights.flatten(-2)
        if len(flat) > 1:
            return flat @ patterns.flatten(-2).mT
        if flat.shape[-1] > FEW_ENTRIES:  # one at a time: a product with few columns is slower
            return torch.stack([flat @ pattern for pattern in patterns[0].flatten(-2)], dim=-1)
        # Not a matrix product, which would have to wake up threads.
        return (flat.unsqueeze(1) * patterns.flatten(-2).unsqueeze(2)).sum(dim=-1).mT

    @cached_property
    def _last(self) -> local:
        """Each thread's last block, which the other heads of the same queries need next."""
        return local()

    def _masks(self, texts: slice, queries: slice, keys: slice) -> list[Shaped[Tensor, "#text query key"]]:
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
            None if self.plane is None else self.plane.places[queries].unsqueeze(1),
            None if self.plane is None else self.plane.places[keys],
            None if self.seconds is None else self.seconds[queries].unsqueeze(1),
            None if self.seconds is None else self.seconds[keys],
        )
        shape = (queries.stop - queries.start, keys.stop - keys.start)
        masks = (load_formula(PATTERNS[name])(at) for name in self.names)
        return [mask.expand(*mask.shape[:-2], *shape).reshape(-1, *shape) for mask in masks]

    @cached_property
    def rows(self) -> Bool[Tensor, "text pattern query"]:
        """The rows in which a pattern is not empty."""
        num_texts, num_tokens = self.ids.shape
        step = max(1, MAX_CACHED_ENTRIES // (self.ids.numel() * len(self.names)))
        has_pattern = []
        for start in range(0, num_tokens, step):
            queries = slice(start, min(start + step, num_tokens))
            masks = self._masks(slice(0, num_texts), queries, slice(0, num_tokens))
            has_pattern.append(torch.stack([mask.any(dim=-1).expand(num_texts, -1) for mask in masks], dim=1))
        return torch.cat(has_pattern, dim=-1)


MAP_SIZE = 64
"""The number of blocks along each side of a pooled map."""


@dataclass(frozen=True)
class Wanted:
    """The results to compute in addition to the logsumexp and the sum of each row.

    `rows` are names of row statistics, `previous_token` is the weight on the key before each query, `weights`
    and `scores` are whole matrices, `kept_heads` the heads whose weights are returned, and `pooled` the
    largest number of blocks along each side of a pooled map. If there is a `plane`, distances are measured on
    its grid. `rest` is another `Wanted`, for the rows renormalised without their first key.
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
    plane: Plane | None = None
    rest: "Wanted | None" = None


@dataclass(frozen=True)
class Moments:
    """The mean, unbiased variance and range of each head's visible scores, in float64.

    NaN if no entry is visible; the variance is NaN for a single entry, too.
    """

    mean: Float[Tensor, "text head"]
    variance: Float[Tensor, "text head"]
    smallest: Float[Tensor, "text head"]
    largest: Float[Tensor, "text head"]


@dataclass(frozen=True)
class Computed:
    """The requested results; all other fields are None or empty.

    `raw_scores` are query . key; `scores` are the input of the softmax, -inf where hidden. `top_keys` are -1
    and `top_weights` NaN beyond the visible keys. `pattern_mass` is a sum over the rows. `rest` has the
    results for the rows without their first key; its `nothing_left` marks rows that see keys but have no
    weight on these keys, or is None if there are no such rows.
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
    rest: "Computed | None" = None
    nothing_left: Bool[Tensor, "text head query"] | None = None

    @property
    def seeing(self) -> Bool[Tensor, "text query"]:
        """True for the queries that see at least one key."""
        assert self.visible is not None
        return self.visible > 0

    def for_heads(self, heads: slice) -> "Computed":
        """Return the results of some heads, without the results that cover all heads."""

        def part(value: Any) -> Any:
            if isinstance(value, Computed):
                return value.for_heads(heads)
            if isinstance(value, dict):
                return {name: row[:, heads] for name, row in value.items()}
            return None if value is None else value[:, heads]

        all_heads = ("visible", "head_mean", "kept_weights", "moments")
        parts = {name: part(value) for name, value in vars(self).items() if name not in all_heads}
        return Computed(**parts, visible=self.visible)
