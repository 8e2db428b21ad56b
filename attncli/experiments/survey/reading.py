"""What a model reads in a survey: a text, or a probe; of an encoder and a decoder both sides."""

import torch

from attncli.errors import UserError
from attncli.experiments.reading.text_file import TextLine
from attncli.experiments.reading.texts import Texts
from attncli.experiments.survey.named_places import check_places
from attncli.inputs.models.pretrained import Pretrained, Reading
from attncli.inputs.models.probes import repeated_probe
from attncli.inputs.models.words import WordsOfCharacters, words_of_characters
from attncli.memory import refuse_bytes
from attncli.spec.models.heads import HeadsSpec
from attncli.spec.models.survey_text import SurveyTextSpec

BYTES_PER_ROLLED_WEIGHT = 40
BYTES_PER_MERGED_WEIGHT = 8


def read_line(spec: HeadsSpec, line: TextLine, pretrained: Pretrained) -> Reading:
    """One of many texts."""
    return read(spec, Texts(text=line.text), pretrained, torch.Generator())


def read(spec: HeadsSpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    """What the model reads, and its encoder where there is a decoder; UserError for what does not fit."""
    whole = read_text(spec, texts, pretrained, generator, words=words_of_characters if spec.words else None)
    reading = whole.in_words()
    fewest = min(count for count in reading.counts if count)
    if spec.skip_sink >= fewest:
        raise UserError(f"skip_sink: must be below {fewest}, the number of tokens (got {spec.skip_sink})")
    check_places(spec, reading, pretrained)
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
    """The settings of a survey of a text that is read already, which finds what each head looks at."""
    if spec.probe:
        return HeadsSpec.model_validate({"probe": spec.probe, "num_tokens": spec.num_tokens})
    return HeadsSpec.model_validate({"sentence": "read already"})


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
