"""What `attn heads --texts` costs next to a loop that somebody writes by hand over padded batches.

    python benchmarks/survey.py FOLDER               1,000 sentences, each way three times, alternating
    python benchmarks/survey.py FOLDER --texts FILE --rounds 5

Both are commands in processes of their own, as typed: imports, loading and all. The loop pads batches of 32
sentences in the order of the file, runs the model with output_attentions, and has one formula for each
statistic of a head. The means of both agree, or it says by how much not. FOLDER holds a BERT.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

SENTENCES = Path(__file__).parents[1] / "configs" / "alice.txt"
NUM_TEXTS, BATCH = 1000, 32
TARGET = 0.75
"""Our rate over that of the loop."""


def different_sentences(count: int) -> list[str]:
    """So many, none twice, since a store computes no text twice: beyond the file's 200 their words rotate."""
    sentences = [line.split() for line in SENTENCES.read_text().splitlines()]
    rotated = (
        " ".join(words[turn % len(words) :] + words[: turn % len(words)])
        for turn in range(count)
        for words in sentences
    )
    return list(islice(dict.fromkeys(islice(rotated, 2 * count + len(sentences))), count))


def patterns(ids: Tensor, real: Tensor, special: Tensor) -> dict[str, Tensor]:
    """Which keys of each row count, as masks (text, query, key)."""
    places = torch.arange(ids.shape[1])
    query, key = places[:, None], places
    same = ids.unsqueeze(2) == ids.unsqueeze(1)
    before = torch.nn.functional.pad(ids[:, :-1], (1, 0), value=-1)
    masks = {
        "sink_mass_4": (key < 4).expand_as(same),
        "previous_token": (key == query - 1).expand_as(same),
        "next_token": (key == query + 1).expand_as(same),
        "current_token": (key == query).expand_as(same),
        "duplicate_token": same & (key < query),
        "induction": (before.unsqueeze(1) == ids.unsqueeze(2)) & (key <= query),
        "special_mass": special.unsqueeze(1).expand_as(same),
    }
    both = real.unsqueeze(1) & real.unsqueeze(2)
    return {name: mask & both for name, mask in masks.items()}


def layer_statistics(
    rows: Tensor, real: Tensor, special: Tensor, masks: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The statistics of a layer (text, head), from its weights (text, head, query, key)."""
    query = real.unsqueeze(1)
    counts = real.sum(-1, keepdim=True)
    places = torch.arange(real.shape[1])

    def mean(numbers: Tensor) -> Tensor:
        return torch.where(query, numbers, 0).sum(-1) / counts

    entropy = -(rows * (rows + 1e-20).log()).sum(-1)
    yield "entropy", mean(entropy)
    yield "normalized_entropy", mean(entropy / counts.log().unsqueeze(-1))
    yield "max_weight", mean(rows.amax(-1))
    yield "sink_mass", mean(rows[..., 0])
    yield "distance", mean((rows * (places.unsqueeze(1) - places).abs()).sum(-1))
    yield "participation", mean(1 / rows.square().sum(-1))
    total = (rows.sum(-1) * query).sum(-1)
    for name, mask in masks.items():
        on_pattern = (rows * mask.unsqueeze(1)).sum((-1, -2))
        yield name, on_pattern / mask.any(-1).sum(-1, keepdim=True)
        if name != "sink_mass_4":
            yield f"{name}_mul", on_pattern / total
    received = (rows * query.unsqueeze(-1)).sum(-2) / counts.unsqueeze(-1)
    candidates = real & ~special & (places > 0)
    yield "one_key_mass", received.masked_fill(~candidates.unsqueeze(1), -1).amax(-1)


@torch.no_grad()
def padded(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> dict[str, Tensor]:
    """The mean over texts of every statistic (layer, head)."""
    by_statistic: dict[str, list[Tensor]] = {}
    for start in range(0, len(texts), BATCH):
        batch = tokenizer(texts[start : start + BATCH], padding=True, truncation=False, return_tensors="pt")
        ids, real = batch["input_ids"], batch["attention_mask"].bool()
        special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids)) & real
        masks = patterns(ids, real, special)
        layers = model(**batch, output_attentions=True).attentions
        each = [dict(layer_statistics(rows, real, special, masks)) for rows in layers]
        for name in each[0]:
            by_statistic.setdefault(name, []).append(torch.stack([layer[name] for layer in each], dim=1))
    return {name: torch.cat(parts).double().nanmean(0) for name, parts in by_statistic.items()}


def by_hand(folder: str, texts: str, output: str) -> None:
    """The whole of the other command."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", use_safetensors=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.no_padding()
    means = padded(model, tokenizer, Path(texts).read_text().splitlines())
    Path(output).write_text(json.dumps({name: mean.tolist() for name, mean in means.items()}))


def seconds(command: list[str]) -> float:
    """Wall time of a command."""
    begun = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begun


def largest_difference(report: Path, hand: Path) -> float:
    """Between the means of both, relative to a number above 1."""
    expected = json.loads(hand.read_text())
    rows = json.loads(report.read_text())["statistics"]["heads"]
    return max(
        float(abs(row[name] - mean[row["layer"]][row["head"]]) / max(1.0, abs(row[name])))
        for row in rows
        for name, mean in expected.items()
    )


def main() -> None:
    """Print a row of times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder")
    parser.add_argument("--texts", type=Path, help="default: 1,000 sentences")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--by-hand", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.by_hand:
        by_hand(arguments.folder, *arguments.by_hand)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = arguments.texts or folder / "texts.txt"
        if arguments.texts is None:
            texts.write_text("\n".join(different_sentences(NUM_TEXTS)))
        count = len(texts.read_text().splitlines())
        report, hand = folder / "attn.json", folder / "hand.json"
        model = ["--model", arguments.folder, "--texts", str(texts), "-o", str(report)]
        commands = {
            "attn": [sys.executable, "-m", "attncli", "heads", *model],
            "hand": [sys.executable, __file__, arguments.folder, "--by-hand", str(texts), str(hand)],
        }
        times: dict[str, list[float]] = {way: [] for way in commands}
        for _ in range(arguments.rounds):
            for way, command in commands.items():
                times[way].append(seconds(command))
        ours, theirs = (statistics.median(times[way]) for way in commands)
        print("| texts | attn | by hand | rate over the loop's | target | difference |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: |")
        difference = largest_difference(report, hand)
        rate = f"{theirs / ours:.2f} | {TARGET}"
        print(f"| {count:,} | {ours:.1f} s | {theirs:.1f} s | {rate} | {difference:.0e} |")


if __name__ == "__main__":
    main()
