"""Two texts in one model: the heads whose keys change, and the next tokens that change."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.core.summaries import jensen_shannon
from attncli.errors import UserError, refuse_bytes
from attncli.features.diff.differences import NAMING, align
from attncli.features.diff.results import HeadChange, TextDifferences, TokenChange
from attncli.measure.heads import NOTHING_MORE, Survey, surveyed_texts
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import ModelText, Pretrained, Reading, stack_texts
from attncli.models.removal import ModelHead
from attncli.records.columns import Records
from attncli.records.surveys import SurveyedHead

BYTES_PER_WEIGHT = 60
"""The memory per weight of a layer's heads on both texts: float64 rows over the tokens of both."""
BYTES_PER_LOGIT = 8


class RunOnText(NamedTuple):
    """A model's run on one text: its layers, its heads and its predictions."""

    layers: list[CapturedLayer]
    heads: Records[SurveyedHead]
    probabilities: Float[Tensor, " vocabulary"] | None
    notes: list[str]


@torch.no_grad()
def text_differences(
    pretrained: Pretrained, a: Reading, b: Reading, *, num_predictions: int = 10
) -> TextDifferences:
    """Compare B with A. Raises UserError for unreadable texts, and MemoryError if memory runs out."""
    _check_memory(pretrained, a, b)
    run_a, run_b = _run(pretrained, a), _run(pretrained, b)
    sides: dict[str, tuple[TextSide, TextSide]] = {}
    furthest: list[FurthestRow] = []
    for layer_a, layer_b in zip(run_a.layers, run_b.layers, strict=True):
        stack = layer_a.stack_name
        if stack not in sides:
            sides[stack] = _sides(stack_texts(a, stack), stack_texts(b, stack))
        furthest += _furthest_rows((layer_a, layer_b), sides[stack])
    heads = HeadChange.rows(map(_head, run_a.heads, run_b.heads, furthest))
    is_aligned = any(row.mean is not None for row in furthest)
    change = "mean_jensen_shannon" if is_aligned else "difference"
    return TextDifferences(
        heads=heads.sorted(lambda head: -abs(head.number(change) or 0.0)),
        predictions=_predictions(pretrained, run_a, run_b, num_predictions),
        alignment=align(a.text.tokens, b.text.tokens),
        notes=tuple(dict.fromkeys((*run_a.notes, *run_b.notes))),
    )


def _check_memory(pretrained: Pretrained, a: Reading, b: Reading) -> None:
    config = pretrained.model.config.get_text_config()
    num_heads, num_tokens = getattr(config, "num_attention_heads", 1), max(*a.counts, *b.counts)
    logits = num_tokens * config.vocab_size * BYTES_PER_LOGIT if pretrained.with_head is not None else 0
    refuse_bytes("diff", num_heads * (2 * num_tokens) ** 2 * BYTES_PER_WEIGHT + logits, "fewer tokens")


def _run(pretrained: Pretrained, reading: Reading) -> RunOnText:
    layers: list[CapturedLayer] = []
    outputs: list[Mapping[str, Tensor]] = []
    model, inputs = pretrained.whole, pretrained.inputs([reading])
    with ExitStack() as hooks:
        survey = Survey(NOTHING_MORE, [reading], pretrained, None, hooks)

        def take(layer: CapturedLayer) -> Tensor | None:
            layers.append(layer.copied())
            return survey.take(layer)

        # The last call is on the full text; earlier calls test how the model returns its attention.
        hook = model.register_forward_hook(lambda _model, _inputs, output: outputs.append(output))
        hooks.callback(hook.remove)
        way = capture(model, inputs, take)
    place = _predicted_place(pretrained, reading)
    probabilities = None
    if place is not None:
        probabilities = outputs[-1]["logits"][0, place].double().softmax(dim=-1).cpu()
    heads = surveyed_texts(survey)[0].heads
    return RunOnText(layers, heads, probabilities, [*way.notes(), *reading.left_out_notes()])


def _predicted_place(pretrained: Pretrained, reading: Reading) -> int | None:
    """The position of the last token or of the only mask, or None if nothing is predicted."""
    if pretrained.predicts == "next":
        return len(reading.text.ids) - 1
    if pretrained.predicts is None:
        return None
    ids, mask = reading.text.ids.tolist(), pretrained.tokenizer.mask_token_id
    return ids.index(mask) if ids.count(mask) == 1 else None


class TextSide(NamedTuple):
    """The tokens of one text, and the positions of the tokens that both texts have.

    `shared` has the corresponding queries, and `keys` the position of each key of either text, or -1.
    """

    queries: tuple[str, ...]
    tokens: tuple[str, ...]
    shared: Int[Tensor, " row"]
    keys: Int[Tensor, " both"]


