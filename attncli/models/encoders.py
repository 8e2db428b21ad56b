"""An encoder's outputs for a text: the text's class, its masked word, or its similarity to another text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from attncli.errors import UserError, nearest
from attncli.models.answers import one_token_each
from attncli.models.architectures import forward_arguments
from attncli.models.capture import model_errors, with_eager_attention
from attncli.models.folder import read_json
from attncli.models.pretrained import Pretrained
from attncli.models.source_texts import SourcedReading, SourcedText, encoded_pair, read_sourced

EncoderSays = Literal["class", "word", "similarity"]
PoolingMode = Literal["cls", "mean", "lasttoken", "pooled"]
POOLING_MODES: tuple[PoolingMode, ...] = ("cls", "mean", "lasttoken")
MODULES, SENTENCE_SETTINGS = "modules.json", "sentence_bert_config.json"
SENTENCE_PROMPTS = "config_sentence_transformers.json"
SUPPORTED_MODULES = ("Transformer", "Pooling", "Normalize")
OLD_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


def is_encoder(pretrained: Pretrained) -> bool:
    """Return True if a model reads but does not generate text: no decoder and no head for the next token."""
    return not pretrained.has_decoder and pretrained.predicts != "next"


class Pooling(NamedTuple):
    """The way to pool token vectors into one vector of the text; `pooled` is the model's own pooling.

    `is_known` is True if the folder specifies the pooling (sentence-transformers). At most `most` tokens are
    read, or any number if `most` is None.
    """

    mode: PoolingMode
    is_known: bool = True
    most: int | None = None

    def of(self, vectors: Float[Tensor, "text token embed"]) -> Float[Tensor, "text embed"]:
        """Pool the token vectors of texts without padding."""
        if self.mode == "mean":
            return vectors.mean(dim=1)
        return vectors[:, 0 if self.mode == "cls" else -1]

    def text_vectors(self, outputs: ModelOutput) -> Float[Tensor, "text embed"]:
        """Return the text vectors from a model's outputs."""
        if self.mode == "pooled":
            pooled: Tensor = outputs["pooler_output"]
            return pooled
        return self.of(outputs["last_hidden_state"])


MEAN = Pooling("mean", is_known=False)
"""The default pooling, used if no file specifies another."""


def text_pooling(pretrained: Pretrained) -> Pooling:
    """Return the pooling that a sentence encoder's folder specifies, or by default the mean over the tokens.

    Raises UserError for unsupported modules or modes.
    """
    folder = _sentence_folder(pretrained)
    if folder is None:
        return MEAN
    parts = [part for part in read_json(folder / MODULES) if isinstance(part, dict)]
    for part in parts:
        kind = str(part.get("type")).rpartition(".")[2]
        if kind not in SUPPORTED_MODULES:
            supported = ", ".join(SUPPORTED_MODULES)
            needs = f"its sentence vectors need the unsupported module {kind} (supported: {supported})"
            raise UserError(f"model: {pretrained.name}: {needs}")
    places = [part.get("path", "") for part in parts if str(part.get("type")).endswith("Pooling")]
    settings: dict[str, Any] = read_json(folder / str(places[0]) / "config.json") if places else {}
    modes = [name.removeprefix("pooling_mode_") for name, value in settings.items() if value is True]
    modes = [OLD_MODES.get(f"pooling_mode_{mode}", mode) for mode in modes if mode != "include_prompt"]
    if "pooling_mode" in settings:
        modes = [str(settings["pooling_mode"])]
    mode = next((supported_mode for supported_mode in POOLING_MODES if modes == [supported_mode]), None)
    if mode is None:
        got = " and ".join(modes) or "none"
        must = ", ".join(POOLING_MODES)
        raise UserError(f"model: {pretrained.name}: its pooling must be one of {must} (got {got})")
    limits = folder / SENTENCE_SETTINGS
    most = read_json(limits).get("max_seq_length") if limits.is_file() else None
    return Pooling(mode, most=most if isinstance(most, int) else None)


def _sentence_folder(pretrained: Pretrained) -> Path | None:
    """Return the folder of a sentence encoder, or None if the model did not come from one."""
    for name in (pretrained.source, getattr(pretrained.model, "name_or_path", None)):
        if isinstance(name, str) and name and (Path(name) / MODULES).is_file():
            return Path(name)
    return None


def _prompt_notes(pretrained: Pretrained) -> Iterator[str]:
    """Return a note if a folder has prompts for questions or texts, since attn does not prepend them."""
    folder = _sentence_folder(pretrained)
    if folder is None or not (folder / SENTENCE_PROMPTS).is_file():
        return
    prompts = read_json(folder / SENTENCE_PROMPTS).get("prompts") or {}
    if names := [name for name, prompt in prompts.items() if prompt]:
        yield f"Prompts of {pretrained.name} ({', '.join(names)}) are not prepended to the texts."


