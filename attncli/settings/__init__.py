"""The settings of each experiment: what may be asked, and reading it with errors that point to the place."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from attncli.core.runtime import Plugin, added, imported_or_told, load_place
from attncli.feature import GROUP, Question, switched_on
from attncli.index import FEATURES, installed_features

if TYPE_CHECKING:
    from attncli.settings.fields import Spec
    from attncli.settings.pages import Page


class Experiment(NamedTuple):
    """The question of a card, and the entry point of the card unless it is built in."""

    question: Question
    card_entry: Plugin | None = None

    @property
    def spec_entry(self) -> Plugin | None:
        """The entry point with the place of the Spec, for what is told when its import fails."""
        if self.card_entry is None:
            return None
        return self.card_entry._replace(name=self.question.name, place=self.question.spec)


KERNEL_COMMANDS = frozenset({"info", "help", "version"})
"""Commands that belong to no feature."""
FORMER_COMMANDS = frozenset({"export", "plugins", "config", "report"})
"""Names that commands had; the command line still reads them."""
QUESTIONS = {
    question.name: Experiment(question)
    for feature in switched_on(FEATURES).values()
    for question in feature.questions
}
"""Each question of a feature that is on, by the name of its command."""
TAKEN = {*KERNEL_COMMANDS, *FORMER_COMMANDS} | {
    question.name for feature in FEATURES.values() for question in feature.questions
}
"""Names of commands that another package's question cannot have."""
for feature_name, card_entry in added(GROUP, {*FEATURES}).items():
    if feature_name in installed_features():
        QUESTIONS |= {
            question.name: Experiment(question, card_entry)
            for question in installed_features()[feature_name].questions
            if question.name not in {*QUESTIONS, *TAKEN}
        }
EXPERIMENTS = {name: row for name, row in QUESTIONS.items() if row.question.spec}
"""The questions that config files can ask."""


def page_of(experiment: str, module: str, *, is_of_model: bool) -> "Page":
    """What runs an experiment, imported now; of a plugin the `run` of its module, where that is named."""
    question = EXPERIMENTS[experiment].question
    if module:
        from attncli.settings.pages import SampledPage

        name, _, function = module.partition(":")
        return SampledPage(run=load_place(f"{name}:{function or 'run'}"))
    place = (question.model_page if is_of_model else "") or question.page
    page: Page = load_place(place or f"{question.spec.partition(':')[0]}:PAGE")
    return page


class Specs(Mapping[str, "type[Spec]"]):
    """The Spec of each experiment, imported when it is asked for."""

    def __getitem__(self, experiment: str) -> "type[Spec]":
        row = EXPERIMENTS[experiment]
        if row.spec_entry is not None and imported_or_told(row.spec_entry) is None:
            raise KeyError(experiment)
        spec_class: type[Spec] = load_place(row.question.spec)
        return spec_class

    def __iter__(self) -> Iterator[str]:
        return (name for name in EXPERIMENTS if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, experiment: object) -> bool:
        row = EXPERIMENTS.get(str(experiment))
        return row is not None and (row.spec_entry is None or imported_or_told(row.spec_entry) is not None)


SPECS = Specs()
