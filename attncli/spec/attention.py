"""The settings of self- and multi-head attention, and of all attention that is computed here."""

from typing import Annotated

from pydantic import Field

from attncli.row_statistics import ROW_STATISTICS
from attncli.spec.fields import (
    BYTES_PER_PARAMETER,
    BYTES_PER_TOP_KEY,
    BYTES_PER_VECTOR_ENTRY,
    BYTES_PER_WEIGHT,
    MOMENTS,
    Contradictions,
    Count,
    Group,
    Size,
    Spec,
    contradiction,
    in_group,
)
from attncli.spec.models.layers import HeadSpec
from attncli.spec.projections import ProjectedSpec
from attncli.spec.variants import UNSTREAMED, PositionSpec, VariantSpec

MAX_DENSE_BYTES = 64 * 2**20
"""Of weights in float32: larger matrices are streamed."""


class AttentionSpec(VariantSpec, ProjectedSpec):
    """Attention with whatever variants are on, by an engine that can do them."""

    # fmt: off
    heading_keys = (
        "file", "model", "layer", "batch_size", "embedding", "embed_dim", "projection", "num_heads",
        "num_kv_heads", "head_dim", "value_dim", "scale", "softmax", "causal", "rope", "rope_base", "alibi",
        "relative_bias", "window", "qk_norm", "softcap", "temperature", "sink", "differential", "lambda_init",
        "seed",
    )
    # fmt: on

    def query_heads(self) -> int:
        """How many query heads there are."""
        return 1

    def projection_sizes(self) -> dict[str, tuple[int, ...]]:
        """The sizes of query, key and value: (dim,), or (heads, dim) where there are several heads."""
        return {"query": (self.head_dim,), "key": (self.head_dim,), "value": (self.value_dim,)}

    def measured_of_rows(self) -> tuple[str, ...]:
        """Those of ROW_STATISTICS that its weights have: none without softmax, signed rows only some."""
        if not self.softmax:
            return ()
        return tuple(name for name, of in ROW_STATISTICS.items() if of.signed or not self.differential)

    def row_statistics(self) -> tuple[str, ...]:
        if not self.softmax:
            return ()
        of_scores = {
            "logsumexp": self.model is None and not self.differential,
            "outside_mass": self.sink is not None,
            "received_mass": True,
        }
        return (*self.measured_of_rows(), *(name for name, is_there in of_scores.items() if is_there))

    def single_statistics(self) -> tuple[str, ...]:
        groups = [] if self.words else ["scores", "scaled_scores"]
        if self.differential:
            groups += [f"second_{group}" for group in groups]
        names = [name for group in groups for name in in_group(group, *MOMENTS)]
        if self.differential:
            names += in_group("differential", "lambda_init", "lambda")
        if self.model is not None and self.explain:
            names += in_group("score_rule", "scale", "softcap", "sink")
        return tuple(names)

    def num_weights(self, num_queries: int, num_keys: int) -> int:
        return (self.batch_size or 1) * self.query_heads() * num_queries * num_keys

    def chosen_engine(self, num_queries: int, num_keys: int) -> str:
        """dense or streaming; auto streams weights beyond 64 MiB, unless a setting needs the matrix."""
        if self.engine != "auto":
            return self.engine
        is_large = self.num_weights(num_queries, num_keys) * 4 > MAX_DENSE_BYTES
        return "streaming" if is_large and not self.needs_dense() else "dense"

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        if self.model is not None:
            return 0  # known when the model is there
        sizes = self.query_heads() * (self.head_dim + self.value_dim)
        vector_entries = (self.batch_size or 1) * (num_queries + num_keys) * (self.embed_dim + sizes)
        is_dense = self.chosen_engine(num_queries, num_keys) == "dense"
        maps = (2 if self.differential else 1) if is_dense else 0
        positions = self.positions()
        buckets = positions.num_buckets if positions and positions.relative_bias else 0
        return (
            maps * self.num_weights(num_queries, num_keys) * BYTES_PER_WEIGHT
            + self.num_weights(num_queries, min(self.top_k, num_keys)) * BYTES_PER_TOP_KEY
            + vector_entries * BYTES_PER_VECTOR_ENTRY
            + 2 * self.embed_dim * sizes * BYTES_PER_PARAMETER
            + self.query_heads() * buckets * (BYTES_PER_VECTOR_ENTRY if self.explain else BYTES_PER_PARAMETER)
        )

    def memory_advice(self, num_queries: int, num_keys: int) -> str:
        if self.chosen_engine(num_queries, num_keys) == "streaming":
            return "smaller sizes"
        if needs := self.needs_dense():
            return f"smaller sizes, or engine streaming without {' and '.join(needs)}"
        return "engine streaming or smaller sizes"

    def can_run_together(self) -> bool:
        return super().can_run_together() and self.model is None

    def needs_dense(self) -> dict[str, str]:
        """The settings that streaming cannot do, and what to say about each."""
        reasons = {
            "softmax": "streaming is made for softmax" if not self.softmax else None,
            "explain": "streaming keeps no scores" if self.explain else None,
        } | {key: UNSTREAMED[key] for key in self.variants_on() if key in UNSTREAMED}
        needs = {key: f"needs engine dense: {why}" for key, why in reasons.items() if why}
        return needs | ({"scale": "must not be 0 with engine streaming"} if self.scale == 0 else {})

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        on = self.variants_on()
        if self.engine == "streaming":
            for key, message in self.needs_dense().items():
                yield contradiction(key, message, "engine")
        if not self.softmax:
            for key in ("temperature", "sink", "differential"):
                if key in on:
                    yield contradiction(key, "needs softmax: it changes what the softmax does", "softmax")
        halvings = [key for key in ("rope", "differential") if key in on]
        if self.head_dim % 2 ** len(halvings):
            message = (
                f"({self.head_dim}) must be divisible by {2 ** len(halvings)} with {' and '.join(halvings)}"
            )
            yield contradiction("head_dim", message, "embed_dim", *halvings)


