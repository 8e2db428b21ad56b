"""The experiments and their Specs, found through the features' cards."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from attncli.feature import (
    SWITCH,
    LoadedOnUse,
    Question,
    load_place,
    names_switched_off,
    readable_cards,
    switched_on,
)
from attncli.index import FEATURES, installed_features

if TYPE_CHECKING:
    from attncli.settings.fields import Spec
    from attncli.settings.pages import Page


OFF = f"is switched off by {SWITCH}={{}}"
KERNEL_COMMANDS = frozenset({"info", "help", "version"})
"""Commands that belong to no feature."""
RESERVED_NAMES = KERNEL_COMMANDS | {
    question.name for feature in FEATURES.values() for question in feature.questions if not question.form_of
}
"""Names of commands that a plugin's question cannot have."""
QUESTIONS: dict[str, Question] = {}
"""The questions of features that are on, by the name of their command; without forms."""
FORMS: dict[str, list[Question]] = {}
"""The forms of each command that has any."""
LESSONS: list[str] = []
"""The files of all lessons, each as `package:path`."""
for feature_name, feature in installed_features().items():
    LESSONS += feature.lessons
    for question in feature.questions:
        if question.form_of:
            command_forms = FORMS.setdefault(question.form_of, [])
            command_forms += [question] if question.name not in (form.name for form in command_forms) else []
        elif feature_name in FEATURES or question.name not in {*QUESTIONS, *RESERVED_NAMES}:
            QUESTIONS[question.name] = question
EXPERIMENTS = {name: question for name, question in QUESTIONS.items() if question.spec}
"""The questions that config files can ask."""
SPECS: "LoadedOnUse[type[Spec]]" = LoadedOnUse(
    {name: question.spec for name, question in EXPERIMENTS.items()}
)
"""The Spec of each experiment, imported on lookup; see `FORMS`."""
FORM_SPECS: "dict[str, LoadedOnUse[type[Spec]]]" = {
    name: LoadedOnUse({form.name: form.spec for form in forms}) for name, forms in FORMS.items()
}
"""The Specs of the forms of each command, by the form's name."""
FALSE = frozenset({"false", "no", "off", "0", "f", "n"})
"""Texts that mean False for a switch."""


def is_offered(line: str) -> bool:
    """Return True if the command on this command line is available: neither switched off nor deleted."""
    command = line.split()[1:2]
    return {*command} <= {*QUESTIONS, *KERNEL_COMMANDS} or command[0].startswith("-")


def why_off(name: str) -> str:
    """Return why a feature, command or function is off, or an empty string if it is not off."""
    off, cards = names_switched_off(), readable_cards(FEATURES)
    on = switched_on(cards)
    for feature, card in cards.items():
        parts = {feature, *(each.name for each in card.questions), *card.functions}
        if feature not in on and name in parts:
            missing = [need for need in card.needs if need not in cards]
            return (
                f"needs the feature {missing[0]}, which is not available"
                if missing
                else OFF.format(",".join(off))
            )
    return OFF.format(",".join(off)) if name in off else ""


def matching_form(experiment: str, settings: Mapping[str, Any]) -> Question | None:
    """Return the first form of an experiment whose `asked_by` settings are all given."""
    return next((form for form in FORMS.get(experiment, ()) if _matches(form, settings)), None)


def _matches(form: Question, settings: Mapping[str, Any]) -> bool:
    keys, specs = form.asked_by.split(), FORM_SPECS[form.form_of]
    if any(_is_unset(settings.get(key)) for key in keys) or form.name not in specs:
        return False
    return not any(_is_off(specs[form.name], key, settings[key]) for key in keys)


def _is_unset(value: Any) -> bool:
    """Return True for None, False and an empty list. Zero and an empty string are values, even if invalid."""
    return value is None or value is False or (isinstance(value, list | tuple) and not value)


def _is_off(spec_class: "type[Spec]", key: str, value: Any) -> bool:
    """Return True for a value without effect: None, an empty list, or a switch that is off."""
    is_switch = spec_class.model_fields[key].annotation is bool
    return _is_unset(value) or (is_switch and str(value).lower() in FALSE)


def spec_class_of(experiment: str, settings: Mapping[str, Any]) -> "type[Spec]":
    """Return the Spec of the form that the settings ask for, or else the experiment's own Spec."""
    form = matching_form(experiment, settings)
    return SPECS[experiment] if form is None else FORM_SPECS[experiment][form.name]


def known_spec_class(experiment: str, settings: Mapping[str, Any]) -> "type[Spec] | None":
    """Behave like `spec_class_of`, but return None for an unknown experiment, as in a saved report."""
    return spec_class_of(experiment, settings) if experiment in SPECS else None


@cache
def every_setting_of(experiment: str) -> "type[Spec]":
    """Return a Spec with the settings of an experiment and all its forms: the flags of the command."""
    base, forms = SPECS[experiment], [*FORM_SPECS.get(experiment, {}).values()]
    if not forms:
        return base
    from pydantic import create_model

    made = create_model(base.__name__, __base__=(base, *forms))
    fields = dict(made.model_fields)
    made.model_fields.clear()  # help lists the experiment's own settings first
    made.model_fields.update({key: fields[key] for key in (*base.model_fields, *fields)})
    for name in base.__class_vars__ - {"experiment"}:
        setattr(made, name, getattr(base, name))
    return made


def asked_by(spec_class: "type[Spec]") -> str:
    """Return the last `asked_by` setting of the form with this Spec; empty for the command's own Spec."""
    name = spec_class.experiment
    specs: Mapping[str, type[Spec]] = FORM_SPECS.get(name, {})
    keys = (form.asked_by for form in FORMS.get(name, ()) if specs.get(form.name) is spec_class)
    return next(keys, "").rpartition(" ")[2]


def refusal(spec_class: "type[Spec]", key: str, value: Any) -> str | None:
    """Return the error for a setting that the command has but this Spec lacks; None for an unknown key.

    The error names the form that the setting needs or, for a form, the setting that chose the form. The error
    is empty for a value without effect.
    """
    name = spec_class.experiment
    specs: Mapping[str, type[Spec]] = FORM_SPECS.get(name, {})
    if name not in SPECS or key not in every_setting_of(name).model_fields:
        return None
    if _is_off(every_setting_of(name), key, value):
        return ""
    if form_key := asked_by(spec_class):
        return f"cannot be combined with `{form_key}`"
    form_keys = [form.asked_by.split() for form in FORMS[name] if key in specs[form.name].model_fields]
    missing = [[each for each in keys if each != key] for keys in form_keys]
    if not all(missing):
        return f"is only for attn {name}"
    return f"needs {' or '.join(' and '.join(f'`{each}`' for each in keys) for keys in missing)}"


def _question_of(spec_class: "type[Spec]") -> Question:
    """Return the question with this Spec, or the experiment's own question for a class that no card names."""
    name = spec_class.experiment
    if SPECS[name] is not spec_class:
        for form in FORMS.get(name, ()):
            if FORM_SPECS[name].get(form.name) is spec_class:
                return form
    return EXPERIMENTS[name]


def page_of(spec_class: "type[Spec]", *, uses_model: bool) -> "Page":
    """Import and return the page that runs an experiment."""
    question = _question_of(spec_class)
    place = (question.model_page if uses_model else "") or question.page
    page: Page = load_place(place or f"{question.spec.partition(':')[0]}:PAGE")
    return page
