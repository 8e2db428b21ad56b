"""Speech whose times are known, word by word, with silences between: attncli/data/speech.

    apt-get install espeak-ng
    python tools/synthetic_speech.py

espeak-ng says each word by itself; where it begins and ends is where its sound does. Files that are there
stay as they are: each stream has a random number.
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
    "harbor": "The harbor was quiet while the boats waited for the tide.",
    "letter": "My sister wrote a long letter about her journey.",
    "baker": "The baker sold bread and small yellow pies to children.",
    "radio": "After dinner they listened to the radio and talked.",
    "farmer": "A careful farmer looks at the sky before he cuts hay.",
    "museum": "The museum opened another room for paintings and drawings.",
    "bicycle": "Her brother repaired the bicycle and rode to the station.",
    "winter": "In winter the lake freezes and people skate on it.",
    "bridge": "Engineers tested the bridge with heavy trucks before it opened.",
    "window": "Please close the window because the wind is getting cold.",
    "birds": "Thousands of birds cross the valley each year.",
    "train": "Finally the train arrived and everybody found a seat.",
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
            if not (file := FOLDER / f"{name}.ogg").exists():
                how = {"format": "OGG", "subtype": "OPUS", "compression_level": 0.97}
                soundfile.write(file, whole, RATE, **how)
            times[name] = {"text": sentence, "words": words}
    (FOLDER / "times.json").write_text(json.dumps(times, indent=1))


if __name__ == "__main__":
    main()
