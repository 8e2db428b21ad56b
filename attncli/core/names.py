"""Names of row statistics, head statistics and patterns, and parsers for the names of heads and tokens.

This module does not import torch, so that settings can be checked before torch is imported. Formulas are
therefore named by their place, `module:function`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from attncli.index import installed_features

RemovalMethod = Literal["zero", "mean", "sink", "swap"]
"""The replacement for the output of a removed head."""
PairMethod = Literal["heads", "mean", "logistic"]
"""The method for finding known pairs: single heads, the best heads' mean, or a regression over all heads."""
SourceMethod = Literal["weights", "removal", "sampled"]
"""The method for measuring the sources of an answer."""
ActivationNames = Literal["transformer_lens", "nnsight"]
"""The naming scheme of activation arrays."""
WholeRows = Literal["none", "mean", "heads"]
"""Which whole rows of weights to save while a model generates."""
MAX_KEYS_PER_HEAD = 128
"""With at most this many keys, each head's weights are saved; with more keys, only their mean over heads."""


class RowStatistic(NamedTuple):
    """One number per row, computed by a formula over `attncli.core.formulas.Rows`."""

    formula: str
    signed: bool = False
    """True if rows with negative weights have this statistic, too."""
    positional: bool = False
    """True if the statistic compares positions of queries and keys, which differ between two texts."""
    running: bool = False
    """True if the engine `tiles` can derive the statistic from its running sums, without a second pass."""
    needs_scores: bool = False
    """True if the statistic needs scores, which weights from another tool lack."""
    is_peak: bool = False
    """True if a head's value is the maximum over its rows rather than their mean."""
    unit: str = ""
    """The unit of the values, unless they are weights."""
    about: str = ""
    """A sentence on the values; that of a plugin's statistic is in the docstring of its formula."""


# In the order in which reports name them.
ROW_STATISTICS = {
    "entropy": RowStatistic(
        "attncli.core.formulas:entropy",
        running=True,
        unit="nats",
        about="Entropy of the row's weights: 0 if one key has all the weight",
    ),
    "normalized_entropy": RowStatistic(
        "attncli.core.formulas:normalized_entropy",
        running=True,
        about="Entropy of the row, divided by that of equal weights on all visible keys",
    ),
    "max_weight": RowStatistic(
        "attncli.core.formulas:max_weight", signed=True, running=True, about="Largest weight of the row"
    ),
    "sink_mass": RowStatistic(
        "attncli.core.formulas:sink_mass", signed=True, running=True, about="Weight on the first key"
    ),
    "distance": RowStatistic(
        "attncli.core.formulas:distance",
        positional=True,
        running=True,
        unit="tokens",
        about="Weighted mean distance from the query to the keys; in a picture, in grid steps",
    ),
    "participation": RowStatistic(
        "attncli.core.formulas:participation",
        running=True,
        unit="keys",
        about="Number of keys that would share the weight evenly: 1 / Σ p²",
    ),
    "local_mass": RowStatistic(
        "attncli.core.formulas:local_mass",
        positional=True,
        running=True,
        unit="weight",
        about="Weight on the few first keys and on the keys nearest to the query",
    ),
    "max_score": RowStatistic(
        "attncli.core.formulas:max_score",
        running=True,
        needs_scores=True,
        is_peak=True,
        unit="score",
        about="Largest score that enters the softmax",
    ),
}
WEIGHT_STATISTICS = tuple(name for name, statistic in ROW_STATISTICS.items() if not statistic.needs_scores)
"""The row statistics that need no scores, so that weights from another tool have them, too."""


class Ends(NamedTuple):
    """The numbers of first and last keys that a small cache keeps: Xiao et al. 2023 (2309.17453)."""

    sink: int
    window: int


