"""Files of sound, as one channel at the rate that a model wants, and the feature extractor that reads it."""

import struct
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import gcd
from pathlib import Path
from typing import Any
from zlib import compress, crc32

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.process import quiet_warnings
from attncli.errors import UserError, reason_of
from attncli.files import PICTURE_BYTES, open_file, read_whole
from attncli.models.folder import PROCESSOR_FILES, id_and_revision
from attncli.models.pretrained import Pretrained

RATES = 1_000, 768_000
"""Samples in a second, from telegraph to laboratory: what other headers say is damage."""
MOST_SECONDS = 1800
"""Of a sound, for models that set no limit: half an hour is 90,000 tokens of 20 ms."""
NEEDS = 'needs: pip install "attncli[sound]"'


@dataclass(frozen=True)
class OpenedSound:
    """A sound in one channel: `samples` at `rate`, `seconds` of it; `notes` say what was done to the file."""

    samples: Float[np.ndarray, " sample"]
    rate: int
    name: str
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / self.rate


def open_sound(
    file: str, rate: int, *, most_seconds: float | None = None, reader: str = "attn", key: str = "sound"
) -> OpenedSound:
    """A sound of libsndfile's formats (WAV, FLAC, OGG), its channels averaged, at `rate` samples a second.

    Other rates are resampled by a polyphase filter (scipy.signal.resample_poly). Raises UserError, at `key`,
    for a file that is none, is damaged or holds NaN, and for more than `most_seconds`, which `reader` reads.
    """
    if find_spec("soundfile") is None or find_spec("scipy") is None:
        raise UserError(f"{key}: {NEEDS}")
    import soundfile

    most = MOST_SECONDS if most_seconds is None else most_seconds
    try:
        with open_file(file, PICTURE_BYTES) as content, soundfile.SoundFile(content) as opened:
            of_file, channels, count = opened.samplerate, opened.channels, opened.frames
            if not RATES[0] <= of_file <= RATES[1]:
                allowed = f"{RATES[0]:,} to {RATES[1]:,}"
                raise UserError(f"{key}: {file}: must have {allowed} samples a second (got {of_file:,})")
            if count / of_file > most:
                cut = f"cut it, as by: sox {file} part.wav trim 0 {most:g}"
                long = f"is {count / of_file:,.2f} s long, and {reader} reads {most:g} s: {cut}"
                raise UserError(f"{key}: {file}: {long}")
            samples = opened.read(dtype="float32", always_2d=True)
    except OSError as error:
        raise UserError(f"{key}: {file}: cannot be read: {error.strerror or reason_of(error)}") from None
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        reason = reason_of(error).removeprefix("Error opening ").rpartition(": ")[2].rstrip(".")
        raise UserError(
            f"{key}: {file}: is not a sound in WAV, FLAC or OGG, or damaged: {reason:.120}"
        ) from None
    if len(samples) < count:
        got = f"has {len(samples):,} of the {count:,} samples that it should have"
        raise UserError(f"{key}: {file}: is damaged: it {got}")
    if not len(samples):
        raise UserError(f"{key}: {file}: holds no sound")
    if not np.isfinite(samples).all():
        raise UserError(f"{key}: {file}: holds numbers that are no sound (NaN or infinity)")
    notes: tuple[str, ...] = (
        () if channels == 1 else (f"{Path(file).name}: the mean of its {channels} channels.",)
    )
    one_channel = np.ascontiguousarray(samples.mean(axis=1, dtype=np.float32))
    if of_file != rate:
        from scipy.signal import resample_poly

        common = gcd(rate, of_file)
        one_channel = resample_poly(one_channel, rate // common, of_file // common).astype(np.float32)
        notes += (f"{Path(file).name}: resampled from {of_file:,} to {rate:,} samples a second.",)
    return OpenedSound(one_channel, rate, Path(file).name, notes)


@lru_cache(maxsize=2)
def _opened_extractor(source: str, name: str) -> Any:
    from transformers import AutoFeatureExtractor

    opener: Any = AutoFeatureExtractor  # transformers leaves it without types
    is_here = Path(source).exists()
    source, revision = id_and_revision(source)
    try:
        with quiet_warnings():
            return opener.from_pretrained(
                source, trust_remote_code=False, local_files_only=is_here, revision=revision
            )
    except Exception as error:  # a damaged file may fail in any way; the reason is given in one line
        reason = f"{reason_of(error):.200}"
        raise UserError(f"sound: the feature extractor of {name} cannot be opened: {reason}") from None


def feature_extractor(pretrained: Pretrained) -> Any:
    """The feature extractor of this model. Raises UserError without one, and for one that hears nothing."""
    source = pretrained.source
    if source is None or (isinstance(source, str) and Path(source).is_file()):
        raise UserError(f"sound: {pretrained.name} reads no sound: it has no feature extractor")
    if isinstance(source, str):
        path = Path(source)
        if path.is_dir() and not any((path / file).is_file() for file in PROCESSOR_FILES):
            missing = f"{PROCESSOR_FILES[0]} is missing in its folder"
            raise UserError(f"sound: {pretrained.name} has no feature extractor: {missing}")
        extractor = _opened_extractor(source, pretrained.name)
    else:
        extractor = getattr(source, "feature_extractor", source)
    if not isinstance(getattr(extractor, "sampling_rate", None), int):
        raise UserError(
            f"sound: {pretrained.name} reads no sound: {type(extractor).__name__} is for pictures"
        )
    return extractor


def most_seconds_of(extractor: Any) -> float | None:
    """How much of a sound a feature extractor reads at once; None where it sets no limit."""
    counts = (getattr(extractor, name, None) for name in ("n_samples", "nb_max_samples"))
    count = next((count for count in counts if isinstance(count, int)), None)
    return None if count is None else count / int(extractor.sampling_rate)


def features_of(
    extractor: Any, samples: Float[np.ndarray, " sample"], name: str
) -> dict[str, Float[Tensor, "..."]]:
    """The tensors that a feature extractor makes of a sound. Raises UserError where it fails."""
    try:
        with quiet_warnings():
            made = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt")
    except Exception as error:  # an extractor may fail in any way on a sound that it does not like
        reason = f"{reason_of(error):.200}"
        raise UserError(f"sound: the feature extractor of {name} fails on it: {reason}") from None
    return {key: tensor for key, tensor in made.items() if isinstance(tensor, torch.Tensor)}


PLAYED_BYTES = 5 * 2**20
"""Of a file that goes into a page."""


def sound_to_play(file: str) -> bytes:
    """A file of sound, for a page; empty where it is larger than PLAYED_BYTES or gone."""
    try:
        return read_whole(file, PLAYED_BYTES)
    except OSError:
        return b""


PICTURE_WIDTH, PICTURE_HEIGHT = 640, 80
"""Of a spectrogram: columns, and bands on the mel scale."""
DECIBELS = 80.0
"""From the loudest point down: what is fainter is black."""


def spectrogram(samples: Float[np.ndarray, " sample"], rate: int) -> tuple[bytes, tuple[int, int]]:
    """The log-mel spectrogram of a sound as a grey PNG, low below, and its width and height."""
    from transformers.audio_utils import mel_filter_bank

    window = 512 * max(1, round(rate / 16_000))
    padded = np.pad(samples.astype(np.float64), window // 2)
    centres = np.linspace(0, max(len(samples) - 1, 0), PICTURE_WIDTH).astype(int)
    pieces = np.stack([padded[centre : centre + window] for centre in centres]) * np.hanning(window)
    power = np.abs(np.fft.rfft(pieces, axis=1)) ** 2
    with quiet_warnings():  # of narrow bands without a frequency of their own
        bands = mel_filter_bank(power.shape[1], PICTURE_HEIGHT, 0.0, rate / 2, rate)
    decibels = 10 * np.log10(np.maximum(power @ bands, 1e-12))
    shares = np.clip(1 + (decibels - decibels.max()) / DECIBELS, 0, 1)
    grey = (255 * shares.T[::-1]).round().astype(np.uint8)
    return _grey_png(grey), (PICTURE_WIDTH, PICTURE_HEIGHT)


def _grey_png(grey: np.ndarray) -> bytes:
    """Numbers from 0 to 255 as a PNG of eight bits, without Pillow, which is another extra."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc32(kind + content))

    height, width = grey.shape
    lines = np.concatenate(
        [np.zeros((height, 1), np.uint8), grey], axis=1
    )  # each begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", compress(lines.tobytes())), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
