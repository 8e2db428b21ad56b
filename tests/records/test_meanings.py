"""The meaning of columns: a sentence on every column of a built-in result, and where it is shown."""

import pytest

from attncli.core.names import ROW_STATISTICS, RowStatistic
from attncli.features.why.results import HeadLogit
from attncli.records.glossary import glossary
from attncli.records.kinds import KINDS, read_result
from attncli.records.meanings import meaning_of_name
from attncli.records.report import Report
from attncli.records.values import Numbers, Table
from attncli.views.page.meanings import page_meanings
from tests.conftest import Attn


def test_every_column_of_a_built_in_result_has_a_sentence() -> None:
    for name, entries in glossary().items():
        for meaning, tables in entries:
            assert meaning.about and meaning.about == meaning.about.strip(". "), (name, tables)
            assert meaning.label, name
    groups = [group for result in KINDS.values() for group in result.groups()]
    assert all(group.meaning.about for group in groups if group.kind and not group.is_numbers)
    assert all(group.kind.others.about for group in groups if group.kind and group.kind.others)


def test_ends_of_intervals_and_shares_follow_from_their_column() -> None:
    assert HeadLogit.meaning("contribution_low").about.startswith("Lower end")
    assert HeadLogit.meaning("contribution_low").unit == "logit"
    assert meaning_of_name("induction_mul").about.endswith("as a share of the weight of all queries")
    assert meaning_of_name("nothing") == ("", "", "nothing")


def test_the_statistic_of_a_plugin_has_the_first_line_of_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROW_STATISTICS, "spread", RowStatistic("attncli.core.formulas:received_mass"))
    assert meaning_of_name("spread").about.startswith("The sum over queries of the weights on a key")


def test_a_page_has_the_meanings_of_its_own_columns() -> None:
    rows = [{"layer": 0, "head": 1, "pattern": "induction", "contribution": 0.5}]
    parts = Numbers({"embedding": 1.0, "heads": 2.0, "mlps": 0.0, "biases": 0.0, "logit": 3.0})
    layers = Table([{"layer": 0, "mlp": 1.0}])
    result = read_result("why", {"heads": Table(rows), "layers": layers, "parts": parts})
    found = page_meanings(Report("why", {}, {}, result=result))
    assert found["names"]["contribution"] == [HeadLogit.meaning("contribution").about, "logit"]
    assert found["names"]["mlp"][2] == "MLP"
    assert "attention" not in found["names"]
    assert found["tables"]["parts"]["about"][2] == "Kinds of parts"


def test_a_notebook_shows_the_meaning_as_the_title_of_a_header() -> None:
    html = HeadLogit.rows([{"layer": 0, "head": 1, "pattern": "x", "contribution": 0.5}])._repr_html_()
    assert f'title="{HeadLogit.meaning("contribution").about} (in logit)">contribution</th>' in html


def test_info_explains_columns(attn: Attn) -> None:
    shown = attn(["info", "columns", "kept_weight"]).out.splitlines()
    assert shown == ["kept_weight", f"  {glossary()['kept_weight'][0].meaning.about}", "  cache: heads"]
    listed = attn(["info", "columns"]).out
    assert "kept_weight" in listed and "share_low" not in listed
