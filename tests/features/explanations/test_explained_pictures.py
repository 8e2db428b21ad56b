"""The output of models on a picture, explained in every way, against naive loops on runs of transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor

import attncli
from attncli.errors import UserError
from attncli.features.explanations.explanations import explanations
from attncli.features.explanations.picture_cells import PictureCells, picture_cells
from attncli.features.explanations.picture_runs import ReadPicture
from attncli.features.explanations.relevance import attnlrp, directions, gradients
from attncli.features.explanations.token_flow import alti, direct_contributions, rollout, value_norms
from attncli.features.pictures.reading import read_picture
from attncli.models.loading import in_use, open_model
from attncli.models.pretrained import Pretrained
from tests.conftest import Attn
from tests.features.explanations.naive_explanations import (
    carried_vectors,
    chefer_rows,
    keep_inputs,
    keep_outputs,
    near_rows,
    randomise,
    rolled,
)
from tests.model_folders import made_once

PATCH, ROWS, COLUMNS = 4, 5, 5
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "mlp_ratio": 2,
    "image_size": PATCH * ROWS,
    "patch_size": PATCH,
    "num_labels": 5,
}
CLASSIFIERS = ("ViT", "DeiT", "Beit", "Dinov2", "Dinov2WithRegisters", "ViTMSN")
LAYER_SCALE = ("Beit", "Dinov2", "Dinov2WithRegisters")
"""What W_O gives is scaled before it is added."""
HEAD = "ForImageClassification"


@made_once
def save_seer(folder: Path, name: str, patches: int = ROWS) -> Path:
    """Save a tiny vision model with random norms and biases, and its image processor."""
    kind: Any = getattr(transformers, name)
    torch.manual_seed(1)
    side = patches * PATCH
    model = kind(kind.config_class(**SIZES | {"image_size": side})).eval().requires_grad_(False)
    randomise(model, 8)
    model.save_pretrained(folder)
    size = {"height": side, "width": side}
    transformers.ViTImageProcessorPil(size=size).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pictures") / "noise.png"
    numbers = np.random.default_rng(3).integers(0, 256, (7, 11, 3), dtype=np.uint8)
    Image.fromarray(numbers).resize((77, 49), Image.Resampling.NEAREST).save(place)
    return place


def cells_of(pretrained: Pretrained, file: Path) -> PictureCells:
    return picture_cells(pretrained, read_picture(pretrained, file))


class NaiveViT:
    """A run of transformers: weights, values, W_O, the inputs of blocks, and gradients by autograd."""

    def __init__(self, folder: Path, pixels: Tensor) -> None:
        vit: Any = transformers.ViTForImageClassification
        self.model: Any = vit.from_pretrained(folder, attn_implementation="eager").eval()
        self.reads: list[Tensor] = []
        self.values: list[Tensor] = []
        self.patches: list[Tensor] = []

        def begin(_: Any, __: Any, output: Tensor) -> Tensor:
            self.patches.append(output.detach().clone().requires_grad_())
            return self.patches[0]

        body = self.model.vit
        body.embeddings.patch_embeddings.register_forward_hook(begin)
        for layer in body.layers:
            keep_inputs(layer, self.reads)
            keep_outputs(layer.attention.v_proj, self.values)
        self.outputs = self.model(pixels, output_attentions=True)
        self.weights = self.outputs.attentions
        self.count = len(self.reads[0])
        projections = [layer.attention.o_proj for layer in body.layers]
        self.biases = [each.bias.detach().double() for each in projections]
        self.carried = [
            carried_vectors(weights[0], value.unflatten(-1, (4, -1)), each.weight.detach().double().mT)
            for weights, value, each in zip(self.weights, self.values, projections, strict=True)
        ]

    def alti(self, number: int) -> Tensor:
        vectors = self.carried[number].clone()
        vectors[range(self.count), range(self.count)] += self.reads[number]
        return near_rows(vectors, vectors.sum(dim=1) + self.biases[number])


def test_ways_of_vit_match_naive_loops(tmp_path: Path, file: Path) -> None:
    save_seer(tmp_path, f"ViT{HEAD}")
    with in_use(open_model(tmp_path)) as pretrained:
        read = ReadPicture(pretrained, cells_of(pretrained, file), heads=["1:2"], num_runs=8)
        run, naive = read.run, NaiveViT(tmp_path, read.picture.pixels)
        index = int(naive.outputs.logits[0].argmax())
        assert read.name == f"LABEL_{index}" and run.places.tolist() == [0] and naive.count == 26
        logit = naive.outputs.logits[0, index]
        of_patches, *of_weights = torch.autograd.grad(
            logit, [naive.patches[0], *naive.weights], retain_graph=True
        )
        means = [weights[0].mean(dim=0) for weights in naive.weights]
        norms = [each.norm(dim=-1) / each.norm(dim=-1).sum(dim=-1, keepdim=True) for each in naive.carried]
        result, eye = gradients(run), torch.eye(naive.count)
        assert read.weights.chosen is not None
        ways: list[tuple[Tensor, Tensor]] = [
            (rollout(run), rolled([(mean + eye) / 2 for mean in means])[0]),
            (value_norms(run), torch.stack(norms).mean(dim=0)[0]),
            (alti(run), rolled([naive.alti(layer) for layer in range(3)])[0]),
            (result.attention_gradient, chefer_rows(naive.weights, of_weights)[0]),
            (read.weights.mean[0], torch.stack(means).mean(dim=0).double().detach()[0]),
            (read.weights.chosen[0], naive.weights[1][0, 2].double().detach()[0]),
            (result.gradient_input[1:], (of_patches * naive.patches[0])[0].sum(dim=-1).double().detach()),
        ]
        for numbers, expected in ways:
            torch.testing.assert_close(numbers, expected, atol=1e-6, rtol=1e-4)
        # [CLS] is no patch, and of no cell.
        assert result.gradient_input[0] == 0 and 0 not in {place for s in read.sources for place in s.places}
        # What the heads carry to the last [CLS], read by the class through the last norm, its scale kept.
        norm = naive.model.vit.layernorm
        last = naive.model.vit(read.picture.pixels, output_hidden_states=True)
        stream = last.hidden_states[-1][0, 0].detach().double()
        scale = 1 / (stream.var(unbiased=False) + norm.eps).sqrt()
        read_by = naive.model.classifier.weight[index].detach().double() * norm.weight.detach().double()
        direction = (read_by - read_by.mean()) * scale
        direct = sum(each[0] @ direction for each in naive.carried)
        torch.testing.assert_close(direct_contributions(run, directions(run)), direct, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "name", [*(f"{kind}{HEAD}" for kind in CLASSIFIERS), "Dinov2Model", "CLIPVisionModel"]
)
def test_relevance_adds_up_to_what_is_explained(name: str, tmp_path: Path, file: Path) -> None:
    save_seer(tmp_path, name)
    with in_use(open_model(tmp_path)) as pretrained:
        run = ReadPicture(pretrained, cells_of(pretrained, file), num_runs=2).run
        parts = attnlrp(run)
        assert parts.error < 1e-4 * max(1.0, abs(parts.logits)) and parts.answer == 0
        assert float(parts.prompt.abs().sum()) > 1e-3
        for way in (value_norms, rollout):
            assert float(way(run).sum()) == pytest.approx(1, abs=1e-5)
        if name.removesuffix(HEAD).removesuffix("Model") in LAYER_SCALE:
            with pytest.raises(UserError, match="does not add"):
                alti(run)
        else:
            assert float(alti(run).sum()) == pytest.approx(1, abs=1e-5)
            assert torch.isfinite(direct_contributions(run, directions(run))).all()


def pixels_without(pixels: Tensor, rows: range, columns: range) -> Tensor:
    """Fill one cell of patches with the mean colour of the picture."""
    edited = pixels.clone()
    for channel in range(3):
        colour = pixels[0, channel].mean()
        for row in rows:
            for column in columns:
                down, across = row * PATCH, column * PATCH
                edited[0, channel, down : down + PATCH, across : across + PATCH] = colour
    return edited


def test_losses_match_runs_on_edited_pixels(tmp_path: Path, file: Path) -> None:
    """Nine rows of nine patches make five cells per axis, of two patches each except the last."""
    bounds = [0, 2, 4, 5, 7, 9]
    for name in (f"ViT{HEAD}", "Dinov2Model"):
        folder = save_seer(tmp_path / name, name, patches=9)
        model: Any = getattr(transformers, name).from_pretrained(folder).eval()
        with in_use(open_model(folder)) as pretrained, torch.no_grad():
            cells = cells_of(pretrained, file)
            read = ReadPicture(pretrained, cells, num_runs=2)
            assert cells.shape == (5, 5) and read.sources[7].name == "r2c3"
            assert read.sources[6].text == "r3c3 to r4c4"

            def number(pixels: Tensor, model: Any = model, read: ReadPicture = read) -> float:
                outputs = model(pixels)
                if read.kind == "class":
                    return float(outputs.logits[0].log_softmax(dim=-1)[read.output.index])
                whole = model(read.picture.pixels).last_hidden_state[0, 0]
                return float(torch.cosine_similarity(outputs.last_hidden_state[0, 0], whole, dim=0))

            whole = number(cells.pixels)
            assert read.value == pytest.approx(whole, abs=1e-5)
            expected = [
                whole
                - number(
                    pixels_without(
                        cells.pixels, range(*bounds[row : row + 2]), range(*bounds[column : column + 2])
                    )
                )
                for row in range(5)
                for column in range(5)
            ]
            np.testing.assert_allclose(read.lost, expected, atol=2e-5)
            assert max(expected) > 2e-4


def test_a_named_class_of_a_picture_is_explained(tmp_path: Path, file: Path) -> None:
    folder = save_seer(tmp_path, f"ViT{HEAD}")
    config = json.loads((folder / "config.json").read_text())
    names = ["tabby, tabby cat", "dog", "car", "tree, oak", "house"]
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    (folder / "config.json").write_text(json.dumps(config))
    reading = attncli.read_picture(attncli.open_model(folder), file)
    result = attncli.explanations(folder, None, reading, answer="oak", ways=["attnlrp", "all_heads"])
    assert result.explained is not None and result.explained[0].output == "tree, oak"
    assert {row.name for row in result.sources} == {f"r{row}c{c}" for row in range(1, 6) for c in range(1, 6)}
    assert all(row.text is None for row in result.sources)  # each cell is a patch
    with pytest.raises(UserError, match="answer: must be one of tabby, tabby cat, dog"):
        attncli.explanations(folder, None, reading, answer="bird")
    with pytest.raises(UserError, match="question: must be None for a picture"):
        attncli.explanations(folder, "What is it?", reading)
    with in_use(open_model(folder)) as pretrained:
        read = ReadPicture(pretrained, cells_of(pretrained, file), num_runs=8)
        assert [row.way for row in explanations(read, ["rollout"]).ways] == ["rollout"]


def test_pictures_from_the_command_line(attn: Attn, tmp_path: Path, file: Path) -> None:
    folder = save_seer(tmp_path / "vit", f"ViT{HEAD}")
    saved = tmp_path / "ways.json"
    words = ["source", "--compare", "--image", str(file), "--model", str(folder), "--runs", "4"]
    ended = attn([*words, "-o", str(saved)])
    assert ended.code == 0, ended.err
    report = json.loads(saved.read_text())
    maps = report["picture_maps"]
    assert maps["names"][0] == "lost" and {*maps["names"][1:]} == {
        row["way"] for row in report["statistics"]["ways"]
    }
    lost = {row["name"]: row["lost"] for row in report["statistics"]["sources"]}
    of_tokens = dict(zip(maps["rows"][0]["tokens"], maps["rows"][0]["weights"]["values"][0], strict=True))
    assert of_tokens["r2c3"] == pytest.approx(max(lost["r2c3"], 0)) and of_tokens["[CLS]"] == 0
    screen = attn(["show", str(saved)]).out
    assert "5 × 5 cells of 1 patch by 9 ways" in screen and "noise.png → LABEL_" in screen
    assert "lost without it" in screen and "with the cell in the picture's mean" in screen
    words[3] = str(tmp_path)
    ended = attn(words)
    assert ended.code == 2 and ended.err.startswith("--image: must be one picture (got the folder")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--image", "FILE"), "--image: needs --compare"),
        (("What?", "--compare", "--image", "FILE"), "TEXT: cannot be combined with --image"),
        (("--compare", "--image", "FILE", "--answer", "bird"), "--answer: must be one of LABEL_0, LABEL_1"),
        (("a. b. c.", "--compare"), "takes pixel_values, not text: pass a picture with --image"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    flags: tuple[str, ...], said: str, attn: Attn, tmp_path: Path, file: Path
) -> None:
    folder = save_seer(tmp_path, f"ViT{HEAD}")
    words = [str(file) if flag == "FILE" else flag for flag in flags]
    ended = attn(["source", *words, "--model", str(folder)])
    assert ended.code == 2 and ended.err.count("\n") == 1 and said in ended.err, ended.err
