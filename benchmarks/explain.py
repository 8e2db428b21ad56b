"""Whether the first row of `attn source` as typed is the right one, on contexts that nobody tuned on.

    python benchmarks/explain.py FOLDER [--seed N] [--kind begun|given|asked]
    python benchmarks/explain.py FOLDER --prompts FILE
    attn source FILE --compare --model FOLDER

FOLDER holds SmolLM2-135M (tests/checkpoints.py makes it). 100 contexts, ten of each of ten topics: twelve
sentences, one of the topic and the others of any, each with names and values of its own, sampled from the
seed. The model continues the beginning of that one by as many tokens as it has left, reads its end as the
answer, or answers a question in its chat template. Nothing else is told to `attn`, and no retrieving heads
are kept.
"""

import argparse
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import attncli
from attncli.features.source.results import AnswerSources

NUM_SENTENCES, NUM_OF_TOPIC = 12, 10
# fmt: off
PEOPLE = (
    "Adela", "Bruno", "Celia", "Dorian", "Edith", "Farid", "Gwen", "Hugo", "Imani", "Jasper", "Kira",
    "Lionel",
    "Mira", "Nestor", "Opal", "Quentin", "Rhoda", "Silas", "Thea", "Ulric", "Vera", "Wilfred", "Yara", "Zeno",
)
NUMBERS = (
    "seven", "eleven", "thirteen", "fifteen", "nineteen", "twenty", "thirty", "forty", "fifty", "sixty",
    "seventy", "eighty", "ninety", "twelve", "nine",
)
WORDS = {
    "towns": (
        "Lisbon", "Oslo", "Cairo", "Quebec", "Kyoto", "Lima", "Dublin", "Athens", "Prague",
        "Nairobi", "Madrid", "Helsinki", "Vienna",
    ),
    "ships": (
        "Heron", "Comet", "Falcon", "Aurora", "Pilgrim", "Minerva", "Osprey", "Neptune", "Swallow",
        "Harrier", "Petrel", "Juno", "Orion",
    ),
    "dishes": (
        "soup", "stew", "pie", "salad", "omelette", "curry", "pudding", "risotto", "chowder",
        "tart", "dumplings", "lasagna", "porridge",
    ),
    "spices": (
        "saffron", "ginger", "thyme", "cumin", "basil", "nutmeg", "paprika", "rosemary", "mustard",
        "vanilla", "cinnamon", "mint", "pepper",
    ),
    "plants": (
        "tulips", "roses", "beans", "carrots", "lilies", "pumpkins", "onions", "cherries", "peas",
        "sunflowers", "melons", "cabbages", "radishes",
    ),
    "books": (
        "atlas", "novel", "diary", "almanac", "dictionary", "songbook", "cookbook", "manual",
        "chronicle", "catalogue", "bible", "thesis", "ledger",
    ),
    "metals": (
        "copper", "silver", "brass", "iron", "nickel", "bronze", "tin", "gold", "zinc", "steel",
        "lead", "chrome", "pewter",
    ),
    "sports": (
        "tennis", "chess", "hockey", "rugby", "fencing", "golf", "rowing", "boxing", "archery",
        "cricket", "judo", "polo", "sailing",
    ),
    "jobs": (
        "plumber", "dentist", "pilot", "tailor", "lawyer", "baker", "painter", "barber", "surgeon",
        "carpenter", "teacher", "jeweller", "farmer",
    ),
    "animals": (
        "otter", "camel", "parrot", "badger", "zebra", "panther", "turtle", "walrus", "ferret",
        "goose", "donkey", "lizard", "moose",
    ),
    "rivers": (
        "Danube", "Rhine", "Nile", "Ganges", "Volga", "Thames", "Seine", "Tagus", "Loire", "Tiber",
        "Elbe", "Mekong", "Congo",
    ),
}
# fmt: on
TOPICS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "harbour": (
        ("Captain {person} sailed the {ships} to", " {towns}.", "Where did {person} sail?"),
        (
            "The cargo of {person} came from",
            " {towns} by night.",
            "Where did the cargo of {person} come from?",
        ),
        ("For the voyage {person} hired the", " {ships}.", "Which ship did {person} hire?"),
    ),
    "kitchen": (
        ("{person} seasoned the {dishes} with", " {spices}.", "What did {person} season the {dishes} with?"),
        ("On Friday {person} always cooks", " {dishes}.", "What does {person} cook on Friday?"),
        ("What {person} dislikes most is the taste of", " {spices}.", "What does {person} dislike?"),
    ),
    "garden": (
        ("Behind the shed {person} planted", " {plants}.", "What did {person} plant?"),
        ("{person} sold the {plants} in", " {towns}.", "Where did {person} sell the {plants}?"),
        ("The frost killed all of {person}'s", " {plants} in May.", "What of {person}'s did the frost kill?"),
    ),
    "library": (
        ("{person} borrowed the old", " {books}.", "What did {person} borrow?"),
        ("The {books} of {person} was printed in", " {towns}.", "Where was {person}'s {books} printed?"),
        ("Nobody but {person} has read the", " {books} twice.", "What has {person} read?"),
    ),
    "workshop": (
        ("{person} made the hinge of", " {metals}.", "What did {person} make the hinge of?"),
        ("The ring that {person} lost was made of", " {metals}.", "What was {person}'s ring made of?"),
        ("At the forge {person} melts nothing but", " {metals}.", "What does {person} melt?"),
    ),
    "club": (
        ("Every weekend {person} practises", " {sports}.", "What does {person} practise?"),
        ("{person} won a medal in", " {sports} last year.", "In what did {person} win a medal?"),
        ("The coach told {person} to give up", " {sports}.", "What was {person} told to give up?"),
    ),
    "street": (
        ("{person} works as a", " {jobs}.", "What does {person} work as?"),
        ("The uncle of {person} used to be a", " {jobs}.", "What was the uncle of {person}?"),
        ("Next door to {person} lives a", " {jobs}.", "Who lives next door to {person}?"),
    ),
    "zoo": (
        ("In the morning {person} feeds the", " {animals}.", "What does {person} feed?"),
        ("{person} was bitten by a", " {animals}.", "What bit {person}?"),
        ("The drawing by {person} shows a", " {animals} at rest.", "What does the drawing by {person} show?"),
    ),
    "journey": (
        ("{person} crossed the", " {rivers}.", "Which river did {person} cross?"),
        ("The grandmother of {person} was born in", " {towns}.", "Where was {person}'s grandmother born?"),
        ("In spring {person} paddled down the", " {rivers}.", "Which river did {person} paddle down?"),
    ),
    "market": (
        (
            "The basket of {person} weighs",
            " {numbers} pounds.",
            "How many pounds does {person}'s basket weigh?",
        ),
        ("{person} paid for the {plants} with", " {numbers} coins.", "How many coins did {person} pay?"),
        (
            "In the stall of {person} hang",
            " {numbers} lamps.",
            "How many lamps hang in the stall of {person}?",
        ),
    ),
}
"""Of each topic three sentences: how each begins, how it ends, and a question that it answers."""


