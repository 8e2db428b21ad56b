"""`attn generate`: a model writes, and where each head looked is shown for each new token."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from attncli.core.names import MAX_KEYS_PER_HEAD, WEIGHT_STATISTICS, WRITER_STATISTICS, WRITING
from attncli.errors import UserError, readable_bytes
from attncli.settings.fields import (
    ONE_HEAD,
    Contradictions,
    Count,
    Everyday,
    NoFlag,
    Size,
    TextSource,
    contradiction,
)
from attncli.settings.heads import HeadsSpec
from attncli.settings.models import FILE, TRANSCRIBED, HeadNumber, ModelSpec, files_read
from attncli.settings.pages import ModelPage
from attncli.settings.readings import reads
from attncli.settings.text import FILE_SETTINGS, FileOfText, Text, Texts, text_or_file
from attncli.system.plain_text import counted

if TYPE_CHECKING:
    import torch
    from pydantic import ValidationInfo

    from attncli.core.progress import Progress
    from attncli.features.generate.results import WrittenText
    from attncli.models.pretrained import Pretrained
    from attncli.models.prompts import Prompt
    from attncli.records.report import Picture, Report

    WriterStatistic = str
else:
    WriterStatistic = Literal[WRITER_STATISTICS]

SENTENCE = "induction heads copy; inducti"
TOKENS = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


def _check_single(value: object, info: "ValidationInfo") -> object:
    """Return the value unchanged. Raises ValueError for a list of numbers."""
    if isinstance(value, str) and "," in value:
        sweep = f"sweep: {{{info.field_name}: [{', '.join(value.split(','))}]}}"
        raise ValueError(
            f"must be one number: for several, use attn batch with a file that has {sweep} (got {value})"
        )
    return value


def _is_greedy(data: dict[str, Any]) -> bool:
    return data.get("sampling_temperature") is None and data.get("top_p") is None


def _is_transcribed(data: dict[str, Any]) -> bool:
    """True for a file that the model transcribes to the end."""
    return any(kind.is_transcribed for _, kind, _ in files_read(data))


def _default_order(data: dict[str, Any]) -> str:
    """Return the default order; in a transcription, heads that look at a single place come first."""
    if _is_transcribed(data):
        return "max_weight"
    return "text_mass" if data.get("needle") is None else "retrieval"


@reads()
class PromptSpec(ModelSpec):
    """Settings of the prompt."""

    group = "Input"
    argument = "sentence"
    needs: ClassVar[Mapping[str, str]] = {"lengths": "needle_depth"}
    excludes: ClassVar[Mapping[str, str]] = {
        "chat": "truncate",
        FILE: "needle, needle_depth, truncate",
    }

    file: FileOfText = None
    sentence: Text | None = Field(
        default_factory=lambda data: (
            SENTENCE if data.get("model") is None and data.get("file") is None else None
        ),
        description="the text that the model continues",
    )
    question: Annotated[Text | None, Everyday("a question below the text")] = Field(
        None, description="a question below the text, in the same prompt"
    )
    chat: Annotated[bool, Everyday("as a user's message, in the chat template")] = Field(
        False, description="the text as a user's message, in the model's own chat template"
    )
    needle: Annotated[Text | None, Everyday("a part of the prompt to find")] = Field(
        None, description="a part of the prompt to find: its text, or its tokens as FIRST:END"
    )
    needle_depth: float | None = Field(
        None,
        ge=0,
        le=1,
        description="insert the needle into the text at this depth: 0 is the start, 1 the end",
    )
    lengths: Size | None = Field(
        None, description="with `needle_depth`: cut the text to this number of tokens with the needle"
    )

    _single = field_validator("needle_depth", "lengths", mode="before")(_check_single)

    def needle_tokens(self) -> tuple[int, int] | None:
        """Return FIRST and END of a needle that is given as FIRST:END, or None for a text."""
        match = TOKENS.fullmatch(self.needle or "")
        return (int(match[1]), int(match[2])) if match else None

    def text_sources(self) -> tuple[TextSource, ...]:
        return (TextSource("sentence", self.sentence, self.file),)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("sentence", "file")
        if not any((self.sentence, self.file, self.read_file)):
            yield contradiction(
                "model",
                "needs `sentence` or `file`, the text to continue",
                "sentence",
                "file",
                *FILE_SETTINGS,
            )
        if self.needle_depth is not None and (self.needle is None or self.needle_tokens()):
            yield contradiction("needle_depth", "needs `needle` to be a text, which is inserted", "needle")
        tokens = self.needle_tokens()
        if tokens is not None and tokens[0] >= tokens[1]:
            yield contradiction("needle", f"must be FIRST:END, where FIRST is below END (got {self.needle})")


class GenerateSpec(PromptSpec):
    experiment = "generate"
    title = "Attention while a model writes"
    main_table = "heads"
    default_model = HeadsSpec.default_model
    drawn_maps = "heads"
    needs_head = True
    examples = (
        "attn generate",
        'attn generate --model ./my-model "The capital of France is"',
        'attn generate --model ./my-model --file notes.txt --question "Who came?" --chat',
        'attn generate --model ./my-model --file notes.txt --chat --needle "Ann came"',
        "attn generate --model ./my-model --file notes.txt --head 17:3 -o page.html",
        "attn generate --model ./my-model --file prompt.txt --answer answer.txt",
        "attn generate --model ./whisper --sound talk.wav -o words.html",
    )
    group = "Output"
    needs: ClassVar[Mapping[str, str]] = {"head": "layer", "sort=needle_mass, sort=retrieval": "needle"}
    excludes: ClassVar[Mapping[str, str]] = {
        "answer": "max_new_tokens, sampling_temperature, top_p, prefill_chunk",
        "greedy": "sampling_temperature, top_p",
        FILE: "answer, prefill_chunk",
        TRANSCRIBED: "question, chat",
    }
    heading_keys = ("file", "model", "layer", "head", "seed")
    next_steps = (ONE_HEAD, "--show rows", "-o page.html")
    off_keys = frozenset(
        {
            *("question", "chat", "needle", "needle_depth", "lengths"),
            *("answer", "prefill_chunk", "ascending", "top"),
        }
    )

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return cls.next_steps if settings.get("head") is None else cls.next_steps[1:]

    answer: Annotated[Text | None, Everyday("read this answer, a text or a file, instead of writing")] = (
        Field(
            None,
            description="an existing answer, as a text or a file, that the model reads instead of writing",
        )
    )
    max_new_tokens: Annotated[Size | None, Everyday("the maximum number of tokens to write (24)")] = Field(
        default_factory=lambda data: None if _is_transcribed(data) else 24,
        description="the maximum number of tokens to write (default: 24; for a sound, the limit in the "
        "model's "
        "generation_config.json)",
    )
    sampling_temperature: Annotated[
        float | None, Everyday("sample instead of taking the most likely token")
    ] = Field(
        None, gt=0, le=100, description="the sampling temperature, which divides the logits of the tokens"
    )
    top_p: Annotated[float | None, Everyday("sample from the most likely tokens")] = Field(
        None,
        gt=0,
        le=1,
        description="sample from the most likely tokens with this total probability",
    )
    greedy: Annotated[
        bool, NoFlag("is the default without --sampling-temperature and --top-p: omit --greedy")
    ] = Field(
        default_factory=_is_greedy,
        description="always take the most likely token (default without `sampling_temperature` and `top_p`)",
    )
    prefill_chunk: Size | None = Field(
        None,
        description="the number of prompt tokens that the model reads at a time (default: all; 512 for a "
        "longer prompt if the model allows it)",
    )
    layer: Count | None = Field(None, description="only the heads of this layer")
    head: Annotated[HeadNumber | None, Everyday()] = Field(None, description="only this head, as LAYER:HEAD")
    top_k: Size = Field(3, description="the number of keys to show for each new token")
    maps: Literal["none", "mean", "heads"] = Field(
        default_factory=lambda data: "mean" if files_read(data) else "none",
        description="keep whole rows of weights: the mean over the heads or, for up to 128 keys, those of "
        "each head (default: mean for a picture or a sound, heads for drawings)",
    )
    sort: Annotated[WriterStatistic, Everyday("the statistic to sort by: text_mass, ...")] = Field(
        default_factory=_default_order,
        description="the statistic to sort heads by, the largest first (default: text_mass, with a needle "
        f"retrieval, with a sound max_weight): {', '.join(WRITER_STATISTICS)}",
    )
    ascending: bool = Field(False, description="sort heads the other way, the smallest first")
    top: Size | None = Field(None, description="keep only the first N heads in the table of heads")

    def row_statistics(self) -> tuple[str, ...]:
        """Return the row statistics, or none for all layers, whose table of heads only has means."""
        if self.layer is None:
            return ()
        return tuple(name for name in (*WEIGHT_STATISTICS, *WRITING) if self.needle or name != "needle_mass")

    def result_kind(self) -> str:
        return "generate"

    def unmeasured(self) -> set[str]:
        needle_columns = {"needle_mass", "retrieval", "needle"} if self.needle is None else set()
        return needle_columns | ({"log_probability"} if self.answer is None else set())

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if not self.greedy and _is_greedy(self.__dict__):
            yield contradiction(
                "greedy",
                "can only be false with `sampling_temperature` or `top_p`",
                "sampling_temperature",
                "top_p",
            )
        if self.max_new_tokens is None and not _is_transcribed(self.__dict__):
            yield contradiction(
                "max_new_tokens", "must be a number if the model continues a text", *FILE_SETTINGS
            )


def read(
    spec: GenerateSpec, texts: Texts, pretrained: "Pretrained", generator: "torch.Generator"
) -> "Prompt":
    """Read the prompt for the model. Raises UserError if it does not fit or does not contain the needle."""
    from attncli.models.openers import OPENERS, FileInput
    from attncli.models.prompts import read_prompt

    if (file := spec.read_file) is not None:
        file_input = FileInput(
            file.name,
            texts.text,
            question=spec.question,
            chat=spec.chat,
            max_new_tokens=spec.max_new_tokens,
        )
        return OPENERS[file.what].read_prompt(pretrained, file_input)
    assert texts.text is not None and spec.max_new_tokens is not None
    if spec.prefill_chunk is not None and pretrained.has_decoder:
        raise UserError(
            f"prefill_chunk: {pretrained.name} has an encoder, which reads the whole prompt at once"
        )
    return read_prompt(
        pretrained,
        texts.text,
        max_new_tokens=spec.max_new_tokens,
        answer=None if spec.answer is None else text_or_file(spec.answer, "answer"),
        question=spec.question,
        chat=spec.chat,
        needle=spec.needle_tokens() or spec.needle,
        needle_depth=spec.needle_depth,
        length=spec.lengths,
        truncate=spec.truncate,
        key="file" if spec.file else "sentence",
    )


def report(
    spec: GenerateSpec, reading: "Prompt", pretrained: "Pretrained", progress: "Progress | None"
) -> "Report":
    """Build the report on what the model writes after the prompt."""
    from attncli.features.generate.door import generate
    from attncli.runs.report_parts import build_report

    if progress is not None:
        _report_cost_of_token(pretrained, progress)
    result = generate(
        pretrained,
        reading,
        max_new_tokens=spec.max_new_tokens,
        temperature=spec.sampling_temperature,
        top_p=spec.top_p,
        seed=spec.seed,
        top_k=spec.top_k,
        layer=spec.layer if spec.head is None else None,
        head=None if spec.head is None else f"{spec.layer}:{spec.head}",
        maps=spec.maps,
        prefill_chunk=spec.prefill_chunk,
        on_text=None if progress is None else progress.write,
    )
    if progress is not None and not reading.answer:
        progress.write("\n\n")
    if result.heads and spec.sort not in result.heads.cells:
        raise UserError(f"sort: {spec.sort} needs a model without cross-attention")
    whole_rows = {"weights": result.weights, "linear_weights": result.linear_weights}
    num_prompt, num_new = result.counts.prompt_tokens, result.counts.new_tokens
    text_report = build_report(
        spec,
        _texts(reading, result, pretrained),
        {name: rows for name, rows in whole_rows.items() if rows is not None},
        replace(result, heads=result.ranked(spec.sort, ascending=spec.ascending)[: spec.top])
        if result.heads
        else result,
        [*_notes(spec, reading, result, pretrained), *reading.left_out_notes()],
        about=f"{pretrained.name}: {counted(num_prompt, 'token')} in the prompt, "
        f"{f'{num_new} in the answer' if reading.answer else counted(num_new, 'new token')}.",
        written=result.text,
        pictures=_pictures(reading, num_new),
    )
    return replace(
        text_report,
        first_query=result.first_query,
        is_unfinished=result.is_unfinished,
        missing=result.unshown,
    )


def _report_cost_of_token(pretrained: "Pretrained", progress: "Progress") -> None:
    """Report the cost of a token if the model reads its weights again for every token."""
    from attncli.models.stored import stored_use

    use = stored_use(pretrained.whole)
    if use is not None and not use.keeps:
        size, seconds = use.one_run()
        each = f"{readable_bytes(size)} of {pretrained.name} for each token"
        progress.tell(f"generate: reads {each}, which takes at least {seconds:.2g} s")


def _texts(prompt: "Prompt", result: "WrittenText", pretrained: "Pretrained") -> Texts:
    """Return the tokens at the queries, without the last new token, and the context at cross-attention keys.

    If the model has one stack, its keys are the same tokens.
    """
    from attncli.models.writing import generating_part, start_token

    spelling = pretrained.token_spelling
    if prompt.context is None:
        tokens = (*prompt.text.tokens, *pretrained.labels(result.ids[:-1]))
        return Texts(tokens, token_spelling=spelling)
    start = None if prompt.origin is None else prompt.origin.before_words(pretrained)
    if start is None:
        start = start_token(generating_part(pretrained.whole).model)
    tokens = pretrained.labels([start, *result.ids[:-1]])
    return Texts(tokens, prompt.context.tokens, token_spelling=spelling)


def _pictures(prompt: "Prompt", num_written: int) -> "tuple[Picture, ...]":
    """Return the pictures of the prompt, in which new tokens have no boxes."""
    beside = (None,) * max(0, num_written - 1)
    return tuple(
        picture if picture.axis == "context_tokens" else replace(picture, boxes=picture.boxes + beside)
        for picture in prompt.drawn()
    )


def _notes(
    spec: GenerateSpec, prompt: "Prompt", result: "WrittenText", pretrained: "Pretrained"
) -> list[str]:
    from attncli.models.writing import settings_notes

    notes = []
    if result.is_unfinished:
        most = (
            "to the end" if spec.max_new_tokens is None else f"up to {counted(spec.max_new_tokens, 'token')}"
        )
        notes.append(f"Interrupted: the model was to write {most}.")
    if spec.model is None:
        notes.append("This model ships with attn and only copies. Use --model FOLDER for another model.")
    if not result.heads and spec.given("sort", "top", "ascending"):
        notes.append("--sort, --ascending and --top apply only to heads of attention.")
    if prompt.context is not None:
        where = "prompt" if prompt.origin is None else prompt.origin.what
        notes.append(f"The rows show cross-attention: where the decoder looks in the {where}.")
    if result.needle is not None:
        copied = f"{result.needle.copied} of the new tokens are in the needle"
        notes.append(f"The needle is at {prompt.needle[0]}-{prompt.needle[-1]}; {copied}.")
    if spec.maps == "heads" and result.weights_are_mean:
        notes.append(
            f"The map is the mean over the heads, because there are more than {MAX_KEYS_PER_HEAD} keys."
        )
    if prompt.answer:
        total = result.counts.log_probability
        notes += prompt.answer.notes
        notes.append(f"The model read the answer: its log-probability is {total:.2f}.")
    else:
        notes += settings_notes(pretrained.whole.generation_config)
    return [*notes, *(note for note in result.notes if note != result.unshown)]


PAGE = ModelPage(read=read, report=report)
