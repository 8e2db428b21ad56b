"""The settings of `attn heads --examples`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from attncli.core.names import PATTERNS, ROW_STATISTICS
from attncli.settings.fields import Count, Size
from attncli.settings.heads import HeadSetting
from attncli.settings.models import ManyTextsSpec, ModelOfHeadsSpec, WordsSpec
from attncli.settings.text import TextPath

if TYPE_CHECKING:
    StatisticOfRows = str
else:
    StatisticOfRows = Literal[(*ROW_STATISTICS, *PATTERNS)]


class ExamplesSpec(ManyTextsSpec, WordsSpec, ModelOfHeadsSpec):
    experiment = "heads"
    title = "What each head looks at"
    group = "Output"
    examples = ()
    off_keys = frozenset({"text_group"})

    skip_sink: Count = Field(0, description="leave out the first N keys and renormalise the other weights")
    sort: StatisticOfRows
    head: HeadSetting
    texts: TextPath
    num_examples: Size | None = Field(
        None,
        description="with `head`: show N texts where `sort` is strongest, N where it is weakest and N "
        "where it is typical, with the query in each text",
    )

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return "--show all", "-o examples.html"

    def result_kind(self) -> str:
        return "heads of examples"
