"""Models that write after a picture, against generate in transformers."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from attncli.features.browse.question import opened_model, survey_spec
from attncli.features.pictures.reading import read_picture
from attncli.models.loading import open_model
from attncli.settings.text import Texts
from tests.conftest import Attn, some_seldom
from tests.features.reports import report_of
from tools.architecture_sweep.picture_writers import CAPTIONERS, check_writing, save_writer
from tools.architecture_sweep.pictures import picture


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny LLaVA, `model`, and `picture.png`, which it reads as two rows of two patches."""
    folder = tmp_path_factory.mktemp("writers")
    save_writer("llava", folder / "model")
    picture().save(folder / "picture.png")
    return folder


def asked(llava: Path, command: str, *flags: str) -> list[str]:
    return [command, "--model", str(llava / "model"), "--image", str(llava / "picture.png"), *flags]


TO_GPT2, TO_TROCR, FROM_SWIN = CAPTIONERS


@pytest.mark.parametrize(
    "model_type",
    some_seldom(
        [
            *(
                "llava",
                "llava_next",
                "qwen2_vl",
                "qwen3_vl",
                "gemma3",
                "paligemma",
                "idefics3",
                "git",
                "blip",
            ),
            *(TO_GPT2, TO_TROCR),
        ],
        ["llava", "qwen2_vl", "paligemma", "git", TO_TROCR],
    ),
)
def test_tokens_and_weights_match_transformers(model_type: str, tmp_path: Path) -> None:
    result = check_writing(model_type, tmp_path / "model")
    assert result.verdict == "right", (result.wrong, result.refused, result.reason)
    assert result.weights is not None and result.weights < 1e-5


def test_the_picture_is_placed_among_the_words(llava: Path, attn: Attn) -> None:
    found = report_of(attn, *asked(llava, "generate", "ab", "--max-new-tokens", "3"))
    assert found["tokens"][:8] == ["[CLS]", "r1c1", "r1c2", "r2c1", "r2c2", "a", "b", "[SEP]"]
    (one,) = found["pictures"]
    assert [box is None for box in one["boxes"]] == [True, *[False] * 4, *[True] * 5]
    assert np.array(found["tensors"]["weights"]["values"]).shape == (3, 10), "the mean row of each new token"


def test_parts_of_a_picture_lie_on_one_picture(tmp_path: Path, attn: Attn) -> None:
    save_writer("llava_next", tmp_path / "model")
    picture().save(tmp_path / "picture.png")
    found = report_of(attn, *asked(tmp_path, "heads", "ab"))
    (one,) = found["pictures"]
    boxes = dict(zip(found["tokens"], one["boxes"], strict=True))
    np.testing.assert_allclose(boxes["1/r2c2"][2:], (boxes["1/r1c2"][2], 1.0), atol=1e-6)
    left, top, width, height = 0.0, 0.0, one["crop"][2], one["crop"][3]
    second = np.array(boxes["3/r1c1"]) * (width, height, width, height) + (left, top, left, top)
    # The whole picture becomes 47 x 32 in 64 x 64: the second part begins in its middle.
    assert second[0] == pytest.approx(40, abs=0.3)
    assert any("in 5 parts" in note for note in found["notes"])
    alone = attn(["heads", "--model", str(tmp_path / "model"), "--image", str(tmp_path / "picture.png")])
    assert alone.code == 2 and alone.err.endswith("(vision_tower) cuts pictures into parts: add a text\n")


TEMPLATE = (
    "{% for one in messages %}{% for part in one['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}x{% endfor %}"
    "{% if add_generation_prompt %}y{% endif %}"
)


def test_a_chat_template_places_the_picture(llava: Path, attn: Attn) -> None:
    ended = attn(asked(llava, "generate", "ab", "--chat"))
    assert ended.code == 2 and "has no chat template" in ended.err
    template = llava / "model" / "chat_template.jinja"
    try:
        template.write_text(TEMPLATE)
        found = report_of(attn, *asked(llava, "generate", "ab", "--chat", "--max-new-tokens", "1"))
        assert found["tokens"] == ["r1c1", "r1c2", "r2c1", "r2c2", "a", "b", "x", "y"]
        template.write_text("{{ messages[0]['content'][1]['text'] }}")
        ended = attn(asked(llava, "generate", "ab", "--chat"))
        assert ended.code == 2 and "has no place for a picture" in ended.err
        (llava / "model" / "chat_template.json").write_text("{")
        ended = attn(asked(llava, "generate", "ab", "--chat"))
        assert ended.code == 2 and "chat_template.json: is not JSON" in ended.err
    finally:
        template.unlink()
        (llava / "model" / "chat_template.json").unlink(missing_ok=True)


