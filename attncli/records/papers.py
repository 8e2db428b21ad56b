"""The papers behind the methods that made a report.

Cards name papers by the ids of a bibliography in BibTeX; attn's own is data/papers.bib. `PAPERS` names the
papers of the kernel's statistics and settings.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from attncli.feature import BrokenPlugin, Feature, plugin_of, print_problem, read_file
from attncli.index import installed_features
from attncli.records.report import Report
from attncli.records.values import Table

BIBLIOGRAPHY = "attncli:data/papers.bib"
PAPERS = {
    "entropy": "clark2019",
    "normalized_entropy": "clark2019",
    "distance": "vig2019",
    "local_mass": "xiao2023",
    "max_score": "kimik2025",
    "sink_mass": "xiao2023",
    "sink_mass_4": "xiao2023",
    "sink_rate": "gu2024",
    "one_key_mass": "gu2024",
    "previous_token": "clark2019",
    "next_token": "clark2019",
    "special_mass": "clark2019",
    "induction": "olsson2022 elhage2021",
    "neighbour": "cordonnier2020",
    "high_norm_mass": "darcet2023",
    "near_mass": "yang2020",
    "lookback_ratio": "chuang2024",
    "needle_mass": "wu2024",
    "retrieval": "wu2024",
    "value_norm": "kobayashi2020",
    "rollout": "abnar2020",
}
"""Ids of papers, separated by spaces, by statistics and settings of the kernel."""
ENTRY = re.compile(r"^@(\w+)\{([\w:.-]+),\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^\s*(\w+)\s*=\s*\{(.*)\},?$", re.MULTILINE)


class Paper(NamedTuple):
    """An entry of a bibliography: its type, its id, and its fields in BibTeX notation."""

    kind: str
    id: str
    fields: Mapping[str, str]

    def __str__(self) -> str:
        """Return the authors, the year, the title and the arXiv number, DOI or URL on one line."""
        fields = {name: re.sub(r"[{}$\\]", "", value) for name, value in self.fields.items()}
        words = [" ".join(filter(None, (self._authors(), fields.get("year")))), fields.get("title", self.id)]
        if "version" in fields:
            words.append(f"Version {fields['version']}")
        if "eprint" in fields:
            words.append(f"arXiv:{fields['eprint']}")
        elif "doi" in fields:
            words.append(f"doi:{fields['doi']}")
        elif "url" in fields:
            words.append(fields["url"])
        return "".join(f"{word}{'' if word.endswith('?') else '.'} " for word in words[:-1]) + words[-1]

    def _authors(self) -> str:
        """Return the authors' last names, like `Clark`, `Vig & Belinkov` or `Xiao et al.`"""
        authors = self.fields.get("author", "").split(" and ")
        names = [author.partition(",")[0].strip("{}") for author in authors]
        if len(names) > 2 or names[-1] == "others":
            return f"{names[0]} et al."
        return " & ".join(names)

    def bibtex(self) -> str:
        fields = "".join(f"  {name} = {{{value}}},\n" for name, value in self.fields.items())
        return f"@{self.kind}{{{self.id},\n{fields}}}"


class Citation(NamedTuple):
    """A paper and the statistics, settings and kinds of results for which it is cited."""

    paper: Paper
    uses: tuple[str, ...]


@cache
def bibliography(file: str = BIBLIOGRAPHY) -> Mapping[str, Paper]:
    """Return the entries of a BibTeX file, `package:path`, by id.

    Raises BrokenPlugin if the file is in another package and cannot be read.
    """
    entries = ENTRY.findall(read_file(file))
    return {id: Paper(kind, id, dict(FIELD.findall(fields))) for kind, id, fields in entries}


def card_papers(card: Feature) -> dict[str, list[Paper]]:
    """Return the papers that a card names, by what they are cited for.

    Raises BrokenPlugin if the card's bibliography cannot be read or lacks an entry for an id.
    """
    entries = {**bibliography(), **(bibliography(card.bibliography) if card.bibliography else {})}
    unknown = [id for ids in card.papers.values() for id in ids.split() if id not in entries]
    if unknown:
        plugin = plugin_of(card.bibliography) if card.bibliography else None
        raise BrokenPlugin(
            f"plugin {plugin}: papers: {unknown[0]} is not in {card.bibliography or BIBLIOGRAPHY}"
        )
    return {use: [entries[id] for id in ids.split()] for use, ids in card.papers.items()}


def citations(reports: Iterable[Report]) -> list[Citation]:
    """Return the papers of all reports, sorted by author and year, without the papers of broken cards."""
    uses: dict[str, dict[str, None]] = {}
    papers: dict[str, Paper] = {}
    for report in reports:
        for use, paper in _used_papers(report):
            papers.setdefault(paper.id, paper)
            uses.setdefault(paper.id, {})[use] = None
    return [Citation(papers[id], tuple(uses[id])) for id in sorted(papers)]


def _used_papers(report: Report) -> Iterator[tuple[str, Paper]]:
    entries, names = bibliography(), _names_in(report)
    for use, ids in PAPERS.items():
        if use in names:
            yield from ((use, entries[id]) for id in ids.split())
    for name, card in installed_features().items():
        for use, papers in _usable_papers(name).items() if card.papers else ():
            applies = report.kind in card.results or not card.results or use in card.statistics
            if use == report.kind or (applies and use not in card.results and _is_in(use, report, names)):
                yield from ((use, paper) for paper in papers)


@cache
def _usable_papers(feature: str) -> Mapping[str, list[Paper]]:
    """Return the papers on a card. If they cannot be read, print one line on standard error instead."""
    try:
        return card_papers(installed_features()[feature])
    except BrokenPlugin as error:
        print_problem(str(error))
        return {}


def _names_in(report: Report) -> set[str]:
    """Return the report's kind, the settings in use, and the names of tables, columns and statistics."""
    settings = report.spec.items()
    names = {report.kind, *(name for name, value in settings if value or type(value) in (int, float))}
    for group, statistic in report.statistics.items():
        names.add(group)
        if isinstance(statistic, Table):
            if len(statistic):
                names |= {*statistic[0]}
            names |= {str(row["statistic"]) for row in statistic if "statistic" in row}
        else:
            names |= {*statistic}
    return names


def _is_in(use: str, report: Report, names: set[str]) -> bool:
    """Return True if the report has the name, or has `name=value` as a setting or in a column of a table."""
    name, equals, value = use.partition("=")
    if not equals:
        return name in names
    setting = report.spec.get(name)
    if value in (setting if isinstance(setting, list) else [setting]):
        return True
    tables = (table for table in report.statistics.values() if isinstance(table, Table))
    return any(row.get(name) == value for table in tables for row in table)
