"""What a model computes, to take along and to replace: activations by other tools' names, changed heads.

The doors of `measure` and `models`, as in `library`.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from os import PathLike
from typing import Annotated

from torch import Tensor, nn
from transformers import PreTrainedModel

from attncli.arguments import HeadsArgument, by, checked, head_name, head_names, one_of
from attncli.core.names import ActivationNames, named_head
from attncli.errors import UserError
from attncli.models.architectures import has_two_stacks
from attncli.models.capture import NOT_CHANGED
from attncli.models.layers import CannotShow, Numbering, handing_over
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, TextOrReading
from attncli.models.patched_heads import PARTS, Changes, HeadPart, NamedChanges, PartChange, patches_open
from attncli.models.pretrained import Pretrained, Reading, check_made_for, read_text
from attncli.models.stored import blocks_of


@checked
def activation_cache(
    model: Model, text: TextOrReading, *, names: ActivationNames = "transformer_lens"
) -> dict[str, Tensor]:
    """Query, key, value, scores, weights and output of every layer on a text, by the names of another tool.

    transformer_lens: what `ActivationCache` takes, `blocks.3.attn.hook_pattern` (text, head, query, key) and
    `hook_z` (text, token, head, dim). nnsight: the path of the module in the whole model,
    `model.layers.3.self_attn.pattern`, vectors as (text, head, token, dim). In float32 on the CPU. UserError
    for a model that cannot be shown, and for too little memory; MemoryError.
    """
    from attncli.measure.activations import activations

    with in_use(model) as pretrained:
        if not isinstance(text, Reading):
            text = read_text(pretrained, text)
        return activations(pretrained, check_made_for(pretrained, text, "text"), names)


PatchedPart = Annotated[HeadPart, by(one_of(PARTS))]


@contextmanager
@checked
def patch(
    model: Model, heads: HeadsArgument, change: PartChange, *, part: PatchedPart = "output"
) -> Iterator[Pretrained]:
    """While it is open, a part of some heads of the model is what `change` gives.

    `change` takes a head (`query`, `key`, `value`, `pattern`, `output`, `gated`, `name`, `layer`, `head`) and
    gives the new `part` in its shape, (text, ...): `lambda head: 0 * head.output`. Each text of a batch may
    be given something else. See `hooks`.
    """
    changes: dict[str, Changes] = {name: {part: change} for name in head_names(heads)}
    with _hooked(model, changes) as pretrained:
        yield pretrained


@contextmanager
def hooks(
    model: Pretrained | str | PathLike[str], changes: Mapping[str, Mapping[str, PartChange]]
) -> Iterator[Pretrained]:
    """While it is open, heads of the model are changed, whatever runs it in this thread.

    `changes` names heads and what replaces their parts: {"18:6": {"pattern": fn}, "3:1": {"value": other}}.
    Parts are computed in the order query, key, value, pattern, output, gated (what W_O reads), each from what
    was replaced before, in patches in patches by the outer first; a replaced key or value is that head's own,
    also where several share it. It gives the model as the
    functions of attncli take it meanwhile; your own model runs and writes with its changed heads, too.
    Afterwards it is as before. A pattern may have any numbers; functions that need more than weights refuse
    such a layer.

    UserError for a head or part that is not there, a change of another shape, and a model that computes its
    attention itself.
    """
    if not isinstance(changes, Mapping):
        raise UserError(f"changes: must map heads to parts (got {type(changes).__name__})")
    checked_changes: dict[str, Changes] = {}
    for name, of_head in changes.items():
        checked_changes[_checked_name(name)] = _checked_parts(name, of_head)
    with _hooked(model, checked_changes) as pretrained:
        yield pretrained


def _checked_name(name: object) -> str:
    try:
        return head_name(name)
    except ValueError as error:
        raise UserError(f"changes: {error}") from None


def _checked_parts(name: object, changes: object) -> Changes:
    if not isinstance(changes, Mapping) or not changes:
        raise UserError(f"changes: {name}: must map parts ({', '.join(PARTS)}) to functions")
    for part, change in changes.items():
        try:
            one_of(PARTS)(part)
        except ValueError as error:
            raise UserError(f"changes: {name}: {error}") from None
        if not callable(change):
            raise UserError(f"changes: {name}: {part}: must be a function (got {type(change).__name__})")
    return changes


@contextmanager
def _hooked(model: Pretrained | str | PathLike[str], changes: Mapping[str, Changes]) -> Iterator[Pretrained]:
    """While it is open the model, which this thread has for itself, runs with these heads changed."""
    with in_use(model) as pretrained, ExitStack() as opened:
        body, has_run = pretrained.model, False
        _check_heads(pretrained, changes)
        numbering = Numbering(has_two_stacks(body), None)

        def begin(_module: nn.Module, _inputs: object) -> None:
            nonlocal has_run
            has_run = True
            numbering.taken.clear()  # layers are numbered anew in every run

        for part in pretrained.whole.modules():
            if isinstance(part, PreTrainedModel):
                opened.enter_context(part.register_forward_pre_hook(begin))
        named = NamedChanges(changes)
        opened.enter_context(patches_open(named.patches(pretrained.whole, body)))
        opened.enter_context(handing_over(body, lambda _layer: None, numbering))
        try:
            yield pretrained
        except CannotShow as error:
            raise UserError(f"heads: of {pretrained.name} cannot be changed: {error}") from None
        if has_run and not named.met:
            raise UserError(f"heads: {pretrained.name} {NOT_CHANGED}")


def _check_heads(pretrained: Pretrained, changes: Mapping[str, Changes]) -> None:
    """UserError for heads of a stack that the model does not have, and of layers beyond the last."""
    stacks: tuple[str, ...] = ("",)
    num_layers = pretrained.num_layers
    if pretrained.has_decoder:
        stacks = ("encoder", "decoder", "cross")
        num_layers = max(num_layers, *map(len, blocks_of(pretrained.whole, in_memory=True)))
    for name in changes:
        place = named_head(name)
        if place.stack not in stacks:
            wanted = f"{', '.join(f'{stack}:' for stack in stacks)} and a head" if stacks[0] else "as 5:11"
            raise UserError(f"heads: must be {wanted} of {pretrained.name} (got {name})")
        if place.layer >= num_layers:
            raise UserError(f"heads: {pretrained.name} has {num_layers} layers (got {name})")