def test_chat_is_refused_if_pictures_precede_all_words(tmp_path: Path, attn: Attn) -> None:
    save_writer("git", tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    picture().save(tmp_path / "picture.png")
    ended = attn(asked(tmp_path, "generate", "ab", "--chat"))
    assert ended.code == 2 and ended.err == ("--chat: model reads pictures before any words: omit --chat\n")


@pytest.mark.parametrize("flags", [(), ("--chat",)], ids=["plain", "chat"])
def test_a_text_with_two_picture_tokens_is_refused(flags: tuple[str, ...], llava: Path, attn: Attn) -> None:
    template = llava / "model" / "chat_template.jinja"
    template.write_text(TEMPLATE)
    ended = attn(asked(llava, "generate", "a<image>b<image>", *flags))
    template.unlink()
    count = 3 if flags else 2
    said = f"TEXT: must contain <image>, the place of the picture, exactly once (got {count})\n"
    assert ended.code == 2 and ended.err == said


def test_ablation_on_words_after_a_picture_matches_transformers(llava: Path, attn: Attn) -> None:
    found = report_of(attn, *asked(llava, "ablate", "abc", "--heads", "1:2"))
    (row,) = found["statistics"]["heads"]
    words = report_of(attn, *asked(llava, "heads", "abc"))["tokens"]
    assert words == ["[CLS]", "r1c1", "r1c2", "r2c1", "r2c2", "a", "b", "c", "[SEP]"]
    inputs = read_picture(open_model(llava / "model"), llava / "picture.png", "abc").inputs
    assert inputs is not None
    model = AutoModelForImageTextToText.from_pretrained(llava / "model", attn_implementation="eager").eval()
    projection = model.model.language_model.layers[1].self_attn.o_proj

    @torch.no_grad()
    def loss() -> float:
        logs = model(**inputs).logits[0].log_softmax(dim=-1)
        ids = inputs["input_ids"][0]
        return float(-torch.stack([logs[place - 1, ids[place]] for place in range(5, 9)]).mean())

    before = loss()
    with torch.no_grad():
        size = projection.in_features // model.config.text_config.num_attention_heads
        projection.weight[:, 2 * size : 3 * size] = 0
    assert row["loss"] == pytest.approx(loss() - before, abs=1e-5) and abs(row["loss"]) > 1e-4


def test_settings_of_texts_are_refused(llava: Path, attn: Attn) -> None:
    ended = attn(asked(llava, "generate", "ab", "--answer", "4"))
    assert ended.code == 2 and ended.err == "--answer: cannot be combined with --image\n"


# Captions: an encoder sees, and a decoder looks at it.


def test_merged_patches_are_refused(tmp_path: Path) -> None:
    result = check_writing(FROM_SWIN, tmp_path / "model")
    assert result.verdict == "refused" and "has 16 keys for 64 tokens" in result.refused[0]


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny ViT with GPT-2, `model`, and `picture.png`."""
    folder = tmp_path_factory.mktemp("captioners")
    save_writer(TO_GPT2, folder / "model")
    picture().save(folder / "picture.png")
    return folder


def test_each_word_of_a_caption_looks_at_the_picture(captioner: Path, attn: Attn) -> None:
    found = report_of(attn, *asked(captioner, "heads", "abc", "--maps", "cross"))
    assert found["context_tokens"] == ["[CLS]", "r1c1", "r1c2", "r2c1", "r2c2"]
    assert [one["axis"] for one in found["pictures"]] == ["context_tokens"]
    reading = read_picture(open_model(captioner / "model"), captioner / "picture.png", "abc")
    assert reading.inputs is not None
    model = AutoModelForImageTextToText.from_pretrained(
        captioner / "model", attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        made = model(**reading.inputs, output_attentions=True)
    crossing = torch.cat(made.cross_attentions).numpy()
    np.testing.assert_allclose(np.array(found["tensors"]["weights"]["values"]), crossing, atol=1e-5)
    looks = np.array(found["tensors"]["looks"]["values"])
    np.testing.assert_allclose(looks, crossing.mean(axis=2), atol=1e-5)
    one = report_of(attn, *asked(captioner, "cross", "abc", "--head", "1:2"))
    np.testing.assert_allclose(np.array(one["tensors"]["weights"]["values"]), crossing[1, 2], atol=1e-5)
    kinds = {row["stack"] for row in found["statistics"]["heads"]}
    assert kinds == {"encoder", "decoder", "cross"}
    screen = attn(asked(captioner, "heads", "abc")).out
    assert "--from" not in screen.splitlines()[-1], "a word looks, not a patch"
    assert "only 4 rows" in screen and "use a longer text" not in screen


@pytest.mark.parametrize(
    "flags",
    [("--sort", "neighbour"), ("--table",), ("--from", "b", "--to", "r1c1")],
    ids=["sort", "table", "from and to"],
)
def test_heads_on_a_picture_and_its_caption_share_a_table(
    flags: tuple[str, ...], captioner: Path, attn: Attn
) -> None:
    ended = attn(asked(captioner, "heads", "abc", *flags, "--color", "never"))
    assert ended.code == 0 and all(stack in ended.out for stack in ("encoder", "cross")), ended.err
    captions = " ".join(re.findall(r"^(?:pict\S* +)?\d:\d .*%.*$", ended.out, re.MULTILINE))
    places = re.findall(r"\d:\d", captions)
    assert len(places) == len({*places}) == (8 if "--table" not in flags else len(places))


def test_saved_heads_of_a_caption_are_opened_and_compared(
    captioner: Path, attn: Attn, tmp_path: Path
) -> None:
    file = str(tmp_path / "a.json")
    assert attn(asked(captioner, "heads", "abc", "-o", file)).code == 0
    shown, compared = attn(["show", file]), attn(["diff", file, file])
    assert shown.code == 0 and "heads: model" in shown.out, shown.err
    assert compared.code == 0 and "head statistics, B minus A" in compared.out, compared.err


@pytest.mark.nightly
def test_many_pictures_are_read_with_the_same_words(
    captioner: Path, llava: Path, attn: Attn, tmp_path: Path
) -> None:
    (tmp_path / "list.txt").write_text(f"{captioner / 'picture.png'}\n{llava / 'picture.png'}\n")
    for folder, stacks in ((captioner, {"encoder", "decoder", "cross"}), (llava, {"self"})):
        flags = ("--model", str(folder / "model"), "--image", str(tmp_path / "list.txt"))
        found = report_of(attn, "heads", "abc", *flags)
        (tmp_path / "words.txt").write_text("abc")
        of_file = report_of(attn, "heads", "--file", str(tmp_path / "words.txt"), *flags)
        assert of_file["statistics"] == found["statistics"]
        assert {row["stack"] for row in found["statistics"]["heads"]} == stacks
        assert found["statistics"]["texts"]["num_texts"] == 2
        one = report_of(attn, *asked(folder, "heads", "abc"))["statistics"]["heads"]
        assert [row["entropy"] for row in found["statistics"]["heads"]] == pytest.approx(
            [row["entropy"] for row in one], abs=1e-6
        )


@pytest.mark.parametrize(
    ("maps", "num_keys", "axes"),
    [
        ("auto", 5, ["context_tokens"]),
        ("self", 6, None),
        ("encoder", 5, ["tokens"]),
    ],
)
def test_maps_of_a_caption_follow_the_setting(
    maps: str, num_keys: int, axes: list[str] | None, captioner: Path, attn: Attn
) -> None:
    found = report_of(attn, *asked(captioner, "heads", "abcd", "--maps", maps))
    assert found["spec"]["maps"] == ("cross" if maps == "auto" else maps)
    assert np.array(found["tensors"]["weights"]["values"]).shape[-1] == num_keys
    assert [one["axis"] for one in found.get("pictures", [])] == (axes or [])


def test_a_browsed_picture_matches_heads(captioner: Path, llava: Path) -> None:
    for folder, text, stack in ((captioner, "abc", "cross"), (llava, None, "self")):
        flags = {"model": str(folder / "model"), "image": str(folder / "picture.png"), "sentence": text}
        given = {name: value for name, value in flags.items() if value}
        _, shown = opened_model(survey_spec(None, given)[0], Texts(text=text))
        assert shown.spec["maps"] == stack and shown.pictures
        assert shown.tensors["weights"].axes == ("layer", "head", "query", "key")


@pytest.mark.nightly
def test_pictures_whose_patches_come_one_after_another_are_surveyed_one_by_one(
    tmp_path: Path, attn: Attn
) -> None:
    save_writer("qwen2_vl", tmp_path / "model")
    for name in ("a", "b"):
        picture().save(tmp_path / f"{name}.png")
    (tmp_path / "list.txt").write_text("a.png\nb.png\n")
    flags = ("--model", str(tmp_path / "model"), "--image")
    found = report_of(attn, "heads", *flags, str(tmp_path / "list.txt"), "--maps", "auto")
    one = report_of(attn, "heads", *flags, str(tmp_path / "a.png"))
    assert found["statistics"]["texts"]["num_texts"] == 2
    assert [row["entropy"] for row in found["statistics"]["heads"]] == pytest.approx(
        [row["entropy"] for row in one["statistics"]["heads"]], abs=1e-6
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cross",), "--sentence: is missing: supply the words that look at the picture"),
        (("self", "abc"), "reads only the picture: omit the text, or use attn cross"),
        (("generate", "abc"), "describes a picture without any text: omit the text"),
        (("cross", "abc", "--context", "x"), "--context: cannot be combined with --image"),
    ],
)
def test_texts_that_an_encoder_does_not_read_are_refused(
    arguments: tuple[str, ...], said: str, captioner: Path, attn: Attn
) -> None:
    ended = attn(asked(captioner, *arguments))
    assert ended.code == 2 and said in ended.err and len(ended.err.splitlines()) == 1, ended.err


def test_a_decoder_with_the_name_of_a_tower_predicts_words(tmp_path: Path, attn: Attn) -> None:
    save_writer("idefics3", tmp_path / "model")  # its parts are a text_model and a vision_model
    found = report_of(attn, "ablate", "abc", "--model", str(tmp_path / "model"), "--heads", "1:2")
    assert "loss" in found["statistics"]["heads"][0]
