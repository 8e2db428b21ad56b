"""What is known of architectures: what their parts, arguments, outputs and settings are called.

The one table of it. Nothing goes by the name of an architecture: a new one works where it hands its attention
to transformers' AttentionInterface and calls its parts as another does.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from inspect import signature
from typing import Any, Literal, NamedTuple

import torch
import transformers
from jaxtyping import Float
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForSpeechSeq2Seq,
    PreTrainedConfig,
    PreTrainedModel,
    TokenizersBackend,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D

from attncli.feature import LayerSource
from attncli.index import FEATURES, installed_features

OUTPUT_PROJECTIONS = (
    *("{module}.o_proj", "{module}.out_proj", "{module}.c_proj", "{module}.out_lin", "{module}.Wo"),
    *("{module}.o", "{module}.dense", "{module}.proj", "{module}.wo"),
    "{parent}.output.dense",
)
"""Names of W_O, in an attention module or beside it (BERT); the first that exists counts."""
BLOCK = re.compile(r"(?:[^.\d][^.]*\.)*\d+")
"""The name of a block: `model.layers.5`, whose number is the first in it."""
LAYER_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d{1,9}(?!\d)")
CROSS = re.compile(r"cross|encoder_attn|encdec|encoder_decoder", re.IGNORECASE)
"""In the last parts of the name of a module of cross-attention."""
STACK = re.compile(r"(?:^|\.)\w*?(encoder|decoder)(?:_attentions|\.|$)")
"""In the name of a module, or of the output that holds its weights, of a model with two stacks."""
WEIGHTS = {
    "attentions": (None, "self"),
    "encoder_attentions": ("encoder", "self"),
    "decoder_attentions": ("decoder", "self"),
    "cross_attentions": ("decoder", "cross"),
}
"""Stack and kind of the weights that a model returns, by the names of its outputs."""
ARGUMENTS_WITHOUT_EFFECT = frozenset(
    {
        *("cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "dropout", "input_ids"),
        *("logits_to_keep", "max_length_k", "max_length_q", "output_attentions", "output_hidden_states"),
        *("output_router_logits", "position_embeddings", "position_ids", "return_dict", "sliding_window"),
        "use_cache",
    }
)
"""What a model gives to its attention and no weight depends on: masks and positions are already in it."""
WINDOW = re.compile(r"window|chunk|local_att|radius|block_size")
"""In the name of a setting: how many tokens are seen from one, or belong together."""
POSITIONS = ("position_embeddings", "embed_positions")
"""The last part of the name of a table with a vector for each position."""
ROTATIONS_BY_LENGTH = frozenset({"dynamic", "longrope"})
"""Rotations that depend on how long the text is."""
LOGITS_TO_KEEP = "logits_to_keep"
"""The argument of models that can compute their logits at some places alone."""
UNTRAINED_PARTS = ("pooler",)
"""Parts of base models beside the layers: a checkpoint may lack them, attention ignores them."""
PIXELS = ("pixel_values", "flattened_patches")
"""What models and processors call the numbers of what lies on a grid."""
SOUNDS = ("input_features", "input_values")
"""What models and feature extractors call the numbers of what lies in time."""
GRID = "grid_thw"
"""How many patches there are, of a part that reads them one after another."""
TOWERS = ("text_model", "vision_model")
"""What a model calls its parts of which one reads text and the other does not."""
BLANKS = {"Ġ": "byte-level", "▁": "metaspace"}
"""How a vocabulary writes the blank before a word."""

Predicts = Literal["next", "masked"]
"""Which tokens a head predicts: the one after each, or those behind a mask."""


class LanguageHead(NamedTuple):
    """A head that predicts tokens: transformers' class that loads it, and its classes by kind of model."""

    auto_class: Any
    class_names: Mapping[str, str | tuple[str, ...]]
    predicts: Predicts
    of_two_stacks: bool | None = False
    """Whether it has an encoder and a decoder; None where either may be."""

    def has(self, kind: str, names: set[str]) -> bool:
        """Whether one of these is a class of this kind of model with this head."""
        known = self.class_names[kind]
        return bool(names & ({known} if isinstance(known, str) else {*known}))


