"""self, multihead and cross with a pretrained model: the same report, from one layer of it."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.errors import UserError
from attncli.experiments.attention_report import build_report, named, weight_statistics
from attncli.experiments.heads import EAGER_NOTE
from attncli.experiments.memory import BYTES_PER_WEIGHT, refuse_bytes
from attncli.experiments.model_files import model_source
from attncli.experiments.sources import choose_device
from attncli.experiments.texts import Texts, check_token
from attncli.inputs.capture import CapturedLayer, WeightsOfLayer, capture
from attncli.inputs.output_projections import output_projection
from attncli.inputs.pretrained import ModelText, Pretrained, kept_pretrained
from attncli.mechanisms.attention_layer import AttentionLayer
from attncli.mechanisms.heads import merge_heads, repeat_heads
from attncli.report import NamedTensor, Report
from attncli.spec.attention import CrossSpec, MultiheadSpec, SelfSpec
from attncli.statistics.moments import moments

ModelAttentionSpec = SelfSpec | MultiheadSpec | CrossSpec


class ChosenLayer:
    """Takes the layers as the model hands them over and keeps the one that was asked for."""

    def __init__(self, spec: ModelAttentionSpec) -> None:
        self.spec = spec
        self.kind = "cross" if isinstance(spec, CrossSpec) else "self"
        self.layer: CapturedLayer | None = None
        self.num_layers = 0

    def take(self, layer: CapturedLayer) -> None:
        """The first of the right kind with this number: an encoder's, where there is a decoder, too."""
        if layer.kind != self.kind:
            return
        self.num_layers = max(self.num_layers, layer.layer + 1)
        if self.layer is None and layer.layer == self.spec.layer:
            self.layer = layer


def _read(
    spec: ModelAttentionSpec, texts: Texts, pretrained: Pretrained
) -> tuple[ModelText, ModelText | None]:
    """The texts for the queries and for the encoder, where there is a decoder."""
    assert texts.text is not None
    text = pretrained.read(texts.text, "file" if spec.file else "sentence")
    if not isinstance(spec, CrossSpec):
        return text, text if pretrained.has_decoder else None
    if not pretrained.has_decoder:
        raise UserError(f"model: {pretrained.name} has no cross-attention: it takes an encoder and a decoder")
    assert texts.context is not None
    context = pretrained.read(texts.context, "context_file" if spec.context_file else "context")
    return pretrained.shifted_right(text), context


def _dense(layer: AttentionLayer) -> tuple[dict[str, Tensor], Bool[Tensor, "query key"]]:
    """query, key, value, scores, weights and output of all heads, expanded, and what is visible."""
    num_queries, num_keys = layer.query.shape[1], layer.key.shape[1]
    queries, keys = (torch.arange(count, device=layer.query.device) for count in (num_queries, num_keys))
    key, value = (repeat_heads(shared, layer.num_heads) for shared in (layer.key, layer.value))
    visible = layer.visibility.block(queries, keys)
    weights = layer.weights(queries)
    return {
        "query": layer.query,
        "key": key,
        "value": value,
        "scores": (layer.query @ key.mT).masked_fill(~visible, -torch.inf),
        "scaled_scores": layer.scores(queries, keys),
        "weights": weights,
        "head_outputs": weights @ value,
        **_bias(layer),
    }, visible


def _bias(layer: AttentionLayer) -> dict[str, Tensor]:
    """What is added to the scores, for every head, query and key; nothing where nothing is."""
    if layer.bias is None:
        return {}
    num_queries, num_keys = layer.query.shape[1], layer.key.shape[1]
    return {"bias": layer.bias.expand(layer.num_heads, num_queries, num_keys)}


def _score_rule(layer: AttentionLayer, head: int) -> dict[str, float | None]:
    """How a head's scores are made of query · key, for who follows them."""
    sink = None if layer.sink is None else layer.sink[head].item()
    return {"scale": layer.scale, "softcap": layer.softcap, "sink": sink}


AXES = {
    "query": ("query", "dim"),
    "key": ("key", "dim"),
    "value": ("key", "dim"),
    "scores": ("query", "key"),
    "scaled_scores": ("query", "key"),
    "weights": ("query", "key"),
    "head_outputs": ("query", "dim"),
    "bias": ("query", "key"),
}
EXPLAINING = ("query", "key", "value", "scaled_scores", "bias")


