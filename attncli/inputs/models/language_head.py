"""A model with the head that predicts tokens, where its checkpoint has one."""

from typing import Any, Literal

from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

Predicts = Literal["next", "masked"]
"""Which tokens a head predicts: the one after each, or those behind a mask."""

NEXT = AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
MASKED = AutoModelForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING_NAMES
SEQUENCES = AutoModelForSeq2SeqLM, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES


def class_with_head(config: PreTrainedConfig) -> Any:
    """transformers' class that loads this model with its head; None where there is none for its kind.

    By the class that was saved; a model without a head may have one that is tied to its embeddings, and where
    a kind has two (BERT), that is the masked one.
    """
    tables = (SEQUENCES,) if config.is_encoder_decoder else (MASKED, NEXT)
    own = [table for table in tables if config.model_type in table[1]]
    saved = {*(config.architectures or ())}
    named = [table for table in own if saved & _classes(table[1][config.model_type])]
    return next((table[0] for table in (*named, *own)), None)


def _classes(names: str | tuple[str, ...]) -> set[str]:
    return {names} if isinstance(names, str) else {*names}


def predicted_tokens(model: PreTrainedModel) -> Predicts | None:
    """What a model predicts, by its class; None for one without such a head."""
    kinds: tuple[tuple[Any, Predicts], ...] = ((SEQUENCES, "next"), (NEXT, "next"), (MASKED, "masked"))
    name = type(model).__name__
    return next(
        (kind for (_, names), kind in kinds if any(name in _classes(each) for each in names.values())), None
    )
