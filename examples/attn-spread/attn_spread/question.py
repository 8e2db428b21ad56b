"""`attn spread`: how far apart the keys of a head are."""

from typing import Any

from pydantic import Field

from attncli.records.report import Report
from attncli.settings.fields import Size
from attncli.settings.models import OneTextSpec
from attncli.settings.pages import ModelPage
from attncli.settings.text import Texts


class SpreadSpec(OneTextSpec):
    experiment = "spread"
    title = "Spread of heads"
    examples = ('attn spread "the cat sat because it was tired"', "attn spread --model ./my-model --top 10")
    off_keys = frozenset({"top"})
    next_steps = ("--top 20", "-o page.html")
    heading_keys = ("file", "model", "seed")

    top: Size | None = Field(None, description="show only the first N heads")

    def result_kind(self) -> str:
        return "spread"


class SpreadOfHeadsSpec(SpreadSpec):
    experiment = "heads"
    examples = ()

    spread: bool = Field(False, description="measure how far apart the keys of each head are")

    def result_kind(self) -> str:
        return "heads of spread"


def read(spec: SpreadSpec, texts: Texts, pretrained: Any, generator: Any) -> Any:
    """Read the text with the model's tokenizer."""
    from attncli.runs.runner import read_survey_text

    return read_survey_text(spec, texts, pretrained, generator)


def report(spec: SpreadSpec, reading: Any, pretrained: Any, progress: object) -> Report:
    """Report the heads of the model, the largest spread first."""
    from attn_spread.door import spread
    from attn_spread.results import HeadSpreads
    from attncli.runs.report_parts import build_report

    heads = spread(pretrained, reading).heads
    return build_report(
        spec,
        Texts(reading.text.tokens),
        {},
        HeadSpreads(heads=heads[: spec.top]),
        ["Spread is the standard deviation of the key's position, mean over the queries."],
        about=f"{pretrained.name}: {len(heads)} heads, on {len(reading.text.ids)} tokens.",
    )


PAGE = ModelPage(read=read, report=report)
