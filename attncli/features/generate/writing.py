"""Measure every head's rows for each new token while a model writes."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attncli.core.engines import attend
from attncli.core.formulas import PromptedRows, Rows, load_formula, retrieval_score, top_keys
from attncli.core.layer import AttentionLayer, Wanted
from attncli.core.names import (
    GENERATED_KEY_STATISTICS,
    MAX_KEYS_PER_HEAD,
    ROW_STATISTICS,
    WEIGHT_STATISTICS,
    WRITING,
    WholeRows,
    head_range,
)
from attncli.core.row_tiles import GivenWeights
from attncli.errors import UserError
from attncli.features.generate.results import (
    NeedleCounts,
    WriterHead,
    WritingCounts,
    WrittenText,
    WrittenToken,
)
from attncli.measure.masks import joint_mask
from attncli.measure.signed_heads import WritingSignedHeads
from attncli.models.architectures import unshown_layers
from attncli.models.capture import Way
from attncli.models.layers import CannotShow, CapturedLayer
from attncli.models.pretrained import Pretrained
from attncli.models.prompts import Prompt
from attncli.models.replay import Replay, token_rows
from attncli.models.targets import Target
from attncli.models.writing import Decoding, OnToken, TextPieces, prompt_inputs, write
from attncli.records.columns import Records
from attncli.records.surveys import SignedHead
from attncli.records.values import Mask, NamedTensor, Tensors

MOST_MEAN_WEIGHTS = 2**22
"""The largest number of weights in mean rows, over all tokens; longer texts keep no weights."""
MOST_STACKED = 2**21
"""The largest size of the keys of layers that are computed together, because these keys are copied."""

RowOfWeights = tuple[Float[Tensor, "head key"], Bool[Tensor, " key"]]
"""The row of weights of each head, and a mask of the keys that the row sees."""


def weight_rows(layers: Sequence[AttentionLayer | GivenWeights]) -> list[RowOfWeights]:
    """Return the rows of layers that have a single query of a single text."""
    rows: dict[int, RowOfWeights] = {}
    alike: defaultdict[Hashable, dict[int, AttentionLayer]] = defaultdict(dict)
    for number, layer in enumerate(layers):
        if isinstance(layer, GivenWeights):
            rows[number] = layer.weights[0, :, 0].float(), layer.seen[0, 0]
        else:
            alike[_likeness(layer)][number] = layer
    for together in alike.values():
        rows |= zip(together, _rows([*together.values()]), strict=True)
    return [rows[number] for number in range(len(layers))]


def _likeness(layer: AttentionLayer) -> Hashable:
    """Return a value that is equal for layers that can be computed together, apart from masks and biases."""
    seen, rules = layer.visibility, layer.rules
    if seen.key_mask is not None or seen.rule is not None or rules.bias is not None:
        return id(layer)
    sink = None if rules.sink is None else rules.sink.shape
    shapes = layer.query.shape, layer.key.shape, layer.query.device
    return (*shapes, layer.scale, seen.causal, seen.window, rules.softcap, sink)


def _rows(layers: Sequence[AttentionLayer]) -> Iterator[RowOfWeights]:
    """Yield the rows of layers with the same `_likeness`, in batches that need little memory."""
    seen = layers[0].visibility.whole(layers[0].query.device)[0, 0]
    at_once = max(1, MOST_STACKED // layers[0].key.numel())
    for start in range(0, len(layers), at_once):
        weights = attend(_stacked(layers[start : start + at_once]), Wanted(weights=True)).weights
        assert weights is not None
        for row in weights[:, :, 0]:
            yield row, seen


def _stacked(layers: Sequence[AttentionLayer]) -> AttentionLayer:
    """Stack several layers as the texts of one layer, without values, which weights do not need."""
    first = layers[0]
    if len(layers) == 1:
        return first
    key = torch.cat([layer.key for layer in layers])
    sinks = [layer.rules.sink for layer in layers if layer.rules.sink is not None]
    rules = replace(first.rules, sink=torch.cat(sinks)) if sinks else first.rules
    query = torch.cat([layer.query for layer in layers])
    return replace(first, query=query, key=key, value=key[..., :0], rules=rules)


class WriterLayer(NamedTuple):
    """The place of a layer, and its number of heads."""

    layer: int
    module: str
    kind: str
    stack: str
    num_heads: int


@dataclass(frozen=True)
class TokenRows:
    """The rows of one new token: statistics with the axes layer and head, NaN where a layer has fewer heads.

    One more top key is kept than is shown, because the first key is not shown. `seen` contains the keys that
    each layer sees or, without `weights`, the keys that any layer sees.
    """

    token: int
    statistics: Mapping[str, Float[Tensor, "layer head"]]
    top_keys: Int[Tensor, "layer head rank"]
    top_weights: Float[Tensor, "layer head rank"]
    strongest: Int[Tensor, "layer head"]
    mean: Float[Tensor, " key"]
    weights: Float[Tensor, "layer head key"] | None
    seen: Bool[Tensor, "#layer key"]


@dataclass
class WrittenRows:
    """The rows of each new token, from a model's layers, or from cross-attention if the model has any.

    `special_ids` are the special tokens of the tokenizer; `module_name` maps a module to its name in results;
    `needle` contains the places of the needle in `prompt_ids`. `layer` and `head` limit the rows to one layer
    or head; `top_k` is the number of keys per row. With `keeps_heads`, the weights of each head are kept for
    up to 128 keys.
    """

    prompt_ids: Int[Tensor, " token"]
    special_ids: Int[Tensor, " special"]
    module_name: Callable[[str], str]
    _: KW_ONLY
    needle: tuple[int, ...] = ()
    is_cross: bool = False
    layer: int | None = None
    head: int | None = None
    top_k: int = 3
    keeps_heads: bool = False
    linear: WritingSignedHeads | None = None
    layers: list[WriterLayer] = field(default_factory=list)
    tokens: list[TokenRows] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """The ids of the new tokens. A layer without a softmax has no rows for them in `tokens`."""

    def take(self, token: int, layers: Sequence[CapturedLayer]) -> None:
        """Add the rows of a token. Raises CannotShow if the keys are not the tokens that the model read.

        For example, XLM predicts at a mask that it appends to the text, and DeepSeek V4 adds keys that
        summarise several tokens.
        """
        chosen_layers = [layer for layer in layers if (layer.kind == "cross") == self.is_cross]
        chosen_layers = [layer for layer in chosen_layers if self.layer in (None, layer.layer)]
        if chosen_layers:
            self._add_rows(token, chosen_layers)
        elif self.linear is not None and self.linear.layers:
            if self.needle:
                reason = f"retrieval needs a softmax, which layer {self.layer} does not have"
                raise UserError(f"needle: {reason}: use an attention layer, or all layers")
        else:
            num_heads = {layer.layer: layer.attention.shape[1] for layer in layers}
            num_heads |= {} if self.linear is None else self.linear.num_heads
            if self.head is not None:
                raise UserError(f"head: {head_range(num_heads)} (got {self.layer}:{self.head})")
            layer_range = f"from {min(num_heads)} to {max(num_heads)}"
            raise UserError(f"layer: must be {layer_range} (got {self.layer})")
        if self.linear is not None:
            self.linear.count()
        self.ids.append(token)

    def _add_rows(self, token: int, chosen_layers: Sequence[CapturedLayer]) -> None:
        num_tokens = len(self.keys_after(len(self.ids))[0])
        for layer in chosen_layers:
            if layer.attention.shape[-1] != num_tokens:
                counts = f"{layer.attention.shape[-1]} keys for {num_tokens} tokens"
                raise CannotShow(f"{self.module_name(layer.module)} has {counts}, so its keys are not tokens")
        if not self.layers:
            self.layers = [
                WriterLayer(
                    layer.layer,
                    self.module_name(layer.module),
                    layer.kind,
                    layer.stack_name,
                    layer.attention.shape[1],
                )
                for layer in chosen_layers
            ]
            most = max(layer.num_heads for layer in self.layers)
            if self.head is not None and self.head >= most:
                heads = head_range({layer.layer: layer.num_heads for layer in self.layers})
                has_both = self.linear is not None and self.layer in self.linear.num_heads
                hint = f": use --layer {self.layer} to show its heads without a softmax" * has_both
                raise UserError(f"head: {heads} (got {self.layer}:{self.head}){hint}")
        self.tokens.append(self._rows(token, chosen_layers))

    @property
    def statistic_names(self) -> tuple[str, ...]:
        """The names of the statistics: positions need self-attention, and `needle_mass` needs a needle."""
        rows = [name for name in WEIGHT_STATISTICS if not (self.is_cross and ROW_STATISTICS[name].positional)]
        left_out = GENERATED_KEY_STATISTICS if self.is_cross else ()
        needle = () if self.needle else ("needle_mass",)
        return (*rows, *(name for name in WRITING if name not in (*left_out, *needle)))

    def _rows(self, token: int, layers: Sequence[CapturedLayer]) -> TokenRows:
        """Return the rows of all layers, which end at the same key."""
        rows_of_layers = weight_rows([layer.attention for layer in layers])
        heads = slice(None) if self.head is None else slice(self.head, self.head + 1)
        each = [weights[heads] for weights, _ in rows_of_layers]
        weights = pad_sequence(each, batch_first=True, padding_value=torch.nan).unsqueeze(-2)
        seen = torch.stack([seen for _, seen in rows_of_layers]).unsqueeze(1)
        num_keys, ranks = weights.shape[-1], self.top_k + 1
        keys = torch.arange(num_keys, device=weights.device)
        rows = Rows(weights, seen.sum(dim=-1, keepdim=True), keys[-1:], keys)
        prompted = self._prompted(weights)
        numbers = {}
        for name in self.statistic_names:
            if name in ROW_STATISTICS:
                query_numbers = load_formula(ROW_STATISTICS[name].formula)(rows)
            else:
                query_numbers = load_formula(WRITING[name])(prompted)
            # Copied, because the weight on the first key is a view of all the token's weights.
            numbers[name] = query_numbers[..., 0].clone().cpu()
        ranking = weights.masked_fill(~seen.unsqueeze(-2), -torch.inf).nan_to_num(nan=-torch.inf)
        best = top_keys(ranking, ranks, unit=0.0)
        top = weights.gather(-1, best.clamp(min=0)).masked_fill(best < 0, torch.nan)
        keeps = self.keeps_heads and num_keys <= MAX_KEYS_PER_HEAD
        return TokenRows(
            token,
            numbers,
            best[..., 0, :].cpu(),
            top[..., 0, :].cpu(),
            best[..., 0, 0].cpu(),
            weights[..., 0, :].flatten(0, 1).nanmean(dim=0).cpu(),
            weights[..., 0, :].cpu() if keeps else None,
            (seen[:, 0] if keeps else seen[:, 0].any(dim=0, keepdim=True)).cpu(),
        )

    def numbers(self) -> dict[str, Float[Tensor, "layer head query"]]:
        """Return each statistic of the rows, in the order of the layers, in float64."""
        return {
            name: torch.stack([token.statistics[name] for token in self.tokens], dim=-1).double()
            for name in self.statistic_names
        }

    def heads(self, **more: Float[Tensor, "layer head"]) -> Records[WriterHead]:
        """Return the mean statistics of each head over the new tokens, and further columns."""
        means = {name: row_numbers.nanmean(dim=-1) for name, row_numbers in self.numbers().items()} | more
        counts = [layer.num_heads if self.head is None else 1 for layer in self.layers]
        places = np.repeat(np.arange(len(counts)), counts)
        heads = np.concatenate([np.arange(count) for count in counts])
        head_layers = [self.layers[place] for place in places]
        return WriterHead.table(
            layer=[layer.layer for layer in head_layers],
            module=[layer.module for layer in head_layers],
            kind=[layer.kind for layer in head_layers],
            stack=[layer.stack for layer in head_layers],
            head=heads + (self.head or 0),
            **{name: numbers.double().numpy()[places, heads] for name, numbers in means.items()},
        )

    def written(
        self, labels: Sequence[str], first_query: int, *, best: tuple[int, int] | None = None
    ) -> Records[WrittenToken]:
        """Return one row per new token, from the mean row or from that of the head `best` (layer place,
        head).
        """
        if best is None:
            first_keys = [float(token.mean[0]) for token in self.tokens]
            looks = [_top_beside_first(token.mean, self.top_k) for token in self.tokens]
        else:
            first_keys = [float(token.statistics["sink_mass"][best]) for token in self.tokens]
            looks = [
                _beside_first(token.top_keys[best], token.top_weights[best], self.top_k)
                for token in self.tokens
            ]
        name = "" if best is None else f"{self.layers[best[0]].layer}:{(self.head or 0) + best[1]}"
        masses = {
            name: [token.statistics[name] for token in self.tokens]
            for name in ("prompt_mass", "written_mass", "needle_mass")
            if name in self.statistic_names
        }
        return WrittenToken.table(
            token=labels,
            position=range(first_query, first_query + len(labels)),
            **({"head": [name] * len(labels)} if name else {}),
            first_key=first_keys,
            keys=[keys for keys, _ in looks],
            weights=[weights for _, weights in looks],
            **{
                name: [float(mass.nanmean() if best is None else mass[best]) for mass in token_masses]
                for name, token_masses in masses.items()
            },
        )

    def all_rows(self) -> Tensors:
        """Return every statistic of every row, and the top keys of each row with their weights."""
        tensors = {name: self._placed(numbers, "query") for name, numbers in self.numbers().items()}
        ranks = slice(self.top_k)
        keys = torch.stack([token.top_keys[..., ranks] for token in self.tokens], dim=-2)
        weights = torch.stack([token.top_weights[..., ranks] for token in self.tokens], dim=-2)
        tensors["top_keys"] = self._placed(keys, "query", "rank")
        tensors["top_weights"] = self._placed(weights, "query", "rank")
        return Tensors(tensors)

    def whole_rows(self) -> NamedTensor | None:
        """Return each head's weights if all tokens have them, otherwise their mean.

        The result is None if there are too many weights.
        """
        weights_by_head = [token.weights for token in self.tokens if token.weights is not None]
        if len(weights_by_head) == len(self.tokens):
            weights = self._placed(_by_query(weights_by_head), "query", "key")
            return replace(weights, mask=self._layer_masks())
        means = [token.mean for token in self.tokens]
        if len(means) * len(means[-1]) > MOST_MEAN_WEIGHTS:
            return None
        visible = _by_query([token.seen.any(dim=0) for token in self.tokens])
        return replace(_named_tensor(_by_query(means), "query", "key"), mask=Mask.of(visible.numpy()))

    def _layer_masks(self) -> Mask | None:
        """Return the masks of the layers. Tokens after a query had not been written yet."""
        visible = _by_query([token.seen for token in self.tokens]).numpy()
        masks = {layer.layer: Mask.of(seen) for layer, seen in zip(self.layers, visible, strict=True)}
        return joint_mask(masks, *visible.shape[1:])

    def _placed(self, tensor: Tensor, *axes: str) -> NamedTensor:
        """Return a tensor by layer and head, with NaN or key -1 for missing heads.

        A layer or head that was chosen has no axis.
        """
        if self.layer is None:
            nothing = torch.nan if tensor.is_floating_point() else -1
            layers = [layer.layer for layer in self.layers]
            spread = tensor.new_full((max(layers) + 1, *tensor.shape[1:]), nothing)
            spread[layers] = tensor
            return _named_tensor(spread, "layer", "head", *axes)
        if self.head is None:
            return _named_tensor(tensor[0], "head", *axes)
        return _named_tensor(tensor[0, 0], *axes)

    def keys_after(self, num_written: int) -> tuple[Int[Tensor, " key"], Bool[Tensor, " key"]]:
        """Return the tokens at the keys after `num_written` new tokens, and a mask of the needle."""
        written = [] if self.is_cross else self.ids[:num_written]
        ids = torch.cat([self.prompt_ids, torch.tensor(written, dtype=torch.long)])
        in_needle = torch.zeros(len(ids), dtype=torch.bool)
        in_needle[list(self.needle)] = True
        return ids, in_needle

    def _prompted(self, weights: Float[Tensor, "layer head 1 key"]) -> PromptedRows:
        device = weights.device
        ids, in_needle = self.keys_after(len(self.ids))
        special = torch.isin(ids, self.special_ids)
        return PromptedRows(weights, len(self.prompt_ids), special.to(device), in_needle.to(device))


def _written_by_shares(
    shares: Sequence[Float[Tensor, " key"]], labels: Sequence[str], first_query: int, rows: WrittenRows
) -> Records[WrittenToken]:
    """Return one row per new token, from shares of |w| in a layer without a softmax or one of its heads."""
    num_read = len(rows.prompt_ids)
    looks = [_top_beside_first(row, rows.top_k) for row in shares]
    return WrittenToken.table(
        token=labels,
        position=range(first_query, first_query + len(labels)),
        first_key=[float(row[0]) for row in shares],
        keys=[keys for keys, _ in looks],
        weights=[weights for _, weights in looks],
        prompt_mass=[float(row[:num_read].sum()) for row in shares],
        written_mass=[float(row[num_read:].sum()) for row in shares],
    )


def _top_beside_first(row: Tensor, count: int) -> tuple[list[int | None], list[float | None]]:
    """Return the keys with the largest weights, without the first key, padded with None."""
    top = row[1:].topk(min(count, len(row) - 1))
    missing = [None] * (count - len(top.indices))
    return [*(top.indices + 1).tolist(), *missing], [*top.values.tolist(), *missing]


def _beside_first(keys: Tensor, weights: Tensor, count: int) -> tuple[list[int | None], list[float | None]]:
    """Return the first `count` of the sorted keys, without the first key, padded with None."""
    pairs = [(key, weight) for key, weight in zip(keys.tolist(), weights.tolist(), strict=True) if key > 0]
    top = [*pairs, *[(None, None)] * count][:count]
    return [key for key, _ in top], [weight for _, weight in top]


def _by_query(rows: Sequence[Tensor]) -> Tensor:
    """Stack rows (…, key) of growing length as (…, query, key), with 0 at the keys after each query."""
    most = rows[-1].shape[-1]
    padded = [torch.nn.functional.pad(row, (0, most - row.shape[-1])) for row in rows]
    return torch.stack(padded, dim=-2)


def _named_tensor(tensor: Tensor, *axes: str) -> NamedTensor:
    numbers = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy has no bfloat16
    return NamedTensor(axes, numbers.numpy(force=True))


@dataclass(frozen=True)
class NeedleRetrieval:
    """The retrieval scores of heads on a needle, and the number of tokens copied from the needle.

    `best` (layer place, head) is the head with the largest score or, among equal scores, the head with the
    most weight on the needle.
    """

    scores: Float[Tensor, "layer head"]
    num_copied: int
    share_written: float
    best: tuple[int, int]


def _retrieval(rows: WrittenRows) -> NeedleRetrieval:
    tokens = rows.ids
    strongest = torch.stack([token.strongest for token in rows.tokens], dim=-1)
    ids, in_needle = rows.keys_after(len(tokens) - 1)
    scores, num_copied = retrieval_score(strongest, torch.tensor(tokens), ids, in_needle)
    masses = torch.stack([token.statistics["needle_mass"] for token in rows.tokens]).nanmean(dim=0)
    comparable = scores.nan_to_num(nan=-1.0).to(masses)
    ranking = torch.where(comparable == comparable.max(), masses, -1.0).nan_to_num(nan=-1.0)
    needle = {*rows.prompt_ids[[*rows.needle]].tolist()}
    share = len(needle & {*tokens}) / len(needle)  # of its distinct tokens
    layer, head = divmod(int(ranking.argmax()), ranking.shape[-1])
    return NeedleRetrieval(scores, num_copied, share, (layer, head))


def written(
    pretrained: Pretrained,
    prompt: Prompt,
    decoding: Decoding,
    *,
    layer: int | None = None,
    head: int | None = None,
    top_k: int = 3,
    whole_rows: WholeRows = "none",
    on_text: Callable[[str], None] | None = None,
) -> WrittenText:
    """Continue a prompt with the model, or read an answer after the prompt (teacher forcing).

    The result covers all heads, one layer, or one head. In a model with an encoder, the encoder reads the
    prompt, and the rows are those of cross-attention. `on_text` receives the text in whole characters as the
    model writes it. With `on_text`, Ctrl-C ends the writing and keeps the text so far.

    Raises UserError for arguments that do not fit the model and for a layer or head that the model does not
    have, and MemoryError if memory runs out.
    """
    special = torch.tensor(sorted(pretrained.special_ids - pretrained.unknown_ids), dtype=torch.long)
    linear = None
    if prompt.context is None and unshown_layers(pretrained.whole):
        num_answer = 0 if prompt.answer is None else len(prompt.answer.ids)
        num_new = num_answer or decoding.max_new_tokens
        assert num_new is not None, "only transcriptions have no limit"
        num_keys = len(prompt.prompt.ids) + num_new - 1
        keeps_rows = whole_rows == "heads" and num_keys <= MAX_KEYS_PER_HEAD
        linear = WritingSignedHeads(
            pretrained, num_keys, num_answer=num_answer, layer=layer, head=head, keeps_rows=keeps_rows
        )
    rows = WrittenRows(
        prompt.prompt.ids,
        special,
        pretrained.module_name,
        needle=prompt.needle,
        is_cross=prompt.context is not None,
        layer=layer,
        head=head,
        top_k=top_k,
        keeps_heads=whole_rows == "heads",
        linear=linear,
    )
    log_probability, is_unfinished = None, False
    if prompt.answer is not None:
        way, log_probability = _read_answer(pretrained, prompt, prompt.answer, rows)
    else:
        way, is_unfinished = _write(pretrained, prompt, decoding, rows, on_text)
    result = _written_text(pretrained, prompt, rows, log_probability)
    has_rows = whole_rows != "none" and bool(rows.tokens)
    unshown = unshown_layers(pretrained.whole, () if linear is None else linear.modules)
    return replace(
        result,
        weights=rows.whole_rows() if has_rows else None,
        weights_are_mean=has_rows and rows.tokens[-1].weights is None,
        linear_weights=None if linear is None else linear.rows(),
        unshown=unshown,
        is_unfinished=is_unfinished,
        notes=tuple(replace(way, unshown=unshown).notes()),
    )


def _read_answer(
    pretrained: Pretrained, prompt: Prompt, answer: Target, rows: WrittenRows
) -> tuple[Way, float]:
    """Read the answer. Return how its attention was computed, and the answer's log-probability."""
    replay = Replay(pretrained.whole, prompt.prompt.ids, answer)
    with nullcontext() if rows.linear is None else rows.linear.capturing():
        layers, log_probabilities = replay.layers()
    for token, token_layers in zip(answer.ids, token_rows(layers, len(answer.ids)), strict=True):
        rows.take(token, token_layers)
    return replay.way, float(log_probabilities.sum())


