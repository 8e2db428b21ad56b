"""The engine for rows that do not fit: exact statistics from tiles, by online softmax.

Rabe and Staats, arXiv:2112.05682; FlashAttention, arXiv:2205.14135.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from attncli.attention.engines.jobs import torch_threads
from attncli.attention.engines.parts import moments_of_heads
from attncli.attention.engines.rows import attend as attend_by_rows
from attncli.attention.engines.tile import GivenWeights, Source
from attncli.attention.engines.tiles.passes import stream
from attncli.attention.engines.tiles.tiles import TileSizes
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Computed, Wanted
from attncli.row_statistics import ROW_STATISTICS

LEAST_KEYS = 1024
"""Keys of a row from which tiles were measured to be faster than whole rows."""


def suits(source: Source, wanted: Wanted) -> bool:
    """Whether rows are long and nothing is wanted that takes them whole; or there is no key at all."""
    if 0 in source.shape:
        return True
    if (
        isinstance(source, GivenWeights)
        or source.rules.bias is not None
        or source.visibility.rule is not None
    ):
        return False
    takes_whole_rows = (
        wanted.weights
        or wanted.scores
        or wanted.kept_heads
        or wanted.head_mean
        or wanted.patterns is not None
    )
    return not takes_whole_rows and source.shape[3] >= LEAST_KEYS


def attend(
    layer: AttentionLayer,
    wanted: Wanted,
    progress: Callable[[float], None] | None = None,
    sizes: TileSizes | None = None,
) -> Computed:
    """What is wanted of a layer without bias and rule. Memory is linear in the length.

    On the CPU torch.get_num_threads() threads share the work; results do not depend on how many they are.
    What running sums do not give takes a second pass, over whole rows.
    """
    others = tuple(name for name in wanted.rows if not ROW_STATISTICS[name].running)
    second = replace(
        wanted,
        rows=others,
        top_k=0,
        previous_token=False,
        output=False,
        score_moments=False,
        received_mass=False,
        pooled=None,
    )
    shares = 1.0 if second == Wanted() else 0.5
    with torch.no_grad(), torch.inference_mode(mode=False), torch_threads(1) as num_threads:
        first = None if progress is None else lambda done: progress(done * shares)
        on_cpu = layer.query.device.type == "cpu"
        numbers = stream(layer, wanted, sizes, first, num_threads if on_cpu else 1)
    found = {name: tensor.view(*layer.shape[:2], *tensor.shape[1:]) for name, tensor in numbers.items()}
    visible = found["visible"][:, 0]
    found["sums"] = found["sums"].masked_fill((visible == 0).unsqueeze(1), 0.0)
    rest, rows = Computed(), found
    if shares < 1:
        last = None if progress is None else lambda done: progress(0.5 + done / 2)
        rest = attend_by_rows(layer, second, last)
        rows = found | rest.rows
    asked = {
        "sums": True,
        "logsumexp": True,
        "previous_token": wanted.previous_token,
        "top_keys": wanted.top_k > 0,
        "top_weights": wanted.top_k > 0,
        "output": wanted.output,
        "received_mass": wanted.received_mass,
        "pooled_mean": wanted.pooled is not None,
        "pooled_max": wanted.pooled is not None,
    }
    moments = moments_of_heads(*found["moments"].unbind(dim=-1)) if wanted.score_moments else None
    return replace(
        rest,
        rows={name: rows[name] for name in wanted.rows},
        visible=visible,
        moments=moments,
        **{name: found[name] for name, is_asked in asked.items() if is_asked},
    )
