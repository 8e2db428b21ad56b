"""Pictures in models: file formats, the places of tokens, and statistics of heads."""

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image
from transformers import AutoConfig, AutoImageProcessor, AutoModel, PreTrainedConfig

import attncli
from attncli.errors import UserError
from attncli.features.ablate.effects import Baseline
from attncli.features.pictures.image_processor import Processing
from attncli.features.pictures.reading import read_picture
from attncli.features.pictures.tokens import PictureTokens
from attncli.measure.looks import HIGH_NORM, HeadLooks, LastNorms
from attncli.models.image_files import open_picture
from attncli.models.loading import open_model
from attncli.models.predicted import predicted_reading
from tests.conftest import Attn
from tests.features.reports import report_of
from tests.model_folders import save_model as save_text_model
from tools.architecture_sweep import pictures as sweep
from tools.architecture_sweep.pictures import check, picture, save_model
from tools.architecture_sweep.tiny_config import Sizes, tiny_config

REGISTERS = "dinov2_with_registers"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Save tiny models by type, and `picture`, which has 80 by 54 pixels."""
    root = tmp_path_factory.mktemp("pictures")
    found = {"picture": root / "picture.png", "many": root / "many"}
    picture().save(found["picture"])
    found["many"].mkdir()
    for number in range(3):
        picture().rotate(90 * number, expand=True).save(found["many"] / f"{number}.png")
    (found["many"] / "broken.png").write_bytes(b"none")
    for model_type in (REGISTERS, "siglip_vision_model", "clip", "llava"):
        found[model_type] = root / model_type
        save_model(model_type, found[model_type])
    _finer(found[REGISTERS])
    return found


def _finer(folder: Path) -> None:
    """Use patches of 8 pixels on pictures that are cropped like those of DINOv2: four rows of four."""
    torch.manual_seed(5)
    config = json.loads((folder / "config.json").read_text()) | {"patch_size": 8, "num_register_tokens": 2}
    (folder / "config.json").write_text(json.dumps(config))
    model = AutoModel.from_config(AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    processor.size, processor.crop_size = {"shortest_edge": 40}, {"height": 32, "width": 32}
    processor.do_center_crop = True
    processor.save_pretrained(folder)


def tensor(found: dict[str, Any], name: str) -> np.ndarray:
    return np.array(found["tensors"][name]["values"], dtype=np.float64)


# Files.


def colours(file: Path) -> np.ndarray:
    return np.asarray(open_picture(str(file)).image)


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.new("RGB", (30, 20), "red").save(tmp_path / "a.jpg", exif=exif)
    assert open_picture(str(tmp_path / "a.jpg")).image.size == (20, 30)


def test_all_colour_modes_become_rgb(tmp_path: Path) -> None:
    Image.new("CMYK", (4, 3), (0, 255, 255, 0)).save(tmp_path / "cmyk.jpg")
    assert (colours(tmp_path / "cmyk.jpg")[0, 0] - np.array([255, 0, 0])).max() < 5
    deep = np.full((3, 4), 65535, dtype=np.uint16)
    deep[0, 0] = 257 * 100
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert colours(tmp_path / "deep.png")[0, 0].tolist() == [100] * 3
    assert colours(tmp_path / "deep.png")[1, 1].tolist() == [255] * 3
    Image.new("RGBA", (4, 3), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert colours(tmp_path / "clear.png")[0, 0].tolist() == [255] * 3, "transparent is white"
    palette = Image.new("P", (4, 3), 1)
    palette.putpalette([0, 0, 0, 0, 0, 255])
    palette.save(tmp_path / "palette.png", transparency=0)
    assert colours(tmp_path / "palette.png")[0, 0].tolist() == [0, 0, 255]


def test_the_first_of_several_frames_is_read(tmp_path: Path) -> None:
    first, second = (Image.new("L", (4, 3), shade) for shade in (0, 255))
    first.save(tmp_path / "a.gif", save_all=True, append_images=[second])
    opened = open_picture(str(tmp_path / "a.gif"))
    assert opened.notes == ("a.gif: only the first of its 2 pictures is shown.",)
    assert np.asarray(opened.image).max() == 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "must be a picture: PNG, JPEG, WebP, GIF, BMP, TIFF, PPM or AVIF"),
        (b"\x89PNG\r\n\x1a\n" + bytes(20), "cannot be read|is damaged|must be a picture"),
        (b"\xc5\xd0\xd3\xc6" + bytes(26) + b"%!PS-Adobe-3.0\n", "must be a picture: PNG, "),
        (b"8BPS\0\1" + bytes(100), "must be a picture: PNG, "),
    ],
)
def test_files_that_are_not_pictures_are_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(UserError, match=rf"image: .*a\.png: ({said})"):
        open_picture(str(tmp_path / "a.png"))


def test_postscript_named_as_a_picture_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **_: started.append(given))
    header = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\n"
    (tmp_path / "a.png").write_bytes(header + b"showpage\n%%EOF\n")
    with pytest.raises(UserError, match=r"a\.png: must be a picture: PNG"):
        open_picture(str(tmp_path / "a.png"))
    assert started == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (os.mkfifo, "it is a pipe, not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 2**33), "larger than 1,024 MiB"),
    ],
    ids=["pipe", "device", "folder", "sparse"],
)
def test_pipes_devices_and_huge_files_are_refused(
    change: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    change(tmp_path / "a.png")
    with pytest.raises(UserError, match=rf"a\.png: cannot be read: .*{said}"):
        open_picture(str(tmp_path / "a.png"))


def test_truncated_and_huge_pictures_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture().save(tmp_path / "a.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:300])
    with pytest.raises(UserError, match=r"cut\.png: cannot be read"):
        open_picture(str(tmp_path / "cut.png"))
    for most in (4000, 1000):  # a warning of Pillow's, and twice as many an error
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(
            UserError, match=r"a\.png: must have at most .* pixels in total: make the picture smaller"
        ):
            open_picture(str(tmp_path / "a.png"))


def test_decompression_bombs_are_refused(tmp_path: Path) -> None:
    Image.new("L", (6000, 6000)).save(tmp_path / "a.png")
    Image.new("L", (4000, 4000)).save(tmp_path / "b.png")
    with pytest.raises(UserError, match=r"a\.png: has 36 million pixels in .*, mostly of one colour: make"):
        open_picture(str(tmp_path / "a.png"))
    assert open_picture(str(tmp_path / "b.png")).image.size == (4000, 4000)


def test_a_tiny_picture_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    Image.new("RGB", (200, 3), "red").save(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png: must be at least 16 pixels high and wide \(got 200 × 3\)"):
        read_picture(open_model(folders[REGISTERS]), tmp_path / "a.png")


def test_backquotes_in_processor_errors_are_not_flags() -> None:
    def failing(**_: object) -> None:
        raise ValueError("Mismatch in `image` token count")

    with pytest.raises(UserError, match=r"the processor of m failed: Mismatch in 'image' token count"):
        Processing(failing, "m").inputs(picture())


# Where tokens lie.


def test_token_places_follow_crop_and_resize(folders: dict[str, Path]) -> None:
    reading = read_picture(open_model(folders[REGISTERS]), folders["picture"])
    seen = reading.origin
    assert isinstance(seen, PictureTokens) and seen.special is not None
    assert reading.text.tokens[:3] == ("[CLS]", "reg1", "reg2")
    assert reading.text.tokens[3:8] == ("r1c1", "r1c2", "r1c3", "r1c4", "r2c1")
    assert len(reading.text.tokens) == 19 and seen.special.tolist() == [True] * 3 + [False] * 16
    assert seen.grid is not None and seen.grid[:3].isnan().all()
    assert seen.grid[8].tolist() == [1.0, 1.0]
    (one,) = seen.pictures
    # 80 x 54 becomes 59 x 40, of which the middle 32 x 32 stay.
    left, top, width = 13 / 59 * 80, 4 / 40 * 54, 32 / 59 * 80
    np.testing.assert_allclose(one.crop, (left, top, left + width, top + 32 / 40 * 54), atol=0.25)
    assert one.size == (80, 54) and one.boxes[0] is None
    np.testing.assert_allclose(one.boxes[8], (0.25, 0.25, 0.5, 0.5), atol=1e-6)
    assert "4 rows of 4 patches" in reading.left_out_notes()[0]


@pytest.mark.parametrize(
    ("kind", "size"),
    [("crop", (16, 900)), ("crop", (17, 4000)), ("square", (2000, 40)), ("neither", (17, 4000))],
)
def test_token_places_on_elongated_pictures(
    kind: str, size: tuple[int, int], folders: dict[str, Path], tmp_path: Path
) -> None:
    """A patch of the crop is a small part of the picture, which 256 shades over the whole do not resolve."""
    processor = AutoImageProcessor.from_pretrained(folders[REGISTERS], backend="pil")
    shutil.copytree(folders[REGISTERS], tmp_path / "model")
    if kind == "square":
        processor.size, processor.do_center_crop = {"height": 32, "width": 32}, False
    processor.do_resize = kind != "neither"
    processor.save_pretrained(tmp_path / "model")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)).save(
        tmp_path / "long.png"
    )
    seen = read_picture(open_model(tmp_path / "model"), tmp_path / "long.png").origin
    assert isinstance(seen, PictureTokens)
    width, height = size
    side = 32 if kind == "neither" else min(size) * 32 / 40
    wide, high = (width, height) if kind == "square" else (min(side, width), min(side, height))
    expected = ((width - wide) / 2, (height - high) / 2, (width + wide) / 2, (height + high) / 2)
    np.testing.assert_allclose(seen.pictures[0].crop, expected, atol=0.8)


@pytest.mark.parametrize("model_type", ["vit", "beit", "dinov3_vit", "clip", "blip", "vit_mae", "qwen2_vl"])
def test_architectures_are_right(model_type: str, tmp_path: Path) -> None:
    result = check(model_type, tmp_path / "model")
    assert result.verdict == "right", (result.wrong, result.refused, result.reason)
    assert result.weights is not None and result.weights < 1e-5


@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        ("swin", "attends within windows"),
        ("maskformer-swin", "NoneType"),  # its own eager attention fails as well
        ("convnext", "has no attention to show"),
    ],
)
def test_architectures_without_tokens_for_patches_are_refused(
    model_type: str, said: str, tmp_path: Path
) -> None:
    result = check(model_type, tmp_path / "model")
    assert result.verdict == "refused" and len(result.refused) == 1, (result.wrong, result.reason)
    assert said in result.refused[0]


def test_a_model_that_adds_to_its_mask_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def config_with_bias(model_type: str, sizes: Sizes) -> PreTrainedConfig:
        config = tiny_config(model_type, sizes)
        config.use_relative_position_bias = True
        return config

    monkeypatch.setattr(sweep, "tiny_config", config_with_bias)
    result = check("beit", tmp_path / "model")
    assert result.verdict == "right" and result.how == "interface", (result.wrong, result.refused)


def test_words_and_patches_in_one_stack_need_an_order(folders: dict[str, Path], tmp_path: Path) -> None:
    save_model("vilt", tmp_path / "vilt")
    with pytest.raises(
        UserError, match="it reads different parts of the picture, or in a different order, each"
    ):
        read_picture(open_model(tmp_path / "vilt"), folders["picture"], "ab")


# What heads do.


def test_statistics_on_a_picture_are_those_of_its_patches(folders: dict[str, Path], attn: Attn) -> None:
    found = report_of(
        attn, "heads", "--model", folders[REGISTERS], "--image", folders["picture"], "--maps", "self"
    )
    rows, weights = found["statistics"]["heads"], tensor(found, "weights")
    names = {name for row in rows for name in row}
    assert not names & {"previous_token", "next_token", "induction", "duplicate_token", "local_mass"}
    places = [(number // 4, number % 4) for number in range(16)]
    apart = np.array([[math.dist(a, b) for b in places] for a in places])
    around = np.array([[max(abs(a[0] - b[0]), abs(a[1] - b[1])) == 1 for b in places] for a in places])
    for row in rows:
        own = weights[row["layer"], row["head"]]
        on_patches = own[3:, 3:]
        assert row["neighbour"] == pytest.approx((on_patches * around).sum(axis=1).mean(), abs=1e-6)
        distances = (on_patches * apart).sum(axis=1) / on_patches.sum(axis=1)
        assert row["distance"] == pytest.approx(distances.mean(), abs=1e-5)
        assert row["special_mass"] == pytest.approx(own[:, :3].sum(axis=1).mean(), abs=1e-6)
        assert row["current_token"] == pytest.approx(np.diag(own).mean(), abs=1e-6)
    (picture,) = found["pictures"]
    assert picture["name"] == "picture.png" and len(picture["boxes"]) == len(found["tokens"]) == 19


def test_looks_are_the_rows_of_the_query(folders: dict[str, Path], attn: Attn) -> None:
    flags = ("heads", "--model", folders[REGISTERS], "--image", folders["picture"], "--maps", "self")
    by_cls = report_of(attn, *flags)
    weights = tensor(by_cls, "weights")
    np.testing.assert_allclose(tensor(by_cls, "looks"), weights[:, :, 0], atol=1e-6)
    np.testing.assert_allclose(tensor(by_cls, "mean_look"), weights[:, :, 0].mean(axis=1), atol=1e-6)
    assert by_cls["spec"]["from"] == ["[CLS]"]
    rolled = np.eye(19)
    for layer in weights.mean(axis=1):
        mixed = 0.5 * layer + 0.5 * np.eye(19)
        rolled = mixed / mixed.sum(axis=1, keepdims=True) @ rolled
    np.testing.assert_allclose(tensor(by_cls, "rollout"), rolled[0], atol=1e-6)
    for name in ("r2c3", "0.6,0.4"):
        by_patch = report_of(attn, *flags, "--from", name)
        assert by_patch["spec"]["from"] == ["r2c3"]
        np.testing.assert_allclose(tensor(by_patch, "looks"), weights[:, :, 9], atol=1e-6)
    one = report_of(attn, "self", *flags[1:5], "--head", "1:2", "--from", "r2c3")
    np.testing.assert_allclose(tensor(one, "weights"), weights[1, 2], atol=1e-6)
    assert one["spec"]["from"] == ["r2c3"] and one["pictures"] == by_cls["pictures"]
    assert one["statistics"]["rows"]["distance"][0] is None, "[CLS] lies nowhere"


def test_without_cls_looks_are_means_over_queries(folders: dict[str, Path], attn: Attn) -> None:
    flags = ("--model", folders["siglip_vision_model"], "--image", folders["picture"], "--maps", "self")
    found = report_of(attn, "heads", *flags)
    assert found["tokens"] == ["r1c1", "r1c2", "r2c1", "r2c2"] and "from" not in found["spec"]
    weights = tensor(found, "weights")
    np.testing.assert_allclose(tensor(found, "looks"), weights.mean(axis=2), atol=1e-6)


def test_patches_far_above_the_median_norm_are_counted(folders: dict[str, Path]) -> None:
    pretrained = open_model(folders[REGISTERS])
    reading = read_picture(pretrained, folders["picture"])
    found = attncli.survey(pretrained, reading)
    assert {row["high_norm_mass"] for row in found.heads} == {0.0}
    with ExitStack() as hooks:
        norms = LastNorms([reading], pretrained, hooks)
    norms.norms = torch.ones(1, 19)
    norms.norms[0, [0, 7]] = HIGH_NORM + 0.1
    are_high = norms.are_high()
    assert are_high is not None and are_high.nonzero().tolist() == [[0, 7]], "[CLS] is no patch"


def test_a_folder_of_pictures_has_means_with_intervals(folders: dict[str, Path], attn: Attn) -> None:
    found = report_of(attn, "heads", "--model", folders[REGISTERS], "--image", folders["many"])
    assert found["statistics"]["texts"]["num_texts"] == 3 and "3 of 4 pictures" in found["about"]
    assert any("1 picture is left out" in note and "broken.png" in note for note in found["notes"])
    single = [
        report_of(attn, "heads", "--model", folders[REGISTERS], "--image", folders["many"] / f"{number}.png")
        for number in range(3)
    ]
    mean = np.mean([one["statistics"]["heads"][5]["neighbour"] for one in single])
    assert found["statistics"]["heads"][5]["neighbour"] == pytest.approx(mean, abs=1e-6)
    names = {row["statistic"] for row in found["statistics"]["intervals"]}
    assert {"neighbour", "distance", "high_norm_mass"} <= names and "previous_token" not in names


def test_a_list_of_pictures_is_read_like_a_folder(
    folders: dict[str, Path], attn: Attn, tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("".join(f"{folders['many'] / f'{number}.png'}\n" for number in (2, 0)))
    found = report_of(attn, "heads", "--model", folders[REGISTERS], "--image", names)
    assert "2 pictures" in found["about"]
    names.write_text(f"{folders['picture']}\nnone.png\n")
    ended = attn(["heads", "--model", str(folders[REGISTERS]), "--image", str(names)])
    line = r"names\.txt:2: must name an existing picture file .*got none\.png\)$"
    assert ended.code == 2 and re.search(line, ended.err)
    ended = attn(["self", "--model", str(folders[REGISTERS]), "--image", str(names)])
    assert ended.code == 2 and "must be one picture (got the list" in ended.err
    ended = attn(["heads", "--model", str(folders[REGISTERS]), "--image", str(names), "--maps", "self"])
    assert (ended.code, ended.err) == (2, "--maps: needs a single picture, because a map shows only one\n")


def test_a_batch_reads_the_pictures_of_a_list(folders: dict[str, Path], attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "heads.yaml").write_text(f"experiment: heads\nmodel: {folders[REGISTERS]}\n")
    names = tmp_path / "names.txt"
    for number in range(2):
        shutil.copy(folders["many"] / f"{number}.png", tmp_path / f"{number}.png")
    names.write_text("0.png\n1.png\n")
    batch = ["batch", str(tmp_path / "heads.yaml"), "--file", str(names)]
    assert attn([*batch, "--dry-run"]).out.endswith("1 experiment × 2 pictures = 2 runs\n")
    lines = attn([*batch, "--format", "jsonl"]).out.splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["pictures"][0]["name"] for one in found] == ["0.png", "1.png"]
    alone = report_of(attn, "heads", "--model", folders[REGISTERS], "--image", tmp_path / "1.png")
    rows = [(one["statistics"]["heads"][3]["entropy"]) for one in (found[1], alone)]
    assert rows[0] == pytest.approx(rows[1], abs=1e-6)
    store = [*batch, "-o", str(tmp_path / "runs.db")]
    assert "2 done now" in attn(store).err
    shutil.copy(folders["many"] / "2.png", tmp_path / "1.png")
    assert "1 done now" in attn(store).err, "a picture is known by what is in it"
    (tmp_path / "heads.yaml").write_text("experiment: average\n")
    assert "average reads no picture: omit --file" in attn(batch).err


def test_removing_a_head_turns_cls_by_a_cosine(folders: dict[str, Path], attn: Attn) -> None:
    flags = ("--model", folders[REGISTERS], "--image", folders["picture"], "--heads", "1:2")
    (row,) = report_of(attn, "ablate", *flags)["statistics"]["heads"]
    pretrained = open_model(folders[REGISTERS])
    reading = read_picture(pretrained, folders["picture"])
    assert reading.inputs is not None
    model = AutoModel.from_pretrained(folders[REGISTERS], attn_implementation="eager").eval()
    size = model.config.hidden_size // model.config.num_attention_heads
    with torch.no_grad():
        before = model(reading.inputs["pixel_values"]).last_hidden_state[0]
        projection = next(
            module
            for name, module in model.named_modules()
            if name.endswith(("1.attention.output.dense", "1.attention.o_proj"))
        )
        projection.weight[:, 2 * size : 3 * size] = 0
        after = model(reading.inputs["pixel_values"]).last_hidden_state[0]
    expected = 1 - torch.cosine_similarity(before[0], after[0], dim=-1)
    assert row["cls_change"] == pytest.approx(float(expected), abs=1e-5) and row["cls_change"] > 1e-3


def test_cls_change_is_only_measured_in_the_vision_part(folders: dict[str, Path]) -> None:
    pretrained = open_model(folders[REGISTERS])
    reading = predicted_reading(
        read_picture(pretrained, folders["picture"]), pretrained, torch.Generator().manual_seed(0)
    )
    output = torch.randn(len(reading.text.ids), 3)
    assert Baseline(output, reading).cls == 0
    assert Baseline(output, replace(reading, part="language_model")).cls is None


# Pictures and words.


def test_two_towers_read_a_picture_or_a_text(folders: dict[str, Path], attn: Attn) -> None:
    seen = report_of(attn, "heads", "--model", folders["clip"], "--image", folders["picture"])
    assert "clip (vision_model)" in seen["about"] and seen["tokens"][0] == "[CLS]"
    read = report_of(attn, "heads", "--model", folders["clip"], "--sentence", "abcab")
    assert "clip (text_model)" in read["about"] and "pictures" not in read
    ended = attn(["heads", "ab", "--model", str(folders["clip"]), "--image", str(folders["picture"])])
    assert ended.code == 2 and "does not read text and pictures in one stack" in ended.err


@pytest.fixture(scope="module")
def llava(folders: dict[str, Path]) -> Path:
    """Save LLaVA's processor, which writes one <image> token per patch."""
    folder = folders["llava"]
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    token = AutoConfig.from_pretrained(folder).image_token_id
    vocabulary = {i: name for name, i in tokenizer["model"]["vocab"].items()}
    tokenizer["model"]["vocab"] = {"<image>" if i == token else name: i for i, name in vocabulary.items()}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({"id": token, "content": "<image>", "special": True, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "patch_size": config["vision_config"]["patch_size"],
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }
    (folder / "processor_config.json").write_text(json.dumps(settings))
    return folder


def test_a_decoder_reads_a_picture_and_a_prompt(llava: Path, folders: dict[str, Path], attn: Attn) -> None:
    flags = ("heads", "ab", "--model", llava, "--image", folders["picture"], "--maps", "self")
    found = report_of(attn, *flags)
    assert found["tokens"] == ["[CLS]", "r1c1", "r1c2", "r2c1", "r2c2", "a", "b", "[SEP]"]
    boxes = found["pictures"][0]["boxes"]
    assert [box is None for box in boxes] == [True] + [False] * 4 + [True] * 3
    assert "previous_token" in found["statistics"]["heads"][0], "words stand one after another"
    reading = read_picture(open_model(llava), folders["picture"], "ab")
    assert reading.inputs is not None
    model = AutoModel.from_pretrained(llava, attn_implementation="eager").eval()
    with torch.no_grad():
        weights = model(**reading.inputs, output_attentions=True).attentions
    np.testing.assert_allclose(tensor(found, "weights"), torch.cat(weights).numpy(), atol=1e-5)


# From Python, and what is refused.


def test_a_loaded_model_uses_its_processor(folders: dict[str, Path]) -> None:
    model = AutoModel.from_pretrained(folders[REGISTERS])
    processor = AutoImageProcessor.from_pretrained(folders[REGISTERS], backend="pil")
    mine = attncli.open_model(model, processor)
    reading = attncli.read_picture(mine, folders["picture"])
    ours = attncli.survey(mine, reading, queries="r1c2")
    theirs = attncli.survey(open_model(folders[REGISTERS]), reading, queries="r1c2")
    assert ours.looks is not None and theirs.looks is not None and ours.look_rollout is not None
    np.testing.assert_allclose(ours.looks, theirs.looks, atol=1e-6)
    layer = attncli.layers(mine, reading)[1]
    np.testing.assert_allclose(layer.weights()[0, :, 4].numpy(), ours.looks[1], atol=1e-6)
    with pytest.raises(UserError, match="takes pixel_values, not text"):
        attncli.survey(mine, "a text")


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text_model(tmp_path_factory.mktemp("bert"), "BERT")


SEVENTEEN = ",".join(f"0:{head}" for head in range(17))
REFUSED = [
    ("heads --image PICTURE", "--image: needs --model, one that reads pictures"),
    ("heads --model TEXT --image PICTURE", "no part that only reads pictures|no image processor"),
    ("heads --model MODEL --image PICTURE --from r9c9", "must be a token of the text .got r9c9."),
    ("heads --model MODEL --image PICTURE --from 0.5,2", "must be a token of the text"),
    ("heads --model MODEL --image PICTURE --sort induction", "induction is measured for texts"),
    ("heads --model MODEL --image PICTURE --rollout", "--rollout: cannot be combined with --image"),
    ("self --model MODEL --image PICTURE --explain", "--explain: cannot be combined with --image"),
    ("ablate --model MODEL --image PICTURE --approximate", "needs a model that predicts tokens"),
    ("self --model MODEL --image MANY", "must be one picture"),
    ("heads --model MODEL --image EMPTY", "contains no picture files"),
    ("heads --model MODEL --image MANY --heads 9:0", r"^--heads?: must be from 0:0 to 1:3 \(got 9:0\)$"),
    ("heads --model MODEL --image MANY --head 0:0 --sort entropy", "^--sort: cannot be combined with --head"),
    (f"heads --model MODEL --image MANY --head {SEVENTEEN}", r"^--head: must be at most 16 .*got 17\)$"),
    ("heads --model MODEL --image MANY --from r9c9", "from: must be a token of the text .got r9c9"),
]


@pytest.mark.parametrize(("command", "error"), REFUSED)
def test_errors_are_one_line(
    command: str, error: str, folders: dict[str, Path], text_model: Path, tmp_path: Path, attn: Attn
) -> None:
    names = {"MODEL": folders[REGISTERS], "PICTURE": folders["picture"], "MANY": folders["many"]}
    names |= {"TEXT": text_model, "EMPTY": tmp_path}
    ended = attn([str(names.get(word, word)) for word in command.split()])
    assert ended.code == 2 and len(ended.err.splitlines()) == 1, ended
    assert re.search(error, ended.err), ended.err


def test_a_folder_has_maps_of_each_picture(folders: dict[str, Path], attn: Attn) -> None:
    asked = ("heads", "--model", folders[REGISTERS])
    maps = report_of(attn, *asked, "--image", folders["many"])["picture_maps"]
    assert [row["picture"]["name"] for row in maps["rows"]] == ["0.png", "1.png", "2.png"]
    for number, row in enumerate(maps["rows"]):
        alone = report_of(attn, *asked, "--image", folders["many"] / f"{number}.png")
        heads, last = tensor(alone, "looks"), len(tensor(alone, "looks")) - 1
        assert maps["names"] == [*(f"{last}:{head}" for head in range(len(heads[-1]))), "mean", "rollout"]
        expected = [*heads[-1], tensor(alone, "mean_look")[-1], tensor(alone, "rollout")]
        np.testing.assert_allclose(row["weights"]["values"], expected, atol=1e-6)
        assert row["tokens"] == alone["tokens"] and row["queries"] == ["[CLS]"]
        assert row["picture"] == alone["pictures"][0]


def test_a_patch_name_on_different_grids_is_refused(
    folders: dict[str, Path], attn: Attn, tmp_path: Path
) -> None:
    save_model("pixtral", tmp_path / "pixtral")
    asked = ["heads", "--model", str(tmp_path / "pixtral"), "--image", str(folders["many"])]
    ended = attn([*asked, "--from", "r1c2"])
    said = "--from: r1c2 is in a different place on 1.png than on 0.png, since their patch grids differ: use"
    assert ended.code == 2 and ended.err.startswith(said), ended
    assert "lies elsewhere" not in attn([*asked, "--from", "0.6,0.4"]).err


def test_only_the_first_of_many_pictures_have_maps(
    folders: dict[str, Path], attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attncli.measure.looks.MOST_FILES", 2)
    monkeypatch.setattr("attncli.models.text_files.FILES_PER_WINDOW", 2)
    taken: list[int] = []
    take = HeadLooks.take
    monkeypatch.setattr(HeadLooks, "take", lambda self, *args: (taken.append(id(self)), take(self, *args))[1])
    names = tmp_path / "names.txt"
    names.write_text("".join(f"{folders['many'] / f'{number % 3}.png'}\n" for number in range(9)))
    maps = report_of(attn, "heads", "--model", folders[REGISTERS], "--image", names)["picture_maps"]
    assert maps["num_pictures"] == 9 and len(set(taken)) == 2, "where others look is not computed"
    assert [row["picture"]["name"] for row in maps["rows"]] == ["0.png", "1.png"]


def test_files_with_the_same_name_show_their_folder(
    folders: dict[str, Path], attn: Attn, tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        shutil.copy(folders["picture"], tmp_path / folder / "x.png")
    (tmp_path / "names.txt").write_text("b/x.png\na/x.png\n")
    found = report_of(attn, "heads", "--model", folders[REGISTERS], "--image", tmp_path / "names.txt")
    assert [row["picture"]["name"] for row in found["picture_maps"]["rows"]] == ["b/x.png", "a/x.png"]
