"""A model that writes with attn, which keeps every head's row of each new token, and plain `generate`.

    python benchmarks/generate.py FOLDER [--rounds N]

FOLDER holds SmolLM2-135M (tests/checkpoints.py makes it). Alternating rounds, medians; memory is the peak of
the process beyond what it was with the model loaded, and the cache's own size is told beside it.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from attncli.features.generate.writing import WrittenRows
from attncli.models.loading import load_pretrained
from attncli.models.pretrained import Pretrained
from attncli.models.writing import Decoding, write

SIZES = ((6000, 32), (100, 200))
STATUS = Path("/proc/self/status")


def megabytes(name: str) -> float:
    """VmRSS or VmHWM of this process."""
    return int(STATUS.read_text().split(f"{name}:")[1].split()[0]) / 1000


def measured(run: Callable[[], list[int]]) -> tuple[float, float, list[int]]:
    """Seconds, the peak of memory beyond the start, and the tokens."""
    Path("/proc/self/clear_refs").write_text("5")
    before, started = megabytes("VmRSS"), time.perf_counter()
    tokens = run()
    return time.perf_counter() - started, megabytes("VmHWM") - before, tokens


def plain(pretrained: Pretrained, ids: Int[Tensor, "1 token"], num_new: int) -> list[int]:
    """transformers alone, with its own fused attention."""
    pretrained.whole.set_attn_implementation("sdpa")
    generate: Any = pretrained.whole.generate
    mask = torch.ones_like(ids)
    written = generate(ids, attention_mask=mask, max_new_tokens=num_new, do_sample=False)
    tokens: list[int] = written[0, ids.shape[1] :].tolist()
    return tokens


def with_rows(pretrained: Pretrained, ids: Int[Tensor, "1 token"], num_new: int) -> list[int]:
    """The same, with the rows of every head."""
    rows = WrittenRows(ids[0], torch.tensor([0]), pretrained.module_name)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    write(pretrained.whole, inputs, Decoding(num_new), rows.take)
    return [row.token for row in rows.tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    pretrained = load_pretrained(asked.folder, allow_download=False, device="cpu", with_head=True)
    pretrained.whole.generation_config.eos_token_id = None
    config = pretrained.whole.config
    per_token = config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2 * 4
    print("| prompt + new tokens | attn | plain generate | ratio | MB, attn | MB, plain | MB, cache |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for num_prompt, num_new in SIZES:
        torch.manual_seed(0)
        ids = torch.randint(100, 40_000, (1, num_prompt))
        runs_of: dict[str, list[tuple[float, float, list[int]]]] = {"attn": [], "plain": []}
        for _ in range(asked.rounds):
            runs_of["plain"].append(measured(lambda: plain(pretrained, ids, num_new)))  # noqa: B023
            runs_of["attn"].append(measured(lambda: with_rows(pretrained, ids, num_new)))  # noqa: B023
        assert runs_of["attn"][0][2] == runs_of["plain"][0][2], "the same tokens"
        seconds = {name: statistics.median(run[0] for run in runs) for name, runs in runs_of.items()}
        memory = {name: max(run[1] for run in runs) for name, runs in runs_of.items()}
        cache = per_token * (num_prompt + num_new) / 1e6
        print(
            f"| {num_prompt:,} + {num_new} | {seconds['attn']:.1f} s | {seconds['plain']:.1f} s | "
            f"{seconds['attn'] / seconds['plain']:.2f} | {memory['attn']:.0f} | {memory['plain']:.0f} | "
            f"{cache:.0f} |"
        )


if __name__ == "__main__":
    main()
