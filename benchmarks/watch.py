"""What it costs a training run to be watched, and whether one that goes wrong is flagged before its loss.

    python benchmarks/watch.py                  SmolLM2's size, 128 tokens, every 50th step: some minutes
    python benchmarks/watch.py --steps 4 --rounds 2
    python benchmarks/watch.py --rate           the training of the shipped model at 30 x its learning rate

Cost: so many steps of AdamW and one measured step by turns, on a random model, with a store; what 50 steps
and one measured take together is told as a multiple of 50 steps. Seconds are of the clock and, where other
programs run, of the processor. A step that is not due is timed 10,000 times.

Rate: the training of tools/train_tiny_induction.py at its own learning rate and at 30 times it, every 5th
step measured. The loss leaves the trend where it is 0.2 nats above that of the run at its own rate.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ablate import VOCABULARY, random_model

from attncli import Watch, open_model
from attncli.features.watch.training_steps import stored_steps
from attncli.runs.reading import reading

EVERY, TOKENS, MOST = 50, 128, 1.03
NOT_DUE, MOST_NOT_DUE = 10_000, 1e-5
RATE, RATE_STEPS, RATE_EVERY = 30, 300, 5
EXPECTED, MARGIN = 100.0, 0.2


class Enough(Exception):
    """Ends a training from within."""


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Its seconds of the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - processor


def cost(steps: int, rounds: int) -> None:
    """Training and measuring by turns."""
    with tempfile.TemporaryDirectory() as folder:
        random_model(Path(folder))
        pretrained = open_model(folder, load="memory")
        model = pretrained.whole.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        ids = torch.randint(1, VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(0))

        def train() -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
                optimizer.step()

        train()
        taken = []
        with Watch(model, pretrained.tokenizer, every=1, store=Path(folder) / "run.db") as watch:
            watch.step(0, loss=1.0)
            for step in range(1, rounds + 1):
                taken.append((timed(train), timed(partial(watch.step, step, loss=1.0))))
        for name, kind in (("clock", 0), ("processor", 1)):
            training = sorted(of_training[kind] for of_training, _ in taken)[rounds // 2] / steps
            measuring = sorted(of_measuring[kind] for _, of_measuring in taken)[rounds // 2]
            share = 1 + measuring / (EVERY * training)
            print(
                f"{name}: {training:.2f} s a step, {measuring:.2f} s measured: {share:.4f} x, at most {MOST}"
            )
        idle = Watch(model, pretrained.tokenizer, every=10**9)
        seconds, _ = timed(lambda: [idle.step(step, loss=ids) for step in range(1, NOT_DUE + 1)])
        print(f"not due: {1e6 * seconds / NOT_DUE:.2f} microseconds, at most {1e6 * MOST_NOT_DUE:.0f}")


def rate() -> None:
    """Where scores, and where the loss, of a run at too high a learning rate leave those of the usual one."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
    import train_tiny_induction as training

    class Ended(Watch):
        def step(self, step: int, **more: Any) -> Any:
            score = super().step(step, **more)
            if step >= RATE_STEPS:
                raise Enough
            return score

    training.WATCHED, vars(training)["Watch"] = RATE_EVERY, Ended
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for factor in (1, RATE):
            path = Path(folder) / f"{factor}.db"
            try:
                training.train(str(path), learning_rate=factor * training.LEARNING_RATE)
            except Enough:
                with reading(path) as reader:
                    (steps,) = stored_steps(reader)
                scores = steps.stacks()[0].statistics["max_score"].max(axis=(1, 2)).tolist()
                runs.append(list(zip(steps.steps, steps.losses() or [], scores, strict=True)))
    usual, fast = runs
    flagged = next((step for step, _, score in fast if not score < EXPECTED), None)
    pairs = [
        (step, loss, usual_loss)
        for (step, usual_loss, _), (_, loss, _) in zip(usual, fast, strict=True)
        if usual_loss is not None and loss is not None
    ]
    lost = next((step for step, loss, usual_loss in pairs if not loss - usual_loss <= MARGIN), None)
    for name, run in (("usual rate", usual), (f"{RATE} x", fast)):
        scores = ", ".join(f"{score:.1f} at {step}" for step, _, score in run if step % 50 == 0)
        print(f"{name}: largest score {scores}")
    print(f"{RATE} x: max_score is not below {EXPECTED:g} from step {flagged}")
    print(f"{RATE} x: the loss is {MARGIN} above the other from step {lost}")


def main() -> None:
    """As the flags say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=3, help="of training before each that is measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", action="store_true", help="the run at 30 times its learning rate")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.rate:
        rate()
    else:
        cost(arguments.steps, arguments.rounds)


if __name__ == "__main__":
    main()
