"""Models that transcribe sound: tokens and weights of generate in transformers, and ablated heads."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import transformers as hf

import attncli
from attncli.errors import UserError
from attncli.features.sound.reading import read_sound
from attncli.models.loading import open_model
from tests.conftest import Attn
from tests.features.reports import report_of
from tests.model_folders import save_tokenizer

SIZES = {
    **{"vocab_size": 37, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    **{"encoder_ffn_dim": 41, "decoder_ffn_dim": 41, "max_target_positions": 24},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
}


def _whisper(folder: Path) -> None:
    config = hf.WhisperConfig(**SIZES, max_source_positions=100, num_mel_bins=20, init_std=0.4)
    model = hf.WhisperForConditionalGeneration(config)
    settings: Any = model.generation_config
    settings.max_length, settings.no_timestamps_token_id = 13, 36
    settings.is_multilingual, settings.return_timestamps = False, False
    settings.begin_suppress_tokens, settings._from_model_config = None, False
    model.save_pretrained(folder)
    hf.WhisperFeatureExtractor(feature_size=20, chunk_length=2).save_pretrained(folder)


def _speech2text(folder: Path) -> None:
    config = hf.Speech2TextConfig(**SIZES, conv_channels=16, input_feat_per_channel=20, init_std=0.4)
    model = hf.Speech2TextForConditionalGeneration(config)
    settings: Any = model.generation_config
    settings.max_length, settings.suppress_tokens, settings._from_model_config = 11, [2], False
    model.save_pretrained(folder)
    hf.Speech2TextFeatureExtractor(feature_size=20, num_mel_bins=20).save_pretrained(folder)


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save tiny random models that transcribe, and `noise.wav` of 1.4 seconds."""
    folder = tmp_path_factory.mktemp("writers")
    for name, save in {"whisper": _whisper, "speech2text": _speech2text}.items():
        torch.manual_seed(3)
        save(folder / name)
        save_tokenizer(folder / name)
    samples = np.random.default_rng(1).normal(0, 0.1, 22_357)
    soundfile.write(folder / "noise.wav", samples.astype(np.float32), 16_000, subtype="FLOAT")
    soundfile.write(folder / "other.wav", samples[:17_003][::-1].astype(np.float32), 16_000, subtype="FLOAT")
    return folder


def asked(writers: Path, command: str, *flags: str, model: str = "whisper") -> list[str]:
    return [command, "--model", str(writers / model), "--sound", str(writers / "noise.wav"), *flags]


@pytest.mark.parametrize("name", ["whisper", "speech2text"])
def test_tokens_and_weights_match_transformers(name: str, writers: Path) -> None:
    pretrained = open_model(writers / name)
    reading = read_sound(pretrained, writers / "noise.wav")
    written = attncli.generate(pretrained, reading, maps="mean", top_k=2)
    model: Any = pretrained.whole
    with torch.no_grad():
        model.config.use_cache = True
        (ids,) = model.generate(**reading.inputs)
        model.set_attn_implementation("eager")
        before = [1, 36] if name == "whisper" else [1]
        read = torch.tensor([[*before, *written.ids[:-1]]])
        cross = model(**reading.inputs, decoder_input_ids=read, output_attentions=True).cross_attentions
    kept = [number for number in ids.tolist() if 2 < number < 36]
    assert [number for number in written.ids if number > 2] == kept and len(kept) > 4
    assert written.text == pretrained.text_of(ids.tolist())
    rows = torch.stack([weights[0] for weights in cross])[:, :, len(before) - 1 :]
    assert written.weights is not None and written.weights.values.shape == rows.shape[2:]
    np.testing.assert_allclose(written.weights.values, rows.mean(dim=(0, 1)), atol=1e-5)
    head = written.heads[5]
    assert (head.layer, head.head) == (1, 1)
    assert head.number("max_weight") == pytest.approx(float(rows[1, 1].amax(dim=-1).mean()), abs=1e-5)


@pytest.mark.parametrize("heads", ["filter", ["1:2"]])
def test_transcribing_runs_the_encoder_once(heads: str | list[str], writers: Path) -> None:
    pretrained, runs = open_model(writers / "whisper"), list[int]()
    pretrained.whole.get_encoder().register_forward_hook(lambda *_: runs.append(1))
    attncli.spoken_words(pretrained, writers / "noise.wav", heads=heads)  # also what is measured once
    runs.clear()
    words = attncli.spoken_words(pretrained, writers / "noise.wav", heads=heads)
    assert len(runs) == 1
    again = attncli.spoken_words(pretrained, read_sound(pretrained, writers / "noise.wav", ""), heads=heads)
    assert len(runs) == 3
    (word,), (of_reading,) = words.words, again.words
    assert (of_reading.begin, of_reading.end) == (word.begin, word.end)
    assert of_reading.probability == pytest.approx(word.probability, abs=1e-5)
    with attncli.patch(pretrained, "encoder:1:2", lambda head: 0 * head.output) as patched:
        reading = read_sound(patched, writers / "noise.wav", "")
        (changed,) = attncli.spoken_words(patched, writers / "noise.wav", heads=heads).words
        (of_changed,) = attncli.spoken_words(patched, reading, heads=heads).words
    assert changed.probability == pytest.approx(of_changed.probability, abs=1e-5)
    assert abs(changed.probability - word.probability) > 1e-4


