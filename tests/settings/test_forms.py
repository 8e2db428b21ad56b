"""Settings that need or exclude others, and the forms of commands, which have their own settings."""

from pathlib import Path
from typing import Any

import pytest

from attncli.errors import UserError
from attncli.settings import FORM_SPECS, FORMS, SPECS, every_setting_of, matching_form, spec_class_of
from attncli.settings.fields import Given, SettingCondition, Spec, alternatives, build_spec
from attncli.settings.heads import HeadsSpec
from attncli.settings.models import FILE, ON_GRID, TRANSCRIBED


def lines_of(spec_class: type[Spec], settings: dict[str, Any]) -> list[str]:
    """Return the errors in settings, each of which is on its own line of a file."""
    given = {
        key: Given(value, f"x.yaml:{line}:1") for line, (key, value) in enumerate(settings.items(), start=1)
    }
    try:
        build_spec(spec_class, given)
    except UserError as error:
        return list(error.lines)
    return []


VALUES: dict[str, Any] = {
    **{"texts": "texts.txt", "sentence": "a b", "file": "texts.txt", "document": ["texts.txt"]},
    **{"context_file": "texts.txt", "probe": "repeated", "sound": "talk.wav", "image": "cat.png"},
    **{
        "from": "a",
        "to": "b",
        "runs": 2,
        "num_buckets": 4,
        "maps": "cross",
        "pattern": "induction",
        "sort": "entropy",
    },
    **{"statistic": "entropy", "head": "0:1", "into": "0:1", "ablate": "0:1", "names": "nnsight"},
    "projection_order": ["query", "key", "value"],
    "by": "found",
}
"""Values of settings that are neither a number nor a switch, and no name."""
MODEL = {"model": str(HeadsSpec.default_model)}
CAUSES: dict[str, dict[str, Any]] = {
    ON_GRID: {**MODEL, "image": "cat.png"},
    FILE: {**MODEL, "sound": "talk.wav"},
    TRANSCRIBED: {**MODEL, "sound": "talk.wav"},
    "probe": {"probe": "repeated"},
}
"""Settings that are what excludes others, where that is no setting itself."""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("texts.txt", "trees.conllu", "cat.png", "pictures.txt", "talk.wav", "prompts.jsonl"):
        (tmp_path / name).write_text("a b\n")
    monkeypatch.chdir(tmp_path)


def declared(table: str) -> list[tuple[str, str, str]]:
    """Return the experiment, the setting, and its need or the cause that excludes it, per declaration."""
    return [
        (name, setting, first if table == "excludes" else second)
        for name, spec_class in SPECS.items()
        for base in spec_class.__mro__
        for first, second in vars(base).get(table, {}).items()
        for setting in (second if table == "excludes" else first).split(", ")
    ]


def test_needs_and_excludes_name_settings() -> None:
    known = {key for command in SPECS for key in every_setting_of(command).model_fields}
    for _, setting, other in (*declared("needs"), *declared("excludes")):
        others = [] if other in CAUSES else [each.key for each in alternatives(other)]
        assert {SettingCondition.of(setting).key, *others} <= known


def lines_with(name: str, settings: dict[str, Any]) -> list[str]:
    """Return the errors in the settings, by themselves and with a model and a text."""
    in_model = {**settings, **MODEL, "sentence": "a b"}
    return [line for given in (settings, in_model) for line in lines_of(SPECS[name], given)]


def value_of(setting: str) -> dict[str, Any]:
    key, value = SettingCondition.of(setting)
    return {key: value or VALUES.get(key, "1")}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("name", "setting", "cause"), declared("excludes"))
def test_settings_that_exclude_each_other_are_refused_by_one_sentence(
    name: str, setting: str, cause: str
) -> None:
    causing = CAUSES[cause] if cause in CAUSES else value_of(cause)
    if not {*causing, *value_of(setting)} <= SPECS[name].model_fields.keys():
        return  # a setting that other Specs have
    file = next((each for each in causing if each in ("image", "sound")), "")
    message = f"cannot be combined with {file or str(SettingCondition.of(cause)).replace('`', '')}"
    message = "needs sentence or file" if cause == "probe" else message
    key, value = SettingCondition.of(setting)
    lines = lines_with(name, causing | value_of(setting))
    assert any(line.endswith(f":1: {key}: {f'{value} {message}'.lstrip()}") for line in lines), lines


