"""`attn why`: the contribution of each head to a logit, or the parts of one head's score."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, create_model

from attncli.core.names import named_head
from attncli.errors import UserError
from attncli.features.why.results import AT_LAST, LINEAR, SUM_OF
from attncli.models.text_files import PromptsFile
from attncli.records.arguments import head_name
from attncli.records.columns import few_notes
from attncli.records.meanings import INTERVAL
from attncli.settings.fields import (
    ONE_HEAD,
    Contradictions,
    Count,
    Everyday,
    Heading,
    Size,
    TokenName,
    contradiction,
)
from attncli.settings.models import SurveyTextSpec
from attncli.settings.pages import ModelPage
from attncli.settings.text import Texts
from attncli.system.plain_text import counted

if TYPE_CHECKING:
    import torch

    from attncli.features.why.results import LogitAttribution
    from attncli.models.pretrained import Pretrained, Reading
    from attncli.models.text_files import TextLine
    from attncli.records.report import Report

    class QueryAndKeySpec(SurveyTextSpec):
        to: str | None
else:
    # `from` is a keyword, so the field cannot be declared in a class.
    QueryAndKeySpec = create_model(
        "QueryAndKeySpec",
        __base__=SurveyTextSpec,
        **{
            "from": (
                Annotated[
                    TokenName | None,
                    Heading("Output"),
                    Everyday("with --head: the token that looks"),
                ],
                Field(
                    None,
                    description="with `head`: the query: a token such as cat, its second occurrence as "
                    "cat#2, a position such as 5 or -1, or last (default: last)",
                ),
            ),
            "to": (
                Annotated[
                    TokenName | None,
                    Heading("Output"),
                    Everyday("with --head: the token that the head looks at"),
                ],
                Field(
                    None,
                    description="with `head`: the key, named as in `from` (default: the key with the largest "
                    "weight after the first)",
                ),
            ),
        },
    )


class WhySpec(QueryAndKeySpec):
    experiment = "why"
    title = "Contribution of each head to a logit"
    parts = ("rows", "statistics", "heads", "layers", "parts")
    needs_head = True
    examples = (
        "attn why",
        'attn why "The capital of France is" --model ./my-model --answer " Paris"',
        'attn why "the cat sat as it slept" --model ./my-model --head 5:11 --from it',
        'attn why --model ./my-model "He gave the book to" --answer " her" --against " him" --head 9:6',
        'attn why --model ./my-model "the cat sat because it was tired" --head 5:11 --from it --to cat',
        "attn why --model ./my-model -o heads.csv",
        "attn why --model ./my-model --texts prompts.jsonl",
    )
    off_keys = frozenset({"texts", "text_group", "answer", "against", "top", "from", "to", "over"})
    next_steps = (ONE_HEAD, "--answer TEXT", "-o page.html")
    settings_elsewhere: ClassVar[Mapping[str, str]] = {
        "layer": "always adds up all layers: use --head LAYER:HEAD to show one head",
        "context": "reads only decoders, which have no second text",
    }
    heading_keys = ("file", "model", "answer", "against", "seed")
    needs: ClassVar[Mapping[str, str]] = {"against": "answer", "from, to, over": "head"}
    excludes: ClassVar[Mapping[str, str]] = {"answer": "from, to, over", "texts": "head"}

    answer: Annotated[str | None, Everyday("the next token, whose logit is split")] = Field(
        None, description="the next token, whose logit is split (default: the most likely one)"
    )
    against: Annotated[str | None, Everyday("with --answer: the token to compare with")] = Field(
        None, description="with `answer`: the token whose logit is subtracted from the answer's"
    )
    head: Annotated[
        Annotated[str, BeforeValidator(head_name)] | None,
        Everyday("why this head, such as 5:11, looks where it does"),
    ] = Field(
        None,
        description="why this head, as LAYER:HEAD, looks where it does; with `answer`: its contribution by "
        "token (default: the head that adds the most)",
    )
    over: Count = Field(
        2,
        description="with `head`: the number of earlier heads on each side to list with the keys that they "
        "looked at",
    )
    top: Annotated[Size | None, Everyday()] = Field(None, description="show only the first N heads")

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        return "Why a head looks where it does" if settings.get("to") else cls.title

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        if settings.get("to"):
            return "--show all", "-o page.html"
        if settings.get("texts"):
            return "--show texts", "-o page.html"
        return cls.next_steps[1:] if settings.get("answer") else cls.next_steps

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        for key in self.given("top") if self.splits_score else ():
            message = "needs `answer` in addition to `head`, because a single head has no table of heads"
            yield contradiction(key, message, "head", "answer")

    @property
    def splits_score(self) -> bool:
        """True for a head's score, False for a logit."""
        return self.head is not None and self.answer is None

    @property
    def query(self) -> str:
        """The name of the query token."""
        return self.names_of_tokens().get("from") or "last"

    def names_of_tokens(self) -> dict[str, str]:
        names = self.model_dump(include={"from", "to"})
        return {key: name for key, name in names.items() if name is not None}

    def result_kind(self) -> str:
        return "why of a score" if self.splits_score else "why"

    def unmeasured(self) -> set[str]:
        if self.splits_score:
            return set()
        if self.texts is not None:
            return {"keys", "norm_scale"}
        text_columns = {"texts", "above", "above_low", "above_high"}
        added = ("contribution", "attention", "mlp", "embedding", "heads", "mlps", "biases", "sum", "logit")
        return text_columns | {f"{name}{end}" for name in added for end in INTERVAL}

    def opened_texts(self) -> PromptsFile:
        return PromptsFile(str(self.texts), self.text_group)


