"""The settings of `attn heads --examples`."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from attncli.core.names import PATTERNS, ROW_STATISTICS
from attncli.settings.fields import Contradictions, Count, Everyday, Requires, Size, contradiction
from attncli.settings.heads import HeadSetting, HeadStatistic
from attncli.settings.models import ManyTextsSpec, ModelOfHeadsSpec, WordsSpec


class ExamplesSpec(ManyTextsSpec, WordsSpec, ModelOfHeadsSpec):
    experiment = "heads"
    title = "What each head looks at"
    group = "Output"
    examples = ()
    off_keys = frozenset({"text_group"})

    skip_sink: Count = Field(0, description="leave out the first N keys, the other weights renormalised")
    sort: Annotated[HeadStatistic | None, Everyday()] = Field(None, description="the statistic of its rows")
    head: Annotated[HeadSetting | None, Everyday()] = Field(None, description="the head, as LAYER:HEAD")
    num_examples: Annotated[
        Size | None,
        Requires("head"),
        Requires("texts"),
        Requires(
            "sort", more=": a statistic of a row, as previous_token or entropy", involved=("sort", "head")
        ),
    ] = Field(
        None,
        description="with `head`: show N texts, and the query in each, where `sort` is strongest, N where "
        "it is weakest and N where it is typical",
    )

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return "--show all", "-o examples.html"

    def result_kind(self) -> str:
        return "heads of examples"

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.sort is not None and self.sort not in (*ROW_STATISTICS, *PATTERNS):
            yield contradiction("sort", f"{self.sort} is not a statistic of a row", "num_examples")
