"""Formulas and their sources: statistics of rows, keys and heads, and the patterns of heads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.names import ROW_STATISTICS, cache_ends
from attncli.feature import BrokenPlugin, load_usable_place, plugin_of


class RestOfSoftmax(NamedTuple):
    """The softmax without the first column.

    It holds the sum of the other weights and, for these weights divided by their sum, the logarithm of the
    total and sum p exponent, where the largest exponent is 0.
    """

    sums: Float[Tensor, "*batch query"]
    log_totals: Float[Tensor, "*batch query"]
    cross: Float[Tensor, "*batch query"]


@dataclass(frozen=True)
class Softmax:
    """The softmax of rows: each weight is p = exp(exponent - log_total); a row's largest exponent is 0.

    `sums` is the sum of each row's weights. Either `exponents` is present, or the sums that the compiled pass
    computed from them: `cross` = sum p exponent, `distance` = sum p |i - j|, `local` for `local_mass`, and
    `rest` for the rows without the first column. `participation`, 1 / sum p^2 in float64, is present after
    the compiled pass and with a sink, since p may be too small to be squared there.
    """

    log_totals: Float[Tensor, "*batch query"]
    sums: Float[Tensor, "*batch query"]
    exponents: Float[Tensor, "*batch query key"] | None = None
    cross: Float[Tensor, "*batch query"] | None = None
    participation: Float[Tensor, "*batch query"] | None = None
    distance: Float[Tensor, "*batch query"] | None = None
    local: Float[Tensor, "*batch query"] | None = None
    rest: RestOfSoftmax | None = None

    def normalised(self, weights: Float[Tensor, "*batch query key"], *, has_first: bool) -> RestOfSoftmax:
        """Return the softmax of the weights divided by their sum, without the first key if `has_first`."""
        if has_first and self.rest is not None:
            return self.rest
        if self.exponents is None:
            assert self.cross is not None
            return RestOfSoftmax(self.sums, self.log_totals + self.sums.log(), self.cross / self.sums)
        normal, exponents = (numbers[..., int(has_first) :] for numbers in (weights, self.exponents))
        if not normal.shape[-1]:
            nothing = torch.zeros_like(self.sums)
            return RestOfSoftmax(nothing, nothing, nothing)
        sums, largest = normal.sum(dim=-1), exponents.amax(dim=-1)
        cross = torch.linalg.vecdot(normal, exponents - largest.unsqueeze(-1)) / sums
        return RestOfSoftmax(sums, sums.log() + self.log_totals - largest, cross)


@dataclass(frozen=True, eq=False)
class Plane:
    """The row and column of every token on a grid; NaN for a token outside the grid."""

    places: Float[Tensor, "token 2"]

    @cached_property
    def lies(self) -> Float[Tensor, " token"]:
        """1 for a token on the grid, otherwise 0."""
        return self.places.isfinite().all(dim=-1).to(self.places.dtype)

    @cached_property
    def apart(self) -> Float[Tensor, "token token"]:
        """sqrt(rows^2 + columns^2) between two tokens; 0 if either lies outside the grid."""
        places = self.places.nan_to_num(0.0)
        return (
            torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
            * self.lies
            * self.lies.unsqueeze(1)
        )


@dataclass(frozen=True)
class Rows:
    """Rows of the weights p of some queries on a run of adjacent keys; keys outside the run have weight 0.

    `queries` and `keys` are positions, `visible` is the number of keys that each query may see. `softmax` is
    present if the weights were computed from scores; if not, weights may be negative. `num_keys` counts all
    keys if the run covers only some of them; `max_scores` is the largest score of each row, if the scores are
    known. `plane` holds the places of the tokens on a grid.
    """

    weights: Float[Tensor, "*batch query key"]
    visible: Int[Tensor, "*#batch query"]
    queries: Int[Tensor, " query"]
    keys: Int[Tensor, " key"]
    softmax: Softmax | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    """Values that depend only on positions, shared with rows at the same positions in other layers."""
    num_keys: int | None = None
    max_scores: Float[Tensor, "*batch query"] | None = None
    plane: Plane | None = None

    @cached_property
    def sums(self) -> Float[Tensor, "*batch query"]:
        """sum p: 1, or less if a sink outside the keys takes a share."""
        return self.weights.sum(dim=-1) if self.softmax is None else self.softmax.sums

    @cached_property
    def entropy(self) -> Float[Tensor, "*batch query"]:
        """-sum p ln p.

        With a softmax it is computed as log_total sum p - sum p exponent, in which nothing cancels.
        """
        if self.softmax is None:
            entropies: Tensor = torch.special.entr(self.weights).sum(dim=-1)
            return entropies.masked_fill(entropies.isinf(), torch.nan)  # undefined for negative weights
        cross = self.softmax.cross
        if cross is None:
            cross = torch.linalg.vecdot(self.weights, self.softmax.exponents)
        return self.sums * self.softmax.log_totals - cross

    def on_key(self, position: int) -> Float[Tensor, "*batch query"]:
        """The weight on one key."""
        place = position - self._shared("first_key", lambda: int(self.keys[0]))
        if not 0 <= place < len(self.keys):
            return torch.zeros_like(self.weights[..., 0])
        return self.weights[..., place]

    def distances(self) -> Float[Tensor, "query key"]:
        """|i - j|, in tokens."""
        distances: Tensor = self._shared(
            "distances", lambda: (self.queries.unsqueeze(-1) - self.keys).abs().to(self.weights.dtype)
        )
        return distances

    def near_ends(self) -> Float[Tensor, "query key"]:
        """1 if a key is among the first keys or near the query (see `cache_ends`), otherwise 0."""

        def near() -> Tensor:
            ends = cache_ends(len(self.keys) if self.num_keys is None else self.num_keys)
            return ((self.keys < ends.sink) | (self.distances() < ends.window)).to(self.weights.dtype)

        mask: Tensor = self._shared("near_ends", near)
        return mask

    def max_entropy(self) -> Float[Tensor, "*#batch query"]:
        """ln(number of visible keys), the entropy of a uniform row; NaN for fewer than two visible keys."""
        entropies: Tensor = self._shared(
            "max_entropy",
            lambda: self.visible.to(self.weights.dtype).log().masked_fill(self.visible < 2, torch.nan),
        )
        return entropies

    def _shared(self, name: str, compute: Callable[[], Any]) -> Any:
        if name not in self.shared:
            self.shared[name] = compute()
        return self.shared[name]


@cache
def load_formula(place: str) -> Callable[..., Any]:
    """Return the function at a place, or `no_number` for a plugin's function that cannot be imported.

    Errors in a plugin's function are raised as BrokenPlugin, with the name of the statistic.
    """
    function: Callable[..., Any] = load_usable_place(place) or no_number
    return function if function is no_number or plugin_of(place) is None else _plugin_formula(place, function)


@cache
def _plugin_formula(place: str, function: Callable[[Rows], Any]) -> Callable[[Rows], Tensor]:
    name = next(name for name, statistic in ROW_STATISTICS.items() if statistic.formula == place)

    def formula(rows: Rows) -> Tensor:
        shape = rows.weights.shape[:-1]
        try:
            numbers = function(rows)
            if not isinstance(numbers, Tensor) or numbers.shape != shape:
                got = f"shape {(*numbers.shape,)}" if isinstance(numbers, Tensor) else type(numbers).__name__
                raise TypeError(f"must return a tensor of shape {(*shape,)}, one number per row (got {got})")
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # third-party code may fail in any way
            why = ascii(f"{type(error).__name__}: {error}")[1:-1]
            line = f"plugin {plugin_of(place)}: statistic {name}: {why} (use --debug to see where)"
            raise BrokenPlugin(line) from error
        return numbers

    return formula


def no_number(rows: Rows) -> Float[Tensor, "*batch query"]:
    """Return NaN for every row."""
    return torch.full_like(max_weight(rows), torch.nan)


def entropy(rows: Rows) -> Float[Tensor, "*batch query"]:
    """-sum p ln p, in nats, with 0 ln 0 = 0. Shannon 1948; for attention: Clark et al. 2019 (1906.04341)."""
    return rows.entropy


def normalized_entropy(rows: Rows) -> Float[Tensor, "*batch query"]:
    """Entropy divided by ln(number of visible keys): 1 for a uniform row; NaN if only one key is visible."""
    return rows.entropy / rows.max_entropy()


def max_weight(rows: Rows) -> Float[Tensor, "*batch query"]:
    """max p, the largest weight of a row."""
    if rows.softmax is None:
        return rows.weights.amax(dim=-1)
    return (-rows.softmax.log_totals).exp()


def sink_mass(rows: Rows) -> Float[Tensor, "*batch query"]:
    """The weight on the first key. Xiao et al. 2023 (2309.17453): attention sinks."""
    return rows.on_key(0)


def distance(rows: Rows) -> Float[Tensor, "*batch query"]:
    """sum p |i - j|, the mean distance from query i to the keys, in tokens. Vig & Belinkov 2019 (1906.04284).

    On a grid it is sum p d / sum p over the keys on the grid, where d is the distance between places in grid
    steps; NaN for a query outside the grid. Dosovitskiy et al. 2020 (2010.11929), figure 7.
    """
    if (plane := rows.plane) is not None:
        queries, keys = (slice(int(run[0]), int(run[-1]) + 1) for run in (rows.queries, rows.keys))
        apart = plane.apart.to(rows.weights.dtype)[queries, keys].expand_as(rows.weights)
        mass = rows.weights @ plane.lies.to(rows.weights.dtype)[keys]
        total: Tensor = torch.linalg.vecdot(rows.weights, apart)
        return (total / mass).masked_fill(plane.lies[queries] == 0, torch.nan)
    if rows.softmax is not None and rows.softmax.distance is not None:
        return rows.softmax.distance
    return (rows.weights * rows.distances()).sum(dim=-1)


def participation(rows: Rows) -> Float[Tensor, "*batch query"]:
    """1 / sum p^2: the number of keys that would share the weight evenly (inverse participation ratio).

    Always in float64, since a sink that leaves p = 1e-20 to the keys makes the result 1e40.
    """
    if rows.softmax is not None and rows.softmax.participation is not None:
        return rows.softmax.participation
    length: Tensor = torch.linalg.vector_norm(rows.weights, dim=-1, dtype=torch.float64)
    return length.square().reciprocal()


def local_mass(rows: Rows) -> Float[Tensor, "*batch query"]:
    """sum p over all j with j < S or |i - j| < W: the weight on the first keys and on the nearest keys.

    This is the weight that remains if a cache holds only these keys; `cache_ends` returns S and W. Xiao et
    al. 2023 (2309.17453), section 3.2.
    """
    if rows.softmax is not None and rows.softmax.local is not None:
        return rows.softmax.local
    mass: Tensor = torch.linalg.vecdot(rows.weights, rows.near_ends().expand_as(rows.weights))
    return mass


def max_score(rows: Rows) -> Float[Tensor, "*batch query"]:
    """The largest score of a row, as passed to the softmax; NaN for weights from another tool.

    QK-clip rescales the weights of a head whose largest score exceeds a threshold. Kimi K2 (2507.20534),
    section 2.1.
    """
    if rows.max_scores is None:
        return torch.full_like(rows.weights[..., 0], torch.nan)
    return rows.max_scores


def softmax_gradient_norm(weights: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch"]:
    """Frobenius norm of the softmax Jacobian diag(p) - p p^T: sqrt(S2 - 2 S3 + S2^2) with Sn = sum p^n.

    It vanishes as the row saturates to one-hot, which is why Vaswani et al. 2017 scale the scores (section
    3.2.1). It is computed as a sum over the Jacobian's entries, which loses no digits in such rows.
    """
    diagonal = weights * (1 - weights)
    off_diagonal = weights.unsqueeze(-1) * weights.unsqueeze(-2)
    off_diagonal = off_diagonal - off_diagonal.diagonal(dim1=-2, dim2=-1).diag_embed()
    return (diagonal.square().sum(dim=-1) + off_diagonal.square().sum(dim=(-2, -1))).sqrt()


KEYS_PER_RANK = 64
"""The number of keys per rank below which torch.topk partitions rows and is slower than repeated maxima."""
ROUNDINGS = 16
"""The largest difference between two scores that counts as rounding, in floating-point spacings."""


def top_keys(
    ranking: Float[Tensor, "*batch query key"], k: int, *, unit: float
) -> Int[Tensor, "*batch query rank"]:
    """Find the places of the k largest entries of each row, largest first and, among equals, earliest first.

    Entries are equal if they differ by at most ROUNDINGS floating-point spacings at the larger entry, or at
    `unit` if that is larger. -inf marks entries without a rank; for these, and beyond the number of keys, the
    place is -1.
    """
    num_keys = ranking.shape[-1]
    flat = ranking.reshape(-1, num_keys)
    count = min(k + 1, num_keys)
    if num_keys < KEYS_PER_RANK * k:
        values, places = _by_rounds(flat, count, lambda left, best: best.indices)
    else:
        values, places = flat.topk(count)
    # Any of several equal entries may have been taken, so the few rows with ties are searched again.
    is_tied = are_equal(values[:, 1:], values[:, :-1], unit) & (values[:, 1:] > -torch.inf)
    if len(tied := is_tied.any(dim=-1).nonzero()[:, 0]):

        def first(left: Tensor, best: Any) -> Tensor:
            place: Tensor = are_equal(left, best.values, unit).byte().argmax(dim=-1, keepdim=True)
            return place

        tied_values, firsts = _by_rounds(flat[tied], count, first)
        values[tied], places[tied] = tied_values, firsts
    ranked_places = places.masked_fill(values == -torch.inf, -1)[:, :k]
    return torch.nn.functional.pad(ranked_places, (0, k - ranked_places.shape[-1]), value=-1).view(
        *ranking.shape[:-1], k
    )


def are_equal(smaller: Tensor, larger: Tensor, unit: float) -> Tensor:
    """True where two numbers differ only by rounding; `larger` must not be below `smaller`."""
    spacing = torch.finfo(larger.dtype).eps * larger.abs().clamp(min=unit)
    return smaller >= larger - ROUNDINGS * spacing


def _by_rounds(
    rows: Float[Tensor, "row key"], count: int, choose: Callable[[Tensor, Any], Tensor]
) -> tuple[Float[Tensor, "row rank"], Int[Tensor, "row rank"]]:
    """Find the `count` largest entries by repeated maxima; `choose` returns the place of each maximum."""
    left = rows.clone()
    values, places = left.new_empty(len(rows), count), left.new_empty(len(rows), count, dtype=torch.int64)
    for rank in range(count):
        best = left.max(dim=-1, keepdim=True)
        chosen = choose(left, best)
        values[:, rank : rank + 1], places[:, rank : rank + 1] = best.values, chosen
        left.scatter_(-1, chosen, -torch.inf)
    return values, places


ROWS = 1024


def received_mass(weights: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch key"]:
    """The sum over queries of the weights on a key: a column sum of the weight matrix."""
    return weights.sum(dim=-2)


def outside_mass(
    logsumexp: Float[Tensor, "*batch query"], sink: Float[Tensor, "*head"]
) -> Float[Tensor, "*batch query"]:
    """exp(sink - logsumexp), with the sink included in the logsumexp: the weight on no key.

    GPT-OSS (2508.10925).
    """
    return (sink.to(logsumexp).unsqueeze(-1) - logsumexp).exp()


def average_product_correction(
    scores: Float[Tensor, "*batch row column"],
) -> Float[Tensor, "*batch row column"]:
    """F_ij - F_i. F_.j / F_..: a pair's score minus the product of its row and column sums over the total.

    Dunn, Wahl and Gloor 2008 (10.1093/bioinformatics/btm604), applied to attention by Rao et al. 2021.
    """
    rows, columns = scores.sum(dim=-1, keepdim=True), scores.sum(dim=-2, keepdim=True)
    corrected: Tensor = scores - rows * columns / rows.sum(dim=-2, keepdim=True)
    return corrected


def value_norms(
    value: Float[Tensor, "head key value_dim"], projection: Float[Tensor, "head out value_dim"]
) -> Float[Tensor, "head key"]:
    """||v_j W_O|| for each head; multiplied by p_ij it gives ||p_ij v_j W_O||.

    Kobayashi et al. 2020 (2004.10102), section 2. It is computed from the Gram matrix of W_O, so it needs no
    more memory than the values.
    """
    value, projection = value.double(), projection.double()
    gram = projection.mT @ projection
    blocks = (value[:, start : start + ROWS] for start in range(0, value.shape[1], ROWS))
    squares = [((block @ gram) * block).sum(dim=-1) for block in blocks]
    return torch.cat(squares, dim=1).clamp(min=0).sqrt()


def roll_out(
    rolled: Float[Tensor, "token token"], weights: Float[Tensor, "token token"]
) -> Float[Tensor, "token token"]:
    """(A / 2 + I / 2) rolled, with normalised rows: the rollout with one more layer, whose head mean is A.

    Starting from the identity, it traces each token's content back to the input tokens; I stands for the
    residual connection. Abnar & Zuidema 2020 (2005.00928), section 3.
    """
    mixed = weights + torch.eye(len(weights), dtype=weights.dtype, device=weights.device)
    return mixed / mixed.sum(dim=-1, keepdim=True) @ rolled


@dataclass(frozen=True)
class PromptedRows:
    """Weights on a prompt and on the text generated after it; special tokens and the needle are marked."""

    weights: Float[Tensor, "*batch key"]
    num_prompt: int
    special: Bool[Tensor, " key"]
    needle: Bool[Tensor, " key"]

    def on(self, keys: Bool[Tensor, " key"]) -> Float[Tensor, "*batch"]:
        """The weight on the selected keys."""
        return self.weights.where(keys, 0.0).sum(dim=-1)

    def in_prompt(self) -> Bool[Tensor, " key"]:
        """True for the keys of the prompt."""
        return torch.arange(self.weights.shape[-1], device=self.weights.device) < self.num_prompt


def prompt_mass(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """sum p over the tokens of the prompt."""
    return rows.on(rows.in_prompt())


def text_mass(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """sum p over the prompt, without special tokens and without the first token, a common sink."""
    keys = rows.in_prompt() & ~rows.special
    keys[0] = False
    return rows.on(keys)


def prompted_special_mass(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """sum p over the tokenizer's special tokens."""
    return rows.on(rows.special)


