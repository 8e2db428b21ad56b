"""Speech whose times are known, word by word, with silences between: attncli/data/speech.

    apt-get install espeak-ng
    python tools/synthetic_speech.py

espeak-ng says each word by itself; where it begins and ends is where its sound does.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import resample_poly

FOLDER = Path(__file__).parents[1] / "attncli" / "data" / "speech"
RATE = 16_000
SILENCE = (0.30, 0.22, 0.36, 0.26, 0.42)
"""Seconds between words, one after another: an even beat could be guessed."""
QUIET = 0.01
"""Of the loudest sample: what is below is no part of the word."""
SENTENCES = {
    "garden": "Yesterday seven children planted yellow flowers behind the old garden wall.",
    "river": "The river carried broken branches under a narrow wooden bridge.",
    "morning": "Every morning my brother drinks coffee before reading the newspaper.",
    "hello": "Hello little world.",
}


def spoken(word: str, folder: Path) -> np.ndarray:
    """One word, without the silence around it."""
    file = folder / "word.wav"
    subprocess.run(["espeak-ng", "-v", "en-us", "-s", "150", "-w", str(file), word], check=True)
    samples, rate = soundfile.read(file)
    samples = resample_poly(samples, RATE, rate)
    loud = np.flatnonzero(np.abs(samples) > QUIET * np.abs(samples).max())
    return np.asarray(samples[loud[0] : loud[-1] + 1])


def main() -> None:
    """Write each sentence as OGG Opus, and where its words are."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, sentence in SENTENCES.items():
            parts, words, place = [np.zeros(int(0.5 * RATE))], [], int(0.5 * RATE)
            for number, word in enumerate(sentence.split()):
                samples = spoken(word, Path(folder))
                words.append([word, round(place / RATE, 4), round((place + len(samples)) / RATE, 4)])
                silence = np.zeros(int(SILENCE[number % len(SILENCE)] * RATE))
                parts += [samples, silence]
                place += len(samples) + len(silence)
            whole = np.concatenate(parts)
            whole *= 0.5 / np.abs(whole).max()
            how = {"format": "OGG", "subtype": "OPUS", "compression_level": 0.9}
            soundfile.write(FOLDER / f"{name}.ogg", whole, RATE, **how)
            times[name] = {"text": sentence, "words": words}
    (FOLDER / "times.json").write_text(json.dumps(times, indent=1))


if __name__ == "__main__":
    main()
