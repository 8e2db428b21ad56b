"""What seven questions cost in attn and in the libraries that a user would take instead, in one run.

    python benchmarks/peers.py --make PEERS                  an environment for each library, some 5 GB in all
    python benchmarks/peers.py --peers PEERS --model SMOLLM2
    python benchmarks/peers.py --peers PEERS --model SMOLLM2 --only swaps --rounds 1

A process of its own answers each question: `attn` as typed, attncli from Python, and each library by what its
documentation shows, with torch's default threads unless OMP_NUM_THREADS is set. The first round compares
their numbers with attncli's: what differs is not timed. Then they take turns. Printed are medians of rounds,
or the only run of what takes more than 20 s: seconds from start to end with imports and loading, seconds of
the work with the model loaded (its second call where the first takes less than 10 s), in brackets those of
the processor, and the peak of memory. `tests/checkpoints.py` makes SmolLM2's folder.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
ATTN = str(Path(sys.executable).with_name("attn"))
REQUIRED = {
    "TransformerLens": ("transformer-lens==4.3.0",),
    "nnsight": ("nnsight==0.8.1", "accelerate==1.15.0"),
    "BertViz": ("bertviz==1.4.1",),
    "inseq": ("inseq==0.7.1",),
    "kvpress": ("kvpress==0.5.5", "transformers==5.2.0", "accelerate==1.15.0"),
}
"""Some of them exclude each other's versions, so that each has an environment of its own."""
TORCH = "torch==2.13.0"
PROGRAMS = ("attn", *REQUIRED)

SENTENCE = "The cat sat on the mat because it was tired."
PROMPT = "When John and Mary went to the store, John gave a drink to"
OTHER = "When John and Mary went to the store, Mary gave a drink to"
ANSWER, AGAINST = " Mary", " John"
BEGINNING = "Once upon a time there was a cat who lived in a house"
NUM_NEW = 50
SWAPPED = [divmod(number, 9) for number in range(90, 190)]
LONG_TEXT = "\n".join((ROOT / "configs" / "alice.txt").read_text().splitlines()[:40])
BUDGETS = (0.1, 0.3, 0.5)
PRESSES = {
    "window": "StreamingLLMPress",
    "sinks": "StreamingLLMPress",
    "h2o": "ObservedAttentionPress",
    "tova": "TOVAPress",
    "snapkv": "SnapKVPress",
    "knorm": "KnormPress",
    "expected": "ExpectedAttentionPress",
    "random": "RandomPress",
}
"""attn's policies in kvpress. Its heads need a pattern that was trained for the model; and its pyramid, whose
layers keep unequal numbers of keys, cannot read several tokens at once.
"""

TOGETHER = 30
"""Prompts in one trace of nnsight."""
SHORT, LONG = 10.0, 20.0
"""Seconds: below, the work is done twice, and above, a process runs once."""

Numbers = dict[str, Any]
Work = Callable[[], Numbers]


class Case(NamedTuple):
    """A question: what is typed after `attn`, and how far its numbers may be from attncli's."""

    title: str
    typed: tuple[str, ...]
    tolerance: float = 1e-4


PAIR = ("--answer", ANSWER, "--against", AGAINST)
HEADS = ",".join(f"{layer}:{head}" for layer, head in SWAPPED)
SWAP = ("--method", "swap", "--other", OTHER, "--heads", HEADS)
LENGTH = ("--max-new-tokens", str(NUM_NEW))
CASES = {
    "patterns": Case("patterns of a sentence, statistics", ("heads", SENTENCE), 1e-5),
    "page": Case("the same as a page to look at", ("heads", SENTENCE, "-o", "page.html"), 1e-5),
    "attribution": Case("direct logit attribution of all heads", ("why", PROMPT, *PAIR)),
    "ablations": Case("270 ablations", ("ablate", SENTENCE)),
    "swaps": Case("100 swaps between two prompts", ("ablate", PROMPT, *SWAP, *PAIR)),
    "writing": Case(f"attention while {NUM_NEW} tokens are written", ("generate", BEGINNING, *LENGTH)),
    "policies": Case(
        "ten cache policies, three budgets", ("cache", "--file", "text.txt", "--policy", "all"), 1e-3
    ),
}


# Statistics of weights, by hand.


