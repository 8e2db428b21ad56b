"""A small model whose tokens are letters, and its weights between words."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, PreTrainedTokenizerFast

from tests.eager import eager_weights
from tests.measure.test_words import save_letters


@pytest.fixture(scope="package")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a BERT whose tokens are letters."""
    return save_letters(tmp_path_factory.mktemp("letters") / "model", "BERT")


def word_weights(folder: Path, words: Sequence[str]) -> list[np.ndarray]:
    """The weights (head, word, word) of each layer, without special tokens."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    groups, ids = [], [2]
    for word in words:
        pieces = tokenizer(word, add_special_tokens=False)["input_ids"]
        groups.append(range(len(ids), len(ids) + len(pieces)))
        ids += pieces
    found = eager_weights(AutoModel.from_pretrained(folder), {"input_ids": torch.tensor([[*ids, 3]])})
    layers = []
    for _, weights in sorted(found.items(), key=lambda item: item[0][2]):
        tokens = weights.double().numpy()
        merged = np.zeros((len(tokens), len(groups), len(groups)))
        for a, rows in enumerate(groups):
            for b, columns in enumerate(groups):
                merged[:, a, b] = tokens[:, rows][:, :, columns].sum(axis=2).mean(axis=1)
        layers.append(merged)
    return layers