def written_mass(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """sum p over the generated tokens."""
    return rows.on(~rows.in_prompt())


def lookback_ratio(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """a / (a + b), where a and b are the mean weights on a token of the prompt and on a generated token.

    Chuang et al. 2024 (2407.07071), equations 1 to 3; NaN before the first token is generated.
    """
    num_written = rows.weights.shape[-1] - rows.num_prompt
    on_prompt = prompt_mass(rows) / rows.num_prompt
    on_written = written_mass(rows) / num_written if num_written else torch.full_like(on_prompt, torch.nan)
    return on_prompt / (on_prompt + on_written)


def needle_mass(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """sum p over the tokens of the needle."""
    return rows.on(rows.needle)


def retrieval_score(
    strongest: Int[Tensor, "*head token"],
    written: Int[Tensor, " token"],
    key_ids: Int[Tensor, " key"],
    needle: Bool[Tensor, " key"],
) -> tuple[Float[Tensor, "*head"], int]:
    """The share of copied tokens whose strongest key is the same token in the needle.

    Also returns the number of copied tokens. A generated token counts as copied if it occurs in the needle.
    NaN if no token was copied. Wu et al. 2024 (2404.15574), section 2, who divide by the number of tokens in
    the needle instead.
    """
    copied = torch.isin(written, key_ids[needle])
    count = int(copied.sum())
    hits = needle[strongest] & (key_ids[strongest] == written) & copied
    return hits.sum(dim=-1).double() / (count or torch.nan), count


@dataclass(frozen=True)
class Places:
    """Some rows and columns of the weights: their positions, and the tokens of each text at these positions.

    `first_key` is the first key that counts; `num_tokens` is the length of a text, and `repeat` is the number
    of tokens that the probe repeats. `special` marks the tokenizer's special tokens; `from_queries` and
    `to_keys` mark the requested tokens. `query_places` and `key_places` are the row and column of each token
    on a grid (NaN for a token outside the grid) or None for a text; `query_seconds` and `key_seconds` are the
    start times of tokens, NaN for tokens without a time.
    """

    queries: Int[Tensor, "query 1"]
    keys: Int[Tensor, " key"]
    query_ids: Int[Tensor, "text query 1"]
    key_ids: Int[Tensor, "text 1 key"]
    ids_before: Int[Tensor, "text 1 key"]
    special: Bool[Tensor, "text 1 key"]
    from_queries: Bool[Tensor, "text query 1"]
    to_keys: Bool[Tensor, "text 1 key"]
    first_key: int
    num_tokens: int
    repeat: int
    query_places: Float[Tensor, "query 1 2"] | None = None
    key_places: Float[Tensor, "key 2"] | None = None
    query_seconds: Float[Tensor, "query 1"] | None = None
    key_seconds: Float[Tensor, " key"] | None = None

    @property
    def counted(self) -> Bool[Tensor, " key"]:
        """True for the keys that count."""
        return self.keys >= self.first_key


Pattern = Bool[Tensor, "*#text #query key"]


def first_four(at: Places) -> Pattern:
    """j < 4. Xiao et al. 2023 (2309.17453) keep four sink tokens."""
    return (at.keys < 4).unsqueeze(0)


def previous_token(at: Places) -> Pattern:
    """j = i - 1."""
    return (at.keys == at.queries - 1) & at.counted


def next_token(at: Places) -> Pattern:
    """j = i + 1, which a causal head cannot see. Found in BERT by Clark et al. 2019 (1906.04341)."""
    return (at.keys == at.queries + 1) & at.counted


def current_token(at: Places) -> Pattern:
    """j = i."""
    return (at.keys == at.queries) & at.counted


def neighbour(at: Places) -> Pattern:
    """j is one of the up to eight patches around i, at most one row and one column away.

    A head that looks at the same neighbour everywhere computes one step of a 3 x 3 convolution (Cordonnier et
    al. 2020, 1911.03584).
    """
    if at.query_places is None or at.key_places is None:
        return torch.zeros_like(at.key_ids == at.query_ids)
    apart = (at.query_places - at.key_places).abs().amax(dim=-1)
    return ((apart == 1) & at.counted).unsqueeze(0)


NEAR_SECONDS = 0.1
"""Tokens closer in time than this many seconds are near each other: the length of a short phone of speech."""


def _seconds_apart(at: Places) -> Float[Tensor, "query key"]:
    """|t_i - t_j|; NaN if either token has no time."""
    if at.query_seconds is None or at.key_seconds is None:
        return torch.full_like(at.key_ids[0] - at.queries, torch.nan, dtype=torch.float32)
    return (at.query_seconds - at.key_seconds).abs()


def distance_seconds(at: Places) -> Float[Tensor, "1 query key"]:
    """|t_i - t_j|, or 0 for tokens without a time. Its weighted sum is a head's mean distance in time."""
    return (_seconds_apart(at).nan_to_num(nan=0.0) * at.counted).unsqueeze(0)


def near_mass(at: Places) -> Pattern:
    """|t_i - t_j| < 0.1 s: the diagonal heads of Yang et al. 2020 (2006.03265)."""
    return ((_seconds_apart(at) < NEAR_SECONDS - 1e-6) & at.counted).unsqueeze(0)


def duplicate_token(at: Places) -> Pattern:
    """j < i, and the two tokens are the same."""
    return (at.key_ids == at.query_ids) & (at.keys < at.queries) & at.counted


def induction(at: Places) -> Pattern:
    """1 <= j <= i, and the token before j equals token i: j is the token after an earlier copy of token i."""
    return (at.ids_before == at.query_ids) & (at.keys <= at.queries) & at.counted


def special_mass(at: Places) -> Pattern:
    """j is one of the tokenizer's special tokens ([CLS], [SEP], <s>).

    In BERT many heads park weight there (Clark et al. 2019).
    """
    return at.special & at.counted


def from_to_weight(at: Places) -> Pattern:
    """i is among the requested queries, and j among the requested keys."""
    return at.from_queries & at.to_keys & at.counted


def others_to_weight(at: Places) -> Pattern:
    """i is not among the requested queries, but j is among the requested keys.

    Shows whether from_to_weight is particular to the requested queries or similar for all.
    """
    return ~at.from_queries & at.to_keys & at.counted


def induction_stripe(at: Places) -> Pattern:
    """j = i + 1 - n, for i in the second r of [BOS] + r + r, where n = |r|.

    The key at j follows the earlier copy of the query's token, so a perfect induction head scores 1 (Olsson
    et al. 2022, 2209.11895; TransformerLens' main demo).
    """
    return (at.keys == at.queries + 1 - at.repeat) & (at.queries >= at.num_tokens - at.repeat)


def sink_rate(first_key_weight: Float[Tensor, " head"], threshold: float = 0.3) -> float:
    """The share of heads whose mean weight on the first key exceeds a threshold.

    Gu et al. 2024 (2410.10781).
    """
    return (first_key_weight > threshold).double().mean().item()
