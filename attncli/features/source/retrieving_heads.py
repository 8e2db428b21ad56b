"""The heads that look at the source of an answer, found on synthetic contexts with one right sentence."""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from attncli.errors import UserError
from attncli.features.source.results import ChosenHead, RetrievingHead, RetrievingHeads
from attncli.features.source.sources import source_weights
from attncli.models.answers import given_answer
from attncli.models.pretrained import Pretrained
from attncli.models.replay import Replay
from attncli.models.source_texts import Passage, SourcedReading, SourcedText, read_sourced

NUM_CONTEXTS, NUM_SENTENCES = 24, 16
MOST_CHOSEN = 8
MIN_SHARE_FOUND = 0.75
"""A head is chosen if it gives the right sentence the most weight in at least this share of the contexts."""
FACTS = 0.4
"""The share of the other sentences that state where somebody left something, like the right sentence."""

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
OTHER_SUBJECTS = (
    "The train", "A neighbour", "The baker", "My sister", "The old clock", "A grey cat", "The teacher",
    "Our guide", "The market", "A farmer", "The music", "The road", "The children", "A sailor", "The soup",
    "The river",
)
OTHER_PREDICATES = (
    "was late again", "sang quietly", "opened early in spring", "waited for the rain to stop",
    "told a long story about the war", "ran along the wall", "looked smaller than before",
    "never asked twice", "stood still for an hour", "smelled of bread and smoke", "had been painted green",
    "took longer than anyone expected", "came back on Sunday", "said nothing about it",
    "moved slowly toward the hills", "was full of people",
)
# fmt: on


class SyntheticContext(NamedTuple):
    """Sentences, the index of the right sentence, and the beginning and end of that sentence."""

    sentences: list[str]
    right: int
    question: str
    answer: str

    def sourced(self) -> SourcedText:
        """The sentences as sources, with the beginning of the right sentence below the sources."""
        text, sources = "", list[Passage]()
        for number, sentence in enumerate(self.sentences, start=1):
            start = len(text) + bool(text)
            text = f"{text} {sentence}".strip()
            sources.append(Passage(f"sentence{number}", start, len(text)))
        return SourcedText(f"{text}\n\n{self.question}", tuple(sources))


def synthetic_contexts(num_contexts: int = NUM_CONTEXTS, seed: int = 0) -> Iterator[SyntheticContext]:
    """Yield contexts that hide `Anna left the key in the drawer.` among sentences, some of the same form."""
    generator = random.Random(seed)
    for _ in range(num_contexts):
        who, what, where = (generator.sample(words, NUM_SENTENCES) for words in (NAMES, THINGS, PLACES))
        facts = [
            (f"{name} {generator.choice(VERBS)} the {thing}", f" {place}.")
            for name, thing, place in zip(who, what, where, strict=True)
        ]
        other_sentences = [
            f"{generator.choice(OTHER_SUBJECTS)} {did}."
            for did in generator.sample(OTHER_PREDICATES, NUM_SENTENCES)
        ]
        right = generator.randrange(NUM_SENTENCES)
        sentences = [
            "".join(fact) if place == right or generator.random() < FACTS else sentence
            for place, (fact, sentence) in enumerate(zip(facts, other_sentences, strict=True))
        ]
        yield SyntheticContext(sentences, right, *facts[right])


def search_takes_less(pretrained: Pretrained, reading: SourcedReading, answer: str | None) -> bool:
    """True if `retrieving_heads` reads fewer tokens than there are in the prompt and answer together."""
    num_tokens = len(reading.prompt.ids)
    if answer is not None:
        num_tokens += len(pretrained.encoded(answer, add_special_tokens=False)["input_ids"])
    if num_tokens < NUM_CONTEXTS * NUM_SENTENCES * LEAST_TOKENS:
        return False
    needed = 0
    for context in synthetic_contexts():
        text = f"{context.sourced().text}{context.answer}"
        needed += len(pretrained.encoded(text, add_special_tokens=True)["input_ids"])
        if needed >= num_tokens:
            return False
    return True


LEAST_TOKENS = 4
"""A lower bound for the tokens of a synthetic sentence."""


def retrieving_heads(
    pretrained: Pretrained,
    *,
    num_contexts: int = NUM_CONTEXTS,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> RetrievingHeads:
    """Find the heads with the largest found × weight on synthetic contexts with given answers.

    Raises UserError for a model that cannot read the contexts, or has no head that looks at the right
    sentences.
    """
    shares: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    names: list[tuple[str, int, int]] = []
    for done, context in enumerate(synthetic_contexts(num_contexts, seed), start=1):
        reading = read_sourced(pretrained, context.sourced(), num_new=NUM_SENTENCES, key="model")
        target = given_answer(pretrained, context.answer, reading.prompt.ids)
        layers, _ = Replay(pretrained.whole, reading.prompt.ids, target).layers()
        weights = source_weights(layers, reading, len(target.ids))
        names, by_head = weights.heads, weights.by_head
        is_right = (by_head.argmax(dim=1) == context.right).double()
        shares = is_right if shares is None else shares + is_right
        weight = by_head[:, context.right] if weight is None else weight + by_head[:, context.right]
        if progress is not None:
            progress(done / num_contexts)
    assert shares is not None and weight is not None
    shares, weight = shares / num_contexts, weight / num_contexts
    order = (shares * weight).argsort(descending=True, stable=True).tolist()
    rows = RetrievingHead.table(
        stack=[names[place][0] for place in order],
        layer=[names[place][1] for place in order],
        head=[names[place][2] for place in order],
        found=shares[order].tolist(),
        weight=weight[order].tolist(),
    )
    chosen = rows.where(lambda row: (row.share_found or 0.0) >= MIN_SHARE_FOUND)[:MOST_CHOSEN]
    if not chosen:
        best = f"the best head is {rows[0].name}, in {rows[0].share_found:.0%}"
        share = f"{MIN_SHARE_FOUND:.0%} of the contexts"
        message = f"gives the right sentence the most weight in {share} ({best})"
        raise UserError(f"model: no head of {pretrained.name} {message}: name heads yourself")
    return RetrievingHeads(
        rows=rows,
        chosen=ChosenHead.table(chosen_head=[row.name for row in chosen]),
        num_contexts=num_contexts,
        seed=seed,
    )
