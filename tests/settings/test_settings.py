"""The meaning of settings: types in YAML, defaults that depend on others, the schema."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml

from attncli.errors import UserError
from attncli.settings import SPECS, spec_class_of
from attncli.settings.config_file import ConfigFile, config_schema, resolved_yaml
from attncli.settings.fields import Given, build_spec
from tests.conftest import in_turn
from tests.running import LESSON_FILES, ROOT

CONFIGS = sorted(ROOT.glob("configs/*.yaml"))
LESSONS = sorted(LESSON_FILES.glob("*.yaml"))


def spec_of(experiment: str, **settings: object):
    return build_spec(
        spec_class_of(experiment, settings), {key: Given(value, "here") for key, value in settings.items()}
    )


def test_the_key_determines_the_type_of_a_scalar(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "steps:\n"
        "  - {experiment: self, sentence: yes, seed: 012, scale: 1e-1, causal: yes}\n"
        "  - {experiment: self, sentence: 1e3, embed_dim: '16', head_dim: null}\n"
        "  - {experiment: norm, eps: 1e-5}\n"
    )
    first, second, third = (entry.spec for entry in ConfigFile(path).entries())
    assert (first.sentence, first.seed, first.scale, first.causal) == ("yes", 12, 0.1, True)
    assert (second.sentence, second.embed_dim, second.head_dim) == ("1e3", 16, 16)
    assert third.eps == 1e-5


def test_sizes_follow_from_each_other() -> None:
    assert spec_of("self", embed_dim=6).value_dim == 6
    assert spec_of("self", head_dim=5).value_dim == 5
    multihead = spec_of("multihead", embed_dim=12, num_heads=3)
    assert (multihead.head_dim, multihead.value_dim, multihead.num_kv_heads) == (4, 4, 3)
    assert spec_of("multihead", embed_dim=10, num_heads=3, head_dim=7).head_dim == 7
    assert spec_of("self", num_tokens=3).embedding == "gaussian"
    assert spec_of("self").sentence == "the cat walks on the street"
    assert spec_of("cross", num_tokens=3).num_context_tokens == 3


def test_embed_dim_comes_from_the_vector_file(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text(". . . 1 2 3\nthe 1 2 3\n")
    assert spec_of("self", embedding=str(path)).embed_dim == 3
    with pytest.raises(Exception, match="must be 3, as in"):
        spec_of("self", embedding=str(path), embed_dim=4)


def test_a_step_reseeds_only_with_a_seed_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("defaults: {seed: 5}\nsteps: [{experiment: norm}, {experiment: norm, seed: 5}]\n")
    entries = ConfigFile(path).entries()
    assert [(entry.reseed, entry.spec.seed) for entry in entries] == [
        (False, 5),
        (True, 5),
    ]


@pytest.mark.parametrize("name", SPECS)
def test_every_setting_has_a_description(name: str) -> None:
    for key, field in SPECS[name].model_fields.items():
        assert field.description, key


@pytest.mark.parametrize("name", SPECS)
def test_resolved_settings_can_be_run_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"seed": Given(7, "--seed")}
    if "sentence" in SPECS[name].model_fields:
        given["sentence"] = Given('null # "no" [x]: y \U0001f600 \x1b\u202e\x7f\x85', "x\ny.yaml:1:1")
    if "embedding" in SPECS[name].model_fields:
        vectors = tmp_path / "v.txt"
        vectors.write_text("the 1 2 3 4 5 6 7 8\n")
        monkeypatch.chdir(tmp_path)
        given["embedding"] = Given("v.txt", "--embedding")
    spec = build_spec(SPECS[name], given)
    text = resolved_yaml(spec, given)
    assert all(c.isprintable() or c == "\n" for c in text)
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "again.yaml"
    path.write_text(text)
    (entry,) = ConfigFile(path).entries()
    changed = {"embedding": str(tmp_path / "v.txt")} if "embedding" in given else {}
    assert entry.spec.model_dump() == spec.model_dump() | changed


@cache
def schema_validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(config_schema())


@pytest.mark.parametrize("path", [*CONFIGS, *LESSONS], ids=lambda path: path.name)
def test_shipped_files_are_valid_by_our_schema_and_by_us(path: Path) -> None:
    schema_validator().validate(yaml.safe_load(path.read_text()))
    ConfigFile(path).entries()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_editors_find_the_schema(path: Path) -> None:
    modeline = path.read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / modeline).resolve() == ROOT / "configs" / "schema.json"


def test_the_shipped_schema_is_fresh() -> None:
    schema = schema_validator().schema
    jsonschema.Draft202012Validator.check_schema(schema)
    shipped = json.loads((ROOT / "configs" / "schema.json").read_text())
    assert shipped == schema, "run: attn info config-schema > configs/schema.json"


@pytest.mark.parametrize(
    "bad", [{"experiment": "self", "head_dm": 3}, {"experiment": "self", "head_dim": 0}, {}]
)
def test_the_schema_refuses_invalid_configs(bad: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        schema_validator().validate(bad)


@pytest.mark.parametrize(
    "good",
    [
        {"experiment": "heads", "ablate": "0:1,1:0"},
        {"experiment": "cache", "policy": "all", "budget": "0.1, 0.3"},
        {"experiment": "cache", "policy": ["h2o"], "budget": 0.3},
        {"experiment": "cache", "sweep": {"policy": ["h2o", "tova"]}},
    ],
)
def test_the_schema_accepts_lists_written_as_text(good: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(yaml.safe_dump(good))
    assert ConfigFile(path).entries()
    schema_validator().validate(good)


def integer_settings(experiment: str) -> Iterator[str]:
    for key, about in SPECS[experiment].model_json_schema()["properties"].items():
        if any(form.get("type") == "integer" for form in [about, *about.get("anyOf", ())]):
            yield key


@pytest.mark.parametrize(
    ("experiment", "text"), in_turn(SPECS, [str(10**20), "9" * 5000]), ids=lambda value: value[:20]
)
def test_every_whole_number_has_a_bound(experiment: str, text: str) -> None:
    for key in integer_settings(experiment):
        bound = f"less than {2**63}" if key == "seed" else "at most 1000000000"
        with pytest.raises(UserError) as refused:
            spec_of(experiment, **{key: text})
        (line,) = (line for line in refused.value.lines if "got 99" in line or "got 10" in line)
        expected = "a smaller whole number" if len(text) > 4300 else bound
        assert line.startswith(f"here: {key}: must be {expected} (got {text[:20]}") and len(line) < 150