def _sides(a: tuple[ModelText, ModelText], b: tuple[ModelText, ModelText]) -> tuple[TextSide, TextSide]:
    """The query and key tokens of both sides, aligned."""
    queries, keys = (align(text_a.tokens, text_b.tokens) for text_a, text_b in zip(a, b, strict=True))
    is_shared = (queries.a >= 0) & (queries.b >= 0)
    side_a, side_b = (
        TextSide(query.tokens, key.tokens, torch.from_numpy(places[is_shared]), torch.from_numpy(key_places))
        for (query, key), places, key_places in ((a, queries.a, keys.a), (b, queries.b, keys.b))
    )
    return side_a, side_b


class KeyLookedAt(NamedTuple):
    """A query, and the key to which it gives the most weight."""

    query: int
    query_token: str
    key: int
    key_token: str
    weight: float


class FurthestRow(NamedTuple):
    """The movement of a head's rows, and the keys with the most weight in the row that moved furthest.

    If the texts have no rows in common, there is no distance, and the rows are those of the last tokens.
    """

    mean: float | None
    largest: float | None
    a: KeyLookedAt
    b: KeyLookedAt


def _furthest_rows(
    layers: tuple[CapturedLayer, CapturedLayer], sides: tuple[TextSide, TextSide]
) -> Iterator[FurthestRow]:
    """For each head of a layer, yield the row that moved furthest."""
    weights = [layer.weights()[0].double().cpu() for layer in layers]
    distances = jensen_shannon(*map(_spread, weights, sides))
    for head_distances, *head_weights in zip(distances, *weights, strict=True):
        mean = largest = None
        queries = [len(side.queries) - 1 for side in sides]
        if not head_distances.isnan().all():
            row = head_distances.nan_to_num(-1.0).argmax()
            mean, largest = float(head_distances.nanmean()), float(head_distances[row])
            queries = [int(side.shared[row]) for side in sides]
        yield FurthestRow(mean, largest, *map(_key_looked_at, head_weights, sides, queries))


def _key_looked_at(weights: Float[Tensor, "query key"], side: TextSide, query: int) -> KeyLookedAt:
    weight, key = weights[query].max(dim=-1)
    return KeyLookedAt(query, side.queries[query], int(key), side.tokens[int(key)], float(weight))


def _spread(weights: Float[Tensor, "head query key"], side: TextSide) -> Float[Tensor, "head row both"]:
    """The shared rows over the keys of both texts, with 0 at the keys that this text lacks."""
    spread = weights[:, side.shared][:, :, side.keys]
    return spread.masked_fill(side.keys < 0, 0.0)


def _head(a: SurveyedHead, b: SurveyedHead, furthest: FurthestRow) -> HeadChange:
    """A head with the distance between its rows and the statistic that changed most."""
    sides = {name: (a.number(name), b.number(name)) for name in NAMING if name in a and name in b}
    differences = {
        name: value_b - value_a
        for name, (value_a, value_b) in sides.items()
        if value_a is not None and value_b is not None
    }
    if not differences:
        raise UserError(f"model: the weights of head {a.layer}:{a.head} are NaN on one of the texts")
    statistic = max(sorted(differences), key=lambda name: abs(differences[name]))
    row_a, row_b = furthest.a, furthest.b
    return HeadChange.single(
        **{name: a[name] for name in ModelHead._fields},
        pattern_a=a.pattern,
        pattern_b=b.pattern,
        mean_jensen_shannon=furthest.mean,
        max_jensen_shannon=furthest.largest,
        query_a=row_a.query,
        query_a_token=row_a.query_token,
        key_a=row_a.key,
        key_a_token=row_a.key_token,
        weight_a=row_a.weight,
        query_b=row_b.query,
        query_b_token=row_b.query_token,
        key_b=row_b.key,
        key_b_token=row_b.key_token,
        weight_b=row_b.weight,
        statistic=statistic,
        a=a[statistic],
        b=b[statistic],
        difference=differences[statistic],
    )


def _predictions(pretrained: Pretrained, a: RunOnText, b: RunOnText, count: int) -> Records[TokenChange]:
    """The tokens whose probability changed most."""
    if a.probabilities is None or b.probabilities is None:
        return TokenChange.rows([])
    difference = b.probabilities - a.probabilities
    ids = difference.abs().topk(min(count, len(difference))).indices.tolist()
    return TokenChange.table(
        token_id=ids,
        token=list(pretrained.labels(ids)),
        a=a.probabilities[ids].tolist(),
        b=b.probabilities[ids].tolist(),
        difference=difference[ids].tolist(),
    )
