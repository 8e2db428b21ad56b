"""`attn ablate`: the effect of removing each head on the loss, the prediction or the output."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, cast

from pydantic import BeforeValidator, Field

from attncli.core.names import EFFECTS
from attncli.errors import UserError
from attncli.models.text_files import PairFile, PromptsFile
from attncli.records.arguments import head_name, head_names
from attncli.records.columns import few_notes
from attncli.settings.fields import (
    Contradictions,
    Everyday,
    Size,
    TokenName,
    contradiction,
)
from attncli.settings.heads import GRIDS
from attncli.settings.models import FILE, TRANSCRIBED, EncodedTextSpec, files_read
from attncli.settings.pages import ModelPage
from attncli.settings.readings import reads
from attncli.settings.text import Text, Texts
from attncli.system.plain_text import counted

if TYPE_CHECKING:
    import torch

    from attncli.models.predicted import Predicted
    from attncli.models.pretrained import Pretrained, Reading
    from attncli.models.text_files import PromptsFile, TextLine
    from attncli.records.report import Report

    Effect = str
else:
    Effect = Literal[tuple(EFFECTS)]
EVERY_HEAD = "all"
EACH_TOKEN: Final = "each"


def _heads_or_all(names: object) -> list[str]:
    return [EVERY_HEAD] if names in (EVERY_HEAD, [EVERY_HEAD], (EVERY_HEAD,)) else head_names(names)


HeadNamesOrAll = Annotated[
    list[str],
    BeforeValidator(_heads_or_all, json_schema_input_type=list[str] | str),
]


@reads()
class AblateSpec(EncodedTextSpec):
    experiment = "ablate"
    parts = ("statistics", "heads", "baseline")
    title = "Effect of removing each head"
    needs_head = True
    examples = (
        "attn ablate",
        "attn ablate --model ./my-model --heads 16:0,18:6 --jointly",
        'attn ablate --model ./my-model --sentence "The capital of France is" --answer " Paris"',
        "attn ablate --model ./my-model --texts lines.txt --method mean -o heads.csv",
        "attn ablate --model ./my-model --approximate",
        'attn ablate --model ./my-model "A is" --method swap --other "B is" --answer " 1" --against " 2"',
        "attn ablate --model ./whisper --sound talk.wav",
    )
    off_keys = frozenset(
        {
            *("texts", "text_group", "heads", "jointly", "approximate", "answer", "against", "top", "sort"),
            *("other", "token", "into"),
        }
    )
    needs: ClassVar[Mapping[str, str]] = {
        "other, token, into": "method=swap",
        "method=swap": "other|texts",
        "approximate": "method=zero",
        "against": "answer",
        "sort=approximate": "approximate",
        "sort=probability": "answer|texts",
        "sort=logit_difference, sort=restored": "against|texts",
        "sort=cls_change": GRIDS,
    }
    excludes: ClassVar[Mapping[str, str]] = {
        "into": "jointly",
        "method=swap": "context",
        "texts": "other, token=each",
        "answer": "sort=output_change",
        "sentence": "sort=cls_change",
        "file": "sort=cls_change",
        "probe": "answer, other",
        FILE: "method=swap",
        TRANSCRIBED: "answer, truncate",
    }
    next_steps = ("--method mean", "--texts FILE", "-o page.html")
    settings_elsewhere: ClassVar[Mapping[str, str]] = {
        "layer": "removes each head separately: use --heads LAYER:HEAD,... to choose heads"
    }
    group = "Heads"
    heading_keys = ("file", "model", "method", "answer", "against", "seed")

    heads: Annotated[HeadNamesOrAll, Everyday("the heads to remove, or all")] = Field(
        [EVERY_HEAD], description="the heads to remove, as LAYER:HEAD, or all, each separately"
    )
    method: Annotated[Literal["zero", "mean", "sink", "swap"], Everyday("what replaces a head's output")] = (
        Field(
            "zero",
            description="what replaces a head's output: zero, its mean over all tokens, the first value "
            "(sink), or its output on another prompt (swap: activation patching)",
        )
    )
    other: Annotated[Text | None, Everyday("with --method swap: the other prompt, of the same length")] = (
        Field(
            None,
            description="with `method` swap: the other prompt, with the same number of tokens (for many "
            "prompts: `texts` in JSON Lines or CSV with text, other, answer, against and token)",
        )
    )
    token: TokenName | None = Field(
        None,
        description="with `method` swap: only at this token, named as cat, cat#2, 5, -1 or last; each: at "
        "each token separately (default: at all tokens)",
    )
    into: Annotated[str, BeforeValidator(head_name)] | None = Field(
        None,
        description="with `method` swap: only along the direct path to this later head, as LAYER:HEAD "
        "(path patching)",
    )
    jointly: Annotated[bool, Everyday()] = Field(
        False, description="also measure removing all of these heads at once"
    )
    approximate: Annotated[bool, Everyday("rank all heads with one backward pass")] = Field(
        False,
        description="rank all heads with one backward pass, |d loss / d gate|; for comparison, 16 of "
        "the heads, or those in `heads`, are also removed",
    )
    answer: Annotated[
        str | None,
        Everyday("measure only this token, after the text"),
    ] = Field(None, description="measure only this token, after the text or at the mask of an encoder's text")
    against: Annotated[str | None, Everyday("with --answer: the token to compare with")] = Field(
        None, description="with `answer`: the token whose logit is compared with the answer's"
    )
    sort: Annotated[Effect | None, Everyday("the effect to sort by, largest first")] = Field(
        None, description="show the heads with the largest effect first (default: the first effect measured)"
    )
    top: Size | None = Field(None, description="show only the first N heads")

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        left_out = {"--texts FILE"} if files_read(settings) else set()
        left_out |= {"--method mean"} if settings.get("approximate") else set()
        return tuple(step for step in cls.next_steps if step not in left_out)

    def least_tokens(self) -> int:
        return 2 if self.answer is None and self.read_file is None else 1

    @property
    def selected_heads(self) -> list[str]:
        """The heads named in `heads`, or an empty list for all heads."""
        return [] if self.heads == [EVERY_HEAD] else self.heads

    @property
    def is_grid_only(self) -> bool:
        """True for a file whose tokens lie on a grid, such as a picture, that is read without a text."""
        return self.reads_grid and self.sentence is None and self.file is None

    def result_kind(self) -> str:
        return "ablate"

    def unmeasured(self) -> set[str]:
        # Each line of `texts` may have an answer.
        has_answer, has_against = (
            key is not None or self.texts is not None for key in (self.answer, self.against)
        )
        measured = {"loss", "kl"}
        measured |= {"probability"} if has_answer else set()
        measured |= {"logit_difference"} if has_against else set()
        measured |= {"restored"} if self.method == "swap" and has_against else set()
        # Whether a model predicts tokens is known only once it is open.
        measured |= {"output_change"} if self.model and not self.answer else set()
        measured |= {"approximate"} if self.approximate else set()
        if self.is_grid_only:
            measured = {"cls_change", "output_change"}
        several = self.texts is not None
        left_out = {f"{name}{end}" for name in EFFECTS.keys() - measured for end in ("", "_low", "_high")}
        left_out |= {f"{name}{end}" for name in EFFECTS for end in ("_low", "_high") if not several}
        left_out |= set() if self.method == "swap" else {"back", "back_baseline"}
        left_out |= set() if self.token == EACH_TOKEN else {"token"}
        left_out |= set() if self.jointly else {"joint"}
        return left_out | (set() if self.approximate else {"approximation"})

    def names_of_tokens(self) -> dict[str, str]:
        return {} if self.token in (None, EACH_TOKEN) else {"token": str(self.token)}

    def opened_texts(self) -> PromptsFile:
        kind = PairFile if self.method == "swap" else PromptsFile
        return kind(str(self.texts), self.text_group)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        for key in self.given("answer", "approximate") if self.is_grid_only else ():
            setting = self.setting_of_file()
            message = f"needs a model that predicts tokens: use a text in addition to `{setting}`"
            yield contradiction(key, message, setting)
        if self.jointly and len(self.selected_heads) < 2:
            yield contradiction("jointly", "needs two or more `heads`", "heads")


METHODS = {
    "zero": "A removed head outputs zero, as if its columns of W_O were zero.",
    "mean": "The output of a removed head is its mean over all tokens.",
    "swap": "Each head's output is replaced by its output on the other prompt; back: the opposite direction.",
    "sink": "The output of a removed head is the value of the first token, as if it looked only there.",
}

AT_TOKENS = "Each text is swapped at one token, which its line or, by default, `--token` names."
LINEAR = "linear"
LINEAR_METHODS = {
    "zero": "Heads without a softmax are removed at the input of W_O, after gate and norm.",
    "mean": "The mean of a head without a softmax is that of the input of W_O, after gate and norm.",
    "swap": "Heads without a softmax are swapped at the input of W_O, after gate and norm.",
}

GRID_NOTE = (
    "output_change is the mean of ||y' - y|| / ||y|| over the last vectors; cls_change is 1 - cos(y', y) of "
    "[CLS], if the model has this token."
)


def read(
    spec: AblateSpec, texts: Texts, pretrained: "Pretrained", generator: "torch.Generator"
) -> "Predicted":
    """Return the reading and the tokens to predict. Raises UserError if the text does not fit."""
    from attncli.models.openers import OPENERS, FileInput
    from attncli.models.predicted import predicted_reading
    from attncli.models.pretrained import reader_of
    from attncli.runs.runner import read_survey_text

    if (file := spec.read_file) is not None:
        reading = OPENERS[file.what].read_to_predict(pretrained, FileInput(file.name, texts.text))
        reader, key = reader_of(pretrained, reading), file.kind.setting
        return predicted_reading(
            reading, reader, generator, answer=spec.answer, against=spec.against, key=key
        )
    reading = read_survey_text(spec, texts, pretrained, generator)
    key = "texts" if spec.texts else "file" if spec.file else "sentence"
    if spec.other is not None:
        return _pair(spec, reading, spec.other, key, pretrained, generator)
    return predicted_reading(
        reading, pretrained, generator, answer=spec.answer, against=spec.against, key=key
    )


def _pair(
    spec: AblateSpec,
    reading: "Reading",
    other: str,
    key: str,
    pretrained: "Pretrained",
    generator: "torch.Generator",
    *,
    token: str | None = None,
) -> "Predicted":
    """Read a prompt and its other prompt, to be swapped at `token`, at the spec's token, or at all tokens."""
    from attncli.models.predicted import predicted_pair
    from attncli.models.reading_text import read_text
    from attncli.models.token_names import token_named

    there = read_text(pretrained, other, key="other", truncate=spec.truncate)
    token_name = token or (None if spec.token == EACH_TOKEN else spec.token)
    return predicted_pair(
        reading,
        there,
        pretrained,
        generator,
        answer=spec.answer,
        against=spec.against,
        token=None
        if token_name is None
        else token_named(str(token_name), reading.text, pretrained, key="token"),
        key=key,
    )


