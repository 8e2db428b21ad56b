"""Sound files, read as a single channel at the sampling rate of a model, and a model's feature extractor."""

import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from io import SEEK_SET, BufferedReader
from math import gcd
from pathlib import Path
from typing import Any
from zlib import compress, crc32

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.process import quiet_warnings
from attncli.errors import UserError, one_line_reason
from attncli.models.folder import PROCESSOR_FILES, opened_part
from attncli.models.pretrained import Pretrained
from attncli.system.files import open_file, read_whole

RATES = 1_000, 768_000
"""Allowed sampling rates, from telegraphs to laboratories. Other values indicate a damaged header."""
MOST_SECONDS = 1800.0
"""The limit for models without a limit of their own: half an hour is 90,000 tokens of 20 ms."""
PIECE_SECONDS, PIECE_NUMBERS, MOST_CHANNELS = 30, 2**24, 64
"""The largest size of a piece of a file, in seconds and in values, and the largest number of channels."""
SIZES = re.compile(r"^ *(?:data|SSND) *: (\d+) \(should be (\d+)\)", re.MULTILINE)
"""Sizes in the log of libsndfile: bytes of sound in the header of a WAV or AIFF, and in the file."""
STREAM_SIZE = 0x7FFF0000
"""The smallest size that programs write into the header of a stream of unknown length."""
END_MISSING = "lacks an end-of-stream bit"
NEEDS = 'needs: pip install "attncli[sound]"'


@dataclass(frozen=True)
class OpenedSound:
    """A sound with one channel: `samples` at `rate`, and `notes` on how the file was converted."""

    samples: Float[np.ndarray, " sample"]
    rate: int
    name: str
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return len(self.samples) / self.rate


@contextmanager
def _file_errors(file: str, key: str) -> Iterator[None]:
    """Turn errors while reading a sound file into UserErrors at `key`."""
    import soundfile

    try:
        yield
    except OSError as error:
        raise UserError(
            f"{key}: {file}: cannot be read: {error.strerror or one_line_reason(error)}"
        ) from None
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        reason = one_line_reason(error).removeprefix("Error opening ").rpartition(": ")[2].rstrip(".")
        raise UserError(
            f"{key}: {file}: is not a WAV, FLAC or OGG sound, or is damaged: {reason:.120}"
        ) from None


class _SoundBytes(BufferedReader):
    """The bytes of a file for libsndfile, whose callbacks must not raise.

    A seek to a place before the beginning, as in a damaged file, is ignored.
    """

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        with suppress(OSError, ValueError):
            super().seek(offset, whence)
        return self.tell()