def _written_text(
    pretrained: Pretrained, prompt: Prompt, rows: WrittenRows, log_probability: float | None
) -> WrittenText:
    """Return the text, with the measurements of its rows."""
    ids = rows.ids
    needle = _retrieval(rows) if prompt.needle else None
    first_query = len(prompt.text.ids) - 1 if prompt.context is None else 0
    numbers = {} if log_probability is None else {"log_probability": log_probability}
    labels = pretrained.labels(ids)
    if rows.tokens:
        heads = rows.heads(**({} if needle is None else {"retrieval": needle.scores}))
        tokens = rows.written(labels, first_query, best=None if needle is None else needle.best)
    else:
        assert rows.linear is not None
        heads, tokens = (
            WriterHead.rows([]),
            _written_by_shares(rows.linear.shares(), labels, first_query, rows),
        )
    return WrittenText(
        heads=heads,
        tokens=tokens,
        linear=SignedHead.rows([]) if rows.linear is None else rows.linear.table(),
        counts=WritingCounts.single(prompt_tokens=len(prompt.prompt.ids), new_tokens=len(ids), **numbers),
        needle=None
        if needle is None
        else NeedleCounts.single(
            tokens=len(prompt.needle), copied=needle.num_copied, found=needle.share_written
        ),
        rows=rows.all_rows() if rows.tokens else Tensors({}),
        text=pretrained.text_of(ids),
        ids=ids,
        first_query=first_query,
    )


