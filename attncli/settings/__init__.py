"""The settings of each experiment: what may be asked, and reading it with errors that point to the place."""

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
TAKEN = KERNEL_COMMANDS | {
    question.name for feature in FEATURES.values() for question in feature.questions if not question.form_of
}
"""Names of commands that another package's question cannot have."""
QUESTIONS: dict[str, Question] = {}
"""Each question of a feature that is on, by the name of its command; without forms."""
FORMS: dict[str, list[Question]] = {}
"""The forms of each command that has some."""
LESSONS: list[str] = []
"""The files of all lessons, each as `package:path`."""
for feature_name, feature in installed_features().items():
    LESSONS += feature.lessons
    for question in feature.questions:
        if question.form_of:
            of_command = FORMS.setdefault(question.form_of, [])
            of_command += [question] if question.name not in (form.name for form in of_command) else []
        elif feature_name in FEATURES or question.name not in {*QUESTIONS, *TAKEN}:
            QUESTIONS[question.name] = question
EXPERIMENTS = {name: question for name, question in QUESTIONS.items() if question.spec}
"""The questions that config files can ask."""
SPECS: "LoadedOnUse[type[Spec]]" = LoadedOnUse(
    {name: question.spec for name, question in EXPERIMENTS.items()}
)
"""The Spec of each experiment, imported when it is looked up; see `FORMS`."""
SPECS_OF_FORMS: "dict[str, LoadedOnUse[type[Spec]]]" = {
    name: LoadedOnUse({form.name: form.spec for form in forms}) for name, forms in FORMS.items()
}
"""The Spec of each form by the form's name, by the name of the command."""
FALSE = frozenset({"false", "no", "off", "0", "f", "n"})
"""Texts that leave a switch off."""


def is_offered(line: str) -> bool:
    """True for a line to type whose command is there: neither switched off nor deleted."""
    command = line.split()[1:2]
    return {*command} <= {*QUESTIONS, *KERNEL_COMMANDS} or command[0].startswith("-")


def why_off(name: str) -> str:
    """Why a feature, command or function of that name is missing: it or its need is off; else empty."""
    off, cards = names_switched_off(), readable_cards(FEATURES)
    on = switched_on(cards)
    for feature, card in cards.items():
        parts = {feature, *(each.name for each in card.questions), *card.functions}
        if feature not in on and name in parts:
            gone = [need for need in card.needs if need not in cards]
            return (
                f"needs the feature {gone[0]}, which is not available" if gone else OFF.format(",".join(off))
            )
    return OFF.format(",".join(off)) if name in off else ""


def form_asked_for(experiment: str, settings: Mapping[str, Any]) -> Question | None:
    """The form of an experiment whose `asked_by` are all among the settings; of several the first."""
    return next((form for form in FORMS.get(experiment, ()) if _is_asked_for(form, settings)), None)


def _is_asked_for(form: Question, settings: Mapping[str, Any]) -> bool:
    keys, specs = form.asked_by.split(), SPECS_OF_FORMS[form.form_of]
    if any(_is_nothing(settings.get(key)) for key in keys) or form.name not in specs:
        return False
    return not any(_is_off(specs[form.name], key, settings[key]) for key in keys)


def _is_nothing(value: Any) -> bool:
    """True for no value and an empty list. Zero and an empty text ask for something, which is wrong."""
    return value is None or value is False or (isinstance(value, list | tuple) and not value)


def _is_off(spec_class: "type[Spec]", key: str, value: Any) -> bool:
    """True for a value that asks for nothing, as no value, an empty list and a switch that is off."""
    is_switch = spec_class.model_fields[key].annotation is bool
    return _is_nothing(value) or (is_switch and str(value).lower() in FALSE)


def spec_class_of(experiment: str, settings: Mapping[str, Any]) -> "type[Spec]":
    """The Spec of the form that the settings ask for, else that of the experiment itself."""
    form = form_asked_for(experiment, settings)
    return SPECS[experiment] if form is None else SPECS_OF_FORMS[experiment][form.name]


def known_spec_class(experiment: str, settings: Mapping[str, Any]) -> "type[Spec] | None":
    """As `spec_class_of`; None for an experiment that this attn does not have, as of a saved report."""
    return spec_class_of(experiment, settings) if experiment in SPECS else None


@cache
def every_setting_of(experiment: str) -> "type[Spec]":
    """A Spec that has the settings of an experiment and of all its forms: the flags of the command."""
    own, forms = SPECS[experiment], [*SPECS_OF_FORMS.get(experiment, {}).values()]
    if not forms:
        return own
    from pydantic import create_model

    made = create_model(own.__name__, __base__=(own, *forms))
    fields = dict(made.model_fields)
    made.model_fields.clear()  # help lists those of the experiment itself first
    made.model_fields.update({key: fields[key] for key in (*own.model_fields, *fields)})
    for name in own.__class_vars__ - {"experiment"}:
        setattr(made, name, getattr(own, name))
    return made


def asked_by(spec_class: "type[Spec]") -> str:
    """The setting that asks for the form with this Spec, the last of them; empty for a command's own Spec."""
    name = spec_class.experiment
    specs: Mapping[str, type[Spec]] = SPECS_OF_FORMS.get(name, {})
    asking = (form.asked_by for form in FORMS.get(name, ()) if specs.get(form.name) is spec_class)
    return next(asking, "").rpartition(" ")[2]


def refusal(spec_class: "type[Spec]", key: str, value: Any) -> str | None:
    """The error for a setting of a command that this Spec lacks; None for a key that is no setting of it.

    It names the form that the setting needs, or, to a form, what asked for that form. It is empty for a value
    that asks for nothing.
    """
    name = spec_class.experiment
    specs: Mapping[str, type[Spec]] = SPECS_OF_FORMS.get(name, {})
    if name not in SPECS or key not in every_setting_of(name).model_fields:
        return None
    if _is_off(every_setting_of(name), key, value):
        return ""
    if asking := asked_by(spec_class):
        return f"cannot be combined with `{asking}`"
    having = [form.asked_by.split() for form in FORMS[name] if key in specs[form.name].model_fields]
    lacking = [[each for each in keys if each != key] for keys in having]
    if not all(lacking):
        return f"is only for attn {name}"
    return f"needs {' or '.join(' and '.join(f'`{each}`' for each in keys) for keys in lacking)}"


def _question_of(spec_class: "type[Spec]") -> Question:
    """The question whose settings these are; the experiment's own for a class that no card names."""
    name = spec_class.experiment
    if SPECS[name] is not spec_class:
        for form in FORMS.get(name, ()):
            if SPECS_OF_FORMS[name].get(form.name) is spec_class:
                return form
    return EXPERIMENTS[name]


def page_of(spec_class: "type[Spec]", *, is_of_model: bool) -> "Page":
    """What runs an experiment, imported now."""
    question = _question_of(spec_class)
    place = (question.model_page if is_of_model else "") or question.page
    page: Page = load_place(place or f"{question.spec.partition(':')[0]}:PAGE")
    return page
