"""The settings of query, key and value, and of the weights between them."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from attncli.spec.explain import ExplainRowSpec
from attncli.spec.fields import Contradictions, Count, Group, Scale, Size, contradiction
from attncli.spec.models.layers import LayerSpec
from attncli.spec.text import TOKENIZERS, TextSpec

Projection = Literal["query", "key", "value"]


class ProjectedSpec(TextSpec, LayerSpec, ExplainRowSpec):
    """How query, key and value are made, and what is done with them."""

    group = "Projections"
    explained_by = "attncli.experiments.explained.attention"

    tokenizer: Literal["words", "whitespace", "model"] = Field(
        default_factory=lambda data: "words" if data["model"] is None else "model",
        description=f"{TOKENIZERS}; model: its own (default: words, or model where there is one)",
    )
    projection: Literal["linear", "uniform", "none"] = Field(
        "linear",
        description="how query, key, value are made: linear (as torch.nn.Linear), uniform (U[0,1)), none",
    )
    projection_order: list[Projection] = Field(
        ["query", "key", "value"], description="the order in which the projections are sampled"
    )
    head_dim: Size = Field(
        default_factory=lambda data: data["embed_dim"],
        description="size of query and key (default: embed_dim)",
    )
    value_dim: Size = Field(
        default_factory=lambda data: data["head_dim"], description="size of value (default: head_dim)"
    )
    scale: Annotated[Scale, Group("Variants")] = Field(
        "sqrt",
        description="factor on the scores: sqrt (1/sqrt(head_dim)), fourth-root (query and key each by "
        "head_dim^-1/4), none, or a number",
    )
    softmax: Annotated[bool, Group("Variants")] = Field(
        True, description="normalise the scores; without it the weights are the scores"
    )
    engine: Annotated[Literal["auto", "dense", "streaming"], Group("Options")] = Field(
        "auto",
        description="how it is computed: dense keeps the weights, streaming exact statistics in memory "
        "linear in the length; auto streams weights beyond 64 MiB",
    )
    top_k: Annotated[Count, Group("Output")] = Field(3, description="keys named for each query")

    @field_validator("projection_order")
    @classmethod
    def _order_is_complete(cls, value: list[Projection]) -> list[Projection]:
        if sorted(value) != ["key", "query", "value"]:
            raise ValueError(f"must name query, key and value once each (got {', '.join(value)})")
        return value

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if (self.tokenizer == "model") != (self.model is not None):
            message = (
                "needs model" if self.model is None else f"must be model with model (got {self.tokenizer})"
            )
            yield contradiction("tokenizer", message, "model")
        if self.projection == "none":
            for key in self.given("head_dim", "value_dim", "projection_order"):
                message = (
                    "needs projection linear or uniform: without one the embeddings are used as they are"
                )
                yield contradiction(key, message, "projection")