def _read_line(
    spec: AblateSpec, line: "TextLine", pretrained: "Pretrained", generator: "torch.Generator"
) -> "Predicted":
    """Read one line of a file of prompts; its answers take precedence over the settings."""
    from attncli.models.reading_text import read_text

    answers = {"answer": line.answer or spec.answer, "against": line.against or spec.against}
    spec = spec.model_copy(update=answers)
    if spec.method != "swap":
        return read(spec, Texts(text=line.text), pretrained, generator)
    reading = read_text(pretrained, line.text, key="texts", truncate=spec.truncate)
    assert line.other is not None
    return _pair(spec, reading, line.other, "texts", pretrained, generator, token=line.token)


def report(
    spec: AblateSpec,
    reading: "Predicted",
    pretrained: "Pretrained",
    progress: Callable[[float], None] | None,
) -> "Report":
    """Build the report on one text."""
    from attncli.models.pretrained import reader_of

    return _report(spec, [reading], reading.left_out_notes(), reader_of(pretrained, reading), progress)


def report_many(
    spec: AblateSpec, pretrained: "Pretrained", progress: Callable[[float], None] | None
) -> "Report":
    """Build the report on many texts, with means and 95 % intervals."""
    import torch

    from attncli.models.predicted import check_answers_alike
    from attncli.models.text_files import ManyTexts

    assert spec.texts is not None
    generator = torch.Generator().manual_seed(spec.seed)
    with spec.opened_texts() as file:
        many = ManyTexts(file, lambda line: _read_line(spec, line, pretrained, generator))
        readings = [cast("Predicted", reading) for batch in many.batches() for _, reading in batch]
    check_answers_alike(readings)
    return _report(spec, readings, many.notes(), pretrained, progress)


