"""The attention of each layer of a transformers model, handed over while the model runs.

By transformers' AttentionInterface where the model uses it for all of its layers and passes nothing that attn
does not know. All others run with eager attention, whose weights (dense) are handed over instead.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

import torch
from torch import Tensor

from attncli.errors import UserError
from attncli.inputs.attention_interface import run_by_interface
from attncli.inputs.captured_layers import CannotShow, CapturedLayer, Consumer, Enough, Numbering, TokenCounts
from attncli.inputs.eager_attention import run_eagerly
from attncli.inputs.loaded_model import LoadedModel

__all__ = ["CapturedLayer", "Consumer", "Enough", "capture"]


def _nothing() -> None:
    """A consumer that keeps nothing needs no restart."""


@torch.inference_mode()
def capture(
    loaded: LoadedModel,
    inputs: Mapping[str, Tensor],
    consume: Consumer,
    restart: Callable[[], None] = _nothing,
) -> str:
    """Run the model on texts of one length; each layer's attention goes to `consume`. `interface` or `eager`:
    which way.

    Where the interface turns out not to do after some layers, `restart` is called, and all layers are handed
    over anew. UserError where the model yields neither, or no weights of its tokens.
    """
    if not loaded.is_eager:
        if _by_interface(loaded, inputs, consume):
            return "interface"
        restart()
    _by_eager(loaded, inputs, consume)
    return "eager"


class _OfConsumer(Exception):
    """Carries an error of the consumer's own through the model."""


def _guarded(consume: Consumer) -> Consumer:
    def guarded(layer: CapturedLayer) -> Tensor | None:
        try:
            return consume(layer)
        except Enough:
            raise
        except Exception as error:
            raise _OfConsumer from error

    return guarded


def _numbering(loaded: LoadedModel, inputs: Mapping[str, Tensor]) -> Numbering:
    return Numbering(bool(loaded.model.config.is_encoder_decoder), TokenCounts.of_inputs(inputs))


def _by_interface(loaded: LoadedModel, inputs: Mapping[str, Tensor], consume: Consumer) -> bool:
    """Whether every layer came, or as many as the consumer wanted."""
    numbering = _numbering(loaded, inputs)
    loaded.model.config.use_cache = False
    try:
        run_by_interface(loaded.model, inputs, _guarded(consume), numbering)
    except Enough:
        return True
    except _OfConsumer as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # whatever a model makes of a mask that is none, or of an attention that is not its own
        return False
    return bool(numbering.taken) and not numbering.lacks_a_stack


def _by_eager(loaded: LoadedModel, inputs: Mapping[str, Tensor], consume: Consumer) -> None:
    kind = loaded.model.config.model_type
    try:
        layers = _eager_layers(loaded, inputs)
        if not layers and loaded.has_changed:  # parts that are new have no hooks for their weights
            layers = _eager_layers(loaded, inputs)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except CannotShow as error:
        raise UserError(f"model: {kind} cannot be shown: {error}") from None
    except Exception as error:  # whatever a model lacks that is no text
        raise UserError(f"model: {kind} cannot run on text alone: {_one_line(error)}") from None
    if not layers:
        raise UserError(f"model: {kind} gives no attention weights: it has none, or transformers hides them")
    with suppress(Enough):
        for layer in layers:
            consume(layer)


def _eager_layers(loaded: LoadedModel, inputs: Mapping[str, Tensor]) -> list[CapturedLayer]:
    loaded.make_eager()
    loaded.model.config.use_cache = False
    if loaded.changes_itself:
        loaded.model(**inputs)  # before transformers puts its hooks on the parts
    return run_eagerly(loaded.model, inputs, _numbering(loaded, inputs))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
