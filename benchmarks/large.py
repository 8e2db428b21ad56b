"""What a model that is larger than memory costs: peak memory and time of `attn` as typed, in turns.

    python benchmarks/large.py [--size 1b|8b] [--rounds 3] [--folder FOLDER]

Writes a random Llama in bfloat16 (2.3 GB; 8b, of the shape of Llama 3 8B, 16 GB), unless the folder has it,
and surveys it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer

from attncli.models.folder import SHIPPED_MODEL

ATTN = str(Path(sys.executable).with_name("attn"))
TEXT = "the bat flew into the cave and the bat flew out"
NUM_TEXTS, TOKENS_OF_A_TEXT = 100, 20
NEW_TOKENS = 2, 7
BLOCK_BYTES = 2**24


@dataclass(frozen=True)
class Shape:
    """Of a Llama."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


SHAPES = {
    "1b": Shape(2048, 5632, 22, 32, 4, 49152),
    "8b": Shape(4096, 14336, 32, 32, 8, 128256),
}


def write_model(folder: Path, shape: Shape) -> None:
    """A file a layer, so that no more than a layer is ever in memory."""
    drawn = torch.Generator().manual_seed(0)
    kv_dim = shape.hidden // shape.heads * shape.kv_heads

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=drawn).mul(0.6 * float(columns) ** -0.5).bfloat16()

    def put(name: str, tensors: dict[str, Tensor]) -> None:
        save_file(tensors, folder / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, name))

    weight_map: dict[str, str] = {}
    norm = torch.ones(shape.hidden).bfloat16()
    ends = {
        f"{name}.weight": matrix(shape.vocabulary, shape.hidden) for name in ("model.embed_tokens", "lm_head")
    }
    put("ends.safetensors", {**ends, "model.norm.weight": norm})
    for layer in range(shape.layers):
        sizes = {
            "self_attn.q_proj": (shape.hidden, shape.hidden),
            "self_attn.k_proj": (kv_dim, shape.hidden),
            "self_attn.v_proj": (kv_dim, shape.hidden),
            "self_attn.o_proj": (shape.hidden, shape.hidden),
            "mlp.gate_proj": (shape.inner, shape.hidden),
            "mlp.up_proj": (shape.inner, shape.hidden),
            "mlp.down_proj": (shape.hidden, shape.inner),
        }
        block = {name: matrix(*size) for name, size in sizes.items()}
        block |= {"input_layernorm": norm, "post_attention_layernorm": norm.clone()}
        named = {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in block.items()}
        put(f"layer-{layer:02}.safetensors", named)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocabulary,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    AutoTokenizer.from_pretrained(SHIPPED_MODEL, local_files_only=True).save_pretrained(folder)


def measured(command: list[str]) -> tuple[float, int]:
    """Wall time of a command, and its peak memory in bytes."""
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    return time.monotonic() - begun, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def seconds_to_read(folder: Path) -> float:
    """To read every byte of the weights once."""
    begun = time.monotonic()
    for path in folder.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while file.read(BLOCK_BYTES):
                pass
    return time.monotonic() - begun


def main() -> None:
    """Write the model where it is not there, run the commands in turns, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=SHAPES, default="1b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = asked.folder or Path(made)
        if not (folder / "config.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            # In a process of its own: the peak of a command counts what its parent had when it began.
            writer = get_context("spawn").Process(target=write_model, args=(folder, SHAPES[asked.size]))
            writer.start()
            writer.join()
        texts = Path(made) / "texts.txt"
        # The tokens of the shipped model's tokenizer are characters.
        starts = (n % (len(TEXT) - TOKENS_OF_A_TEXT) for n in range(NUM_TEXTS))
        texts.write_text("".join(f"{TEXT[start : start + TOKENS_OF_A_TEXT]}\n" for start in starts))
        heads = [ATTN, "heads", "--model", str(folder)]
        commands = {"attn heads, the shipped model": [ATTN, "heads", TEXT], "attn heads": [*heads, TEXT]}
        if asked.size == "1b":
            commands["attn heads --load memory"] = [*heads, "--load", "memory", TEXT]
            commands["attn heads --load memory --dtype bfloat16"] = [
                *(*heads, "--load", "memory", "--dtype", "bfloat16", TEXT),
            ]
        for count in NEW_TOKENS:
            commands[f"attn generate, {count} tokens"] = [
                *(ATTN, "generate", "--model", str(folder), "--max-new-tokens", str(count), TEXT),
            ]
        commands[f"attn heads --texts ({NUM_TEXTS} texts of {TOKENS_OF_A_TEXT} tokens)"] = [
            *(*heads, "--texts", str(texts)),
        ]
        times: dict[str, list[float]] = {name: [] for name in commands}
        peaks = dict.fromkeys(commands, 0)
        for _ in range(asked.rounds):
            for name, command in commands.items():
                seconds, peak = measured(command)
                times[name].append(seconds)
                peaks[name] = max(peaks[name], peak)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        reading = min(seconds_to_read(folder) for _ in range(3))
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        seconds_of_model = medians["attn heads"] - medians["attn heads, the shipped model"]
        fewest, most = (medians[f"attn generate, {count} tokens"] for count in NEW_TOKENS)
        a_token = (most - fewest) / (NEW_TOKENS[1] - NEW_TOKENS[0])
        print(f"{size / 1e9:.1f} GB in the files, read in {reading:.1f} s")
        print(
            f"times reading: a sentence, less the shipped model's command {seconds_of_model / reading:.2f};",
            end=" ",
        )
        print(f"a token of generate {a_token / reading:.2f}")
        first = peaks["attn heads, the shipped model"]
        print(f"| {'command':46} | median s | peak GB | over the shipped model |")
        print(f"|{'-' * 48}|{'-' * 9}:|{'-' * 8}:|{'-' * 23}:|")
        for name, median in medians.items():
            gigabytes, over = peaks[name] / 1e9, (peaks[name] - first) / 1e9
            print(f"| {name:46} | {median:8.1f} | {gigabytes:7.2f} | {over:22.2f} |")


if __name__ == "__main__":
    main()
