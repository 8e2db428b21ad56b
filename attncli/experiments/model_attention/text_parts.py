"""What a report says of one text, of all heads of a layer or of one."""

import torch
from torch import Tensor

from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Computed
from attncli.experiments.attention_report import LeadingAxes, named, row_tensors
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.report import NamedTensor, Numbers, Statistic
from attncli.spec.attention import MultiheadSpec, SelfSpec
from attncli.spec.cross import CrossSpec
from attncli.statistics.moments import moments

ModelAttentionSpec = SelfSpec | MultiheadSpec | CrossSpec


def tensors_and_statistics(
    spec: ModelAttentionSpec,
    layer: CapturedLayer,
    found: Computed,
    projected: Tensor | None,
    text: int,
) -> tuple[dict[str, NamedTensor], dict[str, Statistic]]:
    """One text's part, of all heads or of one."""
    head = spec.head or 0
    own = (text,) if spec.shows_all_heads else (text, head)
    axes: tuple[str, ...] = ("head",) if spec.shows_all_heads else ()
    attention = layer.attention
    tensors: dict[str, NamedTensor] = {}
    statistics: dict[str, Statistic] = {}
    output = None
    if isinstance(attention, AttentionLayer):
        assert found.scores is not None and found.raw_scores is not None and found.output is not None
        if spec.explain:
            key, value = attention.expanded()
            for name, side, vectors in (
                ("query", "query", attention.query),
                ("key", "key", key),
                ("value", "key", value),
            ):
                tensors[name] = named(vectors[own], *axes, side, "dim")
        scores = {"scores": found.raw_scores[own], "scaled_scores": found.scores[own]}
        statistics = {name: Numbers(moments(tensor[tensor > -torch.inf])) for name, tensor in scores.items()}
        shown = scores if spec.explain else {"scores": scores["scores"]}
        tensors |= {name: named(tensor, *axes, "query", "key") for name, tensor in shown.items()}
        output = found.output[own]
    assert found.weights is not None
    tensors["weights"] = named(found.weights[own], *axes, "query", "key")
    if output is not None and spec.shows_all_heads:
        tensors["head_outputs"] = named(output, "head", "query", "dim")
        output = None if projected is None else projected[text]
    if isinstance(attention, AttentionLayer) and spec.explain:
        statistics["score_rule"] = _score_rule(attention, head)
        if attention.rules.bias is not None:
            tensors["bias"] = named(attention.rules.bias.expand(attention.shape)[own], *axes, "query", "key")
    if output is not None:
        tensors["output"] = named(output, "query", "dim")
    lead = LeadingAxes(has_batch=False, has_head=bool(axes))
    return tensors, statistics | row_tensors(_part(found, text, None if axes else head), lead, None)


def _part(found: Computed, text: int, head: int | None) -> Computed:
    """The rows and keys of one text, of all heads or of one, with their leading axes."""
    own = (slice(text, text + 1), slice(None) if head is None else slice(head, head + 1))

    def part(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[own]

    return Computed(
        rows={name: row[own] for name, row in found.rows.items()},
        top_keys=part(found.top_keys),
        top_weights=part(found.top_weights),
        received_mass=part(found.received_mass),
    )


def _score_rule(layer: AttentionLayer, head: int) -> Numbers:
    """How a head's scores are made of query · key, for who follows them."""
    sink = None if layer.rules.sink is None else layer.rules.sink[0, head].item()
    return Numbers(scale=layer.scale, softcap=layer.rules.softcap, sink=sink)
