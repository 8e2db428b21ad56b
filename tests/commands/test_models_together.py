"""Texts that run through a model together have the same reports as single texts."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from attncli.errors import UserError
from attncli.models import stored
from attncli.models.capture import Way, capture
from attncli.models.layers import Consumer
from attncli.records.report import Report
from tests.model_folders import save_model, save_writer
from tests.running import run_together
from tests.toys.test_together import alone, assert_same, spec_of

SENTENCES = [
    "the cat sat",
    "die katze was",
    "the cat walks on the street",
    "it was tired",
    "the cat sat because it was tired",
    "on the street it sat tired",
    "cat",
    "because because because because because because because",
]
LONG = [
    " ".join(["the cat sat because it was tired"] * 20),
    " ".join(["was it the cat on street tired"] * 20),
]


def assert_together_is_alone(experiment: str, model: Path, texts: list[str], **settings: object) -> None:
    """Within 1e-5, because products of more rows may be rounded differently."""
    specs = [
        spec_of(experiment, model=str(model), sentence=text, seed=seed, **settings)
        for seed, text in enumerate(texts)
    ]
    for got, spec in zip(run_together(specs), specs, strict=True):
        assert isinstance(got, Report)
        assert_same(got, alone(spec), tolerance=1e-5)


ALL_SETTINGS = {"weighted": True, "skip_sink": 1, "rollout": True, "maps": "self", "top": 3}
OTHER_TEXT = "die katze sat on it"


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("GPT-OSS", {}),
        ("T5", {}),
        ("BLOOM", {"statistic": "entropy"}),
        ("BERT", {"weighted": True, "sort": "value_norm"}),
        ("Gemma 2", ALL_SETTINGS),
        ("BART", {"maps": "cross", "context": OTHER_TEXT}),
        ("BART", {"maps": "encoder", "context": OTHER_TEXT}),
        ("BART", {"maps": "self"}),
    ],
    ids=str,
)
def test_heads_of_many_texts(tmp_path: Path, architecture: str, settings: dict[str, object]) -> None:
    assert_together_is_alone("heads", save_model(tmp_path, architecture), SENTENCES, **settings)


def test_long_texts_keep_maps_of_blocks_and_full_heads(tmp_path: Path) -> None:
    folder = save_model(tmp_path, "Llama")
    assert_together_is_alone("heads", folder, LONG, maps="self", full=["1:3", "0:0"])


def test_probes_of_several_seeds(tmp_path: Path) -> None:
    specs = [spec_of("heads", model=str(save_model(tmp_path, "GPT-2")), seed=seed) for seed in range(4)]
    found = run_together(specs)
    for got, spec in zip(found, specs, strict=True):
        assert_same(got, alone(spec), tolerance=1e-5)
    assert len({one.tokens for one in found if isinstance(one, Report)}) == 4


@pytest.mark.parametrize("architecture", ["GPT-OSS", "T5", "BLOOM"])
def test_one_layer_of_many_texts(tmp_path: Path, architecture: str) -> None:
    """With an explanation if possible, because such a report has all other parts as well."""
    folder, explain = save_model(tmp_path, architecture), architecture != "BLOOM"
    for experiment, settings in (
        ("multihead", {"layer": 1}),
        ("self", {"layer": 1, "head": 3}),
        ("self", {"layer": 0, "top_k": 0}),
    ):
        assert_together_is_alone(experiment, folder, SENTENCES, explain=explain, **settings)


def test_cross_attention_of_many_texts(tmp_path: Path) -> None:
    folder = save_model(tmp_path, "T5")
    assert_together_is_alone("cross", folder, SENTENCES, context="the cat was tired", layer=1, head=2)


@pytest.mark.parametrize("experiment", ["heads", "multihead"])
def test_texts_of_equal_counts_run_at_once(
    tmp_path: Path, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(save_model(tmp_path, "BERT"))
    specs = [spec_of(experiment, model=model, sentence=text) for text in ["a b", "c d e", "f g", "h i", "k"]]
    sizes: list[int] = []

    def counted(model: object, inputs: Mapping[str, torch.Tensor], consume: Consumer, *meanwhile: Any) -> Way:
        sizes.append(len(inputs["input_ids"]))
        return capture(model, inputs, consume, *meanwhile)

    module = "measure.heads" if experiment == "heads" else "features.attention.in_models"
    monkeypatch.setattr(f"attncli.{module}.capture", counted)
    found = run_together(specs)
    assert [len(one.tokens) for one in found if isinstance(one, Report)] == [4, 5, 4, 4, 3]
    assert sorted(sizes) == [1, 1, 3]


def test_one_text_that_does_not_fit_spoils_no_other(tmp_path: Path) -> None:
    """Each outcome has the place of its spec."""
    folder = save_model(tmp_path, "BERT")
    texts = ["the cat sat", "the " * 600, "it was tired", "cat"]
    specs = [spec_of("heads", model=str(folder), sentence=text, skip_sink=3) for text in texts]
    found = run_together(specs)
    assert [type(one) for one in found] == [Report, UserError, Report, UserError]
    for got, spec in zip(found, specs, strict=True):
        assert_same(got, alone(spec), tolerance=1e-5)
    assert "sentence: must be at most 512 tokens" in found[1].lines[0]
    assert "skip_sink: must be below 3" in found[3].lines[0]


@pytest.mark.parametrize(
    "experiment",
    ["generate max_new_tokens=2", "ablate method=mean"],
)
def test_texts_on_a_model_whose_weights_stay_in_its_files(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacing parts of the model between two runs does not affect texts that are read meanwhile."""
    monkeypatch.setattr(stored, "SMALL_NUMBERS", 200)
    name, *flags = experiment.split()
    settings: dict[str, object] = dict(flag.split("=") for flag in flags)
    folder = save_writer(tmp_path, "Llama")
    specs = [
        spec_of(name, model=str(folder), sentence=text, load="disk", seed=7, **settings)
        for text in SENTENCES[:5]
    ]
    expected = [alone(spec) for spec in specs]
    module, num_reports = import_module(f"attncli.features.{name}.question"), 0
    page = module.PAGE

    def counted(*given: object) -> Report:
        nonlocal num_reports
        num_reports += 1
        made: Report = page.report(*given)
        return made

    monkeypatch.setattr(module, "PAGE", replace(page, report=counted))
    for got, one in zip(run_together(specs), expected, strict=True):
        assert isinstance(got, Report)
        assert_same(got, one, tolerance=1e-5)
    assert num_reports == len(specs), "none has failed beside the others"
