"""How far words are from where they are known to be, on the speech that ships (docs/sound.md).

    python tools/word_time_errors.py FOLDER

FOLDER is what tools/whisper_from_wheel.py writes. Heads are found on some sentences and measured on others.
"""

import json
import sys
from pathlib import Path

import numpy as np

from attncli.features.sound.reading import published_heads, read_sound
from attncli.features.words.spoken_words import (
    SPEECH,
    Head,
    TimedSpeech,
    rank_heads,
    shipped_speech,
    spoken_words,
)
from attncli.models.loading import in_use, open_model
from attncli.models.pretrained import Pretrained

KNOWN = json.loads((SPEECH / "times.json").read_text())


def errors(model: Pretrained, speech: list[TimedSpeech], heads: str | list[Head]) -> np.ndarray:
    """By how much each word begins and ends later than it is known to."""
    differences: list[tuple[float, float]] = []
    for timed in speech:
        words = spoken_words(model, read_sound(model, timed.file, timed.text), heads).words
        for word, (_, begin, end) in zip(words, KNOWN[Path(timed.file).stem]["words"], strict=True):
            differences.append((word.begin - begin, word.end - end))
    return np.array(differences).T


def main() -> None:
    """Print the table as Markdown."""
    print("| found on | measured on | heads | begins: median error | within 100 ms | ends | within 100 ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with in_use(open_model(sys.argv[1])) as model:
        speech, published = shipped_speech(), published_heads(model)
        for count in (2, 8):
            others = speech[count:]
            ranked = [(head.layer, head.head) for head in rank_heads(model, speech[:count]).heads]
            ways: dict[str, str | list[Head]] = {
                f"the first 8 ({len({*ranked[:8]} & {*published})} published)": ranked[:8],
                "the first alone": ranked[:1],
                "the 8 published": published,
                "`--by filter`": "filter",
            }
            for way, heads in ways.items():
                late = errors(model, others, heads)
                cells = [f"the first {count}", f"{len(others)} others, {late.shape[1]} words", way]
                for of_kind in np.abs(late):
                    cells += [f"{1000 * np.median(of_kind):.0f} ms", f"{np.mean(of_kind <= 0.1):.0%}"]
                print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
