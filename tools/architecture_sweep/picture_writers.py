"""Models that write after a picture: python -m tools.architecture_sweep.picture_writers results.jsonl

Each is a tiny random model in a folder, as a user would have it.
What `attn generate --image` writes, and the weights of each new token, is compared with transformers' own
generate and eager attention on what its own processor makes of the same picture and words.
"""

import json
import warnings
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    AutoModelForImageTextToText,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    VisionEncoderDecoderConfig,
)
from transformers.models.auto import processing_auto
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from .asking import ask
from .folders import NotTestable, one_line, save_tokenizer, sharpen
from .pictures import MOST_PARAMETERS, main, picture, processor_of
from .result import Result
from .tiny_config import ATTEMPTS, VOCABULARY, Sizes, tiny_config

NAMES = {
    "image_token": "<image>",
    "video_token": "<video>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
}
"""What tokens of configs (`image_token_id`) are called, as most processors have it."""
OWN_NAMES = {
    "qwen": {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
    "gemma3": {"image_token": "<image_soft_token>"},
    "internvl": {"image_token": "<IMG_CONTEXT>"},
}
"""Of kinds of models that begin so, what else."""
MORE = (
    *("<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<row_1_col_1>", "<row_1_col_2>"),
    *("<img>", "</img>"),
)
"""Tokens of processors that no config names."""
CAPTIONERS = {
    "vision-encoder-decoder (vit, gpt2)": ("vit", "gpt2"),
    "vision-encoder-decoder (deit, trocr)": ("deit", "trocr"),
    "vision-encoder-decoder (donut-swin, mbart)": ("donut-swin", "mbart"),
}
"""An encoder that sees, and a decoder that looks at it."""
OF_PICTURES_ALONE = (*CAPTIONERS, "blip", "pix2struct")
"""What is given a picture, and no words beside it."""
NEW = 3


def _own_names(model_type: str) -> Mapping[str, str]:
    names_of_kind = (names for start, names in OWN_NAMES.items() if model_type.startswith(start))
    return NAMES | next(names_of_kind, {})


def _tokenizer(model_type: str, config: Any, folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of the sweep, whose last tokens have the names that the processor looks for."""
    save_tokenizer(folder)
    names, called = _own_names(model_type), dict[int, str]()
    for name, text in names.items():
        numbers = (getattr(config, f"{name}_{end}", None) for end in ("id", "index"))
        if (number := next((number for number in numbers if isinstance(number, int)), None)) is not None:
            called[number] = text
    free = iter(number for number in range(VOCABULARY - 25, VOCABULARY) if number not in called)
    called |= {next(free): text for text in MORE}
    stored = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = stored["model"]["vocab"]
    stored["model"]["vocab"] = {called.get(number, text): number for text, number in vocabulary.items()}
    backend = Tokenizer.from_str(json.dumps(stored))
    backend.add_special_tokens([text for _, text in sorted(called.items())])
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[CLS]", "eos_token": "[SEP]"}
    special |= {"sep_token": "[SEP]"}
    more = {name: text for name, text in names.items() if text in called.values()}
    of_internvl = ("start_image_token", "<img>"), ("end_image_token", "</img>")
    more |= dict(of_internvl) | {"context_image_token": names["image_token"]}
    more.setdefault("video_token", names["video_token"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special, extra_special_tokens=more)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)
    return tokenizer


def _sizes(config: Any, processor: Any) -> dict[str, Any]:
    """What a processor must know of the model: how many tokens a picture is."""
    vision = getattr(config, "vision_config", config)
    patch, size = getattr(vision, "patch_size", None), getattr(vision, "image_size", None)
    scale = getattr(config, "scale_factor", 1)
    count = (size // patch) ** 2 // scale**2 if isinstance(patch, int) and isinstance(size, int) else None
    return {
        "patch_size": patch,
        "vision_feature_select_strategy": getattr(config, "vision_feature_select_strategy", None),
        "num_additional_image_tokens": 1 if getattr(vision, "model_type", "").startswith("clip") else 0,
        "num_image_tokens": count,
        "image_seq_len": count,
        "image_seq_length": getattr(config, "mm_tokens_per_image", count),
    }


def _processor(model_type: str, config: Any, tokenizer: Any) -> Any:
    """transformers' own processor of pictures and words, without the part for videos (torchvision)."""
    if model_type in CAPTIONERS:
        encoder, _ = CAPTIONERS[model_type]
        return SimpleNamespace(image_processor=processor_of(encoder, config.encoder), tokenizer=tokenizer)
    names: Mapping[str, str] = vars(processing_auto)["PROCESSOR_MAPPING_NAMES"]
    known_class = getattr(transformers, names.get(model_type, ""), None)
    if known_class is None:
        raise NotTestable("transformers has no processor for it")
    known = signature(known_class.__init__).parameters
    parts = ["image_processor", "tokenizer"]
    kind = type(known_class.__name__, (known_class,), {"get_attributes": classmethod(lambda _: parts)})
    image_processor = processor_of(model_type, config)
    sizes = {key: value for key, value in _sizes(config, known).items() if value is not None}
    if "image_seq_length" not in known:
        image_processor.image_seq_length = sizes.get("image_seq_length")
    given = {key: value for key, value in sizes.items() if key in known}
    given |= {key: None for key in ("video_processor",) if key in known}
    return kind(image_processor=image_processor, tokenizer=tokenizer, **given)


def _config(model_type: str, sizes: Sizes) -> Any:
    if model_type not in CAPTIONERS:
        return tiny_config(model_type, sizes)
    encoder, decoder = (tiny_config(kind, sizes) for kind in CAPTIONERS[model_type])
    return VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)


def save_writer(model_type: str, folder: Path) -> Any:
    """A folder with a model that writes, tokenizer and processor, which is given back."""
    error: Exception | None = None
    for sizes in ATTEMPTS:
        try:
            config = _config(model_type, sizes)
            auto: Any = AutoModelForImageTextToText
            with torch.device("meta"):
                count = sum(parameter.numel() for parameter in auto.from_config(config).parameters())
            if count > MOST_PARAMETERS:
                raise NotTestable(f"no tiny configuration: {count / 1e6:.0f} million parameters")
            torch.manual_seed(7)
            model: PreTrainedModel = auto.from_config(config, attn_implementation="eager").eval()
            if model.main_input_name == "input_ids":
                model(input_ids=torch.arange(10, 15).unsqueeze(0))
        except NotTestable:
            raise
        except Exception as caught:  # whatever transformers says to sizes that are not its own
            error = error or caught
            continue
        sharpen(model)
        if not model.can_generate() or model.generation_config is None:
            raise NotTestable("transformers' own does not write")
        model.generation_config.eos_token_id = None
        if model.config.is_encoder_decoder:
            model.generation_config.decoder_start_token_id = model.config.decoder_start_token_id = 2
        model.save_pretrained(folder)
        tokenizer = _tokenizer(model_type, config, folder)
        try:
            processor = _processor(model_type, config, tokenizer)
        except NotTestable:
            raise
        except Exception as caught:  # whatever a processor says to tokens that are not its own
            raise NotTestable(one_line(caught)) from None
        if model_type not in CAPTIONERS:
            processor.save_pretrained(folder)
        processor.image_processor.save_pretrained(folder)
        return processor
    assert error is not None
    raise NotTestable(one_line(error))


def prompt_of(processor: Any, words: str) -> str:
    """The words below the picture, as `attn` puts them."""
    token = getattr(processor, "image_token", "")
    around = ("<|vision_start|>", "<|vision_end|>")
    start, end = around if {*around} <= processor.tokenizer.get_vocab().keys() else ("", "")
    return f"{start}{token}{end}{words}"


@torch.no_grad()
def truth(folder: Path, processor: Any, words: str, image: Path) -> tuple[list[int], list[Tensor]]:
    """The tokens that transformers writes; for each the weights (layer, head, key) of its last query."""
    auto: Any = AutoModelForImageTextToText
    try:
        model = auto.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        opened = [Image.open(image).convert("RGB")]
        if words:
            inputs = processor(images=opened, text=[prompt_of(processor, words)], return_tensors="pt")
        else:
            inputs = processor.image_processor(images=opened, return_tensors="pt")
        if words and not getattr(processor, "image_token", None):  # GIT: what it goes on with has no end
            inputs |= {key: inputs[key][:, :-1] for key in ("input_ids", "attention_mask")}
        known = signature(model.forward).parameters
        given = {
            key: value for key, value in inputs.items() if key in known and isinstance(value, torch.Tensor)
        }
        crossing: list[Any] = []
        for part in model.children():  # of BLIP's decoder generate does not return them
            part.register_forward_hook(
                lambda _part, _inputs, made: crossing.append(getattr(made, "cross_attentions", None))
            )
        out = model.generate(
            **given,
            max_new_tokens=NEW,
            do_sample=False,
            output_attentions=True,
            return_dict_in_generate=True,
        )
    except Exception as error:  # whatever transformers says to a picture
        raise NotTestable(one_line(error)) from None
    steps = out.get("cross_attentions") or list(filter(None, crossing)) or out.get("attentions") or ()
    layers = [_last_rows([layer for layer in step if layer is not None]) for step in steps]
    return out.sequences[0, -NEW:].tolist(), layers


def _last_rows(layers: list[Tensor]) -> Tensor:
    """The rows of the last query (layer, head, key); a cache that drops keys drops the first."""
    most = max(layer.shape[-1] for layer in layers)
    rows = [layer[0, :, -1] for layer in layers]
    return torch.stack([torch.nn.functional.pad(row, (most - row.shape[-1], 0)) for row in rows])


def check_writing(model_type: str, folder: Path, words: str = "abcab") -> Result:
    """The result for one architecture."""
    result = Result(model_type, "")
    words = "" if model_type in OF_PICTURES_ALONE else words
    image = folder.with_name("picture.png")
    picture().save(image)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        try:
            processor = save_writer(model_type, folder)
            tokens, layers = truth(folder, processor, words, image)
        except NotTestable as error:
            result.reason = str(error)
            return result.judged()
    answer = ask(
        [
            "generate",
            *([words] if words else []),
            "--model",
            folder,
            "--image",
            image,
            "--maps",
            "heads",
            "--max-new-tokens",
            str(NEW),
        ]
    )
    if not answer.reports:
        (result.refused if answer.is_refusal else result.wrong).append(f"generate: {answer.line}")
        return result.judged()
    (report,) = answer.reports
    result.how = "eager" if answer.is_dense else "interface"
    written = [row["token"] for row in report["statistics"]["written"]]
    expected = processor.tokenizer.convert_ids_to_tokens(tokens)
    if written != expected:
        result.wrong.append(f"generate: writes {written} instead of {expected}")
    weights = answer.tensor("weights")
    if weights is not None and weights.ndim == 2:
        result.reason = "so many tokens that the mean over the heads alone is kept"
        return result.judged()
    if weights is not None:  # of layers without attention there are no numbers
        weights = weights[~np.isnan(weights).all(axis=(1, 2, 3))]
    if weights is None or weights.shape[:2] != layers[0].shape[:2]:
        shape = None if weights is None else weights.shape
        result.wrong.append(f"generate: weights {shape} instead of {tuple(layers[0].shape)}")
        return result.judged()
    for step, expected_rows in enumerate(layers):
        rows = weights[:, :, step, : expected_rows.shape[-1]]
        if rows.shape != expected_rows.shape:
            result.wrong.append(f"generate: {rows.shape} instead of {tuple(expected_rows.shape)}")
            continue
        difference = float(np.abs(rows - expected_rows.double().numpy()).max())
        result.weights = max(result.weights or 0.0, difference)
        if not difference <= 1e-4:
            result.wrong.append(f"generate: token {step} is off by {difference:.2g}")
    return result.judged()


def writers() -> list[str]:
    """Every model type that transformers lists as one that writes of pictures, and pairs of two models."""
    pairs = "vision-encoder-decoder"
    return [
        *(name for name in sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES) if name != pairs),
        *CAPTIONERS,
    ]


if __name__ == "__main__":
    main(check_writing, writers)
