"""`attncli.head_edges` and `attncli.compositions`."""

from collections.abc import Callable
from typing import Annotated

from attncli.core.names import HEAD_PATTERNS
from attncli.errors import UserError
from attncli.features.circuit.results import Compositions, HeadEdges
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, OneOrMoreTexts
from attncli.models.pretrained import Reading
from attncli.models.reading_text import reading_for
from attncli.records.arguments import (
    HeadsWithoutStack,
    HeadWithoutStack,
    by,
    checked,
    head_name_without_stack,
    head_names_without_stack,
    one_of,
)

NamedPattern = Annotated[str, by(one_of(HEAD_PATTERNS))]


@checked
def head_edges(
    model: Model,
    text: OneOrMoreTexts,
    *,
    heads: HeadsWithoutStack = (),
    pattern: NamedPattern | None = None,
    progress: Callable[[float], None] | None = None,
) -> HeadEdges:
    """How much of what each head does, and of the logits, comes from each earlier part of the model.

    On a text, or means over several with 95 % intervals; of some heads, as 18:6, of those with a `pattern`
    on most of the texts, or of all. UserError for a model whose scores are not sums, heads that are not
    there, and a pattern that no head has; MemoryError.
    """
    from attncli.features.circuit.edges import head_edges as edges_of_heads

    texts = [text] if isinstance(text, str | Reading) else text
    names = head_names_without_stack(heads)
    if names and pattern is not None:
        raise UserError("pattern: cannot be combined with `heads`")
    with in_use(model) as pretrained:
        readings = [reading_for(pretrained, each) for each in texts]
        return edges_of_heads(pretrained, readings, heads=names, pattern=pattern, progress=progress)


@checked
def compositions(
    model: Model,
    *,
    head: HeadWithoutStack | None = None,
    progress: Callable[[float], None] | None = None,
) -> Compositions:
    """How much of what earlier heads can write each head can read, and how much each copies, without a text.

    Of all pairs of heads, or those with the one `head`, as 18:6. UserError for a model whose heads do not add
    to a stream that later heads read; MemoryError.
    """
    from attncli.features.circuit.edges import compositions as compositions_of_heads

    name = None if head is None else head_name_without_stack(head)
    with in_use(model) as pretrained:
        return compositions_of_heads(pretrained, head=name, progress=progress)
