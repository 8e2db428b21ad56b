"""A small page of each kind of result, as the command line writes it or with synthetic numbers."""

import csv
import io
import json
import wave
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from shlex import split

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

import attncli
from attncli.cli import run
from attncli.features.source.results import ChosenHead, RetrievingHead, RetrievingHeads
from attncli.features.words.results import AligningHead, AligningHeads
from attncli.models.folder import SHIPPED_MODEL
from attncli.records.columns import Result
from attncli.records.report import NamedTensor, Report
from tests.running import LESSON_FILES, ROOT
from tests.views.page.pages import heads_report, page_of, pooled_report, random_weights
from tests.views.pictured import drawn_picture, one_head, several_pictures, spoken, survey, written_words

SOURCES = ("a b c", "c d a", "b a b")
FILES = {
    "texts.txt": "the cat sat on the mat\nthe dog ran on and the cat ran\na b c a b c\n",
    "prompts.jsonl": "".join(
        json.dumps({"sentence": " b?", "context": "\n".join(SOURCES[n:] + SOURCES[:n]), "answer": " a"})
        + "\n"
        for n in range(3)
    ),
    "few.conllu": "\n\n".join((ROOT / "configs" / "alice.conllu").read_text().split("\n\n")[:4]) + "\n\n",
}
LONG = "The old keeper of the lighthouse walked down to the harbour every morning because the boats came in"
COMMANDS = {
    "ablate": "ablate",
    "average": "average",
    "cache": "cache",
    "cache of policies": "cache --policy window,h2o",
    "circuit": "circuit",
    "circuit of weights": "circuit --weights",
    "cross": 'cross "the cat walks" --context "die Katze geht auf der Strasse"',
    "diff": "diff self --set causal=true",
    "diff of texts": f'diff "the cat sat on it" "the dog sat on it" --model {SHIPPED_MODEL}',
    "generate": "generate",
    "heads": "heads",
    "heads of examples": "heads --texts texts.txt --head 1:0 --examples 2 --sort induction",
    "heads of pairs": "heads --pairs few.conllu",
    "heads of relations": "heads --relations few.conllu",
    "multihead": "multihead",
    "norm": "norm",
    "pitfalls": "pitfalls",
    "pitfalls of one": "pitfalls --pitfall late-mask",
    "results": "results runs.db",
    "scale-demo": "scale-demo",
    "self": "self",
    "separate": "separate answered.csv --label answered --permutations 2",
    "separate of texts": "separate answered.csv --apply detector.json",
    "show": "show weights.npy",
    "source": "source",
    "source of explanations": "source --compare",
    "source of ways": "source prompts.jsonl --compare --split line --runs 9",
    "source of weights": "source prompts.jsonl --learn --split line --runs 9",
    "watch": "watch",
    "watch of a head": "watch --head 1:0",
    "why": "why",
    "why of a score": "why --head 1:0 --from 5 --to 3",
    # Other pages of the same kinds.
    "self, explained": f'self --sentence "{LONG}" --explain',
    "multihead, long": f'multihead --sentence "{LONG}" --causal',
    "heads of many texts": "heads --texts texts.txt",
}
"""The command line of each kind, without `-o`."""
FIRST = {
    "results": f"batch {LESSON_FILES / 'sweep.yaml'} -o runs.db",
    "separate of texts": "separate answered.csv --label answered --permutations 2 -o detector.json",
}
"""The commands that write what others read."""


class Attention(torch.nn.Module):
    """One layer of a program, with four heads that are told apart by their position."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(x, x, x, is_causal=True)


def recorded() -> Report:
    """The recording of two layers on three tokens, as it is saved."""
    x = torch.randn(1, 4, 3, 8, generator=torch.Generator().manual_seed(0))
    with attncli.record(tokens=["the", "cat", "sat"]) as recording:
        torch.nn.Sequential(Attention(), Attention())(x)
    return Report(**{field.name: getattr(recording.report(), field.name) for field in fields(Report)})


def of_result(experiment: str, result: Result) -> Report:
    about = "A model's heads."
    return Report(
        experiment, {"model": "tiny", "seed": 0}, {}, result=result, about=about, how_to_read="Read it."
    )


def found_heads() -> Report:
    """Heads that retrieve, of a model that is too small to search in."""
    rows = [
        {"stack": "self", "layer": 1, "head": head, "found": 0.9 - head / 5, "weight": 0.4 - head / 9}
        for head in range(3)
    ]
    result = RetrievingHeads(
        rows=RetrievingHead.rows(rows), chosen=ChosenHead.table(chosen_head=["1:0"]), num_contexts=24
    )
    return of_result("source", result)


def aligning_heads() -> Report:
    """Heads that time words, in place of a search that takes a minute."""
    rows = [
        {"stack": "cross", "layer": head % 2, "head": head, "error": 0.04 + head / 20, "shift": -head / 50}
        | {"concentration": 9.5 - head, "is_published": head < 2}
        for head in range(12)
    ]
    result = AligningHeads(
        heads=AligningHead.rows(rows),
        num_words=101,
        num_found=6,
        error_of_found=0.03,
        error_of_published=0.05,
        num_published=2,
        published_among_first=2,
    )
    return of_result("heads", result)


def spoken_words() -> Report:
    """Words of two seconds of silence, with the picture of its sound."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setparams((1, 1, 8000, 0, "NONE", ""))
        sound.writeframes(bytes([128]) * 16_000)
    picture = replace(drawn_picture(60, 12, ()), seconds=2.0, sound=stream.getvalue())
    return spoken([" the", " cat", " sat", " down"], picture)


def words(count: int) -> list[str]:
    return [f"word{number}" for number in range(count)]


REPORTS: dict[str, Callable[[], Report]] = {
    "record": recorded,
    "source of heads": found_heads,
    "heads of alignment": aligning_heads,
    "heads of words": spoken_words,
    # Other pages of the same kinds.
    "heads, 40 tokens": lambda: heads_report(words(40), random_weights(6, 8, 40, 40)),
    "heads, 200 tokens": lambda: pooled_report(200, [(2, 7)]),
    "show of 1,100 keys": lambda: Report(
        "show", {}, {}, tensors={"weights": NamedTensor(("query", "key"), random_weights(3, 1100))}
    ),
    "heads of a picture": lambda: survey(is_whole=True),
    "heads of pictures": lambda: several_pictures((3, 5), (4, 4)),
    "self of a picture": one_head,
    "generate after a picture": lambda: written_words("a", "disc", "of", "light"),
}
"""Reports that no quick command writes."""


def write_files(folder: Path) -> None:
    """Write what the commands read, except what other commands write."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    np.save(folder / "weights.npy", random_weights(2, 3, 5, 5))
    with (
        (ROOT / "attncli" / "data" / "answered.csv").open(newline="") as rows,
        (folder / "answered.csv").open("w", newline="") as few,
    ):
        csv.writer(few).writerows([row for number, row in enumerate(csv.reader(rows)) if number <= 40])


def page_of_kind(name: str, folder: Path) -> str:
    """The page of one of COMMANDS or REPORTS; run in the folder, which `write_files` has filled."""
    if name in REPORTS:
        return page_of(REPORTS[name]())
    for command in (FIRST.get(name), f"{COMMANDS[name]} -o page.html"):
        if command is not None:
            assert run(split(command)) == 0
    return (folder / "page.html").read_text(encoding="utf-8")
