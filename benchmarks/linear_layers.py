"""Layers without a softmax on a long text: their statistics beside the layer's own time, and the memory.

    python benchmarks/linear_layers.py [--tokens 8192]

Each layer has 16 heads (Mamba-1: one, of 1,536 channels) and runs in a process of its own. `slow` has decays
so close to 1 that no part of the matrix is left out.
"""

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import BambaConfig, KimiLinearConfig, MambaConfig, MiniMaxConfig, Qwen3NextConfig
from transformers.models.bamba.modeling_bamba import BambaMixer
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from attncli.core.runtime import idle_core_threads
from attncli.core.signed_rows import signed_statistics
from attncli.models.layer_sources import CapturedMixer, capturing_mixers

MEGABYTE = 10**6


def gated_delta_net() -> tuple[nn.Module, int]:
    """Qwen3-Next's, with half its heads: 2,048 dimensions, 8 key heads and 16 value heads of 128."""
    config = Qwen3NextConfig(linear_num_value_heads=16, linear_num_key_heads=8, num_hidden_layers=4)
    return Qwen3NextGatedDeltaNet(config, 0), config.hidden_size


def mamba2() -> tuple[nn.Module, int]:
    """1,024 dimensions, 16 heads of 128, a state of 128."""
    config = BambaConfig(
        hidden_size=1024,
        num_hidden_layers=2,
        attn_layer_indices=[1],
        mamba_n_heads=16,
        mamba_d_head=128,
        mamba_d_state=128,
        mamba_n_groups=1,
    )
    return BambaMixer(config, 0), 1024


def kimi() -> tuple[nn.Module, int]:
    """Kimi linear's, 2,048 dimensions, 16 heads of 128."""
    config = KimiLinearConfig(hidden_size=2048, linear_num_heads=16, linear_head_dim=128, num_hidden_layers=4)
    return KimiLinearDeltaAttention(config, 0), 2048


def lightning() -> tuple[nn.Module, int]:
    """MiniMax's, 2,048 dimensions, 16 heads of 128."""
    config = MiniMaxConfig(hidden_size=2048, num_attention_heads=16, head_dim=128, num_hidden_layers=4)
    return MiniMaxLightningAttention(config, 2), 2048


def mamba1() -> tuple[nn.Module, int]:
    """That of Mamba-130M: 768 dimensions, 1,536 channels, a state of 16."""
    return MambaMixer(MambaConfig(hidden_size=768, num_hidden_layers=1), 0), 768


LAYERS = {
    "gated delta net": gated_delta_net,
    "Mamba-2": mamba2,
    "lightning attention": lightning,
    "Kimi delta attention": kimi,
    "Mamba-1": mamba1,
}


def slowly_decaying(layer: nn.Module) -> None:
    """Decays of 0.9999 for each token."""
    for name, parameter in layer.named_parameters():
        if name.endswith("A_log"):
            parameter.fill_(-5.0)
        if name.endswith("dt_bias"):
            parameter.fill_(-4.0)
    if "slope_rate" in dict(layer.named_buffers()):
        layer.slope_rate.fill_(1e-4)  # type: ignore[operator]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@contextmanager
def peak(found: dict[str, float]) -> Iterator[None]:
    """Seconds, and megabytes beyond what was taken before, looked at every 2 ms."""
    before, running, highest = resident(), [True], [0]

    def look() -> None:
        while running:
            highest[0] = max(highest[0], resident())
            time.sleep(0.002)

    thread = threading.Thread(target=look)
    thread.start()
    start = time.perf_counter()
    try:
        yield
    finally:
        found["seconds"] = time.perf_counter() - start
        running.clear()
        thread.join()
        found["megabytes"] = (highest[0] - before) / MEGABYTE


@torch.no_grad()
def measure(make: Callable[[], tuple[nn.Module, int]], num_tokens: int, *, is_slow: bool) -> str:
    """A line of the table."""
    torch.manual_seed(0)
    layer, hidden_size = make()
    layer.train(False)
    if is_slow:
        slowly_decaying(layer)
    model = nn.Module()
    model.layers = nn.ModuleList([layer])
    states = torch.randn(1, num_tokens, hidden_size)
    more: dict[str, Any] = {}
    if type(layer).__name__.startswith("MiniMax"):
        more = {"position_embeddings": None, "attention_mask": None}
    layer(states[:, :64], **more)
    own: dict[str, float] = {}
    ours: dict[str, float] = {}
    with peak(own):
        layer(states, **more)
    layers: list[CapturedMixer] = []
    with capturing_mixers(model, layers.append):
        layer(states, **more)
    with peak(ours), idle_core_threads() as adapt:
        signed_statistics(layers[0].heads, adapt)
    ratio = ours["seconds"] / own["seconds"]
    return (
        f"{own['seconds']:.1f} s, {own['megabytes']:.0f} MB | {ours['seconds']:.1f} s, "
        f"{ours['megabytes']:.0f} MB | {ratio:.2f}"
    )


def main() -> None:
    """Each layer in a process of its own: memory that was freed is not given back to the system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layer", choices=LAYERS)
    parser.add_argument("--slow", action="store_true")
    asked = parser.parse_args()
    if asked.layer:
        print(measure(LAYERS[asked.layer], asked.tokens, is_slow=asked.slow))
        return
    print("| layer | own | statistics | times |\n| --- | ---: | ---: | ---: |")
    for name in LAYERS:
        for slow in ([], ["--slow"]):
            command = [sys.executable, __file__, "--layer", name, "--tokens", str(asked.tokens), *slow]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"| {name}{', slow' if slow else ''} | {done.stdout.strip()} |", flush=True)


if __name__ == "__main__":
    main()