def pattern_numbers(weights: Any) -> Numbers:
    """Of weights (layer, head, query, key): themselves, and of each head means over its queries."""
    entropy = -(weights.clamp(min=1e-30).log() * weights).sum(-1)
    previous = weights.diagonal(-1, -2, -1).mean(-1)
    means = {"entropy": entropy.mean(-1), "sink_mass": weights[..., 0].mean(-1), "previous_token": previous}
    return {"weights": weights, **means}


def row_numbers(rows: list[Any]) -> Numbers:
    """Of the row of each new token (layer, head, key)."""
    entropy = [-(row.clamp(min=1e-30).log() * row).sum(-1) for row in rows]
    stack = import_module("torch").stack
    return {"entropy": stack(entropy, -1), "sink_mass": stack([row[..., 0] for row in rows], -1)}


def by_token(rows: list[Any], num_layers: int) -> list[Any]:
    """Rows (head, key), layer after layer, of each new token (layer, head, key)."""
    stack = import_module("torch").stack
    return [stack(rows[first : first + num_layers]) for first in range(0, len(rows), num_layers)]


def in_parts(heads: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """As many as go through the model together."""
    return [heads[first : first + TOGETHER] for first in range(0, len(heads), TOGETHER)]


def mean_loss(logits: Any, ids: Any) -> float:
    """Of each token after the first, logits (token, vocabulary)."""
    return float(import_module("torch").nn.functional.cross_entropy(logits[:-1], ids[1:]))


# attncli, from Python.


def opened(folder: str) -> Any:
    import attncli

    return attncli, attncli.open_model(folder)


def attn_patterns(folder: str, *, as_page: bool = False) -> Work:
    import attncli

    model, tokenizer = eager(folder)

    def work() -> Numbers:
        report = attncli.heads(model, SENTENCE, tokenizer=tokenizer)
        if as_page:
            report.to_html()
        rows, names = report.table("heads"), ("entropy", "sink_mass", "previous_token")
        means = {name: [row[name] for row in rows] for name in names}
        return {"weights": report.tensors["weights"].values, **means}

    return work


def attn_attribution(folder: str) -> Work:
    attncli, model = opened(folder)

    def work() -> Numbers:
        why = attncli.why(model, PROMPT, answer=ANSWER, against=AGAINST)
        return {"contribution": [row["contribution"] for row in why.heads]}

    return work


def attn_ablations(folder: str) -> Work:
    attncli, model = opened(folder)
    return lambda: {"loss": [row["loss"] for row in attncli.ablate(model, SENTENCE).heads]}


def attn_swaps(folder: str) -> Work:
    attncli, model = opened(folder)

    def work() -> Numbers:
        effects = attncli.ablate(
            *(model, PROMPT), method="swap", other=OTHER, heads=SWAPPED, answer=ANSWER, against=AGAINST
        )
        return {"logit_difference": [row["logit_difference"] for row in effects.heads]}

    return work


def attn_writing(folder: str) -> Work:
    attncli, model = opened(folder)

    def work() -> Numbers:
        rows = attncli.generate(model, BEGINNING, max_new_tokens=NUM_NEW).rows
        return {name: rows[name] for name in ("entropy", "sink_mass")}

    return work


def attn_policies(folder: str) -> Work:
    attncli, model = opened(folder)

    def work() -> Numbers:
        costs = attncli.cache_policies(model, LONG_TEXT, budgets=BUDGETS)
        rows = {f"{row['policy']} {row['budget']}": row["loss"] for row in costs.policies}
        return {"prompt": costs.prompt, **rows}

    return work


# TransformerLens: its bridge, with its own functions for attribution and patching.


def bridge(folder: str) -> Any:
    import torch
    from transformer_lens import TransformerBridge

    torch.set_grad_enabled(False)
    return TransformerBridge.boot_transformers(folder, device="cpu")


def lens_patterns(folder: str) -> Work:
    import torch

    model = bridge(folder)

    def work() -> Numbers:
        _, cache = model.run_with_cache(model.to_tokens(SENTENCE, prepend_bos=False))
        return pattern_numbers(torch.stack([cache["pattern", n][0] for n in range(model.cfg.n_layers)]))

    return work


def lens_attribution(folder: str) -> Work:
    model = bridge(folder)
    model.enable_compatibility_mode()  # which folds the last norm into W_U

    def work() -> Numbers:
        _, cache = model.run_with_cache(model.to_tokens(PROMPT, prepend_bos=False))
        heads = cache.stack_head_results(layer=-1, pos_slice=-1)
        return {"contribution": cache.logit_attrs(heads, ANSWER, AGAINST, pos_slice=-1)[:, 0]}

    return work


def lens_ablations(folder: str) -> Work:
    model = bridge(folder)

    def work() -> Numbers:
        tokens = model.to_tokens(SENTENCE, prepend_bos=False)
        whole = model(tokens, return_type="loss")
        losses = []
        for layer in range(model.cfg.n_layers):
            for head in range(model.cfg.n_heads):

                def remove(z: Any, hook: Any, head: int = head) -> Any:
                    z[:, :, head] = 0
                    return z

                hooks = [(f"blocks.{layer}.attn.hook_z", remove)]
                losses.append(model.run_with_hooks(tokens, return_type="loss", fwd_hooks=hooks) - whole)
        return {"loss": losses}

    return work


def lens_swaps(folder: str) -> Work:
    from transformer_lens.patching import generic_activation_patch, layer_head_vector_patch_setter

    model = bridge(folder)
    frame = import_module("pandas").DataFrame(SWAPPED, columns=["layer", "head"])

    def work() -> Numbers:
        text, other = (model.to_tokens(prompt, prepend_bos=False) for prompt in (PROMPT, OTHER))
        answer, against = (model.to_single_token(name) for name in (ANSWER, AGAINST))

        def difference(logits: Any) -> Any:
            return logits[0, -1, answer] - logits[0, -1, against]

        _, cache = model.run_with_cache(other)
        patched = generic_activation_patch(
            *(model, text, cache, difference, layer_head_vector_patch_setter, "z"), index_df=frame
        )
        return {"logit_difference": patched - difference(model(text))}

    return work


def lens_writing(folder: str) -> Work:
    model = bridge(folder)

    def work() -> Numbers:
        rows: list[Any] = []

        def keep(row: Any, hook: Any) -> None:
            rows.append(row[0, :, -1].clone())

        with model.hooks(fwd_hooks=[(lambda name: name.endswith("hook_pattern"), keep)]):
            tokens = model.to_tokens(BEGINNING, prepend_bos=False)
            model.generate(tokens, max_new_tokens=NUM_NEW, do_sample=False, verbose=False)
        return row_numbers(by_token(rows, model.cfg.n_layers))

    return work


# nnsight has no functions for these questions; its guides show how to save, set and generate.


def traced(folder: str, **options: Any) -> Any:
    import torch
    from nnsight import TransformersModel

    torch.set_grad_enabled(False)
    more = {"device_map": "cpu", "dtype": torch.float32, "dispatch": True, **options}
    return TransformersModel(folder, task="text-generation", **more)


def nnsight_patterns(folder: str) -> Work:
    import torch

    model = traced(folder, attn_implementation="eager")

    def work() -> Numbers:
        with model.trace(SENTENCE):
            weights = list().save()  # type: ignore[attr-defined]
            for layer in model.model.layers:
                weights.append(layer.self_attn.output[1][0])
        return pattern_numbers(torch.stack(weights))

    return work


def nnsight_attribution(folder: str) -> Work:
    import torch

    model = traced(folder)

    def work() -> Numbers:
        answer, against = (model.tokenizer(name).input_ids[0] for name in (ANSWER, AGAINST))
        with model.trace(PROMPT):
            outputs = list().save()  # type: ignore[attr-defined]
            for layer in model.model.layers:
                outputs.append(layer.self_attn.o_proj.input[0, -1])
            last = model.model.norm.input[0, -1].save()
        norm, weight = model.model.norm, model.lm_head.weight
        scale = (last.square().mean() + norm.variance_epsilon).rsqrt()
        direction = (weight[answer] - weight[against]) * norm.weight * scale
        num_heads = model.config.num_attention_heads
        given = [
            (direction @ layer.self_attn.o_proj.weight * output).view(num_heads, -1).sum(-1)
            for layer, output in zip(model.model.layers, outputs, strict=True)
        ]
        return {"contribution": torch.cat(given)}

    return work


def nnsight_ablations(folder: str) -> Work:
    model = traced(folder)
    config = model.config
    dim = config.hidden_size // config.num_attention_heads
    heads = [
        divmod(n, config.num_attention_heads)
        for n in range(config.num_hidden_layers * config.num_attention_heads)
    ]

    def without(some: list[tuple[int, int]]) -> Any:
        with model.trace() as tracer:
            logits = list().save()  # type: ignore[attr-defined]
            for layer, head in some:
                with tracer.invoke(SENTENCE):
                    model.model.layers[layer].self_attn.o_proj.input[:, :, head * dim : (head + 1) * dim] = 0
                    logits.append(model.lm_head.output[0])
        return logits

    def work() -> Numbers:
        ids = model.tokenizer(SENTENCE, return_tensors="pt").input_ids[0]
        with model.trace(SENTENCE):
            whole = model.lm_head.output[0].save()
        losses = [mean_loss(logits, ids) for some in in_parts(heads) for logits in without(some)]
        return {"loss": np.array(losses) - mean_loss(whole, ids)}

    return work


def nnsight_swaps(folder: str) -> Work:
    model = traced(folder)
    dim = model.config.hidden_size // model.config.num_attention_heads

    def swapped(some: list[tuple[int, int]], other: Any) -> Any:
        with model.trace() as tracer:
            logits = list().save()  # type: ignore[attr-defined]
            for layer, head in some:
                with tracer.invoke(PROMPT):
                    columns = slice(head * dim, (head + 1) * dim)
                    model.model.layers[layer].self_attn.o_proj.input[:, :, columns] = other[layer][
                        :, :, columns
                    ]
                    logits.append(model.lm_head.output[0, -1])
        return logits

    def work() -> Numbers:
        answer, against = (model.tokenizer(name).input_ids[0] for name in (ANSWER, AGAINST))
        with model.trace(OTHER):
            other = list().save()  # type: ignore[attr-defined]
            for layer in model.model.layers:
                other.append(layer.self_attn.o_proj.input)
        with model.trace(PROMPT):
            whole = model.lm_head.output[0, -1].save()
        logits = [logit - whole for some in in_parts(SWAPPED) for logit in swapped(some, other)]
        return {"logit_difference": [logit[answer] - logit[against] for logit in logits]}

    return work


def nnsight_writing(folder: str) -> Work:
    model = traced(folder, attn_implementation="eager")

    def work() -> Numbers:
        with model.generate(BEGINNING, max_new_tokens=NUM_NEW, do_sample=False) as tracer:
            rows = list().save()  # type: ignore[attr-defined]
            for _ in tracer.iter[:]:
                for layer in model.model.layers:
                    rows.append(layer.self_attn.output[1][0, :, -1])
        return row_numbers(by_token(rows, model.config.num_hidden_layers))

    return work


# BertViz draws what transformers gives; it counts nothing.


def eager(folder: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_grad_enabled(False)
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    model: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
    return model, AutoTokenizer.from_pretrained(folder)


def bertviz_page(folder: str) -> Work:
    import torch
    from bertviz import head_view

    model, tokenizer = eager(folder)

    def work() -> Numbers:
        ids = tokenizer(SENTENCE, return_tensors="pt").input_ids
        attention = model(ids, output_attentions=True).attentions
        page = head_view(attention, tokenizer.convert_ids_to_tokens(ids[0]), html_action="return")
        assert page.data
        return {"weights": torch.cat(attention)}

    return work


# inseq keeps the rows of what it writes.


def inseq_writing(folder: str) -> Work:
    import inseq

    model = inseq.load_model(folder, "attention", device="cpu")

    def work() -> Numbers:
        options = {"max_new_tokens": NUM_NEW, "do_sample": False}
        attributed = model.attribute(BEGINNING, generation_args=options, show_progress=False)
        attributions = attributed.sequence_attributions[0].target_attributions  # key, new token, layer, head
        rows = attributions.nan_to_num(0.0).permute(1, 2, 3, 0)
        return row_numbers(list(rows))

    return work


# kvpress: a press while the prompt is read, as its README shows, then the rest of the text.


def kvpress_policies(folder: str) -> Work:
    from transformers import DynamicCache

    kvpress = import_module("kvpress")
    model, tokenizer = eager(folder)

    def loss(ids: Any, start: int, press: Any) -> float:
        cache: Any = DynamicCache()
        model.set_attn_implementation("eager" if "Observed" in type(press).__name__ else "sdpa")
        with press(model):
            model.model(ids[:, :start], past_key_values=cache)
        model.set_attn_implementation("sdpa")
        positions = import_module("torch").arange(start, ids.shape[1]).unsqueeze(0)
        logits = model(ids[:, start:], past_key_values=cache, position_ids=positions).logits
        return mean_loss(logits[0], ids[0, start:])

    def work() -> Numbers:
        ids = tokenizer(LONG_TEXT, return_tensors="pt").input_ids
        start = ids.shape[1] - ids.shape[1] // 10 - 1
        whole = loss(ids, start, kvpress.KnormPress(compression_ratio=0.0))
        losses: Numbers = {"prompt": start}
        for policy, name in PRESSES.items():
            settings = {"n_sink": 0} if policy == "window" else {}
            for budget in BUDGETS:
                press = getattr(kvpress, name)(compression_ratio=1 - budget, **settings)
                losses[f"{policy} {budget}"] = loss(ids, start, press) - whole
        return {name: number for name, number in losses.items() if not name.startswith("random")}

    return work


WORKS: dict[str, dict[str, Callable[[str], Work]]] = {
    "patterns": {"attn": attn_patterns, "TransformerLens": lens_patterns, "nnsight": nnsight_patterns},
    "page": {"attn": partial(attn_patterns, as_page=True), "BertViz": bertviz_page},
    "attribution": {
        "attn": attn_attribution,
        "TransformerLens": lens_attribution,
        "nnsight": nnsight_attribution,
    },
    "ablations": {"attn": attn_ablations, "TransformerLens": lens_ablations, "nnsight": nnsight_ablations},
    "swaps": {"attn": attn_swaps, "TransformerLens": lens_swaps, "nnsight": nnsight_swaps},
    "writing": {
        "attn": attn_writing,
        "TransformerLens": lens_writing,
        "nnsight": nnsight_writing,
        "inseq": inseq_writing,
    },
    "policies": {"attn": attn_policies, "kvpress": kvpress_policies},
}


def answered(case: str, program: str, folder: str, numbers: str) -> None:
    """In a process of its own: the work with the model loaded, its numbers kept, its seconds printed."""
    work = WORKS[case][program](folder)
    for _ in range(2):
        clock, processor = time.perf_counter(), time.process_time()
        answer = work()
        seconds = (time.perf_counter() - clock, time.process_time() - processor)
        if seconds[0] > SHORT:
            break
    arrays: Any = {name: np.asarray(number, dtype=float) for name, number in answer.items()}
    np.savez(numbers, **arrays)
    print(json.dumps(seconds))


class Run(NamedTuple):
    """A process from start to end: its seconds, of them those of the processor, its peak, and of the work."""

    seconds: float
    processor: float
    megabytes: float
    work: float = float("nan")
    work_processor: float = float("nan")


def run(command: list[str], folder: Path) -> tuple[Run, str]:
    """A command in a folder: what it cost, and what it printed."""
    printed, told = folder / "printed", folder / "told"
    begun = time.perf_counter()
    with printed.open("w") as output, told.open("w") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, cwd=folder)
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    if status:
        raise SystemExit(f"failed: {' '.join(command)}\n{told.read_text()[-2000:]}")
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Run(seconds, used.ru_utime + used.ru_stime, peak / 1e6), printed.read_text()


class Comparison:
    """One model, and an interpreter for each library."""

    def __init__(self, model: str, pythons: dict[str, str], rounds: int, folder: Path) -> None:
        self.model, self.pythons, self.rounds, self.folder = model, pythons, rounds, folder
        (folder / "text.txt").write_text(LONG_TEXT)

    def typed(self, case: str) -> Run:
        """`attn`, its report thrown away."""
        return run([ATTN, *CASES[case].typed, "--model", self.model], self.folder)[0]

    def inside(self, case: str, program: str) -> Run:
        """A library, its numbers kept in a file."""
        numbers = self.folder / f"{case} {program}.npz"
        command = [self.pythons[program], str(Path(__file__).resolve()), "--inside", case, program]
        process, printed = run([*command, self.model, str(numbers)], self.folder)
        work, processor = json.loads(printed.splitlines()[-1])
        return process._replace(work=work, work_processor=processor)

    def difference(self, case: str, program: str) -> float:
        """The largest from attncli's numbers, of those that both have; infinite for other shapes."""
        ours, theirs = (np.load(self.folder / f"{case} {name}.npz") for name in ("attn", program))
        pairs = [
            (ours[name].squeeze(), theirs[name].squeeze()) for name in theirs.files if name in ours.files
        ]
        if any(first.size != other.size for first, other in pairs):
            return float("inf")
        return max(
            (float(np.abs(first.ravel() - other.ravel()).max()) for first, other in pairs), default=0.0
        )

    def compared(self, case: str) -> dict[str, list[Run]]:
        """The runs of a case: `attn` as typed, attncli, and every library that has equal numbers."""
        programs = [name for name in WORKS[case] if name in self.pythons]
        runs: dict[str, list[Run]] = {"typed": [], **{name: [] for name in programs}}
        for number in range(self.rounds):
            for program in [*runs]:
                if number and runs[program][0].seconds > LONG:
                    continue
                if program == "typed":
                    runs[program].append(self.typed(case))
                    continue
                runs[program].append(self.inside(case, program))
                if number or program == "attn":
                    continue
                difference = self.difference(case, program)
                differs = difference > CASES[case].tolerance
                print(
                    f"{case}, {program}: largest difference {difference:.1e}{' too large' * differs}",
                    flush=True,
                )
                if differs:
                    del runs[program]
        return runs


def cell(runs: list[Run], clock: str, processor: str) -> str:
    """Medians of seconds, and of those of the processor."""
    first, second = (statistics.median(getattr(run, name) for run in runs) for name in (clock, processor))
    return f"{first:.2f} ({second:.2f})" if first < 1 else f"{first:.1f} ({second:.1f})"


def lines(case: str, runs: dict[str, list[Run]]) -> list[str]:
    """The rows of the table: the process, the work, the memory."""
    title = CASES[case].title
    whole = {**runs, "attn": runs["typed"]}
    rows = {
        f"{title}: process, s": {
            name: cell(measured, "seconds", "processor") for name, measured in whole.items()
        },
        "work, s": {
            name: cell(measured, "work", "work_processor")
            for name, measured in runs.items()
            if name != "typed"
        },
        "peak, MB": {
            name: f"{max(run.megabytes for run in measured):,.0f}" for name, measured in whole.items()
        },
    }
    return [
        f"| {what} | {' | '.join(cells.get(name, '-') for name in PROGRAMS)} |"
        for what, cells in rows.items()
    ]


def versions(python: str, required: tuple[str, ...]) -> str:
    """Of a library and of transformers in its environment."""
    names = (required[0].partition("==")[0], "transformers")
    code = (
        f"from importlib.metadata import version as v; print(*(f'{{n}} {{v(n)}}' for n in {names}), sep=', ')"
    )
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def make(folder: Path) -> None:
    """An environment for each library, torch's version held."""
    folder.mkdir(parents=True, exist_ok=True)
    for program, required in REQUIRED.items():
        environment = folder / program
        install = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", TORCH, *required]
        for command in ([sys.executable, "-m", "venv", str(environment)], install):
            print(" ".join(command), flush=True)
            subprocess.run(command, check=True)


def main() -> None:
    """Print a row as its case is measured, then the whole table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--make", type=Path, metavar="FOLDER")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="what --make made")
    parser.add_argument("--model", metavar="FOLDER")
    parser.add_argument("--only", action="append", choices=CASES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inside", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        answered(*given.inside)
        return
    if given.make:
        make(given.make)
        return
    if not (given.peers and given.model):
        parser.error("--peers and --model are needed")
    pythons = {name: str((given.peers / name / "bin" / "python").absolute()) for name in REQUIRED}
    pythons = {"attn": sys.executable} | {name: path for name, path in pythons.items() if Path(path).exists()}
    for name, python in pythons.items():
        print(versions(python, REQUIRED.get(name, ("attncli",))))
    table = [f"| | {' | '.join(PROGRAMS)} |", f"| --- |{' ---: |' * len(PROGRAMS)}"]
    with tempfile.TemporaryDirectory() as made:
        comparison = Comparison(str(Path(given.model).resolve()), pythons, given.rounds, Path(made))
        for case in given.only or CASES:
            table += (rows := lines(case, comparison.compared(case)))
            print(*rows, sep="\n", flush=True)
    print(*table, sep="\n")


if __name__ == "__main__":
    main()