LANGUAGE_HEADS = (
    LanguageHead(
        AutoModelForSeq2SeqLM, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, "next", of_two_stacks=True
    ),
    LanguageHead(AutoModelForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING_NAMES, "masked"),
    LanguageHead(AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "next"),
    LanguageHead(
        AutoModelForImageTextToText, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, "next", of_two_stacks=None
    ),
    LanguageHead(
        AutoModelForSpeechSeq2Seq, MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, "next", of_two_stacks=True
    ),
)
"""Models with both heads (BERT) are read as masked language models."""


def class_with_head(config: PreTrainedConfig) -> Any:
    """transformers' class that loads this model with its head; None where its kind has no such class.

    The saved class decides; a model saved without a head may have one that is tied to its embeddings.
    """
    kind, saved = config.model_type, {*(config.architectures or ())}
    heads = [head for head in LANGUAGE_HEADS if head.of_two_stacks in (None, bool(config.is_encoder_decoder))]
    of_kind = [head for head in heads if kind in head.class_names]
    named = [head for head in of_kind if head.has(kind, saved)]
    return next((head.auto_class for head in (*named, *of_kind)), None)


def _names_of_classifiers(config: PreTrainedConfig) -> Mapping[str, Any]:
    """What transformers calls the classes of an encoder with a head of classes, each
    with the auto class that loads it; none for another model.
    """
    kind = config.model_type
    of_texts = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(kind)
    is_encoder = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.is_encoder_decoder
    names = {of_texts: AutoModelForSequenceClassification} if of_texts and is_encoder else {}
    others = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.get(kind, ())
    several = (others,) if isinstance(others, str) else others
    return names | dict.fromkeys(several, AutoModelForImageClassification)


def classifier_class(config: PreTrainedConfig) -> Any:
    """transformers' class that loads an encoder saved with a head of classes; None for any other model."""
    names = _names_of_classifiers(config)
    return next((names[name] for name in config.architectures or () if name in names), None)


def is_classifier(model: PreTrainedModel) -> bool:
    """Whether it is an encoder with a head of classes."""
    return type(model).__name__ in _names_of_classifiers(model.config)


def tokenizer_class(kind: str) -> Any:
    """transformers' tokenizer class for a kind of model whose files do not name one."""
    return getattr(transformers, TOKENIZER_MAPPING_NAMES.get(kind) or "TokenizersBackend", TokenizersBackend)


def class_of(auto_class: Any, config: PreTrainedConfig) -> Any:
    """The class of the model that one of transformers' auto classes makes of a config."""
    by_head: dict[Any, Mapping[str, Sequence[str]]]
    by_head = {head.auto_class: head.class_names for head in LANGUAGE_HEADS}
    by_head[AutoModelForSequenceClassification] = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    by_head[AutoModelForImageClassification] = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    name = by_head.get(auto_class, MODEL_MAPPING_NAMES).get(config.model_type)
    if isinstance(name, str):
        return getattr(transformers, name)
    with torch.device("meta"):  # some kinds have several, and the auto class knows which
        return type(auto_class.from_config(config))


def predicted_tokens(model: PreTrainedModel) -> Predicts | None:
    """What a model predicts, by its class; None without a language-modelling head."""
    name = {type(model).__name__}
    predictions = {
        head.predicts for head in LANGUAGE_HEADS if any(head.has(kind, name) for kind in head.class_names)
    }
    kinds: tuple[Predicts, ...] = ("next", "masked")
    return next((kind for kind in kinds if kind in predictions), None)


@cache
def layer_number(module: str) -> int:
    """The first number in a module's qualified name: 1 in `decoder.block.1.layer.0.SelfAttention`."""
    number = LAYER_NUMBER.search(module)
    return int(number[0]) if number else 0


@cache
def list_of_block(module: str) -> str:
    """The list of blocks that holds a module: `model.layers` for `model.layers.5.mlp`, or an empty text."""
    block = BLOCK.match(module)
    return block[0].rpartition(".")[0] if block else ""


@cache
def layer_kind(module: str) -> str:
    """`cross` where the last parts of a module's qualified name say so, else `self`."""
    return "cross" if CROSS.search(".".join(module.split(".")[-2:])) else "self"


@cache
def layer_stack(module: str) -> str:
    """`encoder` or `decoder`, by the first part of a module's name with that ending, or an empty text.

    Weights of an unknown module have the name of the output that holds them: `encoder_attentions`.
    """
    part = STACK.search(module)
    return part[1] if part else ""


