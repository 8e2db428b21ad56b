"""`attn circuit`: which heads feed which, measured on one text, the probe or many texts, or from weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from attncli.core.names import HEAD_PATTERNS
from attncli.models.folder import SHIPPED_MODEL
from attncli.records.arguments import head_name_without_stack
from attncli.records.columns import few_notes
from attncli.records.report import Report
from attncli.settings.fields import Contradictions, Everyday
from attncli.settings.models import ModelSpec, SurveyTextSpec
from attncli.settings.pages import ModelPage, read_no_text
from attncli.settings.text import Texts
from attncli.system.plain_text import counted

if TYPE_CHECKING:
    from attncli.models.pretrained import Pretrained, Reading

    PatternName = str
else:
    PatternName = Literal[tuple(HEAD_PATTERNS)]

SHARE_NOTE = (
    "share: for K and Q, the part of a head's score (relative to an average key) that an earlier head "
    "wrote into the key or query; for V, the earlier head's part of the output. "
)
LOGIT_NOTE = "logit: the effect of the edge on the logit of the most likely next token."
STRENGTH_NOTE = "strength: the share times the head's mean weight on the keys after the first."
WEIGHTS_NOTE = (
    "K-, Q- and V-composition, ||W1 W2|| / (||W1|| ||W2||): Elhage et al. 2021. W2 includes the gains of "
    "the norms; rotations are ignored."
)
COPYING_NOTE = (
    "copying: sum Re(e) / sum |e| over the eigenvalues e of W_U W_OV W_E; 1 for a head that copies."
)


HeadFed = Annotated[
    Annotated[str, BeforeValidator(head_name_without_stack)] | None,
    Everyday("only what feeds this head"),
    Field(description="only what feeds this head, as LAYER:HEAD"),
]


class HeadsFeedingHeadsSpec(ModelSpec):
    """The settings shared by all forms of `attn circuit`."""

    experiment = "circuit"
    title = "Which heads feed which"
    main_table = "edges"
    parts = ("statistics", "edges", "heads")
    needs_head = True
    group = "Input"
    default_model = SHIPPED_MODEL
    examples: ClassVar[tuple[str, ...]] = ()
    off_keys = frozenset({"head"})
    heading_keys = ("file", "model", "head", "pattern", "seed")


class CircuitSpec(HeadsFeedingHeadsSpec, SurveyTextSpec):
    examples = (
        "attn circuit",
        "attn circuit --model ./my-model --pattern induction",
        'attn circuit --model ./my-model "to be or not to be" --head 18:6',
        "attn circuit --model ./my-model --texts lines.txt -o circuit.svg",
        "attn circuit --model ./my-model --weights",
    )
    off_keys = frozenset({"texts", "text_group", "pattern"})
    next_steps = ("--head LAYER:HEAD", "--weights", "-o circuit.svg")
    settings_elsewhere: ClassVar[Mapping[str, str]] = {
        "context": "reads only decoders, because the scores of an encoder-decoder are not sums of parts"
    }

    head: HeadFed = None
    pattern: Annotated[
        PatternName | None, Everyday("only what feeds heads of this pattern: induction, ...")
    ] = Field(None, description=f"only what feeds the heads with this pattern: {', '.join(HEAD_PATTERNS)}")

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        left_out = {"--head LAYER:HEAD"} if settings.get("head") else set()
        left_out |= {"--weights"} if any(map(settings.get, ("sentence", "file", "texts"))) else set()
        return tuple(step for step in cls.next_steps if step not in left_out)

    def result_kind(self) -> str:
        return "circuit"

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("pattern", "head")


class CompositionsSpec(HeadsFeedingHeadsSpec):
    head: HeadFed = None
    weights: Annotated[bool, Everyday("from the weights, without a text: composition, copying")] = Field(
        False,
        description="from the weights, without a text: K-, Q- and V-composition of each pair of heads, and "
        "the copying score of each head",
    )

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return "--show all", "-o circuit.svg"

    def result_kind(self) -> str:
        return "circuit of weights"


def read(spec: CircuitSpec, texts: Texts, pretrained: "Pretrained", generator: Any) -> "Reading":
    """Read the text for the model."""
    from attncli.runs.runner import read_survey_text

    return read_survey_text(spec, texts, pretrained, generator)


def report(
    spec: CircuitSpec,
    reading: "Reading",
    pretrained: "Pretrained",
    progress: Callable[[float], None] | None,
) -> Report:
    """Build the report on one text."""
    return _report(spec, [reading], reading.left_out_notes(), pretrained, progress)


def report_many(
    spec: CircuitSpec, pretrained: "Pretrained", progress: Callable[[float], None] | None
) -> Report:
    """Build the report on many texts, with means and 95 % intervals."""
    import torch

    from attncli.models.text_files import ManyTexts

    assert spec.texts is not None
    generator = torch.Generator().manual_seed(spec.seed)
    with spec.opened_texts() as file:
        many = ManyTexts(file, lambda line: read(spec, Texts(text=line.text), pretrained, generator))
        readings = [reading for batch in many.batches() for _, reading in batch]
    return _report(spec, readings, many.notes(), pretrained, progress)


def _report(
    spec: CircuitSpec,
    readings: "Sequence[Reading]",
    notes: Sequence[str],
    pretrained: "Pretrained",
    progress: Callable[[float], None] | None,
) -> Report:
    from attncli.features.circuit.door import head_edges
    from attncli.runs.report_parts import build_report, shipped_notes

    heads = [] if spec.head is None else [spec.head]
    result = head_edges(pretrained, readings, heads=heads, pattern=spec.pattern, progress=progress)
    tokens = readings[0].text.tokens if spec.texts is None else ()
    on = counted(len(tokens), "token") if spec.texts is None else counted(len(readings), "text")
    interval_note = ["± half of a 95 % interval over the texts (Student's t)."] if len(readings) > 1 else []
    report = build_report(
        spec,
        Texts(tokens, token_spelling=pretrained.spelling_of(readings[0].text)),
        {},
        result,
        [
            *interval_note,
            *few_notes(len(readings)),
            *shipped_notes(spec),
            *(note for note in result.notes if note != result.unshown),
            *notes,
        ],
        about=f"{pretrained.name}: which heads feed which, on {on}.",
        how_to_read=SHARE_NOTE + (LOGIT_NOTE if "logit" in result.edges.cells else STRENGTH_NOTE),
    )
    return replace(report, missing=result.unshown)


def report_weights(
    spec: CompositionsSpec,
    reading: "Reading",
    pretrained: "Pretrained",
    progress: Callable[[float], None] | None,
) -> Report:
    """Build the report on composition and copying scores, which come from the weights."""
    from attncli.features.circuit.door import compositions
    from attncli.runs.report_parts import build_report, shipped_notes

    result = compositions(pretrained, head=spec.head, progress=progress)
    notes = [*([COPYING_NOTE] if result.copying else []), *result.notes, *shipped_notes(spec)]
    about = f"{pretrained.name}: which heads can feed which, from the weights."
    return build_report(spec, Texts(), {}, result, notes, about=about, how_to_read=WEIGHTS_NOTE)


PAGE = ModelPage(read=read, report=report, report_many=report_many)
WEIGHTS_PAGE = ModelPage(read=read_no_text, report=report_weights)
