"""Train the model that `attn heads` shows by default: two layers that learn to copy what they saw before.

    python tools/train_tiny_induction.py [FOLDER]

GPT-2's architecture, 64 wide, 4 heads a layer, untied, over 62 characters. Trained on [BOS] + r + r with
random characters r, to say the second r: a previous-token head in the first layer and an induction head in
the second are how two layers do it (Olsson et al. 2022, In-context learning and induction heads, 2209.11895).
Seeded, on one thread, so that the same versions give the same weights; about two minutes.
"""

import string
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

BLANK = "▁"
CHARACTERS = f"{string.ascii_lowercase}{string.digits}{BLANK}.,;:!?'\"()[]{{}}-+*/=<>_&%#"[:62]
SPECIAL = ("<bos>", "<unk>")
SHORTEST, LONGEST = 6, 24
BATCH, STEPS, SEED = 64, 2500, 0


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Lower-case characters, a blank shown as `▁`, with <bos> before them."""
    words = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(Regex(r"\s"), BLANK)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 0)])
    tokens = {"bos_token": "<bos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)  # type: ignore[no-untyped-call]


def repeated(length: int, generator: torch.Generator) -> Int[Tensor, "batch token"]:
    """A batch of [BOS] + r + r."""
    random = torch.randint(len(SPECIAL), 64, (BATCH, length), generator=generator)
    return torch.cat([torch.zeros(BATCH, 1, dtype=torch.long), random, random], dim=1)


def second_copy_loss(model: GPT2LMHeadModel, tokens: Int[Tensor, "batch token"]) -> Float[Tensor, ""]:
    """Cross-entropy, in nats, of what the first copy gives away: all of the second but its first token."""
    length = tokens.shape[1] // 2
    logits: Tensor = model(tokens).logits[:, length + 1 : -1]
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, length + 2 :].flatten())


def train() -> GPT2LMHeadModel:
    """The trained model; says on the way how it does."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    config = GPT2Config(
        vocab_size=64,
        n_positions=128,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(SEED)
    for step in range(1, STEPS + 1):
        length = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=generator))
        loss = second_copy_loss(model, repeated(length, generator))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 250 == 0:
            print(f"step {step:4}: {loss.item():.3f} nats", flush=True)
    return model


def main() -> None:
    """Train, and write config, tokenizer and weights (safetensors)."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "attncli/data/tiny-induction")
    model = train()
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)


if __name__ == "__main__":
    main()
