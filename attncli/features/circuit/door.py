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
    """Measure the share of each earlier part of the model in the work of each head and in the logits.

    For several texts, the shares are means with 95 % intervals. The heads are those in `heads`, such as 18:6;
    those that show a `pattern` on most of the texts; or all heads. Raises UserError for a model whose scores
    are not sums of parts, for heads that do not exist and for a pattern that no head has, and MemoryError if
    memory runs out.
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
    """Compute composition scores of pairs of heads, and copying scores, from a model's weights.

    The pairs are all pairs of heads or, with `head` (such as 18:6), the pairs that include it. Raises
    UserError for a model whose heads do not write to a residual stream that later heads read, and MemoryError
    if memory runs out.
    """
    from attncli.features.circuit.edges import compositions as compositions_of_heads

    name = None if head is None else head_name_without_stack(head)
    with in_use(model) as pretrained:
        return compositions_of_heads(pretrained, head=name, progress=progress)
