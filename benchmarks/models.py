"""What `attn heads` costs next to eager attention with output_attentions and the usual statistics.

    python benchmarks/models.py              25 to 2,048 tokens, and memory to 8,192: some minutes
    python benchmarks/models.py --models bert --lengths 1024 --rounds 5
    python benchmarks/models.py --lengths --memory 1024 8192    memory alone
    python benchmarks/models.py --lengths --memory --passes 4096 8192    compiled next to torch

Random models of the size of BERT-base, GPT-2-small (12 layers of 12 heads) and SmolLM2-135M (30 of 9, with 3
key/value heads), random tokens with the frequencies of a text (Zipf). Times are medians of alternating runs
(A B C A B C) in one process, wall time on all threads; `sdpa` is the model alone, without statistics. Memory
is the growth of the peak over the loaded model, in a fresh process for each number. Linux only.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel
from transformers.modeling_utils import PreTrainedModel

from attncli.core.engines import attend
from attncli.core.layer import Computed, Marks, Wanted
from attncli.core.runtime import SWITCH, library
from attncli.measure.patterns import head_scores, wanted_scores
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer, DeferredLayers

MOST_TOKENS = 8192
VOCABULARY = 30_000
PASSES = ("compiled", "torch")
TARGETS = {25: 1.1, 128: 1.1, 512: 1.1, 1024: 0.6, 2048: 0.5}
"""Our time over eager's, by tokens."""

SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=MOST_TOKENS,
)
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertModel(BertConfig(max_position_embeddings=MOST_TOKENS)),
    "gpt2": lambda: GPT2Model(GPT2Config(n_positions=MOST_TOKENS)),
    "smollm2": lambda: LlamaModel(SMOLLM2),
}


def build(name: str) -> PreTrainedModel:
    """A random model with positions for every length."""
    torch.manual_seed(0)
    model = MODELS[name]()
    model.config.use_cache = False
    model.train(False)
    return model


def tokens(num_tokens: int) -> Tensor:
    """Random tokens, the n-th most frequent with a chance like 1/n."""
    chances = 1 / torch.arange(1, VOCABULARY + 1)
    generator = torch.Generator().manual_seed(0)
    return chances.multinomial(num_tokens, replacement=True, generator=generator).unsqueeze(0)


