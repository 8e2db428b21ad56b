"""Sound in models: eager attention of transformers, token times, and all file formats."""

import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import transformers as hf

from attncli.errors import UserError
from attncli.features.heads.door import survey as surveyed
from attncli.features.sound.files import SoundStream, open_sound, sound_to_play, spectrogram
from attncli.features.sound.reading import HeardSound, read_sound
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer
from attncli.models.loading import borrowed
from attncli.models.pretrained import Reading, reader_of
from attncli.records.surveys import SurveyedHead

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
STACKS = {
    **{"vocab_size": 101, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    **{"encoder_ffn_dim": 37, "decoder_ffn_dim": 37},
}
OF_WAVES: dict[str, Any] = {
    **SIZES,
    **{"conv_dim": (16, 16, 16), "conv_stride": (5, 8, 4), "conv_kernel": (10, 8, 4), "layerdrop": 0.0},
    **{"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
}
SECONDS = 1.3973
NUM_SAMPLES = 22357


def _whisper() -> tuple[Any, Any]:
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    lengths = {"max_source_positions": 100, "max_target_positions": 32, "num_mel_bins": 20}
    model = hf.WhisperModel(hf.WhisperConfig(**STACKS, **ids, **lengths))
    return model, hf.WhisperFeatureExtractor(feature_size=20, chunk_length=2)


def _speech2text() -> tuple[Any, Any]:
    config = hf.Speech2TextConfig(**STACKS, conv_channels=16, input_feat_per_channel=20)
    return hf.Speech2TextModel(config), hf.Speech2TextFeatureExtractor(feature_size=20, num_mel_bins=20)


def _moonshine() -> tuple[Any, Any]:
    counts = {"encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2}
    heads = {"encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4}
    config = hf.MoonshineConfig(vocab_size=101, hidden_size=48, intermediate_size=37, **counts, **heads)
    return hf.MoonshineModel(config), hf.Wav2Vec2FeatureExtractor()


def _parakeet() -> tuple[Any, Any]:
    config = hf.ParakeetEncoderConfig(**SIZES, subsampling_conv_channels=8, num_mel_bins=80)
    return hf.ParakeetEncoder(config), hf.ParakeetFeatureExtractor(feature_size=80)


def _wav2vec2_bert() -> tuple[Any, Any]:
    sizes = {"feature_projection_input_dim": 160, "conv_depthwise_kernel_size": 7, "layerdrop": 0.0}
    return hf.Wav2Vec2BertModel(hf.Wav2Vec2BertConfig(**SIZES, **sizes)), hf.SeamlessM4TFeatureExtractor()


def _spectrogram_transformer() -> tuple[Any, Any]:
    model = hf.ASTModel(hf.ASTConfig(**SIZES, max_length=200, num_mel_bins=40))
    return model, hf.ASTFeatureExtractor(max_length=200, num_mel_bins=40)


def _of_waves(model: Any, config: Any) -> Callable[[], tuple[Any, Any]]:
    return lambda: (model(config(**OF_WAVES)), hf.Wav2Vec2FeatureExtractor())


FAMILIES: dict[str, tuple[Callable[[], tuple[Any, Any]], float, int]] = {
    "wav2vec2": (_of_waves(hf.Wav2Vec2Model, hf.Wav2Vec2Config), 0.01, 139),
    "hubert": (_of_waves(hf.HubertModel, hf.HubertConfig), 0.01, 139),
    "wavlm": (_of_waves(hf.WavLMModel, hf.WavLMConfig), 0.01, 139),
    "conformer": (_of_waves(hf.Wav2Vec2ConformerModel, hf.Wav2Vec2ConformerConfig), 0.01, 139),
    "wav2vec2-bert": (_wav2vec2_bert, 0.02, 69),
    "parakeet": (_parakeet, 0.08, 18),
    "ast": (_spectrogram_transformer, 0.1, 59),
    "whisper": (_whisper, 0.02, 100),
    "moonshine": (_moonshine, 0.024, 56),
    "speech2text": (_speech2text, 0.04, 35),
}
"""The family, the seconds of a token, and how many there are of 1.3973 s."""


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sounds") / "noise.wav"
    samples = np.random.default_rng(1).normal(0, 0.1, NUM_SAMPLES)
    soundfile.write(file, samples.astype(np.float32), 16_000, subtype="FLOAT")
    return file


def _made(name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model, extractor = FAMILIES[name][0]()
    return model.eval(), extractor


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore:At least one mel filter")
def test_weights_match_eager_attention(name: str, noise: Path) -> None:
    model, extractor = _made(name)
    layers: list[CapturedLayer] = []
    with borrowed(name, model, extractor) as pretrained:
        reading = read_sound(pretrained, noise)
        reader = reader_of(pretrained, reading)
        capture(reader.model, reader.inputs([reading]), layers.append)
        part = reader.model
        part.set_attn_implementation("eager")
        with torch.no_grad():
            expected = part(**reading.inputs, output_attentions=True).attentions
    _, step, count = FAMILIES[name]
    heard = reading.origin
    assert isinstance(heard, HeardSound)
    assert (heard.step, len(reading.text.ids)) == (pytest.approx(step), count)
    assert heard.seconds == pytest.approx(SECONDS, abs=1e-4)
    weights = [
        layer.weights()[0] if not hasattr(layer.attention, "weights") else layer.attention.weights[0]
        for layer in layers
    ]
    assert len(weights) == len(expected) == 2
    for given, eager in zip(weights, expected, strict=True):
        torch.testing.assert_close(given, eager[0], atol=1e-5, rtol=0)


def test_cross_attention_matches_eager_attention(noise: Path) -> None:
    model, extractor = _made("whisper")
    with borrowed("whisper", model, extractor) as pretrained:
        sound = read_sound(pretrained, noise)
        ids = torch.tensor([1, 17, 5, 41, 7])
        words = sound.text.__class__(tuple("abcde"), ids)
        inputs = {**(sound.inputs or {}), "decoder_input_ids": ids.unsqueeze(0)}
        reading = Reading(words, sound.text, inputs=inputs)
        cross: list[torch.Tensor] = []
        capture(model, pretrained.inputs([reading]), lambda layer: _keep_cross(layer, cross))
        model.set_attn_implementation("eager")
        with torch.no_grad():
            expected = model(**inputs, output_attentions=True).cross_attentions
    for given, eager in zip(cross, expected, strict=True):
        torch.testing.assert_close(given, eager[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["ast", "whisper"])
@pytest.mark.filterwarnings("ignore:At least one mel filter")
def test_distances_in_time_match_eager_attention(name: str, noise: Path) -> None:
    model, extractor = _made(name)
    with borrowed(name, model, extractor) as pretrained:
        reading = read_sound(pretrained, noise)
        survey = surveyed(pretrained, reading)
        part = reader_of(pretrained, reading).model
        part.set_attn_implementation("eager")
        with torch.no_grad():
            weights = torch.stack(part(**(reading.inputs or {}), output_attentions=True).attentions)[:, 0]
    assert reading.origin is not None
    begins = reading.origin.begins
    kept = ~begins.isnan()
    apart = (begins.unsqueeze(1) - begins).abs()
    far = (weights.double() * apart.nan_to_num(0.0)).sum(dim=-1)[..., kept].mean(dim=-1).flatten()
    near = (weights.double() * (apart < 0.1 - 1e-6)).sum(dim=-1)[..., kept].mean(dim=-1).flatten()
    np.testing.assert_allclose(survey.heads.column("distance_seconds"), far, atol=1e-5)
    np.testing.assert_allclose(survey.heads.column("near_mass"), near, atol=1e-5)
    assert SurveyedHead.columns["distance_seconds"].unit == "seconds"


def _keep_cross(layer: CapturedLayer, kept: list[torch.Tensor]) -> None:
    if layer.kind == "cross":
        kept.append(layer.weights()[0])


def _written(file: Path, samples: Any, rate: int = 16_000, **how: Any) -> Path:
    soundfile.write(file, samples, rate, **how)
    return file


def test_all_file_formats_give_the_same_samples(tmp_path: Path) -> None:
    time = np.arange(48_000) / 48_000
    tone = 0.5 * np.sin(2 * np.pi * 440 * time)
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    files = {
        "stereo.wav": {"samples": np.stack([tone * 1.2, tone * 0.8], axis=1), "rate": 48_000},
        "bytes.wav": {"samples": tone[::3], "subtype": "PCM_U8"},
        "float.wav": {"samples": tone[::3], "subtype": "FLOAT"},
        "lossless.flac": {"samples": tone, "rate": 48_000},
        "lossy.ogg": {"samples": tone, "rate": 48_000},
    }
    for name, how in files.items():
        opened = open_sound(str(_written(tmp_path / name, **how)), 16_000)
        assert len(opened.samples) == 16_000
        inner = slice(800, -800)  # beyond, resampling rings
        assert np.abs(opened.samples[inner] - expected[inner]).max() < (0.02 if "y" in name else 2e-3), name
        assert ("resampled" in " ".join(opened.notes)) == (how.get("rate") == 48_000)


@pytest.mark.parametrize(("name", "place"), [("noise.aiff", 38), ("noise.w64", 98)])
def test_bad_sizes_in_headers_print_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: int
) -> None:
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    path = _written(tmp_path / name, np.random.default_rng(0).normal(0, 0.1, 300))
    content = bytearray(path.read_bytes())
    content[place : place + 4] = b"\xff" * 4
    path.write_bytes(content)
    with suppress(UserError):
        open_sound(str(path), 16_000)
    assert printed == []


def test_files_that_are_not_sounds_are_refused(tmp_path: Path, noise: Path) -> None:
    whole = noise.read_bytes()
    _written(tmp_path / "none.wav", np.zeros(0, dtype=np.float32))
    with_nan = np.zeros(100, dtype=np.float32)
    with_nan[3] = np.nan
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "text.wav").write_text("no sound")
    (tmp_path / "header.wav").write_bytes(whole[:20])
    flac = _written(tmp_path / "whole.flac", np.random.default_rng(0).normal(0, 0.1, 9000)).read_bytes()
    (tmp_path / "cut.flac").write_bytes(flac[: len(flac) // 2])
    refused = {
        "empty.wav": "is not a WAV, FLAC or OGG sound",
        "text.wav": "is not a WAV, FLAC or OGG sound",
        "header.wav": "is not a WAV, FLAC or OGG sound",
        "none.wav": "contains no sound",
        "nan.wav": "NaN",
        "cut.flac": "damaged",
        "channels.wav": r"must have at most 64 channels \(got 65\)",
    }
    _written(tmp_path / "nan.wav", with_nan, subtype="FLOAT")
    _written(tmp_path / "channels.wav", np.zeros((30, 65), dtype=np.float32))
    for name, reason in refused.items():
        with pytest.raises(UserError, match=reason) as refusal:
            open_sound(str(tmp_path / name), 16_000)
        assert "\n" not in str(refusal.value) and name in str(refusal.value)
    long = _written(tmp_path / "long.wav", np.zeros(8000 * 31, dtype=np.int16), 8000)
    reason = (
        r"is 31.00 s long, but whisper reads at most 30 s: use `truncate` to read only its "
        r"beginning, or cut the file: sox"
    )
    with pytest.raises(UserError, match=reason):
        open_sound(str(long), 16_000, most_seconds=30.0, reader="whisper")
    cut = open_sound(str(long), 16_000, most_seconds=29.0, truncate=True)
    assert len(cut.samples) == 29 * 16_000 and cut.notes[-1] == (
        "long.wav: only the first 29 s of 31.00 s were read."
    )


def test_truncate_keeps_as_much_as_the_model_reads(tmp_path: Path) -> None:
    file = _written(tmp_path / "long.wav", np.random.default_rng(0).normal(0, 0.1, 50_021))
    for name, seconds in (("whisper", 2.0), ("ast", 1.9)):
        model, extractor = _made(name)
        with borrowed(name, model, extractor) as pretrained:
            with pytest.raises(UserError, match=r"is 3\.13 s long, but \w+ reads .*`truncate` to read only"):
                read_sound(pretrained, file)
            heard = read_sound(pretrained, file, truncate=True).origin
        assert isinstance(heard, HeardSound) and heard.seconds == pytest.approx(seconds, abs=1e-3)
        assert any("the first" in note and "of 3.13 s were read." in note for note in heard.notes)


@pytest.mark.parametrize("rate", [48_000, 8_000, 22_051])
def test_resampling_in_pieces_matches_the_whole(
    rate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scipy.signal import resample_poly

    monkeypatch.setattr("attncli.features.sound.files.PIECE_SECONDS", 1)
    samples = np.random.default_rng(0).normal(0, 0.1, 3 * rate + 1237).astype(np.float32)
    file = _written(tmp_path / "sound.wav", samples, rate, subtype="FLOAT")
    common = np.gcd(rate, 16_000)
    expected = resample_poly(samples, 16_000 // common, rate // common)
    with SoundStream(str(file), 16_000) as stream:
        pieces = [*stream.pieces()]
    assert len(pieces) == 4 and stream.num_samples == len(expected)
    np.testing.assert_allclose(np.concatenate(pieces), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("cut.wav", {}, "is truncated: it has 21,318 of the 32,000 bytes that its header declares."),
        ("cut.aiff", {}, "is truncated: it has 21,323 of the 32,008 bytes that its header declares."),
        ("cut.ogg", {"count": 160_000}, "is truncated: the end mark of its stream is missing."),
    ],
)
def test_a_truncated_file_is_read_with_a_note(
    name: str, how: dict[str, int], said: str, tmp_path: Path
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, how.get("count", 16_000))
    file = _written(tmp_path / name, noise)
    assert open_sound(str(file), 16_000).notes == ()
    whole = file.read_bytes()
    file.write_bytes(whole[: 2 * len(whole) // 3])
    opened = open_sound(str(file), 16_000)
    assert opened.notes == (f"{name}: {said}",) and 0 < len(opened.samples) < len(noise)


def test_a_stream_without_a_length_is_not_called_truncated(tmp_path: Path) -> None:
    """Programs that write to a pipe do not know the length in advance."""
    file = _written(tmp_path / "piped.wav", np.zeros(1000))
    content = file.read_bytes()
    file.write_bytes(content.replace(b"data" + struct.pack("<I", 2000), b"data\xff\xff\xff\xff"))
    assert open_sound(str(file), 16_000).notes == ()


def test_ten_hours_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """The file has 288 MB of 8-bit samples, but takes no space on disk."""
    file, size = tmp_path / "hours.wav", 36_000 * 8_000
    sizes = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, 8_000, 8_000, 1, 8)
    with file.open("wb") as stream:
        stream.write(sizes + struct.pack("<4sI", b"data", size))
        stream.truncate(44 + size)
    with pytest.raises(
        UserError, match=r"is 36,000.00 s long, but attn reads at most 1800 s: use `truncate`"
    ):
        open_sound(str(file), 16_000)


@pytest.mark.parametrize("samples", [np.zeros(16_000), np.ones(16_000), np.array([0.5])])
def test_silence_clipping_and_one_sample_are_read(samples: Any, tmp_path: Path) -> None:
    """Whisper's extractor pads any sound; others may refuse a single sample."""
    file = _written(tmp_path / "sound.wav", samples)
    model, extractor = _made("whisper")
    with borrowed("whisper", model, extractor) as pretrained:
        assert len(read_sound(pretrained, file).text.ids) == 100
    model, extractor = _made("wav2vec2")
    with borrowed("wav2vec2", model, extractor) as pretrained:
        if len(samples) > 1:
            assert len(read_sound(pretrained, file).text.ids) == 99
        else:
            with pytest.raises(UserError, match="cannot read this sound"):
                read_sound(pretrained, file)


def test_a_text_model_is_refused_for_sound(noise: Path) -> None:
    model = hf.BertModel(hf.BertConfig(**SIZES, vocab_size=101)).eval()
    with (
        borrowed("bert", model, None) as pretrained,
        pytest.raises(UserError, match="no part that reads sound"),
    ):
        read_sound(pretrained, noise)


def test_a_spectrogram_has_high_tones_at_the_top() -> None:
    import io

    from PIL import Image

    rate, seconds = 16_000, 2
    time = np.arange(rate * seconds) / rate
    tones = np.where(time < 1, np.sin(2 * np.pi * 300 * time), np.sin(2 * np.pi * 6000 * time))
    pieces = np.split(tones.astype(np.float32), [7001, 18_003])
    png, size = spectrogram(pieces, rate, len(tones))
    with Image.open(io.BytesIO(png)) as image:
        grey = np.asarray(image)
    assert grey.shape == size[::-1] and grey.dtype == np.uint8
    low, high = grey[:, size[0] // 4].argmax(), grey[:, 3 * size[0] // 4].argmax()
    assert high < 10 < 60 < low


def test_large_files_are_not_embedded_in_pages(tmp_path: Path, noise: Path) -> None:
    assert sound_to_play(str(noise)) == noise.read_bytes()
    large = tmp_path / "large.wav"
    large.write_bytes(bytes(5 * 2**20 + 1))
    assert sound_to_play(str(large)) == sound_to_play(str(tmp_path / "gone.wav")) == b""
