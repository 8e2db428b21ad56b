"""Word times in a recording, from cross-attention heads, and the heads that time words best."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from string import punctuation
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from transformers.modeling_outputs import BaseModelOutput

from attncli.errors import UserError
from attncli.features.sound.reading import (
    HeardSound,
    most_written,
    num_before_words,
    published_heads,
    read_sound,
)
from attncli.features.sound.windows import SpokenWindow
from attncli.features.words.results import AligningHead, AligningHeads, SpokenWord, SpokenWords
from attncli.models.capture import check_computed_here, run_model
from attncli.models.digests import cache_folder, content_digest
from attncli.models.layers import CapturedLayer
from attncli.models.patched_heads import is_patched
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.system.plain_text import counted, parsed_json

MEDIAN_WIDTH = 7
"""The width of openai-whisper's median filter, in frames."""
FILTER_WIDTH, FILTERED_HEADS = 3, 10
"""Settings of the filter of 2509.09987: width of its median filter in frames, and heads selected per
sound.
"""
NUM_BEST = 8
"""The number of best heads that are used together, which is as many as Whisper publishes."""
OPENING = "\"'\u201c\u00bf([{-"
CLOSING = "\"'.\u3002,\uff0c!\uff01?\uff1f:\uff1a\u201d)]}\u3001"
"""Marks that belong to the following or the preceding word, as in openai-whisper."""
SPEECH = Path(__file__).parents[2] / "data" / "speech"
DAMAGED = "\ufffd"
"""Replaces bytes that form no character, for example if a character is split between two tokens."""
UNSPACED_LETTERS = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x3040, 0x30FF), (0x3400, 0x9FFF))
"""The letters of languages without spaces between words: Thai and Lao, Burmese, kana, Han."""

Head = tuple[int, int]


class TimedSpeech(NamedTuple):
    """A sound, its transcript, and the beginnings of its words in seconds."""

    file: str
    text: str
    begins: tuple[float, ...]


def shipped_speech() -> list[TimedSpeech]:
    """The fifteen shipped sentences by espeak-ng, with known times and silence between the words."""
    times = parsed_json((SPEECH / "times.json").read_text(encoding="utf-8"))
    return [
        TimedSpeech(
            str(SPEECH / f"{name}.ogg"), entry["text"], tuple(begin for _, begin, _ in entry["words"])
        )
        for name, entry in times.items()
        if name != "hello"
    ]


@dataclass(frozen=True)
class SpokenWeights:
    """The cross-attention weights between the tokens of words and the frames of a sound.

    `weights` start at the last token before the words and end with the final token: row n shows where the
    model looked when it wrote token n of `ids`. The weights are renormalised over the frames of the sound.
    `probabilities` has the probabilities of the tokens, and `encoded` is the encoder's output.
    """

    ids: tuple[int, ...]
    weights: Mapping[Head, Float[Tensor, "row frame"]]
    first_row: int
    probabilities: Float[Tensor, " token"]
    seconds: float
    step: float
    encoded: Float[Tensor, "1 place dim"]


