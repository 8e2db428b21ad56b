"""The tensors of a saved report: named axes, full boxes of numbers, and tokens for the places on them."""

from attncli.report import AXES, NamedTensor, Report
from attncli.saved.parts import Part


def read_axes(part: Part) -> tuple[str, ...]:
    """The names of the axes of a tensor: at least one, all known, none twice."""
    axes = part.texts()
    for axis in axes:
        if axis not in AXES:
            raise part.wrong(f"unknown axis {axis!r:.40}: must be of {', '.join(AXES)}")
    if len(set(axes)) < len(axes) or not axes:
        raise part.wrong(f"must name one axis or more, each once (got {', '.join(axes) or 'none'})")
    return axes


def read_tensor(part: Part) -> NamedTensor:
    """A tensor with its axes beside it."""
    fields = part.fields(("axes", "values"))
    axes = read_axes(fields["axes"])
    # An error is about the tensor, so its place is the tensor's.
    return NamedTensor(axes, Part(fields["values"].value, part.document, part.path).array(len(axes)))


def check_tokens(part: Part, report: Report) -> None:
    """UserError where a tensor has more or fewer places along a token axis than tokens, or names more."""
    sides = {"query": report.tokens, "token": report.tokens, "key": report.context_tokens or report.tokens}
    tensors = {f"tensors.{name}": tensor for name, tensor in report.tensors.items()}
    for group in ("rows", "keys"):
        members = report.tensors_of(group)
        tensors |= {f"statistics.{group}.{name}": tensor for name, tensor in members.items()}
    for place, tensor in tensors.items():
        for axis, size in zip(tensor.axes, tensor.values.shape, strict=True):
            tokens = sides.get(axis)
            if tokens and len(tokens) != size:
                raise _at(part, place).wrong(f"has {size} along {axis}, and there are {len(tokens)} tokens")
    top_keys, tokens = tensors.get("statistics.rows.top_keys"), sides["key"]
    if top_keys is not None and tokens and top_keys.values.max() >= len(tokens):
        raise _at(part, "statistics.rows.top_keys").wrong(f"names a key beyond the {len(tokens)} tokens")


def _at(part: Part, place: str) -> Part:
    return Part(None, part.document, tuple(place.split(".")))