class SoundStream:
    """A sound in a format that libsndfile supports, read once, piece by piece.

    `seconds` is its duration according to the header; `notes` describes conversions. Memory holds only one
    piece at a time. Raises UserError, at `key`, for a file that is not a sound, is damaged or contains NaN.
    """

    def __init__(self, file: str, rate: int, *, key: str = "sound") -> None:
        if find_spec("soundfile") is None or find_spec("scipy") is None:
            raise UserError(f"{key}: {NEEDS}")
        import soundfile

        self.file, self.name, self.rate, self.key = file, Path(file).name, rate, key
        with ExitStack() as files, _file_errors(file, key):
            content = files.enter_context(_SoundBytes(open_file(file).detach()))
            self._opened = files.enter_context(soundfile.SoundFile(content))
            self._files = files.pop_all()
        file_rate, channels = self._opened.samplerate, self._opened.channels
        if not RATES[0] <= file_rate <= RATES[1]:
            self._files.close()
            allowed = f"{RATES[0]:,} to {RATES[1]:,}"
            raise UserError(f"{key}: {file}: must have {allowed} samples per second (got {file_rate:,})")
        if channels > MOST_CHANNELS:
            self._files.close()
            raise UserError(f"{key}: {file}: must have at most {MOST_CHANNELS} channels (got {channels:,})")
        self.seconds: float = self._opened.frames / file_rate
        notes = [f"{self.name}: its {channels} channels were averaged."] if channels > 1 else []
        if file_rate != rate:
            notes.append(f"{self.name}: resampled from {file_rate:,} to {rate:,} samples per second.")
        self.notes = (*notes, *_truncation_notes(self.name, self._opened.extra_info))

    @property
    def num_samples(self) -> int:
        """The number of samples in all pieces."""
        frames: int = self._opened.frames
        return -(-frames * self.rate // int(self._opened.samplerate))

    def __enter__(self) -> "SoundStream":
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def pieces(self) -> Iterator[Float[np.ndarray, " sample"]]:
        """Yield the samples, as one channel at `rate`, in pieces of about PIECE_SECONDS.

        Other rates are resampled with a polyphase filter (scipy.signal.resample_poly). Each piece is filtered
        together with its surroundings, so that the result is the same as for the whole file.
        """
        from scipy.signal import resample_poly

        file_rate = self._opened.samplerate
        common = gcd(self.rate, file_rate)
        up, down = self.rate // common, file_rate // common
        # Whole periods of both rates; the filter of resample_poly spans 10 samples at the slower rate.
        most = PIECE_NUMBERS // self._opened.channels
        size = down * max(1, round(min(PIECE_SECONDS * file_rate, most) / down))
        margin = down * (1 + (10 * max(up, down) // up + 1) // down)
        before = np.zeros(0, dtype=np.float32)
        piece = self._read(size)
        is_empty = True
        while len(piece):
            is_empty = False
            after = self._read(size) if len(piece) == size else piece[:0]
            if up == down:
                yield piece
            else:
                around = np.concatenate([before, piece, after[:margin]])
                begin = len(before) * up // down
                count = -(-len(piece) * up // down)
                yield resample_poly(around, up, down)[begin : begin + count].astype(np.float32)
            before, piece = piece[-margin:], after
        if is_empty:
            raise UserError(f"{self.key}: {self.file}: contains no sound")

    def _read(self, count: int) -> Float[np.ndarray, " sample"]:
        """Return the next samples of the file, averaged over its channels. There are fewer at the end."""
        where = f"{self.key}: {self.file}"
        with _file_errors(self.file, self.key):
            before = self._opened.tell()
            samples = self._opened.read(count, dtype="float32", always_2d=True)
            total = self._opened.frames
        if len(samples) < min(count, total - before):
            got = f"has {before + len(samples):,} of {total:,} samples"
            raise UserError(f"{where}: is damaged: it {got}")
        if not np.isfinite(samples).all():
            raise UserError(f"{where}: contains invalid samples (NaN or infinity)")
        return np.ascontiguousarray(samples.mean(axis=1, dtype=np.float32))


def _truncation_notes(name: str, log: str) -> list[str]:
    """Return a note if a file is truncated according to the log of libsndfile."""
    sizes = SIZES.search(log)
    if sizes is not None and int(sizes[2]) < int(sizes[1]) < STREAM_SIZE:
        size = f"{int(sizes[2]):,} of the {int(sizes[1]):,} bytes that its header declares"
        return [f"{name}: is truncated: it has {size}."]
    if END_MISSING in log:
        return [f"{name}: is truncated: the end mark of its stream is missing."]
    return []


def open_sound(
    file: str,
    rate: int,
    *,
    most_seconds: float | None = None,
    reader: str = "attn",
    key: str = "sound",
    truncate: bool = False,
) -> OpenedSound:
    """Read a sound file (WAV, FLAC, OGG), average its channels and resample it to `rate`.

    Raises UserError, at `key`, for a file that is not a sound, is damaged or contains NaN. A sound longer
    than `most_seconds`, the limit of `reader`, also raises UserError, unless `truncate` is set: then only the
    beginning is read.
    """
    most = MOST_SECONDS if most_seconds is None else most_seconds
    with SoundStream(file, rate, key=key) as stream:
        notes, is_long = stream.notes, stream.seconds > most
        if is_long and not truncate:
            raise UserError(f"{key}: {file}: {too_long(file, stream.seconds, most, reader)}")
        pieces: list[Float[np.ndarray, " sample"]] = []
        for piece in stream.pieces():
            pieces.append(piece)
            if sum(map(len, pieces)) >= most * rate:
                break
    samples = np.concatenate(pieces)[: int(most * rate)]
    if is_long:
        notes += (f"{stream.name}: only the first {most:g} s of {stream.seconds:,.2f} s were read.",)
    return OpenedSound(samples, rate, stream.name, notes)


def too_long(file: str, seconds: float, most: float, reader: str) -> str:
    """Return a message about a sound that is too long, with the remedies."""
    cut = f"use `truncate` to read only its beginning, or cut the file: sox {file} part.wav trim 0 {most:g}"
    return f"is {seconds:,.2f} s long, but {reader} reads at most {most:g} s: {cut}"


@lru_cache(maxsize=2)
def _opened_extractor(source: str, name: str) -> Any:
    from transformers import AutoFeatureExtractor

    return opened_part(AutoFeatureExtractor, source, f"sound: the feature extractor of {name}")


def feature_extractor(pretrained: Pretrained) -> Any:
    """Return the feature extractor of a model.

    Raises UserError if the model has no feature extractor, or if the extractor is not for sound.
    """
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
        parts = (getattr(source, name, None) for name in ("feature_extractor", "audio_processor"))
        extractor = next((part for part in parts if part is not None), source)
    if not isinstance(getattr(extractor, "sampling_rate", None), int):
        raise UserError(
            f"sound: {pretrained.name} reads no sound: {type(extractor).__name__} is for pictures"
        )
    return extractor


def max_seconds(extractor: Any) -> float | None:
    """Return the longest sound that a feature extractor reads at once, or None without a limit."""
    counts = (getattr(extractor, name, None) for name in ("n_samples", "nb_max_samples"))
    count = next((count for count in counts if isinstance(count, int)), None)
    return None if count is None else count / int(extractor.sampling_rate)


def sound_features(
    extractor: Any, samples: Float[np.ndarray, " sample"], name: str, **how: Any
) -> dict[str, Float[Tensor, "..."]]:
    """Return the tensors that an extractor makes from a sound. Raises UserError if the extractor fails."""
    try:
        with quiet_warnings():
            made = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt", **how)
    except Exception as error:  # on an unusual sound, an extractor may fail in any way
        reason = f"{one_line_reason(error):.200}"
        raise UserError(f"sound: the feature extractor of {name} failed: {reason}") from None
    return {key: tensor for key, tensor in made.items() if isinstance(tensor, torch.Tensor)}


PLAYED_BYTES = 5 * 2**20
"""The size in bytes of the largest sound file that is embedded in a page."""


def sound_to_play(file: str) -> bytes:
    """Return the bytes of a sound file for a page, or no bytes if it is missing or too large to embed."""
    try:
        return read_whole(file, PLAYED_BYTES)
    except OSError:
        return b""


PICTURE_WIDTH, PICTURE_HEIGHT = 640, 80
"""The size of a spectrogram: columns, and bands on the mel scale."""
DECIBELS = 80.0
"""The range below the loudest point, in powers of ten. Fainter sound is black."""


def spectrogram(pieces: Iterable[np.ndarray], rate: int, count: int) -> tuple[bytes, tuple[int, int]]:
    """Return the log-mel spectrogram of `count` samples as a grey PNG, and its size.

    Low frequencies are at the bottom. The samples come in pieces, only one of which is in memory.
    """
    from transformers.audio_utils import mel_filter_bank

    window = 512 * max(1, round(rate / 16_000))
    centres = np.linspace(0, max(count - 1, 0), PICTURE_WIDTH).astype(int)
    columns = np.zeros((PICTURE_WIDTH, window))
    place = 0
    for piece in pieces:
        for column, begin in zip(columns, centres - window // 2, strict=True):
            first, last = max(begin, place), min(begin + window, place + len(piece))
            if first < last:
                column[first - begin : last - begin] = piece[first - place : last - place]
        place += len(piece)
    power = np.abs(np.fft.rfft(columns * np.hanning(window), axis=1)) ** 2
    with quiet_warnings():  # warnings about narrow bands that contain no frequency
        bands = mel_filter_bank(power.shape[1], PICTURE_HEIGHT, 0.0, rate / 2, rate)
    decibels = 10 * np.log10(np.maximum(power @ bands, 1e-12))
    shares = np.clip(1 + (decibels - decibels.max()) / DECIBELS, 0, 1)
    grey = (255 * shares.T[::-1]).round().astype(np.uint8)
    return _grey_png(grey), (PICTURE_WIDTH, PICTURE_HEIGHT)


def _grey_png(grey: np.ndarray) -> bytes:
    """Encode numbers from 0 to 255 as an eight-bit PNG, without Pillow, which belongs to another extra."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc32(kind + content))

    height, width = grey.shape
    lines = np.concatenate(
        [np.zeros((height, 1), np.uint8), grey], axis=1
    )  # each row starts with its filter type, none
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", compress(lines.tobytes())), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