def survey(model: PreTrainedModel, ids: Tensor) -> list[dict[str, Tensor]]:
    """Ours: every head statistic, a layer at a time."""
    layers: list[Computed] = []
    wanted: list[Wanted] = []
    marks = Marks(*(torch.zeros_like(ids, dtype=torch.bool) for _ in Marks._fields))

    def take(alike: Sequence[CapturedLayer]) -> Tensor | None:
        if not wanted:
            wanted.append(replace(wanted_scores(ids, marks), output=True))
        computed = [attend(layer.attention, wanted[0]) for layer in alike]
        layers.extend(replace(result, output=None) for result in computed)
        return computed[0].output

    later = DeferredLayers(take)
    capture(model, {"input_ids": ids}, later.take)
    later.finish()
    scores = head_scores(layers, wanted[0])
    return [{name: score[number] for name, score in scores.items()} for number in range(len(layers))]


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
    """The same statistics, by hand: eager attention's weights of all layers, then one formula for each."""
    layers = model(ids, output_attentions=True).attentions
    wanted = patterns(ids[0])
    places = torch.arange(ids.shape[1])
    distances = (places.unsqueeze(1) - places).abs()
    figures = []
    for weights in layers:
        rows = weights[0]
        total = rows.sum((-1, -2))
        entropy = -(rows * (rows + 1e-20).log()).sum(-1)
        visible = (rows[0] > 0).sum(-1)
        scores = {
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
            scores[name] = on_pattern[:, pattern.any(-1)].mean(-1)
            scores[f"{name}_mul"] = on_pattern.sum(-1) / total
        figures.append(scores)
    return figures


@torch.no_grad()
def model_alone(model: PreTrainedModel, ids: Tensor) -> None:
    """The model and nothing else."""
    model(ids)


METHODS: dict[str, tuple[str, Callable[[PreTrainedModel, Tensor], object]]] = {
    "attn": ("sdpa", survey),  # which replaces it by its own
    "eager": ("eager", naive),
    "sdpa": ("sdpa", model_alone),
}
"""The attention that the model is given, outside the time that is taken, and what then runs."""


def seconds(method: str, model: PreTrainedModel, ids: Tensor) -> float:
    """Wall time of one run."""
    attention, run = METHODS[method]
    model.set_attn_implementation(attention)
    begun = time.perf_counter()
    run(model, ids)
    return time.perf_counter() - begun


def largest_difference(model: PreTrainedModel, ids: Tensor) -> float:
    """Between the two ways, over all statistics: they must be the same thing before they are compared."""
    ours = survey(model, ids)
    model.set_attn_implementation("eager")
    return max(
        float((scores[name] - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1))
        for scores, expected in zip(ours, naive(model, ids), strict=True)
        for name in expected
    )


def enough_rounds(num_tokens: int) -> int:
    """More for short texts, whose times vary more."""
    return min(31, max(3, 5000 // num_tokens))


def compare(name: str, model: PreTrainedModel, num_tokens: int, rounds: int) -> str:
    """A row of the table of times."""
    ids = tokens(num_tokens)
    difference = largest_difference(model, ids)
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(rounds):
        for method in METHODS:
            times[method].append(seconds(method, model, ids))
    ours, eager, sdpa = (statistics.median(times[method]) for method in ("attn", "eager", "sdpa"))
    target = TARGETS.get(num_tokens)
    return (
        f"| {name} | {num_tokens:,} | {ours:.3f} s | {eager:.3f} s | {ours / eager:.2f} | {target or '-'} "
        f"| {sdpa:.3f} s | {ours / sdpa:.2f} | {difference:.0e} | {rounds} |"
    )


def by_pass(pass_: str, model: PreTrainedModel, ids: Tensor) -> float:
    """Wall time of one run of ours, with the compiled passes or with torch's."""
    os.environ[SWITCH] = "1" if pass_ == "compiled" else "0"
    library.cache_clear()
    return seconds("attn", model, ids)


def compare_passes(name: str, model: PreTrainedModel, num_tokens: int, rounds: int) -> str:
    """A row of the table of passes."""
    ids = tokens(num_tokens)
    turns = [
        (*(by_pass(each, model, ids) for each in PASSES), seconds("sdpa", model, ids)) for _ in range(rounds)
    ]
    compiled, by_torch, sdpa = map(statistics.median, zip(*turns, strict=True))
    return (
        f"| {name} | {num_tokens:,} | {compiled:.2f} s | {by_torch:.2f} s | {compiled / by_torch:.2f} "
        f"| {sdpa:.2f} s | {compiled / sdpa:.2f} | {rounds} |"
    )


TABLES = (
    ("model | tokens | attn | eager | ratio | target | sdpa | attn / sdpa | difference | rounds", compare),
    ("model | tokens | compiled | torch | ratio | sdpa | compiled / sdpa | rounds", compare_passes),
)
"""The columns of a table of times, and what makes a row."""


def status_bytes(field: str) -> int:
    """A field on this process's memory, from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def peak_growth(method: str, name: str, num_tokens: int) -> int:
    """Bytes that one run takes at its peak, over the model that is loaded and has run once."""
    model, ids = build(name), tokens(num_tokens)
    seconds(method, model, ids[:, :16])
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status_bytes("VmRSS")
    seconds(method, model, ids)
    return status_bytes("VmHWM") - before


def measured_peak(method: str, name: str, num_tokens: int) -> float:
    """The same in a fresh process, in MB."""
    command = [sys.executable, __file__, "--peak", method, name, str(num_tokens)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1e6


def memory(name: str, lengths: list[int]) -> Iterator[str]:
    """Rows of the table of memory: next to eager at the shortest length, ours alone at the others."""
    for num_tokens in sorted(lengths):
        ours = measured_peak("attn", name, num_tokens)
        beside = "- | -"
        if num_tokens == min(lengths):
            eager = measured_peak("eager", name, num_tokens)
            beside = f"{eager:,.0f} MB | {ours / eager:.3f}"
        yield f"| {name} | {num_tokens:,} | {ours:,.0f} MB | {beside} | {1000 * ours / num_tokens:,.0f} kB |"


def heading(columns: str) -> str:
    """The first two lines of a table: a column of names, then numbers."""
    return f"| {columns} |\n| --- |{' ---: |' * columns.count('|')}"


def main() -> None:
    """Print a table of times and one of memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--lengths", type=int, nargs="*", default=list(TARGETS))
    parser.add_argument("--rounds", type=int, help="default: more for short texts")
    parser.add_argument("--memory", type=int, nargs="*", default=[1024, 2048, 4096, MOST_TOKENS])
    parser.add_argument("--passes", type=int, nargs="*", default=[])
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        method, name, num_tokens = arguments.peak
        print(peak_growth(method, name, int(num_tokens)))
        return
    for (columns, made), lengths in zip(TABLES, (arguments.lengths, arguments.passes), strict=True):
        if lengths:
            print("\n" + heading(columns))
        for name in arguments.models if lengths else ():
            model = build(name)
            for num_tokens in lengths:
                rounds = arguments.rounds or enough_rounds(num_tokens)
                print(made(name, model, num_tokens, rounds), flush=True)
            del model
    if arguments.memory:
        print("\n" + heading("model | tokens | attn | eager | ratio (target 1/8) | attn, a token"))
    for name in arguments.models if arguments.memory else ():
        for row in memory(name, arguments.memory):
            print(row, flush=True)


if __name__ == "__main__":
    main()
