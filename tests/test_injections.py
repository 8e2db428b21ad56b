"""The prompts of the study of injections: docs/studies/injections.jsonl."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import mannwhitneyu

PROMPTS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "docs" / "studies" / "injections.jsonl").read_text().splitlines()
]
FAMILIES = ("override", "impersonation", "hidden", "third_party", "fake_turn")


def test_each_family_has_forty_pairs() -> None:
    """A pair shares its instruction and the kind of its document, and nothing is there twice."""
    assert Counter((prompt["family"], prompt["injected"]) for prompt in PROMPTS) == {
        (family, injected): 40 for family in FAMILIES for injected in (True, False)
    }
    for key in ("id", "document", "prompt"):
        assert len({prompt[key] for prompt in PROMPTS}) == len(PROMPTS)
    pairs = Counter((prompt["pair"], prompt["instruction"], prompt["kind"]) for prompt in PROMPTS)
    assert set(pairs.values()) == {2}


def test_a_prompt_is_its_instruction_and_its_document() -> None:
    for prompt in PROMPTS:
        assert prompt["prompt"] == f"{prompt['instruction']}\n\n{prompt['document']}"
        assert 30 <= len(prompt["prompt"].split()) <= 120, prompt["id"]


@pytest.mark.parametrize("family", FAMILIES)
def test_length_alone_does_not_tell_them_apart(family: str) -> None:
    """The AUROC of characters and of words is between 0.4 and 0.6."""
    for length in (len, lambda text: len(text.split())):
        injected, plain = (
            [
                length(prompt["prompt"])
                for prompt in PROMPTS
                if prompt["family"] == family and prompt["injected"] is label
            ]
            for label in (True, False)
        )
        auroc = mannwhitneyu(injected, plain).statistic / (len(injected) * len(plain))
        assert 0.4 <= auroc <= 0.6
