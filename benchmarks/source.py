"""How often the source with most weight is the right one, and what a ranking costs.

    python benchmarks/source.py FOLDER [--contexts N] [--rounds N]

FOLDER holds SmolLM2-135M (tests/checkpoints.py makes it). The heads are chosen on the synthetic contexts of
`attn source --find-heads`; the contexts here are 20 sentences of configs/alice.txt with one fact among them,
whose names, things and places that choice never saw. Times are seconds of CPU, to which other work adds
nothing: of commands as typed, and of 20 removals beside 20 whole runs.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from attncli.core.names import named_head
from attncli.features.source.retrieving_heads import retrieving_heads
from attncli.features.source.sources import CHECKED, likeliest, source_weights, written_answer
from attncli.models.answers import given_answer
from attncli.models.loading import open_model
from attncli.models.pretrained import Pretrained
from attncli.models.replay import Replay
from attncli.models.source_removals import SourcesTakenOut
from attncli.models.source_texts import SourcedText, encoded_sources, read_sourced, split_text
from attncli.models.writing import Decoding

LINES = (Path(__file__).parents[1] / "configs" / "alice.txt").read_text().splitlines()
NUM_LINES = 20
# fmt: off
NAMES = ("Tobias", "Matilda", "Cornelius", "Beatrix", "Ludwig", "Harriet", "Ignatius", "Rosalind", "Percival",
         "Ottilie")
THINGS = ("violin", "umbrella", "telescope", "parcel", "compass", "lantern", "trumpet", "saddle", "anchor",
          "teapot")
PLACES = ("under the old bridge", "behind the grey tower", "in the empty chapel", "beside the frozen pond",
          "on the broken wagon", "near the wooden mill", "inside the hollow oak", "at the ferry landing",
          "below the stone arch", "by the northern wall")
# fmt: on


class Context(NamedTuple):
    """Lines, the number of the right one from 1, and what is asked of it."""

    lines: list[str]
    right: int
    start: str
    place: str

    def asked(self, pretrained: Pretrained) -> SourcedText:
        """`Where did Tobias leave the violin?` below the lines, as a user's message."""
        who, _, what = self.start.partition(" left ")
        question = f"Where did {who} leave {what}?"
        return split_text("\n".join(self.lines), "line", question=question).in_template(pretrained)

    def begun(self) -> SourcedText:
        """The beginning of the right line below the lines, to be continued."""
        return split_text("\n".join(self.lines), "line", question=self.start)


def contexts(count: int, seed: int = 1) -> Iterator[Context]:
    """Lines of Alice, with `Tobias left the violin under the old bridge.` in the place of one."""
    generator = random.Random(seed)
    for _ in range(count):
        lines = generator.sample(LINES, NUM_LINES)
        who, what, where = (generator.choice(words) for words in (NAMES, THINGS, PLACES))
        right = generator.randrange(NUM_LINES)
        lines[right] = f"{who} left the {what} {where}."
        yield Context(lines, right + 1, f"{who} left the {what}", where)


def rankings(pretrained: Pretrained, num_contexts: int) -> None:
    """How often the right source is first, by the chosen heads, by all, and by what sources are removed by
    without chosen heads; how often it is among the five that are; of answers given and written.
    """
    chosen = retrieving_heads(pretrained).heads
    print(f"chosen heads: {', '.join(chosen)}", flush=True)
    places = [named_head(name) for name in chosen]
    for kind in ("given", "written"):
        num_right_first = {"chosen": 0, "all": 0, "likeliest": 0}
        in_five = dict.fromkeys(num_right_first, 0)
        num_answers = num_right = 0
        for context in contexts(num_contexts):
            if kind == "given":
                reading = read_sourced(pretrained, context.asked(pretrained), num_new=24)
                answer = given_answer(pretrained, f"{context.start} {context.place}.", reading.prompt.ids)
            else:
                reading = read_sourced(pretrained, context.begun(), num_new=24)
                answer = written_answer(pretrained, reading, Decoding(6))
            num_answers += 1
            num_right += context.place.split()[-1] in pretrained.text_of(answer.ids)
            replay = Replay(pretrained.whole, reading.prompt.ids, answer)
            weights = source_weights(replay.layers()[0], reading, len(answer.ids))
            rows = [weights.heads.index(("self", place.layer, place.head)) for place in places]
            for name, ranked in (
                ("chosen", weights.by_head[rows].mean(dim=0)),
                ("all", weights.by_head.mean(dim=0)),
                ("likeliest", likeliest(weights)),
            ):
                order = (ranked.argsort(descending=True) + 1).tolist()
                num_right_first[name] += order[0] == context.right
                in_five[name] += context.right in order[:CHECKED]
        said = f"answers {kind}: {num_right} of {num_answers} name the place; right first: {num_right_first}"
        print(f"{said}, among the first {CHECKED}: {in_five}", flush=True)


def removals(pretrained: Pretrained, rounds: int) -> None:
    """20 removals that share what they can, beside 20 runs of transformers on the whole prompts."""
    (context,) = contexts(1)
    reading = read_sourced(pretrained, context.asked(pretrained))
    answer = given_answer(pretrained, f"{context.start} {context.place}.", reading.prompt.ids)
    masks = ~torch.eye(NUM_LINES, dtype=torch.bool)
    prompts = [
        torch.tensor(encoded_sources(pretrained, reading.sourced.with_only(mask))[0]) for mask in masks
    ]
    seconds: dict[str, list[float]] = {"shared": [], "whole": []}
    for _ in range(rounds):
        started = time.process_time()
        replay = Replay(pretrained.whole, reading.prompt.ids, answer)
        replay.layers()
        SourcesTakenOut(pretrained, reading, replay).log_probabilities(masks)
        seconds["shared"].append(time.process_time() - started)
        pretrained.whole.set_attn_implementation("sdpa")
        started = time.process_time()
        with torch.no_grad():
            for prompt in prompts:
                pretrained.whole(torch.cat([prompt, replay.answer[:-1]]).unsqueeze(0), use_cache=False)
        seconds["whole"].append(time.process_time() - started)
    shared, whole = (statistics.median(numbers) for numbers in seconds.values())
    print(f"20 removals {shared:.1f} s, 20 whole runs {whole:.1f} s: {shared / whole:.2f}", flush=True)


def commands(folder: str, rounds: int) -> None:
    """`attn source` and `attn generate` as typed, on the same prompt."""
    (context,) = contexts(1)
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "prompt.txt").write_text("\n".join(context.lines))
        texts = ["--file", f"{name}/prompt.txt", "--model", folder]
        line = {
            "generate": ["generate", *texts, "--question", context.start],
            "source": ["source", context.start, *texts, "--split", "line", "--head", "18:6,14:3"],
        }
        seconds: dict[str, list[float]] = {kind: [] for kind in line}
        for _ in range(rounds):
            for kind, arguments in line.items():
                started = sum(os.times()[2:4])
                subprocess.run(
                    [sys.executable, "-m", "attncli", *arguments, "--format", "json"],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    env=os.environ,
                )
                seconds[kind].append(sum(os.times()[2:4]) - started)
    medians = {kind: statistics.median(numbers) for kind, numbers in seconds.items()}
    print(json.dumps(medians), f"{medians['source'] / medians['generate']:.2f}", flush=True)


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--contexts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    commands(arguments.folder, arguments.rounds)
    pretrained = open_model(arguments.folder)
    removals(pretrained, arguments.rounds)
    rankings(pretrained, arguments.contexts)


if __name__ == "__main__":
    main()
