"""Which texts a layer of a model is about, and its attention between their words."""

from collections.abc import Sequence

import torch

from attncli.attention.engines.tile import GivenWeights
from attncli.attention.words import merged_into_words
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.inputs.models.pretrained import ModelText, Reading

WORDS_NOTE = (
    "Tokens are merged into words: weights are summed over the keys of a word, averaged over its queries."
)


def texts_of_stack(reading: Reading, stack: str) -> tuple[ModelText, ModelText]:
    """The texts of queries and keys: an encoder reads the context, cross-attention looks at it."""
    text, context = reading.text, reading.context or reading.text
    sides = {"self": (text, text), "cross": (text, context), "encoder": (context, context)}
    return sides["self" if stack == "decoder" else stack]


def attention_between_words(layer: CapturedLayer, readings: Sequence[Reading]) -> GivenWeights:
    """The weights of a layer between the words of the texts that were read together."""
    sides = zip(*(texts_of_stack(reading, layer.stack_name) for reading in readings), strict=True)
    queries, keys = (
        torch.tensor([text.words.of_token for text in texts if text.words is not None]) for texts in sides
    )
    return merged_into_words(layer.attention, queries, keys)
