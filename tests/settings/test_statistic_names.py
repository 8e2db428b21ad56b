"""The statistics that an experiment declares are those in its report."""

from pathlib import Path
from typing import Any

import pytest

from attncli.features.pitfalls.question import PITFALLS
from attncli.runs.report_values import as_declared, declared_statistics, values_of
from attncli.runs.runner import Session
from attncli.settings import SPECS
from attncli.settings.fields import Given, Spec, build_spec

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "attncli/data/tiny-induction")
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SPECS),
    ("average", {"aggregate": "sum"}),
    ("average", {"method": "softmax", "softmax_twice": "true"}),
    ("self", {"softmax": "false"}),
    ("self", {"projection": "none", "window": "2"}),
    ("self", {"projection": "none", "temperature": "2"}),
    ("self", {"sink": "1", "rope": "true"}),
    ("self", {"model": MODEL, "sentence": "abc"}),
    ("self", {"model": MODEL, "sentence": "abc", "explain": "true"}),
    ("multihead", {"num_tokens": "5", "batch_size": "2", "engine": "streaming"}),
    ("multihead", {"differential": "true"}),
    ("multihead", {"model": MODEL, "sentence": "abc"}),
    ("cross", {"engine": "streaming"}),
    ("cross", {"differential": "true", "explain": "true"}),
    ("scale-demo", {"head_dim": ["4", "8"]}),
    *(("norm", {"kind": kind}) for kind in ("batch", "layer", "rms")),
    ("heads", {"sentence": "abcabc", "weighted": "true"}),
    ("heads", {"statistic": "induction", "top_k": "3"}),
    ("heads", {"texts": str(ROOT / "configs/prompts.txt")}),
    ("generate", {"needle": "copy", "max_new_tokens": "3"}),
    ("generate", {"layer": "1"}),
    ("generate", {"layer": "1", "head": "2", "maps": "heads"}),
    ("source", {"method": "sampled", "runs": "3", "head": "1:0"}),
    ("ablate", {"approximate": "true"}),
    ("ablate", {"sentence": "abcabc", "answer": "a", "against": "b", "heads": "0:1,1:0", "jointly": "true"}),
    ("ablate", {"sentence": "abcabc", "method": "swap", "other": "abdabd", "answer": "a", "against": "b"}),
    ("ablate", {"sentence": "abab", "method": "swap", "other": "abac", "answer": "a", "token": "each"}),
    ("why", {"sentence": "abcabc", "head": "1:2"}),
    ("circuit", {"weights": "true"}),
    ("cache", {"sentence": "abcabc defabc", "needle": "abc", "budget": "0.9", "window": "2"}),
    ("cache", {"sentence": "abcabc defabc abcabc", "policy": "sinks,tova", "bits": "8"}),
    *(("pitfalls", {"pitfall": name}) for name in PITFALLS),
]


def spec_of(name: str, settings: dict[str, Any]) -> Spec:
    known = SPECS[name].model_fields
    return build_spec(SPECS[name], {k: Given(v, "test") for k, v in settings.items() if k in known})


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_declared_statistics_are_those_of_the_report(name: str, settings: dict[str, Any]) -> None:
    spec = spec_of(name, settings)
    columns, _ = values_of(Session().run(spec, reseed=True))
    assert {as_declared(column.statistic) for column in columns} == {*declared_statistics(spec)}


def test_two_texts_share_no_positions() -> None:
    assert "distance" in spec_of("self", {}).row_statistics()
    assert "distance" not in spec_of("cross", {}).row_statistics()