def spoken_weights(
    pretrained: Pretrained, reading: Reading, encoded: Float[Tensor, "1 place dim"] | None = None
) -> SpokenWeights:
    """The weights of every cross-attention head on a sound, for the words of a reading and the end token.

    If `encoded` is known, the encoder does not run. Raises UserError for a model without a decoder, or one
    whose attention is not accessible.
    """
    heard = reading.origin
    if not isinstance(heard, HeardSound) or reading.context is None:
        raise UserError(f"sound: {pretrained.name} has no decoder, so no head can time words")
    if pretrained.with_head is None:
        raise UserError(f"sound: {pretrained.name} has no language-modelling head, so it cannot write text")
    num_before = num_before_words(pretrained)
    end = getattr(pretrained.whole.generation_config, "eos_token_id", None)
    end = end[0] if isinstance(end, list) else end
    ids = torch.cat([reading.text.ids, torch.tensor([end or 0])])
    ended = replace(
        reading,
        text=ModelText((*reading.text.tokens, "end"), ids),
        inputs={**(reading.inputs or {}), "decoder_input_ids": ids.unsqueeze(0).to(pretrained.device)},
    )
    num_frames = max(1, int(heard.seconds / heard.step + 1e-6))
    rows: dict[Head, Tensor] = {}

    def take(layer: CapturedLayer) -> None:
        if layer.kind == "cross":
            for head, weights in enumerate(layer.weights()[0, :, :, :num_frames].float()):
                rows[layer.layer, head] = weights / weights.sum(dim=-1, keepdim=True)

    inputs = pretrained.inputs([ended])
    check_computed_here(pretrained.whole, inputs)
    if encoded is not None and not is_patched(pretrained.whole):
        del inputs[pretrained.whole.main_input_name]
        inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=encoded)  # type: ignore[assignment]
    with torch.no_grad():
        outputs = run_model(pretrained.whole, inputs, take)
    logits = outputs.logits[0]
    spoken = ids[num_before:-1]
    most = end if isinstance(end, int) and end > max(spoken.tolist(), default=0) else logits.shape[-1]
    probabilities = logits[num_before - 1 : -2, :most].float().softmax(dim=-1)
    token_probabilities = probabilities[torch.arange(len(spoken)), spoken.to(probabilities.device)]
    return SpokenWeights(
        tuple(spoken.tolist()),
        rows,
        num_before - 1,
        token_probabilities.cpu(),
        heard.seconds,
        heard.step,
        outputs.encoder_last_hidden_state,
    )


def median_filtered(
    weights: Float[Tensor, "... frame"], width: int = MEDIAN_WIDTH
) -> Float[Tensor, "... frame"]:
    """The median of `width` numbers around each number, with ends mirrored; short rows are unchanged."""
    half = width // 2
    if weights.shape[-1] <= half:
        return weights
    padded = pad(weights, (half, half), mode="reflect")
    return padded.unfold(-1, width, 1).sort()[0][..., half]


def warped(cost: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The path of least cost through (row, frame), from the first to the last, by dynamic time warping.

    A step moves to the next row, the next frame, or both; ties move along the frames. The path is computed
    diagonal by diagonal, since the entries of a diagonal are independent, and in float32 as in
    openai-whisper, so that ties come out the same.
    """
    num_rows, num_frames = cost.shape
    total = np.full((num_rows + 1, num_frames + 1), np.inf, dtype=np.float32)
    trace = np.full((num_rows + 1, num_frames + 1), 2, dtype=np.int8)
    total[0, 0] = 0
    for diagonal in range(2, num_rows + num_frames + 1):
        rows = np.arange(max(1, diagonal - num_frames), min(num_rows, diagonal - 1) + 1)
        frames = diagonal - rows
        both, down, along = (
            total[rows - 1, frames - 1],
            total[rows - 1, frames],
            total[rows, frames - 1],
        )
        is_both, is_down = (both < down) & (both < along), (down < both) & (down < along)
        before = np.where(is_both, both, np.where(is_down, down, along))
        total[rows, frames] = cost[rows - 1, frames - 1] + before
        trace[rows, frames] = np.where(is_both, 0, np.where(is_down, 1, 2))
    trace[0, :], trace[:, 0] = 2, 1
    row, frame, path = num_rows, num_frames, []
    while row > 0 or frame > 0:
        path.append((row - 1, frame - 1))
        step = trace[row, frame]
        row, frame = row - (step != 2), frame - (step != 1)
    rows, frames = np.array(path[::-1]).T
    return rows, frames


def token_begins(spoken: SpokenWeights, heads: Sequence[Head]) -> NDArray[np.float64]:
    """The beginning of each token, and the end of the last, in seconds, from the mean of these heads.

    As in openai-whisper's find_alignment: standardise each head's weights over the tokens, apply a median
    filter, average the heads, and warp.
    """
    weights = torch.stack([spoken.weights[head] for head in heads])
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    weights = median_filtered(((weights - mean) / deviation).nan_to_num(0.0))
    return _begins_on_path(spoken, weights.mean(dim=0))


def _begins_on_path(spoken: SpokenWeights, matrix: Float[Tensor, "row frame"]) -> NDArray[np.float64]:
    """The times, in seconds, at which the warping path enters each token's row, and the end."""
    rows, frames = warped(-matrix[spoken.first_row : -1].double().cpu().numpy())
    is_new = np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)
    return np.asarray((frames[is_new] * spoken.step).round(6))