def read(spec: WhySpec, texts: Texts, pretrained: "Pretrained", generator: "torch.Generator") -> "Reading":
    """Read the text for the model."""
    from attncli.runs.runner import read_survey_text

    return read_survey_text(spec, texts, pretrained, generator)


def report(spec: WhySpec, reading: "Reading", pretrained: "Pretrained", progress: object) -> "Report":
    """Build the report on the heads' contributions to the logit, or on the parts of one head's score."""
    return (_score_report if spec.splits_score else _report)(spec, reading, pretrained)


def report_many(
    spec: WhySpec, pretrained: "Pretrained", progress: Callable[[float], None] | None
) -> "Report":
    """Build the report on the heads' mean contributions to logits after many texts, with 95 % intervals."""
    import torch

    from attncli.features.why.door import why
    from attncli.models.predicted import check_answers_alike
    from attncli.models.text_files import ManyTexts
    from attncli.runs.report_parts import build_report, shipped_notes

    assert spec.texts is not None
    generator = torch.Generator().manual_seed(spec.seed)
    with spec.opened_texts() as file:
        many = ManyTexts(file, lambda line: _read_line(spec, line, pretrained, generator))
        lines = sorted((line for batch in many.batches() for line in batch), key=lambda pair: pair[0].line)
    readings, names = [reading for _, reading in lines], [line.label for line, _ in lines]
    check_answers_alike(readings)
    texts = [reading.text for reading in readings]
    result = why(pretrained, readings, names=names, progress=progress)
    notes = [*shipped_notes(spec), *many.notes(), *(note for note in result.notes if note != result.unshown)]
    on = counted(len(readings), "text") + f" of {counted(sum(len(text.ids) for text in texts), 'token')}"
    report = build_report(
        spec,
        Texts(token_spelling=pretrained.spelling_of(texts[0])),
        {f"contribution {stack}".strip(): grid for stack, grid in result.heads.grids("contribution").items()},
        replace(result, heads=result.ranked()[: spec.top]),
        [*([MEANS] if len(readings) > 1 else []), *few_notes(len(readings)), *notes],
        about=f"{pretrained.name}: {counted(len(result.heads), 'head')}, on {on}.",
        how_to_read=_how_to_read_many(readings[0]),
    )
    return replace(report, missing=result.unshown)


def _read_line(
    spec: WhySpec, line: "TextLine", pretrained: "Pretrained", generator: "torch.Generator"
) -> "Reading":
    """Read one line of a file of prompts; its answers take precedence over the settings."""
    from attncli.models.predicted import predicted_reading
    from attncli.models.reading_text import read_text

    reading = read_text(pretrained, line.text, key="texts", truncate=spec.truncate)
    answer, against = line.answer or spec.answer, line.against or spec.against
    if answer is None and against is None:
        return reading
    return predicted_reading(reading, pretrained, generator, answer=answer, against=against, key="texts")


