"""Results of the library at a prompt and in a notebook."""

from dataclasses import replace

import attncli
from attncli.records.surveys import SurveyedHead
from tests.running import ROOT

TINY = str(ROOT / "attncli" / "data" / "tiny-induction")


def test_a_survey_shows_itself_as_a_small_table() -> None:
    """Markup in a name is shown as text."""
    survey = attncli.survey(TINY, "abcabc")
    lines = repr(survey).splitlines()
    assert lines[0].startswith("HeadSurvey: 8 rows in .heads") and len(lines) == 2 + 8
    assert lines[2].split()[0] == "0:0" and max(map(len, lines)) < 120
    page = survey._repr_html_()
    assert page.count("<tr>") == 1 + 8 and "previous token" in page
    hostile = replace(survey, heads=SurveyedHead.rows([{**survey.heads[0], "pattern": "<script>"}] * 300))
    assert "<script" not in hostile._repr_html_() and "290 more rows" in repr(hostile)
    assert len(hostile._repr_html_()) < 5000
