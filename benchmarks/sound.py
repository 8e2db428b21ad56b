"""What a model writes of 30 seconds of sound with attn, which keeps every head's rows, and plain `generate`.

    python benchmarks/sound.py FOLDER [--rounds N]

FOLDER holds Whisper tiny.en (tools/whisper_from_wheel.py makes it). The sound is the shipped speech, repeated
up to 30 seconds. Both begin with the samples in memory: features, encoder, decoder, rows. In turns; medians.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attncli.library import generate
from attncli.models.loading import load_pretrained
from attncli.models.pretrained import Pretrained
from attncli.models.sound_files import feature_extractor, open_sound
from attncli.models.sound_reading import read_sound

SPEECH = Path(__file__).parents[1] / "attncli" / "data" / "speech"
SECONDS, RATE = 30, 16_000


def half_a_minute(file: Path) -> Path:
    """The three shipped sentences again and again, as a WAV of 30 seconds."""
    import soundfile

    names = ("garden", "morning", "river")
    parts = [open_sound(str(SPEECH / f"{name}.ogg"), RATE).samples for name in names]
    soundfile.write(file, np.resize(np.concatenate(parts), SECONDS * RATE), RATE)
    return file


def plain(pretrained: Pretrained, file: Path) -> list[int]:
    """transformers alone, with its own fused attention: extractor, encoder and decoder."""
    whole: Any = pretrained.whole
    whole.set_attn_implementation("sdpa")
    whole.config.use_cache = True
    extractor = feature_extractor(pretrained)
    samples = open_sound(str(file), RATE).samples
    features = extractor(samples, sampling_rate=RATE, return_tensors="pt")
    with torch.no_grad():
        (ids,) = whole.generate(**features)
    kept: list[int] = [number for number in ids.tolist() if number not in pretrained.special_ids]
    return kept


def with_rows(pretrained: Pretrained, file: Path) -> list[int]:
    """The same, with the rows of every head of cross-attention."""
    result = generate(pretrained, read_sound(pretrained, file))
    return [number for number in result.ids if number not in pretrained.special_ids]


def seconds_of(run: Callable[[], list[int]]) -> tuple[float, list[int]]:
    """Wall time of one run, and the tokens."""
    begun = time.perf_counter()
    tokens = run()
    return time.perf_counter() - begun, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    pretrained = load_pretrained(asked.folder, allow_download=False, device="cpu", with_head=True)
    file = half_a_minute(Path("/tmp/attn-half-a-minute.wav"))
    with_rows(pretrained, file), plain(pretrained, file)  # what is measured once for a model is not counted
    times: dict[str, list[float]] = {"attn": [], "plain": []}
    for _ in range(asked.rounds):
        of_attn = seconds_of(lambda: with_rows(pretrained, file))
        by_hand = seconds_of(lambda: plain(pretrained, file))
        assert of_attn[1] == by_hand[1], "the same tokens"
        times["attn"].append(of_attn[0])
        times["plain"].append(by_hand[0])
    medians = {name: statistics.median(of_runs) for name, of_runs in times.items()}
    print("| seconds of sound | tokens | attn | plain generate | ratio |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    both = f"{medians['attn']:.2f} s | {medians['plain']:.2f} s"
    print(f"| {SECONDS} | {len(by_hand[1])} | {both} | {medians['attn'] / medians['plain']:.2f} |")


if __name__ == "__main__":
    main()
