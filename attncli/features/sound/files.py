"""Files of sound, as one channel at the rate that a model wants, and the feature extractor that reads it."""

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
"""Samples in a second, from telegraph to laboratory: what other headers say is damage."""
MOST_SECONDS = 1800.0
"""Of a sound, for models that set no limit: half an hour is 90,000 tokens of 20 ms."""
PIECE_SECONDS, PIECE_NUMBERS, MOST_CHANNELS = 30, 2**24, 64
"""Of a file that is read a piece at a time; the numbers of all its channels in a piece."""
SIZES = re.compile(r"^ *(?:data|SSND) *: (\d+) \(should be (\d+)\)", re.MULTILINE)
"""In the log of libsndfile: the bytes of sound in the header of a WAV or AIFF, and in the file."""
OF_STREAMS = 0x7FFF0000
"""What a program writes into a header, or more, that does not know yet how much will follow."""
END_MISSING = "lacks an end-of-stream bit"
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


@contextmanager
def _file_errors(file: str, key: str) -> Iterator[None]:
    """What goes wrong with a file of sound as UserError, at `key`."""
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
            f"{key}: {file}: is not a sound in WAV, FLAC or OGG, or damaged: {reason:.120}"
        ) from None


class _SoundBytes(BufferedReader):
    """The bytes of a file for libsndfile, through callbacks whose exceptions Python would print.

    Where the sizes in a damaged file lead to a place before its beginning, it stays where it is.
    """

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        with suppress(OSError, ValueError):
            super().seek(offset, whence)
        return self.tell()


class SoundStream:
    """A sound of libsndfile's formats that is read from its begin to its end, a piece at a time.

    `seconds` is how long it is, by its header; `notes` say what is done to it. Only the piece that is read is
    in memory. Raises UserError, at `key`, for a file that is none, is damaged or holds NaN.
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
        of_file, channels = self._opened.samplerate, self._opened.channels
        if not RATES[0] <= of_file <= RATES[1]:
            self._files.close()
            allowed = f"{RATES[0]:,} to {RATES[1]:,}"
            raise UserError(f"{key}: {file}: must have {allowed} samples a second (got {of_file:,})")
        if channels > MOST_CHANNELS:
            self._files.close()
            raise UserError(f"{key}: {file}: must have at most {MOST_CHANNELS} channels (got {channels:,})")
        self.seconds: float = self._opened.frames / of_file
        notes = [f"{self.name}: the mean of its {channels} channels."] if channels > 1 else []
        if of_file != rate:
            notes.append(f"{self.name}: resampled from {of_file:,} to {rate:,} samples a second.")
        self.notes = (*notes, *_notes_of_a_cut(self.name, self._opened.extra_info))

    @property
    def num_samples(self) -> int:
        """How many samples all pieces have together."""
        frames: int = self._opened.frames
        return -(-frames * self.rate // int(self._opened.samplerate))

    def __enter__(self) -> "SoundStream":
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def pieces(self) -> Iterator[Float[np.ndarray, " sample"]]:
        """The samples, one channel at `rate`, PIECE_SECONDS or so at a time, once.

        Other rates are resampled by a polyphase filter (scipy.signal.resample_poly), each piece with what
        stands around it, so that the numbers are those of the whole.
        """
        from scipy.signal import resample_poly

        of_file = self._opened.samplerate
        common = gcd(self.rate, of_file)
        up, down = self.rate // common, of_file // common
        # Whole periods of both rates; the filter of resample_poly reaches over 10 samples of the slower one.
        most = PIECE_NUMBERS // self._opened.channels
        size = down * max(1, round(min(PIECE_SECONDS * of_file, most) / down))
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
            raise UserError(f"{self.key}: {self.file}: holds no sound")

    def _read(self, count: int) -> Float[np.ndarray, " sample"]:
        """The next samples of the file, the mean of its channels; fewer at its end."""
        where = f"{self.key}: {self.file}"
        with _file_errors(self.file, self.key):
            before = self._opened.tell()
            samples = self._opened.read(count, dtype="float32", always_2d=True)
            total = self._opened.frames
        if len(samples) < min(count, total - before):
            got = f"has {before + len(samples):,} of the {total:,} samples that it should have"
            raise UserError(f"{where}: is damaged: it {got}")
        if not np.isfinite(samples).all():
            raise UserError(f"{where}: holds numbers that are no sound (NaN or infinity)")
        return np.ascontiguousarray(samples.mean(axis=1, dtype=np.float32))


def _notes_of_a_cut(name: str, log: str) -> list[str]:
    """That a file ends before it should, by what libsndfile says of its header."""
    sizes = SIZES.search(log)
    if sizes is not None and int(sizes[2]) < int(sizes[1]) < OF_STREAMS:
        should = f"{int(sizes[2]):,} of the {int(sizes[1]):,} bytes that its header names"
        return [f"{name}: is cut: it has {should}."]
    if END_MISSING in log:
        return [f"{name}: is cut: the mark at the end of its stream is missing."]
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
    """A sound of libsndfile's formats (WAV, FLAC, OGG), its channels averaged, at `rate` samples a second.

    Raises UserError, at `key`, for a file that is none, is damaged or holds NaN, and for more than
    `most_seconds`, which `reader` reads, unless `truncate` takes the first of them.
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
        notes += (f"{stream.name}: the first {most:g} s of {stream.seconds:,.2f} s.",)
    return OpenedSound(samples, rate, stream.name, notes)


def too_long(file: str, seconds: float, most: float, reader: str) -> str:
    """That a sound is longer than what reads it, and what to do."""
    cut = f"`truncate` takes the first of it; or cut it, as by: sox {file} part.wav trim 0 {most:g}"
    return f"is {seconds:,.2f} s long, and {reader} reads {most:g} s: {cut}"


@lru_cache(maxsize=2)
def _opened_extractor(source: str, name: str) -> Any:
    from transformers import AutoFeatureExtractor

    return opened_part(AutoFeatureExtractor, source, f"sound: the feature extractor of {name}")


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
        parts = (getattr(source, name, None) for name in ("feature_extractor", "audio_processor"))
        extractor = next((part for part in parts if part is not None), source)
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
    extractor: Any, samples: Float[np.ndarray, " sample"], name: str, **how: Any
) -> dict[str, Float[Tensor, "..."]]:
    """The tensors that a feature extractor makes of a sound, with its options. UserError where it fails."""
    try:
        with quiet_warnings():
            made = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt", **how)
    except Exception as error:  # an extractor may fail in any way on a sound that it does not like
        reason = f"{one_line_reason(error):.200}"
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


def spectrogram(pieces: Iterable[np.ndarray], rate: int, count: int) -> tuple[bytes, tuple[int, int]]:
    """The log-mel spectrogram of `count` samples as a grey PNG, low below, and its width and height.

    The samples come in pieces, of which one at a time is needed.
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
