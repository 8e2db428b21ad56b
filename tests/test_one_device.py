"""All tensors of a command are on one device, checked without CUDA by a device that refuses to mix."""

from pathlib import Path

import numpy as np
import pytest
import torch

from attncli.core.attention_statistics import attention_statistics
from attncli.core.layer import Visibility
from attncli.errors import UserError
from attncli.records.report import Report
from attncli.settings import SPECS
from attncli.settings.fields import Given, Spec, build_spec
from tests.conftest import some_seldom
from tests.model_folders import save_model
from tests.pretended_device import CUDA, device_of, pretended_cuda
from tests.running import ROOT, run, run_together
from tests.toys.test_together import assert_same

TINY = str(ROOT / "attncli" / "data" / "tiny-induction")
SETTINGS = [
    *((name, {}) for name in SPECS),
    ("self", {"causal": True, "explain": True}),
    ("self", {"projection": "none"}),
    ("self", {"engine": "streaming", "causal": True, "num_tokens": 1100, "window": 70, "sink": 0.5}),
    ("self", {"differential": True}),
    ("self", {"softmax": False}),
    ("multihead", {"rope": True, "qk_norm": True, "num_kv_heads": 2, "window": 3, "causal": True}),
    ("multihead", {"alibi": True, "softcap": 3.0, "sink": 1.0, "temperature": 2.0, "explain": True}),
    ("multihead", {"relative_bias": True, "batch_size": 2, "num_tokens": 5, "embedding": "gaussian"}),
    ("cross", {"engine": "streaming"}),
    ("average", {"method": "softmax", "over": "all", "softmax_twice": True}),
    ("average", {"aggregate": "sum"}),
    ("average", {"method": "all"}),
    ("heads", {"sentence": "the cat sat because the cat was tired", "maps": "self", "rollout": True}),
    ("heads", {"weighted": True, "skip_sink": 1}),
    ("heads", {"sentence": "the cat walks on the street " * 4, "maps": "self", "full": ["0:1"]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("experiment", "settings"),
    [
        pytest.param(*each, marks=[pytest.mark.nightly] if each[0] == "separate" else [], id=str(each)[:60])
        for each in SETTINGS
    ],
)
def test_an_experiment_gives_the_same_numbers_on_another_device(
    experiment: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(experiment, **settings, device="cpu")
    with pretended_cuda(monkeypatch):
        found = run(experiment, **settings, device="cuda")
    # A regression over all heads amplifies rounding errors.
    assert_same_numbers(found, expected, tolerance=1e-2 if experiment == "separate" else 1e-5)


def assert_same_numbers(found: Report, expected: Report, tolerance: float = 1e-5) -> None:
    """Compare tensors and statistics; the setting `device` differs."""
    # One pass is torch's; the other is compiled, if there is a compiler.
    assert_same(found.tensors, expected.tensors, tolerance=tolerance)
    assert_same(found.statistics, expected.statistics, tolerance=tolerance)


MODELS = ["BERT", "GPT-2", "Llama", "Mistral", "Gemma 2", "T5", "BART", "ModernBERT", "BLOOM"]


@pytest.mark.parametrize("architecture", some_seldom(MODELS, ["GPT-2", "Mistral", "BART"]))
def test_a_model_is_measured_on_one_device(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(save_model(tmp_path, architecture))
    text = {"model": folder, "sentence": "the cat sat because the cat was tired"}
    asked = [
        # BLOOM returns its weights without the values.
        ("heads", {"weighted": architecture != "BLOOM", "maps": "self"}),
        ("heads", {"skip_sink": 1}),
        ("self", {"layer": 1, "explain": True}),
        ("multihead", {}),
    ]
    for experiment, settings in asked:
        expected = run(experiment, **text, **settings, device="cpu")
        with pretended_cuda(monkeypatch):
            found = run(experiment, **text, **settings, device="cuda")
        assert_same_numbers(found, expected)


def specs_of(experiment: str, device: str, **settings: object) -> list[Spec]:
    texts = ("the cat walks", "on the street", "the the the", "it was tired and sat", "cat")
    given = {key: Given(value, key) for key, value in {**settings, "device": device}.items()}
    return [build_spec(SPECS[experiment], {**given, "sentence": Given(text, "")}) for text in texts]


@pytest.mark.parametrize(
    ("experiment", "settings"),
    [
        ("self", {}),
        ("multihead", {"causal": True}),
        ("heads", {}),
        ("self", {"model": TINY}),
    ],
)
def test_a_batch_of_texts_is_on_one_device(
    experiment: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run_together(specs_of(experiment, "cpu", **settings))
    with pretended_cuda(monkeypatch):
        found = run_together(specs_of(experiment, "cuda", **settings))
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, Report) and isinstance(other, Report)
        assert_same_numbers(one, other)


@pytest.mark.parametrize(("num_keys", "top_k"), [(9, 0), (9, 3), (1200, 3)])
def test_statistics_stay_on_the_device_of_the_query(
    num_keys: int, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, key, value = (torch.randn(2, 4, count, 8) for count in (7, num_keys, num_keys))
    options = {"causal": True, "top_k": top_k, "keys": True, "pooled": 4, "window": 500}
    masks = {"sink": torch.randn(4), "key_mask": torch.rand(2, 1, num_keys) > 0.2}
    expected = attention_statistics(query, key, value, **options, **masks)
    with pretended_cuda(monkeypatch):
        query, key, value = (tensor.to("cuda") for tensor in (query, key, value))
        found = attention_statistics(
            query, key, value, **options, **{k: v.to("cuda") for k, v in masks.items()}
        )
        numbers = {name: each for name, each in vars(found).items() if name != "rows"} | found.rows
        for name, tensor in numbers.items():
            assert device_of(tensor) == CUDA, name
            np.testing.assert_allclose(
                tensor.numpy(force=True), getattr(expected, name), rtol=1e-5, atol=1e-6
            )


def test_a_tensor_left_on_the_cpu_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def positions(self: Visibility, queries: slice, device: torch.device) -> torch.Tensor:
        return torch.arange(queries.start + self.shift, queries.stop + self.shift)

    monkeypatch.setattr(Visibility, "positions", positions)
    assert run("self", causal=True, device="cpu").tensors
    with pretended_cuda(monkeypatch), pytest.raises(RuntimeError, match="same device, found cpu and cuda:0"):
        run("self", causal=True, device="cuda")


def test_an_unavailable_device_is_refused() -> None:
    if torch.cuda.is_available():
        assert run("self", device="cuda").tensors
    else:
        with pytest.raises(UserError, match="device: cuda is not available"):
            run("self", device="cuda")
