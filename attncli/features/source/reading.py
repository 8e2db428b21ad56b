"""Read the sources of a text, of documents or of a chat from the settings of `attn source`."""

from pathlib import Path
from typing import TYPE_CHECKING

from attncli.errors import UserError
from attncli.settings.text import Texts

if TYPE_CHECKING:
    from attncli.features.source.settings import SourcedTextSpec
    from attncli.models.pretrained import Pretrained
    from attncli.models.source_texts import SourcedReading, SourcedText


def check_sources(spec: "SourcedTextSpec", texts: Texts) -> None:
    """Raise UserError for a chat or text without sources, before opening a model."""
    from attncli.models.source_texts import chat_messages

    if (chat := _chat(spec, texts)) is not None:
        chat_messages(chat, spec.sources_key)
    else:
        sourced_text(spec, texts)


def read_for_decoder(spec: "SourcedTextSpec", texts: Texts, pretrained: "Pretrained") -> "SourcedReading":
    """Read the prompt for the model. Raises UserError if the prompt does not fit."""
    from attncli.models.source_texts import read_sourced

    num_new = 0 if spec.answer or pretrained.has_decoder else spec.max_new_tokens - 1
    return read_sourced(
        pretrained, _in_prompt(spec, texts, pretrained), num_new=num_new, key=spec.sources_key
    )


def _in_prompt(spec: "SourcedTextSpec", texts: Texts, pretrained: "Pretrained") -> "SourcedText":
    """Put the sources in their prompt: documents, marked parts, turns of a chat, or parts of a text."""
    from attncli.models.source_texts import chat_text

    if (chat := _chat(spec, texts)) is not None:
        return chat_text(chat, pretrained, key=spec.sources_key)
    sourced = sourced_text(spec, texts)
    return sourced.in_template(pretrained) if spec.chat else sourced


def _chat(spec: "SourcedTextSpec", texts: Texts) -> str | None:
    """The text, if it is a chat in JSON. Raises UserError if there is also a question."""
    from attncli.models.source_texts import is_chat

    if not spec.chat or spec.document or texts.context is None or not is_chat(texts.context):
        return None
    if texts.text is not None:
        raise UserError("sentence: cannot be combined with a JSON chat, whose last message is the question")
    return texts.context


def sourced_text(spec: "SourcedTextSpec", texts: Texts, *, is_continued: bool = True) -> "SourcedText":
    """The sources in documents, or the marked or other parts of a text; this needs no model.

    If the model continues a text (`is_continued`), the text may end in a question instead of having a
    separate question.
    """
    from attncli.models.source_texts import marked_text, with_documents

    question, context, key = texts.text, texts.context, spec.sources_key
    if spec.document:
        assert question is not None
        documents = [(Path(file).name, text) for file, text in texts.named_texts[: len(spec.document)]]
        return with_documents(documents, question, None if spec.split == "document" else spec.split)
    if context is None:
        context, question = question, None
        assert context is not None
    return marked_text(context, question=question, key=key) or spec.split_text(
        context, question, is_continued=is_continued
    )
