"""Whether `attn` is right about an architecture: each of its answers beside eager attention's."""

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging

from .asking import Answer, ask
from .classes import model_class
from .folders import LONG, SHORT, NotTestable, save_model, text_of
from .oracle import WITHOUT_SINK, Layer, comparable, layers_of_text, row_statistics
from .predicting import check_predicting
from .result import Result, largest

TOLERANCE = 1e-3
"""Of weights; of an output relative to its largest. Right is mostly 1e-6, the worst 1e-4 where scores are in
the hundreds; wrong is above 0.01."""


class Check:
    """The checks of one architecture; what they find is in `result`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.result = Result(name, str(model_class(name)))
        self.folder = folder
        self.texts = [text_of(SHORT), text_of(LONG), text_of(SHORT, seed=1)]
        self.truth: dict[str, list[Layer]] = {}
        self.no_weights: set[str] = set()

    def run(self) -> Result:
        """All of them, in order; a model that is not testable is still asked about."""
        try:
            save_model(self.result.name, self.folder)
            self.truth = {text: layers_of_text(self.folder, text) for text in self.texts}
        except NotTestable as error:
            self.result.reason = str(error)
            self._ask_anyway()
            return self.result.judged()
        self.no_weights = {
            layer.stack for layers in self.truth.values() for layer in layers if not layer.is_distribution
        }
        self.truth = {
            text: [layer for layer in layers if layer.is_distribution] for text, layers in self.truth.items()
        }
        layers = self.truth[self.texts[1]]
        self.result.local = sum(layer.is_local for layer in layers)
        self.no_weights -= {layer.stack for layer in layers}
        for stack in dict.fromkeys(layer.stack for layer in layers):
            of_stack = [layer for layer in layers if layer.stack == stack]
            self.result.stacks[stack] = (len(of_stack), max(layer.weights.shape[0] for layer in of_stack))
        if layers:
            self._compare()
        else:
            kind = "no distributions over the keys" if self.no_weights else "no weights"
            self.result.reason = f"transformers returns {kind}"
            self._ask_anyway()
        return self.result.judged()

    def _ask_anyway(self) -> None:
        """Where there is nothing to compare with, a refusal is the right answer, an internal error none."""
        if not (self.folder / "config.json").exists():
            return
        answer = ask(["heads", "--model", self.folder, "--sentence", self.texts[0]])
        self._kept(answer, "heads")
        if answer.reports:
            self.result.how = "eager" if answer.is_dense else "interface"
            if self.no_weights:
                self.result.wrong.append("heads: shows numbers that are no weights")

    def _kept(self, answer: Answer, what: str) -> bool:
        """Whether there are reports; if not, the line is noted."""
        if not answer.reports:
            kind = self.result.refused if answer.is_refusal else self.result.wrong
            kind.append(f"{what}: {answer.line}")
        return bool(answer.reports)

    def _compare(self) -> None:
        stacks = tuple(self.result.stacks)
        # Another name for the second text, so that its model is loaded anew, as in a process of its own.
        alias = self.folder.with_name(self.folder.name + "-again")
        alias.symlink_to(self.folder)
        for folder, text in zip((self.folder, alias), self.texts, strict=False):
            for stack in stacks:
                self._heads(folder, text, stack)
        for stack in sorted(self.no_weights):
            answer = ask(["heads", "--model", self.folder, "--sentence", self.texts[0], "--maps", stack])
            if answer.reports:
                self.result.wrong.append(f"heads --maps {stack}: shows numbers that are no weights")
        first = "encoder" if "encoder" in stacks else stacks[0]
        if "cross" in stacks and first != "encoder":
            self._no_encoder()
            return
        for folder, place, text in zip((self.folder, alias), (0, -1), self.texts, strict=False):
            of_stack = [layer for layer in self.truth[text] if layer.stack == first]
            self._multihead(folder, text, of_stack[place])
        if "cross" in stacks:
            self._cross(self.texts[0])
        elif of_stack[0].number > 0:
            self._default_layer()
        self._orders(first)

    def _no_encoder(self) -> None:
        """With a decoder, multihead shows the encoder; where that has no weights, nothing else."""
        answer = ask(["multihead", "--model", self.folder, "--sentence", self.texts[0]])
        if self._kept(answer, "multihead"):
            self.result.wrong.append("multihead: shows another stack than the encoder, which has no weights")

    def _heads(self, folder: Path, text: str, stack: str) -> None:
        what = f"heads --maps {stack}, {len(text) + 2} tokens"
        answer = ask(["heads", "--model", folder, "--sentence", text, "--maps", stack])
        if not self._kept(answer, what):
            return
        self.result.how = "eager" if answer.is_dense else "interface"
        self._maps(
            what,
            answer.tensor("weights"),
            [layer for layer in self.truth[text] if layer.stack == stack],
        )
        self._rows(what, answer.reports[0]["statistics"]["heads"], self.truth[text])

    def _maps(self, what: str, maps: np.ndarray | None, layers: list[Layer]) -> None:
        assert maps is not None
        numbers = [number for number, map_ in enumerate(maps) if not np.isnan(map_).all()]
        expected = [layer.number for layer in layers]
        if numbers != expected:
            self.result.wrong.append(f"{what}: layers {_short(numbers)} instead of {_short(expected)}")
            return
        for layer in layers:
            rows = maps[layer.number]
            self._weights(f"{what}, layer {layer.number}", rows[~np.isnan(rows).all(axis=(1, 2))], layer)

    def _weights(self, what: str, weights: np.ndarray, layer: Layer) -> None:
        expected = layer.weights.double().numpy()
        if weights.shape != expected.shape:
            self.result.wrong.append(f"{what}: shape {weights.shape} instead of {expected.shape}")
            return
        difference = float(np.abs(comparable(self.result.name, weights) - expected).max())
        self.result.weights = largest(self.result.weights, difference)
        if not difference <= TOLERANCE:
            self.result.wrong.append(f"{what}: weights off by {difference:.2g}")

    def _rows(self, what: str, rows: list[dict[str, Any]], layers: list[Layer]) -> None:
        counts_of_rows = Counter((row["kind"], row["layer"], row["head"]) for row in rows)
        heads = [(layer, head) for layer in layers for head in range(len(layer.weights))]
        expected = Counter(
            ("cross" if layer.stack == "cross" else "self", layer.number, head) for layer, head in heads
        )
        if counts_of_rows != expected:
            parts = [
                _short(sorted({(kind, layer) for kind, layer, _ in each}))
                for each in (counts_of_rows, expected)
            ]
            counts = counts_of_rows.total(), expected.total()
            self.result.wrong.append(
                f"{what}: {counts[0]} heads of {parts[0]} instead of {counts[1]} of {parts[1]}"
            )
            return
        if self.result.name in WITHOUT_SINK:
            return
        places = {
            (layer.module, layer.stack == "cross", layer.number, head): layer.weights[head]
            for layer, head in heads
            if layer.module
        }
        for row in rows:
            weights = places.get((row["module"], row["kind"] == "cross", row["layer"], row["head"]))
            if weights is None:
                continue
            for name, value in row_statistics(weights).items():
                if not abs(row[name] - value) <= TOLERANCE * max(1, abs(value)):
                    place = f"{row['module']}, head {row['head']}"
                    self.result.wrong.append(
                        f"{what}: {name} of {place}: {row[name]:.4g} instead of {value:.4g}"
                    )
                    return

    def _multihead(self, folder: Path, text: str, layer: Layer) -> None:
        what = f"multihead --layer {layer.number}, {len(text) + 2} tokens"
        answer = ask(["multihead", "--model", folder, "--layer", str(layer.number), "--sentence", text])
        if not self._kept(answer, what):
            return
        weights, output = answer.tensor("weights"), answer.tensor("output")
        assert weights is not None
        self._weights(what, weights, layer)
        self.result.output_shown |= output is not None
        candidates = [
            candidate for candidate in layer.outputs if output is not None and candidate.shape == output.shape
        ]
        if output is not None and candidates:
            differences = [
                float(np.abs(output - candidate.numpy()).max() / candidate.abs().max())
                for candidate in candidates
            ]
            self.result.output = largest(self.result.output, min(differences))
            if not min(differences) <= TOLERANCE:
                self.result.wrong.append(f"{what}: output off by {min(differences):.2g} of its largest")

    def _cross(self, text: str) -> None:
        layer = next(layer for layer in self.truth[text] if layer.stack == "cross")
        what = f"cross --head {layer.number}:0"
        command = ["cross", "--model", str(self.folder), "--head", f"{layer.number}:0"]
        answer = ask([*command, "--sentence", text, "--context", text])
        if self._kept(answer, what):
            weights = answer.tensor("weights")
            assert weights is not None
            if not np.abs(weights - layer.weights[0].numpy()).max() <= TOLERANCE:
                self.result.wrong.append(f"{what}: weights of another layer or stack")

    def _default_layer(self) -> None:
        self._kept(ask(["multihead", "--model", self.folder, "--sentence", self.texts[0]]), "multihead")

    def _orders(self, stack: str) -> None:
        """Several texts on one model, some of equal length: each as alone."""
        config, prompts = self.folder / "sweep.yaml", self.folder / "prompts.txt"
        config.write_text(f"experiment: heads\nmodel: {json.dumps(str(self.folder))}\nmaps: {stack}\n")
        prompts.write_text("".join(f"{text}\n" for text in self.texts))
        answer = ask(["batch", config, "--file", prompts])
        if not self._kept(answer, "batch"):
            return
        known = list(self.result.wrong)
        for number, text in enumerate(self.texts):
            of_stack = [layer for layer in self.truth[text] if layer.stack == stack]
            self._maps(f"batch, text {number}", answer.tensor("weights", number), of_stack)
        if known:  # what is wrong alone is wrong together
            self.result.wrong = known


def _short(values: list[Any]) -> str:
    return " ".join(",".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in values) or "none"


def check(name: str, folder: Path, *, predicting: bool = True) -> Result:
    """The result for one architecture; `folder` is made, and holds its model afterwards.

    `predicting`: generate, ablate and why, too.
    """
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        result = Check(name, folder).run()
        if predicting:
            result.commands = check_predicting(name, folder.with_name(folder.name + "-predicting"))
            result.wrong += [line for outcome in result.commands.values() for line in outcome.wrong]
        return result.judged()
