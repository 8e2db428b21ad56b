"""What `attn separate` says where labels are shuffled: chance, 100 times.

    attn separate docs/studies/injections.jsonl --label injected --hold-out family --model M -o run.db
    python benchmarks/separate_chance.py run.db           100 seeds, ten minutes of a core
    python benchmarks/separate_chance.py run.db --seeds 9

The labels of the texts in a store are shuffled within their families. AUROC on families left out should be
0.5 within its 95 % interval in 95 of 100, and the least corrected p of all statistics below 0.05 in 5 of 100.
"""

import argparse
from pathlib import Path

import torch

from attncli.features.separate.measured_texts import stored_texts
from attncli.features.separate.question import SeparateSpec
from attncli.features.separate.separation import separated
from attncli.features.separate.text_features import FeatureTable, HeadFeature
from attncli.models.labelled_files import LabelledFile, LabelNames


def table_of(store: str) -> tuple[FeatureTable, torch.Tensor]:
    """What a store has of its texts, and their labels."""
    spec = SeparateSpec.model_validate({"texts": store, "label": "injected", "hold_out": "family"})
    rows = stored_texts(Path(store), spec).rows
    with LabelledFile(rows.columns, LabelNames("injected"), "family") as file:
        file.count()
        texts = [text for _, text in file.numbered()]
        labels = torch.tensor([file.is_positive(text) for text in texts])
    features = [HeadFeature(*feature) for feature in rows.features]
    lengths = torch.tensor([len(text.words) for text in texts])
    return FeatureTable(features, rows.numbers, texts, lengths, rows.losses), labels


def main() -> None:
    """Print each seed, then how often chance was taken for more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--seeds", type=int, default=100)
    options = parser.parse_args()
    table, labels = table_of(options.store)
    families = [text.group for text in table.texts]
    aurocs, num_within, num_small = [], 0, 0
    for seed in range(options.seeds):
        generator = torch.Generator().manual_seed(seed)
        shuffled = labels.clone()
        for family in dict.fromkeys(families):
            places = torch.tensor([number for number, name in enumerate(families) if name == family])
            shuffled[places] = labels[places[torch.randperm(len(places), generator=generator)]]
        result = separated(table, shuffled, key="family", seed=seed)
        held, least = result.held_out, min(row.p_value for row in result.features)
        assert held.auroc is not None and held.lower is not None and held.upper is not None
        aurocs.append(held.auroc)
        num_within += held.lower <= 0.5 <= held.upper
        num_small += least < 0.05
        print(f"{seed}: {held.auroc:.3f} ({held.lower:.3f} to {held.upper:.3f}), p {least:.3f}", flush=True)
    numbers = torch.tensor(aurocs)
    print(
        f"mean {numbers.mean():.3f}, deviation {numbers.std():.3f}; of {options.seeds}: 0.5 within the ",
        end="",
    )
    print(f"interval {num_within}, a corrected p below 0.05 {num_small}")


if __name__ == "__main__":
    main()
