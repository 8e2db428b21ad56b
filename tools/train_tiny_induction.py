"""Train the model that `attn heads` shows by default: two layers that learn to copy what they saw before.

    python tools/train_tiny_induction.py [FOLDER] [STORE.db]

GPT-2's architecture, 64 wide, 4 heads a layer, untied, over 62 characters. Trained to say how [BOS] + r +
r + ... goes on, r random characters: a previous-token head in the first layer and an induction head in the
second are how two layers do it (Olsson et al. 2022, In-context learning and induction heads, 2209.11895).
Seeded, on one thread, so that the same versions give the same weights; two minutes. In the store are its
heads at every 50th step: attn watch STORE.db; attncli/data/lessons/files/learning-to-copy.db is one.
"""

import string
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Int
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from attncli import Watch

BLANK = "▁"
CHARACTERS = f"{string.ascii_lowercase}{string.digits}{BLANK}.,;:!?'\"()[]{{}}-+*/=<>_&%#"[:62]
SPECIAL = ("<bos>", "<unk>")
SHORTEST, LONGEST, LENGTH, POSITIONS = 4, 24, 49, 128
BATCH, STEPS, WARM_UP, LEARNING_RATE, SEED = 64, 2500, 100, 2e-3, 0
WATCHED = 50
UNKNOWN = -100


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Lower-case characters, a blank shown as `▁`, with <bos> before them."""
    words = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(Regex(r"\s"), BLANK)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 0)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.Fuse()])
    tokens = {"bos_token": "<bos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)  # type: ignore[no-untyped-call]


def repeating(generator: torch.Generator) -> tuple[Int[Tensor, "batch token"], Int[Tensor, "batch token"]]:
    """[BOS] + r + r + ... cut at the same length, and for each token the next one where r has given it away.

    |r| differs from row to row, from 4 to 24 characters.
    """
    lengths = torch.randint(SHORTEST, LONGEST + 1, (BATCH, 1), generator=generator)
    random = torch.randint(len(SPECIAL), 64, (BATCH, LONGEST), generator=generator)
    places = torch.arange(LENGTH - 1)
    tokens = torch.cat([torch.zeros(BATCH, 1, dtype=torch.long), random.gather(1, places % lengths)], dim=1)
    return tokens, tokens[:, 1:].masked_fill(places <= lengths, UNKNOWN)


def schedule(step: int) -> float:
    """The learning rate's factor: up over the first steps, then down in a line."""
    return min(1.0, (step + 1) / WARM_UP) * max(0.05, 1 - step / STEPS)


def train(
    store: str | None = None, *, learning_rate: float = LEARNING_RATE, expect: Sequence[str] = ()
) -> GPT2LMHeadModel:
    """The trained model; says on the way how it does. Its heads are kept in the store, as it trains.

    Positions start anywhere, so that a distance cannot be learned as a pair of positions: without that the
    model finds the first copy by position, and no induction head forms.
    """
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    config = GPT2Config(
        vocab_size=64,
        n_positions=POSITIONS,
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
    model.name_or_path = "tiny-induction"
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    generator = torch.Generator().manual_seed(SEED)
    with Watch(model, character_tokenizer(), every=WATCHED, store=store, expect=expect) as watch:
        watch.step(0)
        for step in range(1, STEPS + 1):
            tokens, following = repeating(generator)
            first = int(torch.randint(POSITIONS - LENGTH + 1, (), generator=generator))
            logits = model(tokens, position_ids=torch.arange(first, first + LENGTH).unsqueeze(0)).logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), following.flatten(), ignore_index=UNKNOWN)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            watch.step(step, loss=loss)
            if step % 250 == 0:
                print(f"step {step:4}: {loss.item():.3f} nats", flush=True)
    return model


def main() -> None:
    """Train, and write config, tokenizer and weights (safetensors)."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "attncli/data/tiny-induction")
    model = train(sys.argv[2] if len(sys.argv) > 2 else None)
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)


if __name__ == "__main__":
    main()
