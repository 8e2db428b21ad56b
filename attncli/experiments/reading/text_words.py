"""The words of texts that a model reads together, and each layer's attention between them."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from attncli.attention.engines.tile import GivenWeights
from attncli.attention.words import merged_into_words
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.inputs.models.pretrained import ModelText, Reading

WORDS_NOTE = (
    "Tokens are merged into words: weights are summed over the keys of a word, averaged over its queries."
)


class TextWords:
    """Which word each token of some texts is in; of an encoder and a decoder on both sides."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self.of_text = _of_tokens([one.text for one in readings])
        self.of_encoded = _of_tokens([one.context or one.text for one in readings])

    def merged(self, layer: CapturedLayer) -> GivenWeights:
        """The weights of a layer between words."""
        queries = self.of_encoded if layer.stack == "encoder" else self.of_text
        keys = self.of_encoded if layer.kind == "cross" else queries
        return merged_into_words(layer.attention, queries, keys)


def _of_tokens(texts: Sequence[ModelText]) -> Int[Tensor, "text token"]:
    return torch.tensor([text.words.of_token for text in texts if text.words is not None])
