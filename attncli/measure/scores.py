"""The scores of one head's rows as passed to the softmax, in float64, and the call of a head's attention."""

from math import nan

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.layer import AttentionLayer
from attncli.core.mask_tensors import HIDES
from attncli.measure.residual_stream import Stream
from attncli.models.removal import ModelHead, head_index


def seen_by(
    attention: AttentionLayer, head: int, queries: Int[Tensor, " query"]
) -> Bool[Tensor, "query key"]:
    """The keys that the given queries of a head see; a model's own mask may differ between heads."""
    keys = torch.arange(attention.shape[3], device=queries.device)
    seen: Tensor = attention.visibility.block(queries, keys)[0]
    return seen if attention.rules.bias is None else seen & (_score_bias(attention)[head, queries] > HIDES)


def _score_bias(attention: AttentionLayer) -> Float[Tensor, "head query key"]:
    """The bias on the scores of the first text."""
    bias = attention.rules.bias
    assert bias is not None
    return bias[:1].expand(1, attention.num_heads, *attention.shape[2:])[0]


class ScoreRow:
    """A row of one head's scores as passed to the softmax, and its weights, in float64."""

    def __init__(self, attention: AttentionLayer, head: int, query: int) -> None:
        rules = attention.rules
        device = attention.query.device
        queries = torch.tensor([query], device=device)
        self.seen: Bool[Tensor, " key"] = seen_by(attention, head, queries)[0]
        self.rules = rules
        self.position = torch.zeros(attention.shape[3], dtype=torch.float64, device=device)
        """The bias that depends only on positions, as in ALiBi and in relative biases."""
        if rules.bias is not None:
            self.position = _score_bias(attention)[head, query].double()
        sink = rules.softmax_sink
        self.sink = None if sink is None else sink.expand(1, attention.num_heads)[0, head].double()

    def weights(self, scores: Float[Tensor, "*row key"]) -> Float[Tensor, "*row key"]:
        """softmax((softcap(scores) + position) / temperature) over the keys that the query sees."""
        cap = self.rules.softcap
        capped = scores if cap is None else cap * (scores / cap).tanh()
        entering = ((capped + self.position) / self.rules.temperature).masked_fill(~self.seen, -torch.inf)
        if self.sink is None:
            return entering.softmax(dim=-1)
        outside = self.sink.expand(*entering.shape[:-1], 1)
        return torch.cat([entering, outside], dim=-1).softmax(dim=-1)[..., :-1]

    def slope(self, scores: Float[Tensor, " key"]) -> Float[Tensor, " key"]:
        """The derivative of the softmax's input with respect to the scores."""
        cap = self.rules.softcap
        slope = torch.ones_like(scores) if cap is None else 1 - (scores / cap).tanh().square()
        return slope / self.rules.temperature

    def all_above_mean(self, scores: Float[Tensor, "*row key"]) -> Float[Tensor, "*row key"]:
        """Each score minus the mean over the keys that the query sees; NaN for hidden keys."""
        above = scores - scores[..., self.seen].mean(dim=-1, keepdim=True)
        return above.masked_fill(~self.seen, nan)

    def above_mean(self, scores: Float[Tensor, "*row key"], key: int) -> Float[Tensor, "*row"]:
        """The score of a key, minus the mean over the keys that the query sees."""
        return scores[..., key] - scores[..., self.seen].mean(dim=-1)


def head_call(stream: Stream, layer: int, head: int) -> int:
    """Return the call of a head's attention. Raises UserError if the model lacks the head."""
    heads: list[ModelHead] = []
    calls: list[int] = []
    for call, captured in stream.attention.items():
        stack, module = captured.stack_name, stream.pretrained.module_name(captured.module)
        for number in range(captured.attention.shape[1]):
            heads.append(ModelHead(captured.layer, module, captured.kind, stack, number))
            calls.append(call)
    return calls[head_index(heads, f"{layer}:{head}", "head", stream.pretrained)]
