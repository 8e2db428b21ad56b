"""The meaning of columns: a name for people, a unit and a sentence.

A class of rows says what its columns mean (see `attncli.records.columns.column`). Columns that name a head's
place, the ends of intervals, and statistics have the same meaning in every class.
"""

from typing import NamedTuple

from attncli.core.names import OF_THESE, ROW_STATISTICS, SHARE, STATISTIC_UNITS, STATISTICS_ABOUT
from attncli.feature import load_usable_place

INTERVAL = ("_low", "_high")
"""Suffixes of the lower and upper end of a mean's 95 % interval."""


class Meaning(NamedTuple):
    """A sentence on a column or table, without a full stop; the unit of its numbers; its name for people."""

    about: str = ""
    unit: str = ""
    label: str = ""

    def title(self) -> str:
        """Return the sentence with the unit, which may be empty."""
        unit = self.unit and f"in {self.unit}"
        return f"{self.about} ({unit})" if self.about and unit else self.about or unit


PLACE_MEANINGS = {
    "stack": Meaning(
        "Stack of layers: self, encoder, decoder, cross, or linear for layers without a softmax"
    ),
    "layer": Meaning("Layer, counted from 0"),
    "head": Meaning("Head as LAYER:HEAD, or its number in the layer, counted from 0"),
    "module": Meaning("Name of the module in the model's code"),
    "kind": Meaning("Kind of attention: self, cross, or linear without a softmax"),
    "lower": Meaning("Lower end of the 95 % interval"),
    "upper": Meaning("Upper end of the 95 % interval"),
    "batch": Meaning("Number of the text, counted from 0"),
}
"""Columns that say the same in every class of rows."""
LOOKED_AT = {
    "query": Meaning("Position of the query"),
    "query_token": Meaning("Token of the query"),
    "key": Meaning("Position of the key with the largest weight in the query's row"),
    "key_token": Meaning("Token of that key"),
    "key_weight": Meaning("Weight of the query on that key"),
}
"""Columns for a query and its strongest key."""
WEIGHT_COLUMNS = {
    "query": LOOKED_AT["query"],
    "query_text": LOOKED_AT["query_token"],
    "key": Meaning("Position of the key"),
    "key_text": Meaning("Token of the key"),
    "score": Meaning("Dot product of the query and the key"),
    "scaled_score": Meaning("The score times the scale, from which the softmax makes the weight"),
    "weight": Meaning("Weight of the query on the key"),
}
"""Columns of weights in a CSV or Parquet file, with one row per query and key."""
AUROC = {
    "auroc": Meaning(
        "Probability that a positive text has a larger value than a negative one", label="AUROC"
    ),
    "lower": Meaning("Lower end of the 95 % interval of the AUROC"),
    "upper": Meaning("Upper end of the 95 % interval of the AUROC"),
    "lowest": Meaning("AUROC in the group in which it is lowest"),
    "difference": Meaning("AUROC minus the AUROC of the best baseline, on the same texts"),
    "difference_lower": Meaning("Lower end of the 95 % interval of the difference"),
    "difference_upper": Meaning("Upper end of the 95 % interval of the difference"),
    "hits": Meaning("Share of the positive texts that are called positive"),
    "false_alarms": Meaning("Share of the negative texts that are called positive"),
}
"""Columns for the AUROC of a detector or a statistic."""


def spaced(name: str) -> str:
    """Return a name with blanks in place of underscores."""
    return name.replace("_", " ")


def meaning_of_end(mean: Meaning, word: str) -> Meaning:
    """Return the meaning of the lower or upper end of a mean's interval."""
    return Meaning(
        f"{word.capitalize()} end of the 95 % interval of the mean", mean.unit, f"{mean.label}, {word} end"
    )


def meaning_of_name(name: str) -> Meaning:
    """Return the meaning that a name has in every table; empty for all other names."""
    if name in PLACE_MEANINGS:
        return PLACE_MEANINGS[name]._replace(label=PLACE_MEANINGS[name].label or spaced(name))
    base = name.removesuffix(SHARE)
    if base != name and base in STATISTICS_ABOUT:
        about = STATISTICS_ABOUT[base].removesuffix(OF_THESE)
        return Meaning(f"{about}, as a share of the weight of all queries", label=f"{spaced(base)}, share")
    unit = ROW_STATISTICS[name].unit if name in ROW_STATISTICS else STATISTIC_UNITS.get(name, "")
    return Meaning(_statistic_about(name), unit, spaced(name))


def _statistic_about(name: str) -> str:
    """Return the sentence on a statistic; for a plugin's, the first line of its formula's docstring."""
    if name not in ROW_STATISTICS:
        return STATISTICS_ABOUT.get(name, "")
    if about := ROW_STATISTICS[name].about:
        return about
    first, *_ = (load_usable_place(ROW_STATISTICS[name].formula).__doc__ or "").strip().split("\n")
    return first.strip().removesuffix(".")