class TopicContext(NamedTuple):
    """Sentences, the number of the right one from 1, how it begins, its end, and a question."""

    topic: str
    sentences: list[str]
    right: int
    start: str
    end: str
    question: str


def contexts(seed: int) -> Iterator[TopicContext]:
    """Ten of each topic."""
    generator = random.Random(seed)
    for topic, forms in TOPICS.items():
        for _ in range(NUM_OF_TOPIC):
            people = generator.sample(PEOPLE, NUM_SENTENCES)
            sampled = {name: generator.sample(words, NUM_SENTENCES) for name, words in WORDS.items()}
            sampled["numbers"] = generator.sample(NUMBERS, NUM_SENTENCES)
            right = generator.randrange(NUM_SENTENCES)
            facts = []
            for place, person in enumerate(people):
                words = {name: of_name[place] for name, of_name in sampled.items()}
                others = generator.choice([*TOPICS.values()])
                form = generator.choice(forms if place == right else others)
                facts.append([part.format(person=person, **words) for part in form])
            sentences = [f"{start}{end}" for start, end, _ in facts]
            yield TopicContext(topic, sentences, right + 1, *facts[right])


KINDS = ("begun", "given", "asked")


def typed(kind: str, context: TopicContext, num_left: int) -> dict[str, Any]:
    """What is typed: the beginning, which the model continues or whose end is given, or a question."""
    kinds: dict[str, dict[str, Any]] = {
        "begun": {"sentence": context.start, "max_new_tokens": num_left},
        "given": {"sentence": context.start, "answer": context.end.strip()},
        "asked": {"sentence": context.question, "chat": True},
    }
    return kinds[kind]


def first_rows(folder: str, kind: str, seed: int) -> None:
    """How often the first row is right; and of the answers that name what the sentence says."""
    num_first, num_by_all, num_answered, num_first_answered = Counter[str](), 0, 0, 0
    pretrained = attncli.open_model(folder)
    for context in contexts(seed):
        settings = typed(kind, context, len(pretrained.encoded(context.end)["input_ids"]))
        report = attncli.run("source", model=folder, context=" ".join(context.sentences), **settings)
        result = report.result_of(AnswerSources)
        is_first = result.first == context.right
        is_answered = context.end.split()[0].strip(".") in (report.written or "")
        num_first[context.topic] += is_first
        num_answered += is_answered
        num_first_answered += is_first and is_answered
        num_by_all += next(row.source for row in result.sources if row.all_heads_rank == 1) == context.right
        if not is_first:
            lost = [f"{row.source}: {row.lost:.2f}" for row in result.sources if row.lost is not None]
            print(f"  {context.right} is {context.sentences[context.right - 1]!r}; ", end="")
            print(f"{report.written!r}; {', '.join(lost)}", flush=True)
    count = len(TOPICS) * NUM_OF_TOPIC
    print(f"{kind}: right in the first row {sum(num_first.values())} of {count} {dict(num_first)}, ", end="")
    print(f"by the weight of all heads {num_by_all}; ", end="")
    print(f"of {num_answered} answers that name the right word {num_first_answered}", flush=True)


def write_prompts(file: str, seed: int, num_of_topic: int = 2) -> None:
    """Some contexts of each topic with their right answers, for `attn source FILE --compare`."""
    rows = []
    for topic, chosen in groupby(contexts(seed), key=lambda context: context.topic):
        for number, context in enumerate(islice(chosen, num_of_topic), start=1):
            row = {
                "id": f"{topic} {number}",
                "sentence": context.start,
                "context": " ".join(context.sentences),
            }
            rows.append(row | {"answer": context.end.strip(), "right": context.right})
    Path(file).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def main() -> None:
    """Each of the three ways to ask, or a file of prompts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=51)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--prompts", metavar="FILE", help="write 20 of the contexts there, and nothing else")
    arguments = parser.parse_args()
    if arguments.prompts:
        write_prompts(arguments.prompts, arguments.seed)
        return
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for kind in arguments.kind or KINDS:
            first_rows(arguments.folder, kind, arguments.seed)


if __name__ == "__main__":
    main()
