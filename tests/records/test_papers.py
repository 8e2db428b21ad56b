"""The bibliography, and what reports cite."""

import re
from pathlib import Path
from typing import Any

import pytest

from attncli import __version__
from attncli.core.names import HEAD_STATISTICS, WRITER_STATISTICS
from attncli.index import FEATURES
from attncli.records.columns import UntypedResult
from attncli.records.papers import PAPERS, Paper, bibliography, card_papers, citations
from attncli.records.report import Report
from attncli.records.values import Numbers, Table
from tests.conftest import Attn
from tests.running import ROOT


def report(kind: str, spec: dict[str, Any], **statistics: list[dict[str, Any]] | dict[str, float]) -> Report:
    values = {
        name: Table(each) if isinstance(each, list) else Numbers(each) for name, each in statistics.items()
    }
    result = UntypedResult(undeclared=values, kind=kind)
    return Report(experiment=kind.split(" of ")[0], spec=spec, environment={}, result=result)


def cited(*reports: Report) -> dict[str, tuple[str, ...]]:
    return {each.paper.id: each.uses for each in citations(reports)}


def test_each_entry_is_whole_and_named_by_somebody() -> None:
    named = {id for card in FEATURES.values() for ids in card.papers.values() for id in ids.split()}
    named |= {id for ids in PAPERS.values() for id in ids.split()}
    assert named == bibliography().keys() - {"attn"}
    text = (ROOT / "attncli" / "data" / "papers.bib").read_text()
    assert len(bibliography()) == text.count("\n@"), "an entry or a field is not in the form that is read"
    for paper in bibliography().values():
        assert paper.bibtex() in text
        assert {"author", "title"} <= paper.fields.keys()
        assert paper.id == "attn" or {"eprint", "doi", "url", "journal"} & paper.fields.keys()
        assert paper.id == "attn" or paper.id.endswith(paper.fields["year"])
        assert text.count(f"{{{paper.fields['title']}}}") == 1
    prints = re.findall(r"eprint = \{(.*)\}", text)
    assert len({*prints}) == len(prints) and all(re.fullmatch(r"\d{4}\.\d{4,5}", each) for each in prints)


OF_MODELS = {
    *("1810.04805", "1911.02150", "2305.09781", "2305.13245", "2405.21060", "2501.08313", "2505.09388"),
}
"""Papers of models and of how batches run, which no report is about."""


def test_every_arxiv_number_of_a_docstring_is_in_it() -> None:
    numbers = {paper.fields.get("eprint") for paper in bibliography().values()} | OF_MODELS
    for path in (ROOT / "attncli").rglob("*.py"):
        assert {*re.findall(r"\b\d{4}\.\d{5}\b", path.read_text())} <= numbers, path


def test_the_kernel_names_statistics_and_settings_that_exist() -> None:
    assert PAPERS.keys() <= {*HEAD_STATISTICS, *WRITER_STATISTICS, "sink_rate", "near_mass", "rollout"}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {
                "author": "Vig, Jesse and Belinkov, Yonatan",
                "title": "A {BERT}",
                "year": "2019",
                "eprint": "1.2",
            },
            "Vig & Belinkov 2019. A BERT. arXiv:1.2",
        ),
        ({"author": "{Gemma Team}", "title": r"A \& B?", "doi": "10.1/2"}, "Gemma Team. A & B? doi:10.1/2"),
        ({"author": "A, B and others", "title": "T", "year": "2020", "url": "x"}, "A et al. 2020. T. x"),
    ],
)
def test_a_paper_as_a_line(fields: dict[str, str], line: str) -> None:
    assert str(Paper("misc", "x", fields)) == line


def test_a_report_cites_its_statistics_settings_and_kind() -> None:
    heads = [{"layer": 0, "head": 0, "induction": 0.5, "sink_mass": 0.1}]
    found = cited(report("heads", {"image": None, "alibi": True}, heads=heads, model={"sink_rate": 0.5}))
    assert found == {
        "elhage2021": ("induction",),
        "gu2024": ("sink_rate",),
        "olsson2022": ("induction",),
        "xiao2023": ("sink_mass",),
    }, "alibi is of another card"
    assert {*cited(report("self", {"rope": True, "alibi": False, "sink": 0.0, "softcap": None}))} == {
        "vaswani2017", "su2021", "miller2023", "openai2025",
    }  # fmt: skip
    assert "dosovitskiy2020" in cited(report("heads", {"image": "x.png"}))
    assert cited(report("a kind of nobody", {})) == {}


def test_a_report_cites_the_values_that_it_lists() -> None:
    rows = [{"policy": name, "cache": 1.0, "kl": 0.0} for name in ("h2o", "random")]
    assert cited(report("cache of policies", {"policy": ["all"]}, policies=rows)) == {
        "zhang2023": ("policy=h2o",)
    }
    assert {*cited(report("cache", {}))} == {"xiao2023"}
    both = cited(report("cache", {}), report("heads", {}, heads=[{"sink_mass": 0.1}]))
    assert both == {"xiao2023": ("cache", "sink_mass")}
    detectors = [{"detector": "a", "statistic": "lookback_ratio"}]
    assert {*cited(report("separate", {}, features=detectors))} == {"delong1988", "chuang2024"}


@pytest.mark.parametrize("name", FEATURES)
def test_the_papers_of_a_card_are_known(name: str) -> None:
    card = FEATURES[name]
    papers = card_papers(card)
    assert papers.keys() == card.papers.keys()
    kinds = {use for use in papers if " of " in use}
    assert kinds <= card.results.keys()


def test_info_cites_saved_reports(attn: Attn, tmp_path: Path) -> None:
    file = tmp_path / "heads.json"
    attn(["heads", "a b a b", "-o", str(file)])
    ended = attn(["info", "cite", str(file)])
    assert (ended.code, ended.err) == (0, "")
    text, _, entries = ended.out.partition("\n@")
    assert (
        "Olsson et al. 2022. In-context Learning and Induction Heads. arXiv:2209.11895\n    for induction\n"
        in text
    )
    assert max(map(len, text.splitlines())) <= 80
    assert text.endswith(f"in a terminal. Version {__version__}.\nhttps://github.com/attncli/attn\n")
    ids = re.findall(r"^@\w+\{(\w+),$", f"@{entries}", re.MULTILINE)
    assert ids == [*sorted(ids[:-1]), "attn"] and "olsson2022" in ids
    assert re.search(r"@software\{attn,\n.*\n.*\n.*\n?.*version = \{\d+\.\d+\.\d+\},\n\}\n$", ended.out)
    assert attn(["info", "cite", str(file), str(file)]).out == ended.out
    assert attn(["info", "cite", str(ROOT / "tests" / "releases" / "0.4.0.jsonl")]).code == 0
