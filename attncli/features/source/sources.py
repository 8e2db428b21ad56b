"""The sources of an answer: the weight of heads on each source, and the loss without that source.

Weights show where heads looked, not what caused the answer; a removal moves every token after it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import Wanted
from attncli.core.names import NamedHead, SourceMethod, head_range, named_head
from attncli.core.progress import Stage, Work
from attncli.core.summaries import rank_correlation
from attncli.errors import UserError
from attncli.features.source.results import (
    AnswerCounts,
    AnswerSources,
    AnswerToken,
    HeadOnSources,
    RankedSource,
    SourceRanking,
)
from attncli.models.answers import given_answer, write_answer
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import Pretrained
from attncli.models.replay import Replay, with_queries
from attncli.models.source_removals import BeforeEach, SourcesTakenOut, sampled_masks
from attncli.models.source_texts import SourcedReading, SourcedText
from attncli.models.targets import Target
from attncli.models.writing import LONG_CHUNK, Decoding
from attncli.records.columns import Records

CHECKED = 5
"""The number of sources to remove if removing all of them would take long."""
QUERIES_AT_ONCE = 64
LASSO_ALPHA = 0.01
"""The penalty of ContextCite (Cohen-Wang et al. 2024, 2409.00729)."""


def answer_to(
    pretrained: Pretrained,
    reading: SourcedReading,
    answer: str | None,
    decoding: Decoding,
    *,
    on_text: Callable[[str], None] | None = None,
    work: "AnswerWork | None" = None,
) -> Target:
    """The given answer or, without one, the answer that the model writes.

    Raises UserError if the model writes nothing, and MemoryError if memory runs out.
    """
    if answer is not None:
        return given_answer(pretrained, answer, reading.prompt.ids)
    return written_answer(pretrained, reading, decoding, on_text=on_text, work=work)


def written_answer(
    pretrained: Pretrained,
    reading: SourcedReading,
    decoding: Decoding,
    *,
    on_text: Callable[[str], None] | None = None,
    work: "AnswerWork | None" = None,
) -> Target:
    """The answer that the model writes after its prompt.

    Raises UserError if the model writes nothing, and MemoryError if memory runs out.
    """
    if work is not None:
        work.read()
    begin = None if work is None else work.write
    answer = write_answer(pretrained, reading.prompt.ids, decoding, on_text=on_text, on_begin=begin)
    if not answer.ids:
        talks = pretrained.tokenizer.chat_template is not None and not reading.sourced.is_whole
        ways = f'{"use `chat`, " if talks else ""}end the prompt in "Answer:", or give an answer'
        raise UserError(f"answer: {pretrained.name} writes nothing after this prompt: {ways}")
    return answer


WRITTEN_TOKEN = 4.0
"""The cost of writing a token, in tokens of a prompt, which are read together."""


class AnswerWork:
    """Reports the progress of all passes for an answer as a single share, with costs in tokens.

    The model reads the prompt, writes the answer (at most `num_new` tokens, or 0 for a given answer), reads
    the answer, and then reads the prompts without sources.
    """

    def __init__(
        self,
        tell: Callable[[Stage], None],
        reading: SourcedReading,
        num_new: int,
        method: SourceMethod,
        num_runs: int,
    ) -> None:
        self.reading, self.num_prompt, self.num_new = reading, len(reading.prompt.ids), num_new
        num_sources = len(reading.places)
        removals = {"sampled": num_runs, "removal": num_sources, "weights": min(CHECKED, num_sources)}
        self._without = removals[method] * self.num_prompt / 2
        written = self.num_prompt + WRITTEN_TOKEN * num_new if num_new else 0.0
        self._work = Work(tell, written + self.num_prompt + self._without)

    def read(self) -> None:
        """Begin reading the prompt before the answer is written."""
        self._work.begin("reading", float(self.num_prompt), runs=-(-self.num_prompt // LONG_CHUNK))

    def write(self) -> None:
        """Begin writing the answer."""
        self._work.begin("writing", WRITTEN_TOKEN * self.num_new)

    def look(self, replay: Replay) -> None:
        """Begin reading the answer, and the prompt as well unless it is cached."""
        count = len(replay.answer) + (0 if replay.is_read else self.num_prompt)
        self._work.begin("reading the answer", float(count), runs=-(-count // LONG_CHUNK))
        self._work.expect(self._without)

    def remove(self, masks: Bool[Tensor, "run source"], replay: Replay, what: str) -> Iterator[None]:
        """Yield once before each run of the prompt without the sources that a mask removes."""
        before = torch.ones_like(masks[0])
        costs = []
        for mask in masks:
            costs.append(self._tokens_read(mask, before) if replay.shares_prompts else self.num_prompt)
            costs[-1] += len(replay.answer)
            before = mask
        self._work.expect(float(sum(costs)))
        for number, cost in enumerate(costs, start=1):
            self._work.begin(what, float(cost), number, len(costs), runs=-(-cost // LONG_CHUNK))
            yield

    def _tokens_read(self, mask: Bool[Tensor, " source"], before: Bool[Tensor, " source"]) -> int:
        """The number of tokens after the beginning shared with the whole or the previous prompt."""
        shared = [0]
        for other_mask in (torch.ones_like(mask), before):
            differ = (mask != other_mask).nonzero()
            first = int(differ[0]) if len(differ) else len(mask)
            shared.append(self._first_token(first))
        removed = sum(
            len(places)
            for places, is_there in zip(self.reading.places, mask.tolist(), strict=True)
            if not is_there and places and places[0] >= max(shared)
        )
        return max(0, self.num_prompt - max(shared) - removed)

    def _first_token(self, source: int) -> int:
        """The place of the first token in this source and the sources after it."""
        starts = [places[0] for places in self.reading.places[source:] if places]
        return min(starts, default=self.num_prompt)


@dataclass(frozen=True)
class SourceWeights:
    """The weight of the answer's queries on each source, except on the prompt's first token, a common sink.

    `by_head` has the means over tokens of the `heads`; `mean` is the mean over all heads, and `chosen` is the
    mean over the chosen heads, or None if none are chosen.
    """

    heads: list[tuple[str, int, int]]
    by_head: Float[Tensor, "head source"]
    mean: Float[Tensor, "token source"]
    chosen: Float[Tensor, "token source"] | None


def check_heads(pretrained: Pretrained, reading: SourcedReading, heads: Sequence[str]) -> None:
    """Raise UserError for heads that the model does not have, after reading only two tokens of the prompt."""
    if heads:
        first = reading.prompt.ids[:2]
        layers, _ = Replay(pretrained.whole, first, Target(first[:1].tolist())).layers()
        _check_exist(layers, [named_head(name) for name in heads])


def _check_exist(layers: Sequence[CapturedLayer], heads: Sequence[NamedHead]) -> None:
    num_heads = {layer.layer: layer.attention.shape[1] for layer in layers}
    for head in heads:
        if head.head >= num_heads.get(head.layer, 0):
            raise UserError(f"head: {head_range(num_heads)} (got {head.layer}:{head.head})")


def source_weights(
    layers: Sequence[CapturedLayer],
    reading: SourcedReading,
    num_tokens: int,
    heads: Sequence[NamedHead] = (),
    *,
    with_first: bool = False,
) -> SourceWeights:
    """The weights on sources, measured in layers that have the answer's queries.

    The prompt's first token counts only with `with_first`. Raises UserError for chosen heads that do not
    exist.
    """
    _check_exist(layers, heads)
    member = torch.zeros(len(reading.prompt.ids), len(reading.places))
    for source, places in enumerate(reading.places):
        member[[place for place in places if place or with_first], source] = 1.0
    names: list[tuple[str, int, int]] = []
    by_head: list[Tensor] = []
    total = torch.zeros(num_tokens, len(reading.places), dtype=torch.float64)
    chosen = torch.zeros_like(total)
    for layer in layers:
        rows = torch.cat([*_on_sources(layer, member, num_tokens)], dim=1).double().cpu()
        names += [(layer.stack_name, layer.layer, head) for head in range(len(rows))]
        by_head.append(rows.mean(dim=1))
        total += rows.sum(dim=0)
        for head in heads:
            if head.layer == layer.layer:
                chosen += rows[head.head]
    weights = torch.cat(by_head)
    return SourceWeights(names, weights, total / len(weights), chosen / len(heads) if heads else None)


def likeliest(weights: SourceWeights) -> Float[Tensor, " source"]:
    """The score by which sources are chosen for removal: the weight of the chosen heads.

    Without chosen heads, the score is the largest weight of a single head minus the mean over all heads, so
    that the score depends on the few heads that retrieve and not on the many that do not.
    """
    if weights.chosen is not None:
        return weights.chosen.mean(dim=0)
    return weights.by_head.amax(dim=0) - weights.by_head.mean(dim=0)


def _on_sources(
    layer: CapturedLayer, member: Float[Tensor, "key source"], num_tokens: int
) -> Iterator[Float[Tensor, "head token source"]]:
    """Yield the weights on each source, a few tokens at a time; written tokens do not belong to a source."""
    for start in range(0, num_tokens, QUERIES_AT_ONCE):
        part = with_queries(layer, start, min(start + QUERIES_AT_ONCE, num_tokens))
        weights = attend(part.attention, Wanted(weights=True)).weights
        assert weights is not None
        weights = weights[0, ..., : len(member)]
        yield weights @ member.to(weights)


def answer_logits(log_probabilities: Float[Tensor, " run"]) -> Float[Tensor, " run"]:
    """ln p - ln(1 - p) for the probabilities of whole answers."""
    sums = log_probabilities.double().clamp(max=-torch.finfo(torch.float64).eps)
    return sums - torch.log(-torch.expm1(sums))


def lasso_effects(
    masks: Bool[Tensor, "run source"], log_probabilities: Float[Tensor, " run"], num_tokens: int
) -> Float[Tensor, " source"]:
    """The effect of each source on the logit of the answer's probability, ln p - ln(1 - p), by ContextCite.

    The effects are a Lasso fit of the logits per token to standardised masks, with a penalty of 0.01.
    """
    return _fitted(masks, answer_logits(log_probabilities) / num_tokens) * num_tokens


def standardised_effects(
    masks: Bool[Tensor, "run source"], numbers: Float[Tensor, " run"]
) -> Float[Tensor, " source"]:
    """The effect of each source on a number other than a probability, from a fit to standardised numbers."""
    spread = numbers.double().std(correction=0)
    return torch.zeros(masks.shape[1]) if not spread else _fitted(masks, numbers.double() / spread) * spread


def _fitted(masks: Bool[Tensor, "run source"], target: Float[Tensor, " run"]) -> Float[Tensor, " source"]:
    """The Lasso coefficients on standardised masks, converted to the units of the masks."""
    present = masks.double()
    scale = present.std(dim=0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    return lasso((present - present.mean(dim=0)) / scale, target, LASSO_ALPHA) / scale


def lasso(
    columns: Float[Tensor, "row column"],
    target: Float[Tensor, " row"],
    penalty: float,
    *,
    tolerance: float = 1e-10,
) -> Float[Tensor, " column"]:
    """The w that minimises |y - X w|^2 / 2n + penalty |w|_1, where y and the columns of X are centred.

    This uses coordinate descent: Friedman, Hastie & Tibshirani 2010, equation 5.
    """
    # The product of each column with the residual, which every step updates (covariance updates).
    gram = (columns.mT @ columns / len(target)).numpy()
    with_residual = (columns.mT @ (target - target.mean()) / len(target)).numpy()
    weights = [0.0] * len(with_residual)
    used = [(place, square) for place, square in enumerate(gram.diagonal().tolist()) if square]
    for _ in range(MOST_SWEEPS):
        largest = 0.0
        for place, square in used:
            before = weights[place]
            pull = float(with_residual[place]) + square * before
            now = max(abs(pull) - penalty, 0.0) * (1 if pull > 0 else -1) / square
            if now != before:
                with_residual -= gram[place] * (now - before)
                weights[place] = now
                largest = max(largest, abs(now - before))
        if largest <= tolerance:
            break
    return torch.tensor(weights, dtype=columns.dtype)


MOST_SWEEPS = 10_000


@torch.no_grad()
def answer_sources(
    pretrained: Pretrained,
    reading: SourcedReading,
    answer: Target,
    *,
    heads: Sequence[str] = (),
    method: SourceMethod = "weights",
    num_runs: int = 64,
    seed: int = 0,
    work: AnswerWork | None = None,
) -> AnswerSources:
    """Find the sources of an answer that the model wrote or reads.

    The chosen `heads`, such as 18:6, get a weight of their own. `method` is weights, which removes the five
    sources with the highest `likeliest`; removal, which removes each source; or sampled, which fits
    `num_runs` random sets of sources. Raises UserError for heads that the model does not have and for a
    request that the model cannot meet, and MemoryError if memory runs out.
    """
    replay = Replay(pretrained.whole, reading.prompt.ids, answer)
    if work is not None:
        work.look(replay)
    layers, expected = replay.layers()
    chosen = [named_head(name) for name in heads]
    weights = source_weights(layers, reading, len(answer.ids), chosen)
    token_weights = weights.mean if weights.chosen is None else weights.chosen
    num_sources, removals = len(reading.places), SourcesTakenOut(pretrained, reading, replay)
    unknown = torch.full((num_sources,), torch.nan, dtype=torch.float64)
    measured: dict[str, Float[Tensor, " source"]] = {
        "all_heads": weights.mean.mean(dim=0),
        "retrieving_heads": unknown if weights.chosen is None else weights.chosen.mean(dim=0),
    }
    lost = unknown.clone()
    if method == "sampled":
        masks = sampled_masks(num_runs, num_sources, seed)
        log_probabilities = removals.log_probabilities(masks, _removal_progress(work, replay, "sources, set"))
        measured["effect"] = lasso_effects(masks, log_probabilities.sum(dim=1), len(answer.ids))
        token_losses = torch.stack(
            [lasso_effects(masks, token, 1) for token in log_probabilities.unbind(dim=1)]
        )
    else:
        order = likeliest(weights).argsort(descending=True, stable=True)
        removed = order[: num_sources if method == "removal" else CHECKED].sort().values
        masks = torch.ones(len(removed), num_sources, dtype=torch.bool)
        masks[torch.arange(len(removed)), removed] = False
        token_losses = torch.full((len(answer.ids), num_sources), torch.nan, dtype=torch.float64)
        token_losses[:, removed] = (
            expected - removals.log_probabilities(masks, _removal_progress(work, replay, "without source"))
        ).mT
        lost = token_losses.sum(dim=0)
    measured["lost"] = lost
    sources = _ranked_sources(reading, measured)
    return AnswerSources(
        sources=sources,
        tokens=_token_rows(pretrained, answer.ids, reading, token_weights, expected, token_losses),
        rankings=_rankings(measured),
        counts=_counts(sources, reading, expected),
        heads=_head_rows(weights),
        answer=pretrained.text_of(answer.ids),
        ids=answer.ids,
        weights=token_weights.float().numpy(force=True),
        notes=(
            *answer.notes,
            *replay.way.notes(),
            *source_notes(reading.sourced),
            *reading.left_out_notes(),
        ),
    )


def _removal_progress(work: AnswerWork | None, replay: Replay, what: str) -> BeforeEach | None:
    """The progress callback that is called before each run without sources, or None."""
    return None if work is None else lambda masks: work.remove(masks, replay, what)


def _counts(
    sources: Records[RankedSource], reading: SourcedReading, expected: Float[Tensor, " token"]
) -> AnswerCounts:
    return AnswerCounts.single(
        first=sources[0].source,
        sources=len(sources),
        prompt_tokens=len(reading.prompt.ids),
        answer_tokens=len(expected),
        log_probability=float(expected.sum()),
    )


def _ranks(numbers: Float[Tensor, " source"]) -> list[int | None]:
    """Ranks, where 1 is the largest; ties are ranked in order, and NaN gets None."""
    measured_places = [place for place, number in enumerate(numbers.tolist()) if number == number]
    order = sorted(measured_places, key=lambda place: -float(numbers[place]))
    ranks: list[int | None] = [None] * len(numbers)
    for rank, place in enumerate(order, start=1):
        ranks[place] = rank
    return ranks


RANKED_BY = ("lost", "effect", "retrieving_heads", "all_heads")
"""The measurements that rank sources; each source is ranked by its first measurement."""
LEAST_LOST = 0.05
"""The smallest loss, in nats, that assigns a token to a source when that source is removed."""


def _ranked_sources(reading: SourcedReading, measured: Mapping[str, Tensor]) -> Records[RankedSource]:
    """The sources, ranked by their measurements; the sources that have fewer measurements come last."""
    ranks = {name: _ranks(numbers) for name, numbers in measured.items()}
    rows, sourced = [], reading.sourced
    for place, (source, text, tokens) in enumerate(
        zip(sourced.sources, sourced.texts(), reading.places, strict=True)
    ):
        row: dict[str, str | int | float | None] = {"source": place + 1, "name": source.name}
        row |= {"title": source.title, "tokens": len(tokens), "first_token": tokens[0] if tokens else None}
        for name, numbers in measured.items():
            number = float(numbers[place])
            row |= {name: number if number == number else None, f"{name}_rank": ranks[name][place]}
        ranked_by = next(name for name in RANKED_BY if row.get(name) is not None)
        rows.append(row | {"text": text, "ranked_by": ranked_by})
    return RankedSource.rows(rows).sorted(
        lambda row: (RANKED_BY.index(row.ranked_by or ""), row.number(f"{row.ranked_by}_rank") or 0)
    )


def _token_rows(
    pretrained: Pretrained,
    ids: list[int],
    reading: SourcedReading,
    weights: Float[Tensor, "token source"],
    expected: Float[Tensor, " token"],
    measured: Float[Tensor, "token source"],
) -> Records[AnswerToken]:
    rows = []
    first = 0 if pretrained.has_decoder else len(reading.prompt.ids)
    labels, texts = pretrained.labels(ids), written_pieces(pretrained, ids)
    for place, (label, text) in enumerate(zip(labels, texts, strict=True)):
        most, total = weights[place].max(dim=0), float(weights[place].sum())
        is_clear = 2 * float(most.values) > total > 0
        gains = measured[place].nan_to_num().clamp(min=0)
        gain = float(gains.max())
        is_measured = gain >= LEAST_LOST and 2 * gain > float(gains.sum())
        rows.append(
            {
                "token": label,
                "text": text,
                "position": first + place,
                "source": int(most.indices) + 1 if is_clear else None,
                "weight": float(most.values),
                "log_probability": float(expected[place]),
                "measured_source": int(gains.argmax()) + 1 if is_measured else None,
                "measured": gain,
            }
        )
    return AnswerToken.rows(rows)


def written_pieces(pretrained: Pretrained, ids: list[int]) -> list[str]:
    """The text of each token; if several tokens form one character, the last token has that character."""
    pieces, before = [], ""
    for end in range(1, len(ids) + 1):
        text = pretrained.text_of(ids[:end])
        is_whole = not text.endswith("\ufffd") or end == len(ids)
        pieces.append(text[len(before) :] if is_whole else "")
        before = text if is_whole else before
    return pieces


def _rankings(measured: Mapping[str, Tensor]) -> Records[SourceRanking]:
    """The agreement of the weights with the loss, or with the effect in the fit."""
    reference = "effect" if "effect" in measured else "lost"
    is_measured = ~measured[reference].isnan()
    rows: list[dict[str, str | int | float]] = []
    for name in ("all_heads", "retrieving_heads"):
        weights, expected = measured[name][is_measured], measured[reference][is_measured]
        if not weights.isnan().any():
            rows.append(
                {
                    "ranking": name,
                    "predicts": reference,
                    "removed": int(is_measured.sum()),
                    "spearman": float(rank_correlation(weights, expected)),
                    "first_right": int(weights.argmax() == expected.argmax()),
                }
            )
    return SourceRanking.rows(rows)


def _head_rows(weights: SourceWeights) -> Records[HeadOnSources]:
    """One row per head, with its weight on all sources and its strongest source."""
    return HeadOnSources.rows(
        {
            "stack": stack,
            "layer": layer,
            "head": head,
            "weight": float(row.sum()),
            "source": int(row.argmax()) + 1,
            "source_weight": float(row.max()),
        }
        for (stack, layer, head), row in zip(weights.heads, weights.by_head, strict=True)
    )


def source_notes(sourced: SourcedText) -> Iterator[str]:
    """Notes on a question at the end of a text, and on sources with identical text."""
    if sourced.asking:
        asking = " ".join(sourced.asking.split())
        yield f'"{asking}" is read as the question; to make it a source, mark it with <source>...</source>.'
    alike: dict[str, list[str]] = {}
    for source, text in zip(sourced.sources, sourced.texts(), strict=True):
        alike.setdefault(text, []).append(source.name)
    for names in alike.values():
        if len(names) > 1:
            yield f"{', '.join(names)} have the same text, so each can replace another that is removed."
