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
    """At most one share, below the whole cache. Raises ValueError for more."""
    if len(shares) > 1:
        raise ValueError("needs `policy` to be several: give one share")
    if shares == [1]:
        raise ValueError("must be a share of the cache below 1 (got 1)")
    return shares


SharesOfCache = Annotated[
    list[Budget], BeforeValidator(_split_numbers, json_schema_input_type=list[Budget] | Budget | str)
]
OfBudgets = Everyday("shares of the cache: which heads keep all; with --policy, each")
BUDGET_HELP = (
    "a share of the cache: which heads keep everything; with `policy` several shares (default there: "
    "0.1,0.3,0.5)"
)
Needle = Annotated[
    Text | None,
    Everyday("a part of the text that its end asks for"),
    Field(
        description="a part of the text that its end asks for: what is lost on it; put behind the text where "
        "it stands there once"
    ),
]
Bits = Annotated[
    Annotated[Literal["8", "4"], BeforeValidator(number_as_text)] | None,
    Everyday("numbers of few bits instead of fewer keys"),
    Field(description="round the prompt's keys, by channel, and values, by token, to so many bits"),
]
TokensJudged = Annotated[
    Size | None,
    Everyday("judge so many tokens at a time, all along the text"),
    Field(
        description="with `policy` or `bits`: judge so many tokens at a time, all along the text (default: "
        "the last tenth, at most 200, once)"
    ),
]


class SmallerCachesSpec(OneTextSpec):
    """The settings that the forms of `attn cache` share."""

    experiment = "cache"
    parts = ("statistics", "heads", "forgotten", "curve")
    title = "What a smaller cache loses"
    needs_head = True
    group = "Cache"
    examples: ClassVar[tuple[str, ...]] = ()
    settings_elsewhere: ClassVar[Mapping[str, str]] = {
        "texts": "reads one text: --file FILE",
        "context": "reads decoders alone: they have no second text",
    }
    excludes: ClassVar[Mapping[str, str]] = {"probe": "needle, every"}
    off_keys = frozenset({"needle", "sink", "window", "budget", "policy", "bits", "every", "top"})
    heading_keys = ("file", "model", "needle", "seed")

    @property
    def text_key(self) -> str:
        """The setting that says what is read."""
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

    sink: Annotated[Count | None, Everyday("the first keys that a limited head keeps")] = Field(
        None, description="the first keys that a limited head keeps (default: 4, of a short text fewer)"
    )
    window: Annotated[Size | None, Everyday("the last keys that a limited head keeps")] = Field(
        None,
        description="the last keys that a limited head keeps (default: 64, of a short text an eighth; "
        "with `budget` a third of it at most)",
    )
    needle: Needle = None
    budget: Annotated[SharesOfCache, AfterValidator(_check_single), OfBudgets] = Field(
        [], description=BUDGET_HELP
    )
    top: Annotated[Size | None, Everyday()] = Field(None, description="show only the first N heads")

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        # Random tokens ask for nothing, so that no part of them is a needle.
        return cls.next_steps if settings.get("sentence") or settings.get("file") else cls.next_steps[1:]

    def result_kind(self) -> str:
        return "cache"

    def unmeasured(self) -> set[str]:
        left_out = {"needle": not self.needle, "full": not self.budget, "at_budget": not self.budget}
        return {name for name, is_left_out in left_out.items() if is_left_out}


class PoliciesSpec(SmallerCachesSpec):
    """The cache of a prompt with some of its keys."""

    needle: Needle = None
    budget: Annotated[SharesOfCache, OfBudgets] = Field([], description=BUDGET_HELP)
    policy: Annotated[
        Annotated[list[Policy], BeforeValidator(split_names, json_schema_input_type=list[Policy] | str)],
        Everyday(f"which keys of a prompt stay: {', '.join(CACHE_POLICIES)}, all"),
    ] = Field([], description=f"which keys of a prompt stay: {', '.join(CACHE_POLICIES)}, or all of these")
    bits: Bits = None
    every: TokensJudged = None

    @property
    def policies(self) -> list[str]:
        """The policies that are asked for, each once."""
        return [*CACHE_POLICIES] if "all" in self.policy else [*dict.fromkeys(self.policy)]

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return ("--budget 0.05,0.2,0.8", "-o policies.png", "-o policies.csv")

    def result_kind(self) -> str:
        return "cache of policies"

    def unmeasured(self) -> set[str]:
        left_out = {"needle": not self.needle, "lines": len(self.budget) == 1}
        return {name for name, is_left_out in left_out.items() if is_left_out}


class BitsSpec(SmallerCachesSpec):
    """The cache of a prompt with every key, in numbers of few bits."""

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