def output_projection(model: nn.Module, module: str, in_dim: int) -> nn.Module | None:
    """The layer that projects the merged heads of an attention module; None where it is not found."""
    parent, _, _ = module.rpartition(".")
    for name in OUTPUT_PROJECTIONS:
        layer = _module_named(model, name.format(module=module, parent=parent))
        if isinstance(layer, nn.Linear | Conv1D) and _matrix(layer).shape[1] == in_dim:
            return layer
    return None


def _module_named(model: nn.Module, name: str) -> nn.Module | None:
    """The module at a path such as layers.3.attn, or None."""
    module: nn.Module | None = model
    for part in name.split("."):
        module = None if module is None else dict(module.named_children()).get(part)
    return module


def _matrix(layer: nn.Module) -> Float[Tensor, "out in"]:
    assert isinstance(layer.weight, Tensor)
    return layer.weight.mT if isinstance(layer, Conv1D) else layer.weight


def matrix_and_bias(layer: nn.Module) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"] | None]:
    """What W_O multiplies by, and adds."""
    assert layer.bias is None or isinstance(layer.bias, Tensor)
    return _matrix(layer), layer.bias


def projection_of_heads(layer: nn.Module, num_heads: int) -> Float[Tensor, "head out value_dim"]:
    """The columns of W_O that belong to each head."""
    matrix = _matrix(layer).detach()
    return matrix.reshape(len(matrix), num_heads, -1).transpose(0, 1)


def arguments_of(model: PreTrainedModel) -> set[str]:
    """The names of a forward's arguments; without any, the name of the model's main input."""
    known = signature(model.forward).parameters
    is_named = any(parameter.kind == parameter.POSITIONAL_OR_KEYWORD for parameter in known.values())
    return {*known} if is_named else {model.main_input_name}


def has_two_stacks(model: PreTrainedModel) -> bool:
    """Whether it has an encoder and a decoder; an encoder of SOUNDS that shares their config has not."""
    known = arguments_of(model)
    is_encoder = bool({*SOUNDS} & known) and not any(name.startswith("decoder_") for name in known)
    return bool(model.config.is_encoder_decoder) and not is_encoder


def takes_alone(model: PreTrainedModel, inputs: Iterable[str]) -> bool:
    """Whether a forward takes one of these inputs, and no words beside it."""
    known = arguments_of(model)
    return not {"input_ids", "decoder_input_ids"} & known and bool({*inputs} & known)


def decoder_name(model: PreTrainedModel) -> str | None:
    """The name of the part that reads words beside one that reads other inputs; None where no part does."""
    untyped: Any = model  # transformers leaves the method without types
    decoder = untyped.get_decoder() if hasattr(model, "get_decoder") else None
    if not isinstance(decoder, nn.Module):
        return None
    if {PIXELS[0], *SOUNDS} & signature(decoder.forward).parameters.keys():
        return None
    return next((name for name, module in model.named_modules() if name and module is decoder), None)


ATTENTION_CLASS = re.compile(r"attn|attention", re.IGNORECASE)
"""In the name of the class of a module that computes attention."""
RECURRENT = re.compile(r"^Rwkv")
"""Classes that call recurrence attention: there are no weights of queries on keys."""


def has_attention(model: PreTrainedModel) -> bool:
    """Whether any part computes attention, by what its class is called, or the config counts heads of it."""
    if getattr(model.config, "num_attention_heads", None):
        return True
    classes = {type(module).__name__ for module in model.modules()}
    return any(ATTENTION_CLASS.search(name) and not RECURRENT.match(name) for name in classes)


MIXERS = {
    r"(Mamba2?|Bamba|FalconH1)(Mixer|Layer)$": "Mamba",
    r"GatedDeltaNet$": "gated delta net",
    r"(Delta|TextLinear)Attention$": "Kimi delta attention",
    r"LightningAttention$": "lightning attention",
    r"ShortConv(olution)?$|SeparableConv1D$": "short convolution",
    r"RecurrentBlock$": "gated recurrence",
}
"""What mixes tokens without a softmax, by the name of its class."""
MixedLayers = Mapping[tuple[str, bool], Sequence[int]]
"""Layers by what mixes their tokens without a softmax, and whether they have attention beside it."""


