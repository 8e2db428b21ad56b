"""The settings of what a smaller cache loses."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from attncli.core.row_statistics import CACHE_POLICIES
from attncli.settings.fields import Contradictions, Count, Everyday, Size, contradiction, in_group
from attncli.settings.models import SurveyTextSpec, split_names
from attncli.settings.text import Text

if TYPE_CHECKING:
    Policy = str
else:
    Policy = Literal[(*CACHE_POLICIES, "all")]
Budget = Annotated[float, Field(gt=0, le=1)]
USUAL_BUDGETS = (0.1, 0.3, 0.5)


def _split_numbers(value: object) -> object:
    return (
        value
        if isinstance(value, list | tuple)
        else split_names(value)
        if isinstance(value, str)
        else [value]
    )


class CacheSpec(SurveyTextSpec):
    experiment = "cache"
    title = "What a smaller cache loses"
    module = "attncli.commands.cache"
    model_module = module
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
    off_keys = frozenset(
        {"texts", "text_group", "needle", "sink", "window", "budget", "policy", "bits", "every", "top"}
    )
    next_steps = ("--needle TEXT", "--budget 0.3", "--policy all", "-o page.html")
    heading_keys = ("file", "model", "needle", "seed")

    sink: Annotated[Count | None, Everyday("the first keys that a limited head keeps")] = Field(
        None, description="the first keys that a limited head keeps (default: 4, of a short text fewer)"
    )
    window: Annotated[Size | None, Everyday("the last keys that a limited head keeps")] = Field(
        None,
        description="the last keys that a limited head keeps, the query's own among them (default: 64, of a "
        "short text an eighth; with `budget` a third of it at most)",
    )
    needle: Annotated[Text | None, Everyday("a part of the text that its end asks for")] = Field(
        None,
        description="a part of the text that its end asks for: what is lost on it; put behind the text where "
        "it stands there once",
    )
    budget: Annotated[
        Annotated[list[Budget], BeforeValidator(_split_numbers)],
        Everyday("shares of the cache: which heads keep all; with --policy, each"),
    ] = Field(
        [],
        description="a share of the cache: which heads keep everything; with `policy` several shares "
        "(default there: 0.1,0.3,0.5)",
    )
    policy: Annotated[
        Annotated[list[Policy], BeforeValidator(split_names)],
        Everyday(f"which keys of a prompt stay: {', '.join(CACHE_POLICIES)}, all"),
    ] = Field([], description=f"which keys of a prompt stay: {', '.join(CACHE_POLICIES)}, or all of these")
    bits: Annotated[
        Annotated[Literal["8", "4"], BeforeValidator(str)] | None,
        Everyday("numbers of few bits instead of fewer keys"),
    ] = Field(None, description="round the prompt's keys, by channel, and values, by token, to so many bits")
    every: Annotated[Size | None, Everyday("judge so many tokens at a time, all along the text")] = Field(
        None,
        description="with `policy` or `bits`: judge so many tokens at a time, again and again, each after as "
        "much of the text as the model reads (default: the last tenth, at most 200, once)",
    )
    top: Annotated[Size | None, Everyday()] = Field(None, description="show only the first N heads")

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
        return cls.next_steps

    def single_statistics(self) -> tuple[str, ...]:
        lost = ["kl", "loss", *(["needle"] if self.needle else []), "worst", "worst_at"]
        baseline = in_group("baseline", "loss", *(["needle"] if self.needle else []))
        if self.is_of_policies:
            counts = in_group("baseline", "prompt", "judged")
            over = [name for name in lost if not name.startswith("worst")]
            lines = in_group("lines.N", "budget.N", *(f"{name}.N" for name in over))
            has_lines = self.policy and len(self.budget) != 1
            costs = in_group("policies.N", "budget", "cache", *lost)
            return (*baseline, *counts, *costs, *(lines if has_lines else ()))
        heads = ("kept_weight", *lost, "bytes")
        curve = in_group("curve.N", "limited", "share", "bytes", "cache", *lost)
        found = [*heads, *curve, *baseline, *in_group("baseline", "bytes", "tokens", "sink", "window")]
        if self.budget:
            found += in_group("at_budget", "limited", "share", "bytes", "cache", *lost)
            found += in_group("full.N", "layer", "head")
        return tuple(found)

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
        if self.is_of_policies:
            for key in self.given("sink", "window", "top"):
                yield contradiction(
                    key, "is of limited heads: leave `policy` and `bits` out", "policy", "bits"
                )
        else:
            if len(self.budget) > 1:
                yield contradiction("budget", "needs `policy` to be several: give one share", "policy")
            if self.every is not None:
                yield contradiction("every", "needs `policy` or `bits`", "policy", "bits")
        if self.budget and self.bits is not None and not self.policy:
            yield contradiction("budget", "needs `policy`: `bits` keeps every key", "policy")
        if self.every is not None and self.probe:
            yield contradiction("every", "needs `sentence` or `file`", "probe")
