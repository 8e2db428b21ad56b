"""What settings declare of others: the forms of a command that do not read them, and what they require."""

from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticUndefined

from attncli.errors import UserError
from attncli.settings import FORMS, SPECS, SPECS_OF_FORMS, every_setting_of, form_asked_for, spec_class_of
from attncli.settings.fields import Form, Given, NotFor, Requires, Spec, build_spec
from attncli.settings.heads import (
    MAPS_OF_HEADS,
    MEASURED_WITH,
    HeadsSpec,
    RequiresFile,
)
from attncli.settings.models import FILE, MANY_TEXTS, ON_GRID, PROBE
from attncli.settings.text import FILE_SETTINGS


def declared_by(spec_class: type[Spec]) -> list[tuple[str, NotFor | Requires]]:
    return [
        (key, declared)
        for key, setting in spec_class.model_fields.items()
        for declared in setting.metadata
        if isinstance(declared, NotFor | Requires)
    ]


DECLARED = [(name, *declared) for name, spec_class in SPECS.items() for declared in declared_by(spec_class)]


def named(value: str | NotFor | Requires | Form) -> str:
    """The name of a case, the same in every process."""
    if isinstance(value, str):
        return value
    return "not for" if isinstance(value, NotFor) else value.key


@pytest.mark.parametrize(("experiment", "key", "declared"), DECLARED, ids=named)
def test_what_is_declared_names_a_setting_and_says_something(
    experiment: str, key: str, declared: NotFor | Requires
) -> None:
    if isinstance(declared, Requires):
        assert (
            declared.key != key
            and {declared.key, *declared.involved} <= SPECS[experiment].model_fields.keys()
        )
        return
    for form in declared.forms:
        assert declared.reason or form.refusal
        keys = [form.key] if form.key else [*FILE_SETTINGS]
        assert any(key in spec_class.model_fields for spec_class in SPECS.values() for key in keys)


def lines_of(spec_class: type[Spec], settings: dict[str, Any]) -> list[str]:
    """The errors of settings that stand in a file, each on the line of its place."""
    given = {
        key: Given(value, f"x.yaml:{line}:1") for line, (key, value) in enumerate(settings.items(), start=1)
    }
    try:
        build_spec(spec_class, given)
    except UserError as error:
        return list(error.lines)
    return []


VALUES: dict[str, Any] = {
    **{"words": True, "texts": "texts.txt", "sentence": "a b", "file": "texts.txt", "probe": "repeated"},
    **{"context": "c", "from": ["a"], "to": ["b"], "skip_sink": 1, "weighted": True, "rollout": True},
    **{
        "maps": "cross",
        "full": ["0:1"],
        "pattern": "induction",
        "sort": "entropy",
        "ascending": True,
        "top": 2,
    },
    **{"table": True, "statistic": "entropy", "head": "0:1"},
    "sound": "talk.wav",
    "names": "nnsight",
}
ASKED: dict[Form, dict[str, Any]] = {
    ON_GRID: {"model": str(HeadsSpec.default_model), "image": "cat.png"},
    FILE: {"model": str(HeadsSpec.default_model), "sound": "talk.wav"},
    MANY_TEXTS: {"texts": "texts.txt"},
    PROBE: {"num_tokens": 5},
    MAPS_OF_HEADS: {"model": str(HeadsSpec.default_model), "image": "pictures.txt", "head": "0:1"},
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("texts.txt", "trees.conllu", "cat.png", "pictures.txt", "talk.wav", "prompts.jsonl"):
        (tmp_path / name).write_text("a b\n")
    monkeypatch.chdir(tmp_path)


OF_HEADS = [
    (key, form, declared.reason or form.refusal)
    for key, declared in declared_by(HeadsSpec)
    if isinstance(declared, NotFor)
    for form in declared.forms
]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("key", "form", "message"), OF_HEADS, ids=named)
def test_a_form_refuses_each_setting_that_it_does_not_read(key: str, form: Form, message: str) -> None:
    settings = {**ASKED[form], key: VALUES[key]}
    setting = next((each for each in FILE_SETTINGS if each in ASKED[form]), "")
    line = f"x.yaml:{[*settings].index(key) + 1}:1: {key}: {message.replace('`', '').format(setting)}"
    assert line in lines_of(HeadsSpec, settings)
    assert lines_of(HeadsSpec, ASKED[form]) == []
    default = HeadsSpec.model_fields[key].default
    if default and default is not PydanticUndefined:
        assert line in lines_of(HeadsSpec, {**settings, key: default})


EXCLUDED = [
    (name, key, other)
    for name, spec_class in SPECS.items()
    for base in spec_class.__mro__
    for key, others in vars(base).get("excludes", {}).items()
    for other in others.split()
]


@pytest.mark.parametrize(("name", "key", "other"), EXCLUDED)
def test_settings_that_exclude_each_other_are_refused_by_one_sentence(
    name: str, key: str, other: str
) -> None:
    spec_class = SPECS[name]
    assert {key, other} <= spec_class.model_fields.keys()
    values: dict[str, Any] = {**VALUES, **dict.fromkeys(("ablate", "into"), "0:1"), "jointly": True}
    given = {each: values.get(each, "1") for each in (key, other)}
    lines = lines_of(spec_class, given | {"model": str(HeadsSpec.default_model), "sentence": "a b"})
    assert any(line.endswith(f": {other}: cannot be combined with {key}") for line in lines), lines


