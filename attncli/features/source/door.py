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
    """Find the sources of `answer` or, without an answer, of the text that the model writes.

    `sources` contains documents, which are placed above the question and, with `split`, divided into parts.
    `sources` can also be a text, whose sentences (or the units that `split` names) are the sources, or a
    prompt with its sources. Without a `question`, a question at the end of a text is not a source. `heads`,
    for example from `retrieving_heads`, are measured separately, in addition to all heads; `method` is
    weights, removal or sampled. `on_text` receives the text as the model writes it, then a blank line. Raises
    UserError for a request that the model cannot meet, and MemoryError if memory runs out.
    """
    with in_use(model) as pretrained:
        num_new = max_new_tokens if answer is None else 0
        reading = _sources_read(pretrained, question, sources, split, chat=chat, num_new=num_new)
        answered = SourcedAnswer.given_or_written(
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
    """An answer, whether given or written by the model; `sources` measures where it came from."""

    pretrained: Pretrained
    reading: SourcedReading
    answer: "Target"
    method: SourceMethod
    num_runs: int
    seed: int
    work: "AnswerWork | None"

    @classmethod
    def given_or_written(
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
        """The given answer or, without one, the answer that the model writes.

        Raises UserError if the model writes nothing or does not have the `heads`, and MemoryError if memory
        runs out.
        """
        from attncli.features.source.sources import AnswerWork, answer_to, check_heads

        check_heads(pretrained, reading, heads)
        work = None
        if progress is not None:
            num_new = max_new_tokens if answer is None else 0
            work = AnswerWork(progress, reading, num_new, method, num_runs)
        decoding = Decoding(max_new_tokens, seed=seed)
        target = answer_to(pretrained, reading, answer, decoding, on_text=on_text, work=work)
        if on_text is not None and answer is None:
            on_text("\n\n")
        return cls(pretrained, reading, target, method, num_runs, seed, work)

    def sources(self, heads: Sequence[str]) -> AnswerSources:
        """The sources of the answer, with the weight of these heads next to that of all heads."""
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
    """The sources in a prompt with room for `num_new` tokens. Raises UserError for an invalid prompt."""
    if isinstance(sources, SourcedReading):
        return sources
    sourced = sourced_text(question, sources, split)
    if chat:
        sourced = sourced.in_template(pretrained)
    num_free = 0 if pretrained.has_decoder else max(0, num_new - 1)
    return read_sourced(pretrained, sourced, num_new=num_free, key="sources")


@checked
def retrieving_heads(
    model: Model, *, seed: Seed = 0, progress: Callable[[float], None] | None = None
) -> RetrievingHeads:
    """Find the heads that look at the right sentence in 24 synthetic contexts, sampled with the seed.

    Raises UserError for a model that cannot read the contexts or has no such heads, and MemoryError if memory
    runs out.
    """
    from attncli.features.source.retrieving_heads import retrieving_heads as heads_that_retrieve

    with in_use(model) as pretrained:
        return heads_that_retrieve(pretrained, seed=seed, progress=progress)


def search_takes_less(model: Pretrained, sources: SourcedReading, answer: str | None) -> bool:
    """True if `retrieving_heads` reads fewer tokens than there are in the prompt and answer together."""
    from attncli.features.source.retrieving_heads import search_takes_less as takes_less

    return takes_less(model, sources, answer)