def _output(
    pretrained: Pretrained, layer: AttentionLayer, heads: Float[Tensor, "head query dim"]
) -> Tensor | None:
    merged = merge_heads(heads)
    projection = output_projection(pretrained.model, layer.module, merged.shape[-1])
    with torch.no_grad():
        return None if projection is None else projection(merged)


def _notes(spec: ModelAttentionSpec, pretrained: Pretrained, layer: CapturedLayer, how: str) -> list[str]:
    head = f", head {spec.head}" if not isinstance(spec, MultiheadSpec) else ""
    notes = [f"{pretrained.name}, layer {layer.layer}{head}: {layer.module}."]
    if isinstance(layer, AttentionLayer):
        if layer.key.shape[0] != layer.num_heads:
            shared = layer.num_heads // layer.key.shape[0]
            notes.append(f"Each key/value head serves {shared} query heads (grouped-query attention).")
        if layer.sink is not None:
            notes.append("A sink outside the keys takes the rest of each row: rows sum to less than one.")
        notes += [f"A query sees {layer.visibility.window} keys at most."] if layer.visibility.window else []
    return [*notes, EAGER_NOTE] if how == "eager" else notes


def run_model(spec: ModelAttentionSpec, texts: Texts) -> Report:
    """Weights, scores, output and statistics of one layer (of one head of it, in self and cross)."""
    source = model_source(spec)
    pretrained = kept_pretrained(source, allow_download=spec.allow_download, device=choose_device(spec))
    text, context = _read(spec, texts, pretrained)
    check_token(spec.token, len(text.ids))
    num_keys = len(text.ids) if not isinstance(spec, CrossSpec) or context is None else len(context.ids)
    num_heads = getattr(pretrained.model.config.get_text_config(), "num_attention_heads", 1)
    needed = num_heads * len(text.ids) * num_keys * BYTES_PER_WEIGHT
    refuse_bytes(spec, needed, "fewer tokens, or attn heads for statistics alone")
    chosen = ChosenLayer(spec)
    how = capture(pretrained.model, pretrained.inputs(text, context), chosen.take)
    layer = chosen.layer
    if layer is None:
        layers = f"{chosen.num_layers} layers of {chosen.kind}-attention"
        raise UserError(
            f"layer: must be below {chosen.num_layers} (got {spec.layer}): {pretrained.name} has {layers}"
        )

    tensors, statistics = _tensors_and_statistics(spec, pretrained, layer)
    if spec.explain:
        ids = {"token_ids": named(text.ids, "token")}
        if isinstance(spec, CrossSpec) and context is not None:
            ids["context_token_ids"] = named(context.ids, "key")
        tensors = ids | tensors
    read = Texts(text.tokens, context.tokens if isinstance(spec, CrossSpec) and context else ())
    return build_report(spec, read, tensors, statistics, _notes(spec, pretrained, layer, how))


def _tensors_and_statistics(
    spec: ModelAttentionSpec, pretrained: Pretrained, layer: CapturedLayer
) -> tuple[dict[str, NamedTensor], dict[str, Any]]:
    if isinstance(layer, WeightsOfLayer):
        dense, visible = {"weights": layer.weights}, (layer.weights > 0).any(dim=0)
    else:
        dense, visible = _dense(layer)
    output = None
    axes: tuple[str, ...] = ("head",)
    num_heads, head = len(dense["weights"]), spec.head or 0
    if head >= num_heads:
        raise UserError(
            f"head: must be below {num_heads} (got {head}): {pretrained.name} has {num_heads} heads"
        )
    if isinstance(spec, MultiheadSpec):
        if isinstance(layer, AttentionLayer):
            output = _output(pretrained, layer, dense["head_outputs"])
    else:
        dense = {name: tensor[head] for name, tensor in dense.items()}
        output = dense.pop("head_outputs", None)
        axes = ()
    shown = {name: tensor for name, tensor in dense.items() if spec.explain or name not in EXPLAINING}
    tensors = {name: named(tensor, *axes, *AXES[name]) for name, tensor in shown.items()}
    if output is not None:
        tensors["output"] = named(output, "query", "dim")
    statistics: dict[str, Any] = {
        name: moments(dense[name][..., visible]) for name in ("scores", "scaled_scores") if name in dense
    }
    if spec.explain and isinstance(layer, AttentionLayer):
        statistics["score_rule"] = _score_rule(layer, head)
    return tensors, statistics | weight_statistics(
        dense["weights"].double(), visible, top_k=spec.top_k, axes=axes
    )
