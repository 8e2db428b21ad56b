"""The sweep over architectures that read pictures: python -m tools.architecture_sweep.pictures results.jsonl

Each is a tiny random model in a folder with an image processor of its own kind. What `attn heads --image`
shows is compared with what eager attention returns for the same pixels, and the names of the patches with the
order in which the config says they lie.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from inspect import signature
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoModel, PreTrainedModel
from transformers.models.auto import image_processing_auto
from transformers.models.auto.image_processing_auto import get_image_processor_class_from_name
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
from transformers.utils import logging

from .asking import ask
from .folders import NotTestable, one_line, save_tokenizer, sharpen
from .result import Result
from .tiny_config import ATTEMPTS, tiny_config

TOLERANCE = 1e-4
MOST_PARAMETERS = 30_000_000
MEMORY_LIMIT = 16 * 2**30
PIXELS = ("pixel_values", "flattened_patches")
AUTO_MODEL: Any = AutoModel
AUTO_PROCESSOR: Any = AutoImageProcessor
"""transformers leaves these without types."""
Check = Callable[[str, Path], Result]
FORK = multiprocessing.get_context("fork")


def _class_of(model_type: str) -> Any:
    names = MODEL_MAPPING_NAMES[model_type]
    return getattr(transformers, names if isinstance(names, str) else names[0], None)


def reads_pictures(model_type: str) -> bool:
    """Whether the class of a model type has an argument for pixels of pictures."""
    try:
        return any(name in signature(_class_of(model_type).forward).parameters for name in PIXELS)
    except (AttributeError, ImportError, TypeError):  # its class is not there, or needs another package
        return False


def architectures() -> list[str]:
    """Every model type that reads pictures. Imports all of transformers: ten seconds."""
    return [name for name in sorted(MODEL_MAPPING_NAMES) if reads_pictures(name)]


def picture() -> Image.Image:
    """Forty by twenty-seven pixels of random colours."""
    numbers = np.random.default_rng(3).integers(0, 256, (27, 40, 3), dtype=np.uint8)
    return Image.fromarray(numbers).resize((80, 54), Image.Resampling.NEAREST)


def _image_size(config: Any) -> tuple[int, int]:
    for each in (config, getattr(config, "vision_config", None)):
        size = getattr(each, "image_size", None)
        if isinstance(size, int):
            return size, size
        if isinstance(size, list | tuple) and len(size) == 2:
            return int(size[0]), int(size[1])
    return 32, 32


def processor_of(model_type: str, config: Any) -> Any:
    """The image processor of its own kind, by Pillow, made as small as the model; ViT's where it has none."""
    known = vars(image_processing_auto)["IMAGE_PROCESSOR_MAPPING_NAMES"]
    names = known.get(model_type) or known.get(model_type.removesuffix("_moe")) or {}
    names = names if isinstance(names, dict) else {"pil": names}
    chosen = names.get("pil")
    kind = None if chosen is None else get_image_processor_class_from_name(chosen)
    if kind is None or getattr(kind, "is_dummy", False):  # its own takes torchvision, or there is none
        kind = transformers.ViTImageProcessorPil
    height, width = _image_size(config)
    shipped = kind()
    settings: dict[str, Any] = {}
    size = getattr(shipped, "size", None)
    keys = {key for key, value in dict(size or {}).items() if value is not None}
    if keys == {"height", "width"}:
        settings["size"] = {"height": height, "width": width}
    elif keys == {"shortest_edge"}:
        settings["size"] = {"shortest_edge": min(height, width)}
    elif keys == {"shortest_edge", "longest_edge"} and max(dict(size or {}).values()) > 10_000:
        settings["size"] = {"shortest_edge": 28 * 28, "longest_edge": 64 * 64}
    if getattr(shipped, "crop_size", None) and getattr(shipped, "do_center_crop", False):
        settings["crop_size"] = {"height": height, "width": width}
    vision = getattr(config, "vision_config", config)
    for name in ("patch_size", "merge_size", "temporal_patch_size"):
        of_model = getattr(vision, {"merge_size": "spatial_merge_size"}.get(name, name), None)
        if hasattr(shipped, name) and isinstance(of_model, int):
            settings[name] = of_model
    if isinstance(getattr(shipped, "max_image_size", None), dict):  # of each part of a picture
        settings |= {"max_image_size": {"longest_edge": height}, "size": {"longest_edge": 2 * height}}
    if hasattr(shipped, "max_patches"):
        settings["max_patches"] = 20
    if pinpoints := getattr(config, "image_grid_pinpoints", None):
        settings["image_grid_pinpoints"] = pinpoints
    return kind(**settings)


