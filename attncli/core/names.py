"""What is measured of rows and heads, by name, and what people call heads and tokens: every list of names.

A leaf without torch, so that settings can be checked before torch is imported: formulas are named by their
place, `module:function`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from attncli.index import installed_features

RemovalMethod = Literal["zero", "mean", "sink", "swap"]
"""What replaces the output of a head that is taken out."""
PairMethod = Literal["heads", "mean", "logistic"]
"""What looks for known pairs: heads one by one, the mean of the best, a regression over all."""
SourceMethod = Literal["weights", "removal", "sampled"]
"""How it is measured where an answer came from."""
ActivationNames = Literal["transformer_lens", "nnsight"]
"""Whose names arrays of activations have."""
WholeRows = Literal["none", "mean", "heads"]
"""Which weights are kept of what a model writes."""
MOST_KEYS_OF_HEADS = 128
"""Keys up to which the weights of each head are kept; beyond it is their mean over the heads."""


class RowStatistic(NamedTuple):
    """One number for each row, by a formula of `attncli.core.formulas.Rows`."""

    formula: str
    signed: bool = False
    """Whether rows with negative weights have it, too."""
    positional: bool = False
    """Whether it compares positions of queries and keys, which two texts do not share."""
    running: bool = False
    """Whether the engine `tiles` gets it from its running sums; any other takes it a second pass."""
    of_scores: bool = False
    """Whether it is about what the softmax was given, which weights from elsewhere do not tell."""
    is_peak: bool = False
    """Whether the number of a head is the largest of its rows, not their mean."""
    unit: str = ""
    """What its numbers are, where that is not weight."""


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
        "attncli.core.formulas:max_score", running=True, of_scores=True, is_peak=True, unit="score"
    ),
}
OF_WEIGHTS = tuple(name for name, statistic in ROW_STATISTICS.items() if not statistic.of_scores)
"""Those that weights from elsewhere have, too."""


class Ends(NamedTuple):
    """How many of the first keys and of the last ones a small cache keeps: Xiao et al. 2023 (2309.17453)."""

    sink: int
    window: int


def ends_of(num_keys: int) -> Ends:
    """4 and 64, as Xiao et al. keep few; of shorter texts a 128th and an eighth, rounded up."""
    return Ends(min(4, -(-num_keys // 128)), min(64, -(-num_keys // 8)))


# Which keys of a row a head's score counts: a function of `attncli.core.formulas.Places`.
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
"""What compares places on a grid, where nothing is before or after; `neighbour` is of grids alone."""
IN_TIME = ("distance_seconds", "near_mass")
"""What is of tokens that lie in time alone."""
OF_REPEATS = ("duplicate_token", "induction")
"""What compares the tokens of a text: those that lie in time are all different."""
OF_ASKED = ("from_to_weight", "others_to_weight")
"""What there is for tokens that a user names alone."""
OF_KEYS = ("sink_mass_4", "special_mass", *OF_ASKED)
"""The patterns that do not compare the two sides: cross-attention has them, too."""
WITH_SHARE = (
    "previous_token",
    "next_token",
    "current_token",
    "duplicate_token",
    "induction",
    "special_mass",
)
"""The patterns that are reported as a share of all weight, too: NAME_mul."""

# What is measured of a row that chose a token: a function of `attncli.core.formulas.PromptedRows`.
WRITING = {
    "prompt_mass": "attncli.core.formulas:prompt_mass",
    "text_mass": "attncli.core.formulas:text_mass",
    "special_mass": "attncli.core.formulas:special_mass_of_row",
    "written_mass": "attncli.core.formulas:written_mass",
    "lookback_ratio": "attncli.core.formulas:lookback_ratio",
    "needle_mass": "attncli.core.formulas:needle_mass",
}
for feature in installed_features().values():  # measured where queries and keys are of one text
    ROW_STATISTICS |= {
        name: RowStatistic(place, positional=True)
        for name, place in feature.statistics.items()
        if name not in {*ROW_STATISTICS, *PATTERNS, *WRITING}
    }
OF_WRITTEN_KEYS = ("written_mass", "lookback_ratio")
"""Those that need what was written among the keys: cross-attention has them not."""
WRITER_STATISTICS = (*OF_WEIGHTS, *WRITING, "retrieval")
"""What each head of a model that writes has a number of."""

LOOKED_AT = ("query", "query_token", "key", "key_token", "key_weight")
"""In the row of a head: the key that it looks at most, and from which query."""
HEAD_STATISTICS = (
    *ROW_STATISTICS,
    *PATTERNS,
    *map("{}_mul".format, WITH_SHARE),
    "one_key_mass",
    "high_norm_mass",
    "value_norm",
)
"""What a survey of heads has a number of."""


STARTS_SPECIAL = "starts_special"
"""Whether the first key of a text is a special token, which decides what counts as weight on those."""

WITHOUT_FIRST = "without_first"
"""What the statistics of a head are of where its first key is left out, the other weights renormalised."""

UNNAMED = "unnamed"
"""What a head is called that no pattern names."""

NOT_MEASURED = "not measured"
"""The name of a head that no pattern names on texts too short to measure every pattern of positions."""


FIRST_TOKEN = "first token"


class HeadPattern(NamedTuple):
    """The statistic of a pattern, the number above which a head has it, and the letter that stands for it.

    One key: Gu et al. 2024 (2410.10781) call a mean weight above 0.3 on the first a sink. Clark et al. 2019
    (1906.04341) count the heads of BERT on previous, next and special tokens, Olsson et al. 2022 (2209.11895)
    those on induction, from about half of the weight.
    """

    statistic: str
    threshold: float
    letter: str
    precedence: int = 1
    """The highest names a head; of equal ones the largest statistic."""


HEAD_PATTERNS = {
    # Where a head parks weight that it does not need: names only what nothing else names.
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
"""The statistics of patterns that short texts show by themselves, for which even weights are kept."""


class Effect(NamedTuple):
    """What a model loses without a head, as one number."""

    is_difference: bool = False
    """Without the head, minus with it: either sign occurs."""
    falls: bool = False
    """A number below zero says that the head helps."""


# In the order in which reports name them.
EFFECTS = {
    "loss": Effect(is_difference=True),
    "kl": Effect(),
    "probability": Effect(is_difference=True, falls=True),
    "logit_difference": Effect(is_difference=True, falls=True),
    "restored": Effect(),
    "cls_change": Effect(),
    "output_change": Effect(),
    "approximate": Effect(),
}


PLACE = re.compile(r"(?:(encoder|decoder|cross|linear):)?([0-9]{1,6}):([0-9]{1,6})")


class NamedHead(NamedTuple):
    """A head as it was named; its stack is empty where the name gives none."""

    stack: str
    layer: int
    head: int


def stack_label(stack: str) -> str:
    """The name of a stack of layers, where a model has several: nothing for the only one."""
    return "" if stack == "self" else stack


def head_range(num_heads: Mapping[int, int], stack: str = "") -> str:
    """`must be from 0:0 to 29:8`, by the number of heads of each layer; layers with gaps are all named."""
    layers, start = sorted(num_heads), f"{stack}:" if stack else ""
    first, last = layers[0], layers[-1]
    gaps = f" (layers {', '.join(map(str, layers))})" if last - first >= len(layers) else ""
    return f"must be from {start}{first}:0 to {start}{last}:{num_heads[last] - 1}{gaps}"


def named_head(name: str) -> NamedHead:
    """A head by its name. Raises ValueError for anything but a head's name."""
    place = PLACE.fullmatch(name)
    if place is None:
        raise ValueError(f"must name a layer and a head, as 5:11 (got {name})")
    return NamedHead(place[1] or "", int(place[2]), int(place[3]))


