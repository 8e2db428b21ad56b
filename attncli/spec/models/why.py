"""The settings of what each head adds to a logit."""

from typing import Annotated

from pydantic import AfterValidator, Field

from attncli.spec.fields import Contradictions, Size, contradiction, in_group
from attncli.spec.models.head_places import check_head
from attncli.spec.models.survey_text import SurveyTextSpec


class WhySpec(SurveyTextSpec):
    experiment = "why"
    title = "What each head adds to a logit"
    module = "attncli.experiments.why.experiment"
    model_module = module
    needs_head = True
    examples = (
        "attn why",
        'attn why --model ./my-model --sentence "The capital of France is" --answer " Paris"',
        'attn why --model ./my-model "He gave the book to" --answer " her" --against " him" --head 9:6',
        "attn why --model ./my-model --probe repeated -o heads.csv",
    )
    off_keys = frozenset({"texts", "text_group", "answer", "against", "top"})
    next_steps = ("--answer TEXT", "--head LAYER:HEAD", "-o page.html")
    heading_keys = ("file", "model", "answer", "against", "seed")

    answer: str | None = Field(
        None, description="the token whose logit it is, after the text (default: the most likely one)"
    )
    against: str | None = Field(None, description="with answer: how far its logit is above this token's")
    head: Annotated[str, AfterValidator(check_head)] | None = Field(
        None, description="the head, as LAYER:HEAD, that is shown token by token (default: which adds most)"
    )
    top: Size | None = Field(None, description="show only the first N heads")

    def row_statistics(self) -> tuple[str, ...]:
        return "contribution", "weight"

    def single_statistics(self) -> tuple[str, ...]:
        parts = in_group("parts", "embedding", "heads", "mlps", "biases", "sum", "logit", "norm_scale")
        return ("contribution", *parts, *in_group("layers.N", "layer", "attention", "mlp"))

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.against is not None and self.answer is None:
            yield contradiction("against", "needs answer", "answer")
        if self.texts is not None:
            yield contradiction("texts", "is not for why, which reads one text", "texts")
        if self.context is not None:
            yield contradiction("context", "is for an encoder, and why for decoders alone", "context")