def says(pretrained: Pretrained) -> EncoderSays:
    """Return the kind of output of an encoder's head, or `similarity` for a sentence encoder."""
    if pretrained.classifier is not None:
        return "class"
    return (
        "word" if pretrained.predicts == "masked" and _sentence_folder(pretrained) is None else "similarity"
    )


def read_for_encoder(
    pretrained: Pretrained, sourced: SourcedText, question: str | None, *, key: str = "sources"
) -> SourcedReading:
    """Read a text for an encoder, with the question as the first text of a pair, alone, or below the text.

    In a text with a masked word, the part that contains the mask is not a source. Raises UserError, with
    `key` in the message, as `read_sourced` does, and unless the text has exactly one mask.
    """
    pretrained.check_reads_text()
    if says(pretrained) == "word":
        sourced = _around_mask(pretrained, sourced, question, key)
    elif question is not None:
        sourced = sourced.with_question_apart(question)
    most = text_pooling(pretrained).most if says(pretrained) == "similarity" else None
    reading = read_sourced(pretrained, sourced, key=key)
    if most is not None and len(reading.text.ids) > most:
        raise UserError(
            f"{key}: must be at most {most} tokens for {pretrained.name}, which cuts longer texts"
        )
    return reading


def _around_mask(pretrained: Pretrained, sourced: SourcedText, question: str | None, key: str) -> SourcedText:
    mask = pretrained.tokenizer.mask_token
    if mask is None:
        raise UserError(
            f"model: the tokenizer of {pretrained.name} has no mask token, so no word can be masked"
        )
    text = sourced.text if question is None else question
    if text.count(mask) != 1:
        got = text.count(mask)
        raise UserError(f"{key}: must contain exactly one {mask} in place of the word to explain (got {got})")
    if question is not None:
        return sourced
    sources = [
        source
        for source in sourced.sources
        if not any(mask in sourced.text[start:end] for start, end in source.spans)
    ]
    return replace(sourced, sources=tuple(sources))


def class_names(model: PreTrainedModel) -> list[str]:
    """Return the names of the classes, ordered by number."""
    names = {int(number): str(name) for number, name in (model.config.id2label or {}).items()}
    return [names[number] for number in sorted(names)]


@dataclass(frozen=True)
class EncoderOutput:
    """A model's output to explain.

    `name` is the class or the word, and is empty for a similarity. `place` is the position of the mask,
    `index` is the number of the class or the token, and `toward` is the direction of the other text.
    """

    kind: EncoderSays
    model: PreTrainedModel
    name: str = ""
    index: int = 0
    place: int = 0
    pooling: Pooling = MEAN
    toward: Float[Tensor, " embed"] | None = None
    compares_itself: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_probability(self) -> bool:
        """True if `measured` returns log-probabilities."""
        return self.kind == "word" or (self.kind == "class" and len(class_names(self.model)) > 1)

    def logit(self, outputs: ModelOutput, *, keeps_lengths: bool = False) -> Float[Tensor, " text"]:
        """Return the logit of the class or word, or the cosine; `keeps_lengths` fixes the vector's length.

        For a text compared with itself, the length is always fixed, since a cosine of 1 has no gradient.
        """
        if self.toward is None:
            logits: Tensor = outputs["logits"]
            return logits[:, self.index] if self.kind == "class" else logits[:, self.place, self.index]
        vectors = self.pooling.text_vectors(outputs)
        length: Tensor = vectors.norm(dim=-1)
        cosines: Tensor = vectors @ self.toward
        return cosines / (length.detach() if keeps_lengths or self.compares_itself else length)

    def measured(self, outputs: ModelOutput) -> Float[Tensor, " text"]:
        """Return the score that is compared when sources are removed: a log-probability, logit or cosine."""
        if not self.is_probability:
            return self.logit(outputs).detach().double()
        logits: Tensor = outputs["logits"].detach().double()
        if self.kind == "word":
            logits = logits[:, self.place]
        elif self.model.config.problem_type == "multi_label_classification":
            return functional.logsigmoid(logits[:, self.index])
        return logits.log_softmax(dim=-1)[:, self.index]


