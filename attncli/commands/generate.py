"""A model writes, and for each new token where each head looked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from attncli.core.names import OF_WEIGHTS, WRITER_STATISTICS, WRITING
from attncli.errors import UserError, readable_bytes
from attncli.plain_text import counted
from attncli.settings.fields import (
    ONE_HEAD,
    Contradictions,
    Count,
    Everyday,
    NoFlag,
    Size,
    TextSource,
    contradiction,
    in_group,
)
from attncli.settings.heads import HeadsSpec
from attncli.settings.models import HeadNumber, ImageSpec
from attncli.settings.text import IN_FILE, Text, TextPath, Texts, text_or_file

if TYPE_CHECKING:
    import torch
    from pydantic import ValidationInfo
    from torch import Tensor

    from attncli.measure.writing import Prompt, Writing, WrittenRows
    from attncli.models.pretrained import Pretrained
    from attncli.report import NamedTensor, Picture, Report, Row, Statistic, Table, Tensors
    from attncli.toys.attention import Progress

    WriterStatistic = str
else:
    WriterStatistic = Literal[WRITER_STATISTICS]

SENTENCE = "induction heads copy; inducti"
TOKENS = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


def _check_single(value: object, info: "ValidationInfo") -> object:
    """A number, where a list of them may be expected."""
    if isinstance(value, str) and "," in value:
        sweep = f"sweep: {{{info.field_name}: [{', '.join(value.split(','))}]}}"
        raise ValueError(
            f"must be one number: attn batch runs several, from a file with {sweep} (got {value})"
        )
    return value


def _is_greedy(data: dict[str, Any]) -> bool:
    return data.get("sampling_temperature") is None and data.get("top_p") is None


class PromptSpec(ImageSpec):
    """What the model reads before it writes."""

    group = "Input"
    argument = "sentence"

    file: Annotated[TextPath | None, IN_FILE] = Field(
        None, description="a text file instead of the sentence; - reads stdin"
    )
    sentence: Text | None = Field(
        default_factory=lambda data: SENTENCE if data["model"] is None and data["file"] is None else None,
        description="the text that the model continues",
    )
    question: Annotated[Text | None, Everyday("what is asked below the text")] = Field(
        None, description="what is asked below the text, in the same prompt"
    )
    chat: Annotated[bool, Everyday("as a user's message, in the chat template")] = Field(
        False, description="the text as a user's message, in the model's own chat template"
    )
    needle: Annotated[Text | None, Everyday("a part of the prompt to look for")] = Field(
        None, description="a part of the prompt to look for: its text, or its tokens as FIRST:END"
    )
    needle_depth: float | None = Field(
        None, ge=0, le=1, description="put the needle there into the text: 0 is its start, 1 its end"
    )
    lengths: Size | None = Field(
        None, description="with `needle_depth`: cut the text, so that it has so many tokens with the needle"
    )

    _single = field_validator("needle_depth", "lengths", mode="before")(_check_single)

    def needle_tokens(self) -> tuple[int, int] | None:
        """The first token of the needle and the one after its last, where it is given so."""
        match = TOKENS.fullmatch(self.needle or "")
        return (int(match[1]), int(match[2])) if match else None

    def text_sources(self) -> tuple[TextSource, ...]:
        return (TextSource("sentence", self.sentence, self.file),)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("sentence", "file")
        if self.sentence is None and self.file is None and self.image is None:
            yield contradiction(
                "model", "needs `sentence` or `file`: a text to continue", "sentence", "file", "image"
            )
        for key in self.given("needle", "needle_depth", "truncate") if self.image is not None else ():
            yield contradiction(key, "cannot be combined with `image`", "image")
        if self.chat and self.truncate:
            yield contradiction("truncate", "cannot be combined with `chat`, whose end would be cut", "chat")
        if self.needle_depth is not None and (self.needle is None or self.needle_tokens()):
            yield contradiction("needle_depth", "needs `needle` to be a text to put in", "needle")
        if self.lengths is not None and self.needle_depth is None:
            yield contradiction("lengths", "needs `needle_depth`", "needle_depth")
        tokens = self.needle_tokens()
        if tokens is not None and tokens[0] >= tokens[1]:
            yield contradiction("needle", f"must be FIRST:END with FIRST below END (got {self.needle})")


class GenerateSpec(PromptSpec):
    experiment = "generate"
    title = "Attention while a model writes"
    main_table = "heads"
    module = "attncli.commands.generate"
    model_module = module
    default_model = HeadsSpec.default_model
    drawn_maps = "heads"
    needs_head = True
    former_keys: ClassVar[dict[str, str]] = {"temperature": "sampling_temperature"}
    examples = (
        "attn generate",
        'attn generate --model ./my-model "The capital of France is"',
        'attn generate --model ./my-model --file notes.txt --question "Who came?" --chat',
        'attn generate --model ./my-model --file notes.txt --chat --needle "Ann came"',
        "attn generate --model ./my-model --file notes.txt --head 17:3 -o page.html",
        "attn generate --model ./my-model --file prompt.txt --answer answer.txt",
    )
    group = "Output"
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

    answer: Annotated[Text | None, Everyday("read this answer instead of writing one: text or file")] = Field(
        None,
        description="an answer that is there already, as a text or a file: the model reads it, not writes",
    )
    max_new_tokens: Annotated[Size, Everyday()] = Field(24, description="write so many tokens at most")
    sampling_temperature: Annotated[float | None, Everyday("sample, instead of the likeliest")] = Field(
        None, gt=0, le=100, description="sample: the scores of the tokens are divided by it"
    )
    top_p: Annotated[float | None, Everyday("sample among the likeliest, P together")] = Field(
        None, gt=0, le=1, description="sample among the likeliest tokens that have this probability together"
    )
    greedy: Annotated[
        bool, NoFlag("is what happens without --sampling-temperature and --top-p: leave it out; it was read")
    ] = Field(
        default_factory=_is_greedy,
        description="take the likeliest token each time (default without `sampling_temperature` and `top_p`)",
    )
    prefill_chunk: Size | None = Field(
        None,
        description="tokens of the prompt that go through the model at a time (default: all; 512 of a longer "
        "prompt, where the model can)",
    )
    layer: Count | None = Field(None, description="only the heads of this layer")
    head: Annotated[HeadNumber | None, Everyday()] = Field(None, description="only this head, as LAYER:HEAD")
    top_k: Size = Field(3, description="keys named for each token that was written")
    maps: Literal["none", "mean", "heads"] = Field(
        default_factory=lambda data: "none" if data.get("image") is None else "mean",
        description="keep whole rows of weights: their mean over the heads, or up to 128 keys those of each "
        "head (default with a picture: mean; where it is drawn: heads)",
    )
    sort: Annotated[WriterStatistic, Everyday("the largest first: text_mass, lookback_ratio, ...")] = Field(
        default_factory=lambda data: "text_mass" if data.get("needle") is None else "retrieval",
        description="the heads with the largest of this first (default: text_mass, with a needle retrieval): "
        f"{', '.join(WRITER_STATISTICS)}",
    )
    ascending: bool = Field(False, description="the heads with the smallest first")
    top: Annotated[Size | None, Everyday("only the first N heads")] = Field(
        None, description="keep only the first N heads in the table of heads"
    )

    def row_statistics(self) -> tuple[str, ...]:
        """Those of one layer; of all layers the table of heads has the means."""
        if self.layer is None:
            return ()
        return tuple(name for name in (*OF_WEIGHTS, *WRITING) if self.needle or name != "needle_mass")

    def single_statistics(self) -> tuple[str, ...]:
        of_needle = {"needle_mass", "retrieval"} if self.needle is None else set()
        counts = in_group("writing", "prompt_tokens", "new_tokens")
        counts += in_group("writing", "log_probability") if self.answer is not None else ()
        found = () if self.needle is None else in_group("needle", "tokens", "copied", "found")
        return (*(name for name in WRITER_STATISTICS if name not in of_needle), *counts, *found)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        for key in self.given("sampling_temperature", "top_p"):
            if self.greedy:
                yield contradiction(key, "cannot be combined with `greedy`, which samples nothing", "greedy")
        if not self.greedy and _is_greedy(self.__dict__):
            yield contradiction(
                "greedy", "needs `sampling_temperature` or `top_p` to be off", "sampling_temperature", "top_p"
            )
        for key in self.given("answer", "prefill_chunk") if self.image is not None else ():
            yield contradiction(key, "cannot be combined with `image`", "image")
        for key in self.given("max_new_tokens", "sampling_temperature", "top_p", "prefill_chunk"):
            if self.answer is not None:
                yield contradiction(key, "cannot be combined with `answer`, which is read", "answer")
        if self.head is not None and self.layer is None:
            yield contradiction("head", "needs its layer: LAYER:HEAD, as 17:3", "layer")
        if self.sort in ("needle_mass", "retrieval") and self.needle is None:
            yield contradiction("sort", f"{self.sort} needs `needle`", "needle")


MOST_MEAN_WEIGHTS = 2**22


@dataclass(frozen=True)
class ReportParts:
    """The rows of each new token, as tensors with the axes layer, head, query (and rank, key)."""

    spec: GenerateSpec
    found: "Writing"
    pretrained: "Pretrained"

    @property
    def prompt(self) -> "Prompt":
        """What was given."""
        return self.found.prompt

    @property
    def rows(self) -> "WrittenRows":
        """What was kept of each new token."""
        return self.found.rows

    @property
    def written(self) -> list[int]:
        """The new tokens."""
        return self.found.tokens

    def tokens(self) -> tuple[str, ...]:
        """What stands at the queries, and with one stack at the keys: all but the last token written."""
        from attncli.models.writing import start_token, writer_of

        if self.prompt.context is None:
            return (*self.prompt.text.tokens, *self.pretrained.labels(self.written[:-1]))
        start = start_token(writer_of(self.pretrained.whole).model)
        return self.pretrained.labels([start, *self.written[:-1]])

    def context_tokens(self) -> tuple[str, ...]:
        """What stands at the keys of cross-attention."""
        return () if self.prompt.context is None else self.prompt.context.tokens

    def pictures(self) -> "tuple[Picture, ...]":
        """Those that it read; what was written lies on none of them."""
        from attncli.commands.heads import pictures_of

        beside = (None,) * max(0, len(self.written) - 1)
        return tuple(
            one if one.axis == "context_tokens" else replace(one, boxes=one.boxes + beside)
            for one in pictures_of(self.prompt)
        )

    @property
    def first_query(self) -> int:
        """The position of the query that chose the first token."""
        return len(self.prompt.text.ids) - 1 if self.prompt.context is None else 0

    def tensors(self) -> "dict[str, NamedTensor]":
        """The weights that were asked for."""
        from attncli.report_parts import named

        if self.spec.maps == "none":
            return {}
        each = [one.weights for one in self.rows.tokens]
        if self.spec.maps == "heads" and each[-1] is not None:
            whole = _by_query([weights for weights in each if weights is not None])
            return {"weights": self._placed_rows(whole, "query", "key")}
        means = [one.mean for one in self.rows.tokens]
        if len(means) * len(means[-1]) > MOST_MEAN_WEIGHTS:
            return {}
        return {"weights": named(_by_query(means), "query", "key")}

    def statistics(self) -> "dict[str, Statistic]":
        """A row for each head, a row for each token, and every number of every row."""
        from attncli.report import Numbers, Table

        num_prompt, num_new = len(self.prompt.prompt.ids), len(self.written)
        labels = self.pretrained.labels(self.written)
        found: dict[str, Statistic] = {
            "heads": self._ranked(self._heads()),
            "written": Table(self.rows.token_rows(labels, self.first_query, best=self.found.best_head)),
            "writing": Numbers(prompt_tokens=num_prompt, new_tokens=num_new),
        }
        if self.found.log_probabilities is not None:
            found["writing"] = Numbers(
                prompt_tokens=num_prompt,
                new_tokens=num_new,
                log_probability=float(self.found.log_probabilities.sum()),
            )
        if self.prompt.needle:
            needle = {int(self.prompt.prompt.ids[place]) for place in self.prompt.needle}
            share = len(needle & {*self.written}) / len(needle)  # of its different tokens
            found["needle"] = Numbers(
                tokens=len(self.prompt.needle), copied=self.found.retrieval[1], found=share
            )
        return found | {"rows": self._rows()}

    def needle_note(self) -> str:
        """What was copied of the needle."""
        first, last = self.prompt.needle[0], self.prompt.needle[-1]
        return f"The needle is at {first}-{last}; {self.found.retrieval[1]} of the new tokens are in it."

    def _ranked(self, heads: "Table") -> "Table":
        from attncli.report import Table

        key, sign = self.spec.sort, 1 if self.spec.ascending else -1
        if key == "retrieval" and all(row.get(key) != row.get(key) for row in heads):
            key = "needle_mass"  # nothing was copied
        if key not in heads[0]:
            raise UserError(f"sort: {key} is for models of one stack, not for cross-attention")

        def rank(row: "Row") -> float:
            value = row[key]
            return sign * value if isinstance(value, float) and value == value else inf

        return Table(sorted(heads, key=rank)[: self.spec.top])

    def _heads(self) -> "Table":
        """The means over the new tokens; no number where none of them has one."""
        from attncli.report import Table

        of_needle = {"retrieval": self.found.retrieval[0]} if self.prompt.needle else {}
        return Table(self.rows.head_rows(**of_needle))

    def _rows(self) -> "Tensors":
        import torch

        from attncli.report import Tensors

        of_rows = {name: self._placed_rows(numbers, "query") for name, numbers in self.rows.numbers().items()}
        ranks = slice(self.spec.top_k)
        keys = torch.stack([one.top_keys[..., ranks] for one in self.rows.tokens], dim=-2)
        weights = torch.stack([one.top_weights[..., ranks] for one in self.rows.tokens], dim=-2)
        of_rows["top_keys"] = self._placed_rows(keys, "query", "rank")
        of_rows["top_weights"] = self._placed_rows(weights, "query", "rank")
        return Tensors(of_rows)

    def _placed_rows(self, tensor: "Tensor", *axes: str) -> "NamedTensor":
        """At the places of their layers, NaN or key -1 elsewhere; a chosen layer or head is not an axis."""
        import torch

        from attncli.report_parts import named

        if self.spec.layer is None:
            nothing = torch.nan if tensor.is_floating_point() else -1
            layers = [place.layer for place in self.rows.places]
            spread = tensor.new_full((max(layers) + 1, *tensor.shape[1:]), nothing)
            spread[layers] = tensor
            return named(spread, "layer", "head", *axes)
        if self.spec.head is None:
            return named(tensor[0], "head", *axes)
        return named(tensor[0, 0], *axes)


def _by_query(rows: "list[Tensor]") -> "Tensor":
    """Rows (…, key) of growing length as one tensor (…, query, key), 0 on the keys after each query."""
    import torch

    most = rows[-1].shape[-1]
    padded = [torch.nn.functional.pad(row, (0, most - row.shape[-1])) for row in rows]
    return torch.stack(padded, dim=-2)


def read(
    spec: GenerateSpec, texts: Texts, pretrained: "Pretrained", generator: "torch.Generator"
) -> "Prompt":
    """What the model reads; UserError for what does not fit, and for a needle that is not there."""
    from attncli.measure.writing import read_picture_prompt, read_prompt

    if spec.image is not None:
        return read_picture_prompt(
            pretrained,
            spec.image,
            texts.text or "",
            max_new_tokens=spec.max_new_tokens,
            question=spec.question,
            chat=spec.chat,
        )
    assert texts.text is not None
    if spec.prefill_chunk is not None and pretrained.has_decoder:
        raise UserError(f"prefill_chunk: {pretrained.name} has an encoder, which reads the prompt at once")
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
    """What the model writes after the prompt."""
    from attncli.measure.writing import writing
    from attncli.models.writing import Decoding
    from attncli.report_parts import build_report

    if progress is not None:
        _tell_of_reading(pretrained, progress)
    found = writing(
        pretrained,
        reading,
        Decoding(spec.max_new_tokens, spec.sampling_temperature, spec.top_p, spec.seed, spec.prefill_chunk),
        layer=spec.layer,
        head=spec.head,
        top_k=spec.top_k,
        keeps_heads=spec.maps == "heads",
        on_text=None if progress is None else progress.write,
    )
    if progress is not None and not reading.answer:
        progress.write("\n\n")
    parts = ReportParts(spec, found, pretrained)
    num_prompt, num_new = len(reading.prompt.ids), len(parts.written)
    read = Texts(parts.tokens(), parts.context_tokens(), token_spelling=pretrained.token_spelling)
    text_report = build_report(
        spec,
        read,
        parts.tensors(),
        parts.statistics(),
        [*_notes(parts), *reading.left_out_notes()],
        about=f"{pretrained.name}: {counted(num_prompt, 'token')} in the prompt, "
        f"{f'{num_new} in the answer' if reading.answer else counted(num_new, 'new one')}.",
        written=pretrained.text_of(parts.written),
        pictures=parts.pictures(),
    )
    return replace(text_report, first_query=parts.first_query, is_unfinished=found.is_unfinished)


def _tell_of_reading(pretrained: "Pretrained", progress: "Progress") -> None:
    """What a token will take, of a model that is read anew for each."""
    from attncli.models.stored import use_of

    use = use_of(pretrained.whole)
    if use is not None and not use.keeps:
        size, seconds = use.one_run()
        each = f"{readable_bytes(size)} of {pretrained.name} for each token, at least {seconds:.2g} s"
        progress.tell(f"generate: reads {each}")


def _notes(parts: ReportParts) -> list[str]:
    from attncli.measure.writing import MOST_KEYS_OF_HEADS
    from attncli.models.writing import settings_notes

    spec, pretrained = parts.spec, parts.pretrained
    notes = []
    if parts.found.is_unfinished:
        notes.append(f"Interrupted: it was to write {counted(spec.max_new_tokens, 'token')} at most.")
    if spec.model is None:
        notes.append("This model ships with attn: it copies. --model FOLDER takes another.")
    if parts.prompt.context is not None:
        where = "prompt" if parts.prompt.seen is None else "picture"
        notes.append(f"The rows are those of cross-attention: where the decoder looks in the {where}.")
    if parts.prompt.needle:
        notes.append(parts.needle_note())
    if spec.maps == "heads" and parts.rows.tokens[-1].weights is None:
        notes.append(f"Beyond {MOST_KEYS_OF_HEADS} keys the map is the mean over the heads.")
    if parts.found.log_probabilities is not None:
        total = float(parts.found.log_probabilities.sum())
        notes += parts.prompt.notes
        notes.append(f"The answer was read, not written: its log-probability is {total:.2f}.")
    else:
        notes += settings_notes(pretrained.whole.generation_config)
    return notes + parts.found.way.notes()
