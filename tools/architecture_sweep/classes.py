"""The architectures that transformers' auto classes list."""

import transformers
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES


def model_class(model_type: str) -> str | None:
    """The class that AutoModel makes of a model type; None where its main input is not tokens."""
    names = MODEL_MAPPING_NAMES.get(model_type, ())
    for name in names if isinstance(names, tuple | list) else (names,):
        try:
            if getattr(transformers, name).main_input_name == "input_ids":
                return str(name)
        except (AttributeError, ImportError, TypeError):  # its class is not there, or needs another package
            continue
    return None


def architectures() -> dict[str, str]:
    """Every model type that reads tokens, and its class. Imports all of transformers: ten seconds."""
    classes = {model_type: model_class(model_type) for model_type in sorted(MODEL_MAPPING_NAMES)}
    return {model_type: name for model_type, name in classes.items() if name is not None}