def _write(
    pretrained: Pretrained,
    prompt: Prompt,
    decoding: Decoding,
    rows: WrittenRows,
    on_text: Callable[[str], None] | None,
) -> tuple[Way, bool]:
    """Let the model write. Return how the attention was computed, and True if Ctrl-C ended the writing."""
    if prompt.inputs is None:
        inputs = prompt_inputs(pretrained, prompt.prompt.ids)
    else:
        inputs = pretrained.inputs([prompt])
    take = rows.take if on_text is None else _with_text(rows, pretrained, on_text)
    try:
        meanwhile = nullcontext if rows.linear is None else rows.linear.capturing
        way = write(pretrained.whole, inputs, decoding, take, pretrained.own_tokenizer, meanwhile=meanwhile)
        return way, False
    except KeyboardInterrupt:
        if on_text is None or not rows.ids:
            raise
        return Way("interface"), True


def _with_text(rows: WrittenRows, pretrained: Pretrained, on_text: Callable[[str], None]) -> OnToken:
    """Return a callback that adds the rows of each token and passes its text on."""
    pieces = TextPieces(pretrained.text_of, on_text)

    def take(token: int, layers: Sequence[CapturedLayer]) -> None:
        rows.take(token, layers)
        pieces.take(rows.ids)

    return take
