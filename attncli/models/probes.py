"""Sequences of repeated random tokens, which reveal induction heads."""

import torch

from attncli.errors import UserError
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.reading_text import OpenedModel
from attncli.records.arguments import Size, checked


def repeated_probe(pretrained: Pretrained, length: int, generator: torch.Generator) -> ModelText:
    """Return [BOS] + r + r, where r is `length` distinct random tokens that are not special.

    A head that looks at the token after an earlier copy (an induction head) shows up on the second r (Elhage
    et al. 2021, A mathematical framework for transformer circuits; Olsson et al. 2022, 2209.11895). If the
    model has no BOS or CLS token, the probe is r + r.
    """
    pretrained.check_reads_text()
    tokenizer = pretrained.tokenizer
    size = min(len(tokenizer), pretrained.model.config.get_text_config().vocab_size)
    usable = torch.tensor([i for i in range(size) if i not in pretrained.special_ids])
    if length > len(usable):
        raise UserError(f"num_tokens: must be at most {len(usable)} for {pretrained.name} (got {length})")
    random = usable[torch.randperm(len(usable), generator=generator)[:length]].tolist()
    start = next((i for i in (tokenizer.bos_token_id, tokenizer.cls_token_id) if i is not None), None)
    ids = [*([] if start is None else [start]), *random, *random]
    most = pretrained.most_tokens()
    if most is not None and len(ids) > most:
        raise UserError(f"num_tokens: must be at most {(most - 1) // 2} for {pretrained.name} (got {length})")
    return ModelText(pretrained.labels(ids), torch.tensor(ids))


@checked
def read_probe(model: OpenedModel, num_tokens: Size, generator: torch.Generator) -> Reading:
    """Return [BOS] + r + r, with `num_tokens` random tokens r, which reveals induction heads."""
    probe = repeated_probe(model, num_tokens, generator)
    return Reading(probe, probe if model.has_decoder else None, repeat=num_tokens)


def shorter_probe(reading: Reading) -> Reading:
    """Return [BOS] + s + s, where s is about two thirds of a probe's tokens r, so that copies are closer.

    `repeat` is None, since the result does not count as a probe.
    """
    assert reading.repeat is not None
    texts: list[ModelText] = []
    for text in (reading.text, reading.context):
        if text is not None:
            start = len(text.ids) - 2 * reading.repeat
            end = start + reading.repeat - max(1, reading.repeat // 3)
            places = [*range(start), *range(start, end), *range(start, end)]
            texts.append(ModelText(tuple(text.tokens[place] for place in places), text.ids[places]))
    return Reading(*texts, part=reading.part)