def save_model(model_type: str, folder: Path) -> PreTrainedModel:
    """A folder with config, safetensors, tokenizer and image processor; NotTestable where there is none."""
    error: Exception | None = None
    for sizes in ATTEMPTS:
        try:
            config = tiny_config(model_type, sizes)
            with torch.device("meta"):
                count = sum(parameter.numel() for parameter in AUTO_MODEL.from_config(config).parameters())
            if count > MOST_PARAMETERS:
                raise NotTestable(f"no tiny configuration: {count / 1e6:.0f} million parameters")
            torch.manual_seed(7)
            model = AUTO_MODEL.from_config(config, attn_implementation="eager")
            model.train(False)
            sharpen(model)
            model.save_pretrained(folder)
            processor_of(model_type, config).save_pretrained(folder)
            if model.main_input_name == "input_ids" or hasattr(config, "text_config"):
                save_tokenizer(folder)
            return model  # type: ignore[no-any-return]  # transformers' auto classes give anything
        except NotTestable:
            raise
        except Exception as caught:  # whatever transformers says to sizes that are not its own
            error = error or caught
    assert error is not None
    raise NotTestable(one_line(error))


def _arguments(model: PreTrainedModel) -> set[str]:
    known = {*signature(model.forward).parameters}
    return known if known - {"args", "kwargs"} else {str(model.main_input_name)}


def _part_that_sees(model: PreTrainedModel) -> PreTrainedModel:
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            known = _arguments(module)
            reads = {*PIXELS, "grid_thw"} & known
            if reads and not {"input_ids", "decoder_input_ids"} & known:
                return module
    raise NotTestable("no part of it reads pictures alone")


@torch.no_grad()
def truth(folder: Path, image: Path) -> tuple[list[Tensor], list[str] | None]:
    """The weights of each layer (head, query, key) that eager attention returns; and what patches are called
    in the order of the config, where that says.
    """
    try:
        model = AUTO_MODEL.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        processor = AUTO_PROCESSOR.from_pretrained(folder, backend="pil")
        part = _part_that_sees(model)
        known = _arguments(part)
        processed = processor(images=[Image.open(image).convert("RGB")], return_tensors="pt")
        named = dict(processed)
        if "grid_thw" in known:
            named |= {"grid_thw": processed["image_grid_thw"], "hidden_states": processed["pixel_values"]}
        given = {name: value for name, value in named.items() if name in known and isinstance(value, Tensor)}
        if hasattr(part.config, "mask_ratio"):  # MAE: every patch, in order
            part.config.mask_ratio = 0.0
            embeddings: Any = part.embeddings
            given["noise"] = torch.arange(embeddings.patch_embeddings.num_patches).unsqueeze(0) / 1000
        made, outputs = _with_weights_made(part, given)
        weights = outputs.get("attentions") if hasattr(outputs, "get") else None
        if any(isinstance(part_weights, Tensor) and part_weights.ndim != 4 for part_weights in weights or ()):
            weights = made  # transformers returns something else there
    except NotTestable:
        raise
    except Exception as error:  # whatever transformers says to a picture
        raise NotTestable(one_line(error)) from None
    layers = [part_weights for part_weights in weights or () if isinstance(part_weights, Tensor)]
    if not layers:
        raise NotTestable("transformers returns no weights")
    return layers, _expected_labels(part.config, given.get("pixel_values"), layers[0].shape[-1])


def _with_weights_made(part: PreTrainedModel, given: dict[str, Any]) -> tuple[list[Tensor], Any]:
    """The weights that its own eager attention function makes, in order, and the outputs."""
    module: Any = sys.modules[type(part).__module__]
    eager = getattr(module, "eager_attention_forward", None)
    kept: list[Tensor] = []

    def noted(*arguments: Any, **named: Any) -> Any:
        output, weights = eager(*arguments, **named)  # type: ignore[misc]
        kept.append(weights)
        return output, weights

    if eager is None:
        return [], part(**given, output_attentions=True)
    module.eager_attention_forward = noted
    try:
        return kept, part(**given, output_attentions=True)
    finally:
        module.eager_attention_forward = eager