def concentration(weights: Float[Tensor, "row frame"]) -> float:
    """The sum of the norms of the columns and rows, which is large if each token looks at few frames.

    Yeh et al. 2025, Whisper has an internal word aligner (2509.09987).
    """
    return float(weights.norm(dim=-2).sum() + weights.norm(dim=-1).sum())


def filtered_begins(
    spoken: SpokenWeights, count: int = FILTERED_HEADS
) -> tuple[NDArray[np.float64], list[Head]]:
    """The beginning of each token, and the end, in seconds, from the most concentrated heads, and these
    heads.

    This follows the authors of 2509.09987, who feed characters: apply a median filter of FILTER_WIDTH,
    normalise the `count` most concentrated heads by their columns' norms over the tokens, average them, and
    warp. Their filter precedes the softmax, which changes only the sums of rows, not the medians.
    """
    filtered = {}
    for head, weights in spoken.weights.items():
        smooth = median_filtered(weights, FILTER_WIDTH)
        filtered[head] = smooth / smooth.sum(dim=-1, keepdim=True)
    heads = sorted(filtered, key=lambda head: -concentration(filtered[head]))[:count]
    by_norms = [filtered[head] / filtered[head].norm(dim=-2, keepdim=True) for head in heads]
    return _begins_on_path(spoken, torch.stack(by_norms).nan_to_num(0.0).mean(dim=0)), heads


def read_by_characters(
    pretrained: Pretrained, reading: Reading, words: Sequence[str]
) -> tuple[Reading, list[tuple[int, int]]] | None:
    """The reading with its words spelled as single characters, and the range of each word's tokens.

    As in 2509.09987, there is no punctuation, and there is a space between words. The authors count that
    space, in which the path waits during silence, as part of the next word, because they measure the ends of
    words; here, it belongs to neither word. The result is None if there are no characters, or more than the
    decoder can read.
    """
    num_before = num_before_words(pretrained)
    ids, spans = list[int](), list[tuple[int, int]]()
    for word in words:
        letters = [char for char in word.strip() if char == "'" or char not in punctuation]
        if letters and ids and word.startswith(" "):
            ids += pretrained.encoded(" ", add_special_tokens=False)["input_ids"]
        begin = len(ids)
        for char in letters:
            ids += pretrained.encoded(char, add_special_tokens=False)["input_ids"]
        spans.append((begin, len(ids)))
    most = most_written(pretrained)
    if not ids or (most is not None and num_before + len(ids) + 1 > most):
        return None
    whole = torch.cat([reading.text.ids[:num_before], torch.tensor(ids)])
    text = ModelText(pretrained.labels(whole.tolist()), whole)
    return replace(reading, text=text), spans


def token_words(pretrained: Pretrained, ids: Sequence[int]) -> list[tuple[str, int]]:
    """Split tokens into words at spaces and punctuation, with each word's number of tokens.

    In languages without spaces, each character is a word, unless one token contains several characters.
    """
    pieces: list[tuple[str, int]] = []
    pending: list[int] = []
    whole, place = _spelled(pretrained, ids), 0
    for number in ids:
        pending.append(number)
        text = _spelled(pretrained, pending)
        damaged = place + text.find(DAMAGED)
        if (
            DAMAGED not in text or whole[damaged : damaged + 1] == DAMAGED
        ):  # the model itself writes this character
            pieces.append((text, len(pending)))
            place += len(text)
            pending = []
    if pending:
        pieces.append((_spelled(pretrained, pending), len(pending)))
    words: list[tuple[str, int]] = []
    for text, count in pieces:
        begins = text.startswith(" ") or text.strip() in punctuation or not words
        if begins or _is_unspaced(text) or _is_unspaced(words[-1][0]):
            words.append((text, count))
        else:
            before, several = words[-1]
            words[-1] = before + text, several + count
    return words