@pytest.mark.usefixtures("files")
def test_errors_come_in_the_order_of_the_settings() -> None:
    given = {"top": 2, "weighted": True, "words": True, "statistic": "entropy"}
    lines = lines_of(HeadsSpec, given)
    places = [[*HeadsSpec.model_fields].index(line.split(": ")[1]) for line in lines]
    assert len(lines) == 3 and places == sorted(places)


@pytest.mark.parametrize("name", MEASURED_WITH)
def test_a_statistic_that_is_not_measured_says_what_it_requires(name: str) -> None:
    (line,) = lines_of(HeadsSpec, {"sentence": "a b", "statistic": name})
    assert line.startswith(f"x.yaml:2:1: statistic: {name} needs {MEASURED_WITH[name].key.replace('`', '')}")


@pytest.mark.usefixtures("files")
def test_a_pattern_that_pictures_do_not_have_is_said_once() -> None:
    lines = lines_of(HeadsSpec, {**ASKED[ON_GRID], "pattern": "induction"})
    assert lines == ["x.yaml:3:1: pattern: induction is of texts, not of pictures"]


OF_FORMS: dict[str, dict[str, Any]] = {
    "relations": {"relations": "trees.conllu"},
    "pairs": {"pairs": "trees.conllu"},
    "alignment": {"model": str(HeadsSpec.default_model), "find_heads": True},
    "words": {"model": str(HeadsSpec.default_model), "sound": "talk.wav", "words": True},
    "examples": {"num_examples": 2, "texts": "texts.txt", "head": "0:1", "sort": "entropy"},
    "retrieving_heads": {"find_heads": True},
    "explained_pictures": {"model": str(HeadsSpec.default_model), "compare": True, "image": "cat.png"},
    "head_weights": {"learn": True, "file": "prompts.jsonl"},
    "explanations": {"compare": True},
    "policies": {"policy": ["sinks"]},
    "few_bits": {"bits": 8},
    "compositions": {"weights": True},
    "detected_texts": {"apply": "texts.txt", "texts": "texts.txt"},
}
FORMS_OF_COMMANDS = [(command, form.name) for command, forms in FORMS.items() for form in forms]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("command", "name"), FORMS_OF_COMMANDS)
def test_a_form_has_its_own_settings_and_refuses_all_others_of_the_command(command: str, name: str) -> None:
    """Each with one sentence, which follows from the two Specs: for none of these is a line written."""
    asked, spec_class = OF_FORMS[name], SPECS_OF_FORMS[command][name]
    assert spec_class_of(command, asked) is spec_class and lines_of(spec_class, asked) == []
    by = next(form for form in FORMS[command] if form.name == name).asked_by.split()[-1]
    for key in every_setting_of(command).model_fields.keys() - spec_class.model_fields.keys():
        line = f"x.yaml:{len(asked) + 1}:1: {key}: cannot be combined with {by}"
        assert lines_of(spec_class, {**asked, key: "1"}) == [line]
        assert lines_of(spec_class, {**asked, key: []}) == []
    asking = {form.asked_by for form in FORMS[command]}
    for key in spec_class.model_fields.keys() - SPECS[command].model_fields.keys() - {*asked, *asking}:
        (line,) = lines_of(SPECS[command], {key: "1"})
        assert line.startswith(f"x.yaml:1:1: {key}: needs ") and by in line


@pytest.mark.parametrize("value", [None, False, [], (), "false", "no", "off"])
def test_a_setting_that_is_left_off_asks_for_no_form(value: object) -> None:
    for command, name in FORMS_OF_COMMANDS:
        form = next(form for form in FORMS[command] if form.name == name)
        first = form.asked_by.split()[-1]
        is_switch = SPECS_OF_FORMS[command][name].model_fields[first].annotation is bool
        if is_switch or value not in ("false", "no", "off"):
            assert form_asked_for(command, {**OF_FORMS[name], first: value}) is not form


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("value", ["", 0])
@pytest.mark.parametrize(
    ("command", "key"),
    [
        *(("heads", key) for key in ("pairs", "relations", "num_examples", "by", "folds")),
        *(("cache", key) for key in ("policy", "bits")),
        ("source", "image"),
    ],
)
def test_an_empty_text_and_zero_are_wrong_and_not_left_off(command: str, key: str, value: object) -> None:
    """As a variable of the shell that is not set: `--pairs "$FILE"` is no survey of random tokens."""
    lines = lines_of(spec_class_of(command, {key: value}), {key: value})
    assert any(line.startswith(f"x.yaml:1:1: {key}: ") for line in lines)
    assert lines_of(SPECS_OF_FORMS["heads"]["pairs"], {"pairs": "trees.conllu", key: value}) != []


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("asked", [{}, {"policy": "window"}, {"bits": 8}])
def test_a_config_file_is_told_what_a_command_reads_in_place_of_a_setting(asked: dict[str, Any]) -> None:
    """As a flag is: `context` was a key of `attn cache` that it only refused."""
    (line,) = lines_of(spec_class_of("cache", asked), {**asked, "context": "c"})
    place = f"x.yaml:{len(asked) + 1}:1: context: is not a setting of attn cache"
    assert line == f"{place}, which reads decoders alone: they have no second text"


def test_a_statistic_of_files_whose_feature_is_off_says_so_without_backticks() -> None:
    (problem,) = RequiresFile(()).contradictions("sort", HeadsSpec(), "near_mass")
    assert problem.message == "near_mass needs a feature that is off"
