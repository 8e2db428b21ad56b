"""Read sound for a model: alone, or before the words that a decoder writes.

Token times are measured with the gradients of the inputs of the first block, which works for any kind of
model.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from attncli.errors import NO_TEXT, UserError
from attncli.features.sound.files import (
    OpenedSound,
    feature_extractor,
    max_seconds,
    open_sound,
    sound_features,
    sound_to_play,
    spectrogram,
    too_long,
)
from attncli.models.architectures import BLOCK, SOUNDS, decoder_start, forward_arguments
from attncli.models.capture import model_errors, unchanged, with_eager_attention
from attncli.models.in_turn import random_state_restored
from attncli.models.layers import CannotShow, StopCapture
from attncli.models.pretrained import FIRST_WORD_ID, ModelText, Pretrained, Reading, part_that_takes
from attncli.models.reading_text import OpenedModel
from attncli.models.token_places import Origin
from attncli.records.arguments import FilePath, checked
from attncli.records.report import Axis, Picture
from attncli.system.plain_text import counted

TRIAL_SECONDS = 2
"""The duration of the noise on which token times are measured. The steps between tokens are constant."""
KALDI_SHIFT = 0.01
"""The seconds between frames for extractors that do not declare them: those with Kaldi's filter banks."""
SAME_STEP = 0.1
"""The allowed relative difference between a measured step and the product of strides."""
ATTENDS = "att"
MOMENT = re.compile(r"(\d+(?:\.\d+)?)s")
"""A time in a sound, such as 1.24s."""
SAME_MOMENT = 1e-6
"""The rounding tolerance for the beginning of a token, in seconds."""


def part_that_hears(pretrained: Pretrained) -> Pretrained:
    """Return the model, or its encoder for sound. Raises UserError if no part of the model reads sound."""
    part = part_that_takes(pretrained, SOUNDS)
    if part is None:
        raise UserError(f"sound: {pretrained.name} has no part that reads sound")
    return part


@dataclass(frozen=True, kw_only=True, eq=False)
class HeardSound(Origin):
    """A sound in a model, with token times: each token begins at its `begins` and lasts `step` seconds.

    `seconds` is the duration of the sound; later tokens are padding. `samples` has one channel, at `rate`.
    """

    what = "sound"

    begins: Float[Tensor, " token"]
    name: str
    file: str
    seconds: float
    step: float
    samples: Any
    rate: int

    def reader(self, pretrained: Pretrained) -> Pretrained:
        return part_that_hears(pretrained)

    def before_words(self, pretrained: Pretrained) -> int:
        return token_before_words(pretrained)

    def at(self, seconds: float) -> int | None:
        """Return the first token that covers a time, or None for a time outside the tokens."""
        since = (seconds - self.begins + SAME_MOMENT).tolist()
        return next((token for token, time in enumerate(since) if 0 <= time < self.step), None)

    def token_at(self, name: str, tokens: Sequence[str]) -> int | None:
        moment = MOMENT.fullmatch(name)
        if moment is None or name in tokens:
            return None
        if (token := self.at(float(moment[1]))) is None:
            raise ValueError(
                f"no token is at this time: the sound is {self.seconds:.2f} s long (got {name:.60})"
            )
        return token

    def drawn(self, axis: Axis) -> tuple[Picture, ...]:
        """Return the spectrogram, on which each token is a vertical strip."""
        png, size = spectrogram([self.samples], self.rate, len(self.samples))
        begins, ends = self.begins / self.seconds, (self.begins + self.step) / self.seconds
        strips = zip(begins.tolist(), ends.tolist(), strict=True)
        boxes = tuple((begin, 0.0, min(1.0, end), 1.0) if begin < 1.0 else None for begin, end in strips)
        crop = 0.0, 0.0, float(size[0]), float(size[1])
        sound = sound_to_play(self.file)
        return (Picture(self.name, size, crop, png, boxes, axis, seconds=self.seconds, sound=sound),)


