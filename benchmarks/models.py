"""What `attn heads` costs next to eager attention with output_attentions and the usual statistics.

    python benchmarks/models.py                        128 to 4,096 tokens, some minutes
    python benchmarks/models.py --lengths 1024 --rounds 5
    python benchmarks/models.py --long 8192            ours alone, at that length, too

Random models of the size of BERT-base and GPT-2-small (12 layers of 12 heads), random tokens with the
frequencies of a text (Zipf). Times are medians of alternating runs (A B A B) in one process, wall time on all
threads. Memory is the growth of the peak over the loaded model, in a fresh process for each figure.
Linux only.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, PreTrainedModel

from attncli.experiments.head_figures import head_figures
from attncli.experiments.head_rows import head_rows
from attncli.inputs.capture import CapturedLayer, capture

MODELS = ("bert", "gpt2")
VOCABULARY = 30_000


def build(name: str, num_tokens: int) -> PreTrainedModel:
    """A random model with positions for that many tokens."""
    torch.manual_seed(0)
    model: PreTrainedModel
    if name == "bert":
        model = BertModel(BertConfig(max_position_embeddings=num_tokens))
    else:
        model = GPT2Model(GPT2Config(n_positions=num_tokens))
    model.train(False)
    return model


def tokens(num_tokens: int) -> Tensor:
    """Random tokens, the n-th most frequent with a chance like 1/n."""
    chances = 1 / torch.arange(1, VOCABULARY + 1)
    generator = torch.Generator().manual_seed(0)
    return chances.multinomial(num_tokens, replacement=True, generator=generator).unsqueeze(0)


def survey(model: PreTrainedModel, ids: Tensor) -> list[dict[str, Tensor]]:
    """Ours: every head statistic, a layer at a time."""
    figures: list[dict[str, Tensor]] = []

    def take(layer: CapturedLayer) -> None:
        figures.append(head_figures(head_rows(layer), ids=ids[0]))

    capture(model, {"input_ids": ids}, take)
    return figures


def patterns(ids: Tensor) -> dict[str, Tensor]:
    """The detection patterns as matrices."""
    places = torch.arange(len(ids))
    same = ids.unsqueeze(1) == ids
    after = torch.zeros_like(same)
    after[:, 1:] = same[:, :-1]
    return {
        "previous_token": places.unsqueeze(1) - 1 == places,
        "current_token": places.unsqueeze(1) == places,
        "duplicate_token": same.tril(-1),
        "induction": after.tril(),
    }


@torch.no_grad()
def naive(model: PreTrainedModel, ids: Tensor) -> list[dict[str, Tensor]]:
    """The same statistics as one would write them: all weights of all layers, then a formula each."""
    model.set_attn_implementation("eager")
    layers = model(ids, output_attentions=True).attentions
    wanted = patterns(ids[0])
    places = torch.arange(ids.shape[1])
    distances = (places.unsqueeze(1) - places).abs()
    figures = []
    for weights in layers:
        rows = weights[0]
        entropy = -(rows * (rows + 1e-20).log()).sum(-1)
        visible = (rows[0] > 0).sum(-1)
        found = {
            "entropy": entropy.mean(-1),
            "normalized_entropy": (entropy / visible.log())[:, visible > 1].mean(-1),
            "max_weight": rows.amax(-1).mean(-1),
            "distance": (rows * distances).sum(-1).mean(-1),
            "participation": (1 / rows.square().sum(-1)).mean(-1),
            "sink_mass": rows[..., 0].mean(-1),
            "sink_mass_4": rows[..., :4].sum(-1).mean(-1),
        }
        for name, pattern in wanted.items():
            on_pattern = (rows * pattern).sum(-1)
            found[name] = on_pattern[:, pattern.any(-1)].mean(-1)
            found[f"{name}_mul"] = on_pattern.sum(-1) / rows.sum((-1, -2))
        figures.append(found)
    return figures


METHODS: dict[str, Callable[[PreTrainedModel, Tensor], list[dict[str, Tensor]]]] = {
    "attn": survey,
    "eager": naive,
}


def largest_difference(model: PreTrainedModel, ids: Tensor) -> float:
    """Between the two ways, over all figures: they must be the same thing before they are compared."""
    pairs = zip(survey(model, ids), naive(model, ids), strict=True)
    return max(
        float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max().clamp(min=1))
        for ours, theirs in pairs
        for name in theirs
    )


def seconds(method: str, model: PreTrainedModel, ids: Tensor) -> float:
    """Wall time of one run."""
    begun = time.perf_counter()
    METHODS[method](model, ids)
    return time.perf_counter() - begun


def status_bytes(field: str) -> int:
    """A figure of this process's memory, from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def peak_growth(method: str, name: str, num_tokens: int) -> int:
    """Bytes that one run takes at its peak, over the model that is loaded and has run once."""
    model, ids = build(name, num_tokens), tokens(num_tokens)
    METHODS[method](model, ids[:, :16])
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status_bytes("VmRSS")
    METHODS[method](model, ids)
    return status_bytes("VmHWM") - before


def measured_peak(method: str, name: str, num_tokens: int) -> float:
    """The same in a fresh process, in MB."""
    command = [sys.executable, __file__, "--peak", method, name, str(num_tokens)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1e6


def compare(name: str, num_tokens: int, rounds: int) -> str:
    """A row of the table: both ways."""
    model, ids = build(name, num_tokens), tokens(num_tokens)
    difference = largest_difference(model, ids)
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(rounds):
        for method in METHODS:
            times[method].append(seconds(method, model, ids))
    del model
    ours, theirs = (statistics.median(times[method]) for method in ("attn", "eager"))
    peaks = {method: measured_peak(method, name, num_tokens) for method in METHODS}
    return (
        f"| {name} | {num_tokens:,} | {ours:.2f} s | {theirs:.2f} s | {ours / theirs:.2f} "
        f"| {peaks['attn']:,.0f} MB | {peaks['eager']:,.0f} MB | {peaks['attn'] / peaks['eager']:.3f} "
        f"| {difference:.0e} |"
    )


def alone(name: str, num_tokens: int) -> str:
    """A row of the table: ours, where the other way takes too much."""
    model, ids = build(name, num_tokens), tokens(num_tokens)
    survey(model, ids[:, :16])
    taken = seconds("attn", model, ids)
    del model
    peak = measured_peak("attn", name, num_tokens)
    return f"| {name} | {num_tokens:,} | {taken:.2f} s | - | - | {peak:,.0f} MB | - | - | - |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--long", type=int, nargs="*", default=[4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        method, name, num_tokens = arguments.peak
        print(peak_growth(method, name, int(num_tokens)))
        return
    print("| model | tokens | attn heads | eager | ratio | attn peak | eager peak | ratio | difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in MODELS:
        for num_tokens in arguments.lengths:
            print(compare(name, num_tokens, arguments.rounds), flush=True)
        for num_tokens in arguments.long:
            print(alone(name, num_tokens), flush=True)


if __name__ == "__main__":
    main()