def _how_to_read_many(first: "Reading") -> str:
    from attncli.models.predicted import Predicted

    what = "the most likely token's logit"
    if isinstance(first, Predicted) and first.answer is not None:
        compared = " minus that of the other token" if first.answer.against is not None else ""
        what = f"the answer's logit{compared}"
    return f"{SUM_OF}{what}{AT_LAST}"


def _report(spec: WhySpec, reading: "Reading", pretrained: "Pretrained") -> "Report":
    from attncli.features.why.door import why
    from attncli.runs.report_parts import build_report

    result = why(pretrained, reading, answer=spec.answer, against=spec.against, head=spec.head)
    spec = spec.model_copy(update={"head": result.head})
    grids = result.heads.grids("contribution")
    report = build_report(
        spec,
        Texts(reading.text.tokens, token_spelling=pretrained.spelling_of(reading.text)),
        {f"contribution {stack}".strip(): grid for stack, grid in grids.items()},
        replace(result, heads=result.ranked()[: spec.top]),
        _notes(spec, result, reading),
        about=f"{pretrained.name}: {counted(len(result.heads), 'head')}, "
        f"on {counted(len(reading.text.ids), 'token')}.",
        how_to_read=_how_to_read(result, pretrained),
    )
    return replace(report, missing=result.unshown)


def _how_to_read(result: "LogitAttribution", pretrained: "Pretrained") -> str:
    from attncli.models.targets import token_text

    tokens = [token_text(pretrained, token) for token in result.ids]
    what = f"the logit of {tokens[0]!r}" + (f" minus that of {tokens[1]!r}" if len(tokens) > 1 else "")
    return f"{SUM_OF}{what}{AT_LAST}"


def _notes(spec: WhySpec, result: "LogitAttribution", reading: "Reading") -> list[str]:
    from attncli.runs.report_parts import shipped_notes

    is_linear = any(row.name == spec.head and row.get("kind") == LINEAR for row in result.heads)
    through = "gate and norm, W_O and W_U" if is_linear else "W_O and W_U"
    by_token = f"Head {spec.head} is split by token: weight times value, through {through}."
    notes = [note for note in result.notes if note != result.unshown]
    return [by_token, *shipped_notes(spec), *notes, *reading.left_out_notes()]


def _score_report(spec: WhySpec, reading: "Reading", pretrained: "Pretrained") -> "Report":
    from attncli.features.why.door import score_parts
    from attncli.models.token_names import token_named
    from attncli.runs.report_parts import build_report, shipped_notes

    stack, layer, head = named_head(str(spec.head))
    if stack:
        raise UserError(f"head: must be a layer and a head, such as {layer}:{head} (got {spec.head})")
    text, key = reading.text, spec.to
    at_query = token_named(spec.query, text, pretrained, key="from")
    at_key = None if key is None else token_named(key, text, pretrained, key="to")
    try:
        result = score_parts(pretrained, reading, str(spec.head), query=at_query, key=at_key, over=spec.over)
    except UserError as error:  # the command calls the key `to`
        raise UserError(*(line.replace("key: ", "to: ", 1) for line in error.lines)) from None
    query, key_place = result.query, result.key
    notes = [note for note in result.notes if note != result.unshown]
    report = build_report(
        spec.model_copy(update={"from": str(query), "to": str(key_place)}),
        Texts(text.tokens, token_spelling=pretrained.spelling_of(text)),
        {},
        result,
        [*shipped_notes(spec), *notes, *reading.left_out_notes()],
        about=f"{pretrained.name}: why head {spec.head} looks from {query} to {key_place}.",
        how_to_read=SCORE_NOTE,
    )
    return replace(report, missing=result.unshown)


MEANS = "Means over the texts, ± half of a 95 % interval (Student's t)."
SCORE_NOTE = (
    "The score, minus the mean over the keys that the query sees, is a sum over the parts that wrote the "
    "query and the key; next to each part is the weight without that part."
)


PAGE = ModelPage(read=read, report=report, report_many=report_many)