UNMET: dict[str, dict[str, Any]] = {
    "method=zero": {"method": "mean"},
    "softmax": {"softmax": False},
    "layer": {"head": 1},
}
"""Settings without what is needed, where defaults have it."""


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("name", "setting", "needed"), declared("needs"))
def test_a_setting_without_what_it_needs_is_refused(name: str, setting: str, needed: str) -> None:
    key, value = SettingCondition.of(setting)
    words = " or ".join(str(each).replace("`", "") for each in alternatives(needed))
    if key not in SPECS[name].model_fields:
        return  # a setting that other Specs have
    lines = lines_with(name, value_of(setting) | UNMET.get(needed, {}))
    assert any(line.endswith(f":1: {key}: {f'{value} needs {words}'.lstrip()}") for line in lines), lines


@pytest.mark.usefixtures("files")
def test_errors_come_in_the_order_of_the_settings() -> None:
    given = {"top": 2, "weighted": True, "words": True, "statistic": "entropy"}
    lines = lines_of(HeadsSpec, given)
    places = [[*HeadsSpec.model_fields].index(line.split(": ")[1]) for line in lines]
    assert len(lines) == 3 and places == sorted(places)


@pytest.mark.usefixtures("files")
def test_a_pattern_that_pictures_lack_is_reported_once() -> None:
    lines = lines_of(HeadsSpec, {**CAUSES[ON_GRID], "pattern": "induction"})
    assert lines == ["x.yaml:3:1: pattern: induction is measured for texts, not for pictures"]


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
    """The sentence of each refusal follows from the two Specs."""
    asked, spec_class = OF_FORMS[name], FORM_SPECS[command][name]
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


@pytest.mark.parametrize(("command", "name"), FORMS_OF_COMMANDS)
def test_a_setting_that_is_off_selects_no_form(command: str, name: str) -> None:
    form = next(form for form in FORMS[command] if form.name == name)
    first = form.asked_by.split()[-1]
    is_switch = FORM_SPECS[command][name].model_fields[first].annotation is bool
    for value in (None, False, [], (), *(("false", "no", "off") if is_switch else ())):
        assert matching_form(command, {**OF_FORMS[name], first: value}) is not form


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("command", "key", "value"),
    [
        *(("heads", key, "") for key in ("pairs", "relations", "by")),
        *(("heads", key, 0) for key in ("num_examples", "folds")),
        *(("cache", "policy", ""), ("cache", "bits", 0), ("source", "image", "")),
    ],
)
def test_an_empty_text_and_zero_are_errors_and_not_off(command: str, key: str, value: object) -> None:
    """An empty text is a shell variable that is not set: `--pairs "$FILE"` is no survey of random tokens."""
    lines = lines_of(spec_class_of(command, {key: value}), {key: value})
    assert any(line.startswith(f"x.yaml:1:1: {key}: ") for line in lines)
    assert lines_of(FORM_SPECS["heads"]["pairs"], {"pairs": "trees.conllu", key: value}) != []


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("asked", [{}, {"policy": "window"}, {"bits": 8}])
def test_a_setting_that_a_command_replaces_is_explained(asked: dict[str, Any]) -> None:
    """As for a flag. `context` was once a key of `attn cache`, which only refused it."""
    (line,) = lines_of(spec_class_of("cache", asked), {**asked, "context": "c"})
    place = f"x.yaml:{len(asked) + 1}:1: context: is not a setting of attn cache"
    assert line == f"{place}, which reads only decoders and has no second text"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("asked", [{}, {"relations": "trees.conllu"}])
def test_a_misspelt_setting_of_a_form_is_recognised(asked: dict[str, Any]) -> None:
    spec_class, place = spec_class_of("heads", asked), f"x.yaml:{len(asked) + 1}:1"
    meant = f"{place}: examples: unknown key (did you mean 'num_examples'?)"
    assert lines_of(spec_class, {**asked, "examples": 3}) == [meant]
    known = ", ".join(every_setting_of("heads").model_fields)
    assert lines_of(spec_class, {**asked, "zzz": 3}) == [
        f"{place}: zzz: unknown key for heads; known: {known}"
    ]


def test_a_setting_of_a_feature_that_is_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadsSpec, "needs", {"sort=near_mass": ""})
    line = "x.yaml:1:1: sort: near_mass needs a feature that is switched off"
    assert line in lines_of(HeadsSpec, {"sort": "near_mass"})