def _report(
    spec: AblateSpec,
    readings: "Sequence[Predicted]",
    notes: Sequence[str],
    pretrained: "Pretrained",
    progress: Callable[[float], None] | None,
) -> "Report":
    from attncli.features.ablate.door import ablate
    from attncli.runs.report_parts import build_report

    result = ablate(
        pretrained,
        readings,
        heads=spec.selected_heads,
        method=spec.method,
        jointly=spec.jointly,
        approximate=spec.approximate,
        token=EACH_TOKEN if spec.token == EACH_TOKEN else None,
        into=spec.into,
        progress=progress,
    )
    measured = [name for name in EFFECTS if name in result.heads.cells]
    sort = _sort(spec, measured, pretrained)
    if spec.sort != sort:
        spec = spec.model_copy(update={"sort": sort})
    sign = 1 if EFFECTS[sort].negative_is_better else -1
    ranked = result.heads.sorted(lambda row: (row.number(sort) is None, sign * (row.number(sort) or 0.0)))
    back = None if result.back is None else result.back.sorted(lambda row: -abs(row.number(sort) or 0.0))
    grids = {} if spec.token == EACH_TOKEN else result.heads.grids(sort)
    tensors = {f"{sort} {stack}".strip(): grid for stack, grid in grids.items()}
    read = Texts(token_spelling=pretrained.spelling_of(readings[0].text))
    if spec.texts is None:
        text, context = readings[0].text, readings[0].context
        read = read._replace(tokens=text.tokens, context_tokens=context.tokens if context else ())
    has_linear = any(row.kind == LINEAR for row in result.heads if "kind" in row)
    notes = [*_notes(spec, readings, pretrained, has_linear=has_linear), *notes, *result.notes]
    num_heads = len({(row.stack, row.layer, row.head) for row in result.heads})
    about = _about(readings, num_heads, pretrained)
    pictures = readings[0].drawn()
    ranked_result = replace(result, heads=ranked[: spec.top], back=back)
    notes = [note for note in notes if note != result.unshown]
    report = build_report(spec, read, tensors, ranked_result, notes, about=about, pictures=pictures)
    return replace(report, missing=result.unshown)


