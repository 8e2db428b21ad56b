"""The settings of each experiment: what may be asked, and reading it with errors that point to the place."""

from typing import TYPE_CHECKING

from attncli.feature import SWITCH, LoadedOnUse, Question, load_place, names_switched_off, switched_on
from attncli.index import FEATURES, installed_features

if TYPE_CHECKING:
    from attncli.settings.fields import Spec
    from attncli.settings.pages import Page


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
    """Why a feature, command or function of that name is missing: it is switched off; else empty."""
    names = {*FEATURES} - {*switched_on(FEATURES)}
    parts = {each.name for feature in names for each in FEATURES[feature].questions}
    parts |= {function for feature in names for function in FEATURES[feature].functions}
    if name not in {*names_switched_off(), *names, *parts}:
        return ""
    return f"is switched off by {SWITCH}={','.join(names_switched_off())}"


def page_of(experiment: str, *, is_of_model: bool) -> "Page":
    """What runs an experiment, imported now."""
    question = EXPERIMENTS[experiment]
    place = (question.model_page if is_of_model else "") or question.page
    page: Page = load_place(place or f"{question.spec.partition(':')[0]}:PAGE")
    return page
