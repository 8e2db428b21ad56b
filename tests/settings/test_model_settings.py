"""A model among the settings: where it lies, and which settings it leaves nothing to say."""

from pathlib import Path

import pytest

from attncli.errors import UserError
from attncli.settings import SPECS
from attncli.settings.attention import DETAILS
from attncli.settings.config_file import ConfigFile
from attncli.settings.validation import Given, build_spec

OTHERS = {
    "num_tokens": 3,
    "embed_dim": 8,
    "embedding": "gaussian",
    "projection": "uniform",
    "head_dim": 16,
    "scale": 2.0,
    "softmax": False,
    "engine": "dense",
    "sink": -1.0,
    "temperature": 2.0,
    "qk_norm": True,
}
"""Settings of drawn weights, none at its default: at its default a setting contradicts nothing."""


def built(experiment: str, **settings: object) -> object:
    return build_spec(SPECS[experiment], {key: Given(value, key) for key, value in settings.items()})


def test_a_folder_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    config = tmp_path / "config.yaml"
    config.write_text("experiment: multihead\nmodel: small\nlayer: 1\n")
    (entry,) = ConfigFile(config).entries()
    assert entry.spec.model == str(tmp_path / "small") and entry.spec.layer == 1  # type: ignore[attr-defined]


def test_a_hub_id_stays_as_it_is(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("experiment: heads\nmodel: openai-community/gpt2\nallow_download: true\n")
    (entry,) = ConfigFile(config).entries()
    assert entry.spec.model == "openai-community/gpt2"  # type: ignore[attr-defined]


@pytest.mark.parametrize("experiment", ["self", "multihead", "cross"])
def test_every_setting_of_drawn_weights_is_refused(tmp_path: Path, experiment: str) -> None:
    spec = build_spec(SPECS[experiment], {"model": Given(str(tmp_path), "model")})
    idle = spec.unused_keys()
    assert {"embed_dim", "embedding", "projection", "scale", "softmax", "num_tokens", "head_dim"} <= idle
    assert not {"sentence", "file", "seed", "device", "model", "layer", "tokenizer", "top_k"} & idle
    for key, value in OTHERS.items():
        with pytest.raises(UserError, match=f"{key}: .*cannot be combined with model"):
            built(experiment, model=str(tmp_path), **{key: value})


def test_without_a_model_its_settings_are_idle() -> None:
    spec = build_spec(SPECS["self"], {})
    of_model = {
        "image",
        "from",
        "layer",
        "head",
        "ablate",
        "words",
        "allow_download",
        "truncate",
        "dtype",
        "load",
        "token",
    }
    assert spec.unused_keys() == {*of_model, *DETAILS}
