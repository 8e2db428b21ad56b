"""What it costs to take every head out of a model, next to restarting the model for each of them.

    python benchmarks/ablate.py                          SmolLM2's size, 81 tokens: about three minutes
    python benchmarks/ablate.py --model FOLDER --num-tokens 20 --rounds 2

Both measure the loss on the second copy of a text of random tokens. `attn` is `attn ablate` with its survey
of what each head looks at, the model loaded; `one by one` is the model's own forward with the head's columns
of W_O set to zero, for every head. A round is one of each, on all threads; memory is the growth of the peak
over the loaded model. The largest difference between the two losses of a head is printed, too. Linux only.
"""

import argparse
import resource
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from attncli.features.ablate.question import AblateSpec
from attncli.features.ablate.results import HeadEffects
from attncli.models.loading import kept_pretrained
from attncli.models.pretrained import Pretrained
from attncli.models.probes import repeated_probe
from attncli.records.report import Report
from attncli.runs.runner import Session
from attncli.settings.text import Texts

VOCABULARY = 49152
SMOLLM2 = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
    max_position_embeddings=2**15,
    initializer_range=0.1,
    bos_token_id=0,
)


def random_model(folder: Path) -> None:
    """A model of SmolLM2's size, whose tokens are numbers."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    LlamaForCausalLM(SMOLLM2).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w1"))
    tokenizer: Any = PreTrainedTokenizerFast
    tokenizer(tokenizer_object=words, bos_token="w0").save_pretrained(folder)


def all_at_once(spec: AblateSpec) -> Report:
    """`attn ablate` without the import and the load."""
    return Session().run_texts(spec, Texts(), reseed=True)


@torch.no_grad()
def one_by_one(pretrained: Pretrained, ids: Tensor, first: int) -> dict[tuple[int, int], float]:
    """How much higher the loss of the tokens from `first` on is without each head, restarting each time."""
    model: Any = pretrained.with_head
    model.set_attn_implementation("sdpa")
    config = model.config

    def loss() -> float:
        log_probabilities = model(ids.unsqueeze(0), use_cache=False).logits[0, first - 1 : -1].log_softmax(-1)
        return -float(log_probabilities.gather(-1, ids[first:, None]).mean())

    before, losses = loss(), {}
    value_dim = config.hidden_size // config.num_attention_heads
    for layer, block in enumerate(model.model.layers):
        weight = block.self_attn.o_proj.weight
        for head in range(config.num_attention_heads):
            columns = slice(head * value_dim, (head + 1) * value_dim)
            kept = weight[:, columns].clone()
            weight[:, columns] = 0
            losses[layer, head] = loss() - before
            weight[:, columns] = kept
    return losses


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def compare(folder: Path, length: int, rounds: int) -> None:
    """A line for each round, and the medians."""
    spec = AblateSpec.model_validate({"model": str(folder), "num_tokens": length})
    pretrained = kept_pretrained(str(folder), allow_download=False, device="cpu", with_head=True)
    ids = repeated_probe(pretrained, length, torch.Generator().manual_seed(spec.seed)).ids
    first = len(ids) - length + 1
    pretrained.with_head(ids.unsqueeze(0))  # type: ignore[misc]
    loaded, ratios, difference = peak_bytes(), [], 0.0
    for _ in range(rounds):
        times = [time.perf_counter()]
        rows = all_at_once(spec).result_of(HeadEffects).heads
        times.append(time.perf_counter())
        growth = peak_bytes() - loaded
        expected = one_by_one(pretrained, ids, first)
        times.append(time.perf_counter())
        ours, theirs = (after - before for before, after in pairwise(times))
        ratios.append(theirs / ours)
        effects = {(row.layer, row.head): row.loss for row in rows}
        difference = max(abs(effects[place] - expected[place]) for place in expected)  # type: ignore[operator]
        print(
            f"{len(expected)} heads, {len(ids)} tokens: attn {ours:.1f} s, one by one {theirs:.1f} s, "
            f"{theirs / ours:.2f} x; memory +{growth / 1e6:.0f} MB; largest difference {difference:.1e} nats",
            flush=True,
        )
    print(f"median: {statistics.median(ratios):.2f} x (target 2.5)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a Llama's folder (default: random, of SmolLM2's size)")
    parser.add_argument("--num-tokens", type=int, default=40, help="of r in [BOS] + r + r")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.model is not None:
        compare(arguments.model, arguments.num_tokens, arguments.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        random_model(Path(folder))
        compare(Path(folder), arguments.num_tokens, arguments.rounds)


if __name__ == "__main__":
    main()
