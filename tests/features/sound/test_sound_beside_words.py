"""Audio language models: a sound and a prompt in one stack, by transformers' own eager attention."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

from attncli.errors import UserError
from attncli.features.sound.reading import HeardSound, read_sound
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer
from attncli.models.loading import borrowed
from tests.conftest import Attn

NUM_SAMPLES = 22_357
SECONDS = NUM_SAMPLES / 16_000
WORDS = ("what", "is", "said", "here", "[UNK]", "[PAD]")
ENCODER = {
    **{"encoder_layers": 2, "encoder_attention_heads": 4, "num_mel_bins": 20},
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
}
DECODER = {
    **{"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 37, "vocab_size": 40},
}


def _tokenizer(*marks: str) -> Any:
    names = [*WORDS, *(f"w{number}" for number in range(18)), *marks]  # Voxtral's mark has the id 24
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        additional_special_tokens=[*marks],
    )


def _extractor() -> Any:
    return hf.WhisperFeatureExtractor(feature_size=20, chunk_length=2)


def _qwen2_audio() -> tuple[Any, Any]:
    audio = {**ENCODER, "d_model": 32, "encoder_ffn_dim": 37, "max_source_positions": 100}
    text = {**DECODER, "model_type": "qwen2"}
    model = hf.Qwen2AudioForConditionalGeneration(
        hf.Qwen2AudioConfig(audio_config=audio, text_config=text, audio_token_index=24)
    )
    marks = _tokenizer("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    return model, hf.Qwen2AudioProcessor(_extractor(), marks)


def _voxtral() -> tuple[Any, Any]:
    audio = {**ENCODER, "intermediate_size": 128, "max_source_positions": 100}
    text = {**DECODER, "model_type": "llama", "head_dim": 8}
    model = hf.VoxtralForConditionalGeneration(
        hf.VoxtralConfig(audio_config=audio, text_config=text, audio_token_id=24)
    )
    return model, hf.VoxtralProcessor(_extractor(), _tokenizer("[AUDIO]", "[BEGIN_AUDIO]"))


FAMILIES = {
    "qwen2-audio": (_qwen2_audio, 0.04, 35, ("<|audio_bos|>",), ("<|audio_eos|>",)),
    "voxtral": (_voxtral, 0.08, 25, ("[BEGIN_AUDIO]",), ()),
}
"""The family, the seconds of a token, how many there are, and what stands before and after them."""


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sounds") / "noise.wav"
    samples = np.random.default_rng(1).normal(0, 0.1, NUM_SAMPLES)
    soundfile.write(file, samples.astype(np.float32), 16_000, subtype="FLOAT")
    return file


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore:At least one mel filter")
def test_a_sound_has_its_seconds_beside_the_words_of_a_prompt(name: str, noise: Path) -> None:
    made, step, count, before, after = FAMILIES[name]
    torch.manual_seed(0)
    model, processor = made()
    model.eval()
    layers: list[CapturedLayer] = []
    with borrowed(name, model, processor) as pretrained:
        reading = read_sound(pretrained, noise, " what is said")
        capture(pretrained.model, pretrained.inputs([reading]), layers.append)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            expected = model(**(reading.inputs or {}), output_attentions=True).attentions
    seconds = tuple(f"{step * place:.2f}s" for place in range(count))
    assert reading.text.tokens == (*before, *seconds, *after, "what", "is", "said")
    heard = reading.origin
    assert isinstance(heard, HeardSound) and heard.step == pytest.approx(step)
    assert heard.seconds == pytest.approx(SECONDS, abs=1e-4)
    on_sound = ~heard.begins.isnan()
    assert int(on_sound.sum()) == count and on_sound.tolist().index(True) == len(before)
    assert len(layers) == len(expected) == 3
    for layer, eager in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer.weights(), eager, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:At least one mel filter")
def test_a_prompt_says_where_the_sound_is_once(noise: Path) -> None:
    model, processor = _qwen2_audio()
    with borrowed("qwen", model.eval(), processor) as pretrained:
        reading = read_sound(pretrained, noise, "what <|AUDIO|> is said")
        assert reading.text.tokens[0] == "what" and reading.text.tokens[-2:] == ("is", "said")
        with pytest.raises(UserError, match=r"must hold <\|AUDIO\|>, the place of the sound, once \(got 2"):
            read_sound(pretrained, noise, "<|AUDIO|> <|AUDIO|>")
        with pytest.raises(UserError, match=r"is 3.00 s long, and qwen reads 2 s"):
            file = noise.with_name("long.wav")
            soundfile.write(file, np.zeros(48_000), 16_000)
            read_sound(pretrained, file, "what")


@pytest.mark.filterwarnings("ignore:At least one mel filter")
def test_a_survey_of_a_folder_on_the_disk_reads_sound_and_prompt(
    attn: Attn, noise: Path, tmp_path: Path
) -> None:
    model, processor = _qwen2_audio()
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    of_model = ["--model", str(tmp_path), "--sound", str(noise), "what is said"]
    ended = attn(["heads", *of_model, "--format", "json"])
    assert ended.code == 0, ended.err
    assert '"0.04s"' in ended.out and "35 tokens of 40 ms" in ended.out
    ended = attn(["self", *of_model, "--head", "1:2"])
    assert ended.code == 0, ended.err
    assert "where the mean of all tokens looks" in ended.out


@pytest.mark.filterwarnings("ignore:At least one mel filter")
def test_clap_whose_tokens_lie_in_squares_is_refused_in_a_line(noise: Path) -> None:
    audio = {
        **{"hidden_size": 32, "depths": [1, 1], "num_attention_heads": [2, 4], "spec_size": 256},
        **{"patch_embeds_hidden_size": 16, "num_hidden_layers": 2, "enable_fusion": True},
    }
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 40}
    config = hf.ClapConfig(audio_config=audio, text_config=text, projection_dim=16)
    with (
        borrowed("clap", hf.ClapModel(config).eval(), hf.ClapFeatureExtractor()) as pretrained,
        pytest.raises(UserError, match="its tokens do not lie in time one after another") as refusal,
    ):
        read_sound(pretrained, noise)
    assert "\n" not in str(refusal.value)
