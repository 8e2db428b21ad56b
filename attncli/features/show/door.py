"""`attncli.read_cache`."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from attncli.errors import UserError, nearest
from attncli.models.arrays import (
    ARRAY_AXES,
    ReadWeights,
    checked_weights,
    forms_of_weights,
    is_array_file,
    is_cross_attention,
    is_of_a_layer,
    layer_arrays,
    layer_weights,
    listed_names,
    read_weights,
    stacked_layers,
    step_arrays,
    tokens_beside,
)
from attncli.notebook.run import NotebookReport
from attncli.records.arguments import shown


def read_cache(
    cache: Mapping[str, object] | Sequence[object] | str | PathLike[str],
    tokens: Sequence[str] = (),
    *,
    array: str | None = None,
) -> NotebookReport:
    """The weights in a cache of activations as a report: what `attn show` shows of a file.

    `cache` is a TransformerLens ActivationCache, any mapping of names to tensors or arrays, the `attentions`
    of a transformers model (a list or tuple, one per layer, as BertViz takes them), or a file: .npz,
    .safetensors, .pt. Its weights are those called hook_pattern or pattern, of all layers together, or the
    `array` with * for the layer. `tokens` are those of the text, or what the cache calls so. Raises UserError
    if it holds no such weights.
    """
    if isinstance(cache, str | PathLike):
        file = fspath(cache)
        if not is_array_file(file):
            raise UserError(f"cache: must be a .npz, .npy, .safetensors or .pt file (got {file})")
        name = Path(file).name
        numbers, has_context = read_weights(file, name=array)
        if not has_context:
            tokens = tokens or tokens_beside(file, numbers.shape)
    else:
        name, named = type(cache).__name__, _named_parts(cache)
        numbers, has_context = _weights_among(named, array, name)
        listed = named.get("tokens", ())
        if (
            not tokens
            and not has_context
            and isinstance(listed, list | tuple)
            and len(listed) == numbers.shape[-1]
        ):
            tokens = [str(token) for token in listed]
    if tokens and numbers.ndim > 1 and len(tokens) != numbers.shape[-2]:
        raise UserError(f"tokens: must be {numbers.shape[-2]}, one for each query (got {len(tokens)})")
    named_tokens = tuple(tokens) or None
    is_square = numbers.ndim > 1 and numbers.shape[-2] == numbers.shape[-1]
    weights = checked_weights(numbers, name, named_tokens if is_square else None, None)
    from attncli.runs.weight_rows import weights_report  # with torch

    source = {"file": name, "array": array}
    return NotebookReport.of(weights_report(weights, source, tuple(tokens), (), has_context=has_context))


def _named_parts(cache: object) -> dict[str, object]:
    """What a mapping, or what has names and items as one (TransformerLens), or a list holds, by names; of
    lists of tensors each by its number. UserError for anything else.
    """
    named: Iterable[tuple[object, object]] = [("", cache)]
    if isinstance(cache, Mapping) or (hasattr(cache, "keys") and hasattr(cache, "items")):
        named = cache.items()
    elif not isinstance(cache, list | tuple):
        wanted = "a mapping of names to tensors, a list of one tensor per layer, or a file's name"
        raise UserError(f"cache: must be {wanted} (got {type(cache).__name__})")
    parts: dict[str, object] = {}
    for name, part in named:
        if isinstance(part, list | tuple) and not all(isinstance(each, str) for each in part):
            parts |= _numbered(str(name), part)
        else:
            parts[str(name)] = part
    return parts


def _numbered(name: str, parts: Sequence[object]) -> dict[str, object]:
    """The parts by their numbers behind the name, and those of lists of arrays in turn."""
    named: dict[str, object] = {}
    for number, part in enumerate(parts):
        place = f"{name}.{number}".removeprefix(".")
        named |= _numbered(place, part) if _holds_arrays(part) else {place: part}
    return named


def _holds_arrays(part: object) -> TypeGuard[Sequence[object]]:
    return isinstance(part, list | tuple) and any(
        hasattr(each, "shape") or _holds_arrays(each) for each in part
    )


def _weights_among(named: Mapping[str, object], array: str | None, kind: str) -> ReadWeights:
    """The weights of all layers, or those of the `array`. UserError where they are not there, or several."""
    if array is not None and not isinstance(array, str):
        raise UserError(f"array: must be the name of one, as blocks.0.attn.hook_pattern (got {shown(array)})")
    names = [name for name in named if name != "tokens"]
    forms = forms_of_weights(names)
    if forms or array is not None:
        of_layers = layer_arrays(names, array)
        weights = layer_weights(
            step_arrays(names, array), of_layers, lambda each: _as_array(named[each], each), "cache"
        )
        if weights is not None:
            return weights
    if array is not None and array not in names:
        known = [*forms, *names]
        raise UserError(f"array: the cache has no {array}, but {listed_names(known)}{nearest(array, known)}")
    if array is None and len(names) > 1 and len(forms) > 1:
        raise UserError(f"cache: holds several: name the weights by `array`, as one of {listed_names(forms)}")
    only = array if array is not None else names[0] if len(names) == 1 else None
    numbers = np.empty(0) if only is None else _as_array(named[only], only)
    may_be = array is not None or (numbers.ndim in ARRAY_AXES and (forms or not is_of_a_layer(names[0])))
    if only is None or not may_be:
        raise UserError(f"cache: holds no weights of layers, as blocks.0.attn.hook_pattern ({kind})")
    is_of_all = not is_of_a_layer(only) or numbers.ndim == 2
    return ReadWeights(
        numbers if is_of_all else stacked_layers({0: numbers}, "cache"), is_cross_attention(only)
    )


def _as_array(tensor: Any, name: str) -> np.ndarray:
    wrong = UserError(f"cache: {name} must be a tensor or an array of numbers")
    if hasattr(tensor, "detach"):  # of torch
        if tensor.is_meta or tensor.is_sparse or tensor.is_complex():
            raise wrong
        tensor = tensor.detach().float().cpu()
    try:
        numbers = np.asarray(tensor)
    except ValueError:  # rows of several lengths
        raise wrong from None
    if numbers.dtype.kind not in "fiub":
        raise wrong
    return numbers
