"""Names of parts, arguments, outputs and settings in the supported architectures.

These are the only tables of such names. No table is keyed by architecture: a new architecture works if it
passes its attention to transformers' AttentionInterface and uses the same part names as a known one.
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
"""Names of W_O, either inside an attention module or beside it (BERT); the first name that exists is used."""
BLOCK = re.compile(r"(?:[^.\d][^.]*\.)*\d+")
"""Matches the name of a block, which ends at its first number: `model.layers.5`."""
LAYER_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d{1,9}(?!\d)")
CROSS = re.compile(r"cross|encoder_attn|encdec|encoder_decoder", re.IGNORECASE)
"""Matches the last parts of a cross-attention module's name."""
STACK = re.compile(r"(?:^|\.)\w*?(encoder|decoder)(?:_attentions|\.|$)")
"""Matches the names of modules, and of outputs that hold weights, in a model with two stacks."""
WEIGHTS = {
    "attentions": (None, "self"),
    "encoder_attentions": ("encoder", "self"),
    "decoder_attentions": ("decoder", "self"),
    "cross_attentions": ("decoder", "cross"),
}
"""The stack and the kind of the weights in each output of a model, by output name."""
ARGUMENTS_WITHOUT_EFFECT = frozenset(
    {
        *("cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "dropout", "input_ids"),
        *("logits_to_keep", "max_length_k", "max_length_q", "output_attentions", "output_hidden_states"),
        *("output_router_logits", "position_embeddings", "position_ids", "return_dict", "sliding_window"),
        "use_cache",
    }
)
"""Attention arguments that do not affect the weights: masks and positions already include them."""
WINDOW = re.compile(r"window|chunk|local_att|radius|block_size")
"""Matches settings for the number of tokens that a token sees or that form a group."""
POSITIONS = ("position_embeddings", "embed_positions")
"""Suffixes of the names of tables with one vector per position."""
ROTATIONS_BY_LENGTH = frozenset({"dynamic", "longrope"})
"""Rotations that depend on the text length."""
LOGITS_TO_KEEP = "logits_to_keep"
"""The argument of models that can compute logits at selected positions only."""
UNTRAINED_PARTS = ("pooler",)
"""Parts of base models outside the layers: a checkpoint may lack them, and attention does not use them."""
PIXELS = ("pixel_values", "flattened_patches")
"""The names of inputs that hold the values of a grid, in models and processors."""
SOUNDS = ("input_features", "input_values")
"""The names of inputs that hold the samples or features of a sound, in models and feature extractors."""
GRID = "grid_thw"
"""The argument for the number of patches, in a part that reads the patches one after another."""
TOWERS = ("text_model", "vision_model")
"""In a model with two parts, the name of the part that reads text, and the name of the other part."""
BLANKS = {"Ġ": "byte-level", "▁": "metaspace"}
"""The name of each way to spell the space before a word, by the mark that a vocabulary uses for the space."""

Predicts = Literal["next", "masked"]
"""The tokens that a head predicts: the next token after each token, or the masked tokens."""


class LanguageHead(NamedTuple):
    """A head that predicts tokens: the transformers class that loads it, and its classes by kind of model."""

    auto_class: Any
    class_names: Mapping[str, str | tuple[str, ...]]
    predicts: Predicts
    two_stacks: bool | None = False
    """True for models with an encoder and a decoder, False for other models, None for both."""

    def has(self, kind: str, names: set[str]) -> bool:
        """Return True if any of these class names has this head for this kind of model."""
        classes = self.class_names[kind]
        return bool(names & ({classes} if isinstance(classes, str) else {*classes}))


LANGUAGE_HEADS = (
    LanguageHead(
        AutoModelForSeq2SeqLM, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, "next", two_stacks=True
    ),
    LanguageHead(AutoModelForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING_NAMES, "masked"),
    LanguageHead(AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "next"),
    LanguageHead(
        AutoModelForImageTextToText, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, "next", two_stacks=None
    ),
    LanguageHead(
        AutoModelForSpeechSeq2Seq, MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, "next", two_stacks=True
    ),
)
"""Models with both heads (BERT) are read as masked language models."""


def class_with_head(config: PreTrainedConfig) -> Any:
    """Return the transformers class that loads this model with its head, or None if there is none.

    The class saved in the config decides; a model saved without a head may have a head that is tied to its
    embeddings.
    """
    kind, saved = config.model_type, {*(config.architectures or ())}
    heads = [head for head in LANGUAGE_HEADS if head.two_stacks in (None, bool(config.is_encoder_decoder))]
    candidates = [head for head in heads if kind in head.class_names]
    exact = [head for head in candidates if head.has(kind, saved)]
    return next((head.auto_class for head in (*exact, *candidates)), None)


def _classifier_names(config: PreTrainedConfig) -> Mapping[str, Any]:
    """Return the names of the transformers classes for an encoder with a classification head.

    Each name comes with the auto class that loads it. The result is empty for any other model.
    """
    kind = config.model_type
    text_classifier = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(kind)
    is_encoder = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.is_encoder_decoder
    names = {text_classifier: AutoModelForSequenceClassification} if text_classifier and is_encoder else {}
    image_classifiers = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.get(kind, ())
    several = (image_classifiers,) if isinstance(image_classifiers, str) else image_classifiers
    return names | dict.fromkeys(several, AutoModelForImageClassification)


def classifier_class(config: PreTrainedConfig) -> Any:
    """Return the transformers class for an encoder with a classification head, or None for other models."""
    names = _classifier_names(config)
    return next((names[name] for name in config.architectures or () if name in names), None)


def is_classifier(model: PreTrainedModel) -> bool:
    """Return True for an encoder with a classification head."""
    return type(model).__name__ in _classifier_names(model.config)


def tokenizer_class(kind: str) -> Any:
    """Return the transformers tokenizer class for a kind of model if its files name no tokenizer class."""
    return getattr(transformers, TOKENIZER_MAPPING_NAMES.get(kind) or "TokenizersBackend", TokenizersBackend)


def auto_model_class(auto_class: Any, config: PreTrainedConfig) -> Any:
    """Return the model class that a transformers auto class chooses for a config."""
    by_head: dict[Any, Mapping[str, Sequence[str]]]
    by_head = {head.auto_class: head.class_names for head in LANGUAGE_HEADS}
    by_head[AutoModelForSequenceClassification] = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    by_head[AutoModelForImageClassification] = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    name = by_head.get(auto_class, MODEL_MAPPING_NAMES).get(config.model_type)
    if isinstance(name, str):
        return getattr(transformers, name)
    with torch.device("meta"):  # some kinds have several classes, and only the auto class can choose
        return type(auto_class.from_config(config))


def predicted_tokens(model: PreTrainedModel) -> Predicts | None:
    """Return the kind of tokens that a model's head predicts, or None if its class has no such head."""
    name = {type(model).__name__}
    predictions = {
        head.predicts for head in LANGUAGE_HEADS if any(head.has(kind, name) for kind in head.class_names)
    }
    kinds: tuple[Predicts, ...] = ("next", "masked")
    return next((kind for kind in kinds if kind in predictions), None)


@cache
def layer_number(module: str) -> int:
    """Return the first number in a module's qualified name: 1 in `decoder.block.1.layer.0.SelfAttention`."""
    number = LAYER_NUMBER.search(module)
    return int(number[0]) if number else 0


@cache
def block_list(module: str) -> str:
    """Return the name of a module's block list (`model.layers` for `model.layers.5.mlp`), or ""."""
    block = BLOCK.match(module)
    return block[0].rpartition(".")[0] if block else ""


@cache
def layer_kind(module: str) -> str:
    """Return `cross` if a module's qualified name ends like that of cross-attention, or else `self`."""
    return "cross" if CROSS.search(".".join(module.split(".")[-2:])) else "self"


@cache
def layer_stack(module: str) -> str:
    """Return `encoder` or `decoder` if the first part of a module's name ends in that word, or else "".

    Weights of an unknown module are named after the output that contains them: `encoder_attentions`.
    """
    part = STACK.search(module)
    return part[1] if part else ""


def output_projection(model: nn.Module, module: str, in_dim: int) -> nn.Module | None:
    """Return the layer that projects the merged heads of an attention module, or None if there is none."""
    parent, _, _ = module.rpartition(".")
    for name in OUTPUT_PROJECTIONS:
        layer = _find_module(model, name.format(module=module, parent=parent))
        if isinstance(layer, nn.Linear | Conv1D) and _matrix(layer).shape[1] == in_dim:
            return layer
    return None


def _find_module(model: nn.Module, name: str) -> nn.Module | None:
    """Return the module at a path such as layers.3.attn, or None if there is none."""
    module: nn.Module | None = model
    for part in name.split("."):
        module = None if module is None else dict(module.named_children()).get(part)
    return module


def _matrix(layer: nn.Module) -> Float[Tensor, "out in"]:
    assert isinstance(layer.weight, Tensor)
    return layer.weight.mT if isinstance(layer, Conv1D) else layer.weight


def matrix_and_bias(layer: nn.Module) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"] | None]:
    """Return the matrix and the bias of W_O."""
    assert layer.bias is None or isinstance(layer.bias, Tensor)
    return _matrix(layer), layer.bias


def head_projections(layer: nn.Module, num_heads: int) -> Float[Tensor, "head out value_dim"]:
    """Return each head's columns of W_O."""
    matrix = _matrix(layer).detach()
    return matrix.reshape(len(matrix), num_heads, -1).transpose(0, 1)


def forward_arguments(model: PreTrainedModel) -> set[str]:
    """Return the argument names of a forward, or the name of the model's main input if there are none."""
    parameters = signature(model.forward).parameters
    has_names = any(parameter.kind == parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())
    return {*parameters} if has_names else {model.main_input_name}


def has_two_stacks(model: PreTrainedModel) -> bool:
    """Return True for a model with an encoder and a decoder.

    The config of a decoder is not enough: some encoders of SOUNDS have such a config.
    """
    arguments = forward_arguments(model)
    is_encoder = bool({*SOUNDS} & arguments) and not any(name.startswith("decoder_") for name in arguments)
    return bool(model.config.is_encoder_decoder) and not is_encoder


def takes_alone(model: PreTrainedModel, inputs: Iterable[str]) -> bool:
    """Return True if a forward takes one of these inputs and needs no text."""
    arguments = forward_arguments(model)
    return not {"input_ids", "decoder_input_ids"} & arguments and bool({*inputs} & arguments)


def decoder_name(model: PreTrainedModel) -> str | None:
    """Return the name of the part that reads text in a model with other inputs, or None if there is none."""
    untyped: Any = model  # transformers does not annotate the method
    decoder = untyped.get_decoder() if hasattr(model, "get_decoder") else None
    if not isinstance(decoder, nn.Module):
        return None
    if {PIXELS[0], *SOUNDS} & signature(decoder.forward).parameters.keys():
        return None
    return next((name for name, module in model.named_modules() if name and module is decoder), None)


ATTENTION_CLASS = re.compile(r"attn|attention", re.IGNORECASE)
"""Matches class names of modules that compute attention."""
RECURRENT = re.compile(r"^Rwkv")
"""Matches the names of classes whose attention is a recurrence, without weights between queries and keys."""


def has_attention(model: PreTrainedModel) -> bool:
    """Return True if a part's class is named after attention, or if the config has a number of heads."""
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
"""Mechanisms that mix tokens without a softmax, by class name pattern."""
MixedLayers = Mapping[tuple[str, bool], Sequence[int]]
"""Layers that mix tokens without a softmax, by mechanism and by whether their blocks also have attention."""


@cache
def mixer_name(kind: str) -> str | None:
    """Return the mechanism by which such a module mixes tokens without a softmax, or None for any other."""
    return next((name for pattern, name in _mixers().items() if re.search(pattern, kind)), None)


@cache
def _mixers() -> Mapping[str, str]:
    """Return MIXERS followed by the patterns of the layer sources."""
    added = (item for source in _layer_sources() for item in source.mixers.items())
    return MIXERS | {pattern: name for name, pattern in added if pattern and pattern not in MIXERS}


@cache
def _layer_sources() -> tuple[LayerSource, ...]:
    """Return the layer sources of all cards, in order."""
    return tuple(
        source for feature in installed_features().values() for source in feature.layer_sources.values()
    )


@cache
def source_of(mixer: str) -> LayerSource | None:
    """Return the first source that makes layers from modules with this mixer, or None if there is none."""
    return next((source for source in _layer_sources() if mixer in source.mixers), None)


def sources_switched_off(mixers: Iterable[str]) -> str:
    """Return ` (the feature linear is switched off)`, naming built-in features that would show these mixers.

    The result is empty if there are no such features.
    """
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
    """Return the layers that mix tokens without a softmax, and the layers beside them that mix no tokens.

    The layers are determined from the module classes in each block, without reading weights; both results are
    empty for a model that has only attention. Mixers whose module names are in `shown` are left out.
    """
    if not any(mixer_name(kind.__name__) for kind in {*map(type, model.modules())}):
        return {}, []
    mixers: dict[str, dict[str, None]] = {}  # the modules of each block
    attending: set[str] = set()
    mixing = ""
    for name, module in model.named_modules(remove_duplicate=False):
        kind, block = type(module).__name__, BLOCK.match(name)
        if block is None or (mixing and name.startswith(mixing)):
            continue
        if mixer := mixer_name(kind):
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
    lists = {block_list(block_name) for block_name in mixers}
    blocks = [
        name
        for name, _ in model.named_modules(remove_duplicate=False)
        if block_list(name) in lists and BLOCK.fullmatch(name)
    ]
    idle = [layer_number(name) for name in blocks if name not in mixers and name not in attending]
    return mixed, idle


def unshown_layers(model: nn.Module, shown: Collection[str] = ()) -> str:
    """Return a sentence on the layers that mix tokens without a softmax, or "" if there are none.

    Layers whose modules are in `shown` are left out.
    """
    mixed, idle = layers_without_softmax(model, shown)
    if not mixed:
        return f"No tokens are mixed in {layers_text(idle)}." if idle else ""
    parts = [
        f"{mixer}{' beside attention' if beside else ''} in {layers_text(layers)}"
        for (mixer, beside), layers in mixed.items()
    ]
    off = sources_switched_off(mixer for mixer, _ in mixed)
    idle_note = f" No tokens are mixed in {layers_text(idle)}." if idle else ""
    return f"Without a softmax and therefore not shown: {'; '.join(parts)}{off}.{idle_note}"


def layers_text(layers: Sequence[int]) -> str:
    """Return `layer 3`, or `layers 0-2, 4-6`."""
    runs: list[list[int]] = []
    for layer in sorted({*layers}):
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    names = (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"layer{'s' if len({*layers}) > 1 else ''} {', '.join(names)}"


def decoder_start(*configs: object) -> int | None:
    """Return the token that a decoder reads first, from the first config that sets this token.

    Often, only one of a model's two configs, config.json and generation_config.json, sets this token.
    """
    starts = (getattr(config, "decoder_start_token_id", None) for config in configs)
    return next((start for start in starts if start is not None), None)