@dataclass(frozen=True)
class TokenTimes:
    """The times of a sound's tokens: token `first` + n lasts from n * `step` to (n + 1) * `step` seconds.

    `bands` is the number of frequency bands; each band is a run of tokens through time. Tokens before `first`
    are not part of the sound.
    """

    step: float
    first: int = 0
    bands: int = 1
    num_tokens: int | None = None
    """The number of tokens in a model that pads every sound to the same length."""

    def duration(self, count: int) -> float:
        """Return the duration of `count` tokens in seconds."""
        return (count - self.first) // self.bands * self.step

    @property
    def seconds(self) -> float:
        """The duration of the padded sound, for a model that pads."""
        assert self.num_tokens is not None
        return self.duration(self.num_tokens)

    @property
    def slack(self) -> float:
        """The duration of sound after the last token that convolutions drop and that is therefore ignored."""
        return 4 * self.step + 0.1


def _is_block(name: str, module: nn.Module) -> bool:
    return BLOCK.fullmatch(name) is not None and any(
        ATTENDS in inner.lower() for inner, _ in module.named_modules() if inner
    )


def _read_by_first_block(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], strides: list[int] | None = None
) -> Float[Tensor, "token dim"]:
    """Return the token vectors that the first block with attention reads.

    The strides of the convolutions before this block are appended to `strides`.
    """
    vectors_read: list[Tensor] = []

    def take(_module: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        vectors = given[0] if given else named.get("hidden_states")
        if isinstance(vectors, Tensor) and vectors.ndim == 3 and vectors.is_floating_point():
            vectors_read.append(vectors)
            raise StopCapture

    def note_stride(module: nn.Module, _inputs: object, _outputs: object) -> None:
        assert isinstance(module, nn.Conv1d | nn.Conv2d)
        if strides is not None:
            strides.append(module.stride[0])

    with ExitStack() as hooks, suppress(StopCapture):
        hooks.enter_context(unchanged(model))
        hooks.enter_context(with_eager_attention(model))
        for name, module in model.named_modules():
            if _is_block(name, module):
                hooks.enter_context(module.register_forward_pre_hook(take, with_kwargs=True))
            elif isinstance(module, nn.Conv1d | nn.Conv2d):
                hooks.enter_context(module.register_forward_hook(note_stride))
        model.config.use_cache = False
        model(**inputs)
    if not vectors_read:
        raise CannotShow("none of its blocks reads a sequence of vectors, so attn cannot locate its tokens")
    return vectors_read[0].flatten(0, 1).float()


def _centres(
    vectors: Float[Tensor, "token dim"], features: Tensor, tokens: Sequence[int], axis: int
) -> Float[Tensor, " chosen"]:
    """Return the middle frame that each token depends on, or NaN for tokens independent of the sound."""
    direction = torch.randn(vectors.shape[1], generator=torch.Generator().manual_seed(0)).to(vectors)
    outputs, frames = vectors @ direction, torch.arange(features.shape[axis], dtype=torch.double)
    centres = []
    for token in tokens:
        (gradient,) = torch.autograd.grad(outputs[token], [features], retain_graph=True, allow_unused=True)
        if gradient is None:
            centres.append(torch.nan)
            continue
        other_axes = [place for place in range(gradient.ndim) if place != axis]
        shares = gradient.double().square().sum(dim=other_axes).cpu()
        centres.append(float((shares * frames).sum() / shares.sum()))
    return torch.tensor(centres, dtype=torch.double)


_times: WeakKeyDictionary[PreTrainedModel, dict[tuple[Any, ...], TokenTimes]] = WeakKeyDictionary()


def token_times(part: Pretrained, extractor: Any) -> TokenTimes:
    """Return the times of the tokens that `part` makes from the features of `extractor`.

    The step is a whole number of frames. Raises UserError if the tokens cannot be placed in time.
    """
    cached_times = _times.setdefault(part.model, {})
    key = (type(extractor).__name__, int(extractor.sampling_rate))
    if key not in cached_times:
        with model_errors(part.model.config.model_type, "read sound"), torch.enable_grad():
            cached_times[key] = _measured_times(part, extractor)
    return cached_times[key]


def _measured_times(part: Pretrained, extractor: Any) -> TokenTimes:
    rate = int(extractor.sampling_rate)
    noise = np.random.default_rng(0).normal(0, 0.1, (TRIAL_SECONDS + 1) * rate).astype(np.float32)
    short = _accepted(part, sound_features(extractor, noise[: TRIAL_SECONDS * rate], part.name))
    long = _accepted(part, sound_features(extractor, noise, part.name))
    name = next(name for name in SOUNDS if name in short)
    sizes = [tuple(inputs[name].shape) for inputs in (short, long)]
    grows = [axis for axis, (few, more) in enumerate(zip(*sizes, strict=True)) if few != more]
    axis = grows[0] if grows else 1 + int(np.argmax(sizes[0][1:]))
    if grows:
        seconds_per_frame = 1 / (sizes[1][axis] - sizes[0][axis])
    else:
        hop = getattr(extractor, "hop_length", None)
        seconds_per_frame = hop / rate if isinstance(hop, int) else KALDI_SHIFT
    features = short[name].detach().clone().requires_grad_(True)
    strides: list[int] = []
    vectors = _read_by_first_block(part.model, {**short, name: features}, strides)
    count = len(vectors)
    if count < 8:
        raise CannotShow(f"{count} tokens of {TRIAL_SECONDS} s of sound cannot be placed in time")
    begins = _centres(vectors, features, range(4), axis)
    first = int((~begins.isnan()).nonzero()[:1].sum()) if not begins.isnan().all() else -1
    if first < 0:
        raise CannotShow("its tokens do not depend on the sound before its first attention layer")
    places = torch.tensor([first + (count - first) * tenth // 10 for tenth in (2, 5, 8)])
    centres = _centres(vectors, features, places.tolist(), axis)
    step = float((centres[2] - centres[0]) / (places[2] - places[0]))
    is_straight = abs(float(centres[1] - centres[0]) - step * float(places[1] - places[0])) < 3 * max(step, 1)
    bands = 1
    if not is_straight or round(step) < 1:  # bands follow one another, each from the beginning of the sound
        length, step = _first_band(lambda tokens: _centres(vectors, features, tokens, axis), first, count)
        bands = (count - first) // length
    # Strides are exact, unlike gradients, but not every step between two tokens is a convolution.
    exact = prod(strides) if abs(prod(strides) / step - 1) < SAME_STEP else round(step)
    return TokenTimes(exact * seconds_per_frame, first, bands, None if grows else count)


def _first_band(
    centres: Callable[[Sequence[int]], Float[Tensor, " chosen"]], first: int, count: int
) -> tuple[int, float]:
    """Return the number of tokens before the next band, and the number of frames between tokens."""
    begin, few = first + 1, 4
    near = centres([begin, begin + few])
    step = float(near[1] - near[0]) / few
    shortest, longest = few + 2, count - first  # the length is at least `shortest` and less than `longest`
    while longest - shortest > 1:
        middle = (shortest + longest) // 2
        awaited = float(near[0]) + step * (middle - 2)
        is_on = abs(float(centres([first + middle - 1])[0]) - awaited) < step * (1 + middle / 20)
        shortest, longest = (middle, longest) if is_on else (shortest, middle)
    again = centres(
        [first + 1, first + shortest + 1, count - shortest + 1][: 1 + 2 * (longest < count - first)]
    )
    if not step > 0 or (count - first) % shortest or float((again - again[0]).abs().max()) > step / 4:
        raise CannotShow("its tokens are not in temporal order")
    return shortest, step


def _accepted(part: Pretrained, made: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of the extractor that the model accepts.

    Raises UserError if it accepts no sound.
    """
    accepted_names = forward_arguments(part.model)
    inputs = {name: tensor.to(part.device) for name, tensor in made.items() if name in accepted_names}
    if not {*SOUNDS} & inputs.keys():
        raise UserError(f"sound: {part.name} does not accept {next(iter(made), 'sound')}")
    name = _sound_name(inputs)
    inputs[name] = inputs[name].to(part.model.dtype)
    if (
        part.model.config.is_encoder_decoder
    ):  # a single sound is not padded, and the mask would be applied to the decoder
        inputs.pop("attention_mask", None)
    return inputs


def _sound_name(inputs: Mapping[str, Tensor]) -> str:
    """Return the name of the input that contains the sound."""
    return next(name for name in SOUNDS if name in inputs)


def _count_tokens(part: Pretrained, inputs: Mapping[str, Tensor]) -> int:
    with torch.no_grad(), model_errors(part.model.config.model_type, "read this sound"):
        return len(_read_by_first_block(part.model, inputs))


def _heard(
    pretrained: Pretrained, file: str, *, truncate: bool = False
) -> tuple[ModelText, dict[str, Tensor]]:
    """Return the tokens of a sound, and the model's inputs for the sound."""
    part = part_that_hears(pretrained)
    extractor = feature_extractor(pretrained)
    times = token_times(part, extractor)
    rate, most, name = int(extractor.sampling_rate), max_seconds(extractor), pretrained.name
    if truncate and times.num_tokens is not None:
        most = min(most or times.seconds, times.seconds)
    opened = open_sound(file, rate, most_seconds=most, reader=name, truncate=truncate)
    inputs = _accepted(part, sound_features(extractor, opened.samples, part.name))
    text = heard_text(part, times, inputs, opened, file)
    in_time = times.duration(len(text.ids))
    if opened.seconds > in_time + times.slack:
        raise UserError(f"sound: {file}: {too_long(file, opened.seconds, in_time, name)}")
    return text, inputs


def heard_text(
    part: Pretrained, times: TokenTimes, inputs: Mapping[str, Tensor], opened: OpenedSound, file: str
) -> ModelText:
    """Return the tokens of an opened sound, for which the model receives `inputs`."""
    count = times.num_tokens or _count_tokens(part, inputs)
    begins, labels = _labels(times, count)
    in_time, seconds = times.duration(count), opened.seconds
    filled = f", padded to {in_time:.4g} s with silence" if in_time > seconds + times.slack else ""
    size = f"{1000 * times.step:.4g} ms" + (f" in {times.bands} bands" if times.bands > 1 else "")
    note = f"{opened.name}: {seconds:.2f} s{filled}; {counted(count, 'token')} of {size}."
    notes = *opened.notes, note
    heard = HeardSound(
        name=opened.name,
        file=file,
        seconds=seconds,
        step=times.step,
        begins=begins,
        notes=notes,
        samples=opened.samples,
        rate=opened.rate,
    )
    ids = FIRST_WORD_ID * 2 + torch.arange(count)
    return ModelText(labels, ids, is_merged=True, origin=heard)


def _labels(times: TokenTimes, count: int) -> tuple[Float[Tensor, " token"], tuple[str, ...]]:
    """Return the label of each token and its beginning in seconds, or NaN for tokens outside the sound."""
    length = (count - times.first) // times.bands
    begins = torch.full((count,), torch.nan, dtype=torch.double)
    places: Int[Tensor, " token"] = torch.arange(count - times.first)
    begins[times.first :] = (places % length) * times.step
    ticks = round(times.step * 10_000)
    decimals = 4 if ticks % 10 else 3 if ticks % 100 else 2
    labels = [f"token{place}" for place in range(times.first)]
    for place, begin in enumerate(begins[times.first :].tolist()):
        band = f"/b{place // length + 1}" if times.bands > 1 else ""
        labels.append(f"{begin:.{decimals}f}s{band}")
    return begins, tuple(labels)


@checked
def read_sound(
    model: OpenedModel, file: FilePath, text: str | None = None, *, truncate: bool = False
) -> Reading:
    """Read a sound with an encoder, or together with its transcript in a decoder.

    Tokens are named by the second at which they begin. A model with a decoder reads `text` after the sound;
    if `text` is empty, the model writes the transcript itself (greedy decoding with its own generate), and if
    `text` is None, only the encoder runs.

    Raises UserError for a file that is not a sound, for a model that does not read sound, and for a text
    without a decoder. A sound that is too long for the model also raises UserError, unless `truncate` is set:
    then only the beginning is read.
    """
    return encoded_reading(model, str(file), text, truncate=truncate)[0]


def encoded_reading(
    pretrained: Pretrained, file: str, text: str | None = None, *, truncate: bool = False
) -> tuple[Reading, Tensor | None]:
    """Return the result of `read_sound`, and the encoder's output if the model wrote the words, else None."""
    if text is not None and not pretrained.has_decoder:
        raise UserError(f"sentence: the audio encoder of {pretrained.name} reads no text: omit the text")
    sound, inputs = _heard(pretrained, file, truncate=truncate)
    if text is None:
        return Reading(sound, inputs=inputs), None
    language = detected_language(pretrained, inputs) if knows_languages(pretrained) else None
    if text:
        ids, encoded = spoken_ids(pretrained, text), None
    else:
        ids, encoded = _transcript(pretrained, inputs, language)
    prefix = decoder_prefix(pretrained, language)
    ids = [*prefix, *ids]
    most = most_written(pretrained)
    if most is not None and len(ids) > most:
        raise UserError(f"sentence: must be at most {most} tokens for {pretrained.name} (got {len(ids)})")
    words = ModelText(pretrained.labels(ids), torch.tensor(ids))
    decoder = {"decoder_input_ids": words.ids.unsqueeze(0).to(pretrained.device)}
    return Reading(words, sound, inputs={**inputs, **decoder}, num_before=len(prefix)), encoded


def most_written(pretrained: Pretrained) -> int | None:
    """Return the number of tokens that a sound model's decoder can read, or None without a limit."""
    most: int | None = getattr(pretrained.model.config, "max_target_positions", None)
    return most or pretrained.most_tokens()


def _settings_to_write(pretrained: Pretrained) -> Any:
    return getattr(pretrained.whole, "generation_config", None) or pretrained.model.config


def decoder_prefix(pretrained: Pretrained, language: int | None) -> list[int]:
    """Return the tokens before the words of a decoder: start, language, task and no timestamps.

    `language` is the language token, for a model that knows several languages.
    """
    settings: Any = _settings_to_write(pretrained)
    start = getattr(settings, "decoder_start_token_id", None)
    start = pretrained.model.config.decoder_start_token_id if start is None else start
    prefix = [int(start)]
    if language is not None:
        prefix += language, int(settings.task_to_id["transcribe"])
    if (no_times := no_times_token(pretrained)) is not None:
        prefix.append(no_times)
    return prefix


def token_before_words(pretrained: Pretrained) -> int:
    """Return the last token before the words: the no-timestamps token or, without one, the start token."""
    settings: Any = _settings_to_write(pretrained)
    no_times = getattr(settings, "no_timestamps_token_id", None)
    start = decoder_start(settings, pretrained.model.config)
    before = start if no_times is None else no_times
    assert before is not None, "a decoder needs a start token"
    return int(before)


def knows_languages(pretrained: Pretrained) -> bool:
    """Return True if a model writes several languages, and so reads a language token before the words."""
    settings: Any = _settings_to_write(pretrained)
    is_multilingual = getattr(settings, "is_multilingual", False)
    return bool(is_multilingual and getattr(settings, "lang_to_id", None))


def detected_language(pretrained: Pretrained, inputs: Mapping[str, Tensor]) -> int:
    """Return the token of the language that the model detects."""
    whole: Any = pretrained.whole
    kind = pretrained.model.config.model_type
    with torch.no_grad(), model_errors(kind, "detect the language"), with_eager_attention(whole):
        return int(whole.detect_language(input_features=inputs["input_features"])[0])


def no_times_token(pretrained: Pretrained) -> int | None:
    """Return the decoder's no-timestamps token, which precedes the timestamp tokens, or None."""
    token = getattr(_settings_to_write(pretrained), "no_timestamps_token_id", None)
    return None if token is None else int(token)


def spoken_ids(pretrained: Pretrained, text: str) -> list[int]:
    """Encode a given transcript as the model would write it, with a space before its first word."""
    spelled = text.strip()
    blank = " " if pretrained.token_spelling == "byte-level" else ""
    if not spelled:
        raise UserError(f"sentence: {NO_TEXT}")
    ids: list[int] = pretrained.encoded(f"{blank}{spelled}", add_special_tokens=False)["input_ids"]
    if not ids:
        raise UserError(f"sentence: the tokenizer of {pretrained.name} makes no tokens from this text")
    return ids


def _transcript(
    pretrained: Pretrained, inputs: Mapping[str, Tensor], language: int | None
) -> tuple[list[int], Tensor | None]:
    """Return the model's transcript of a sound, without special tokens, and the encoder's output."""
    special = pretrained.special_ids
    vocabulary = len(pretrained.tokenizer)
    written = generated(pretrained, inputs, language)
    words = [number for number in written.ids if number not in special and number < vocabulary]
    if not words:
        raise UserError(
            f"sound: {pretrained.name} hears no words in the sound: "
            "supply the words with `sentence` or `file`"
        )
    return words, written.encoded


class Generated(NamedTuple):
    """All the tokens in the model's transcript of a sound, and the encoder's output, if known."""

    ids: list[int]
    encoded: Float[Tensor, "1 place dim"] | None


def generated(
    pretrained: Pretrained, inputs: Mapping[str, Tensor], language: int | None, **how: Any
) -> Generated:
    """Transcribe a sound with the model's own generate, in a given language if the model knows several."""
    whole: Any = pretrained.whole
    kind = pretrained.model.config.model_type
    if pretrained.with_head is None or not whole.can_generate():
        reason = "has no language-modelling head, so it cannot write text"
        raise UserError(f"sound: {pretrained.name} {reason}: supply the words that are spoken")
    if language is not None:
        how |= {"language": pretrained.labels([language])[0], "task": "transcribe"}
    encoded: list[Tensor] = []

    def keep(_module: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any], outputs: Any) -> None:
        sound, encoder_inputs = inputs[_sound_name(inputs)], [*given, *named.values()]
        if any(isinstance(each, Tensor) and torch.equal(each, sound) for each in encoder_inputs):
            encoded.append(outputs[0])

    with (
        torch.no_grad(),
        unchanged(whole),
        with_eager_attention(whole),  # the attention may still be changed from an earlier run
        random_state_restored(),
        model_errors(kind, "write by transformers' generate"),
    ):
        if all(part._supports_sdpa for part in whole.modules() if isinstance(part, PreTrainedModel)):
            whole.set_attn_implementation("sdpa")
        whole.config.use_cache = True
        whole.get_encoder().register_forward_hook(keep, with_kwargs=True)
        (ids,) = whole.generate(**inputs, **how)
    return Generated(ids.tolist(), encoded[-1] if encoded else None)


def num_before_words(pretrained: Pretrained) -> int:
    """Return the number of tokens before the words. See `decoder_prefix`."""
    has_no_times = no_times_token(pretrained) is not None
    return 1 + 2 * knows_languages(pretrained) + has_no_times


def published_heads(pretrained: Pretrained) -> list[tuple[int, int]]:
    """Return the alignment heads in the model's generation_config.json, or an empty list."""
    alignment_heads = getattr(pretrained.whole.generation_config, "alignment_heads", None) or []
    return [(int(layer), int(head)) for layer, head in alignment_heads]
