"""Windows of a recording by a random multilingual Whisper, against transformers' own long-form generation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import transformers as hf
from tokenizers import Tokenizer, models

from attncli.features.sound.reading import decoder_prefix, num_before_words
from attncli.features.sound.windows import longer_than_heard, spoken_windows
from attncli.models.loading import borrowed

NUM_WORDS, NUM_TIMES = 40, 101
MARKS = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>")


def _tokenizer() -> Any:
    names = [*(f"w{number}" for number in range(NUM_WORDS)), *MARKS]
    names += [f"<|{0.02 * number:.2f}|>" for number in range(NUM_TIMES)]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="w0"))
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=MARKS[0], additional_special_tokens=[*MARKS[1:]]
    )


def _whisper() -> Any:
    end, start, english, german, task, no_times = range(NUM_WORDS, NUM_WORDS + len(MARKS))
    config = hf.WhisperConfig(
        vocab_size=NUM_WORDS + len(MARKS) + NUM_TIMES,
        **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 37},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 37},
        **{"max_source_positions": 100, "max_target_positions": 32, "num_mel_bins": 20, "init_std": 0.4},
        **{"pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start},
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = hf.WhisperForConditionalGeneration(config).eval()
    settings = {
        "is_multilingual": True,
        "no_timestamps_token_id": no_times,
        "task_to_id": {"transcribe": task},
    }
    settings |= {"lang_to_id": {"<|en|>": english, "<|de|>": german}, "max_initial_timestamp_index": 50}
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.filterwarnings("ignore:At least one mel filter")
def test_windows_of_several_languages_match_transformers(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    model, file = _whisper(), tmp_path / "sound.wav"
    loudness = np.repeat([0.001, 0.2, 0.01, 0.1, 0.05], 20_011)
    samples = (loudness * np.random.default_rng(seed).normal(size=len(loudness))).astype(np.float32)
    soundfile.write(file, samples, 16_000, subtype="FLOAT")
    extractor = hf.WhisperFeatureExtractor(feature_size=20, chunk_length=2)
    features = extractor(
        samples, sampling_rate=16_000, truncation=False, padding="longest", return_tensors="pt"
    )["input_features"]
    with torch.no_grad():
        expected = model.generate(features, return_timestamps=True, task="transcribe", return_segments=True)
    written = [
        number for part in expected["segments"][0] for number in part["tokens"].tolist() if number < NUM_WORDS
    ]
    processor = hf.WhisperProcessor(extractor, _tokenizer())
    with borrowed("whisper", model, processor) as pretrained:
        assert longer_than_heard(pretrained, str(file)) is not None
        windows = [*spoken_windows(pretrained, str(file))]
        before = num_before_words(pretrained)
        assert before == 4
        language = {int(window.reading.text.ids[1]) for window in windows}
        first = decoder_prefix(pretrained, *language)
    assert len(language) == 1 and first == windows[0].reading.text.ids[:before].tolist()
    ours = [number for window in windows for number in window.reading.text.ids[before:].tolist()]
    assert ours == written and windows