def _sort(spec: AblateSpec, measured: Sequence[str], pretrained: "Pretrained") -> str:
    """Return the effect that heads are sorted by. Raises UserError for an effect that was not measured."""
    if spec.sort is None and "restored" in measured:
        return "restored"
    if spec.sort is None:
        first = "approximate" if spec.approximate else "probability"
        return first if first in measured else measured[0]
    if spec.sort not in measured:
        raise UserError(f"sort: must be one of {', '.join(measured)} for {pretrained.name} (got {spec.sort})")
    return spec.sort


def _about(readings: "Sequence[Predicted]", num_heads: int, pretrained: "Pretrained") -> str:
    counts = [len(reading.text.ids) for reading in readings]
    on = counted(sum(counts), "token")
    on = on if len(counts) == 1 else f"{len(counts):,} texts, {on} in all"
    return f"{pretrained.name}: {counted(num_heads, 'head')}, on {on}."


def _notes(
    spec: AblateSpec, readings: "Sequence[Predicted]", pretrained: "Pretrained", *, has_linear: bool
) -> list[str]:
    from attncli.runs.report_parts import shipped_notes

    notes = [
        METHODS[spec.method],
        *([AT_TOKENS] if spec.texts is not None and readings[0].token is not None else []),
        *([LINEAR_METHODS[spec.method]] if has_linear else []),
        _measured(spec, readings, pretrained),
        *shipped_notes(spec),
    ]
    if len(readings) > 1:
        notes.append("Means over the texts, with 95 % intervals (Student's t).")
    notes += few_notes(len(readings))
    return notes


def _measured(spec: AblateSpec, readings: "Sequence[Predicted]", pretrained: "Pretrained") -> str:
    """Return the note that says which predictions the numbers describe."""
    from attncli.models.targets import token_text

    places = counted(sum(reading.num_places for reading in readings), "token")
    if readings[0].answer is not None:
        answers = {token_text(pretrained, int(reading.targets)) for reading in readings}
        answer = f"{answers.pop()!r}" if len(answers) == 1 else "the answer"
        return f"Measured only on the prediction of {answer}, whose loss is -ln p, in nats."
    if pretrained.predicts is None and readings[0].on_grid:
        return GRID_NOTE
    if pretrained.predicts is None:
        return (
            "The model predicts no tokens: output_change is the mean of ||y' - y|| / ||y|| over the last "
            "vectors."
        )
    if spec.probe:
        return f"Loss in nats per token, over the second copy of the probe ({places})."
    if readings[0].num_before:
        words = f"{places} of the words, each predicted from the tokens before it"
        return f"Loss in nats per token, over {words}."
    if pretrained.predicts == "masked":
        return f"Loss in nats per token, over {places} masked at random."
    return f"Loss in nats per token, over {places}, each predicted from the tokens before it."


PAGE = ModelPage(read=read, report=report, report_many=report_many)
