"""What a model reads in a survey, a text or a probe, and where the tokens are that the user names."""

from collections.abc import Iterable

import torch

from attncli.errors import UserError, nearest
from attncli.experiments.reading.text_file import TextLine
from attncli.experiments.reading.texts import Texts
from attncli.inputs.models.pretrained import ModelText, Pretrained, Reading
from attncli.inputs.models.probes import repeated_probe
from attncli.inputs.models.words import WordsOfCharacters, words_of_characters
from attncli.memory import refuse_bytes
from attncli.spec.models.heads import HeadsSpec
from attncli.spec.models.survey_text import SurveyTextSpec

BYTES_PER_ROLLED_WEIGHT = 40
BYTES_PER_MERGED_WEIGHT = 8
MAX_LISTED = 12


def read_line(spec: HeadsSpec, line: TextLine, pretrained: Pretrained) -> Reading:
    """One of many texts."""
    return read(spec, Texts(text=line.text), pretrained, torch.Generator())


def read(spec: HeadsSpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    """What the model reads, with a decoder also its encoder; UserError for what does not fit."""
    whole = read_text(spec, texts, pretrained, generator, words=words_of_characters if spec.words else None)
    reading = whole.in_words()
    fewest = min(count for count in reading.counts if count)
    if spec.skip_sink >= fewest:
        raise UserError(f"skip_sink: must be below {fewest}, the number of tokens (got {spec.skip_sink})")
    _check_named_tokens(spec, reading, pretrained)
    if spec.rollout:
        refuse_bytes(spec.experiment, reading.counts[0] ** 2 * BYTES_PER_ROLLED_WEIGHT, "fewer tokens")
    if spec.words:
        refuse_merged(spec, reading, pretrained, "fewer words, or leave words out")
    return whole


def refuse_merged(spec: HeadsSpec, reading: Reading, pretrained: Pretrained, advice: str) -> None:
    """UserError where the weights between words of a layer do not fit into memory."""
    num_heads = getattr(pretrained.model.config.get_text_config(), "num_attention_heads", 1)
    size = num_heads * max(reading.counts) ** 2 * BYTES_PER_MERGED_WEIGHT
    refuse_bytes(spec.experiment, size, advice)


def survey_of(spec: SurveyTextSpec) -> HeadsSpec:
    """The settings of a survey, of what each head looks at, on a text that is read already."""
    probe = {"probe": spec.probe, "num_tokens": spec.num_tokens}
    return HeadsSpec.model_validate(probe if spec.probe else {"sentence": "read already"})


def read_text(
    spec: SurveyTextSpec,
    texts: Texts,
    pretrained: Pretrained,
    generator: torch.Generator,
    *,
    words: WordsOfCharacters | None = None,
) -> Reading:
    """The text, or the probe; with a decoder the text for the encoder, too."""
    if spec.probe:
        probe = repeated_probe(pretrained, int(spec.num_tokens or 0), generator)
        return Reading(probe, probe if pretrained.has_decoder else None)
    assert texts.text is not None
    key = "texts" if spec.texts else "file" if spec.file else "sentence"
    text = pretrained.read(texts.text, key, truncate=spec.truncate, words=words)
    if not pretrained.has_decoder:
        if texts.context is not None:
            raise UserError(f"context: {pretrained.name} has no decoder: it reads one text")
        return Reading(text)
    context = text
    if texts.context is not None:
        context = pretrained.read(texts.context, "context", truncate=spec.truncate, words=words)
    return Reading(pretrained.shifted_right(text), context)


def positions(names: Iterable[str], text: ModelText, pretrained: Pretrained) -> list[int]:
    """Where the tokens are that a user names: by position, by text, or as the vocabulary spells them."""
    return sorted({place for name in names for place in _positions_of(name, text, pretrained)})


def _positions_of(name: str, text: ModelText, pretrained: Pretrained) -> list[int]:
    """A position; else every token of that text; else the pieces of that word, one after the other."""
    if name.isdecimal():
        return [int(name)] if int(name) < len(text.ids) else []
    written = zip(text.tokens, pretrained.written_tokens(text), strict=True)
    alike = [
        i for i, (token, shown) in enumerate(written) if name == token or name.removeprefix("·") == shown
    ]
    return alike or _pieces(name, text, pretrained)


def _pieces(name: str, text: ModelText, pretrained: Pretrained) -> list[int]:
    ids: list[int] = text.ids.tolist()
    found: list[int] = []
    for written in (name, f" {name}"):
        pieces = pretrained.encoded(written, add_special_tokens=False)["input_ids"]
        unknown = pretrained.tokenizer.unk_token_id
        for start in range(len(ids) - len(pieces) + 1) if pieces and unknown not in pieces else ():
            if ids[start : start + len(pieces)] == pieces:
                found += range(start, start + len(pieces))
    return found


def _check_named_tokens(spec: HeadsSpec, reading: Reading, pretrained: Pretrained) -> None:
    """UserError for a token that is in no text, with those that are."""
    texts = [reading.text] if reading.context is None else [reading.text, reading.context]
    for key, names in spec.sought().items():
        for name in names:
            if not any(_positions_of(name, text, pretrained) for text in texts):
                raise UserError(f"{key}: {_missing(name, texts, pretrained)}")


def _missing(name: str, texts: list[ModelText], pretrained: Pretrained) -> str:
    if name.isdecimal():
        most = max(len(text.ids) for text in texts)
        return f"must be below {most}, the number of tokens (got {name})"
    tokens = dict.fromkeys(token for text in texts for token in pretrained.written_tokens(text))
    listed = ", ".join([*tokens][:MAX_LISTED]) + (", ..." if len(tokens) > MAX_LISTED else "")
    return f"no token of the text (got {name:.60}){nearest(name, tokens)}: its tokens are {listed}"
