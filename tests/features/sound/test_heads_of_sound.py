"""Sound on the command line: surveys of one and of many sounds, subtitles, pages, and errors."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import transformers as hf

from attncli.features.sound.reading import read_sound
from attncli.models.loading import open_model
from tests.conftest import Attn

SIZES = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37},
    **{"conv_dim": (16, 16, 16), "conv_stride": (5, 8, 4), "conv_kernel": (10, 8, 4), "layerdrop": 0.0},
    **{"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Save a random wav2vec 2.0 with two layers and tokens of 10 ms."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("encoder")
    hf.Wav2Vec2Model(hf.Wav2Vec2Config(**SIZES)).save_pretrained(folder)
    hf.Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sounds")
    for number, count in enumerate((5003, 7001, 6007)):
        noise = np.random.default_rng(number).normal(0, 0.1, count)
        soundfile.write(folder / f"{number}.wav", noise, 16_000)
    return folder


@pytest.mark.nightly
def test_the_survey_of_a_folder_is_the_mean_over_its_sounds(attn: Attn, encoder: str, sounds: Path) -> None:
    of_model = ["heads", "--model", encoder, "--format", "json", "--sound"]
    each = [json.loads(attn([*of_model, str(file)]).out) for file in sorted(sounds.glob("*.wav"))]
    every = json.loads(attn([*of_model, str(sounds)]).out)
    rows = every["statistics"]["heads"]
    assert every["statistics"]["texts"]["num_texts"] == 3 and len(rows) == 8
    for number, row in enumerate(rows):
        for name in ("entropy", "distance", "max_weight", "distance_seconds", "near_mass"):
            expected = np.mean([one["statistics"]["heads"][number][name] for one in each])
            assert row[name] == pytest.approx(expected, rel=1e-4)


def test_one_head_is_drawn_over_the_spectrogram(
    attn: Attn, encoder: str, sounds: Path, tmp_path: Path
) -> None:
    sound, of_head = str(sounds / "0.wav"), ["self", "--model", encoder, "--head", "1:2", "--sound"]
    ended = attn([*of_head, sound])
    assert ended.code == 0 and "where the mean of all tokens looks" in ended.out
    assert "31 tokens, model encoder" in ended.out
    report = json.loads(attn([*of_head, sound, "--format", "json"]).out)
    assert report["tokens"][:3] == ["0.00s", "0.01s", "0.02s"]
    assert "0.wav: 0.31 s; 31 tokens of 10 ms." in report["notes"]
    (picture,) = report["pictures"]
    assert picture["seconds"] == pytest.approx(5003 / 16_000) and "sound" not in picture
    assert picture["boxes"][1] == pytest.approx([160 / 5003, 0, 320 / 5003, 1])
    moment = attn([*of_head, sound, "--from", "0.125s"])
    assert "where 0.12s looks" in moment.out
    assert (
        "no token is at this time: the sound is 0.31 s long (got 0.4s)"
        in attn([*of_head, sound, "--from", "0.4s"]).err
    )
    page = tmp_path / "page.html"
    assert attn([*of_head, sound, "-o", str(page)]).code == 0
    assert "media-src blob:" in page.read_text()


def test_heads_of_an_encoder_are_removed(attn: Attn, encoder: str, sounds: Path) -> None:
    sound = str(sounds / "0.wav")
    ended = attn(["ablate", "--model", encoder, "--sound", sound, "--heads", "1:2", "--format", "json"])
    (row,) = json.loads(ended.out)["statistics"]["heads"]
    model = hf.Wav2Vec2Model.from_pretrained(encoder).eval()
    inputs = read_sound(open_model(encoder), sound).inputs
    with torch.no_grad():
        before = model(**inputs)[0][0].double()
        model.encoder.layers[1].attention.out_proj.weight[:, 16:24] = 0
        changes = (model(**inputs)[0][0].double() - before).norm(dim=-1) / before.norm(dim=-1)
    assert row["output_change"] == pytest.approx(float(changes.mean()), rel=1e-4) and row["output_change"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heads", "--sound", "{sound}"], "--sound: needs --model, one that hears, such as Whisper"),
        (["cross", "--sound", "{sound}", "--model", "{model}"], "has no decoder that looks at a sound"),
        (["heads", "--sound", "{sound}", "--model", "{model}", "a b"], "reads no text: omit the text"),
        (["generate", "--sound", "{sound}", "--model", "{model}"], "has no decoder to transcribe a sound"),
        (["heads", "--model", "{model}", "a b"], "takes input_values, not text: pass a sound with --sound"),
        (["self", "--sound", "{folder}", "--model", "{model}"], "must be one sound (got the folder"),
    ],
)
def test_errors_are_one_line(
    attn: Attn, encoder: str, sounds: Path, arguments: list[str], message: str
) -> None:
    places = {"sound": sounds / "0.wav", "model": encoder, "folder": sounds}
    ended = attn([argument.format(**places) for argument in arguments])
    assert ended.code in (1, 2) and message in ended.err and ended.err.count("\n") == 1, ended.err


def test_subtitles_need_spoken_words(attn: Attn) -> None:
    ended = attn(["self", "a b", "--format", "srt"])
    assert ended.code == 2 and "no spoken words: create one with attn heads --sound FILE --words" in ended.err
