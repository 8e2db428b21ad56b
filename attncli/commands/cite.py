"""`attn info cite`: the papers behind saved reports, as text and in BibTeX."""

from collections.abc import Iterable, Iterator
from textwrap import fill

from attncli.commands.saved_files import opened
from attncli.records.papers import Citation, Paper, bibliography, citations
from attncli.records.report import Report
from attncli.system.plain_text import plain_text

WIDTH = 80
"""The number of columns at which text is wrapped; BibTeX entries are not wrapped."""


def _attn_itself(reports: Iterable[Report]) -> Paper:
    """Return the entry for attn itself, with the versions that made the reports."""
    versions = sorted({version for report in reports if (version := report.environment.get("attncli"))})
    paper = bibliography()["attn"]
    return paper._replace(fields={**paper.fields, "version": ", ".join(versions)}) if versions else paper


def _lines(cited: list[Citation], itself: Paper) -> Iterator[str]:
    for paper, uses in cited:
        yield fill(str(paper), WIDTH, break_on_hyphens=False)
        yield fill(", ".join(uses), WIDTH, initial_indent="    for ", subsequent_indent="    ")
        yield ""
    yield fill(str(itself), WIDTH, break_on_hyphens=False)
    for paper in (*(each.paper for each in cited), itself):
        yield ""
        yield paper.bibtex()


def cite(files: Iterable[str]) -> None:
    """Print each paper and what it is cited for, then all papers and attn itself in BibTeX."""
    reports = [report for file in files for report in opened(file).reports]
    for text in _lines(citations(reports), _attn_itself(reports)):
        for line in text.split("\n"):
            print(plain_text(line))
