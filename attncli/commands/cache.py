"""What a model loses with a smaller cache: heads that keep few keys, policies for the keys of a prompt."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from attncli.arguments import number_as_text
from attncli.core.names import CACHE_POLICIES, USUAL_BUDGETS
from attncli.plain_text import counted
from attncli.settings.fields import Contradictions, Count, Everyday, Form, NotFor, Size, contradiction
from attncli.settings.models import SurveyTextSpec, split_names
from attncli.settings.pages import ModelPage
from attncli.settings.text import Text, Texts

if TYPE_CHECKING:
    import torch

    from attncli.core.progress import Stage
    from attncli.models.predicted import Judged
    from attncli.models.pretrained import Pretrained
    from attncli.records.caches import LimitedHeads
    from attncli.records.values import NamedTensor
    from attncli.report import Report
    from attncli.toys.attention import Progress

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
            if self.every is not None:
                yield contradiction("every", "needs `policy` or `bits`", "policy", "bits")
        if self.budget and self.bits is not None and not self.policy:
            yield contradiction("budget", "needs `policy`: `bits` keeps every key", "policy")
        if self.every is not None and self.probe:
            yield contradiction("every", "needs `sentence` or `file`", "probe")


POSITIONS = "Keys keep their rotation: what is left is not moved together."
LIMITED = "Heads that share keys and values forget together; the worst token is the one with the largest kl."


def read(spec: CacheSpec, texts: Texts, pretrained: "Pretrained", generator: "torch.Generator") -> "Judged":
    """What the model reads and is judged by; UserError for what does not fit."""
    from attncli.models.predicted import judged_reading, read_judged
    from attncli.runs.runner import read_survey_text

    key = _text_key(spec)
    if spec.probe:
        return judged_reading(read_survey_text(spec, texts, pretrained, generator), pretrained, key=key)
    assert texts.text is not None
    return read_judged(
        pretrained,
        texts.text,
        needle=spec.needle,
        truncate=spec.truncate,
        every=spec.every,
        key=key,
    )


def _text_key(spec: CacheSpec) -> str:
    """The setting that says what is read."""
    return "num_tokens" if spec.probe else "file" if spec.file else "sentence"


def report(
    spec: CacheSpec, reading: "Judged", pretrained: "Pretrained", progress: "Progress | None"
) -> "Report":
    """What is lost by heads that keep few keys, or with policies."""
    fewer = "a smaller --num-tokens" if spec.probe else "a shorter text"
    ways_out = f"--policy all or {fewer} takes less"
    if spec.is_of_policies:
        ways_out = f"fewer policies and budgets, or {fewer}, take less"
    of = _of_policies if spec.is_of_policies else _of_heads
    if progress is None:
        return of(spec, reading, pretrained, None)
    progress.if_long(ways_out)
    measured = of(spec, reading, pretrained, progress.stage)
    progress(1.0)
    return measured


def _of_heads(
    spec: CacheSpec, reading: "Judged", pretrained: "Pretrained", tell: "Callable[[Stage], None] | None"
) -> "Report":
    from attncli.library import cache
    from attncli.report_parts import build_report, shipped_notes

    result = cache(
        pretrained,
        reading,
        sink=spec.sink,
        window=spec.window,
        budget=spec.budget[0] if spec.budget else None,
        progress=tell,
    )
    listed = result.heads[: spec.top]
    return build_report(
        spec,
        Texts(reading.text.tokens, token_spelling=pretrained.spelling_of(reading.text)),
        _tensors(result),
        replace(result, heads=listed, forgotten=result.forgotten_by(listed)),
        [*shipped_notes(spec), LIMITED, POSITIONS, *result.notes, *reading.left_out_notes()],
        about=f"{pretrained.name}: {counted(len(result.heads), 'key/value head')}, "
        f"on {counted(len(reading.text.ids), 'token')}.",
        how_to_read=f"Each alone keeps the first {_keys(result.sink)} and the last {result.window}.",
    )


def _tensors(result: "LimitedHeads") -> "dict[str, NamedTensor]":
    """The need of each head, and what is lost over the share of the cache."""
    from attncli.records.values import NamedTensor

    grids = {
        f"{result.need} {stack}".strip(): grid for stack, grid in result.heads.grids(result.need).items()
    }
    names = {f"{name}_together": name for name in ("kl", "loss", "needle") if name in result.curve.cells}
    curve = result.curve[::-1]
    points = {
        name: NamedTensor(("point",), curve.numbers(column))
        for name, column in ({"cache": "cache"} | names).items()
    }
    return grids | points


def _keys(count: int) -> str:
    return "key" if count == 1 else f"{count} keys"


def _of_policies(
    spec: CacheSpec, reading: "Judged", pretrained: "Pretrained", tell: "Callable[[Stage], None] | None"
) -> "Report":
    from attncli.library import cache_policies
    from attncli.report_parts import build_report, shipped_notes

    bits: dict[str | None, Literal[8, 4] | None] = {None: None, "8": 8, "4": 4}
    result = cache_policies(
        pretrained,
        reading,
        policies=spec.policies,
        budgets=spec.budget or USUAL_BUDGETS,
        bits=bits[spec.bits],
        every=spec.every,
        progress=tell,
    )
    papers = [
        f"{name}: {CACHE_POLICIES[name].keeps}, {CACHE_POLICIES[name].paper}." for name in spec.policies
    ]
    return build_report(
        spec,
        Texts(reading.text.tokens, token_spelling=pretrained.spelling_of(reading.text)),
        {},
        result,
        [*shipped_notes(spec), POSITIONS, *papers, *result.notes, *reading.left_out_notes()],
        about=f"{pretrained.name}: a prompt of {counted(result.prompt, 'token')}, judged by the "
        f"{result.judged:,} after it.",
        how_to_read="The prompt is read once; what follows sees of it what a policy keeps, and itself.",
    )


PAGE = ModelPage(read=read, report=report)
