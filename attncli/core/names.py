"""Names of row statistics, head statistics and patterns, and parsing of the names of heads and tokens.

A leaf without torch, so that settings can be checked before torch is imported: formulas are named by their
place, `module:function`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from attncli.index import installed_features

RemovalMethod = Literal["zero", "mean", "sink", "swap"]
"""Replacements for the output of a removed head."""
PairMethod = Literal["heads", "mean", "logistic"]
"""Method for finding known pairs: single heads, the mean of the best heads, or a regression over all."""
SourceMethod = Literal["weights", "removal", "sampled"]
"""Method for measuring the sources of an answer."""
ActivationNames = Literal["transformer_lens", "nnsight"]
"""Naming scheme of activation arrays."""
WholeRows = Literal["none", "mean", "heads"]
"""Whole rows of weights to save while a model generates."""
MAX_KEYS_PER_HEAD = 128
"""Keys up to which each head's weights are saved; for longer rows, only their mean over the heads."""


class RowStatistic(NamedTuple):
    """One number per row, computed by a formula over `attncli.core.formulas.Rows`."""

    formula: str
    signed: bool = False
    """True if rows with negative weights have it, too."""
    positional: bool = False
    """True if it compares positions of queries and keys, which differ between two texts."""
    running: bool = False
    """True if the engine `tiles` has it from its running sums; otherwise it needs a second pass."""
    needs_scores: bool = False
    """True if it needs scores, which weights from another tool do not have."""
    is_peak: bool = False
    """True if a head's number is the largest over its rows, not their mean."""
    unit: str = ""
    """The unit of its numbers, unless it is weight."""


# In the order in which reports name them.
ROW_STATISTICS = {
    "entropy": RowStatistic("attncli.core.formulas:entropy", running=True, unit="nats"),
    "normalized_entropy": RowStatistic("attncli.core.formulas:normalized_entropy", running=True),
    "max_weight": RowStatistic("attncli.core.formulas:max_weight", signed=True, running=True),
    "sink_mass": RowStatistic("attncli.core.formulas:sink_mass", signed=True, running=True),
    "distance": RowStatistic("attncli.core.formulas:distance", positional=True, running=True, unit="tokens"),
    "participation": RowStatistic("attncli.core.formulas:participation", running=True, unit="keys"),
    "local_mass": RowStatistic(
        "attncli.core.formulas:local_mass", positional=True, running=True, unit="weight"
    ),
    "max_score": RowStatistic(
        "attncli.core.formulas:max_score", running=True, needs_scores=True, is_peak=True, unit="score"
    ),
}
WEIGHT_STATISTICS = tuple(name for name, statistic in ROW_STATISTICS.items() if not statistic.needs_scores)
"""Row statistics that need no scores, so that weights from another tool have them, too."""


class Ends(NamedTuple):
    """Numbers of first and last keys that a small cache keeps: Xiao et al. 2023 (2309.17453)."""

    sink: int
    window: int


