"""What `attn separate` adds to the survey of its texts: statistics, permutations and folds.

    python benchmarks/separate.py FOLDER                   10,000 sentences, every other one labelled
    python benchmarks/separate.py FOLDER --texts 1000      fewer

The runs of the model (the features of every text) and what is computed of them are timed in seconds of the
processor, one after the other, once each; FOLDER holds a model such as all-MiniLM-L6-v2. At most 0.3 of the
runs is the aim.
"""

import argparse
import os
import random
import time

import torch
from survey import SENTENCES

from attncli.features.separate.labelled_texts import LabelledReader
from attncli.features.separate.separation import separated
from attncli.features.separate.text_features import feature_table
from attncli.models.labelled_files import LabelledFile, LabelNames
from attncli.models.loading import in_use
from attncli.models.text_files import ManyTexts

TARGET, NUM_FAMILIES = 0.3, 5


def shuffled_sentences(count: int) -> list[str]:
    """So many, none twice: the words of those of a file in other orders."""
    generator = random.Random(0)
    sentences = [line.split() for line in SENTENCES.read_text().splitlines()]
    kept = dict[str, None]()
    while len(kept) < count:
        words = generator.choice(sentences)
        kept[" ".join(generator.sample(words, len(words)))] = None
    return [*kept]


def main() -> None:
    """Time both, and print their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=10_000)
    options = parser.parse_args()
    rows = [
        {"text": text, "label": number % 2, "family": f"family {number // 2 % NUM_FAMILIES}"}
        for number, text in enumerate(shuffled_sentences(options.texts))
    ]
    with LabelledFile(rows, LabelNames("label"), "family") as file, in_use(options.model) as pretrained:
        start = time.process_time()
        table = feature_table(pretrained, ManyTexts(file, LabelledReader(pretrained).read), with_loss=True)
        runs = time.process_time() - start
        labels = torch.tensor([file.is_positive(text) for text in table.texts])
        start = time.process_time()
        result = separated(table, labels)
        computed = time.process_time() - start
    print(f"{len(table.texts):,} texts, {result.num_features:,} features, load {os.getloadavg()[0]:.1f}")
    print(f"runs {runs:.1f} s, statistics, permutations and folds {computed:.1f} s: {computed / runs:.2f}")
    print(f"aim: at most {TARGET}")


if __name__ == "__main__":
    main()
