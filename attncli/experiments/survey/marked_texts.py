"""Texts that a model reads together, with the tokens marked that the statistics of heads are about."""

from collections.abc import Sequence

import torch

from attncli.attention.patterns import Marks
from attncli.attention.results import Wanted
from attncli.experiments.reading.text_words import attention_between_words, texts_of_stack
from attncli.experiments.survey.head_scores import Attention, wanted_scores, without_first_keys
from attncli.experiments.survey.reading import positions
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.inputs.models.pretrained import Pretrained, Reading
from attncli.spec.models.heads import HeadsSpec


class MarkedTexts:
    """Texts of equal counts, and what is measured of a layer on them; `whole` are in tokens, not in words."""

    def __init__(self, spec: HeadsSpec, whole: Sequence[Reading], pretrained: Pretrained) -> None:
        self.spec = spec
        self.whole = whole
        self.readings = [one.in_words() for one in whole]
        self.pretrained = pretrained
        self.special = torch.tensor(sorted(pretrained.special_ids - pretrained.unknown_ids))

    def attention(self, layer: CapturedLayer) -> Attention:
        """The attention of a layer, between words and without the first keys where that was asked for."""
        attention = attention_between_words(layer, self.whole) if self.spec.words else layer.attention
        return without_first_keys(attention, self.spec.skip_sink)

    def wanted(self, layer: CapturedLayer) -> Wanted:
        """What the statistics of the heads of a layer need."""
        ids = [texts_of_stack(one, layer.stack_name)[0].ids for one in self.readings]
        return wanted_scores(
            None if layer.kind == "cross" else torch.stack(ids),
            self._marks(layer.stack_name),
            first_key=self.spec.skip_sink,
            repeat=self.spec.num_tokens if self.spec.probe else None,
            asked=bool(self.spec.sought()["to"]),
        )

    def _marks(self, stack: str) -> Marks:
        texts = [texts_of_stack(one, stack) for one in self.readings]
        marks = torch.zeros(3, len(texts), max(len(text.ids) for text in texts[0]), dtype=torch.bool)
        asked = self.spec.sought()
        for number, (query, key) in enumerate(texts):
            marks[0, number, : len(key.ids)] = torch.isin(key.ids, self.special)
            for mark, names, text in ((marks[1], asked["from"], query), (marks[2], asked["to"], key)):
                mark[number, positions(names, text, self.pretrained) if names else slice(None)] = True
        return Marks(*marks.to(self.pretrained.device))
