"""The library function `attncli.read_cache`."""

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
    """Read the attention weights in a cache of activations as a report, as `attn show` does for a file.

    `cache` is a TransformerLens ActivationCache, any mapping of names to tensors or arrays, the `attentions`
    of a transformers model (a list or tuple with one tensor per layer, as BertViz takes it), or a file: .npz,
    .safetensors, .pt. The weights are the arrays named hook_pattern or pattern in all layers, or `array`, in
    whose name * stands for the layer. `tokens` contains the tokens of the text; the default is the tokens in
    the cache. Raises UserError for a cache without such weights.
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
        name, parts = type(cache).__name__, _parts_by_name(cache)
        numbers, has_context = _weights_among(parts, array, name)
        listed = parts.get("tokens", ())
        if (
            not tokens
            and not has_context
            and isinstance(listed, list | tuple)
            and len(listed) == numbers.shape[-1]
        ):
            tokens = [str(token) for token in listed]
    if tokens and numbers.ndim > 1 and len(tokens) != numbers.shape[-2]:
        raise UserError(
            f"tokens: must contain {numbers.shape[-2]} tokens, one for each query (got {len(tokens)})"
        )
    query_tokens = tuple(tokens) or None
    is_square = numbers.ndim > 1 and numbers.shape[-2] == numbers.shape[-1]
    weights = checked_weights(numbers, name, query_tokens if is_square else None, None)
    from attncli.runs.weight_rows import weights_report  # imports torch

    source = {"file": name, "array": array}
    return NotebookReport.of(weights_report(weights, source, tuple(tokens), (), has_context=has_context))


def _parts_by_name(cache: object) -> dict[str, object]:
    """Return the parts of a mapping, a mapping-like object (TransformerLens) or a list, by name.

    The tensors of a list are numbered. Raises UserError for anything else.
    """
    items: Iterable[tuple[object, object]] = [("", cache)]
    if isinstance(cache, Mapping) or (hasattr(cache, "keys") and hasattr(cache, "items")):
        items = cache.items()
    elif not isinstance(cache, list | tuple):
        wanted = "a mapping of names to tensors, a list of one tensor per layer, or a file's name"
        raise UserError(f"cache: must be {wanted} (got {type(cache).__name__})")
    parts: dict[str, object] = {}
    for name, part in items:
        if isinstance(part, list | tuple) and not all(isinstance(each, str) for each in part):
            parts |= _numbered(str(name), part)
        else:
            parts[str(name)] = part
    return parts


def _numbered(name: str, parts: Sequence[object]) -> dict[str, object]:
    """Return parts by their names: `name.0`, `name.1` and so on. Nested lists of arrays are flattened."""
    parts_by_name: dict[str, object] = {}
    for number, part in enumerate(parts):
        place = f"{name}.{number}".removeprefix(".")
        parts_by_name |= _numbered(place, part) if _holds_arrays(part) else {place: part}
    return parts_by_name


def _holds_arrays(part: object) -> TypeGuard[Sequence[object]]:
    return isinstance(part, list | tuple) and any(
        hasattr(each, "shape") or _holds_arrays(each) for each in part
    )


def _weights_among(parts: Mapping[str, object], array: str | None, kind: str) -> ReadWeights:
    """Return the weights of all layers, or of `array`. Raises UserError if they are missing or ambiguous."""
    if array is not None and not isinstance(array, str):
        raise UserError(f"array: must be a name, such as blocks.0.attn.hook_pattern (got {shown(array)})")
    names = [name for name in parts if name != "tokens"]
    forms = forms_of_weights(names)
    if forms or array is not None:
        layers = layer_arrays(names, array)
        weights = layer_weights(
            step_arrays(names, array), layers, lambda each: _as_array(parts[each], each), "cache"
        )
        if weights is not None:
            return weights
    if array is not None and array not in names:
        candidates = [*forms, *names]
        raise UserError(
            f"array: the cache has no {array}, only {listed_names(candidates)}{nearest(array, candidates)}"
        )
    if array is None and len(names) > 1 and len(forms) > 1:
        raise UserError(
            f"cache: contains several arrays of weights: set `array` to one of {listed_names(forms)}"
        )
    only = array if array is not None else names[0] if len(names) == 1 else None
    numbers = np.empty(0) if only is None else _as_array(parts[only], only)
    may_be = array is not None or (numbers.ndim in ARRAY_AXES and (forms or not is_of_a_layer(names[0])))
    if only is None or not may_be:
        raise UserError(f"cache: contains no attention weights, such as blocks.0.attn.hook_pattern ({kind})")
    has_all_layers = not is_of_a_layer(only) or numbers.ndim == 2
    return ReadWeights(
        numbers if has_all_layers else stacked_layers({0: numbers}, "cache"), is_cross_attention(only)
    )


def _as_array(tensor: Any, name: str) -> np.ndarray:
    problem = UserError(f"cache: {name} must be a tensor or an array of numbers")
    if hasattr(tensor, "detach"):  # a torch tensor
        if tensor.is_meta or tensor.is_sparse or tensor.is_complex():
            raise problem
        tensor = tensor.detach().float().cpu()
    try:
        numbers = np.asarray(tensor)
    except ValueError:  # rows of different lengths
        raise problem from None
    if numbers.dtype.kind not in "fiub":
        raise problem
    return numbers
