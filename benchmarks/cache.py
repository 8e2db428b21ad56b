"""What it costs to limit every key/value head of a model, and to compare policies, next to a loop by hand.

    python benchmarks/cache.py                            SmolLM2's size: some minutes
    python benchmarks/cache.py --heads-tokens 128 --policies-tokens 500
    python benchmarks/cache.py --memory 16384             what observed weights take beside the model

Heads: `attn` limits each of 90 heads to the first 4 keys and the last 64, then ten shares of them together;
the loop is the model's own forward with a mask in one layer, or in all, with KL and loss. Policies: ten of
them at six budgets, the last 200 tokens judged; the loop is sixty whole passes, of which three are timed.
Seconds are of the clock and, where other programs run, of the processor. Memory is how far the peak of a
process that ranks keys by observed weights is above that of one that reads the same tokens and keeps the
model's cache. A random model, random tokens. Linux only.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ablate import VOCABULARY, random_model
from torch import Tensor

from attncli.features.cache.limited_heads import limited_heads
from attncli.features.cache.names import CACHE_POLICIES
from attncli.features.cache.prompt_cache import policy_costs
from attncli.models.loading import in_use, open_model
from attncli.models.predicted import judged_reading
from attncli.models.pretrained import ModelText, Pretrained, Reading

SINK, WINDOW = 4, 64
BUDGETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
LAST = 200
SAMPLED = 3
TARGETS = {"heads": 0.6, "policies": 0.25}


def tokens(count: int) -> Tensor:
    """A text of random tokens."""
    return torch.randint(1, VOCABULARY, (count,), generator=torch.Generator().manual_seed(0))


def reading_of(pretrained: Pretrained, ids: Tensor) -> Any:
    return judged_reading(Reading(ModelText(pretrained.labels(ids.tolist()), ids)), pretrained)


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it gives, and its seconds of the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    result = run()
    return result, time.perf_counter() - clock, time.process_time() - processor


@torch.no_grad()
def by_hand(model: Any, ids: Tensor, order: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """KL and loss of each head alone, then of shares of them; a whole pass each."""
    config = model.config
    group = config.num_attention_heads // config.num_key_value_heads
    num_tokens = len(ids)
    seen = torch.ones(num_tokens, num_tokens).tril().bool()
    few = seen & (~seen.tril(-WINDOW) | (torch.arange(num_tokens) < SINK))
    masks: dict[int, Tensor] = {}

    def limit(module: Any, inputs: Any, named: dict[str, Any]) -> Any:
        mask = masks.get(module.layer_idx)
        return (inputs, named if mask is None else {**named, "attention_mask": mask})

    hooks = [
        block.self_attn.register_forward_pre_hook(limit, with_kwargs=True) for block in model.model.layers
    ]

    def log_probabilities(limited: list[tuple[int, int]]) -> Tensor:
        masks.clear()
        for layer, head in limited:
            whole = seen.expand(1, config.num_attention_heads, -1, -1)
            mask = masks.setdefault(layer, whole.clone())
            mask[:, head * group : (head + 1) * group] = few
        log_probabilities: Tensor = model(ids.unsqueeze(0), use_cache=False).logits[0, :-1].log_softmax(-1)
        return log_probabilities

    expected, targets = log_probabilities([]), ids[1:, None]
    loss = expected.gather(-1, targets).mean()
    divergences = {}
    shares = [order[: round(share * len(order) / 10)] for share in range(1, 11)]
    for limited in [*([head] for head in order), *shares]:
        q = log_probabilities(limited)
        divergence = (expected.exp() * (expected - q)).sum(-1).mean()
        _ = loss - q.gather(-1, targets).mean()
        if len(limited) == 1:
            divergences[limited[0]] = float(divergence)
    for hook in hooks:
        hook.remove()
    return divergences


def compare_heads(pretrained: Pretrained, count: int) -> None:
    """90 heads one by one and the curve."""
    ids = tokens(count)
    reading, model = reading_of(pretrained, ids), pretrained.whole
    limited_heads(pretrained, reading_of(pretrained, ids[:100]), sink=SINK, window=WINDOW)
    limited, *ours = timed(lambda: limited_heads(pretrained, reading, sink=SINK, window=WINDOW))
    order = [(row["layer"], row["head"]) for row in reversed(limited.heads)]
    model.set_attn_implementation("sdpa")
    expected, *theirs = timed(lambda: by_hand(model, ids, order))
    largest = max(abs(row["kl"] - expected[row["layer"], row["head"]]) for row in limited.heads)
    said(
        f"{len(order)} heads and {len(limited.curve)} shares, {count} tokens", ours, theirs, TARGETS["heads"]
    )
    print(f"largest difference between the two: {largest:.1e} nats")


def compare_policies(pretrained: Pretrained, count: int) -> None:
    """Ten policies at six budgets."""
    ids = tokens(count)
    reading, model = reading_of(pretrained, ids), pretrained.whole
    compared, *ours = timed(
        lambda: policy_costs(
            pretrained, [reading], policies=[*CACHE_POLICIES], budgets=BUDGETS, every=min(LAST, count // 10)
        )
    )
    model.set_attn_implementation("sdpa")
    num_runs = len(compared.policies)

    @torch.no_grad()
    def passes() -> None:
        for _ in range(SAMPLED):
            model(ids.unsqueeze(0), use_cache=False, logits_to_keep=LAST + 1)

    _, *some = timed(passes)
    theirs = [seconds / SAMPLED * num_runs for seconds in some]
    said(f"{num_runs} runs, {count} tokens, {compared.judged} judged", ours, theirs, TARGETS["policies"])


def said(what: str, ours: list[float], theirs: list[float], target: float) -> None:
    clock, processor = (a / b for a, b in zip(ours, theirs, strict=True))
    print(
        f"{what}: attn {ours[0]:.1f} s, the loop {theirs[0]:.1f} s: {clock:.2f} of it; of the processor "
        f"{ours[1]:.1f} and {theirs[1]:.1f} s: {processor:.2f} (target {target})",
        flush=True,
    )


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@torch.no_grad()
def read_once(folder: str, count: int, is_ranked: bool) -> None:
    """Prints the peak of reading tokens with the model's cache, or with keys ranked by observed weights."""
    ids = tokens(count)
    with in_use(open_model(folder)) as pretrained:
        if is_ranked:
            policy_costs(pretrained, [reading_of(pretrained, ids)], policies=["h2o"], budgets=[0.1], every=16)
        else:
            model: Any = pretrained.whole
            model.set_attn_implementation("sdpa")
            model(ids.unsqueeze(0), use_cache=True, logits_to_keep=17)
    print(peak_bytes())


def compare_memory(folder: Path, count: int) -> None:
    """Each in a process of its own."""
    peaks = []
    for kind in ("plain", "ranked"):
        command = [sys.executable, __file__, "--folder", str(folder), "--memory", str(count), "--read", kind]
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks.append(int(ended.stdout.split()[-1]) / 1e6)
    print(
        f"{count:,} tokens: peak {peaks[0]:,.0f} MB with the model's cache, {peaks[1]:,.0f} MB with keys "
        f"ranked by observed weights: {peaks[1] - peaks[0]:+,.0f} MB (target 100)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads-tokens", type=int, default=512)
    parser.add_argument("--policies-tokens", type=int, default=2000)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--folder", help="a model, instead of a random one")
    parser.add_argument("--read", choices=("plain", "ranked"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read_once(given.folder, given.memory, given.read == "ranked")
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(given.folder or made)
        if given.folder is None:
            random_model(folder)
        if given.memory:
            compare_memory(folder, given.memory)
            return
        with in_use(open_model(str(folder))) as pretrained:
            if given.heads_tokens:
                compare_heads(pretrained, given.heads_tokens)
            if given.policies_tokens:
                compare_policies(pretrained, given.policies_tokens)


if __name__ == "__main__":
    main()
