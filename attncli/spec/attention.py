"""The settings of self-, multi-head and cross-attention."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from attncli.spec.explain import ExplainRowSpec
from attncli.spec.fields import Contradiction, Count, Scale, Size, Spec, contradiction
from attncli.spec.model import HeadSpec, LayerSpec
from attncli.spec.text import CONTEXT, TOKENIZERS, TextSpec, _check_file, _check_text

Projection = Literal["query", "key", "value"]


def _default_tokenizer(data: dict[str, Any]) -> Literal["words", "model"]:
    return "words" if data["model"] is None else "model"


class AttentionSpec(TextSpec, LayerSpec, ExplainRowSpec):
    """How query, key and value are made, and what is done with them."""

    tokenizer: Literal["words", "whitespace", "model"] = Field(
        default_factory=_default_tokenizer,
        description=f"{TOKENIZERS}; model: its own (default: words, or model where there is one)",
    )
    projection: Literal["linear", "uniform", "none"] = Field(
        "linear",
        description="how query, key, value are made: linear (as torch.nn.Linear), uniform (U[0,1)), none",
    )
    projection_order: list[Projection] = Field(
        ["query", "key", "value"], description="the order in which the projections are drawn"
    )
    head_dim: Size = Field(
        default_factory=lambda data: data["embed_dim"],
        description="size of query and key (default: embed_dim)",
    )
    value_dim: Size = Field(
        default_factory=lambda data: data["head_dim"], description="size of value (default: head_dim)"
    )
    scale: Scale = Field(
        "sqrt",
        description="factor on the scores: sqrt (1/sqrt(head_dim)), fourth-root (query and key each by "
        "head_dim^-1/4), none, or a number",
    )
    softmax: bool = Field(True, description="normalise the scores; without it the weights are the scores")
    engine: Literal["auto", "dense", "streaming"] = Field(
        "auto",
        description="how it is computed: dense keeps the weights, streaming exact statistics in memory "
        "linear in the length; auto streams weights beyond 64 MiB",
    )
    top_k: Count = Field(3, description="keys named for each query")

    @field_validator("projection_order")
    @classmethod
    def _order_is_complete(cls, value: list[Projection]) -> list[Projection]:
        if sorted(value) != ["key", "query", "value"]:
            raise ValueError(f"must name query, key and value once each (got {', '.join(value)})")
        return value

    def contradictions(self) -> Iterator[Contradiction]:
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
        if self.engine == "streaming":
            if not self.softmax:
                yield contradiction("softmax", "needs engine dense: streaming is made for softmax", "engine")
            if self.explain:
                yield contradiction("explain", "needs engine dense: streaming keeps no scores", "engine")
            if self.scale == 0:
                yield contradiction("scale", "must not be 0 with engine streaming", "engine")


class SelfSpec(AttentionSpec, HeadSpec):
    experiment: ClassVar[str] = "self"

    causal: bool = Field(False, description="mask the future")


def _default_head_dim(data: dict[str, Any]) -> int:
    # A remainder is a contradiction, told below; the size must be valid for that to be reached.
    embed_dim, num_heads = int(data["embed_dim"]), int(data["num_heads"])
    return max(1, embed_dim // num_heads)


class HeadCounts(Spec):
    """How many heads: defined before the sizes that follow from it."""

    num_heads: Size = Field(8, description="heads")
    num_kv_heads: Size = Field(
        default_factory=lambda data: data["num_heads"],
        description="key/value heads, each shared by num_heads/num_kv_heads query heads (default: num_heads)",
    )


class MultiheadSpec(AttentionSpec, HeadCounts):
    experiment: ClassVar[str] = "multihead"
    worked_keys: ClassVar[frozenset[str]] = frozenset({"token", "head"})

    head_dim: Size = Field(
        default_factory=_default_head_dim,
        description="size of query and key (default: embed_dim / num_heads)",
    )
    causal: bool = Field(False, description="mask the future")
    output_projection: bool = Field(
        True, description="unify the heads with a linear layer, back to embed_dim"
    )
    head: Count | None = Field(None, description="the head, from 0, that explain works out (default: 0)")

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if self.embed_dim % self.num_heads:
            message = f"({self.embed_dim}) must be divisible by num_heads ({self.num_heads})"
            if self.projection == "none":
                yield contradiction("embed_dim", message, "num_heads", "projection")
            elif "head_dim" not in self.model_fields_set:
                yield contradiction("embed_dim", f"{message}, or head_dim given", "num_heads")
        if self.num_heads % self.num_kv_heads:
            message = f"({self.num_heads}) must be divisible by num_kv_heads ({self.num_kv_heads})"
            yield contradiction("num_heads", message, "num_kv_heads")
        if self.projection == "none" and self.num_kv_heads != self.num_heads:
            message = "needs projection linear or uniform: without one there are as many keys as queries"
            yield contradiction("num_kv_heads", message, "projection", "num_heads")
        if self.head is not None and self.model is None and self.head >= self.num_heads:
            message = f"must be below {self.num_heads}, the number of heads (got {self.head})"
            yield contradiction("head", message, "num_heads")


def _default_context(data: dict[str, Any]) -> str | None:
    return None if data["num_context_tokens"] or data["context_file"] else CONTEXT


class CrossSpec(AttentionSpec, HeadSpec):
    experiment: ClassVar[str] = "cross"

    num_context_tokens: Size | None = Field(
        default_factory=lambda data: data["num_tokens"],
        description="random vectors for keys and values (default: num_tokens)",
    )
    context_file: str | None = Field(None, description="a text file instead of the context; - reads stdin")
    context: str | None = Field(
        default_factory=_default_context, description="the text for the keys and values"
    )

    _context = field_validator("context")(_check_text)
    _context_file = field_validator("context_file")(_check_file)

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if len(self.given("context", "context_file")) == 2:
            yield contradiction("context", "cannot be combined with context_file: give one", "context_file")
        for key in self.given("context", "context_file"):
            if self.num_tokens:
                message = "cannot be combined with num_tokens: both sides are texts, or both are random"
                yield contradiction(key, message, "num_tokens")
        if self.given("num_context_tokens") and not self.num_tokens:
            message = "needs num_tokens: both sides are texts, or both are random"
            yield contradiction("num_context_tokens", message, "num_tokens")
        if self.file == "-" and self.context_file == "-":
            yield contradiction("context_file", "cannot read stdin, too: file does already", "file")