def _spelled(pretrained: Pretrained, ids: Sequence[int]) -> str:
    labels = pretrained.labels(ids)
    if pretrained.token_spelling == "metaspace":
        return "".join(labels).replace("▁", " ")
    text: str = pretrained.tokenizer.convert_tokens_to_string([*labels])
    return text


def _is_unspaced(text: str) -> bool:
    """True if a text contains letters of a language without spaces between words."""
    return any(first <= ord(char) <= last for char in text for first, last in UNSPACED_LETTERS)


def joined_marks(rows: list[tuple[str, float, float, float]]) -> list[tuple[str, float, float, float]]:
    """Join punctuation to words without changing the words' times, as openai-whisper does."""
    joined: list[tuple[str, float, float, float]] = []
    waiting = ""
    for word, begin, end, probability in rows:
        stripped = word.strip()
        if joined and not waiting and stripped and word in CLOSING and not word.startswith(" "):
            before, *times = joined[-1]
            joined[-1] = (before + word, times[0], times[1], times[2])
        elif word.startswith(" ") and stripped and stripped in OPENING:
            waiting += word
        else:
            joined.append((waiting + word, begin, end, probability))
            waiting = ""
    if waiting and joined:
        joined.append((waiting, *rows[-1][1:]))
    return joined


def spoken_words(
    pretrained: Pretrained,
    reading: Reading,
    heads: str | Sequence[Head] = "model",
    encoded: Float[Tensor, "1 place dim"] | None = None,
) -> SpokenWords:
    """The words of a sound, with their beginnings and ends in seconds.

    `heads` selects the heads in the model's generation_config.json (model), those found earlier on speech
    with known times (found), the most concentrated heads (filter; Yeh et al. 2025), or explicit heads. If
    `encoded`, the encoder's output, is known, the encoder does not run again. Raises UserError if there are
    no such heads, or for heads that the model lacks.
    """
    spoken = spoken_weights(pretrained, reading, encoded)
    if heads == "filter":
        words, chosen, how = _words_by_filter(pretrained, reading, spoken)
    else:
        chosen, how = _chosen_heads(pretrained, spoken, heads)
        words = joined_marks(_words_in_time(pretrained, spoken, chosen))
    return _in_seconds(
        words,
        chosen,
        f"times by {how}",
        seconds=spoken.seconds,
        step=spoken.step,
        notes=reading.left_out_notes(),
    )


def window_words(
    pretrained: Pretrained,
    windows: Iterable[SpokenWindow],
    seconds: float,
    heads: str | Sequence[Head] = "model",
    notes: Sequence[str] = (),
) -> SpokenWords:
    """The words of a recording that is read in windows, each timed as by `spoken_words`.

    The most concentrated heads (filter) are chosen per window; the result names the heads of the last window.
    Raises UserError as `spoken_words` does, and if no window has words.
    """
    words: list[tuple[str, float, float, float]] = []
    chosen, how, step, num_windows = list[Head](), "", 0.0, 0
    for window in windows:
        num_windows += 1
        spoken = spoken_weights(pretrained, window.reading, window.encoded)
        step = spoken.step
        if heads == "filter":
            words_in_window, chosen, how = _words_by_filter(pretrained, window.reading, spoken)
        else:
            if not chosen:
                chosen, how = _chosen_heads(pretrained, spoken, heads)
            words_in_window = joined_marks(_words_in_time(pretrained, spoken, chosen))
        words += (
            (word, window.begin + begin, window.begin + end, probability)
            for word, begin, end, probability in words_in_window
        )
    if not words:
        raise UserError(f"sound: {pretrained.name} found no words in the sound")
    how = f"{counted(num_windows, 'window')}; times by {how}"
    return _in_seconds(words, chosen, how, seconds=seconds, step=step, notes=notes)