@cache
def mixer_named(kind: str) -> str | None:
    """What a module of this class mixes tokens by without a softmax; None for any other."""
    return next((name for pattern, name in _mixers().items() if re.search(pattern, kind)), None)


@cache
def _mixers() -> Mapping[str, str]:
    """MIXERS, and behind them those whose classes are named by sources of layers."""
    added = (item for source in _layer_sources() for item in source.mixers.items())
    return MIXERS | {pattern: name for name, pattern in added if pattern and pattern not in MIXERS}


@cache
def _layer_sources() -> tuple[LayerSource, ...]:
    """The sources of all cards, in their order."""
    return tuple(
        source for feature in installed_features().values() for source in feature.layer_sources.values()
    )


@cache
def source_of(mixer: str) -> LayerSource | None:
    """The first source that makes layers of modules with this mixer; None if there is none."""
    return next((source for source in _layer_sources() if mixer in source.mixers), None)


def sources_switched_off(mixers: Iterable[str]) -> str:
    """` (the feature linear is switched off)`: the built-in ones that make layers of these; or empty."""
    features = {
        name
        for name, feature in FEATURES.items()
        for source in feature.layer_sources.values()
        if name not in installed_features() and not source.mixers.keys().isdisjoint(mixers)
    }
    return f" (the feature {', '.join(sorted(features))} is switched off)" if features else ""


def layers_without_softmax(
    model: nn.Module, shown: Collection[str] = ()
) -> tuple[MixedLayers, Sequence[int]]:
    """The layers whose tokens are mixed without a softmax, and those beside them whose tokens are not mixed.

    By the classes of the modules in each block, so that no weight is read; both empty in a model whose
    layers are attention. Mixers that are `shown`, by the names of their modules, are left out.
    """
    if not any(mixer_named(kind.__name__) for kind in {*map(type, model.modules())}):
        return {}, []
    mixers: dict[str, dict[str, None]] = {}  # of each block
    attending: set[str] = set()
    mixing = ""
    for name, module in model.named_modules(remove_duplicate=False):
        kind, block = type(module).__name__, BLOCK.match(name)
        if block is None or (mixing and name.startswith(mixing)):
            continue
        if mixer := mixer_named(kind):
            names = mixers.setdefault(block[0], {})
            if name not in shown:
                names[mixer] = None
            mixing = f"{name}."
        elif ATTENTION_CLASS.search(kind) and "." in name[len(block[0]) :]:
            attending.add(block[0])
    mixed: dict[tuple[str, bool], list[int]] = {}
    for block_name, names in mixers.items():
        for mixer in names:
            mixed.setdefault((mixer, block_name in attending), []).append(layer_number(block_name))
    lists = {list_of_block(block_name) for block_name in mixers}
    blocks = [
        name
        for name, _ in model.named_modules(remove_duplicate=False)
        if list_of_block(name) in lists and BLOCK.fullmatch(name)
    ]
    idle = [layer_number(name) for name in blocks if name not in mixers and name not in attending]
    return mixed, idle


def unshown_layers(model: nn.Module, shown: Collection[str] = ()) -> str:
    """A sentence that names the layers whose tokens are mixed without a softmax; empty without any.

    Without those whose modules are `shown`.
    """
    mixed, idle = layers_without_softmax(model, shown)
    if not mixed:
        return f"No tokens are mixed in {named_layers(idle)}." if idle else ""
    parts = [
        f"{mixer}{' beside attention' if beside else ''} in {named_layers(layers)}"
        for (mixer, beside), layers in mixed.items()
    ]
    off = sources_switched_off(mixer for mixer, _ in mixed)
    rest = f" No tokens are mixed in {named_layers(idle)}." if idle else ""
    return f"Not shown, as it has no softmax: {'; '.join(parts)}{off}.{rest}"


def named_layers(layers: Sequence[int]) -> str:
    """`layer 3`, or `layers 0-2, 4-6`."""
    runs: list[list[int]] = []
    for layer in sorted({*layers}):
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    names = (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"layer{'s' if len({*layers}) > 1 else ''} {', '.join(names)}"


def decoder_start(*configs: object) -> int | None:
    """The token that a decoder reads first: the first setting that gives one.

    Often only one of a model's config and its generation config (generation_config.json) does.
    """
    starts = (getattr(config, "decoder_start_token_id", None) for config in configs)
    return next((start for start in starts if start is not None), None)
