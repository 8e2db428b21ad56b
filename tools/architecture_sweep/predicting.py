"""generate, ablate and why of a model with its head, beside the same model with eager attention.

Nothing of attn is in what they are held against:
- generate: one eager run on the whole sequence at once, without a cache: each row, and each token as the
  largest logit (by transformers' own generate for models that choose keys: `_by_steps`);
- ablate: eager runs in which a hook zeroes what W_O reads of a head;
- why: the logits of the eager run, and of each head what W_O makes of it along the largest logit, through the
  numbers that the last norm gave.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .asking import Answer, ask
from .folders import FEW, LONG, MEDIUM, SHORT, NotTestable, head_class, inputs, one_line, save_model, text_of
from .oracle import Calls, Layer, comparable, load, output_projection, run
from .result import Outcome

TOLERANCE = 1e-3
"""Of weights, losses, divergences and parts of a logit, relative to the largest; right is mostly 1e-6."""

WRITTEN = (
    (SHORT, 14, ()),
    (FEW, 9, ()),
    (SHORT, 4, ("--prefill-chunk", "6")),
)
"""Tokens of the prompt, tokens to write, and settings: windows end within the prompt, while it writes, and
between pieces of a prompt."""

STACK_NAMES = {"self": "self", "decoder": "self", "encoder": "encoder", "cross": "cross"}


@dataclass
class Predicting:
    """The checks of one architecture with its head; what they find is in `outcomes`."""

    name: str
    folder: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def run(self) -> dict[str, Outcome]:
        """All of them; where there is no head, the base model's output is what ablate measures."""
        self.auto_class = head_class(self.name) or AutoModel
        reason = ""
        try:
            save_model(self.name, self.folder, self.auto_class)
        except NotTestable as error:
            reason = str(error)
        for command, check in (("generate", self.generate), ("ablate", self.ablate), ("why", self.why)):
            self.outcomes[command] = Outcome(reason=reason)
            if not (self.folder / "config.json").exists():
                continue
            try:
                check(self.outcomes[command])
            except NotTestable as error:
                self.outcomes[command].reason = str(error)
        return self.outcomes

    def _ask(self, outcome: Outcome, *arguments: str) -> Answer | None:
        answer = ask([arguments[0], "--model", self.folder, *arguments[1:]])
        if answer.reports:
            return answer
        kind = outcome.refused if answer.is_refusal else outcome.wrong
        line = f"{arguments[0]}: {answer.line}"
        if line not in kind:
            kind.append(line)
        return None

    def _ids(self, text: str) -> Tensor:
        return torch.tensor([AutoTokenizer.from_pretrained(self.folder)(text)["input_ids"]])

    def _token(self, label: str) -> int:
        token: int = AutoTokenizer.from_pretrained(self.folder).get_vocab()[label]
        return token

    def _run(self, model: PreTrainedModel, given: Mapping[str, Tensor]) -> tuple[Any, list[Layer], Calls]:
        try:
            outputs, layers, calls = run(model, given)
        except Exception as error:
            raise NotTestable(one_line(error)) from error
        layers = [layer for layer in layers if layer.is_distribution]
        if not layers:
            raise NotTestable("transformers returns no weights")
        return outputs, layers, calls

    # generate

    def generate(self, outcome: Outcome) -> None:
        """Each row and token of what it writes."""
        is_two_stacks = AutoConfig.from_pretrained(self.folder).is_encoder_decoder
        for num_tokens, num_new, settings in WRITTEN[:2] if is_two_stacks else WRITTEN:
            text = text_of(num_tokens)
            what = " ".join(("generate", f"{num_tokens}+{num_new}", *settings))
            arguments = ("--sentence", text, "--maps", "heads", "--max-new-tokens", str(num_new), *settings)
            if answer := self._ask(outcome, "generate", *arguments):
                self._written(outcome, what, text, answer)

    def _written(self, outcome: Outcome, what: str, text: str, answer: Answer) -> None:
        ids = self._ids(text)
        written = [self._token(row["token"]) for row in answer.reports[0]["statistics"]["written"]]
        model = load(self.folder, self.auto_class)
        given = inputs(model, ids)
        first, stack = 0, "cross"
        if model.config.is_encoder_decoder:
            given["decoder_input_ids"] = torch.tensor([[self._start(model), *written[:-1]]])
        else:
            first, stack = ids.shape[1] - 1, "self"
            given = inputs(model, torch.cat([ids, torch.tensor([written[:-1]], dtype=ids.dtype)], dim=1))
        outputs, layers, _ = self._run(model, given)
        layers = [layer for layer in layers if layer.stack == stack]
        size = answer.reports[0]["spec"].get("prefill_chunk")
        rows = self._compared_rows(what, answer, layers, first)
        if rows.wrong and (size is not None or _chooses_keys(model)):
            rows = self._compared_rows(what, answer, self._by_steps(layers, ids, len(written), size), first)
        outcome.add(rows)
        logits = outputs["logits"][0, first:]
        lacks = logits.max(dim=-1).values - logits[range(len(written)), written]
        if (lacks > TOLERANCE * logits.abs().max()).any():
            # By its settings a model may be forced to write others, as an end.
            generated = self._generated(ids, len(written), size).sequences[0, -len(written) :].tolist()
            if generated != written:
                outcome.wrong.append(f"{what}: tokens {written} instead of {generated}")

    def _start(self, model: PreTrainedModel) -> int:
        start = model.generation_config.decoder_start_token_id
        return int(model.config.decoder_start_token_id if start is None else start)

    def _generated(self, ids: Tensor, num_new: int, size: int | None) -> Any:
        """What transformers' own generate gives, with eager attention."""
        model = load(self.folder, self.auto_class)
        settings: dict[str, Any] = {"max_new_tokens": num_new, "prefill_chunk_size": size, "use_cache": True}
        settings |= {"do_sample": False, "num_beams": 1}
        settings |= {"return_dict_in_generate": True, "output_attentions": True}
        try:
            # transformers leaves generate without types.
            return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)  # type: ignore[operator]
        except Exception as error:
            raise NotTestable(one_line(error)) from error

    def _by_steps(self, layers: list[Layer], ids: Tensor, num_new: int, size: int | None) -> list[Layer]:
        """The rows that chose the tokens, from transformers' own generate with its cache.

        For models that choose keys: among keys of one score (an index has many that are 0) the choice depends
        on how many keys there are, so that the whole sequence, and pieces of a prompt, give others.
        """
        steps = self._generated(ids, num_new, size)
        length = ids.shape[1] + num_new - 1
        last_rows = []
        for place, layer in enumerate(layers):
            rows = torch.zeros(len(layer.weights), length, length)
            for step, attentions in enumerate(steps.attentions):
                row = [each for each in attentions if each is not None][place][0, :, -1]
                query = ids.shape[1] - 1 + step
                # A cache of a sliding window has dropped the keys before.
                rows[:, query, query + 1 - row.shape[-1] : query + 1] = row
            last_rows.append(replace(layer, weights=rows))
        return last_rows

    def _compared_rows(self, what: str, answer: Answer, layers: list[Layer], first: int) -> Outcome:
        outcome = Outcome()
        weights = answer.tensor("weights")
        assert weights is not None
        numbers = [number for number, rows in enumerate(weights) if not np.isnan(rows).all()]
        expected = [layer.number for layer in layers]
        if numbers != expected:
            outcome.wrong.append(f"{what}: layers {numbers} instead of {expected}")
            return outcome
        for layer in layers:
            rows = weights[layer.number]
            rows = comparable(self.name, rows[~np.isnan(rows).all(axis=(1, 2))])
            where = f"{what}, layer {layer.number}: weights"
            outcome.compare(where, rows, layer.weights[:, first:], TOLERANCE)
        return outcome

    # ablate

    def ablate(self, outcome: Outcome) -> None:
        """The loss and divergence, or the change of the output, without each head."""
        text = text_of(MEDIUM)
        answer = self._ask(outcome, "ablate", "--sentence", text)
        if answer is None:
            return
        # Heads without a softmax have tests of their own.
        rows = [row for row in answer.reports[0]["statistics"]["heads"] if row["kind"] != "linear"]
        has_head = "loss" in rows[0]
        # What is measured of a model without such a head are the last vectors of its body.
        model = load(self.folder, self.auto_class if has_head else AutoModel)
        while (
            not has_head and isinstance(model.base_model, PreTrainedModel) and model.base_model is not model
        ):
            model = model.base_model
        given = inputs(model, self._ids(text))
        measured = Measured(np.array([]), np.array([]))
        if has_head:
            given, measured = self._predicted(given, answer.reports[0]["tokens"])
        outputs, layers, calls = self._run(model, given)
        baseline = measured.of(outputs, None)
        if has_head:
            loss = answer.reports[0]["statistics"]["baseline"]["loss"]
            outcome.compare("ablate: loss with all heads", loss, baseline["loss"], TOLERANCE)
        places = {
            (layer.stack, layer.number, head): (layer, head)
            for layer in layers
            for head in range(len(layer.weights))
        }
        effects = {(STACK_NAMES[row["stack"]], row["layer"], row["head"]): row for row in rows}
        if effects.keys() != places.keys() or len(rows) != len(effects):
            outcome.wrong.append(f"ablate: {len(rows)} heads instead of {len(places)}")
            return
        for place, (layer, head) in places.items():
            without = self._without(model, given, layer, head, calls)
            for effect, expected in measured.of(without, outputs).items():
                lost = expected - baseline["loss"] if effect == "loss" else expected
                what = f"ablate: {effect} without {':'.join(map(str, place))}"
                outcome.compare(what, effects[place][effect], lost, TOLERANCE)

    def _predicted(self, given: dict[str, Tensor], tokens: list[str]) -> tuple[dict[str, Tensor], "Measured"]:
        """What goes in, and which tokens are predicted where."""
        read = given.get("decoder_input_ids", given["input_ids"])[0]
        if self.auto_class is AutoModelForMaskedLM:
            mask = self._token("[MASK]")
            places = np.array([place for place, token in enumerate(tokens) if token == "[MASK]"])
            hidden = read.clone()
            hidden[places] = mask
            return {**given, "input_ids": hidden.unsqueeze(0)}, Measured(places, read[places].numpy())
        return given, Measured(np.arange(len(read) - 1), read[1:].numpy())

    def _without(
        self, model: PreTrainedModel, given: Mapping[str, Tensor], layer: Layer, head: int, calls: Calls
    ) -> Any:
        """The outputs with W_O reading zeros of a head, in this layer's call of it."""
        projection = output_projection(model, layer, calls)
        if projection is None:
            raise NotTestable(f"no W_O was found for {layer.module}")
        call = -1

        def zero(_module: nn.Module, read: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            nonlocal call
            call += 1
            if call != layer.call:
                return None
            changed = read[0].clone()
            changed.view(*changed.shape[:-1], len(layer.weights), -1)[..., head, :] = 0
            return (changed, *read[1:])

        hook = model.get_submodule(projection).register_forward_pre_hook(zero)
        try:
            with torch.no_grad():
                return model(**given)
        finally:
            hook.remove()

    # why

    def why(self, outcome: Outcome) -> None:
        """The parts, each head's own, and the tokens that one head looks at."""
        for num_tokens, answer_tokens in ((MEDIUM, ()), (LONG, ("k", "P"))):
            text = text_of(num_tokens)
            settings = [
                part for pair in zip(("--answer", "--against"), answer_tokens, strict=False) for part in pair
            ]
            answer = self._ask(outcome, "why", "--sentence", text, *settings)
            if answer:
                self._why(outcome, f"why, {num_tokens} tokens", text, answer, answer_tokens)

    def _why(self, outcome: Outcome, what: str, text: str, answer: Answer, tokens: tuple[str, ...]) -> None:
        statistics = answer.reports[0]["statistics"]
        model = load(self.folder, self.auto_class)
        outputs, layers, calls = self._run(model, inputs(model, self._ids(text)))
        logits = outputs["logits"][0, -1].double()
        ids = [self._token(token) for token in tokens] or [int(logits.argmax())]
        signs = torch.tensor([1.0, -1.0][: len(ids)], dtype=torch.float64)
        size = float(logits.abs().max())

        def compare(part: str, answered: Any, expected: Any) -> None:
            answered, expected = (
                np.asarray(answered, dtype=np.float64),
                np.asarray(expected, dtype=np.float64),
            )
            outcome.compare(f"{what}: {part}", answered / size, expected / size, TOLERANCE)

        parts = statistics["parts"]
        logit = float(signs @ logits[ids])
        total = sum(parts[name] for name in ("embedding", "heads", "mlps", "biases"))
        for name, number in (("logit", parts["logit"]), ("sum", parts["sum"]), ("sum of the parts", total)):
            compare(name, number, logit)
        contributions = answer.tensor("contribution")
        assert contributions is not None
        compare("sum of the heads", np.nansum(contributions), parts["heads"])
        direction = _direction(model, calls, logits, ids, signs)
        for layer in layers:
            expected = [float(part @ direction) for part in _of_heads(model, layer, calls)]
            of_layer = contributions[layer.number]
            compare(f"heads of layer {layer.number}", of_layer[~np.isnan(of_layer)], expected)
        layer_number, head = (int(part) for part in answer.reports[0]["spec"]["head"].split(":"))
        keys = statistics["keys"]
        compare("sum over the keys", sum(keys["contribution"]), contributions[layer_number, head])
        (layer,) = (layer for layer in layers if layer.number == layer_number)
        row = comparable(self.name, np.array(keys["weight"], dtype=np.float64))
        outcome.compare(f"{what}: weights", row, layer.weights[head, -1], TOLERANCE)


@dataclass(frozen=True)
class Measured:
    """The places of predictions and the tokens there; none for a model without a head."""

    places: np.ndarray
    targets: np.ndarray

    def of(self, outputs: Any, whole: Any) -> dict[str, float]:
        """The loss, and the divergence from or change of the whole model's outputs, where these are given."""
        if not len(self.places):
            if whole is None:
                return {}
            changed, output = _last_vectors(outputs), _last_vectors(whole)
            return {"output_change": float(((changed - output).norm(dim=-1) / output.norm(dim=-1)).mean())}
        predicted = self._log_probabilities(outputs)
        metrics = {"loss": float(-predicted[range(len(self.places)), self.targets].mean())}
        if whole is not None:
            expected = self._log_probabilities(whole)
            metrics["kl"] = float((expected.exp() * (expected - predicted)).sum(-1).mean())
        return metrics

    def _log_probabilities(self, outputs: Any) -> Tensor:
        logits: Tensor = outputs["logits"][0, self.places].double()
        return logits.log_softmax(-1)


def _last_vectors(outputs: Any) -> Tensor:
    """The last vectors of the body or, of one with a tower for pictures, of that for text."""
    body = getattr(outputs, "text_model_output", None) or outputs
    vectors: Tensor = body[0][0].double()
    return vectors


def _chooses_keys(model: PreTrainedModel) -> bool:
    """Whether an index chooses the keys of each query."""
    settings = vars(model.config.get_text_config(decoder=True))
    return any(re.fullmatch(r"index(er)?_(top_?k|budget).*", name) for name in settings)


def _matrix(module: nn.Module) -> Tensor:
    """Rows are outputs."""
    assert isinstance(module.weight, Tensor)
    return (module.weight.T if isinstance(module, Conv1D) else module.weight).detach().double()


def _of_heads(model: PreTrainedModel, layer: Layer, calls: Calls) -> Iterator[Tensor]:
    """What W_O makes of each head at the last token, as the block adds it to the stream."""
    name = output_projection(model, layer, calls)
    if name is None:
        raise NotTestable(f"no W_O was found for {layer.module}")
    block = model.get_submodule(layer.module.rpartition(".")[0])
    # Granite's blocks multiply what they add by the first of these, MiniCPM3's by the second.
    factor = getattr(block, "residual_multiplier", getattr(block, "residual_scale", 1.0))
    read = calls.read[name][layer.call].flatten(0, -2)[-1].double()
    columns = _matrix(model.get_submodule(name)).chunk(len(layer.weights), dim=-1)
    for matrix, part in zip(columns, read.chunk(len(layer.weights)), strict=True):
        yield factor * (matrix @ part)


def _direction(model: PreTrainedModel, calls: Calls, logits: Tensor, ids: list[int], signs: Tensor) -> Tensor:
    """What the stream before the last norm is multiplied with, its scale frozen, for the logit of a token.

    Of a norm without a mean each entry of the stream is multiplied by what its output is of its input; of one
    with a mean by that of its input less the mean, whose own share is taken off.
    """
    # transformers leaves this without types.
    unembedding = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    names = {module: name for name, module in model.named_modules()}
    read = calls.read[names[unembedding]][-1][0, -1]
    # Cohere multiplies its logits by a setting, Granite divides them by one, Cohere2Vision ignores its own.
    given = calls.outputs[names[unembedding]][-1][0][0, -1].double()
    largest = int(given.abs().argmax())
    vector: torch.Tensor = logits[largest] / given[largest] * (signs @ _matrix(unembedding)[ids])
    norms = [
        (module, calls.read[name][-1][0, -1].double(), calls.outputs[name][-1][0][0, -1].double())
        for name, module in model.named_modules()
        if "Norm" in type(module).__name__
        and name in calls.outputs
        and torch.equal(calls.outputs[name][-1][0][0, -1], read)
    ]
    if not norms:
        return vector
    module, stream, normed = norms[-1]
    shift = getattr(module, "bias", None)
    normed = normed if shift is None else normed - shift.double()
    weight = getattr(module, "weight", None)
    # Some norms keep their gain less one.
    gains = (1.0,) if weight is None else (weight.double(), 1 + weight.double())
    if all(abs((normed / gain).mean()) > 1e-5 * (normed / gain).abs().max() for gain in gains):
        return torch.as_tensor(vector * normed / stream)
    vector = vector * normed / (stream - stream.mean())
    return torch.as_tensor(vector - vector.mean())


def check_predicting(name: str, folder: Path) -> dict[str, Outcome]:
    """What generate, ablate and why come to for one architecture; `folder` is made."""
    return Predicting(name, folder).run()
