"""The attention of each layer of a transformers model, handed over while the model runs.

Through transformers' AttentionInterface where the model computes the same with it as with its own eager
attention. All others run with eager attention, whose weights (dense) are handed over.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from traceback import walk_tb
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from attncli.errors import UserError
from attncli.inputs.capture.attention_interface import run_by_interface
from attncli.inputs.capture.captured_layers import CannotShow, CapturedLayer, Consumer, Numbering, StopCapture
from attncli.inputs.capture.eager_attention import eager_copy, fault_of, returned_weights, run_eagerly

Way = Literal["interface", "eager"]

TRIAL_TOKENS = 8
TOLERANCE = 1e-2
"""By how much a token's vector may differ, relative to its length: rounding of float32 is far below it."""
TOLERATED_STEPS = 8
"""The same in steps of the model's dtype, where these are more: bfloat16 rounds to 2^-7."""

OWN = __name__.partition(".")[0]
CALL = "torch.nn.modules.module"
"""Where torch calls a model."""

_ways: MutableMapping[PreTrainedModel, dict[tuple[torch.Size, ...], Way]] = WeakKeyDictionary()
"""How each model's attention comes, by the shapes of the inputs that it was tried on."""


# Not in inference mode: nothing could be trained on what a hook or the model itself keeps of it.
@torch.no_grad()
def capture(model: PreTrainedModel, inputs: Mapping[str, Tensor], consume: Consumer) -> Way:
    """Run the model on texts of one length; each layer's attention goes to `consume`. Returns how it came.

    UserError where the model gives no weights of its tokens; MemoryError.
    """
    model.config.use_cache = False
    with model_errors(model.config.model_type):
        way = way_of(model, inputs)
        with suppress(StopCapture):
            if way == "interface":
                run_by_interface(model, inputs, guarded(consume), _numbering(model, inputs))
            else:
                for layer in _eager_layers(model, inputs):
                    guarded(consume)(layer)
    return way


def check_computed_here(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> None:
    """UserError for a model that computes its attention itself, where nothing can be changed."""
    kind = model.config.model_type
    with torch.no_grad(), model_errors(kind):
        if way_of(model, inputs) == "eager":
            message = "computes its attention itself, so that attn sees its weights alone: use another"
            raise UserError(f"model: {kind} {message}")


def run_model(model: PreTrainedModel, inputs: Mapping[str, Tensor], consume: Consumer) -> ModelOutput:
    """The outputs of a model with the attention that `consume` gives; `check_computed_here` came before.

    UserError where the model fails; MemoryError.
    """
    model.config.use_cache = False
    with model_errors(model.config.model_type):
        return run_by_interface(model, inputs, guarded(consume), _numbering(model, inputs))


def _numbering(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Numbering:
    counts = [inputs[name].shape[1] for name in ("decoder_input_ids", "input_ids") if name in inputs]
    num_tokens = (counts[0], counts[-1]) if "input_ids" in inputs else None
    return Numbering(bool(model.config.is_encoder_decoder), num_tokens)


def way_of(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Way:
    """How a model's attention is handed over, tried on the first tokens of the first text."""
    few = {name: _first_tokens(name, tensor) for name, tensor in inputs.items()}
    ways = _ways.setdefault(model, {})
    shapes = tuple(tensor.shape for tensor in few.values())
    if shapes not in ways:
        ways[shapes] = _tried(model, few)
    return ways[shapes]


def _first_tokens(name: str, tensor: Tensor) -> Tensor:
    if name.endswith("mask"):
        num_tokens = min(TRIAL_TOKENS, tensor.shape[-1])
        return torch.ones(1, num_tokens, dtype=torch.long, device=tensor.device)
    return tensor[:1, :TRIAL_TOKENS] if tensor.ndim == 2 else tensor


def _tried(model: PreTrainedModel, few: Mapping[str, Tensor]) -> Way:
    """`interface` where it gives as many layers as eager attention does, and the same output."""
    numbering = _numbering(model, few)
    try:
        output = run_by_interface(model, few, lambda _: None, numbering)
    except Exception as error:  # a model may fail in any way on a mask or an attention not its own
        _raise_if_memory(error)
        return "eager"
    try:
        expected = eager_copy(model)(**few, output_attentions=True)
    except Exception as error:  # there is nothing to compare with
        _raise_if_memory(error)
        return "interface"
    num_layers = sum(map(len, numbering.taken.values()))
    num_expected = sum(not fault_of(weights) for _, weights in returned_weights(expected)) or num_layers
    return "interface" if 0 < num_layers == num_expected and _agree(output, expected) else "eager"


def _agree(output: ModelOutput, expected: ModelOutput) -> bool:
    ours, theirs = output[0], expected[0]
    tolerance = max(TOLERANCE, TOLERATED_STEPS * torch.finfo(theirs.dtype).eps)
    return bool(((ours - theirs).norm(dim=-1) <= tolerance * theirs.norm(dim=-1)).all())


def _eager_layers(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> list[CapturedLayer]:
    """From a fresh copy for each text, since some models change with what they read (BigBird)."""
    layers = run_eagerly(eager_copy(model), inputs, _numbering(model, inputs))
    if not layers:
        copy = eager_copy(model)
        copy(**inputs)  # parts that it replaces by others now would have no hooks for their weights
        layers = run_eagerly(copy, inputs, _numbering(model, inputs))
    if not layers:
        raise CannotShow("it gives no attention weights: it has none, or transformers hides them")
    return layers


class _ConsumerError(Exception):
    """Carries the consumer's own error through the model."""


def guarded(consume: Consumer) -> Consumer:
    """The consumer, with its own errors passing through the model unchanged."""

    def guarded_consume(layer: CapturedLayer) -> Tensor | None:
        try:
            return consume(layer)
        except (CannotShow, StopCapture, UserError):
            raise
        except Exception as error:
            _raise_if_memory(error)
            raise _ConsumerError from error

    return guarded_consume


@contextmanager
def model_errors(kind: str, what: str = "run on text alone") -> Iterator[None]:
    """Turns any failure of a model by itself into a UserError of one line; mistakes of attn's own pass."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except _ConsumerError as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None
    except CannotShow as error:
        raise UserError(f"model: {kind} cannot be shown, use another: {error}") from None
    except Exception as error:  # whatever input a model lacks besides text
        _raise_if_memory(error)
        if not _is_of_model(error):
            raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"model: {kind} cannot {what}, use another: {reason}") from None


def _is_of_model(error: Exception) -> bool:
    """Whether a model failed by itself: it was called, and did not call attn from there."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    is_model = [name == CALL or name.partition(".")[0] == "transformers" for name in modules]
    inside = modules[is_model.index(True) :] if True in is_model else []
    return bool(inside) and all(name.partition(".")[0] != OWN for name in inside)


def _raise_if_memory(error: Exception) -> None:
    """Where torch finds no memory it raises an error of its own, on a CPU a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        raise MemoryError from error