def cache_ends(num_keys: int) -> Ends:
    """The 4 first and 64 last keys, as in Xiao et al., but at most 1/128 and 1/8 of all keys, rounded up."""
    return Ends(min(4, -(-num_keys // 128)), min(64, -(-num_keys // 8)))


# Which keys of a row count for a head's score: a function of `attncli.core.formulas.Places`.
PATTERNS = {
    "sink_mass_4": "attncli.core.formulas:first_four",
    "previous_token": "attncli.core.formulas:previous_token",
    "next_token": "attncli.core.formulas:next_token",
    "current_token": "attncli.core.formulas:current_token",
    "neighbour": "attncli.core.formulas:neighbour",
    "duplicate_token": "attncli.core.formulas:duplicate_token",
    "induction": "attncli.core.formulas:induction",
    "special_mass": "attncli.core.formulas:special_mass",
    "from_to_weight": "attncli.core.formulas:from_to_weight",
    "others_to_weight": "attncli.core.formulas:others_to_weight",
    "induction_stripe": "attncli.core.formulas:induction_stripe",
    "distance_seconds": "attncli.core.formulas:distance_seconds",
    "near_mass": "attncli.core.formulas:near_mass",
}
ON_GRIDS = ("distance", "current_token", "neighbour", "special_mass", "from_to_weight", "others_to_weight")
"""The statistics of tokens on a grid, which have no order; `neighbour` exists only on grids."""
IN_TIME = ("distance_seconds", "near_mass")
"""The statistics of tokens that have a time."""
REPEAT_PATTERNS = ("duplicate_token", "induction")
"""The patterns of repeated tokens; tokens that have a time never repeat."""
REQUESTED_PATTERNS = ("from_to_weight", "others_to_weight")
"""The patterns of the tokens that --from and --to name."""
KEY_PATTERNS = ("sink_mass_4", "special_mass", *REQUESTED_PATTERNS)
"""The patterns that do not compare queries with keys, so that cross-attention has them, too."""
WITH_SHARE = (
    "previous_token",
    "next_token",
    "current_token",
    "duplicate_token",
    "induction",
    "special_mass",
)
"""The patterns that are also reported as a share of all weight, as NAME_mul."""
SHARE = "_mul"

# Statistics of the row that chose a token: functions of `attncli.core.formulas.PromptedRows`.
WRITING = {
    "prompt_mass": "attncli.core.formulas:prompt_mass",
    "text_mass": "attncli.core.formulas:text_mass",
    "special_mass": "attncli.core.formulas:prompted_special_mass",
    "written_mass": "attncli.core.formulas:written_mass",
    "lookback_ratio": "attncli.core.formulas:lookback_ratio",
    "needle_mass": "attncli.core.formulas:needle_mass",
}
for feature in installed_features().values():  # measured only where queries and keys belong to the same text
    ROW_STATISTICS |= {
        name: RowStatistic(place, positional=True)
        for name, place in feature.statistics.items()
        if name not in {*ROW_STATISTICS, *PATTERNS, *WRITING}
    }
GENERATED_KEY_STATISTICS = ("written_mass", "lookback_ratio")
"""The statistics that need generated tokens among the keys, which cross-attention does not have."""
WRITER_STATISTICS = (*WEIGHT_STATISTICS, *WRITING, "retrieval")
"""The statistics of each head of a model that generates text."""

LOOKED_AT = ("query", "query_token", "key", "key_token", "key_weight")
"""The columns for the key with the head's largest weight and for the query that has this weight."""
HEAD_STATISTICS = (
    *ROW_STATISTICS,
    *PATTERNS,
    *(f"{name}{SHARE}" for name in WITH_SHARE),
    "one_key_mass",
    "high_norm_mass",
    "value_norm",
)
"""The statistics of each head in a survey."""

OF_THESE = ", over the queries that have one"
STATISTICS_ABOUT = {
    "sink_mass_4": "Weight on the first four keys",
    "previous_token": "Weight on the token before the query",
    "next_token": "Weight on the token after the query",
    "current_token": "Weight on the query's own token",
    "neighbour": "Weight on the patches around the query's patch",
    "duplicate_token": f"Weight on earlier copies of the query's token{OF_THESE}",
    "induction": f"Weight on the tokens after earlier copies of the query's token{OF_THESE}",
    "special_mass": "Weight on the tokenizer's special tokens, such as [CLS] and <s>",
    "from_to_weight": "Weight of the tokens that --from names, or of all, on the tokens that --to names",
    "others_to_weight": "Weight of all other tokens on the tokens that --to names",
    "induction_stripe": "On repeated random tokens: weight on the token after the query's earlier copy",
    "distance_seconds": "Weighted mean distance in time from the query to the keys",
    "near_mass": "Weight on keys less than 0.1 seconds from the query",
    "prompt_mass": "Weight on the tokens of the prompt",
    "text_mass": "Weight on the prompt without its first token and special tokens",
    "written_mass": "Weight on the tokens that the model wrote",
    "lookback_ratio": "Mean weight on a prompt token, as a share of that plus the mean weight on a new token",
    "needle_mass": "Weight on the tokens of the needle",
    "retrieval": "Share of the copied tokens at which the head looks most at the same token in the needle",
    "one_key_mass": "Largest mean weight of all rows on one key, neither the first nor a special token",
    "high_norm_mass": "Weight on the patches whose vectors have a large norm in the last block",
    "value_norm": "Norms of the weighted values of a row, after the output projection, added up",
    "logsumexp": "Logarithm of the sum of exp(score) over the row",
    "outside_mass": "Weight on the sink, which no key gets",
    "top_keys": "Positions of the keys with the largest weights",
    "top_weights": "The largest weights of the row",
    "received_mass": "Weight of all queries on the key, added up",
    "jensen_shannon": "Distance between the two rows of weights",
}
"""Sentences on the other statistics of rows, keys and heads."""
STATISTIC_UNITS = {"distance_seconds": "seconds"}
"""Units of these statistics, unless they are weights."""


STARTS_SPECIAL = "starts_special"
"""The field that is true if the first key is a special token, which matters for special-token weights."""

WITHOUT_FIRST = "without_first"
"""The statistics of a head's rows without their first key, with the other weights renormalised."""

UNNAMED = "unnamed"
"""The name of a head that no pattern names."""

NOT_MEASURED = "not measured"
"""The name of a head that no pattern names, on texts too short to measure every pattern of positions."""


FIRST_TOKEN = "first token"


class HeadPattern(NamedTuple):
    """The statistic of a pattern, the threshold above which a head has the pattern, and the pattern's letter.

    A mean weight above 0.3 on the first key makes a sink (Gu et al. 2024, 2410.10781). Clark et al. 2019
    (1906.04341) count BERT's heads on the previous, the next and special tokens; Olsson et al. 2022
    (2209.11895) count induction heads from about half of the weight.
    """

    statistic: str
    threshold: float
    letter: str
    precedence: int = 1
    """The matching pattern with the highest precedence names a head; the largest statistic breaks ties."""


HEAD_PATTERNS = {
    # Heads park unneeded weight here, so it names only heads that no other pattern names.
    FIRST_TOKEN: HeadPattern("sink_mass", 0.3, "F", precedence=0),
    "previous token": HeadPattern("previous_token", 0.4, "P"),
    "next token": HeadPattern("next_token", 0.4, "N"),
    "current token": HeadPattern("current_token", 0.4, "C"),
    "adjacent patches": HeadPattern("neighbour", 0.4, "A"),
    "duplicate token": HeadPattern("duplicate_token", 0.4, "D"),
    "induction": HeadPattern("induction", 0.4, "I"),
    "special tokens": HeadPattern("special_mass", 0.4, "S"),
    "one key for all": HeadPattern("one_key_mass", 0.3, "K"),
    "uniform": HeadPattern("normalized_entropy", 0.9, "U", precedence=2),
}


EVEN = ("sink_mass", "previous_token", "next_token", "current_token", "special_mass", "one_key_mass")
"""Pattern statistics that are high for any head on short texts, so values for even weights are saved, too."""


class Effect(NamedTuple):
    """The effect of removing a head, as one number."""

    is_difference: bool = False
    """The value without the head minus the value with it, of either sign."""
    negative_is_better: bool = False
    """True if a negative number means that the head helps."""


# In the order in which reports name them.
EFFECTS = {
    "loss": Effect(is_difference=True),
    "kl": Effect(),
    "probability": Effect(is_difference=True, negative_is_better=True),
    "logit_difference": Effect(is_difference=True, negative_is_better=True),
    "restored": Effect(),
    "cls_change": Effect(),
    "output_change": Effect(),
    "approximate": Effect(),
}


PLACE = re.compile(r"(?:(encoder|decoder|cross|linear):)?([0-9]{1,6}):([0-9]{1,6})")


class NamedHead(NamedTuple):
    """A head name split into stack, layer and head; the stack is empty if the name has none."""

    stack: str
    layer: int
    head: int


def stack_label(stack: str) -> str:
    """The display name of a stack of layers; empty for a model's only stack."""
    return "" if stack == "self" else stack


def head_range(num_heads: Mapping[int, int], stack: str = "") -> str:
    """Return `must be from 0:0 to 29:8`, from the heads per layer; list the layers if any are missing."""
    layers, start = sorted(num_heads), f"{stack}:" if stack else ""
    first, last = layers[0], layers[-1]
    gaps = f" (layers {', '.join(map(str, layers))})" if last - first >= len(layers) else ""
    return f"must be from {start}{first}:0 to {start}{last}:{num_heads[last] - 1}{gaps}"


def named_head(name: str) -> NamedHead:
    """Parse a head's name. Raises ValueError if the name is not valid."""
    place = PLACE.fullmatch(name)
    if place is None:
        raise ValueError(f"must be LAYER:HEAD, such as 5:11 (got {name})")
    return NamedHead(place[1] or "", int(place[2]), int(place[3]))


NUMBERED = re.compile(r"(?:doc|source|sentence|line|paragraph|turn)([0-9]{1,6})")


def source_number(name: str) -> int | None:
    """The number in the name of an answer's source, such as 2 for doc2; None for any other name."""
    numbered = NUMBERED.fullmatch(name)
    return int(numbered[1]) if numbered else None


LAST = "last"
POSITION = re.compile(r"-?[0-9]{1,9}")
OCCURRENCE = re.compile(r"(.+)#([0-9]{1,9})", re.DOTALL)

Occurrences = Callable[[str], Sequence[Sequence[int]]]
"""Every occurrence of a string, each as the positions of its tokens: one position, or several for a word."""


def occurrences_among(tokens: Sequence[str]) -> Occurrences:
    """Return a lookup of the positions of the tokens that equal a string."""
    return lambda text: [(i,) for i, token in enumerate(tokens) if token == text]


def position_among(position: int, num_tokens: int) -> int:
    """Return a position counted from 0, given one that may be negative.

    Raises ValueError if the position is out of range.
    """
    if not -num_tokens <= position < num_tokens:
        ends = f"from 0 to {num_tokens - 1}, or from -1 to -{num_tokens}"
        raise ValueError(f"must be a position {ends}, counted from the end (got {position})")
    return position % num_tokens


def token_positions(name: str, num_tokens: int, occurrences: Occurrences) -> tuple[int, ...]:
    """The positions that a name refers to: every occurrence of a string, which may be an empty tuple.

    A whole number or `last` is a position; negative numbers count from the end. Anything else is a string,
    matched as written, otherwise without its quotes ("last", "5"), otherwise with the number of the
    occurrence (to#2). Raises ValueError for a position or occurrence that does not exist.
    """
    if name == LAST or POSITION.fullmatch(name):
        return (position_among(-1 if name == LAST else int(name), num_tokens),)
    places = _of_text(name, occurrences)
    if not places and (numbered := OCCURRENCE.fullmatch(name)) is not None:
        text, number = numbered[1], int(numbered[2])
        places = _of_text(text, occurrences)
        if places and not 1 <= number <= len(places):
            last = f" to {text}#{len(places)}" if len(places) > 1 else ""
            raise ValueError(f"must be {text}#1{last} (got {name:.60})")
        places = places[number - 1 : number]
    return tuple(sorted({position for place in places for position in place}))


def _of_text(text: str, occurrences: Occurrences) -> Sequence[Sequence[int]]:
    places = occurrences(text)
    is_quoted = len(text) > 2 and text[0] == text[-1] == '"'
    return places if places or not is_quoted else occurrences(text[1:-1])


def the_one_position(name: str, positions: Sequence[int], occurrences: Occurrences) -> int:
    """The only position that a name refers to.

    Raises ValueError, with a name for each position, if there are several.
    """
    if len(positions) > 1:
        several = ", ".join(map(str, positions))
        is_numbered = len(_of_text(name, occurrences)) == len(positions)
        numbered = f"{name:.60}#1 to {name:.60}#{len(positions)}, or " if is_numbered else ""
        raise ValueError(f"must be one token: {name:.60} is at {several}: use {numbered}a position")
    return positions[0]
