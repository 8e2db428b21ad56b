"""A model among the settings: its path, and the settings that it rules out."""

from pathlib import Path

import pytest

import attncli
from attncli.errors import UserError
from attncli.settings import SPECS, spec_class_of
from attncli.settings.config_file import ConfigFile
from attncli.settings.fields import Given, build_spec

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
"""Settings of sampled weights, none at its default."""


def built(experiment: str, **settings: object) -> object:
    return build_spec(
        spec_class_of(experiment, settings), {key: Given(value, key) for key, value in settings.items()}
    )


def test_a_folder_is_relative_to_the_file_and_a_hub_id_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    config = tmp_path / "config.yaml"
    for model, expected in {"small": str(tmp_path / "small"), "openai-community/gpt2": None}.items():
        config.write_text(f"experiment: multihead\nmodel: {model}\nallow_download: true\n")
        (entry,) = ConfigFile(config).entries()
        assert entry.spec.model == (expected or model)  # type: ignore[attr-defined]


@pytest.mark.parametrize("experiment", ["self", "multihead", "cross"])
def test_every_setting_for_sampled_weights_is_refused(tmp_path: Path, experiment: str) -> None:
    known = SPECS[experiment].model_fields.keys()
    of_model = type(built(experiment, model=str(tmp_path))).model_fields.keys()
    assert {"embed_dim", "embedding", "projection", "scale", "softmax", "num_tokens"} <= known - of_model
    assert {"sentence", "file", "seed", "device", "model", "layer", "tokenizer", "top_k"} <= of_model
    for key, value in OTHERS.items():
        with pytest.raises(UserError, match=f"{key}: .*cannot be combined with model"):
            built(experiment, model=str(tmp_path), **{key: value})


@pytest.mark.parametrize("experiment", ["self", "cross"])
def test_a_setting_is_refused_even_with_its_default(tmp_path: Path, experiment: str) -> None:
    """As a flag, as a key, and from Python."""
    for key in (*OTHERS, "rope"):
        default = getattr(built(experiment), key, None) if key != "num_tokens" else 3
        if default is not None:
            with pytest.raises(UserError, match=f"{key}: .*cannot be combined with model"):
                built(experiment, model=str(tmp_path), **{key: default})
    with pytest.raises(UserError, match=r"embed_dim: .*cannot be combined with model"):
        attncli.run(experiment, model=str(tmp_path), embed_dim=64)
    config = tmp_path / "x.yaml"
    for lines in (
        f"{{experiment: {experiment}, model: ., embed_dim: 64}}",
        f"steps: [{{experiment: {experiment}, model: .}}]\ndefaults: {{embed_dim: 64}}",
        f"{{experiment: {experiment}, model: ., sweep: {{embed_dim: [64, 32]}}}}",
    ):
        config.write_text(lines)
        with pytest.raises(UserError, match=r"embed_dim: .*cannot be combined with model"):
            ConfigFile(config).entries()


def test_a_switch_that_is_off_needs_nothing() -> None:
    assert built("self", words=False, truncate=False) == built("self")


@pytest.mark.parametrize("experiment", ["self", "multihead", "cross"])
def test_without_a_model_its_settings_are_refused(experiment: str) -> None:
    of_model = {"image", "from", "layer", "ablate", "words", "allow_download", "truncate", "dtype", "load"}
    assert not of_model & type(built(experiment)).model_fields.keys()
    assert of_model <= SPECS[experiment].model_fields.keys()
    for key, value in {"layer": 0, "words": True, "ablate": "0:1", "from": "a", "dtype": "bfloat16"}.items():
        with pytest.raises(UserError, match=f"{key}: needs model"):
            built(experiment, **{key: [value] if key in ("ablate", "from") else value})


def test_a_model_keeps_no_table_of_words_for_the_next_step(tmp_path: Path) -> None:
    model, config = tmp_path / "small", tmp_path / "config.yaml"
    model.mkdir()
    config.write_text(
        "steps:\n- {experiment: self, model: small}\n- {experiment: self, embedding: previous}\n"
    )
    with pytest.raises(UserError, match=r"config\.yaml:3:22: embedding: previous needs an earlier step"):
        ConfigFile(config).entries()
