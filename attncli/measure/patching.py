"""Public functions that read and replace activations: `activation_cache`, `patch` and `hooks`."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields
from os import PathLike
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attncli.core.names import ActivationNames, named_head
from attncli.errors import UserError
from attncli.models.architectures import has_two_stacks, layers_without_softmax
from attncli.models.capture import NOT_CHANGED
from attncli.models.in_turn import in_use_for_all, in_use_for_none
from attncli.models.layers import RECOMPUTED, CannotShow, RunsNumbering, handing_over
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, TextOrReading
from attncli.models.patched_heads import (
    PARTS,
    Changes,
    HeadPart,
    NamedChanges,
    PartChange,
    PatchedHead,
    are_in_force,
    patches_open,
)
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.reading_text import check_made_for, read_text
from attncli.models.side_by_side import of_this_run
from attncli.models.stored import blocks_of
from attncli.records.arguments import HeadsArgument, by, checked, head_name, head_names, one_of, shown


@checked
def activation_cache(
    model: Model, text: TextOrReading, *, names: ActivationNames = "transformer_lens"
) -> dict[str, Tensor]:
    """Return every layer's query, key, value, scores, weights and output on a text, named as in another tool.

    transformer_lens: the names of `ActivationCache`, `blocks.3.attn.hook_pattern` (text, head, query, key)
    and `hook_z` (text, token, head, dim). nnsight: the path of the module in the whole model,
    `model.layers.3.self_attn.pattern`, with vectors as (text, head, token, dim). Tensors are float32 on the
    CPU. A model that computes its attention itself (BLOOM, Falcon) has only patterns, with a RuntimeWarning.
    Raises UserError if the model cannot be read or memory is too small, and MemoryError if memory runs out.
    """
    cache, missing = activations_and_missing(model, text, names)
    if missing:
        warnings.warn(f"attn: {missing}", RuntimeWarning, stacklevel=3)
    return cache


def activations_and_missing(
    model: Pretrained | str | PathLike[str], text: Any, names: ActivationNames
) -> tuple[dict[str, Tensor], str]:
    """Return the `activation_cache`, and a message if the model has only patterns, "" if it has more."""
    from attncli.measure.activations import activations, missing_parts

    with in_use(model) as pretrained:
        if not isinstance(text, Reading):
            text = read_text(pretrained, text)
        cache = activations(pretrained, check_made_for(pretrained, text, "text"), names)
        return cache, missing_parts(pretrained.name, cache)


PatchedPart = Annotated[HeadPart, by(one_of(PARTS))]


@contextmanager
@checked
def patch(
    model: Model, heads: HeadsArgument, change: PartChange, *, part: PatchedPart = "output"
) -> Iterator[Pretrained]:
    """Replace a part of some of the model's heads inside this context.

    `change` takes a head (`query`, `key`, `value`, `pattern`, `output`, `gated`, `name`, `layer`, `head`) and
    returns the new `part` in the same shape, (text, ...): `lambda head: 0 * head.output`. The texts of a
    batch may differ. See `hooks`.
    """
    changes: dict[str, Changes] = {_plain_name(name): {part: change} for name in head_names(heads)}
    with _hooked(model, changes) as pretrained:
        yield pretrained


def _plain_name(name: str) -> str:
    """Return the name of a head without leading zeros: 0:1 for 00:1."""
    place = named_head(name)
    return f"{place.stack}:{place.layer}:{place.head}".removeprefix(":")


def _changes_of_heads(changes: Any) -> dict[str, Changes]:
    """Check that changes map head names to functions by part. Raises ValueError if they do not."""
    if not isinstance(changes, Mapping):
        raise ValueError(f"must map heads to parts (got {type(changes).__name__})")
    by_head: dict[str, dict[HeadPart, PartChange]] = {}
    for key, head_changes in changes.items():
        name = _plain_name(head_name(key))
        if not isinstance(head_changes, Mapping) or not head_changes:
            raise ValueError(f"{name}: must map parts ({', '.join(PARTS)}) to functions")
        for part, change in head_changes.items():
            try:
                one_of(PARTS)(part)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            if not callable(change):
                raise ValueError(f"{name}: {part}: must be a function (got {type(change).__name__})")
            if part in by_head.setdefault(name, {}):
                raise ValueError(f"{name}: {part}: must be given only once (given again as {shown(key)})")
            by_head[name][part] = change
    return {**by_head}


ChangesOfHeads = Annotated[Mapping[str, Mapping[str, PartChange]], by(_changes_of_heads)]


@contextmanager
@checked
def hooks(model: Model, changes: ChangesOfHeads) -> Iterator[Pretrained]:
    """Inside this context, change heads of the model in all its runs in this thread.

    `changes` maps heads to functions by part: {"18:6": {"pattern": fn}, "3:1": {"value": other}}. Parts are
    computed in the order query, key, value, pattern, output, gated (the input of W_O), each from the parts
    replaced before it; in nested contexts the outer change comes first. A replaced key or value belongs to
    that head, even if several heads share it. Yields a model for the functions of attncli; your own model
    object also runs and generates with the changed heads, and computes gradients through them. After the
    block, the model is unchanged. A replaced pattern may contain any numbers; functions that need more than
    weights refuse a layer with a replaced pattern.

    Raises UserError for an unknown head or part, a change of another shape, a layer without a softmax, a
    model that computes its attention itself, and gradient checkpointing, which would rerun layers later.
    """
    with _hooked(model, cast(Mapping[str, Changes], changes)) as pretrained:
        yield pretrained


@contextmanager
def _hooked(model: Pretrained | str | PathLike[str], changes: Mapping[str, Changes]) -> Iterator[Pretrained]:
    """Reserve the model for this thread, and change these heads in its runs, inside this context."""
    with in_use(model) as pretrained, ExitStack() as opened:
        body, whole = pretrained.model, pretrained.whole
        _check_heads(pretrained, changes)
        num_blocks = sum(map(len, blocks_of(whole, in_memory=True)))
        numbering = RunsNumbering(
            has_two_stacks(body), None, shares_modules=num_blocks < pretrained.num_layers
        )
        handed_over = opened.enter_context(handing_over(body, lambda _layer: None, numbering))
        named_changes = NamedChanges(_run_apart(changes, numbering, handed_over))
        patches = named_changes.patches(whole, body)
        has_run = opened.enter_context(_runs_noted(whole, numbering, lambda: are_in_force(patches)))
        opened.enter_context(patches_open(patches))
        opened.enter_context(in_use_for_all(pretrained))
        attention = body.config._attn_implementation
        # An instance of the caller's class, which may have a display of its own.
        kind = type(model) if isinstance(model, Pretrained) else Pretrained
        try:
            yield kind(**{part.name: getattr(pretrained, part.name) for part in fields(pretrained)})
        except CannotShow as error:
            raise UserError(f"heads: cannot change heads of {pretrained.name}: {error}") from None
        if (now := body.config._attn_implementation) != attention:
            raise UserError(
                f"heads: the attention of {pretrained.name} was set to {now} while its heads were changed: "
                "set it before changing them"
            )
        if not has_run.isdisjoint((body, whole)):
            _check_met(pretrained, named_changes)


def _run_apart(
    changes: Mapping[str, Changes],
    numbering: RunsNumbering,
    handed_over: Callable[[], AbstractContextManager[None]],
) -> dict[str, Changes]:
    """Wrap the changes so that model runs inside a change are not part of the current run."""

    def apart(change: PartChange) -> PartChange:
        def changed_part(head: PatchedHead) -> Tensor:
            with numbering.apart(), handed_over(), in_use_for_none():
                return change(head)

        return changed_part

    return {
        name: {part: apart(change) for part, change in head_changes.items()}
        for name, head_changes in changes.items()
    }


@contextmanager
def _runs_noted(
    whole: PreTrainedModel, numbering: RunsNumbering, is_changed: Callable[[], bool]
) -> Iterator[set[nn.Module]]:
    """Number the runs of the model and its parts inside this context; yield the modules that completed."""
    has_run: set[nn.Module] = set()
    checkpointing = [part for part in whole.modules() if hasattr(part, "gradient_checkpointing")]

    def begin(model: nn.Module, _inputs: object) -> None:
        if torch.is_grad_enabled() and any(
            part.gradient_checkpointing and part.training for part in checkpointing
        ):
            raise CannotShow(RECOMPUTED)
        numbering.begin(model)

    def end(model: nn.Module, _inputs: object, outputs: object) -> None:
        numbering.end(model)
        if outputs is not None and is_changed():  # a failed run has no outputs
            has_run.add(model)

    with ExitStack() as hooked:
        for part in whole.modules():
            if isinstance(part, PreTrainedModel):
                hooked.enter_context(part.register_forward_pre_hook(of_this_run(begin)))
                hooked.enter_context(part.register_forward_hook(of_this_run(end), always_call=True))
        yield has_run


def _check_met(pretrained: Pretrained, named: NamedChanges) -> None:
    """Raise UserError for a head whose layer did not run even though the model did."""
    if not named.met:
        raise UserError(f"heads: {pretrained.name} {NOT_CHANGED}")
    for name in named.changes:
        place = named_head(name)
        if (place.stack or "self", place.layer) not in named.met:
            layer = f"{place.stack} layer" if place.stack else "layer"
            raise UserError(
                f"heads: {pretrained.name} ran without the attention of {layer} {place.layer}, so {name} was "
                "not changed"
            )


def _check_heads(pretrained: Pretrained, changes: Mapping[str, Changes]) -> None:
    """Raise UserError for heads in a stack or layer that the model lacks."""
    stacks: tuple[str, ...] = ("",)
    num_layers = pretrained.num_layers
    mixers = {} if pretrained.has_decoder else _layers_without_heads(pretrained.model)
    if pretrained.has_decoder:
        stacks = ("encoder", "decoder", "cross")
        num_layers = max(num_layers, *map(len, blocks_of(pretrained.whole, in_memory=True)))
    for name in changes:
        place = named_head(name)
        if place.stack not in stacks:
            form = f"{'|'.join(stacks)}:LAYER:HEAD" if stacks[0] else "LAYER:HEAD"
            raise UserError(f"heads: must be {form} in {pretrained.name} (got {name})")
        if place.layer >= num_layers:
            raise UserError(f"heads: {pretrained.name} has only {num_layers} layers (got {name})")
        if place.layer in mixers:
            raise UserError(
                f"heads: no head in layer {place.layer} of {pretrained.name} can be changed: "
                f"{mixers[place.layer]} (got {name})"
            )


def _layers_without_heads(model: nn.Module) -> dict[int, str]:
    """The layers without attention in a model that also has layers with attention, each with the reason."""
    mixed, idle = layers_without_softmax(model)
    return dict.fromkeys(idle, "the layer does not mix tokens") | {
        layer: f"the mixer of the layer ({mixer}) has no softmax"
        for (mixer, has_attention), layers in mixed.items()
        for layer in layers
        if not has_attention
    }
