"""How much of the row that chose a token looks back: at the prompt, at a part of it, at what was written."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class PromptedRows:
    """Weights on a prompt and what was written after it; marks of special tokens and of the needle."""

    weights: Float[Tensor, "*batch key"]
    num_prompt: int
    special: Bool[Tensor, " key"]
    needle: Bool[Tensor, " key"]

    def on(self, keys: Bool[Tensor, " key"]) -> Float[Tensor, "*batch"]:
        """The weight on some of the keys."""
        return self.weights.where(keys, 0.0).sum(dim=-1)

    def in_prompt(self) -> Bool[Tensor, " key"]:
        """The keys of the prompt."""
        return torch.arange(self.weights.shape[-1], device=self.weights.device) < self.num_prompt


def prompt_mass(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """sum p over the prompt."""
    return rows.on(rows.in_prompt())


def text_mass(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """sum p over the prompt without its first token, where sinks are, and without special tokens."""
    keys = rows.in_prompt() & ~rows.special
    keys[0] = False
    return rows.on(keys)


def special_mass(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """sum p over the tokenizer's own tokens."""
    return rows.on(rows.special)


def written_mass(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """sum p over what was written."""
    return rows.on(~rows.in_prompt())


def lookback_ratio(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """a / (a + b), a and b the mean weights on a token of the prompt and of what was written.

    Chuang et al. 2024 (2407.07071), equations 1 to 3; NaN where nothing was written yet.
    """
    num_written = rows.weights.shape[-1] - rows.num_prompt
    on_prompt = prompt_mass(rows) / rows.num_prompt
    on_written = written_mass(rows) / num_written if num_written else torch.full_like(on_prompt, torch.nan)
    return on_prompt / (on_prompt + on_written)


def needle_mass(rows: PromptedRows) -> Float[Tensor, "*batch"]:
    """sum p over the needle."""
    return rows.on(rows.needle)


def retrieval_score(
    strongest: Int[Tensor, "*head token"],
    written: Int[Tensor, " token"],
    key_ids: Int[Tensor, " key"],
    needle: Bool[Tensor, " key"],
) -> tuple[Float[Tensor, "*head"], int]:
    """The share of copied tokens whose strongest key is that token in the needle; and how many were copied.

    A written token is copied where the needle has it. NaN where none was. Wu et al. 2024 (2404.15574),
    section 2, who divide by the tokens of the needle instead.
    """
    copied = torch.isin(written, key_ids[needle])
    count = int(copied.sum())
    hits = needle[strongest] & (key_ids[strongest] == written) & copied
    return hits.sum(dim=-1).double() / (count or torch.nan), count
