"""What `attn heads --image` costs next to a script that somebody writes by hand over eager attention.

    python benchmarks/images.py                          224 and 518 pixels, each way five times, alternating
    python benchmarks/images.py --model FOLDER --rounds 3

Both are commands in processes of their own, as typed: imports, loading and all. The script resizes the
picture by the model's image processor, runs the model with output_attentions, and computes the same
statistics of each head, rollout and the rows of [CLS]. The model is a DINOv2 of the small size with random
weights, or that of a FOLDER; 224 pixels are 257 tokens, 518 are 1,370. Memory is the peak of the processes.
Then an overlay of the report, from the weights to the lines of a terminal.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoModel, Dinov2Config, Dinov2Model
from transformers.utils import logging

from attncli.runs.saved_reports import read_reports
from attncli.views import Display
from attncli.views.overlays import lines_with_list, tensor_looks

BOUNDS = {224: 1.1, 518: 0.6}
"""Our time over that of the script, by the side of the picture in pixels."""
OVERLAY_MS, OVERLAYS, TERMINALS = 50, 21, ((80, 16), (160, 40))
"""The bound of an overlay, how many are timed, and the columns and lines that they have."""
SMALL = Dinov2Config(
    hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=518, patch_size=14
)
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Runs a command, and prints its peak in kB."""


def model_folder(folder: Path, source: str | None, side: int) -> Path:
    """The model, whose processor makes pictures of that side."""
    if source is None:
        torch.manual_seed(0)
        Dinov2Model(SMALL).save_pretrained(folder)
    else:
        shutil.copytree(source, folder)
    settings = {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": side},
        "crop_size": {"height": side, "width": side},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def head_statistics(weights: Tensor, apart: Tensor, around: Tensor) -> dict[str, Tensor]:
    """What attn measures of the heads of a layer, from the weights (head, query, key): means over queries."""
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    on_patches = weights[:, 1:, 1:]
    received = weights.sum(1)
    return {
        "entropy": entropy.mean(-1),
        "normalized_entropy": (entropy / np.log(weights.shape[-1])).mean(-1),
        "max_weight": weights.amax(-1).mean(-1),
        "distance": ((on_patches * apart).sum(-1) / on_patches.sum(-1)).mean(-1),
        "participation": (1 / weights.double().square().sum(-1)).mean(-1),
        "sink_mass": weights[..., 0].mean(-1),
        "current_token": weights.diagonal(dim1=-2, dim2=-1).mean(-1),
        "neighbour": (on_patches * around).sum(-1).mean(-1),
        "one_key_mass": received[:, 1:].amax(-1) / weights.shape[1],
    }


@torch.no_grad()
def by_eager_attention(folder: Path, picture: Path, output: Path) -> None:
    """The script: every matrix of weights at once, and a formula for each statistic."""
    opener: Any = AutoImageProcessor
    processor = opener.from_pretrained(folder, backend="pil")
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    pixels = processor(images=[Image.open(picture).convert("RGB")], return_tensors="pt")["pixel_values"]
    outputs = model(pixels, output_attentions=True, output_hidden_states=True)
    side = pixels.shape[-1] // model.config.patch_size
    places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1)
    steps = places.view(-1, 1, 2) - places.view(1, -1, 2)
    apart, around = steps.double().norm(dim=-1).float(), (steps.abs().amax(-1) == 1).float()
    rolled = identity = torch.eye(side**2 + 1)
    rows, looks = [], []
    for weights in outputs.attentions:
        statistics = head_statistics(weights[0], apart, around)
        rows += [
            dict(zip(statistics, numbers, strict=True))
            for numbers in zip(*map(Tensor.tolist, statistics.values()), strict=True)
        ]
        looks.append(weights[0, :, 0].tolist())
        mixed = weights[0].mean(0) + identity
        rolled = mixed / mixed.sum(-1, keepdim=True) @ rolled
    norms = outputs.hidden_states[-1][0, 1:].norm(dim=-1)
    high = (norms > 3 * norms.median()).nonzero().flatten().tolist()
    output.write_text(
        json.dumps({"heads": rows, "looks": looks, "rollout": rolled[0].tolist(), "high": high})
    )


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds and the peak in MB of a process."""
    start = time.perf_counter()
    ended = subprocess.run([sys.executable, "-c", PEAK, *command], check=True, capture_output=True, text=True)
    return time.perf_counter() - start, int(ended.stdout.split()[-1]) / 1024


def largest_difference(ours: Path, theirs: Path) -> float:
    """Between the statistics of the heads, the rows of [CLS] and the rollout of both."""
    from_attn, other = (json.loads(path.read_text()) for path in (ours, theirs))
    pairs: list[tuple[Any, Any]] = [
        (from_attn["tensors"]["looks"]["values"], other["looks"]),
        (from_attn["tensors"]["rollout"]["values"], other["rollout"]),
    ]
    for name in other["heads"][0]:
        rows = from_attn["statistics"]["heads"], other["heads"]
        pairs.append(tuple([row[name] for row in some] for some in rows))  # type: ignore[arg-type]  # two
    apart = (np.abs(np.subtract(a, b)) / np.maximum(1, np.abs(b)) for a, b in pairs)
    return max(float(differences.max()) for differences in apart)


def overlay_seconds(file: Path, columns: int, lines: int) -> tuple[float, float]:
    """Of the overlay of one head in a terminal: the first, which decodes the picture, and the median."""
    report = read_reports(str(file)).reports[0]
    *_, look = tensor_looks(report, "looks")
    display, took = Display(width=columns, colors="truecolor"), []
    for _ in range(OVERLAYS):
        start = time.perf_counter()
        lines_with_list(look, display, lines)
        took.append(time.perf_counter() - start)
    return took[0], statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a folder with a DINOv2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--script", nargs=3, type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if chosen.script:
        by_eager_attention(*chosen.script)
        return
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        colours = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(colours).resize((900, 600)).save(root / "picture.png")
        for side, bound in BOUNDS.items():
            folder = model_folder(root / f"model-{side}", chosen.model, side)
            given = [str(folder), str(root / "picture.png")]
            ours, theirs = root / "ours.json", root / "theirs.json"
            attn = ["-m", "attncli", "heads", "--model", given[0], "--image", given[1], "-o", str(ours)]
            ways = {
                "attn": [sys.executable, *attn],
                "eager": [sys.executable, __file__, "--script", *given, str(theirs)],
            }
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            peaks = dict.fromkeys(ways, 0.0)
            for _ in range(chosen.rounds):
                for way, command in ways.items():
                    took, peak = timed(command)
                    seconds[way].append(took)
                    peaks[way] = max(peaks[way], peak)
            medians = {way: statistics.median(took) for way, took in seconds.items()}
            ratio = medians["attn"] / medians["eager"]
            tokens = (side // 14) ** 2 + 1
            print(
                f"{side} x {side}, {tokens:,} tokens: attn {medians['attn']:.2f} s, {peaks['attn']:,.0f} MB; "
                f"eager {medians['eager']:.2f} s, {peaks['eager']:,.0f} MB; ratio {ratio:.2f} "
                f"(bound {bound}: {'met' if ratio <= bound else 'NOT met'}); "
                f"largest difference {largest_difference(ours, theirs):.1e}"
            )
            for columns, lines in TERMINALS:
                first, median = (1000 * took for took in overlay_seconds(ours, columns, lines))
                print(
                    f"  overlay of one head in {columns} x {lines}: {first:.0f} ms, then {median:.1f} ms "
                    f"(bound {OVERLAY_MS}: {'met' if first <= OVERLAY_MS else 'NOT met'})"
                )


if __name__ == "__main__":
    main()
