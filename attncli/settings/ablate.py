"""The settings of what a model loses without some of its heads, and of what each head adds to a logit."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from attncli.core.row_statistics import EFFECTS
from attncli.settings.fields import (
    ONE_HEAD,
    Contradictions,
    Count,
    Everyday,
    Group,
    Size,
    TokenName,
    contradiction,
    in_group,
)
from attncli.settings.models import ImageSpec, SurveyTextSpec, check_head, check_heads, split_names
from attncli.settings.text import Text

if TYPE_CHECKING:
    Effect = str
else:
    Effect = Literal[tuple(EFFECTS)]
EVERY_HEAD = "all"
EACH_TOKEN = "each"


def _check_heads_or_all(names: list[str]) -> list[str]:
    return names if names == [EVERY_HEAD] else check_heads(names)


HeadNamesOrAll = Annotated[list[str], BeforeValidator(split_names), AfterValidator(_check_heads_or_all)]


class AblateSpec(SurveyTextSpec, ImageSpec):
    experiment = "ablate"
    title = "What is lost without each head"
    module = "attncli.commands.ablate"
    model_module = module
    needs_head = True
    examples = (
        "attn ablate",
        "attn ablate --model ./my-model --heads 16:0,18:6 --jointly",
        'attn ablate --model ./my-model --sentence "The capital of France is" --answer " Paris"',
        "attn ablate --model ./my-model --texts lines.txt --method mean -o heads.csv",
        "attn ablate --model ./my-model --approximate",
        'attn ablate --model ./my-model "A is" --method swap --other "B is" --answer " 1" --against " 2"',
    )
    off_keys = frozenset(
        {
            *("texts", "text_group", "heads", "jointly", "approximate", "answer", "against", "top", "sort"),
            *("other", "token", "into"),
        }
    )
    next_steps = ("--method mean", "--texts FILE", "-o page.html")
    group = "Heads"
    heading_keys = ("file", "model", "method", "seed")

    heads: Annotated[HeadNamesOrAll, Everyday("the heads that are taken out, or all, each by itself")] = (
        Field([EVERY_HEAD], description="the heads that are taken out, as LAYER:HEAD, or all, each by itself")
    )
    method: Annotated[Literal["zero", "mean", "sink", "swap"], Everyday("what replaces a head's output")] = (
        Field(
            "zero",
            description="what replaces a head's output: nothing, its mean over all tokens, the first value, "
            "or what it gave on another prompt",
        )
    )
    other: Annotated[Text | None, Everyday("with --method swap: the other prompt, of as many tokens")] = (
        Field(
            None,
            description="with `method` swap: the other prompt, of as many tokens (for many: `texts` in JSON "
            "Lines or CSV with text, other, answer and against)",
        )
    )
    token: TokenName | None = Field(
        None,
        description="with `method` swap: at this token alone, named as cat, cat#2, 5, -1 or last; each: at "
        "every token by itself (default: at all tokens)",
    )
    into: Annotated[str, AfterValidator(check_head)] | None = Field(
        None,
        description="with `method` swap: into this one later head alone, as LAYER:HEAD, by the direct path "
        "(path patching)",
    )
    jointly: Annotated[bool, Everyday()] = Field(
        False, description="also take out all of these heads at once"
    )
    approximate: Annotated[bool, Everyday("every head by one backward pass")] = Field(
        False,
        description="every head by one backward pass, |d loss / d gate|; exact for 16 of them, or "
        "for `heads`",
    )
    answer: Annotated[str | None, Everyday("measure this token alone, after the text")] = Field(
        None, description="measure this token alone, after the text (or at the mask of an encoder's text)"
    )
    against: Annotated[str | None, Everyday("with --answer: compare with this token")] = Field(
        None, description="with `answer`: compare its logit with this token's"
    )
    sort: Annotated[Effect | None, Everyday("the heads with the largest effect first")] = Field(
        None, description="show the heads with the largest effect first (default: the first that is measured)"
    )
    top: Annotated[Size | None, Everyday()] = Field(None, description="show only the first N heads")

    @property
    def named_heads(self) -> list[str]:
        """The heads that are named; none where it is all of them."""
        return [] if self.heads == [EVERY_HEAD] else self.heads

    @property
    def is_of_picture(self) -> bool:
        """Whether a picture alone is read."""
        return self.image is not None and self.sentence is None and self.file is None

    def single_statistics(self) -> tuple[str, ...]:
        differences = {
            "loss": True,
            "probability": self.answer is not None,
            "logit_difference": self.against is not None,
        }
        baseline = [name for name, is_measured in differences.items() if is_measured]
        # Whether a model has a head that predicts tokens is known when it is there.
        effects = [*baseline, "kl", *(["output_change"] if self.model and not self.answer else [])]
        if self.is_of_picture:
            effects = ["cls_change", "output_change"]
        ends = ("", "_low", "_high") if self.texts is not None else ("",)
        names = [f"{name}{end}" for name in effects for end in ends]
        found = [*names, *in_group("baseline", *(f"{name}{end}" for name in baseline for end in ends))]
        found += in_group("joint", *names) if self.jointly else ()
        if self.approximate:
            found += ["approximate", *in_group("approximation", "rank_correlation", "heads")]
        return tuple(found)

    def _contradictions_of_swaps(self) -> Contradictions:
        if self.method != "swap":
            for key in self.given("other", "token", "into"):
                yield contradiction(key, "needs `method` swap", "method")
            return
        if self.texts is None and self.other is None:
            yield contradiction(
                "method", "swap needs `other`, another prompt, or `texts` with pairs", "other"
            )
        if self.texts is not None and self.other is not None:
            yield contradiction("other", "stands in the lines of `texts`", "texts")
        if self.other is not None and self.probe:
            yield contradiction("other", "needs `sentence` or `file`: another prompt than that", "probe")
        if self.context is not None:
            yield contradiction("context", "cannot be combined with `method` swap", "method")
        if self.token == EACH_TOKEN and self.texts is not None:
            yield contradiction("token", "each is for one pair: `texts` have tokens of their own", "texts")
        if self.into is not None and self.jointly:
            yield contradiction("jointly", "cannot be combined with `into`, head by head", "into")

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        for key in self.given("answer", "approximate") if self.is_of_picture else ():
            yield contradiction(key, "is of models that predict tokens, not of a picture", "image")
        if self.image is not None and self.method == "swap":
            yield contradiction("method", "swap is for prompts, not for a picture", "image")
        if self.sort == "cls_change" and not self.is_of_picture:
            yield contradiction("sort", "cls_change needs `image`, and no text beside it", "image")
        if self.against is not None and self.answer is None:
            yield contradiction("against", "needs `answer`", "answer")
        if self.answer is not None and self.probe:
            yield contradiction("answer", "needs `sentence` or `file`: random tokens have no answer", "probe")
        if self.jointly and len(self.named_heads) < 2:
            yield contradiction("jointly", "needs `heads`, two or more", "heads")
        for key, needs in (
            ("approximate", "approximate"),
            ("probability", "answer"),
            ("logit_difference", "against"),
            ("restored", "against"),
        ):
            if self.sort == key and not getattr(self, needs):
                yield contradiction("sort", f"{key} needs `{needs}`", needs)
        if self.sort == "output_change" and self.answer:
            yield contradiction(
                "sort", "output_change is for models without a head: leave `answer` out", "answer"
            )
        yield from self._contradictions_of_swaps()
        if self.approximate and self.method != "zero":
            yield contradiction("approximate", "is for `method` zero: a gate goes from 1 to 0", "method")


if TYPE_CHECKING:

    class QueryAndKeySpec(SurveyTextSpec):
        to: str | None
else:
    # `from` cannot be written as the name of a field.
    QueryAndKeySpec = create_model(
        "QueryAndKeySpec",
        __base__=SurveyTextSpec,
        **{
            "from": (
                Annotated[TokenName | None, Group("Output"), Everyday("with --head: the token that looks")],
                Field(
                    None,
                    description="with `head`: the query: a text as cat, cat#2 for the second of them, a "
                    "position as 5 or -1, or last (default: last)",
                ),
            ),
            "to": (
                Annotated[
                    TokenName | None, Group("Output"), Everyday("with --head: the token that it looks at")
                ],
                Field(
                    None,
                    description="with `head`: the key, named as in `from` (default: the one with most weight "
                    "beyond the first)",
                ),
            ),
        },
    )


class WhySpec(QueryAndKeySpec):
    experiment = "why"
    title = "What each head adds to a logit"
    module = "attncli.commands.why"
    model_module = module
    needs_head = True
    examples = (
        "attn why",
        'attn why "The capital of France is" --model ./my-model --answer " Paris"',
        'attn why "the cat sat as it slept" --model ./my-model --head 5:11 --from it',
        'attn why --model ./my-model "He gave the book to" --answer " her" --against " him" --head 9:6',
        'attn why --model ./my-model "the cat sat because it was tired" --head 5:11 --from it --to cat',
        "attn why --model ./my-model -o heads.csv",
    )
    off_keys = frozenset({"texts", "text_group", "answer", "against", "top", "from", "to", "over"})
    next_steps = (ONE_HEAD, "--answer TEXT", "-o page.html")
    heading_keys = ("file", "model", "answer", "against", "seed")

    answer: Annotated[str | None, Everyday("the token whose logit it is, after the text")] = Field(
        None, description="the token whose logit it is, after the text (default: the most likely one)"
    )
    against: Annotated[str | None, Everyday("with --answer: compare with this token")] = Field(
        None, description="with `answer`: how far its logit is above this token's"
    )
    head: Annotated[
        Annotated[str, AfterValidator(check_head)] | None,
        Everyday("why this head, as 5:11, looks where it does"),
    ] = Field(
        None,
        description="why this head, as LAYER:HEAD, looks where it does; with `answer`: what it adds token by "
        "token (default: the head that adds most)",
    )
    over: Count = Field(
        2,
        description="with `head`: how many earlier heads of each side say what they looked at as they wrote",
    )
    top: Annotated[Size | None, Everyday()] = Field(None, description="show only the first N heads")

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        return "Why a head looks where it does" if settings.get("to") else cls.title

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        if settings.get("to"):
            return "--show all", "-o page.html"
        return cls.next_steps[1:] if settings.get("answer") else cls.next_steps

    @property
    def is_of_score(self) -> bool:
        """Whether it is about the score of a head, not about a logit."""
        return self.head is not None and self.answer is None

    @property
    def query(self) -> str:
        """The name of the token that looks."""
        return getattr(self, "from") or "last"

    def row_statistics(self) -> tuple[str, ...]:
        return "contribution", "weight"

    def single_statistics(self) -> tuple[str, ...]:
        parts = in_group("parts", "embedding", "heads", "mlps", "biases", "sum", "logit", "norm_scale")
        return ("contribution", *parts, *in_group("layers.N", "layer", "attention", "mlp"))

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.against is not None and self.answer is None:
            yield contradiction("against", "needs `answer`", "answer")
        for key in self.given("from", "to", "over"):
            if self.head is None:
                what = "whose score it is about" if key == "over" else "whose query or key it is"
                yield contradiction(key, f"needs `head`, {what}", "head")
            elif self.answer is not None:
                yield contradiction(key, "cannot be combined with `answer`, at the last token", "answer")
        if self.top is not None and self.is_of_score:
            yield contradiction("top", "is of heads that add to a logit: `head` needs `answer`", "answer")
        if self.texts is not None:
            yield contradiction(
                "texts", "is not for why, which reads one text: give `sentence` or `file`", "texts"
            )
        if self.context is not None:
            yield contradiction("context", "is for an encoder, and why for decoders alone", "context")
