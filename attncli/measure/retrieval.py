"""Which heads retrieve: those that look at the right sentence of synthetic contexts."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from attncli.errors import UserError
from attncli.measure.sources import given_answer, source_weights
from attncli.models.pretrained import Pretrained
from attncli.models.replay import Replay
from attncli.models.source_texts import Source, SourcedText, read_sourced

NUM_CONTEXTS, NUM_SENTENCES = 24, 16
MOST_CHOSEN = 8
LEAST_FOUND = 0.75
"""The share of the contexts in which a head has to look at the right sentence most, to be chosen."""
FACTS = 0.4
"""The share of the other sentences that say where somebody left something, as the right one does."""

# fmt: off
NAMES = (
    "Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Henry", "Irene", "Jonas", "Karen", "Lukas",
    "Maria", "Nolan", "Olive", "Peter", "Rosa", "Simon", "Tessa", "Victor", "Wendy", "Yusuf", "Zoe", "Arthur",
)
VERBS = ("left", "put", "hid", "dropped", "forgot", "placed")
THINGS = (
    "key", "lamp", "letter", "coat", "hammer", "basket", "ticket", "camera", "pencil", "blanket", "wallet",
    "bottle", "mirror", "bucket", "ribbon", "helmet", "spoon", "drum", "map", "coin", "candle", "kettle",
    "scarf", "notebook",
)
PLACES = (
    "in the drawer", "behind the door", "on the shelf", "under the bed", "in the cellar", "beside the stove",
    "at the station", "on the roof", "in the garden", "near the window", "inside the box", "by the fountain",
    "in the attic", "under the stairs", "on the bench", "behind the curtain", "at the bakery",
    "in the kitchen", "on the balcony", "beside the gate", "in the barn", "near the lake", "under the table",
    "at the library",
)
OTHERS = (
    "The train", "A neighbour", "The baker", "My sister", "The old clock", "A grey cat", "The teacher",
    "Our guide", "The market", "A farmer", "The music", "The road", "The children", "A sailor", "The soup",
    "The river",
)
DID = (
    "was late again", "sang quietly", "opened early in spring", "waited for the rain to stop",
    "told a long story about the war", "ran along the wall", "looked smaller than before",
    "never asked twice", "stood still for an hour", "smelled of bread and smoke", "had been painted green",
    "took longer than anyone expected", "came back on Sunday", "said nothing about it",
    "moved slowly toward the hills", "was full of people",
)
# fmt: on


class SyntheticContext(NamedTuple):
    """Sentences, the number of the right one from 0, and how it begins and ends."""

    sentences: list[str]
    right: int
    question: str
    answer: str

    def sourced(self) -> SourcedText:
        """The sentences as sources, the beginning of the right one below them."""
        text, sources = "", list[Source]()
        for number, sentence in enumerate(self.sentences, start=1):
            start = len(text) + bool(text)
            text = f"{text} {sentence}".strip()
            sources.append(Source(f"sentence{number}", start, len(text)))
        return SourcedText(f"{text}\n\n{self.question}", tuple(sources))


def synthetic_contexts(num_contexts: int = NUM_CONTEXTS, seed: int = 0) -> Iterator[SyntheticContext]:
    """`Anna left the key in the drawer.` among other sentences, some of which say as much of other things."""
    generator = random.Random(seed)
    for _ in range(num_contexts):
        who, what, where = (generator.sample(words, NUM_SENTENCES) for words in (NAMES, THINGS, PLACES))
        facts = [
            (f"{name} {generator.choice(VERBS)} the {thing}", f" {place}.")
            for name, thing, place in zip(who, what, where, strict=True)
        ]
        others = [f"{generator.choice(OTHERS)} {did}." for did in generator.sample(DID, NUM_SENTENCES)]
        right = generator.randrange(NUM_SENTENCES)
        sentences = [
            "".join(fact) if place == right or generator.random() < FACTS else other
            for place, (fact, other) in enumerate(zip(facts, others, strict=True))
        ]
        yield SyntheticContext(sentences, right, *facts[right])


@dataclass(frozen=True)
class RetrievingHeads:
    """`heads` are those chosen, as 18:6; `rows` has one row per head, the strongest first.

    `found`: the share of contexts in which it looks at the right sentence most; `weight`: its mean weight on
    that sentence, of the tokens of the answer.
    """

    heads: list[str]
    rows: list[dict[str, Any]]
    num_contexts: int
    seed: int


def retrieving_heads(
    pretrained: Pretrained,
    *,
    num_contexts: int = NUM_CONTEXTS,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> RetrievingHeads:
    """The heads with the largest found x weight on synthetic contexts, whose answers the model reads.

    UserError for a model that cannot read these contexts, and where no head looks at the right sentence.
    """
    found: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    names: list[tuple[str, int, int]] = []
    for done, context in enumerate(synthetic_contexts(num_contexts, seed), start=1):
        reading = read_sourced(pretrained, context.sourced(), num_new=NUM_SENTENCES, key="find_heads")
        ids = torch.tensor(given_answer(pretrained, context.answer, reading).ids)
        layers, _ = Replay(pretrained.whole, reading.prompt.ids, ids).layers()
        weights = source_weights(layers, reading, len(ids))
        names, of_heads = weights.heads, weights.of_heads
        is_right = (of_heads.argmax(dim=1) == context.right).double()
        found = is_right if found is None else found + is_right
        weight = of_heads[:, context.right] if weight is None else weight + of_heads[:, context.right]
        if progress is not None:
            progress(done / num_contexts)
    assert found is not None and weight is not None
    found, weight = found / num_contexts, weight / num_contexts
    order = (found * weight).argsort(descending=True, stable=True).tolist()
    rows = []
    for place in order:
        stack, layer, head = names[place]
        numbers = {"found": float(found[place]), "weight": float(weight[place])}
        rows.append({"stack": stack, "layer": layer, "head": head, **numbers})
    chosen = [row for row in rows if row["found"] >= LEAST_FOUND][:MOST_CHOSEN]
    if not chosen:
        best = f"{rows[0]['layer']}:{rows[0]['head']} does in {rows[0]['found']:.0%}"
        message = f"looks at the right sentence most in {LEAST_FOUND:.0%} of the contexts (the best, {best})"
        raise UserError(f"find_heads: no head of {pretrained.name} {message}: name some with `head`")
    return RetrievingHeads([f"{row['layer']}:{row['head']}" for row in chosen], rows, num_contexts, seed)