def _words_in_time(
    pretrained: Pretrained, spoken: SpokenWeights, heads: Sequence[Head]
) -> list[tuple[str, float, float, float]]:
    """The words with their beginnings, ends and probabilities; punctuation is separate."""
    begins, rows, place = token_begins(spoken, heads), list[tuple[str, float, float, float]](), 0
    for word, count in token_words(pretrained, spoken.ids):
        probability = float(spoken.probabilities[place : place + count].mean())
        rows.append((word, float(begins[place]), float(begins[place + count]), probability))
        place += count
    return rows


def _words_by_filter(
    pretrained: Pretrained, reading: Reading, spoken: SpokenWeights
) -> tuple[list[tuple[str, float, float, float]], list[Head], str]:
    """The words with times from the character filter of 2509.09987, the heads, and a description."""
    how = "the most concentrated heads on characters (2509.09987)"
    pieces, place = list[tuple[str, float, float, float]](), 0
    for word, count in token_words(pretrained, spoken.ids):
        pieces.append((word, 0.0, 0.0, float(spoken.probabilities[place : place + count].mean())))
        place += count
    joined = joined_marks(pieces)
    by_characters = read_by_characters(pretrained, reading, [word for word, *_ in joined])
    if by_characters is None:
        begins, heads = filtered_begins(spoken)
        in_tokens = joined_marks(_words_in_time(pretrained, spoken, heads))
        return (
            in_tokens,
            heads,
            (
                "the most concentrated heads on tokens (2509.09987), because the characters "
                "exceed the decoder's limit"
            ),
        )
    begins, heads = filtered_begins(spoken_weights(pretrained, by_characters[0], spoken.encoded))
    words = [
        (word, float(begins[first]), float(begins[last]), probability)
        for (word, _, _, probability), (first, last) in zip(joined, by_characters[1], strict=True)
    ]
    return words, heads, how


def _in_seconds(
    words: Sequence[tuple[str, float, float, float]],
    heads: Sequence[Head],
    how: str,
    *,
    seconds: float,
    step: float,
    notes: Sequence[str],
) -> SpokenWords:
    names = tuple(f"{layer}:{head}" for layer, head in heads)
    by_heads = f"{how[0].upper()}{how[1:]}: {', '.join(names)}"
    return SpokenWords(
        words=SpokenWord.rows(
            {
                "word": word.strip(),
                "begin": begin,
                "end": end,
                "probability": probability,
                "after_blank": word.startswith(" "),
            }
            for word, begin, end, probability in words
        ),
        seconds=seconds,
        step=step,
        aligned_by=names,
        notes=(f"{by_heads}; dynamic time warping, in steps of {step:g} s.", *notes),
    )


def _chosen_heads(
    pretrained: Pretrained, spoken: SpokenWeights, heads: str | Sequence[Head]
) -> tuple[list[Head], str]:
    """The heads that time words, and a description of the choice."""
    if not isinstance(heads, str):
        for head in heads:
            if head not in spoken.weights:
                layers, counts = zip(*spoken.weights, strict=True)
                allowed = f"from 0:0 to {max(layers)}:{max(counts)} in {pretrained.name}"
                raise UserError(f"by: must be cross-attention heads, {allowed} (got {head[0]}:{head[1]})")
        return [*heads], "explicit heads"
    if heads == "model" and (published := published_heads(pretrained)):
        return published, "the heads in the model's generation_config.json"
    if saved := saved_heads(pretrained):
        return saved, "the saved heads, found on speech with known times"
    lacking = "publishes no alignment heads" if heads == "model" else "has no saved heads"
    raise UserError(f"by: {pretrained.name} {lacking}: run `find_heads`, or set `by` to filter")


