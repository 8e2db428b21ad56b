"""The prompts of docs/studies/indirect-objects.md, from a seed.

    python tools/indirect_object_prompts.py docs/studies/indirect-objects

Two names, the second mention of one of them, and a place for the other: Wang et al. 2022 (2211.00593). Each
has a counterpart with three other names of as many tokens, which says nothing about who should come. Half of
the prompts are to find heads, half, with other names, to confirm them.
"""

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SEED = 0
TEMPLATES = {
    "then": "Then, {a} and {b} went to the {place}. {s} gave a {thing} to",
    "when": "When {a} and {b} got to the {place}, {s} handed a {thing} to",
    "after": "After {a} and {b} had left the {place}, {s} offered a {thing} to",
    "while": "While {a} and {b} were working at the {place}, {s} passed a {thing} to",
    "friends": "The friends {a} and {b} met again at the {place} after many years. {s} brought a {thing} to",
}
ORDERS = ("ABBA", "BABA")
"""Which of the two names comes first: that of the indirect object (A), or that of the subject (B)."""
PLACES = (
    "store garden restaurant school hospital office house station park beach museum library market church"
)
THINGS = "book ring drink necklace snack letter phone gift ticket key ball map coat bottle card camera"
NAMES = {
    "find": "Mary John Tom Emma Anna James Alice Kate Paul Jack Peter David Susan Robert Laura Lisa Richard "
    "Helen Charles Jane Henry George Ruth Frank Grace Adam Lucy Sam Nancy Brian",
    "confirm": "Sarah Dan Simon Alex Mark Emily Michael Maria William Rachel Thomas Julia Daniel Karen "
    "Edward Margaret Ben Martha Luke Rose Max Linda Andrew Amy Kevin Sophie Eric Michelle Ryan Lily",
}
PER_CELL = 10
"""Prompts of each template, order and half."""
S2_FROM_END = 5
"""Where the second mention of the subject stands, counted from the end: five tokens, and as many words."""


def prompts() -> Iterator[dict[str, str]]:
    """All of them, one a line of the file."""
    sampler = random.Random(SEED)
    for half, names in NAMES.items():
        for template, text in TEMPLATES.items():
            for order in ORDERS:
                for number in range(1, PER_CELL + 1):
                    io, s, *others = sampler.sample(names.split(), 5)
                    setting = {
                        "place": sampler.choice(PLACES.split()),
                        "thing": sampler.choice(THINGS.split()),
                    }
                    a, b = (io, s) if order == "ABBA" else (s, io)
                    yield {
                        "id": f"{half} {template} {order} {number:02}",
                        "group": half,
                        "text": text.format(a=a, b=b, s=s, **setting),
                        "other": text.format(a=others[0], b=others[1], s=others[2], **setting),
                        "answer": f" {io}",
                        "against": f" {s}",
                    }


def words(prompt: dict[str, str]) -> dict[str, int]:
    """The numbers of the words that hold each name and the end: IO, S1 and the word after it, S2, END."""
    split = prompt["text"].replace(",", "").replace(".", "").split()
    s, io = prompt["against"].strip(), prompt["answer"].strip()
    first = split.index(s)
    return {
        "IO": split.index(io),
        "S1": first,
        "S1+1": first + 1,
        "S2": len(split) - S2_FROM_END,
        "END": len(split) - 1,
    }


LOOKS = {"END": ("IO", "S1", "S2"), "S2": ("S1", "S1+1")}
"""Where heads of the paper's circuit look from."""


def pairs(query: str, key: str) -> Iterator[dict[str, object]]:
    """The prompts with one pair of words each, as `attn heads --pairs` reads them."""
    for prompt in prompts():
        places = words(prompt)
        yield {
            "id": prompt["id"],
            "text": prompt["text"],
            "unit": "word",
            "pairs": [[places[query], places[key]]],
        }


def answers(key: str) -> Iterator[dict[str, str]]:
    """The prompts of the second half with one name as the answer, compared with nothing."""
    for prompt in prompts():
        if prompt["group"] == "confirm":
            yield {"id": prompt["id"], "text": prompt["text"], "answer": prompt[key]}


def files() -> dict[str, Sequence[Mapping[str, object]]]:
    """What the study reads, by the names of the files."""
    of_pairs = {
        f"{query}-to-{key}.jsonl".lower().replace("+1", "-next"): [*pairs(query, key)]
        for query, keys in LOOKS.items()
        for key in keys
    }
    one_name = {"io.jsonl": [*answers("answer")], "s.jsonl": [*answers("against")]}
    return {"prompts.jsonl": [*prompts()], **one_name, **of_pairs}


def main() -> None:
    """Write the files."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files().items():
        (folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


if __name__ == "__main__":
    main()