NUMBERED = re.compile(r"(?:doc|source|sentence|line|paragraph|turn)([0-9]{1,6})")


def source_number(name: str) -> int | None:
    """2 for doc2, as the sources of an answer are called; None for another name."""
    numbered = NUMBERED.fullmatch(name)
    return int(numbered[1]) if numbered else None


LAST = "last"
POSITION = re.compile(r"-?[0-9]{1,9}")
OCCURRENCE = re.compile(r"(.+)#([0-9]{1,9})", re.DOTALL)

Occurrences = Callable[[str], Sequence[Sequence[int]]]
"""Each place where a text stands: the positions of its tokens, one or, of a word, several."""


def occurrences_among(tokens: Sequence[str]) -> Occurrences:
    """The positions of the tokens that are a text."""
    return lambda text: [(i,) for i, token in enumerate(tokens) if token == text]


def position_among(position: int, num_tokens: int) -> int:
    """The position from 0; negative ones count from the end. Raises ValueError for one out of range."""
    if not -num_tokens <= position < num_tokens:
        ends = f"from 0 to {num_tokens - 1}, or from -1 to -{num_tokens}"
        raise ValueError(f"must be a position {ends}, counted from the end (got {position})")
    return position % num_tokens


def token_positions(name: str, num_tokens: int, occurrences: Occurrences) -> tuple[int, ...]:
    """The positions that a name means: every occurrence of a text, or an empty tuple.

    A whole number and `last` are positions, those below 0 from the end. Anything else is a text: as it
    stands, else without the quotes around it ("last", "5"), else with the number of its place (to#2).
    Raises ValueError for a position or occurrence that does not exist.
    """
    if name == LAST or POSITION.fullmatch(name):
        return (position_among(-1 if name == LAST else int(name), num_tokens),)
    places = _of_text(name, occurrences)
    if not places and (numbered := OCCURRENCE.fullmatch(name)) is not None:
        text, number = numbered[1], int(numbered[2])
        places = _of_text(text, occurrences)
        if places and not 1 <= number <= len(places):
            last = f" to {text}#{len(places)}" if len(places) > 1 else ""
            raise ValueError(f"must be {text}#1{last}: the text has {len(places)} of them (got {name:.60})")
        places = places[number - 1 : number]
    return tuple(sorted({position for place in places for position in place}))


def _of_text(text: str, occurrences: Occurrences) -> Sequence[Sequence[int]]:
    places = occurrences(text)
    is_quoted = len(text) > 2 and text[0] == text[-1] == '"'
    return places if places or not is_quoted else occurrences(text[1:-1])


def the_one_position(name: str, positions: Sequence[int], occurrences: Occurrences) -> int:
    """The only position that a name means. Raises ValueError for several, with a name for each."""
    if len(positions) > 1:
        several = ", ".join(map(str, positions))
        is_numbered = len(_of_text(name, occurrences)) == len(positions)
        numbered = f"{name:.60}#1 to {name:.60}#{len(positions)}, or " if is_numbered else ""
        raise ValueError(f"must be one token: {name:.60} is at {several}: give {numbered}a position")
    return positions[0]