def rank_heads(
    pretrained: Pretrained,
    speech: Sequence[TimedSpeech],
    progress: Callable[[float], None] | None = None,
) -> AligningHeads:
    """Rank the cross-attention heads by the median error of the word beginnings that each head finds.

    The first NUM_BEST heads are saved in the user's cache, under the digest of the model's weights.
    """
    errors: dict[Head, list[float]] = {}
    scores: dict[Head, float] = {}
    measured, published = list[tuple[SpokenWeights, TimedSpeech]](), published_heads(pretrained)
    for number, timed in enumerate(speech):
        spoken = spoken_weights(pretrained, read_sound(pretrained, timed.file, timed.text))
        measured.append((spoken, timed))
        for head, weights in spoken.weights.items():
            errors.setdefault(head, []).extend(_begin_errors(pretrained, spoken, timed, [head]))
            scores[head] = scores.get(head, 0.0) + concentration(weights) / len(speech)
        if progress is not None:
            progress((number + 1) / len(speech))
    medians = {head: float(np.median(np.abs(head_errors))) for head, head_errors in errors.items()}
    ranked = sorted(medians, key=lambda head: (medians[head], head))
    chosen = ranked[:NUM_BEST]
    together = [
        error for spoken, timed in measured for error in _begin_errors(pretrained, spoken, timed, chosen)
    ]
    published_errors = [
        error
        for spoken, timed in measured
        for error in (_begin_errors(pretrained, spoken, timed, published) if published else ())
    ]
    file = save_heads(pretrained, chosen)
    return AligningHeads(
        heads=AligningHead.rows(
            {
                "stack": "cross",
                "layer": head[0],
                "head": head[1],
                "error": medians[head],
                "shift": float(np.median(errors[head])),
                "concentration": scores[head],
                "is_published": head in published,
            }
            for head in ranked
        ),
        num_words=len(together),
        num_found=len(chosen),
        error_of_found=float(np.median(np.abs(together))),
        error_of_published=float(np.median(np.abs(published_errors))) if published_errors else None,
        num_published=len(published),
        published_among_first=len({*published} & {*chosen}),
        notes=() if file is None else (f"The first {len(chosen)} heads were saved in {file}.",),
    )


def _begin_errors(
    pretrained: Pretrained, spoken: SpokenWeights, timed: TimedSpeech, heads: Sequence[Head]
) -> list[float]:
    """The signed errors of the word beginnings from these heads. Raises UserError if the words differ."""
    begins, place, word_begins = token_begins(spoken, heads), 0, list[float]()
    for word, count in token_words(pretrained, spoken.ids):
        if word.startswith(" ") or not word_begins:
            word_begins.append(float(begins[place]))
        place += count
    if len(word_begins) != len(timed.begins):
        got = f"{len(word_begins)} words instead of {len(timed.begins)}"
        raise UserError(f"speech: {timed.file}: {pretrained.name} splits its text into {got}")
    return [begin - known for begin, known in zip(word_begins, timed.begins, strict=True)]


def _heads_file(pretrained: Pretrained) -> Path | None:
    """The cache file of a model's best heads, named by its weights, or None for a model without a folder."""
    folder = Path(pretrained.source) if isinstance(pretrained.source, str) else None
    if folder is None or not folder.is_dir():
        return None
    with suppress(OSError):
        digests = [content_digest(file) for file in sorted(folder.glob("*.safetensors"))]
        if digests:
            return cache_folder("alignment") / f"{'-'.join(digest[:16] for digest in digests)[:200]}.json"
    return None


def save_heads(pretrained: Pretrained, heads: Sequence[Head]) -> Path | None:
    """Save heads in the user's cache; return None if that fails or the model has no folder."""
    file = _heads_file(pretrained)
    if file is None:
        return None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps({"heads": [[*head] for head in heads]}), encoding="utf-8")
        part.replace(file)
    except OSError:
        return None
    return file


def saved_heads(pretrained: Pretrained) -> list[Head]:
    """The saved heads of a model; empty if no heads were saved."""
    file = _heads_file(pretrained)
    try:
        stored = {} if file is None else parsed_json(file.read_bytes())
        return [(int(layer), int(head)) for layer, head in stored.get("heads", [])]
    except (OSError, ValueError, TypeError, AttributeError):  # none yet, or damaged: search again
        return []
