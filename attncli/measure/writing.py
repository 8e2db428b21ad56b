"""What a model reads before it writes, and the rows of every head that chose each new token."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attncli.core.engines import attend
from attncli.core.formulas import PromptedRows, Rows, load_formula, retrieval_score, top_keys
from attncli.core.layer import AttentionLayer, Wanted
from attncli.core.names import OF_WEIGHTS, OF_WRITTEN_KEYS, ROW_STATISTICS, WRITING, head_range
from attncli.core.row_tiles import GivenWeights
from attncli.errors import UserError
from attncli.measure.answers import AnswerTokens, answer_forms, likelier_form
from attncli.models.capture import Way
from attncli.models.chat_places import Span, placed_chat
from attncli.models.layers import CannotShow, CapturedLayer
from attncli.models.picture_reading import picture_in_chat_template, read_picture_to_write
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.replay import Replay, rows_of_tokens
from attncli.models.writing import Decoding, OnToken, in_chat_template, write

SENTENCE_ENDS = (". ", "! ", "? ", ".\n", "!\n", "?\n", "\n")


@dataclass(frozen=True)
class Prompt(Reading):
    """With a decoder the prompt goes to the encoder; `needle` are the places of the needle in the prompt.

    `answer` are the tokens that the model reads after it, where it is not to write; `notes` say what was done
    to them.
    """

    needle: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def prompt(self) -> ModelText:
        """What was given."""
        return self.context or self.text


def read_prompt(
    pretrained: Pretrained,
    text: str,
    *,
    max_new_tokens: int = 24,
    answer: str | None = None,
    question: str | None = None,
    chat: bool = False,
    needle: str | tuple[int, int] | None = None,
    needle_depth: float | None = None,
    length: int | None = None,
    truncate: bool = False,
    key: str = "text",
) -> Prompt:
    """The prompt as a model reads it: a text, with a question below it, in the model's chat template.

    With an `answer`, which the model is to read after it, as many places stay free as that has tokens. The
    needle is looked for in it, by its text (in a chat in the message alone) or by its first token and the one
    after its last. With
    `needle_depth` its text is put there first (0 is the start, 1 the end), into as much of the text as makes
    `length` tokens with it. UserError, which names `key`, for what does not fit, and a needle that is not
    there.
    """
    if needle_depth is not None:
        assert isinstance(needle, str)
        text = _with_needle(text, needle, needle_depth, length, key, pretrained)
    if question is not None:
        text = f"{text.rstrip()}\n\n{question}"
    messages = [Span(0, len(text))]
    if chat and isinstance(needle, str):
        text, messages = _placed_message(text, pretrained)
    elif chat:
        text = in_chat_template(text, pretrained)
    forms = [] if answer is None else answer_forms(pretrained, answer)
    ids = max((form.ids for form in forms), key=len, default=[])
    num_new = 0 if pretrained.has_decoder else (len(ids) or max_new_tokens) - 1
    most = pretrained.most_tokens()
    if ids and most is not None and num_new >= most:
        raise UserError(f"answer: must be at most {most} tokens for {pretrained.name} (got {len(ids)})")
    if most is not None and num_new >= most:
        raise UserError(
            f"max_new_tokens: must be at most {most} for {pretrained.name} (got {max_new_tokens})"
        )
    if isinstance(needle, str):
        _check_spans(pretrained)
    read = pretrained.read(
        text, key, truncate=truncate, num_new=num_new, is_whole=chat, with_spans=isinstance(needle, str)
    )
    places = () if needle is None else _needle_places(needle, text, messages, read)
    chosen = likelier_form(pretrained, forms, read.ids) if forms else AnswerTokens([])
    prompt = Prompt(read, needle=places, answer=tuple(chosen.ids), notes=chosen.notes)
    if not pretrained.has_decoder:
        return prompt
    return replace(prompt, text=replace(read, tokens=(), ids=read.ids[:0]), context=read)


def read_picture_prompt(
    pretrained: Pretrained,
    file: str | PathLike[str],
    text: str = "",
    *,
    max_new_tokens: int = 24,
    question: str | None = None,
    chat: bool = False,
) -> Prompt:
    """A picture and a text, in the model's chat template where asked for, as a model reads both that writes.

    UserError for a model that reads no picture beside a text, and for what does not fit.
    """
    if question is not None:
        text = f"{text.rstrip()}\n\n{question}".strip()
    if chat:
        text = picture_in_chat_template(text, pretrained)
    whole = replace(pretrained, model=pretrained.whole)
    reading = read_picture_to_write(whole, file, text, is_whole=chat)
    most, count = pretrained.most_tokens(), len(reading.text.ids)
    if reading.context is None and most is not None and count + max_new_tokens - 1 > most:
        got = f"{count} tokens of the picture and the text, and {max_new_tokens} new ones"
        raise UserError(f"max_new_tokens: {pretrained.name} has places for {most} tokens (got {got})")
    return Prompt(reading.text, reading.context, inputs=reading.inputs, part=reading.part)


def _placed_message(text: str, pretrained: Pretrained) -> tuple[str, list[Span]]:
    """A text as a message in the model's chat template, and where it stands there.

    UserError where that is not known: of a template that changes what it is given.
    """
    placed = placed_chat([{"role": "user", "content": text}], pretrained)
    ((spans,),) = placed.parts
    if not spans:
        message = "does not show the message as it is: give token positions, as 12:20"
        raise UserError(f"needle: the chat template of {pretrained.name} {message}")
    return placed.text, spans


def _needle_places(
    sought: str | tuple[int, int], text: str, messages: Sequence[Span], read: ModelText
) -> tuple[int, ...]:
    """The places of the needle's tokens: those that hold a character of it where it first occurs in one of
    the messages, whose characters in the text are given.
    """
    if isinstance(sought, tuple):
        if sought[1] > len(read.ids):
            got = f"(got {sought[0]}:{sought[1]})"
            raise UserError(f"needle: must end at {len(read.ids)}, the number of tokens, or before {got}")
        return tuple(range(*sought))
    starts = (text.find(sought, *message) for message in messages)
    start = next((start for start in starts if start >= 0), -1)
    if start < 0:
        raise UserError(f"needle: is not in the prompt as it stands (got {sought:.60})")
    end = start + len(sought)
    assert read.spans is not None
    found = tuple(i for i, (first, last) in enumerate(read.spans) if max(first, start) < min(last, end))
    # Special tokens cover no characters.
    kept = [place for first, last in read.spans if first < last for place in (first, last)]
    needle = text[max(start, min(kept, default=0)) : min(end, max(kept, default=0))]
    if not found or (read.left_out and sought.strip() not in needle):
        raise UserError("needle: is in the part of the text that was cut off")
    return found


def _check_spans(pretrained: Pretrained) -> None:
    """UserError for a tokenizer that does not say which characters a token covers."""
    if not pretrained.tokenizer.is_fast:
        message = "does not say which characters a token covers: give token positions, as 12:20"
        raise UserError(f"needle: {pretrained.name} {message}")


def _spans(text: str, pretrained: Pretrained) -> Sequence[tuple[int, int]]:
    """The characters of each token, without special ones."""
    _check_spans(pretrained)
    read = pretrained.encoded(
        text, return_offsets_mapping=True, add_special_tokens=False, padding=False, truncation=False
    )
    spans: list[tuple[int, int]] = read["offset_mapping"]
    return spans


def _with_needle(
    text: str, needle: str, depth: float, length: int | None, key: str, pretrained: Pretrained
) -> str:
    """The text, cut where asked for, with the needle after the sentence that ends at or before that share."""
    text = text.strip()
    if length is not None:
        spans = _spans(text, pretrained)
        room = length - len(_spans(needle, pretrained))
        if not 0 < room <= len(spans):
            needed = f"{len(spans)} tokens and the needle {length - room}"
            raise UserError(f"lengths: the {key} has {needed}: {length} cannot be made of them")
        text = text[: spans[room - 1][1]]
    place = round(depth * len(text))
    if place < len(text):
        place = max((text.rfind(end, 0, place) + len(end) for end in SENTENCE_ENDS), default=0)
        place = place if place > max(map(len, SENTENCE_ENDS)) else 0
    parts = text[:place].rstrip(), needle, text[place:].lstrip()
    return " ".join(filter(None, parts))


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
    """The rows of one new token: numbers (layer, head) by statistic, NaN where a layer has fewer heads.

    One key more is kept than is asked for, so that there are enough beside the first.
    """

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
            num_heads = {layer.layer: layer.attention.shape[1] for layer in layers}
            if self.head is not None:
                raise UserError(f"head: {head_range(num_heads)} (got {self.layer}:{self.head})")
            known = f"from {min(num_heads)} to {max(num_heads)}"
            raise UserError(f"layer: must be {known} (got {self.layer})")
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
                known = head_range({place.layer: place.num_heads for place in self.places})
                raise UserError(f"head: {known} (got {self.layer}:{self.head})")
        self.tokens.append(self._rows(token, own))

    @property
    def statistic_names(self) -> tuple[str, ...]:
        """What is measured: positions compare in self-attention alone, a needle is there where asked for."""
        rows = [name for name in OF_WEIGHTS if not (self.is_cross and ROW_STATISTICS[name].positional)]
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
        num_keys, ranks = weights.shape[-1], self.top_k + 1
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

    def token_rows(
        self, labels: Sequence[str], first_query: int, *, best: tuple[int, int] | None = None
    ) -> list[dict[str, Any]]:
        """For each token, the position of the query that chose it and the keys that it looked at.

        By the mean row of the heads, or by that of the `best` one, a place and a head in it; the first key,
        where sinks are, has a column of its own.
        """
        table = []
        for number, (one, label) in enumerate(zip(self.tokens, labels, strict=True)):
            row: dict[str, Any] = {"token": label, "position": first_query + number}
            if best is None:
                first, (keys, weights) = one.mean[0], _top_beside_first(one.mean, self.top_k)
            else:
                row["head"] = f"{self.places[best[0]].layer}:{(self.head or 0) + best[1]}"
                first = one.statistics["sink_mass"][best]
                keys, weights = _beside_first(one.top_keys[best], one.top_weights[best], self.top_k)
            row |= {"first_key": float(first), "keys": keys, "weights": weights}
            for name in ("prompt_mass", "written_mass", "needle_mass"):
                if name in one.statistics:
                    of_heads = one.statistics[name]
                    row[name] = float(torch.nanmean(of_heads) if best is None else of_heads[best])
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


def _beside_first(keys: Tensor, weights: Tensor, count: int) -> tuple[list[int | None], list[float | None]]:
    """Of one key more than the count, largest weight first, those that are not the first key."""
    found = [(key, weight) for key, weight in zip(keys.tolist(), weights.tolist(), strict=True) if key > 0]
    top = [*found, *[(None, None)] * count][:count]
    return [key for key, _ in top], [weight for _, weight in top]


@dataclass(frozen=True)
class Writing:
    """What a model wrote after a prompt, and where each head looked meanwhile.

    `is_unfinished` where Ctrl-C ended it; the `log_probabilities` are those of an answer that it read.
    """

    prompt: Prompt
    rows: WrittenRows
    way: Way
    is_unfinished: bool = False
    log_probabilities: Float[Tensor, " token"] | None = None

    @property
    def tokens(self) -> list[int]:
        """The new tokens."""
        return [one.token for one in self.rows.tokens]

    @cached_property
    def retrieval(self) -> tuple[Float[Tensor, "layer head"], int]:
        """The retrieval score of each head, and how many tokens were copied from the needle."""
        strongest = torch.stack([one.strongest for one in self.rows.tokens], dim=-1)
        ids, in_needle = self.rows.keys_after(len(self.tokens) - 1)
        return retrieval_score(strongest, torch.tensor(self.tokens), ids, in_needle)

    @cached_property
    def best_head(self) -> tuple[int, int] | None:
        """The place of the head with the largest retrieval score, among equals the most weight on the needle.

        None where no needle is looked for.
        """
        if not self.prompt.needle:
            return None
        masses = torch.stack([one.statistics["needle_mass"] for one in self.rows.tokens]).nanmean(dim=0)
        scores = self.retrieval[0].nan_to_num(nan=-1.0).to(masses)
        ranking = torch.where(scores == scores.max(), masses, -1.0).nan_to_num(nan=-1.0)
        place, head = divmod(int(ranking.argmax()), ranking.shape[-1])
        return place, head


def writing(
    pretrained: Pretrained,
    prompt: Prompt,
    decoding: Decoding,
    *,
    layer: int | None = None,
    head: int | None = None,
    top_k: int = 3,
    keeps_heads: bool = False,
    on_text: Callable[[str], None] | None = None,
) -> Writing:
    """The model continues a prompt, or reads the answer after it (teacher forcing).

    The rows of every head are kept, or of one layer, or of one head in it.

    `on_text` gets what is written as it comes, whole characters alone; where it is given Ctrl-C ends the
    writing, and what was written until then counts. With `keeps_heads` the weights of each head are kept, up
    to 128 keys. UserError for what the model cannot do, and a layer or head that it lacks; MemoryError.
    """
    special = torch.tensor(sorted(pretrained.special_ids - pretrained.unknown_ids), dtype=torch.long)
    rows = WrittenRows(
        prompt.prompt.ids,
        special,
        needle=prompt.needle,
        is_cross=prompt.context is not None,
        layer=layer,
        head=head,
        top_k=top_k,
        keeps_heads=keeps_heads,
    )
    if prompt.answer:
        replay = Replay(pretrained.whole, prompt.prompt.ids, torch.tensor(prompt.answer))
        layers, found = replay.layers()
        for token, of_token in zip(prompt.answer, rows_of_tokens(layers, len(prompt.answer)), strict=True):
            rows.take(token, of_token)
        return Writing(prompt, rows, replay.way, log_probabilities=found)
    if prompt.inputs is None:
        ids = prompt.prompt.ids.unsqueeze(0).to(pretrained.model.device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    else:
        inputs = pretrained.inputs([prompt])
    take = rows.take if on_text is None else _with_text(rows, pretrained, on_text)
    try:
        way = write(pretrained.whole, inputs, decoding, take, pretrained.tokenizer)
    except KeyboardInterrupt:
        if on_text is None or not rows.tokens:
            raise
        return Writing(prompt, rows, Way("interface"), is_unfinished=True)
    return Writing(prompt, rows, way)


def _with_text(rows: WrittenRows, pretrained: Pretrained, on_text: Callable[[str], None]) -> OnToken:
    """Keeps the rows of each token, and hands over its text."""
    shown = ""

    def take(token: int, layers: Sequence[CapturedLayer]) -> None:
        nonlocal shown
        rows.take(token, layers)
        text = pretrained.text_of([one.token for one in rows.tokens])
        if not text.endswith("\ufffd"):
            on_text(text[len(shown) :])
            shown = text

    return take


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
