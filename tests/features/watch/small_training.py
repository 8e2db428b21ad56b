"""A small model and a loop that trains it, for tests and for the processes that they start."""

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

TOKENS = 5
FEW = {"num_tokens": TOKENS}


def small_model() -> GPT2LMHeadModel:
    """With dropout: a random number more or less changes its weights."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_positions=32, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)


def trained(
    model: nn.Module, num_steps: int, after: Callable[[int, torch.Tensor], object] = lambda *_: None
) -> None:
    """`after` each step; what it reads follows from the random generators of torch, Python and numpy."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, num_steps + 1):
        tokens = torch.randint(64, (2, 7))
        tokens[0, 0], tokens[1, 0] = random.randrange(64), int(np.random.randint(64))
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(step, loss)


def seeded() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
