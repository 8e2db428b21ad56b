"""Settings of `attn cache`: limited heads, or policies for the keys of a prompt."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from attncli.features.cache.names import CACHE_POLICIES
from attncli.records.arguments import number_as_text
from attncli.settings.fields import Count, Everyday, Size
from attncli.settings.models import OneTextSpec, split_names
from attncli.settings.text import Text

if TYPE_CHECKING:
    Policy = str
else:
    Policy = Literal[(*CACHE_POLICIES, "all")]


def _check_share(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(f"must be a share of the cache, above 0 and at most 1 (got {value:g})")
    return value


Budget = Annotated[
    float,
    AfterValidator(_check_share),
    WithJsonSchema({"exclusiveMinimum": 0, "maximum": 1, "type": "number"}),
]


def _split_numbers(value: object) -> object:
    return (
        value
        if isinstance(value, list | tuple)
        else split_names(value)
        if isinstance(value, str)
        else [value]
    )


def _check_single(shares: list[float]) -> list[float]:
    """Raise ValueError for several shares, or for a share that is not below 1."""
    if len(shares) > 1:
        raise ValueError("several shares need `policy`: use one share, or set `policy`")
    if shares == [1]:
        raise ValueError("must be a share of the cache below 1 (got 1)")
    return shares


SharesOfCache = Annotated[
    list[Budget], BeforeValidator(_split_numbers, json_schema_input_type=list[Budget] | Budget | str)
]
BudgetsInHelp = Everyday(
    "the share of the cache to keep (several with --policy); attn finds the heads that keep all keys"
)
BUDGET_HELP = (
    "the share of the cache to keep; attn finds the heads that keep all keys; with `policy`, one or several "
    "shares (default: 0.1,0.3,0.5)"
)
Needle = Annotated[
    Text | None,
    Everyday("the part of the text that the end of the text asks for"),
    Field(
        description="the part of the text that the end of the text asks for, on which losses are "
        "measured; appended to the text if it occurs there once"
    ),
]
Bits = Annotated[
    Annotated[Literal["8", "4"], BeforeValidator(number_as_text)] | None,
    Everyday("round keys and values to 8 or 4 bits"),
    Field(description="round the prompt's keys, by channel, and values, by token, to 8 or 4 bits"),
]
TokensJudged = Annotated[
    Size | None,
    Everyday("judge N tokens at a time, throughout the text"),
    Field(
        description="with `policy` or `bits`: judge N tokens at a time, throughout the text (default: once, "
        "the last tenth, at most 200)"
    ),
]


class SmallerCachesSpec(OneTextSpec):
    """Settings shared by all forms of `attn cache`."""

    experiment = "cache"
    parts = ("statistics", "heads", "forgotten", "curve")
    title = "Loss with a smaller cache"
    needs_head = True
    group = "Cache"
    examples: ClassVar[tuple[str, ...]] = ()
    settings_elsewhere: ClassVar[Mapping[str, str]] = {
        "texts": "reads one text: use --file FILE",
        "context": "reads only decoders and has no second text",
    }
    excludes: ClassVar[Mapping[str, str]] = {"probe": "needle, every"}
    off_keys = frozenset({"needle", "sink", "window", "budget", "policy", "bits", "every", "top"})
    heading_keys = ("file", "model", "needle", "seed")

    @property
    def text_key(self) -> str:
        """The setting that supplies the text."""
        return "num_tokens" if self.probe else "file" if self.file else "sentence"


class CacheSpec(SmallerCachesSpec):
    examples = (
        "attn cache",
        "attn cache --model ./my-model --file prompt.txt",
        'attn cache --model ./my-model --file prompt.txt --needle "48291"',
        "attn cache --model ./my-model --file prompt.txt --budget 0.3 --format json",
        "attn cache --model ./my-model --file prompt.txt --policy snapkv,heads --budget 0.1,0.3",
        "attn cache --model ./my-model --file prompt.txt --policy all -o policies.png",
    )
    next_steps = ("--needle TEXT", "--budget 0.3", "--policy all", "-o page.html")

    sink: Annotated[Count | None, Everyday("how many of the first keys a limited head keeps")] = Field(
        None,
        description="how many of the first keys a limited head keeps (default: 4, fewer for a short text)",
    )
    window: Annotated[Size | None, Everyday("how many of the last keys a limited head keeps")] = Field(
        None,
        description="how many of the last keys a limited head keeps (default: 64, an eighth of a short text; "
        "at most a third of `budget`)",
    )
    needle: Needle = None
    budget: Annotated[SharesOfCache, AfterValidator(_check_single), BudgetsInHelp] = Field(
        [], description=BUDGET_HELP
    )
    top: Annotated[Size | None, Everyday()] = Field(None, description="show only the first N heads")

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        # Random tokens ask for nothing, so no needle can be set for them.
        return cls.next_steps if settings.get("sentence") or settings.get("file") else cls.next_steps[1:]

    def result_kind(self) -> str:
        return "cache"

    def unmeasured(self) -> set[str]:
        is_unused = {"needle": not self.needle, "full": not self.budget, "at_budget": not self.budget}
        return {name for name, is_set in is_unused.items() if is_set}


class PoliciesSpec(SmallerCachesSpec):
    """Settings for a prompt's cache that keeps only some of its keys."""

    needle: Needle = None
    budget: Annotated[SharesOfCache, BudgetsInHelp] = Field([], description=BUDGET_HELP)
    policy: Annotated[
        Annotated[list[Policy], BeforeValidator(split_names, json_schema_input_type=list[Policy] | str)],
        Everyday(f"policies that choose the keys to keep: {', '.join(CACHE_POLICIES)}, all"),
    ] = Field(
        [],
        description=f"policies that choose the keys of a prompt to keep: {', '.join(CACHE_POLICIES)}, or all",
    )
    bits: Bits = None
    every: TokensJudged = None

    @property
    def policies(self) -> list[str]:
        """The selected policies without duplicates."""
        return [*CACHE_POLICIES] if "all" in self.policy else [*dict.fromkeys(self.policy)]

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return ("--budget 0.05,0.2,0.8", "-o policies.png", "-o policies.csv")

    def result_kind(self) -> str:
        return "cache of policies"

    def unmeasured(self) -> set[str]:
        is_unused = {"needle": not self.needle, "lines": len(self.budget) == 1}
        return {name for name, is_set in is_unused.items() if is_set}


class BitsSpec(SmallerCachesSpec):
    """Settings for a prompt's cache that keeps all keys, rounded to a few bits."""

    needle: Needle = None
    bits: Bits = None
    every: TokensJudged = None

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return ("-o policies.png", "-o policies.csv")

    def result_kind(self) -> str:
        return "cache of policies"

    def unmeasured(self) -> set[str]:
        return {"lines"} if self.needle else {"lines", "needle"}
