"""`attn circuit`: which heads feed which, on a text, the probe or many texts, or from weights alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from attncli.arguments import head_name_without_stack
from attncli.core.names import HEAD_PATTERNS
from attncli.errors import UserError
from attncli.plain_text import counted
from attncli.report import Cell, Numbers, Report, Statistic, Table
from attncli.settings.fields import Contradictions, Everyday, contradiction, in_group
from attncli.settings.models import SurveyTextSpec
from attncli.settings.text import Texts

if TYPE_CHECKING:
    from attncli.measure.circuit import HeadEdges
    from attncli.models.pretrained import Pretrained, Reading

    PatternName = str
else:
    PatternName = Literal[tuple(HEAD_PATTERNS)]

LEAST_SHARE = 0.01
"""Edges with a smaller share are left out of a report: they are most."""
SHARE_NOTE = (
    "K, Q: the share of a head's score, beyond that of an average key, that an earlier head wrote on the key "
    "(query); V: of its output. strength: times the head's mean weight beyond the first key."
)
WEIGHTS_NOTE = (
    "K-, Q- and V-composition, ||W1 W2|| / (||W1|| ||W2||): Elhage et al. 2021. Norms' gains belong to W2, "
    "rotations are left out."
)
COPYING_NOTE = "copying: sum Re(e) / sum |e|, e the eigenvalues of W_U W_OV W_E; 1 where a head copies."


class CircuitSpec(SurveyTextSpec):
    experiment = "circuit"
    title = "Which heads feed which"
    main_table = "edges"
    module = "attncli.commands.circuit"
    model_module = module
    needs_head = True
    examples = (
        "attn circuit",
        "attn circuit --model ./my-model --pattern induction",
        'attn circuit --model ./my-model "to be or not to be" --head 18:6',
        "attn circuit --model ./my-model --texts lines.txt -o circuit.svg",
        "attn circuit --model ./my-model --weights",
    )
    off_keys = frozenset({"texts", "text_group", "head", "pattern", "weights"})
    next_steps = ("--head LAYER:HEAD", "--weights", "-o circuit.svg")
    heading_keys = ("file", "model", "head", "pattern", "seed")

    head: Annotated[
        Annotated[str, BeforeValidator(head_name_without_stack)] | None, Everyday("only what feeds this head")
    ] = Field(None, description="only what feeds this head, as LAYER:HEAD")
    pattern: Annotated[
        PatternName | None, Everyday("only what feeds heads of this pattern: induction, ...")
    ] = Field(None, description=f"only what feeds the heads with this pattern: {', '.join(HEAD_PATTERNS)}")
    weights: Annotated[bool, Everyday("from weights alone, without a text: composition, copying")] = Field(
        False,
        description="from weights alone, without a text: K-, Q- and V-composition of each two heads, and how "
        "much each head copies",
    )

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        if settings.get("weights"):
            return "--show all", "-o circuit.svg"
        return cls.next_steps[1:] if settings.get("head") else cls.next_steps

    def single_statistics(self) -> tuple[str, ...]:
        if self.weights:
            return in_group("copying.N", "layer", "head", "score")
        of_heads = ("weight", "logit_share", *(f"{side}_of_heads" for side in ("key", "query", "value")))
        return (*of_heads, *in_group("texts", "num_texts"))

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.head is not None and self.pattern is not None:
            yield contradiction("pattern", "cannot be combined with `head`", "head")
        if self.context is not None:
            yield contradiction("context", "is for an encoder and a decoder, whose scores are no such sums")
        for key in self.given("sentence", "file", "texts", "num_tokens", "pattern") if self.weights else ():
            yield contradiction(key, "cannot be combined with `weights`, which need no text", "weights")


def read(spec: CircuitSpec, texts: Texts, pretrained: "Pretrained", generator: Any) -> "Reading":
    """What the model reads."""
    from attncli.runs.runner import read_survey_text

    return read_survey_text(spec, texts, pretrained, generator)


def report(
    spec: CircuitSpec,
    reading: "Reading",
    pretrained: "Pretrained",
    progress: Callable[[float], None] | None,
) -> Report:
    """The edges that one text shows, or those of the weights alone."""
    if spec.weights:
        return _report_weights(spec, pretrained, progress)
    return _report(spec, [reading], reading.left_out_notes(), pretrained, progress)


def report_many(
    spec: CircuitSpec, pretrained: "Pretrained", progress: Callable[[float], None] | None
) -> Report:
    """The report of many texts: means over them with 95 % intervals."""
    import torch

    from attncli.models.text_files import ManyTexts, TextFile

    assert spec.texts is not None
    generator = torch.Generator().manual_seed(spec.seed)
    with TextFile(spec.texts, spec.text_group) as file:
        many = ManyTexts(file, lambda line: read(spec, Texts(text=line.text), pretrained, generator))
        readings = [reading for batch in many.batches() for _, reading in batch]
    return _report(spec, readings, many.notes(), pretrained, progress)


def _report(
    spec: CircuitSpec,
    readings: Sequence["Reading"],
    notes: Sequence[str],
    pretrained: "Pretrained",
    progress: Callable[[float], None] | None,
) -> Report:
    from attncli.measure.circuit import head_edges, heads_with_pattern
    from attncli.report_parts import build_report, shipped_notes

    heads = [spec.head] if spec.head is not None else []
    if spec.pattern is not None:
        heads = heads_with_pattern(pretrained, readings, spec.pattern)
        if not heads:
            raise UserError(f"pattern: no head of {pretrained.name} has it here (got {spec.pattern})")
    found = head_edges(pretrained, readings, heads=heads, progress=progress)
    edges = sorted(map(_edge, found.rows), key=lambda row: -abs(row["strength"]))
    statistics: dict[str, Statistic] = {
        "edges": Table(row for row in edges if abs(row["share"]) >= LEAST_SHARE),
        "heads": Table(_heads(found)),
        "texts": Numbers(num_texts=found.num_texts),
    }
    tokens = readings[0].text.tokens if spec.texts is None else ()
    on = counted(len(tokens), "token") if spec.texts is None else counted(len(readings), "text")
    of_texts = ["± half of a 95 % interval over the texts (Student's t)."] if len(readings) > 1 else []
    return build_report(
        spec,
        Texts(tokens, token_spelling=pretrained.token_spelling),
        {},
        statistics,
        [*of_texts, *shipped_notes(spec), *found.notes, *notes],
        about=f"{pretrained.name}: which heads feed which, on {on}.",
        how_to_read=SHARE_NOTE,
    )


def _edge(row: Mapping[str, Any]) -> dict[str, Any]:
    """The edge from a part to a head or the logits, under their names."""
    from attncli.measure.scores import Part

    part = Part(row["kind"], row["from_layer"], row["from_head"])
    to = "logits" if row["layer"] is None else f"{row['layer']}:{row['head']}"
    ends = {name: row[name] for name in ("share_low", "share_high") if name in row}
    return {
        **{"from": part.name, "to": to, "side": row["side"], "share": row["share"]},
        **ends,
        "strength": row["strength"],
        **{
            "from_layer": part.layer,
            "from_head": part.head,
            "to_layer": row["layer"],
            "to_head": row["head"],
        },
    }


def _heads(found: "HeadEdges") -> Iterable[dict[str, Cell]]:
    """Of each head its mean weight, and how much of each side all earlier heads wrote together."""
    shares: dict[tuple[Any, Any], dict[str, float]] = {}
    for row in found.rows:
        if row["kind"] == "head" and row["layer"] is not None:
            of_head = shares.setdefault((row["layer"], row["head"]), {})
            of_head[row["side"]] = of_head.get(row["side"], 0.0) + row["share"]
    logits = {
        (row["from_layer"], row["from_head"]): row["share"] for row in found.rows if row["layer"] is None
    }
    for (layer, head), weight in found.weight.items():
        of_head = shares.get((layer, head), {})
        sides = {f"{side}_of_heads": of_head.get(side, 0.0) for side in ("key", "query", "value")}
        of_logits = {"logit_share": logits[layer, head]} if logits else {}
        yield {"stack": "self", "layer": layer, "head": head, "weight": weight, **sides, **of_logits}


def _report_weights(
    spec: CircuitSpec, pretrained: "Pretrained", progress: Callable[[float], None] | None
) -> Report:
    from attncli.measure.circuit import compositions
    from attncli.report_parts import build_report, shipped_notes

    found = compositions(pretrained, head=spec.head, progress=progress)
    edges = [
        {
            **{"from": f"{row['from_layer']}:{row['from_head']}", "to": f"{row['layer']}:{row['head']}"},
            **{"side": row["side"], "score": row["score"]},
            **{"from_layer": row["from_layer"], "from_head": row["from_head"]},
            **{"to_layer": row["layer"], "to_head": row["head"]},
        }
        for row in sorted(found.rows, key=lambda row: -row["score"])
    ]
    statistics: dict[str, Statistic] = {"edges": Table(edges), "copying": Table(found.copying)}
    notes = [*([COPYING_NOTE] if found.copying else []), *found.notes, *shipped_notes(spec)]
    spec = spec.model_copy(update={"probe": None, "num_tokens": None})
    about = f"{pretrained.name}: which heads can feed which, from weights alone."
    return build_report(spec, Texts(), {}, statistics, notes, about=about, how_to_read=WEIGHTS_NOTE)