def run_encoder(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> ModelOutput:
    """Return the outputs of a model for texts.

    Raises UserError if the model fails, and MemoryError if memory runs out.
    """
    with model_errors(model.config.model_type), with_eager_attention(model), torch.no_grad():
        outputs: ModelOutput = model(**inputs)
    return outputs


def encoder_inputs(
    pretrained: Pretrained, ids: Int[Tensor, "text token"], types: Int[Tensor, "text token"] | None = None
) -> dict[str, Tensor]:
    """Return the forward arguments for texts of one length, without padding."""
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if types is not None:
        inputs["token_type_ids"] = types
    return {name: tensor.to(pretrained.device) for name, tensor in inputs.items()}


def token_types(pretrained: Pretrained, sourced: SourcedText) -> list[int] | None:
    """Return the number of each token's text in a pair, or None without a pair or without token types."""
    if pretrained.classifier is None or sourced.apart is None:
        return None
    if "token_type_ids" not in forward_arguments(pretrained.model):
        return None
    return encoded_pair(pretrained, sourced).types


def output_to_explain(pretrained: Pretrained, reading: SourcedReading, answer: str | None) -> EncoderOutput:
    """Return the output to explain: a class, a word (by default, the most likely one), or the similarity.

    Raises UserError for a class or a word that does not exist.
    """
    kind = says(pretrained)
    if kind == "class":
        types = token_types(pretrained, reading.sourced)
        token_type_ids = None if types is None else torch.tensor([types])
        inputs = encoder_inputs(pretrained, reading.text.ids.unsqueeze(0), token_type_ids)
        assert pretrained.classifier is not None
        return class_to_explain(pretrained.classifier, inputs, answer)
    if kind == "word":
        return _word_to_explain(pretrained, reading, answer)
    if answer is not None:
        raise UserError(f"answer: {pretrained.name} predicts neither classes nor masked words: omit `answer`")
    pooling, model = text_pooling(pretrained), pretrained.model
    second_text = reading.sourced.apart
    ids = reading.text.ids
    if second_text is not None:
        options = {"padding": False, "truncation": False, "split_special_tokens": True}
        ids = torch.tensor(pretrained.encoded(second_text, **options)["input_ids"])
    outputs = run_encoder(model, encoder_inputs(pretrained, ids.unsqueeze(0)))
    if "last_hidden_state" not in outputs:
        raise UserError(f"model: {pretrained.name} returns no token vectors (last_hidden_state)")
    (vector,) = pooling.of(outputs["last_hidden_state"])
    notes = (*_prompt_notes(pretrained),)
    if not pooling.is_known:
        notes = ("The pooling of tokens into one vector is not specified: their mean is used.",)
    return EncoderOutput(
        kind,
        model,
        pooling=pooling,
        toward=vector / vector.norm(),
        compares_itself=second_text is None,
        notes=notes,
    )


MOST_LISTED = 12
"""The most classes that an error lists."""


def class_to_explain(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], answer: str | None
) -> EncoderOutput:
    """Return the class that a head predicts, or the class with the given name or number.

    Raises UserError for a class that does not exist.
    """
    names = class_names(model)
    if answer is None:
        index = int(run_encoder(model, inputs)["logits"][0].argmax())
        return EncoderOutput("class", model, names[index], index)
    wanted = answer.strip().lower()
    whole = {name.lower(): number for number, name in enumerate(names)}
    parts = {part.strip(): number for name, number in reversed(whole.items()) for part in name.split(",")}
    numbers = {str(number): number for number in range(len(names))} | parts | whole
    if wanted not in numbers:
        some = ", ".join(names[:MOST_LISTED])
        choices = (
            f"one of {some}"
            if len(names) <= MOST_LISTED
            else f"one of {len(names)} classes, such as {names[0]}"
        )
        raise UserError(f"answer: must be {choices} (got {answer.strip()}){nearest(wanted, parts)}")
    return EncoderOutput("class", model, names[numbers[wanted]], numbers[wanted])


def _word_to_explain(pretrained: Pretrained, reading: SourcedReading, answer: str | None) -> EncoderOutput:
    ids = reading.text.ids
    places = (ids == pretrained.tokenizer.mask_token_id).nonzero().flatten()
    if len(places) != 1:
        mask = pretrained.tokenizer.mask_token
        raise UserError(
            f"sources: must contain exactly one {mask} in place of the word to explain (got {len(places)})"
        )
    place, notes = int(places), tuple[str, ...]()
    outputs = run_encoder(pretrained.whole, encoder_inputs(pretrained, ids.unsqueeze(0)))
    log_probabilities = outputs["logits"][0, place].double().log_softmax(dim=-1).cpu()
    if answer is None:
        index = int(log_probabilities.argmax())
    else:
        target = one_token_each(pretrained, {"answer": answer}, None, lambda: log_probabilities)
        (index,), notes = target.ids, target.notes
    name = pretrained.text_of([index]).strip() or pretrained.labels([index])[0]
    return EncoderOutput("word", pretrained.whole, name, index, place, notes=notes)
