"""`attncli.generate`."""

from collections.abc import Callable, Mapping

from attncli.core.names import WholeRows, named_head
from attncli.features.generate.results import WrittenText
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, TextOrPrompt
from attncli.models.prompts import Prompt, read_prompt, reading_prompt
from attncli.models.writing import Decoding
from attncli.records.arguments import (
    Count,
    HeadWithoutStack,
    Seed,
    Size,
    Temperature,
    TopShare,
    checked,
    head_name_without_stack,
)
from attncli.records.token_ids import text_or_ids

WRITTEN = 20
"""Tokens that a model writes after a text, where nobody says how many."""


@checked
def generate(
    model: Model,
    text: TextOrPrompt,
    *,
    max_new_tokens: Size | None = None,
    temperature: Temperature | None = None,
    top_p: TopShare | None = None,
    seed: Seed = 0,
    top_k: Size = 3,
    layer: Count | None = None,
    head: HeadWithoutStack | None = None,
    maps: WholeRows = "none",
    prefill_chunk: Size | None = None,
    on_text: Callable[[str], None] | None = None,
) -> WrittenText:
    """The model continues a text; where each head looked for each new token, at the `top_k` keys first.

    `text` may be token ids, or what was read of a file whose content the model writes, as `read_sound` does.
    Without `max_new_tokens` it writes 20, of such a file as many as its generation_config.json lets it.

    The likeliest token each time, or one sampled at a temperature among the likeliest with `top_p` of the
    probability. Of every head, of those of one `layer`, or of one `head`, as 17:3; `maps` keeps whole rows,
    their mean or those of all heads. `on_text` gets what is written as it comes; Ctrl-C then ends it.
    UserError for a model that cannot write; MemoryError.
    """
    from attncli.features.generate.writing import written

    number = None
    if head is not None:
        _, layer, number = named_head(head_name_without_stack(head))
    with in_use(model) as pretrained:
        if isinstance(text, str | Mapping):
            num_new = max_new_tokens or WRITTEN
            prompt = read_prompt(pretrained, text_or_ids(text), max_new_tokens=num_new, truncate=None)
        else:
            prompt = text if isinstance(text, Prompt) else reading_prompt(text, pretrained)
        ends_itself = prompt.origin is not None and prompt.origin.kind.is_transcribed
        most = max_new_tokens or (None if ends_itself else WRITTEN)
        decoding = Decoding(most, temperature, top_p, seed, prefill_chunk)
        return written(
            pretrained,
            prompt,
            decoding,
            layer=layer,
            head=number,
            top_k=top_k,
            whole_rows=maps,
            on_text=on_text,
        )
