"""What transformers' own eager attention gives of each text, from a model as it was loaded."""

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .folders import NotTestable, inputs, one_line

NOT_LAYERS = ("decoder_ngram_attentions",)
"""Second weights of layers that have others, of queries that predict tokens further on."""

BEFORE_SINK = (
    "eager attention returns rows that sum to 1, and takes the share of the sink off the output later"
)
WITHOUT_SINK = {"granite_swa": BEFORE_SINK, "granitemoe_swa": BEFORE_SINK}
"""Where eager attention does not return the weights that take effect. attn shows rows with the sink: divided
by their sums they are the returned ones, and the output is compared as it is."""

STACKS = {"encoder_attentions": "encoder", "cross_attentions": "cross"}
SIBLING = "output.dense"
"""W_O of models like BERT, whose attention module returns the heads before it."""


@dataclass(frozen=True)
class Layer:
    """The attention of one layer: where it is, its weights, and what its module gave as output.

    `call` says which call of the module it was: one module may serve several layers.
    """

    stack: str
    module: str
    call: int
    number: int
    weights: Tensor
    outputs: tuple[Tensor, ...]

    @property
    def is_distribution(self) -> bool:
        """Whether rows are over the keys, not negative, and sum to at most 1."""
        rows = self.weights
        return bool(rows.ndim == 3 and (rows > -1e-6).all() and (rows.sum(-1) < 1 + 1e-3).all())

    @property
    def is_local(self) -> bool:
        """Whether all heads hide the same earlier keys from a later query: a window, or chunks."""
        num_queries, num_keys = self.weights.shape[-2:]
        if self.stack == "cross" or num_queries != num_keys:
            return False
        hidden = (self.weights == 0).all(dim=0).tril()
        return bool(hidden[num_queries // 2 :].any())


@dataclass
class Calls:
    """What every module read first and gave, in the order of its calls; the call that made each tensor."""

    outputs: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    read: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    source: dict[int, tuple[str, int]] = field(default_factory=dict)

    def note(self, name: str, read: Any, output: Any) -> None:
        parts = output if isinstance(output, tuple | list) else (output,)
        self.read[name].append(read)
        self.outputs[name].append(parts)  # kept, so that no other tensor gets the number of one
        for part in parts:
            if isinstance(part, Tensor):
                self.source.setdefault(id(part), (name, len(self.outputs[name]) - 1))

    def weights(self, num_tokens: int) -> list[Tensor]:
        """Each tensor among the outputs that may be weights of heads, once, in the order of calls."""
        size = (num_tokens, num_tokens)
        parts = [part for calls in self.outputs.values() for call in calls for part in call]
        candidates = {id(part): part for part in parts if isinstance(part, Tensor) and part.ndim == 4}
        return [candidates[i] for i in self.source if i in candidates and candidates[i].shape[2:] == size]

    def outputs_of(self, name: str, call: int) -> tuple[Tensor, ...]:
        """What an attention module gave, what modules right in it gave, and W_O beside it; one sequence each.

        W_O is in it, beside it (BERT), or in it with a norm and the residual after it (ALBERT).
        """
        names = [name, f"{name.rpartition('.')[0]}.{SIBLING}"]
        names += [each for each in self.outputs if each.rpartition(".")[0] == name]
        outputs = [self.outputs[each][call] for each in names if len(self.outputs.get(each, ())) > call]
        return tuple(parts[0][0] for parts in outputs if isinstance(parts[0], Tensor) and parts[0].ndim == 3)


def _numbers(modules: list[str]) -> list[int]:
    """The layer that each module's name tells, where a number in it rises; else their order."""
    for place in range(8):
        numbers = [[int(part) for part in re.findall(r"(?<![A-Za-z0-9])\d+", name)] for name in modules]
        if any(len(counts) <= place for counts in numbers):
            break
        rising = [counts[place] for counts in numbers]
        if all(a < b for a, b in itertools.pairwise(rising)):
            return rising
    return list(range(len(modules)))


def comparable(name: str, rows: np.ndarray) -> np.ndarray:
    """The rows of weights that attn shows, as eager attention returns them."""
    return rows / rows.sum(axis=-1, keepdims=True) if name in WITHOUT_SINK else rows


def load(folder: Path, auto_class: Any = AutoModel) -> PreTrainedModel:
    """The model with eager attention from the start."""
    model: PreTrainedModel = auto_class.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, use_safetensors=True
    )
    model.config.use_cache = False
    return model


@lru_cache(maxsize=1)
def _loaded(folder: Path) -> PreTrainedModel:
    return load(folder)


def layers_of_text(folder: Path, text: str) -> list[Layer]:
    """Each layer's attention, by stack (encoder, self, cross) and number; NotTestable where eager fails.

    Of a model as it was loaded: some change with the texts that they read.
    """
    try:
        model = deepcopy(_loaded(folder))
        ids = torch.tensor([AutoTokenizer.from_pretrained(folder)(text)["input_ids"]])
        return run(model, inputs(model, ids))[1]
    except Exception as error:
        raise NotTestable(one_line(error)) from error


def run(model: PreTrainedModel, given: Mapping[str, Tensor]) -> tuple[Any, list[Layer], Calls]:
    """The outputs, each layer's attention, and what every module gave: one run on a whole text, no cache.

    From what the model returns as attentions; where it returns none, from what its modules return.
    """
    calls = Calls()
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(_watched(module, name, calls))
        with torch.no_grad():
            outputs = model(**given, output_attentions=True)
    layers: list[Layer] = []
    for name, values in outputs.items():
        if name.endswith("attentions") and name not in NOT_LAYERS and isinstance(values, tuple | list):
            layers += _stack(STACKS.get(name, "self"), [v for v in values if isinstance(v, Tensor)], calls)
    return outputs, layers or _stack("self", calls.weights(given["input_ids"].shape[1]), calls), calls


def _watched(module: nn.Module, name: str, calls: Calls) -> Any:
    def note(_module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        calls.note(name, inputs[0] if inputs else named.get("hidden_states"), output)

    return module.register_forward_hook(note, with_kwargs=True)


def _stack(stack: str, weights: list[Tensor], calls: Calls) -> list[Layer]:
    sources = [calls.source.get(id(tensor), ("", 0)) for tensor in weights]
    numbers = _numbers([name for name, _ in sources])
    return [
        Layer(stack, name, call, number, tensor[0], calls.outputs_of(name, call) if name else ())
        for (name, call), number, tensor in zip(sources, numbers, weights, strict=True)
    ]


PROJECTIONS_IN = re.compile(r"(q|k|v|query|key|value|qkv|kv|in)(_?proj|_lin)?")
"""Names of what makes queries, keys and values: where a module holds no other product, W_O is beside it."""


def output_projection(model: nn.Module, layer: Layer, calls: Calls) -> str | None:
    """The name of W_O: the last product of a matrix in an attention module, or the one right after it.

    None where the last makes queries, keys or values and none comes after (JetMoE, whose W_O are experts).
    """
    modules = dict(model.named_modules())
    inside = [name for name in calls.outputs if name.startswith(f"{layer.module}.")]
    products = [name for name in inside if isinstance(modules[name], nn.Linear | Conv1D)]
    if products and not PROJECTIONS_IN.fullmatch(products[-1].rpartition(".")[2]):
        return products[-1]
    sibling = f"{layer.module.rpartition('.')[0]}.{SIBLING}"
    return sibling if sibling in calls.outputs else None


def row_statistics(weights: Tensor) -> dict[str, float]:
    """Means over the rows of a head, by their definitions."""
    p = weights.double()
    figures = {
        "entropy": -torch.special.xlogy(p, p).sum(-1),
        "max_weight": p.amax(-1),
        "participation": 1 / p.square().sum(-1),
        "sink_mass": p[:, 0],
    }
    return {name: float(figure.mean()) for name, figure in figures.items()}