def test_heads_that_cannot_time_words_are_refused(writers: Path) -> None:
    pretrained, sound = open_model(writers / "whisper"), writers / "noise.wav"
    with pytest.raises(UserError, match=r"from 0:0 to 1:3 in .* \(got 2:0\)"):
        attncli.spoken_words(pretrained, sound, "the cat", heads=[(2, 0)])
    with pytest.raises(
        UserError, match=r"heads: must be model, found, filter, or heads such as 2:0 \(got none\)"
    ):
        attncli.spoken_words(pretrained, sound, heads=[])
    with pytest.raises(UserError, match=r"must hold at least one token \(got an empty text\)"):
        attncli.spoken_words(pretrained, sound, "   ", heads=[(1, 0)])


def test_sampling_depends_on_the_temperature(writers: Path) -> None:
    pretrained = open_model(writers / "whisper")
    reading = read_sound(pretrained, writers / "noise.wav")
    likeliest, *sampled = (
        attncli.generate(pretrained, reading, max_new_tokens=7, temperature=temperature, seed=seed).ids
        for temperature, seed in ((None, 0), (50.0, 0), (50.0, 0), (50.0, 1))
    )
    assert len(likeliest) <= 7 and likeliest != sampled[0] == sampled[1] != sampled[2]


@pytest.mark.nightly
def test_each_word_has_its_overlay_on_a_page_that_plays(writers: Path, attn: Attn, tmp_path: Path) -> None:
    flags = asked(writers, "generate", "--color", "never")
    screen = attn(flags).out
    assert "where each word looked in noise.wav" in screen and "heads with the largest max_weight" in screen
    assert len(re.findall(r"\b[0-9]+%(?= |$)", screen, re.MULTILINE)) == 13, screen
    read = report_of(attn, *flags)
    assert read["context_tokens"][:2] == ["0.00s", "0.02s"] and len(read["tokens"]) == 13
    (picture,) = read["pictures"]
    assert picture["axis"] == "context_tokens" and sum(box is not None for box in picture["boxes"]) == 70
    one_head = report_of(attn, *flags, "--head", "1:2")
    assert np.array(one_head["tensors"]["weights"]["values"]).shape == (13, 100)
    page = tmp_path / "x.html"
    assert attn([*flags, "-o", str(page)]).code == 0 and "media-src blob:" in page.read_text()
    assert attn([*flags, "-o", str(tmp_path / "x.png")]).code == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["ab"], "TEXT: whisper transcribes a sound without any text: omit the text"),
        (["--answer", "ab"], "--answer: cannot be combined with --sound"),
        (["--max-new-tokens", "23"], "has room for 24 tokens (got 2 before the words and 23 new ones)"),
        (["--head", "2:0"], "head: must be from 0:0 to 1:3"),
    ],
)
def test_settings_of_texts_are_refused_for_sound(
    flags: list[str], message: str, writers: Path, attn: Attn
) -> None:
    ended = attn(asked(writers, "generate", *flags))
    assert ended.code in (1, 2) and message in ended.err and ended.err.count("\n") == 1, ended.err


@pytest.mark.parametrize("name", ["self 1:2", "encoder 0:1", "cross 1:3"])
def test_ablation_on_the_words_matches_transformers(name: str, writers: Path, attn: Attn) -> None:
    stack, place = name.split()
    layer, head = map(int, place.split(":"))
    rows = report_of(attn, *asked(writers, "ablate", "the cat sat on the street"))["statistics"]["heads"]
    stack_of = {"self": "decoder"}.get(stack, stack)
    (row,) = (
        each for each in rows if [each[key] for key in ("stack", "layer", "head")] == [stack_of, layer, head]
    )
    assert len(rows) == 24
    inputs = read_sound(
        open_model(writers / "whisper"), writers / "noise.wav", "the cat sat on the street"
    ).inputs
    assert inputs is not None
    ids = inputs["decoder_input_ids"][0]
    model = hf.WhisperForConditionalGeneration.from_pretrained(
        writers / "whisper", attn_implementation="eager"
    )
    block = (model.model.encoder if stack == "encoder" else model.model.decoder).layers[layer]
    attention = block.encoder_attn if stack == "cross" else block.self_attn

    @torch.no_grad()
    def loss() -> float:
        logs = model(**inputs).logits[0].log_softmax(dim=-1)
        return float(-torch.stack([logs[at - 1, ids[at]] for at in range(2, len(ids))]).mean())

    before = loss()
    with torch.no_grad():
        attention.out_proj.weight[:, 8 * head : 8 * head + 8] = 0
    assert row["loss"] == pytest.approx(loss() - before, abs=1e-5) and abs(row["loss"]) > 1e-5


def test_heads_are_ablated_on_the_transcript(writers: Path, attn: Attn) -> None:
    ended = attn(asked(writers, "ablate", "--heads", "cross:0:1"))
    assert ended.code == 0 and "tokens of the words" in ended.out
    assert "--texts FILE" not in ended.out
    refused = attn(asked(writers, "ablate", "--method", "swap", "--other", "x"))
    assert refused.code == 2 and "swap cannot be combined with --sound" in refused.err
