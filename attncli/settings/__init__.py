"""The settings of each experiment: what may be asked, and reading it with errors that point to the place."""

from typing import TYPE_CHECKING

from attncli.feature import SWITCH, LoadedOnUse, Question, load_place, names_switched_off, switched_on
from attncli.index import FEATURES, installed_features

if TYPE_CHECKING:
    from attncli.settings.fields import Spec
    from attncli.settings.pages import Page


OFF = f"is switched off by {SWITCH}={{}}"
KERNEL_COMMANDS = frozenset({"info", "help", "version"})
"""Commands that belong to no feature."""
FORMER_COMMANDS = frozenset({"export", "plugins", "config", "report"})
"""Names that commands had; the command line still reads them."""
TAKEN = {*KERNEL_COMMANDS, *FORMER_COMMANDS} | {
    question.name for feature in FEATURES.values() for question in feature.questions
}
"""Names of commands that another package's question cannot have."""
QUESTIONS: dict[str, Question] = {}
"""Each question of a feature that is on, by the name of its command."""
for feature_name, feature in installed_features().items():
    QUESTIONS |= {
        question.name: question
        for question in feature.questions
        if feature_name in FEATURES or question.name not in {*QUESTIONS, *TAKEN}
    }
EXPERIMENTS = {name: question for name, question in QUESTIONS.items() if question.spec}
"""The questions that config files can ask."""
SPECS: "LoadedOnUse[type[Spec]]" = LoadedOnUse(
    {name: question.spec for name, question in EXPERIMENTS.items()}
)
"""The Spec of each experiment, imported when it is looked up."""


def is_offered(line: str) -> bool:
    """True for a line to type whose command is there: neither switched off nor deleted."""
    command = line.split()[1:2]
    return {*command} <= {*QUESTIONS, *KERNEL_COMMANDS} or command[0].startswith("-")


def why_off(name: str) -> str:
    """Why a feature, command or function of that name is missing: it or its need is off; else empty."""
    off, on = names_switched_off(), switched_on(FEATURES)
    for feature, card in FEATURES.items():
        parts = {feature, *(each.name for each in card.questions), *card.functions}
        if feature not in on and name in parts:
            gone = [need for need in card.needs if need not in FEATURES]
            return (
                f"needs the feature {gone[0]}, which is not available" if gone else OFF.format(",".join(off))
            )
    return OFF.format(",".join(off)) if name in off else ""


def page_of(experiment: str, *, is_of_model: bool) -> "Page":
    """What runs an experiment, imported now."""
    question = EXPERIMENTS[experiment]
    place = (question.model_page if is_of_model else "") or question.page
    page: Page = load_place(place or f"{question.spec.partition(':')[0]}:PAGE")
    return page