def _expected_labels(config: Any, pixels: Tensor | None, num_tokens: int) -> list[str] | None:
    """Row by row, patches of the size that the config says; None where that does not say."""
    patch = getattr(config, "patch_size", None)
    if pixels is None or pixels.ndim != 4:
        return None
    height, width = pixels.shape[2:]
    if not isinstance(patch, int) or height % patch or width % patch:
        return None
    rows, columns = height // patch, width // patch
    if rows * columns > num_tokens:
        return None
    return [f"r{row + 1}c{column + 1}" for row in range(rows) for column in range(columns)]


def check(model_type: str, folder: Path) -> Result:
    """The result for one architecture."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    result = Result(model_type, getattr(_class_of(model_type), "__name__", ""))
    image = folder.with_name("picture.png")
    picture().save(image)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        layers: list[Tensor] = []
        wanted: list[str] | None = None
        try:
            save_model(model_type, folder)
            layers, wanted = truth(folder, image)
        except NotTestable as error:
            result.reason = str(error)
        if not (folder / "config.json").exists():
            return result.judged()
        answer = ask(["heads", "--model", folder, "--image", image, "--maps", "self"])
    if not answer.reports:
        (result.refused if answer.is_refusal else result.wrong).append(f"heads: {answer.line}")
        return result.judged()
    result.how = "eager" if answer.is_dense else "interface"
    if not layers:
        # What it computes was compared with its own eager attention all the same.
        return result.judged()
    maps = answer.tensor("weights")
    if maps is None:  # so many tokens that the rows of [CLS], or the mean over all, alone are kept
        looks = answer.tensor("looks")
        assert looks is not None
        has_cls = answer.reports[0]["tokens"][0] == "[CLS]"
        maps = looks[:, :, None]
        layers = [layer[:, :, :1] if has_cls else layer.mean(dim=2, keepdim=True) for layer in layers]
    result.stacks["self"] = len(layers), layers[0].shape[1]
    if len(maps) != len(layers):
        result.wrong.append(f"heads: {len(maps)} layers instead of {len(layers)}")
        return result.judged()
    for number, (maps_of_layer, expected) in enumerate(zip(maps, layers, strict=True)):
        if expected.shape[0] != 1 or maps_of_layer.shape != expected.shape[1:]:
            shapes = f"{maps_of_layer.shape} instead of {tuple(expected.shape)}"
            result.wrong.append(f"heads: layer {number} has the shape {shapes}")
            continue
        difference = float(np.abs(maps_of_layer - expected[0].double().numpy()).max())
        result.weights = max(result.weights or 0.0, difference)
        if not difference <= TOLERANCE:
            result.wrong.append(f"heads: layer {number} is off by {difference:.2g}")
    labels = [token for token in answer.reports[0]["tokens"] if token.startswith("r") and "c" in token]
    if wanted is not None and labels != wanted:
        result.wrong.append(f"heads: patches {' '.join(labels[:5])} instead of {' '.join(wanted[:5])}")
    return result.judged()


def _in_child(name: str, results: Connection, check: Check) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    with Path(os.devnull).open("w") as nowhere, TemporaryDirectory() as folder:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
        results.send(check(name, Path(folder) / "model").to_json())


def main(check: Check, architectures: Callable[[], list[str]]) -> None:
    """Check architectures, each in a process of its own, and keep the results in a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path, help="JSON lines; architectures that are in it are skipped")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=120)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    lines = chosen.results.read_text().splitlines() if chosen.results.exists() else []
    kept = {json.loads(line)["name"]: line for line in lines}
    for name in chosen.only or ():
        kept.pop(name, None)
    chosen.results.write_text("".join(line + "\n" for line in kept.values()))
    for name in chosen.only or [name for name in architectures() if name not in kept]:
        receive, send = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_in_child, args=(name, send, check))
        process.start()
        send.close()
        line = _received(receive, chosen.seconds)
        process.kill()
        process.join()
        result = (
            Result.from_json(line) if line else Result(name, "", "wrong", wrong=["it died, or took long"])
        )
        with chosen.results.open("a") as file:
            file.write(result.to_json() + "\n")
        print(
            f"{name}: {result.verdict}", *(result.wrong or result.refused or [result.reason])[:1], flush=True
        )
    verdicts = Counter(json.loads(line)["verdict"] for line in chosen.results.read_text().splitlines())
    print(*(f"{count} {verdict}" for verdict, count in verdicts.most_common()), sep=", ")


def _received(connection: Connection, seconds: float) -> str:
    """The result of a process; empty where it died, or took longer."""
    try:
        return str(connection.recv()) if connection.poll(seconds) else ""
    except EOFError:
        return ""


if __name__ == "__main__":
    main(check, architectures)
