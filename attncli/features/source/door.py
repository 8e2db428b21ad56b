"""`attncli.answer_sources` and `attncli.retrieving_heads`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attncli.core.names import SourceMethod
from attncli.core.progress import Stage
from attncli.features.source.results import AnswerSources, RetrievingHeads
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, Sources
from attncli.models.pretrained import Pretrained
from attncli.models.source_texts import SourcedReading, Split, read_sourced, sourced_text
from attncli.models.writing import Decoding
from attncli.records.arguments import HeadsArgument, NonBlankText, Seed, Size, checked, head_names

if TYPE_CHECKING:
    from attncli.features.source.sources import AnswerWork
    from attncli.models.targets import Target


@checked
def answer_sources(
    model: Model,
    question: str | None,
    sources: Sources,
    *,
    split: Split | None = None,
    chat: bool = False,
    answer: NonBlankText | None = None,
    max_new_tokens: Size = 24,
    heads: HeadsArgument = (),
    method: SourceMethod = "weights",
    num_runs: Size = 64,
    seed: Seed = 0,
    on_text: Callable[[str], None] | None = None,
    progress: Callable[[Stage], None] | None = None,
) -> AnswerSources:
    """Which sources an answer came from: one that is given, or what the model writes.

    `sources` are documents above the question (with `split` their parts), a text whose parts are the sources
    (sentences, or `split`; not what asks at its end, where no question is given), or a prompt of your own
    with its sources. `heads`, as `retrieving_heads` chose them, are told apart from all heads; `method` is
    weights, removal or sampled. `on_text` gets what is written as it comes, and a blank line
    after it. UserError for what the model cannot do; MemoryError.
    """
    with in_use(model) as pretrained:
        num_new = max_new_tokens if answer is None else 0
        reading = _sources_read(pretrained, question, sources, split, chat=chat, num_new=num_new)
        answered = SourcedAnswer.of(
            pretrained,
            reading,
            answer,
            heads=head_names(heads),
            max_new_tokens=max_new_tokens,
            method=method,
            num_runs=num_runs,
            seed=seed,
            on_text=on_text,
            progress=progress,
        )
        return answered.sources(head_names(heads))


@dataclass(frozen=True)
class SourcedAnswer:
    """An answer, given or written, whose sources are not measured yet: `sources` does."""

    pretrained: Pretrained
    reading: SourcedReading
    answer: "Target"
    method: SourceMethod
    num_runs: int
    seed: int
    work: "AnswerWork | None"

    @classmethod
    def of(
        cls,
        pretrained: Pretrained,
        reading: SourcedReading,
        answer: str | None,
        *,
        heads: Sequence[str],
        max_new_tokens: int,
        method: SourceMethod,
        num_runs: int,
        seed: int,
        on_text: Callable[[str], None] | None,
        progress: Callable[[Stage], None] | None,
    ) -> "SourcedAnswer":
        """The answer that is given, else what the model writes.

        UserError for neither, and for `heads` that the model does not have; MemoryError.
        """
        from attncli.features.source.sources import AnswerWork, answer_to, check_heads

        check_heads(pretrained, reading, heads)
        work = None
        if progress is not None:
            num_new = max_new_tokens if answer is None else 0
            work = AnswerWork(progress, reading, num_new, method, num_runs)
        decoding = Decoding(max_new_tokens, seed=seed)
        found = answer_to(pretrained, reading, answer, decoding, on_text=on_text, work=work)
        if on_text is not None and answer is None:
            on_text("\n\n")
        return cls(pretrained, reading, found, method, num_runs, seed, work)

    def sources(self, heads: Sequence[str]) -> AnswerSources:
        """Where the answer came from, with the weight of these heads told apart."""
        from attncli.features.source.sources import answer_sources as sources_of_answer

        return sources_of_answer(
            self.pretrained,
            self.reading,
            self.answer,
            heads=heads,
            method=self.method,
            num_runs=self.num_runs,
            seed=self.seed,
            work=self.work,
        )


def _sources_read(
    pretrained: Pretrained,
    question: str | None,
    sources: Sources,
    split: Split | None,
    *,
    chat: bool,
    num_new: int,
) -> SourcedReading:
    """The sources in their prompt, with room for the tokens to be written; UserError for a wrong prompt."""
    if isinstance(sources, SourcedReading):
        return sources
    sourced = sourced_text(question, sources, split)
    if chat:
        sourced = sourced.in_template(pretrained)
    num_kept = 0 if pretrained.has_decoder else max(0, num_new - 1)
    return read_sourced(pretrained, sourced, num_new=num_kept, key="sources")


@checked
def retrieving_heads(
    model: Model, *, seed: Seed = 0, progress: Callable[[float], None] | None = None
) -> RetrievingHeads:
    """The heads that look at the right sentence of 24 synthetic contexts, from the seed.

    UserError for a model that cannot read these, and where no head does; MemoryError.
    """
    from attncli.features.source.retrieving_heads import retrieving_heads as heads_that_retrieve

    with in_use(model) as pretrained:
        return heads_that_retrieve(pretrained, seed=seed, progress=progress)


def search_takes_less(model: Pretrained, sources: SourcedReading, answer: str | None) -> bool:
    """Whether `retrieving_heads` reads fewer tokens than a prompt has, with an answer that is given."""
    from attncli.features.source.retrieving_heads import search_takes_less as takes_less

    return takes_less(model, sources, answer)
