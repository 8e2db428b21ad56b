"""The settings of self-, multi-head and cross-attention, and of their variants."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, create_model, field_validator

from attncli.core.names import ON_GRIDS, ROW_STATISTICS, WEIGHT_STATISTICS, named_head
from attncli.settings.fields import (
    BYTES_PER_PARAMETER,
    BYTES_PER_TOP_KEY,
    BYTES_PER_VECTOR_ENTRY,
    BYTES_PER_WEIGHT,
    CONFIG_ONLY,
    MAX_SIZE,
    Contradictions,
    Count,
    Everyday,
    ExplainRowSpec,
    Heading,
    NoFlag,
    Scale,
    Size,
    Spec,
    TextSource,
    contradiction,
)
from attncli.settings.models import (
    FILE,
    ON_GRID,
    AblatedSpec,
    HeadNumber,
    LookedFrom,
    ModelNameSpec,
    ModelSpec,
    WordsSpec,
    files_read,
)
from attncli.settings.readings import reads
from attncli.settings.text import CONTEXT, FILE_SETTINGS, SentenceSpec, Text, TextPath, TextSpec

POSITIONS = ("rope", "alibi", "relative_bias")
VARIANTS = (*POSITIONS, "window", "qk_norm", "softcap", "temperature", "sink", "differential")
"""The variants in order of application: positions, then changes to query and key, scores, and weights."""
DETAILS = {
    "rope_base": "rope",
    "num_buckets": "relative_bias",
    "max_distance": "relative_bias",
    "qk_norm_eps": "qk_norm",
    "lambda_init": "differential",
}
"""The settings that apply to only one variant."""
UNSTREAMED = {
    "alibi": "streaming adds no bias to scores",
    "relative_bias": "streaming adds no bias to scores",
    "differential": "streaming has one softmax, not two",
}
"""The variants that need the whole weight matrix, with the reasons."""


def _check_temperature(value: float) -> float:
    if value <= 0:
        raise ValueError(
            f"must be greater than 0 (got {value:g}): 0.01, for example, makes rows nearly one-hot"
        )
    return value


class VariantSpec(Spec):
    """Settings of the variants that any attention may use."""

    group = "Variants"
    off_keys = frozenset(VARIANTS)
    needs: ClassVar[Mapping[str, str]] = DETAILS
    excludes: ClassVar[Mapping[str, str]] = {"differential": "sink"}

    qk_norm: bool = Field(
        False, description="divide each head's query and key by their root mean square, before any rotation"
    )
    qk_norm_eps: Annotated[float, CONFIG_ONLY] = Field(
        1e-6, gt=0, description="`qk_norm`: added to the mean square"
    )
    softcap: float | None = Field(
        None, ge=1e-30, le=1e30, description="bound the scaled scores by c tanh(score / c), before any bias"
    )
    temperature: Annotated[float, AfterValidator(_check_temperature)] = Field(
        1.0,
        description="divide all inputs of the softmax: the scores (after softcap and bias) and the sink",
    )
    sink: float | None = Field(
        None, description="extra logit in each row's denominator, for no key: weights sum to less than one"
    )
    differential: bool = Field(
        False,
        description="subtract lambda times the weights of the second half of query and key "
        "from those of the first half",
    )
    lambda_init: Annotated[float, CONFIG_ONLY] = Field(
        0.8,
        ge=0,
        le=1,
        description="`differential`: lambda is exp(a b) - exp(c d) + lambda_init, with vectors a, b, c, d "
        "sampled from N(0, 0.1^2) after the projections",
    )

    def positions(self) -> "PositionSpec | None":
        """The mask and position settings; None if queries and keys are from two texts."""
        return None

    def variants_on(self) -> list[str]:
        """The names of the active variants, in the order in which they are applied."""
        return self.changed(*VARIANTS)

    def unused_keys(self) -> frozenset[str]:
        on = self.variants_on()
        return super().unused_keys() | {detail for detail, variant in DETAILS.items() if variant not in on}


class PositionSpec(VariantSpec):
    """Settings of attention within one text, whose tokens have positions 0, 1, 2, ..."""

    group = "Mask and position"

    causal: Annotated[bool, Everyday()] = Field(False, description="mask the future")
    window: Size | None = Field(
        None,
        description="hide keys at a distance |i - j| >= window; with `causal` a query sees the last window "
        "keys",
    )
    rope: bool = Field(
        False, description="rotate query and key by position, dimension n paired with n + head_dim/2"
    )
    rope_base: float = Field(
        10000.0, ge=1, description="`rope`: pair n turns by base^(-2n/head_dim) radians per token"
    )
    alibi: bool = Field(
        False, description="add -slope |i - j| to the scores; slopes 2^(-8/h), 2^(-16/h), ... for h heads"
    )
    relative_bias: bool = Field(
        False,
        description="add a bias to each score, one per head and bucket of distances, sampled from N(0,1) "
        "after the projections",
    )
    num_buckets: Annotated[int, CONFIG_ONLY] = Field(
        32,
        ge=4,
        le=MAX_SIZE,
        description="`relative_bias`: buckets, half of them for keys ahead unless `causal`",
    )
    max_distance: Annotated[Size, CONFIG_ONLY] = Field(
        128, description="`relative_bias`: longer distances share the last bucket"
    )

    def positions(self) -> "PositionSpec":
        return self

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts(*POSITIONS)
        exact = self.num_buckets // 2 if self.causal else self.num_buckets // 4
        if self.relative_bias and self.max_distance <= exact:
            message = f"must be greater than {exact}, the number of distances with their own bucket"
            yield contradiction(
                "max_distance", f"{message} (got {self.max_distance})", "num_buckets", "causal"
            )


ProjectionName = Literal["query", "key", "value"]


ExplainedHead = Annotated[
    HeadNumber | None,
    Heading("Output"),
    Everyday("with --explain: the head, counted from 0"),
    Field(description="head to explain, from 0 (default: 0); in a model as LAYER:HEAD"),
]


class ProjectedSpec(TextSpec, ModelNameSpec, ExplainRowSpec):
    """Settings for sampling and combining query, key and value; `model` is always None."""

    group = "Projections"
    excludes: ClassVar[Mapping[str, str]] = {"projection=none": "head_dim, value_dim, projection_order"}

    projection: Annotated[
        Literal["linear", "uniform", "none"], Everyday("projections: linear, uniform, none")
    ] = Field(
        "linear",
        description="projections of query, key, value: linear (as torch.nn.Linear), uniform (U[0,1)), none",
    )
    projection_order: Annotated[list[ProjectionName], CONFIG_ONLY] = Field(
        ["query", "key", "value"], description="order in which the projections are sampled"
    )
    head_dim: Annotated[Size, Everyday()] = Field(
        default_factory=lambda data: data["embed_dim"],
        description="size of query and key (default: embed_dim)",
    )
    value_dim: Size = Field(
        default_factory=lambda data: data["head_dim"], description="size of value (default: head_dim)"
    )
    scale: Annotated[
        Scale, Heading("Variants"), Everyday("score factor: sqrt, fourth-root, none, or a number")
    ] = Field(
        "sqrt",
        description="factor on the scores: sqrt (1/sqrt(head_dim)), fourth-root (query and key each by "
        "head_dim^-1/4), none, or a number",
    )
    softmax: Annotated[bool, Heading("Variants")] = Field(
        True, description="normalise the scores; without a softmax the weights are the scores"
    )
    engine: Annotated[Literal["auto", "dense", "streaming"], Heading("Options")] = Field(
        "auto",
        description="dense keeps the weights; streaming computes exact statistics in memory linear in the "
        "length; auto streams weights beyond 64 MiB",
    )

    @field_validator("projection_order")
    @classmethod
    def _order_is_complete(cls, value: list[ProjectionName]) -> list[ProjectionName]:
        if sorted(value) != ["key", "query", "value"]:
            raise ValueError(f"must name query, key and value once each (got {', '.join(value)})")
        return value


MAX_DENSE_BYTES = 64 * 2**20
"""The largest size of dense weights in float32; larger matrices are streamed."""


class RankedSpec(Spec):
    """The number of top keys reported per row."""

    group = "Output"

    top_k: Count = Field(3, description="number of top keys to report for each query")


class AttentionSpec(VariantSpec, RankedSpec, ProjectedSpec):
    """Settings of attention with sampled weights, any variants, and an engine that supports them."""

    # True if the report has all heads.
    shows_all_heads: ClassVar[bool] = False
    needs: ClassVar[Mapping[str, str]] = {"temperature, sink, differential": "softmax"}
    # fmt: off
    heading_keys = (
        "file", "model", "layer", "batch_size", "embedding", "embed_dim", "projection", "num_heads",
        "num_kv_heads", "head_dim", "value_dim", "scale", "softmax", "causal", "rope", "rope_base", "alibi",
        "relative_bias", "window", "qk_norm", "softcap", "temperature", "sink", "differential", "lambda_init",
        "seed",
    )
    # fmt: on

    def query_heads(self) -> int:
        """The number of query heads."""
        return 1

    def projection_sizes(self) -> dict[str, tuple[int, ...]]:
        """The sizes of query, key and value: (dim,), or (heads, dim) with several heads."""
        return {"query": (self.head_dim,), "key": (self.head_dim,), "value": (self.value_dim,)}

    def weight_statistics(self) -> tuple[str, ...]:
        """The ROW_STATISTICS that apply: none without a softmax; if differential, those for signed rows."""
        if not self.softmax:
            return ()
        return tuple(name for name, row in ROW_STATISTICS.items() if row.signed or not self.differential)

    def row_statistics(self) -> tuple[str, ...]:
        if not self.softmax:
            return ()
        conditions = {
            "logsumexp": not self.differential,
            "outside_mass": self.sink is not None,
            "received_mass": True,
        }
        return (*self.weight_statistics(), *(name for name, holds in conditions.items() if holds))

    def result_kind(self) -> str:
        return self.experiment

    def unmeasured(self) -> set[str]:
        halves = set() if self.differential else {"second_scores", "second_scaled_scores", "differential"}
        return {"score_rule", "agreement", *halves}

    def num_weights(self, num_queries: int, num_keys: int) -> int:
        return (self.batch_size or 1) * self.query_heads() * num_queries * num_keys

    def chosen_engine(self, num_queries: int, num_keys: int) -> str:
        """Return dense or streaming; auto streams weights above 64 MiB unless a setting needs the matrix."""
        if self.engine != "auto":
            return self.engine
        is_large = self.num_weights(num_queries, num_keys) * 4 > MAX_DENSE_BYTES
        return "streaming" if is_large and not self.needs_dense() else "dense"

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
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
            without = " and ".join(f"`{key}`" for key in needs)
            return f"smaller sizes, or `engine` streaming without {without}"
        return "`engine` streaming or smaller sizes"

    def can_run_together(self) -> bool:
        samples_more = self.given("relative_bias", "differential")
        return super().can_run_together() and not samples_more

    def needs_dense(self) -> dict[str, str]:
        """Error messages of the settings that streaming does not support, by setting."""
        reasons = {
            "softmax": "streaming requires a softmax" if not self.softmax else None,
            "explain": "streaming does not store the scores" if self.explain else None,
        } | {key: UNSTREAMED[key] for key in self.variants_on() if key in UNSTREAMED}
        needs = {key: f"needs `engine` dense: {why}" for key, why in reasons.items() if why}
        return needs | ({"scale": "must not be 0 with `engine` streaming"} if self.scale == 0 else {})

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        on = self.variants_on()
        if self.engine == "streaming":
            for key, message in self.needs_dense().items():
                yield contradiction(key, message, "engine")
        halvings = [key for key in ("rope", "differential") if key in on]
        if self.head_dim % 2 ** len(halvings):
            with_keys = " and ".join(f"`{key}`" for key in halvings)
            message = f"({self.head_dim}) must be divisible by {2 ** len(halvings)} with {with_keys}"
            yield contradiction("head_dim", message, "embed_dim", *halvings)


class SelfSpec(PositionSpec, AttentionSpec):
    experiment = "self"
    title = "Self-attention"
    examples = (
        'attn self "the cat walks on the street"',
        "attn self --num-tokens 8 --embed-dim 32 --head-dim 16 --causal",
        "attn self --projection none --scale none --embed-dim 2 --format json",
        "attn self --causal --explain --token 3",
        "attn self --file book.txt --embedding glove.6B.50d.txt --unknown zero",
    )
    next_steps = ("--causal", "--explain", "--show scores,output", "-o page.html")
    settings_elsewhere: ClassVar[Mapping[str, str]] = {
        "from": "shows every query: use attn heads --from TOKEN --to TOKEN to rank heads by one weight",
        "to": "shows every key: use attn heads --to TOKEN to rank heads by the weight on one key",
        "top": "shows one head: use attn heads --top {value} to show the first heads of a model",
    }

    def unmeasured(self) -> set[str]:
        has_loop = self.projection == "none" and set(self.variants_on()) <= {"window"}
        return {*super().unmeasured(), "loop_vs_softmax"} - ({"agreement"} if has_loop else set())

    def can_run_together(self) -> bool:
        # Without projections, the loop form is computed as well, for one text at a time.
        return super().can_run_together() and self.projection != "none"


class HeadCounts(Spec):
    """The number of heads; declared before the sizes that depend on it."""

    group = "Projections"

    num_heads: Annotated[Size, Everyday()] = Field(8, description="number of heads")
    num_kv_heads: Size = Field(
        default_factory=lambda data: data["num_heads"],
        description="key/value heads, each shared by num_heads/num_kv_heads query heads (default: num_heads)",
    )


class MultiheadSpec(PositionSpec, AttentionSpec, HeadCounts):
    experiment = "multihead"
    title = "Multi-head attention"
    group = "Projections"
    explained_keys = frozenset({"token", "head"})
    shows_all_heads = True
    examples = (
        'attn multihead "the cat walks on the street" --num-heads 4',
        "attn multihead --num-heads 8 --num-kv-heads 2 --causal",
        "attn multihead --explain --head 2 --token 0",
        "attn multihead --embedding glove.6B.50d.txt --head-dim 50 -o heads.json",
    )
    next_steps = ("--num-heads 2", "--causal", "--explain", "--show weights")

    # A remainder is reported as a contradiction below, where the size is known to be valid.
    head_dim: Annotated[Size, Everyday("size of query and key")] = Field(
        default_factory=lambda data: max(1, data["embed_dim"] // data["num_heads"]),
        description="size of query and key (default: embed_dim / num_heads)",
    )
    output_projection: bool = Field(True, description="unify the heads with a linear layer of size embed_dim")
    head: ExplainedHead = None

    def query_heads(self) -> int:
        return self.num_heads

    def projection_sizes(self) -> dict[str, tuple[int, ...]]:
        heads = {"query": self.num_heads, "key": self.num_kv_heads, "value": self.num_kv_heads}
        return {name: (heads[name], *sizes) for name, sizes in super().projection_sizes().items()}

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.embed_dim % self.num_heads:
            message = f"({self.embed_dim}) must be divisible by `num_heads` ({self.num_heads})"
            is_used = self.projection == "none"
            if is_used or "head_dim" not in self.model_fields_set:
                message += "" if is_used else " unless `head_dim` is set"
                yield contradiction("embed_dim", message, "num_heads", "projection")
        if self.num_heads % self.num_kv_heads:
            message = f"({self.num_heads}) must be divisible by `num_kv_heads` ({self.num_kv_heads})"
            yield contradiction("num_heads", message, "num_kv_heads")
        if self.projection == "none" and self.num_kv_heads != self.num_heads:
            needed = f"must equal `num_heads` ({self.num_heads}) with `projection` none"
            message = f"({self.num_kv_heads}) {needed}"
            yield contradiction("num_kv_heads", message, "projection", "num_heads")
        if self.head is not None and self.model is None and self.head >= self.num_heads:
            message = f"must be below {self.num_heads}, the number of heads (got {self.head})"
            yield contradiction("head", message, "num_heads")


class RandomContextSpec(Spec):
    """Random vectors instead of a context; declared before the context, which they replace."""

    group = "Input"

    num_context_tokens: Size | None = Field(
        default_factory=lambda data: data["num_tokens"],
        description="number of random vectors for keys and values (default: num_tokens)",
    )


class ContextSpec(SentenceSpec):
    """Settings of a second text that the first text attends to; their positions are unrelated."""

    group = "Input"

    context_file: TextPath | None = Field(None, description="text file to use as context; - reads stdin")
    context: Annotated[Text | None, Everyday()] = Field(
        default_factory=lambda data: (
            None
            if any(data.get(key) for key in ("num_context_tokens", "context_file", *FILE_SETTINGS))
            else CONTEXT
        ),
        description="text for the keys and values",
    )

    def text_sources(self) -> tuple[TextSource, ...]:
        return *super().text_sources(), TextSource("context", self.context, self.context_file)

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        yield from self.conflicts("context", "context_file")
        if self.file == "-" and self.context_file == "-":
            yield contradiction("context_file", "cannot read stdin: `file` already reads it", "file")


class CrossSpec(ContextSpec, RandomContextSpec, AttentionSpec):
    experiment = "cross"
    title = "Cross-attention"
    examples = (
        'attn cross --sentence "the cat sleeps" --context "die katze schläft gern"',
        "attn cross --num-tokens 3 --num-context-tokens 5 --embed-dim 8",
    )
    next_steps = ("--explain", "--show scores,output", "-o page.html")
    needs: ClassVar[Mapping[str, str]] = {"num_context_tokens": "num_tokens"}
    excludes: ClassVar[Mapping[str, str]] = {"num_tokens": "context, context_file"}

    def weight_statistics(self) -> tuple[str, ...]:
        return without_positions(super().weight_statistics())

    def text_sources(self) -> tuple[TextSource, ...]:
        *texts, context = super().text_sources()
        return *texts, context._replace(num_tokens=self.num_context_tokens)


def without_positions(statistics: Iterable[str]) -> tuple[str, ...]:
    """The statistics that do not compare query and key positions, for two texts or image patches."""
    return tuple(name for name in statistics if not ROW_STATISTICS[name].positional)


def zero_with_model(data: dict[str, Any]) -> int | None:
    return 0 if data["model"] is not None else None


Layer = Annotated[
    Count | None, Field(description="layer of the model, from 0 (default: the first with attention)")
]


if TYPE_CHECKING:

    class LookSpec(ModelSpec):
        pass
else:
    # `from` is a keyword, so the field is created by name, and only if a feature reads files.
    looked_from = (
        Annotated[LookedFrom, Heading("Output")],
        Field(
            [],
            description="for a picture or a sound: query whose weights are drawn, for example the patch "
            "r10c12, the point 0.6,0.4, [CLS] or the moment 1.24s (default: [CLS], else the mean)",
        ),
    )
    fields = {"from": looked_from} if FILE_SETTINGS else {}
    LookSpec = reads()(create_model("LookSpec", __base__=ModelSpec, **fields))


class LayerSpec(WordsSpec, AblatedSpec, LookSpec, ExplainRowSpec):
    """The settings that choose a layer of a model."""

    off_keys = frozenset({"from"})
    # True if the report has all heads of the layer, and true if keys come from a second text.
    shows_all_heads: ClassVar[bool] = True
    reads_context: ClassVar[bool] = False

    layer: Annotated[Layer, NoFlag("is written with the head, as --head 1:2")] = Field(
        default_factory=zero_with_model
    )

    def looking_tokens(self) -> list[str]:
        """The setting `from`, the tokens whose weights are drawn; the word is a keyword in Python."""
        tokens: list[str] = getattr(self, "from", [])
        return tokens


class HeadSpec(LayerSpec):
    """The settings that choose a layer and a head of a model."""

    shows_all_heads = False

    head: Annotated[HeadNumber | None, Everyday("layer and head, counted from 0, such as 24:4")] = Field(
        default_factory=zero_with_model,
        description="head of the model as LAYER:HEAD, from 0 (default: the first with attention)",
    )


class ModelAttentionSpec(RankedSpec, SentenceSpec, LayerSpec):
    """Settings of attention in a layer of a model, with its tokens, vectors and projections."""

    needs: ClassVar[Mapping[str, str]] = {"from": "|".join(FILE_SETTINGS)}
    excludes: ClassVar[Mapping[str, str]] = {"explain": "words", FILE: "explain", ON_GRID: "file"}

    def names_of_tokens(self) -> dict[str, str]:
        return {} if self.token is None else {"token": str(self.token)}

    def weight_statistics(self) -> tuple[str, ...]:
        """The ROW_STATISTICS that apply to the weights; with `words`, only statistics that need no scores."""
        statistics = WEIGHT_STATISTICS if self.words else tuple(ROW_STATISTICS)
        if not self.reads_grid:
            return statistics
        on_grid = {*ON_GRIDS, *without_positions(statistics)}
        return tuple(name for name in statistics if name in on_grid)

    def row_statistics(self) -> tuple[str, ...]:
        return (*self.weight_statistics(), "received_mass")

    def result_kind(self) -> str:
        return self.experiment

    def unmeasured(self) -> set[str]:
        unmeasured = {"second_scores", "second_scaled_scores", "differential", "agreement"}
        if self.words:
            unmeasured |= {"scores", "scaled_scores"}
        return unmeasured if self.explain else unmeasured | {"score_rule"}

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        for name in self.ablate:
            above = self.layer is not None and named_head(name).layer > self.layer
            if above and named_head(name).stack != "cross":
                message = f"must not be above the layer shown, {self.layer} (got {name})"
                yield contradiction("ablate", message, "layer")


class SelfOfModelSpec(ModelAttentionSpec, HeadSpec):
    experiment = "self"


class MultiheadOfModelSpec(ModelAttentionSpec):
    experiment = "multihead"
    explained_keys = MultiheadSpec.explained_keys

    rare_keys = frozenset(FILE_SETTINGS)

    layer: Annotated[Layer, Everyday("layer of the model, counted from 0")] = Field(
        default_factory=zero_with_model
    )
    head: ExplainedHead = None


class CrossOfModelSpec(ContextSpec, ModelAttentionSpec, HeadSpec):
    experiment = "cross"
    reads_context = True

    @classmethod
    def steps_after(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        if any(kind.is_transcribed for _, kind, _ in files_read(settings)):
            return "--head LAYER:HEAD", "--from WORD", "-o page.html"
        return super().steps_after(settings)

    def weight_statistics(self) -> tuple[str, ...]:
        return without_positions(super().weight_statistics())


class EitherSpec(SentenceSpec, ModelNameSpec):
    """The settings of a command for sampled weights or, with `model`, for a layer of a model."""

    sampled: ClassVar[type[AttentionSpec]]
    model_spec: ClassVar[type[ModelAttentionSpec]]

    @property
    def kind(self) -> type[Spec]:
        """The Spec that applies, depending on whether a model is set."""
        return self.sampled if self.model is None else self.model_spec

    def chosen(self) -> Any:
        """The settings as an instance of the Spec that applies; they are already validated."""
        values = {key: getattr(self, key) for key in self.kind.model_fields}
        return self.kind.model_construct(self.model_fields_set & values.keys(), **values)

    def contradictions(self) -> Contradictions:
        """Report settings of the other kind as contradictions; ignore other mistakes in these settings."""
        inapplicable = [key for key in type(self).model_fields if key not in self.kind.model_fields]
        # With a model, even a switch set to off is refused: the model decides, for example, if it is causal.
        refused = (
            [key for key in inapplicable if key in self.model_fields_set]
            if self.model
            else self.given(*inapplicable)
        )
        yield from (problem for problem in super().contradictions() if problem.key not in refused)
        if (self.tokenizer == "model") != (self.model is not None):
            needed = f"must be model if `model` is set (got {self.tokenizer})"
            yield contradiction("tokenizer", needed if self.model else "needs `model`", "model")
        message = "cannot be combined with `model`, which has its own" if self.model else "needs `model`"
        for key in refused:
            yield contradiction(key, message, "model")


class SelfSettings(EitherSpec, SelfSpec, SelfOfModelSpec):
    sampled, model_spec = SelfSpec, SelfOfModelSpec


class MultiheadSettings(EitherSpec, MultiheadSpec, MultiheadOfModelSpec):
    sampled, model_spec = MultiheadSpec, MultiheadOfModelSpec


class CrossSettings(EitherSpec, CrossSpec, CrossOfModelSpec):
    sampled, model_spec = CrossSpec, CrossOfModelSpec