class SelfSpec(PositionSpec, AttentionSpec, HeadSpec):
    experiment = "self"
    title = "Self-attention"
    module = "attncli.experiments.self_attention"
    examples = (
        'attn self "the cat walks on the street"',
        "attn self --num-tokens 8 --embed-dim 32 --head-dim 16 --causal",
        "attn self --projection none --scale none --embed-dim 2 --format json",
        "attn self --causal --explain --token 3",
        "attn self --file book.txt --embedding glove.6B.50d.txt --unknown zero",
    )
    next_steps = ("--causal", "--explain", "--show scores,output", "-o page.html")

    def single_statistics(self) -> tuple[str, ...]:
        has_loop = self.projection == "none" and set(self.variants_on()) <= {"window"}
        return (*super().single_statistics(), *(["agreement.loop_vs_matmul"] if has_loop else []))

    def can_run_together(self) -> bool:
        # Without projections the loop form is computed as well, of one text at a time.
        return super().can_run_together() and self.projection != "none"


class HeadCounts(Spec):
    """How many heads: defined before the sizes that follow from it."""

    group = "Projections"

    num_heads: Size = Field(8, description="heads")
    num_kv_heads: Size = Field(
        default_factory=lambda data: data["num_heads"],
        description="key/value heads, each shared by num_heads/num_kv_heads query heads (default: num_heads)",
    )


class MultiheadSpec(PositionSpec, AttentionSpec, HeadCounts):
    experiment = "multihead"
    title = "Multi-head attention"
    module = "attncli.experiments.multihead"
    group = "Projections"
    explained_keys = frozenset({"token", "head"})
    examples = (
        'attn multihead "the cat walks on the street" --num-heads 4',
        "attn multihead --num-heads 8 --num-kv-heads 2 --causal",
        "attn multihead --explain --head 2 --token 0",
        "attn multihead --embedding glove.6B.50d.txt --head-dim 50 -o heads.json",
    )
    next_steps = ("--num-heads 2", "--causal", "--explain", "--show weights")

    # A remainder is a contradiction, reported below; the size must be valid for that to be reached.
    head_dim: Size = Field(
        default_factory=lambda data: max(1, data["embed_dim"] // data["num_heads"]),
        description="size of query and key (default: embed_dim / num_heads)",
    )
    output_projection: bool = Field(
        True, description="unify the heads with a linear layer, back to embed_dim"
    )
    head: Annotated[Count | None, Group("Output")] = Field(
        None, description="the head, from 0, that is explained (default: 0)"
    )

    def query_heads(self) -> int:
        return self.num_heads

    def projection_sizes(self) -> dict[str, tuple[int, ...]]:
        heads = {"query": self.num_heads, "key": self.num_kv_heads, "value": self.num_kv_heads}
        return {name: (heads[name], *sizes) for name, sizes in super().projection_sizes().items()}

    def contradictions(self) -> Contradictions:
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
