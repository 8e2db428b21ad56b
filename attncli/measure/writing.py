"""What is kept of the rows that chose each new token: for every head one number per statistic."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attncli.core.engines import attend
from attncli.core.formulas import PromptedRows, Rows, top_keys
from attncli.core.layer import AttentionLayer
from attncli.core.row_statistics import OF_WRITTEN_KEYS, ROW_STATISTICS, WRITING, load_formula
from attncli.core.row_tiles import GivenWeights
from attncli.core.wanted import Wanted
from attncli.errors import UserError
from attncli.models.layers import CannotShow, CapturedLayer
from attncli.models.pretrained import ModelText, Pretrained
from attncli.models.writing import Decoding, write

MOST_KEYS_OF_HEADS = 128
"""Keys up to which the weights of each head are kept; beyond it is their mean over the heads."""
MOST_STACKED = 2**21
"""Numbers in the keys of layers that are computed together: these are copied."""

RowOfWeights = tuple[Float[Tensor, "head key"], Bool[Tensor, " key"]]
"""A row of weights of each head, and the keys that it sees."""


def weights_of(layers: Sequence[AttentionLayer | GivenWeights]) -> list[RowOfWeights]:
    """The rows of the one query of each layer, of one text."""
    found: dict[int, RowOfWeights] = {}
    alike: defaultdict[Hashable, dict[int, AttentionLayer]] = defaultdict(dict)
    for number, layer in enumerate(layers):
        if isinstance(layer, GivenWeights):
            found[number] = layer.weights[0, :, 0].float(), layer.seen[0, 0]
        else:
            alike[_likeness(layer)][number] = layer
    for together in alike.values():
        found |= zip(together, _rows([*together.values()]), strict=True)
    return [found[number] for number in range(len(layers))]


def _likeness(layer: AttentionLayer) -> Hashable:
    """Equal for layers that may be computed together; one with a mask or bias of its own is alone."""
    seen, rules = layer.visibility, layer.rules
    if seen.key_mask is not None or seen.rule is not None or rules.bias is not None:
        return id(layer)
    sink = None if rules.sink is None else rules.sink.shape
    shapes = layer.query.shape, layer.key.shape, layer.query.device
    return (*shapes, layer.scale, seen.causal, seen.window, rules.softcap, sink)


def _rows(layers: Sequence[AttentionLayer]) -> Iterator[RowOfWeights]:
    """The rows of layers that are alike, as many at a time as are copied in little memory."""
    seen = layers[0].visibility.whole(layers[0].query.device)[0, 0]
    at_once = max(1, MOST_STACKED // layers[0].key.numel())
    for start in range(0, len(layers), at_once):
        weights = attend(_stacked(layers[start : start + at_once]), Wanted(weights=True)).weights
        assert weights is not None
        for row in weights[:, :, 0]:
            yield row, seen


def _stacked(layers: Sequence[AttentionLayer]) -> AttentionLayer:
    """Several layers as the texts of one, without values: only its weights are wanted."""
    first = layers[0]
    if len(layers) == 1:
        return first
    key = torch.cat([layer.key for layer in layers])
    sinks = [layer.rules.sink for layer in layers if layer.rules.sink is not None]
    rules = replace(first.rules, sink=torch.cat(sinks)) if sinks else first.rules
    query = torch.cat([layer.query for layer in layers])
    return replace(first, query=query, key=key, value=key[..., :0], rules=rules)


class Place(NamedTuple):
    """Where a layer stands, and how many heads it has."""

    layer: int
    module: str
    kind: str
    stack: str
    num_heads: int


@dataclass(frozen=True)
class TokenRows:
    """The rows of one new token: numbers (layer, head) by statistic, NaN where a layer has fewer heads."""

    token: int
    statistics: Mapping[str, Float[Tensor, "layer head"]]
    top_keys: Int[Tensor, "layer head rank"]
    top_weights: Float[Tensor, "layer head rank"]
    strongest: Int[Tensor, "layer head"]
    mean: Float[Tensor, " key"]
    weights: Float[Tensor, "layer head key"] | None


@dataclass
class WrittenRows:
    """Takes the layers of each token and keeps its rows, from cross-attention where there is any.

    `special_ids` are the tokenizer's own tokens, `needle` the places of the needle among the prompt's
    `prompt_ids`. Only the heads of `layer`, and of these only `head`, are kept where one is named; `top_k`
    keys are. With `keeps_heads` the weights of each head are kept up to 128 keys.
    """

    prompt_ids: Int[Tensor, " token"]
    special_ids: Int[Tensor, " special"]
    _: KW_ONLY
    needle: tuple[int, ...] = ()
    is_cross: bool = False
    layer: int | None = None
    head: int | None = None
    top_k: int = 3
    keeps_heads: bool = False
    places: list[Place] = field(default_factory=list)
    tokens: list[TokenRows] = field(default_factory=list)

    def take(self, token: int, layers: Sequence[CapturedLayer]) -> None:
        """The rows that chose a token; CannotShow where keys are not the tokens that were read.

        XLM predicts at a mask that it puts behind the text, DeepSeek V4 adds keys that sum up several tokens.
        """
        own = [layer for layer in layers if (layer.kind == "cross") == self.is_cross]
        own = [layer for layer in own if self.layer in (None, layer.layer)]
        if not own:
            known = sorted({layer.layer for layer in layers})
            raise UserError(f"layer: must be one of {', '.join(map(str, known))} (got {self.layer})")
        num_tokens = len(self.keys_after(len(self.tokens))[0])
        for layer in own:
            if layer.attention.shape[-1] != num_tokens:
                counts = f"{layer.attention.shape[-1]} keys where there are {num_tokens} tokens"
                raise CannotShow(f"{layer.module} has {counts}")
        if not self.places:
            self.places = [
                Place(layer.layer, layer.module, layer.kind, layer.stack_name, layer.attention.shape[1])
                for layer in own
            ]
            most = max(place.num_heads for place in self.places)
            if self.head is not None and self.head >= most:
                raise UserError(f"head: must be below {most} (got {self.head})")
        self.tokens.append(self._rows(token, own))

    @property
    def statistic_names(self) -> tuple[str, ...]:
        """What is measured: positions compare in self-attention alone, a needle is there where asked for."""
        rows = [name for name, one in ROW_STATISTICS.items() if not (self.is_cross and one.positional)]
        left_out = OF_WRITTEN_KEYS if self.is_cross else ()
        needle = () if self.needle else ("needle_mass",)
        return (*rows, *(name for name in WRITING if name not in (*left_out, *needle)))

    def _rows(self, token: int, layers: Sequence[CapturedLayer]) -> TokenRows:
        """The layers side by side: their rows end at one key."""
        found = weights_of([layer.attention for layer in layers])
        heads = slice(None) if self.head is None else slice(self.head, self.head + 1)
        each = [weights[heads] for weights, _ in found]
        weights = pad_sequence(each, batch_first=True, padding_value=torch.nan).unsqueeze(-2)
        seen = torch.stack([seen for _, seen in found]).unsqueeze(1)
        num_keys, ranks = weights.shape[-1], self.top_k
        keys = torch.arange(num_keys, device=weights.device)
        rows = Rows(weights, seen.sum(dim=-1, keepdim=True), keys[-1:], keys)
        prompted = self._prompted(weights)
        numbers = {name: _number(name, rows, prompted) for name in self.statistic_names}
        ranking = weights.masked_fill(~seen.unsqueeze(-2), -torch.inf).nan_to_num(nan=-torch.inf)
        best = top_keys(ranking, ranks, unit=0.0)
        top = weights.gather(-1, best.clamp(min=0)).masked_fill(best < 0, torch.nan)
        keeps = self.keeps_heads and num_keys <= MOST_KEYS_OF_HEADS
        return TokenRows(
            token,
            numbers,
            best[..., 0, :].cpu(),
            top[..., 0, :].cpu(),
            best[..., 0, 0].cpu(),
            weights[..., 0, :].flatten(0, 1).nanmean(dim=0).cpu(),
            weights[..., 0, :].cpu() if keeps else None,
        )

    def numbers(self) -> dict[str, Float[Tensor, "layer head query"]]:
        """Each statistic of the rows, in the order of the layers, in float64."""
        return {
            name: torch.stack([one.statistics[name] for one in self.tokens], dim=-1).double()
            for name in self.statistic_names
        }

    def head_rows(self, **means: Float[Tensor, "layer head"]) -> list[dict[str, Any]]:
        """One row per head: the means of its statistics over the new tokens, and more numbers of each head.

        NaN where none of the tokens has a number.
        """
        means = {name: torch.nanmean(of_rows, dim=-1) for name, of_rows in self.numbers().items()} | means
        first = self.head or 0
        table = []
        for index, place in enumerate(self.places):
            where = place._asdict()
            num_heads = where.pop("num_heads")
            for head in range(num_heads if self.head is None else 1):
                numbers = {name: float(of_heads[index, head]) for name, of_heads in means.items()}
                table.append({**where, "head": first + head, **numbers})
        return table

    def token_rows(self, labels: Sequence[str], first_query: int) -> list[dict[str, Any]]:
        """For each token, the position of the query that chose it and the keys that it looked at.

        By the mean row of the heads; the first key, where sinks are, has a column of its own.
        """
        table = []
        for number, (one, label) in enumerate(zip(self.tokens, labels, strict=True)):
            keys, weights = _top_beside_first(one.mean, self.top_k)
            row: dict[str, Any] = {
                "token": label,
                "position": first_query + number,
                "first_key": float(one.mean[0]),
                "keys": keys,
                "weights": weights,
            }
            for name in ("prompt_mass", "written_mass", "needle_mass"):
                if name in one.statistics:
                    row[name] = float(torch.nanmean(one.statistics[name]))
            table.append(row)
        return table

    def keys_after(self, num_written: int) -> tuple[Int[Tensor, " key"], Bool[Tensor, " key"]]:
        """The tokens at the keys after some were written, and which keys are in the needle."""
        written = [] if self.is_cross else [one.token for one in self.tokens[:num_written]]
        ids = torch.cat([self.prompt_ids, torch.tensor(written, dtype=torch.long)])
        in_needle = torch.zeros(len(ids), dtype=torch.bool)
        in_needle[list(self.needle)] = True
        return ids, in_needle

    def _prompted(self, weights: Float[Tensor, "layer head 1 key"]) -> PromptedRows:
        device = weights.device
        ids, in_needle = self.keys_after(len(self.tokens))
        special = torch.isin(ids, self.special_ids)
        return PromptedRows(weights, len(self.prompt_ids), special.to(device), in_needle.to(device))


def _number(name: str, rows: Rows, prompted: PromptedRows) -> Float[Tensor, "layer head"]:
    """One statistic of each row."""
    is_of_rows = name in ROW_STATISTICS
    formula = load_formula(ROW_STATISTICS[name].formula if is_of_rows else WRITING[name])
    numbers: Tensor = formula(rows if is_of_rows else prompted)
    # A copy: the weight on the first key is a view, which would keep all weights of the token.
    return numbers[..., 0].clone().cpu()


def _top_beside_first(row: Tensor, count: int) -> tuple[list[int | None], list[float | None]]:
    """The keys of the largest weights without the first key; None where there are fewer."""
    top = row[1:].topk(min(count, len(row) - 1))
    missing = [None] * (count - len(top.indices))
    return [*(top.indices + 1).tolist(), *missing], [*top.values.tolist(), *missing]


@dataclass(frozen=True)
class WrittenText:
    """What a model wrote, and where each head looked as it chose each token.

    `tokens` has one row per new token: the position of the query that chose it, and the keys that it looked
    at, by the mean row of all heads. `heads` has one row per head: means of its statistics over the tokens.
    `rows` has each statistic of each row, NaN where a layer has fewer heads.
    """

    text: str
    tokens: list[dict[str, Any]]
    heads: list[dict[str, Any]]
    rows: dict[str, Float[Tensor, "layer head query"]]
    notes: tuple[str, ...] = ()


def written(pretrained: Pretrained, prompt: ModelText, decoding: Decoding, *, top_k: int = 3) -> WrittenText:
    """The model continues a prompt; with a decoder the prompt goes to the encoder.

    UserError where the model cannot write, or gives no weights of its tokens; MemoryError.
    """
    special = torch.tensor(sorted(pretrained.special_ids - pretrained.unknown_ids), dtype=torch.long)
    rows = WrittenRows(prompt.ids, special, is_cross=pretrained.has_decoder, top_k=top_k)
    ids = prompt.ids.unsqueeze(0).to(pretrained.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    way = write(pretrained.whole, inputs, decoding, rows.take, pretrained.tokenizer)
    new = [one.token for one in rows.tokens]
    first_query = 0 if pretrained.has_decoder else len(prompt.ids) - 1
    return WrittenText(
        pretrained.text_of(new),
        rows.token_rows(pretrained.labels(new), first_query),
        rows.head_rows(),
        rows.numbers(),
        tuple(way.notes()),
    )
