"""Texts made for finding out what heads do."""

import torch

from attncli.errors import UserError
from attncli.inputs.models.pretrained import ModelText, Pretrained


def repeated_probe(pretrained: Pretrained, length: int, generator: torch.Generator) -> ModelText:
    """[BOS] + r + r, with r `length` distinct random tokens that are not special.

    A head that looks at what came after the earlier copy of a token, an induction head, shows on the second r
    (Elhage et al. 2021, A mathematical framework for transformer circuits; Olsson et al. 2022,
    2209.11895). Without a BOS or CLS token it is r + r.
    """
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
