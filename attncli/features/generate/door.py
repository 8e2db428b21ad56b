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

DEFAULT_NEW_TOKENS = 20
"""The default number of tokens that a model writes after a text."""


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
    """Continue a text with the model, and record each head's `top_k` strongest keys for each new token.

    `text` may also be token ids, or the reading of a file that the model transcribes, such as a result of
    `read_sound`. The default of `max_new_tokens` is 20; for such a file, the limit is in the model's
    generation_config.json. The model takes the most likely token, or samples at a `temperature` from the
    smallest set of tokens whose probabilities add up to `top_p`.

    The result covers all heads, the heads of one `layer`, or one `head`, such as 17:3. With `maps`, it also
    contains whole rows of weights, either for each head or as the mean over the heads. `on_text` receives the
    text as the model writes it; Ctrl-C then ends the writing. Raises UserError for a model that cannot write,
    and MemoryError if memory runs out.
    """
    from attncli.features.generate.writing import written

    number = None
    if head is not None:
        _, layer, number = named_head(head_name_without_stack(head))
    with in_use(model) as pretrained:
        if isinstance(text, str | Mapping):
            num_new = max_new_tokens or DEFAULT_NEW_TOKENS
            prompt = read_prompt(pretrained, text_or_ids(text), max_new_tokens=num_new, truncate=None)
        else:
            prompt = text if isinstance(text, Prompt) else reading_prompt(text, pretrained)
        is_transcribed = prompt.origin is not None and prompt.origin.kind.is_transcribed
        most = max_new_tokens or (None if is_transcribed else DEFAULT_NEW_TOKENS)
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
