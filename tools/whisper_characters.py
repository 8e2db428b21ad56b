"""The filter of 2509.09987 by its authors' code, for tests: tests/features/words/whisper_characters.json.

In the environment of tools/whisper_alignment.py, with num2words beside it:

    git clone https://github.com/30stomercury/whisper-char-alignment
    /tmp/peer/bin/python tools/whisper_characters.py FOLDER whisper-char-alignment

FOLDER is what tools/whisper_from_wheel.py writes. Characters of each sentence that ships are fed, as their
README does it: a median filter of three frames, the ten heads with the most concentrated weights.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

import soundfile
import torch
import whisper
from whisper.audio import N_FRAMES, log_mel_spectrogram, pad_or_trim
from whisper.tokenizer import get_tokenizer
from whisper_alignment import ROOT, openai_model

OUTPUT = ROOT / "tests" / "features" / "words" / "whisper_characters.json"
SOUNDS = "garden", "river", "letter"


def main() -> None:
    """Time the words of some shipped sounds, and score every head."""
    sys.path.insert(0, sys.argv[2])
    retokenize, timing = import_module("retokenize"), import_module("timing")
    model, tokenizer = openai_model(Path(sys.argv[1])), get_tokenizer(multilingual=False)
    speech = ROOT / "attncli" / "data" / "speech"
    times = json.loads((speech / "times.json").read_text())
    rows = {}
    for name in SOUNDS:
        samples, _ = soundfile.read(speech / f"{name}.ogg", dtype="float32")
        mel = pad_or_trim(log_mel_spectrogram(samples, 80, padding=480_000), N_FRAMES)
        ids = retokenize.encode(retokenize.remove_punctuation(times[name]["text"]), tokenizer, "char")
        tokens = torch.tensor([*tokenizer.sot_sequence, tokenizer.no_timestamps, *ids, tokenizer.eot])
        weights, _ = timing.get_attentions(mel, tokens, model, tokenizer, len(samples) // 320, 3, 1.0)
        _, scores = timing.filter_attention(weights, 24)
        words, starts, ends, _, chosen = timing.force_align(weights, ids, tokenizer, "char", "topk", 10)
        count = len(words) - 1  # the last one is the end
        rows[name] = {
            "scores": {f"{layer}:{head}": round(score, 5) for score, (layer, head), _ in scores},
            "heads": [f"{layer}:{head}" for _, (layer, head), _ in reversed(chosen)],
            "words": [
                [word.strip(), round(float(start), 4), round(float(end), 4)]
                for word, start, end in zip(words[:count], starts, ends, strict=False)
            ],
        }
    OUTPUT.write_text(json.dumps({"openai-whisper": whisper.__version__, "sounds": rows}, indent=1))


if __name__ == "__main__":
    main()
