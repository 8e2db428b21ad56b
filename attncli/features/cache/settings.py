"""Settings of `attn cache`: limited heads, or policies for the keys of a prompt."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from attncli.features.cache.names import CACHE_POLICIES
from attncli.records.arguments import number_as_text
from attncli.settings.fields import Contradictions, Count, Everyday, Form, NotFor, Size, contradiction
from attncli.settings.models import SurveyTextSpec, split_names
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


POLICIES = Form(
    "policy",
    "is of limited heads: leave `policy` and `bits` out",
    is_asked=lambda spec: spec.is_of_policies,
)


class CacheSpec(SurveyTextSpec):
    experiment = "cache"
    parts = ("statistics", "heads", "forgotten", "curve")
    title = "What a smaller cache loses"
    needs_head = True
    group = "Cache"
    examples = (
        "attn cache",
        "attn cache --model ./my-model --file prompt.txt",
        'attn cache --model ./my-model --file prompt.txt --needle "48291"',
        "attn cache --model ./my-model --file prompt.txt --budget 0.3 --format json",
        "attn cache --model ./my-model --file prompt.txt --policy snapkv,heads --budget 0.1,0.3",
        "attn cache --model ./my-model --file prompt.txt --policy all -o policies.png",
    )
    refused_keys = frozenset({"texts", "text_group", "context"})
    off_keys = frozenset(
        {"texts", "text_group", "needle", "sink", "window", "budget", "policy", "bits", "every", "top"}
    )
    next_steps = ("--needle TEXT", "--budget 0.3", "--policy all", "-o page.html")
    heading_keys = ("file", "model", "needle", "seed")

    sink: Annotated[Count | None, Everyday("the first keys that a limited head keeps"), NotFor(POLICIES)] = (
        Field(
            None, description="the first keys that a limited head keeps (default: 4, of a short text fewer)"
        )
    )
    window: Annotated[Size | None, Everyday("the last keys that a limited head keeps"), NotFor(POLICIES)] = (
        Field(
            None,
            description="the last keys that a limited head keeps (default: 64, of a short text an eighth; "
            "with `budget` a third of it at most)",
        )
    )
    needle: Annotated[Text | None, Everyday("a part of the text that its end asks for")] = Field(
        None,
        description="a part of the text that its end asks for: what is lost on it; put behind the text where "
        "it stands there once",
    )
    budget: Annotated[
        Annotated[
            list[Budget], BeforeValidator(_split_numbers, json_schema_input_type=list[Budget] | Budget | str)
        ],
        Everyday("shares of the cache: which heads keep all; with --policy, each"),
    ] = Field(
        [],
        description="a share of the cache: which heads keep everything; with `policy` several shares "
        "(default there: 0.1,0.3,0.5)",
    )
    policy: Annotated[
        Annotated[list[Policy], BeforeValidator(split_names, json_schema_input_type=list[Policy] | str)],
        Everyday(f"which keys of a prompt stay: {', '.join(CACHE_POLICIES)}, all"),
    ] = Field([], description=f"which keys of a prompt stay: {', '.join(CACHE_POLICIES)}, or all of these")
    bits: Annotated[
        Annotated[Literal["8", "4"], BeforeValidator(number_as_text)] | None,
        Everyday("numbers of few bits instead of fewer keys"),
    ] = Field(None, description="round the prompt's keys, by channel, and values, by token, to so many bits")
    every: Annotated[Size | None, Everyday("judge so many tokens at a time, all along the text")] = Field(
        None,
        description="with `policy` or `bits`: judge so many tokens at a time, all along the text (default: "
        "the last tenth, at most 200, once)",
    )
    top: Annotated[Size | None, Everyday(), NotFor(POLICIES)] = Field(
        None, description="show only the first N heads"
    )

    @property
    def is_of_policies(self) -> bool:
        """Whether the cache of a prompt is made smaller, not heads limited."""
        return bool(self.policy) or self.bits is not None

    @property
    def policies(self) -> list[str]:
        """The policies that are asked for, each once."""
        return [*CACHE_POLICIES] if "all" in self.policy else [*dict.fromkeys(self.policy)]

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        if settings.get("policy") or settings.get("bits"):
            return ("--budget 0.05,0.2,0.8", "-o policies.png", "-o policies.csv")
        # Random tokens ask for nothing, so that no part of them is a needle.
        return cls.next_steps if settings.get("sentence") or settings.get("file") else cls.next_steps[1:]

    def result_kind(self) -> str:
        return "cache of policies" if self.is_of_policies else "cache"

    def unmeasured(self) -> set[str]:
        left_out = {
            "needle": not self.needle,
            "full": not self.budget,
            "at_budget": not self.budget,
            "lines": not self.policy or len(self.budget) == 1,
        }
        return {name for name, is_left_out in left_out.items() if is_left_out}

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.texts is not None:
            yield contradiction("texts", "is not for cache, which reads one text: give `file`", "texts")
        if self.context is not None:
            yield contradiction("context", "is for an encoder, and cache for decoders alone", "context")
        if self.needle is not None and self.probe:
            yield contradiction(
                "needle", "needs `sentence` or `file`: random tokens ask for nothing", "probe"
            )
        if not self.is_of_policies:
            if len(self.budget) > 1:
                yield contradiction("budget", "needs `policy` to be several: give one share", "policy")
            elif self.budget == [1]:
                yield contradiction("budget", "must be a share of the cache below 1 (got 1)", "policy")
            if self.every is not None:
                yield contradiction("every", "needs `policy` or `bits`", "policy", "bits")
        if self.budget and self.bits is not None and not self.policy:
            yield contradiction("budget", "needs `policy`: `bits` keeps every key", "policy")
        if self.every is not None and self.probe:
            yield contradiction("every", "needs `sentence` or `file`", "probe")