def cache_ends(num_keys: int) -> Ends:
    """4 first and 64 last keys, as in Xiao et al.; at most a 128th and an eighth of all keys, rounded up."""
    return Ends(min(4, -(-num_keys // 128)), min(64, -(-num_keys // 8)))


# The keys of a row that count for a head's score: a function of `attncli.core.formulas.Places`.
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
"""Statistics of tokens on a grid, where nothing comes before or after; `neighbour` exists only on grids."""
IN_TIME = ("distance_seconds", "near_mass")
"""Statistics of tokens that have a time."""
REPEAT_PATTERNS = ("duplicate_token", "induction")
"""Patterns of repeated tokens. Tokens in time have none, since all of them differ."""
REQUESTED_PATTERNS = ("from_to_weight", "others_to_weight")
"""Patterns of the tokens that --from and --to name."""
KEY_PATTERNS = ("sink_mass_4", "special_mass", *REQUESTED_PATTERNS)
"""Patterns that do not compare queries with keys, so that cross-attention has them, too."""
WITH_SHARE = (
    "previous_token",
    "next_token",
    "current_token",
    "duplicate_token",
    "induction",
    "special_mass",
)
"""Patterns that are also reported as a share of all weight: NAME_mul."""

# Statistics of the row that chose a token: functions of `attncli.core.formulas.PromptedRows`.
WRITING = {
    "prompt_mass": "attncli.core.formulas:prompt_mass",
    "text_mass": "attncli.core.formulas:text_mass",
    "special_mass": "attncli.core.formulas:prompted_special_mass",
    "written_mass": "attncli.core.formulas:written_mass",
    "lookback_ratio": "attncli.core.formulas:lookback_ratio",
    "needle_mass": "attncli.core.formulas:needle_mass",
}
for feature in installed_features().values():  # measured where queries and keys belong to one text
    ROW_STATISTICS |= {
        name: RowStatistic(place, positional=True)
        for name, place in feature.statistics.items()
        if name not in {*ROW_STATISTICS, *PATTERNS, *WRITING}
    }
GENERATED_KEY_STATISTICS = ("written_mass", "lookback_ratio")
"""Statistics that need generated tokens among the keys, so that cross-attention does not have them."""
WRITER_STATISTICS = (*WEIGHT_STATISTICS, *WRITING, "retrieval")
"""Statistics of each head of a model that generates text."""

LOOKED_AT = ("query", "query_token", "key", "key_token", "key_weight")
"""Columns of a head's row for the key with its largest weight, and the query that has this weight."""
HEAD_STATISTICS = (
    *ROW_STATISTICS,
    *PATTERNS,
    *map("{}_mul".format, WITH_SHARE),
    "one_key_mass",
    "high_norm_mass",
    "value_norm",
)
"""Statistics of each head in a survey."""


STARTS_SPECIAL = "starts_special"
"""Field: true if the first key is a special token, which decides what counts as weight on special tokens."""

WITHOUT_FIRST = "without_first"
"""Statistics of a head's rows without their first key, the other weights renormalised."""

UNNAMED = "unnamed"
"""Name of a head that no pattern names."""

NOT_MEASURED = "not measured"
"""Name of a head that no pattern names on texts too short to measure every pattern of positions."""


FIRST_TOKEN = "first token"


class HeadPattern(NamedTuple):
    """The statistic of a pattern, the number above which a head has the pattern, and its letter.

    A mean weight above 0.3 on the first key makes a sink (Gu et al. 2024, 2410.10781). Clark et al. 2019
    (1906.04341) count BERT's heads on previous, next and special tokens; Olsson et al. 2022 (2209.11895)
    count induction heads from about half of the weight.
    """

    statistic: str
    threshold: float
    letter: str
    precedence: int = 1
    """The matching pattern with the highest precedence names a head; among equals, the largest statistic."""


HEAD_PATTERNS = {
    # Heads park unneeded weight here: names only heads that no other pattern names.
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
"""Pattern statistics that are high on short texts for any head: their values under even weights are saved."""


class Effect(NamedTuple):
    """The effect of removing a head, as one number."""

    is_difference: bool = False
    """The value without the head minus the value with it, which may have either sign."""
    negative_is_better: bool = False
    """A negative number means that the head helps."""


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
    """Display name of a stack of layers: empty for the only stack of a model."""
    return "" if stack == "self" else stack


def head_range(num_heads: Mapping[int, int], stack: str = "") -> str:
    """`must be from 0:0 to 29:8`, from the number of heads per layer; lists the layers if any are missing."""
    layers, start = sorted(num_heads), f"{stack}:" if stack else ""
    first, last = layers[0], layers[-1]
    gaps = f" (layers {', '.join(map(str, layers))})" if last - first >= len(layers) else ""
    return f"must be from {start}{first}:0 to {start}{last}:{num_heads[last] - 1}{gaps}"


def named_head(name: str) -> NamedHead:
    """Parse a head's name. Raises ValueError for anything else."""
    place = PLACE.fullmatch(name)
    if place is None:
        raise ValueError(f"must be LAYER:HEAD, such as 5:11 (got {name})")
    return NamedHead(place[1] or "", int(place[2]), int(place[3]))


NUMBERED = re.compile(r"(?:doc|source|sentence|line|paragraph|turn)([0-9]{1,6})")


def source_number(name: str) -> int | None:
    """Number in the name of an answer's source, 2 for doc2; None for any other name."""
    numbered = NUMBERED.fullmatch(name)
    return int(numbered[1]) if numbered else None


LAST = "last"
POSITION = re.compile(r"-?[0-9]{1,9}")
OCCURRENCE = re.compile(r"(.+)#([0-9]{1,9})", re.DOTALL)

Occurrences = Callable[[str], Sequence[Sequence[int]]]
"""Every occurrence of a text, each as the positions of its tokens: one, or several for a word."""


def occurrences_among(tokens: Sequence[str]) -> Occurrences:
    """A lookup of the positions of tokens that equal a text."""
    return lambda text: [(i,) for i, token in enumerate(tokens) if token == text]


def position_among(position: int, num_tokens: int) -> int:
    """Position counted from 0, from one that may be negative. Raises ValueError if it is out of range."""
    if not -num_tokens <= position < num_tokens:
        ends = f"from 0 to {num_tokens - 1}, or from -1 to -{num_tokens}"
        raise ValueError(f"must be a position {ends}, counted from the end (got {position})")
    return position % num_tokens


def token_positions(name: str, num_tokens: int, occurrences: Occurrences) -> tuple[int, ...]:
    """The positions that a name refers to: every occurrence of a text, or an empty tuple.

    A whole number and `last` are positions, negative ones counted from the end. Anything else is a text: as
    written, else without its quotes ("last", "5"), else with the number of the occurrence (to#2). Raises
    ValueError for a position or occurrence that does not exist.
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
    """The only position that a name refers to. Raises ValueError for several, with a name for each."""
    if len(positions) > 1:
        several = ", ".join(map(str, positions))
        is_numbered = len(_of_text(name, occurrences)) == len(positions)
        numbered = f"{name:.60}#1 to {name:.60}#{len(positions)}, or " if is_numbered else ""
        raise ValueError(f"must be one token: {name:.60} is at {several}: use {numbered}a position")
    return positions[0]
