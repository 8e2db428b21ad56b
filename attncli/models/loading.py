"""Loading a model and its tokenizer from a folder, the hub (safetensors, no remote code) or a caller."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from inspect import signature
from multiprocessing import parent_process
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.integrations.gguf.utils import is_gguf_arch_supported
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
from transformers.utils.hub import cached_file

from attncli.core.process import ALONE, quiet_warnings
from attncli.core.runtime import remove_empty_compiler_folder, threads_that_run, without_autocast
from attncli.errors import UserError, available_bytes, is_about_memory, one_line_reason, readable_bytes
from attncli.index import readings
from attncli.models.architectures import (
    UNTRAINED_PARTS,
    auto_model_class,
    class_with_head,
    classifier_class,
    has_attention,
    is_classifier,
    predicted_tokens,
)
from attncli.models.capture import tried_again_when_changed
from attncli.models.folder import (
    ADAPTER,
    DOWNLOADED,
    MOST_REASON,
    READ_FIRST_BYTES,
    SHIPPED_MODEL,
    TOKENIZER,
    VIRTUAL_TOKENS,
    bounded_by_files,
    check_model_folder,
    check_tokenizer_file,
    has_tokenizer,
    id_and_revision,
    model_on_disk,
    no_such_model,
    num_parameters,
    panics_in_one_line,
    pickled_note,
    read_config,
    transformers_quiet,
)
from attncli.models.gguf_keys import config_and_tokenizer
from attncli.models.hub import unreachable_hub
from attncli.models.in_turn import (
    in_use_for_none,
    nothing_else_measured,
    one_at_a_time,
    shared_use,
    sole_use,
)
from attncli.models.layers import uncompiled
from attncli.models.pretrained import Pretrained
from attncli.models.stored import Use, folder_weights, gguf_weights, settled, unknown_types
from attncli.models.weight_headers import ARCHITECTURE, check_gguf, check_model_gguf
from attncli.records.arguments import by, checked, one_of

remove_empty_compiler_folder()


DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
LOADS = ("auto", "memory", "disk")
NO_MODEL = "must be the name of a folder or a transformers PreTrainedModel"


def _what_opens(value: Any) -> Any:
    if not isinstance(value, str | PathLike | PreTrainedModel):
        raise ValueError(f"{NO_MODEL} (got {_kind(value)})")
    return value


@checked
def open_model(
    model: Annotated[str | PathLike[str] | PreTrainedModel, by(_what_opens)] = SHIPPED_MODEL,
    tokenizer: Any = None,
    *,
    device: Annotated[str, by(one_of(DEVICES))] = "auto",
    dtype: Annotated[str, by(one_of(DTYPES))] = "float32",
    load: Annotated[str, by(one_of(LOADS))] = "auto",
    allow_download: bool = False,
) -> Pretrained:
    """Open a model to measure, loaded once: a folder, a .gguf file, or an installed package that ships one.

    The default is the tiny model that comes with attn. A hub id, or ID@REVISION, that was downloaded before
    opens without the network; with `allow_download`, the id is looked up on the hub and downloaded.

    `device` is auto (CUDA if available), cpu or cuda; `dtype`, the type to compute in, is float32, bfloat16
    or float16. `load` is memory, disk or auto: disk leaves the weights in their files, and reads and widens
    them when they are used; auto chooses disk for a large model and, after the first use, keeps widened
    weights if they fit in half of the free memory.

    A loaded transformers model keeps its device and dtype and is left unchanged; pass its tokenizer with it,
    or its processor to read other files. Raises UserError for a model that cannot be opened, and MemoryError
    if memory runs out.
    """
    if not isinstance(model, str | PathLike):
        _check_as_it_is(checked_model(model), device, dtype, load)
        name = short_name(getattr(model, "name_or_path", "") or type(model).__name__)
        with measuring(name, checked_model(model)), borrowed(name, model, tokenizer) as pretrained:
            return replace(pretrained, lent=model)
    name_or_folder = fspath(model)
    source = _checked_source(name_or_folder, allow_download=allow_download)
    pretrained = load_pretrained(
        source, allow_download=allow_download, device=device, dtype=dtype, load=load, with_head=True
    )
    return replace(pretrained, name=short_name(name_or_folder))


def _check_as_it_is(model: PreTrainedModel, device: str, dtype: str, load: str) -> None:
    """Raise UserError for settings that do not match a loaded model, which is used unchanged."""
    actual = {"device": model.device.type, "dtype": str(model.dtype).removeprefix("torch."), "load": "memory"}
    requested, defaults = {"device": device, "dtype": dtype, "load": load}, ("auto", "float32")
    wrong = {key: value for key, value in requested.items() if value not in (actual[key], *defaults)}
    if wrong:
        raise UserError(
            *(f"{key}: must be {actual[key]}, as in the loaded model (got {wrong[key]})" for key in wrong)
        )


def _opened(asked: str) -> Pretrained:
    """Open a model as `open_model` does, caching the model of the last call."""
    source = _checked_source(asked, allow_download=False)
    pretrained = kept_pretrained(source, allow_download=False, device="auto", with_head=True)
    return replace(pretrained, name=short_name(asked))


def _checked_source(asked: str, *, allow_download: bool) -> str:
    """Raise UserError for anything but a local model or, if downloads are allowed, a hub id."""
    try:
        path = model_on_disk(asked, allow_download=allow_download)
    except ValueError as error:
        raise UserError(f"model: {error}") from None
    if path is not None:
        (check_model_folder if path.is_dir() else check_gguf)(path)
    elif not allow_download:
        raise UserError(f"model: {no_such_model(asked, 'allow_download')}")
    return source_of(asked, allow_download=allow_download)


def source_of(asked: str, tell: Callable[[str], None] | None = None, *, allow_download: bool) -> str:
    """Return a model's folder or GGUF file if the model is on this machine, or its hub id if not.

    `tell` receives a line about a folder whose weights are pickled.
    """
    path = model_on_disk(asked, allow_download=allow_download)
    if path is None:
        return asked
    if tell is not None and path.is_dir() and (note := pickled_note(path)) is not None:
        tell(f"model: {note}")
    return str(path)


def _device(name: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"device: must be one of auto, cpu, cuda (got {name})")
    if name == "cuda" and not has_cuda:
        raise UserError("device: cuda is not available here: use auto or cpu")
    return torch.device("cuda" if name != "cpu" and has_cuda else "cpu")


def load_pretrained(
    model: str,
    *,
    allow_download: bool,
    device: str,
    dtype: str = "float32",
    load: str = "auto",
    with_head: bool = False,
) -> Pretrained:
    """Return the model in a local folder or GGUF file or, if downloads are allowed, with a hub id.

    Raises UserError if transformers cannot load the model, if the model does not fit in memory, or if weights
    are missing, since transformers would make them random. A head with missing weights is left out.
    """
    where = _device(device)
    path = Path(id_and_revision(model)[0])
    with _reading(model, dtype, allow_download=allow_download) as options:
        stays = _stays_in_its_files(path, load=load, dtype=getattr(torch, dtype), device=where)
        with _loading(getattr(torch, dtype)):
            return _loaded_by_transformers(
                model, path, options, where, getattr(torch, dtype), stays, with_head=with_head
            )


def without_weights(model: str, *, allow_download: bool) -> Pretrained:
    """Return a model built from its config, without weights, and with its tokenizer, for reading texts.

    Raises the same errors as `load_pretrained`.
    """
    path = Path(id_and_revision(model)[0])
    with _reading(model, "float32", allow_download=allow_download) as options, _loading(torch.float32):
        about = _described(path, options)
        with torch.device("meta"), quiet_warnings():
            build: Callable[..., PreTrainedModel] = AutoModel.from_config
            body = model_body(build(about.config))
    return Pretrained(short_name(model), body, about.tokenizer, source=model, no_tokenizer=about.no_tokenizer)


@contextmanager
def _reading(model: str, dtype: str, *, allow_download: bool) -> Iterator[dict[str, Any]]:
    """Yield options for transformers; inside the block, errors of transformers become one-line UserErrors."""
    name_or_folder, revision = id_and_revision(model)
    path = Path(name_or_folder)
    if path.is_file() and find_spec("gguf") is None:
        raise UserError('model: a GGUF file needs: pip install "attncli[gguf]"')
    unheard = unreachable_hub(model) if allow_download and not path.exists() else None
    is_local = not allow_download or unheard is not None
    try:
        yield {"trust_remote_code": False, "local_files_only": is_local, "revision": revision}
    except UserError:
        raise
    except Exception as error:  # a damaged config may fail in any way
        if is_about_memory(error):
            raise MemoryError(_needed_memory(path, dtype)) from error
        if unheard is not None and isinstance(error, OSError):
            repository = str(path) if revision == "main" else f"{path} --revision {revision}"
            download = f"hf download {repository} --local-dir {short_name(model)}"
            instead = f"run {download} on another machine, and use that folder"
            absent = f"{unheard}, and the model is not in the cache"
            raise UserError(f"model: {model}: {absent}: {instead}") from None
        wanted = "read as GGUF" if path.is_file() else "loaded"
        raise UserError(
            f"model: {model}: cannot be {wanted}: {one_line_reason(error)[:MOST_REASON]}"
        ) from None


@contextmanager
def _loading(dtype: torch.dtype) -> Iterator[None]:
    """Inside the block, load one model with transformers, quietly.

    No other model may be loaded meanwhile, since transformers replaces functions of torch. No model may be
    measured if the dtype is not torch's default, since transformers then replaces the default.
    """
    is_default = dtype == torch.get_default_dtype()
    with (
        nullcontext() if is_default else nothing_else_measured(),
        ALONE,
        transformers_quiet(),
        torch.inference_mode(False),  # weights made in inference mode could not have gradients
    ):
        yield


def _loaded_by_transformers(
    model: str,
    path: Path,
    options: dict[str, Any],
    where: torch.device,
    dtype: torch.dtype,
    stays: Use | None,
    *,
    with_head: bool,
) -> Pretrained:
    """Load a model with transformers.

    Raises UserError for a model with missing weights, and any error that transformers raises.
    """
    if not path.exists():
        path = _checked_download(path, options)
    about = _described(path, options)
    config = about.config
    # Let transformers choose the attention: a file may request a kernel on the hub, or one that is not
    # installed. The setters also reach nested configs.
    config._attn_implementation = config._experts_implementation = None
    # Some kinds of models cannot run without it (TrOCR).
    head = class_with_head(config) if with_head or config.model_type not in MODEL_MAPPING_NAMES else None
    classifier = classifier_class(config) if with_head else None
    head = classifier or head
    # Attention is eager from the start, since some models choose their parts when they are built.
    options |= {"config": config, "dtype": dtype, "attn_implementation": "eager"}
    with bounded_by_files(path), quiet_warnings():
        loaded, wrong = _loaded(head or AutoModel, path, options, where, stays)
        if wrong and head is not None and config.model_type in MODEL_MAPPING_NAMES:
            head = None
            loaded, wrong = _loaded(AutoModel, path, options, where, stays)
        elif wrong and head is None and (second_class := class_with_head(config)) is not None:
            # This may be a different model class with the same name and other weights (BLIP for captions).
            loaded, wrong = _loaded(second_class, path, options, where, stays)
    if wrong:
        raise UserError(
            f"model: {model}: weights that are missing or have the wrong shape: {wrong[0]}"
            f"{f' and {len(wrong) - 1} more' if len(wrong) > 1 else ''}"
        )
    name = short_name(model)
    body = model_body(loaded)
    check_has_attention(name, loaded)
    check_takes_what_attn_reads(name, body)
    tells_classes = head is not None and head is classifier
    with_its_head = None if head is None or tells_classes else loaded
    with_classes = loaded if tells_classes else None
    return Pretrained(
        name,
        body,
        about.tokenizer,
        with_its_head,
        with_classes,
        source=model,
        no_tokenizer=about.no_tokenizer,
    )


def _checked_download(name: Path, options: Mapping[str, Any]) -> Path:
    """Return the checked folder of a cached model that need not be looked up again, or the name of any other.

    The tokenizer of a download is checked. Raises UserError like `check_model_folder`.
    """
    hub_options = {key: options[key] for key in ("revision", "local_files_only")}
    quietly = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
    if options["local_files_only"]:
        config = cached_file(str(name), "config.json", **hub_options, **quietly)
        if config is None:
            return name
        check_model_folder(Path(config).parent)
        return Path(config).parent
    tokenizer = cached_file(str(name), TOKENIZER, **hub_options, **quietly)
    if tokenizer is not None:
        check_tokenizer_file(Path(tokenizer))
    return name


@dataclass(frozen=True)
class _Described:
    """A model without its weights: the config, and the tokenizer or the reason why there is no tokenizer."""

    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase | None
    no_tokenizer: str = ""


def _tokenizer(path: Path, options: Mapping[str, Any]) -> tuple[PreTrainedTokenizerBase | None, str]:
    """Return the tokenizer of a folder or hub id, or None and a reason if the model reads only token ids."""
    if path.is_dir() and not has_tokenizer(path):
        return None, f"{TOKENIZER} is missing"
    try:
        with panics_in_one_line():
            tokenizer = AutoTokenizer.from_pretrained(str(path), **options)
    except Exception as error:  # a tokenizer may fail in any way; the reason is shown once a text is read
        if is_about_memory(error) or not path.is_dir():
            raise
        return None, f"it cannot be loaded: {one_line_reason(error)[:MOST_REASON]}"
    # If its class cannot read the files, its vocabulary has only special tokens.
    if len(tokenizer) <= len({*tokenizer.all_special_ids}):
        return None, f"{type(tokenizer).__name__} of transformers finds no vocabulary in its files"
    return tokenizer, ""


def _described(path: Path, options: Mapping[str, Any]) -> _Described:
    """Return a model's config and, if it has one, its tokenizer."""
    if not path.is_file():
        tokenizer, no_tokenizer = _tokenizer(path, options)
        with quiet_warnings():
            return _Described(AutoConfig.from_pretrained(str(path), **options), tokenizer, no_tokenizer)
    return _Described(*config_and_tokenizer(path, options))


def _stays_in_its_files(path: Path, *, load: str, dtype: torch.dtype, device: torch.device) -> Use | None:
    """Return the `Use` of weights that stay in their files, or None for weights loaded into memory.

    Raises UserError for a model that cannot be used either way.
    """
    cannot = _why_all_at_once(path)
    if load == "disk" and cannot:
        raise UserError(f"load: {path.name} cannot stay on disk, since {cannot}: use memory")
    if load == "disk":
        return Use(device)
    if not path.exists():
        return None
    needed = num_parameters(path) * dtype.itemsize
    free = _free_bytes(device) if needed > READ_FIRST_BYTES or device.type == "cpu" else needed
    if needed > free and (cannot or load == "memory"):
        sizes = f"needs {readable_bytes(needed)} as {str(dtype).removeprefix('torch.')}"
        instead = f"{cannot}: use a machine with more memory" if cannot else "use `load` disk"
        raise UserError(f"model: {path.name}: {sizes}, but only {readable_bytes(free)} is free: {instead}")
    if cannot or load == "memory" or needed <= min(free, READ_FIRST_BYTES):
        return None
    # The workers of a batch, about one per core, share pages that need no widening.
    is_worker = parent_process() is not None
    num_processes = (os.cpu_count() or 1) if is_worker else 1
    return Use(device, keeps=needed * num_processes <= free / 2, maps=is_worker)


def _free_bytes(device: torch.device) -> int:
    """Return the number of free bytes on the machine or on a GPU."""
    if device.type == "cpu":
        return available_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def _why_all_at_once(path: Path) -> str:
    """Return the reason why a model's weights cannot be read one by one, or "" if they can."""
    if not path.exists():
        return "its size is not known before it is downloaded"
    if path.is_file():
        kind = check_model_gguf(path).settings[ARCHITECTURE]
        return f"transformers reads {kind} files whole" if is_gguf_arch_supported(str(kind)) else ""
    if (path / ADAPTER).is_file():
        return "it has an adapter"
    if "quantization_config" in read_config(path / "config.json"):
        return "its weights are quantized"
    if unknown := unknown_types(path):
        return f"it has weights of type {', '.join(sorted(unknown))}"
    return ""


def _needed_memory(path: Path, dtype: str) -> str:
    size = num_parameters(path) * getattr(torch, dtype).itemsize if path.exists() else 0
    return f"more than {readable_bytes(size)}, the weights of {path.name} as {dtype}" if size else "more"


def _loaded(
    auto_class: Any, path: Path, options: Mapping[str, Any], device: torch.device, use: Use | None
) -> tuple[PreTrainedModel, list[str]]:
    """Return the model in evaluation mode, and the names of its weights that the checkpoint lacks."""
    if use is not None:
        use.is_loading = True
    how = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # for one line
    weights = _weights(auto_class, path, options, use)
    if weights is None:
        # A checked pickle is read by torch.load(weights_only=True); its adapter is read from safetensors.
        is_safe = True if not path.is_dir() or pickled_note(path) is None else None
        where: dict[str, Any] = {"gguf_file": path.name} if path.is_file() else {"use_safetensors": is_safe}
        folder = path.parent if path.is_file() else path
        loaded, info = auto_class.from_pretrained(str(folder), **where, **how, **options)
    else:
        model_class, state = weights
        loaded, info = model_class.from_pretrained(None, state_dict=state, **how, **options)
        loaded.name_or_path = str(path)
    # The classification head reads the pooler's vector.
    untrained = () if is_classifier(loaded) else UNTRAINED_PARTS
    missing = [name for name in sorted(info["missing_keys"]) if not any(part in name for part in untrained)]
    if (weights is not None and loaded.can_generate()) or (
        # Only generative models have this config, and only it may have the decoder's first token.
        loaded.config.is_encoder_decoder and not loaded.can_generate()
    ):
        with suppress(OSError):
            loaded.generation_config = GenerationConfig.from_pretrained(
                str(path), **{key: options[key] for key in ("local_files_only", "revision")}
            )
    if use is None:
        loaded = loaded.to(device)
    else:
        settled(loaded, use)
    return loaded.eval(), missing + sorted(str(key) for key in info["mismatched_keys"])


def _weights(
    auto_class: Any, path: Path, options: Mapping[str, Any], use: Use | None
) -> tuple[Any, dict[str, Any]] | None:
    """Return a model's class and its weights as stored, or None if transformers reads the weights itself."""
    if use is None and _why_all_at_once(path):
        return None
    model_class = auto_model_class(auto_class, options["config"])
    if path.is_dir():
        return model_class, folder_weights(path, use)
    with torch.device("meta"):
        empty = model_class(options["config"])
    return model_class, gguf_weights(path, empty, options["config"].to_dict(), use)


def model_body(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model without its head, or the model itself if transformers does not declare that part.

    A body may wrap another (DPR: an encoder around a BERT, which returns no outputs by name). The part that
    reads pixels is returned with the part that turns pixels into tokens.
    """
    base = model.base_model
    if base is model or not isinstance(base, PreTrainedModel):
        return model
    pixels = {"pixel_values"} & {*signature(model.forward).parameters}
    return model_body(base) if pixels <= {*signature(base.forward).parameters} else model


def short_name(model: str) -> str:
    """Return the last part of a folder or hub id, also for a snapshot in the hub cache."""
    path = Path(model)
    if path.parent.name == "snapshots" and (hub_id := path.parent.parent.name).startswith(DOWNLOADED):
        return hub_id.rpartition("--")[2]
    return path.name or model


def check_has_attention(name: str, model: PreTrainedModel) -> None:
    """Raise UserError for a model without attention (state space models, recurrence, convolution)."""
    if not has_attention(model):
        kind = model.config.model_type
        raise UserError(f"model: {name} ({kind}) has no attention to show")


def check_takes_what_attn_reads(name: str, model: PreTrainedModel) -> None:
    """Raise UserError for a model whose input is neither text nor one of the readings that cards declare."""
    kinds = readings()
    if model.main_input_name not in ("input_ids", *(each for kind in kinds.values() for each in kind.inputs)):
        *kinds_before, last = "text", *(f"a {what}" for what in kinds)
        read = f"{', '.join(kinds_before)} or {last}" if kinds_before else last
        raise UserError(f"model: {name} takes {model.main_input_name}, not {read}")


def kept_pretrained(model: str, **loading: Any) -> Pretrained:
    """Return the result of load_pretrained, caching the last model so that later runs need not load it.

    A folder whose files have changed is loaded again. Only one model is cached, since models may be large.
    """
    path = Path(model)
    paths = sorted(path.iterdir()) if path.is_dir() else [path]  # a model on the hub has a version
    files = [file for file in paths if file.is_file()]  # links may be broken
    state = tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    with one_at_a_time(_kept):  # of two threads, the first loads the model for both
        return _kept(model, state, **loading)


@lru_cache(maxsize=1)
def _kept(model: str, state: object, **loading: Any) -> Pretrained:
    return load_pretrained(model, **loading)


@contextmanager
def borrowed(name: str, model: Any, tokenizer: Any) -> Iterator[Pretrained]:
    """Put a loaded transformers model into evaluation mode; an enclosing `measuring` restores its mode.

    `tokenizer` may be a processor, with or without a tokenizer. Raises UserError unless the model is a
    transformers model with a supported input and its own tokenizer, and for missing weights.
    """
    checked_model(model)
    own_tokenizer, processor = tokenizer, None
    if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
        own_tokenizer, processor = _processor_parts(tokenizer)
    check_has_attention(name, model)
    check_takes_what_attn_reads(name, model)
    _check_has_numbers(model)
    # Hooks on the whole model would not run if only its body ran.
    acts = model._forward_pre_hooks or "forward" in vars(model)
    body = model if acts else model_body(model)
    with tried_again_when_changed(model, body):
        model.train(False)
        head = model if predicted_tokens(model) else None
        classifier = model if is_classifier(model) and body is not model else None
        yield Pretrained(name, body, own_tokenizer, head, classifier, source=processor)


def _processor_parts(processor: Any) -> tuple[PreTrainedTokenizerBase | None, Any]:
    """Return a processor's tokenizer, or None if it has none, and the processor itself.

    Raises UserError for any other object.
    """
    from transformers.feature_extraction_utils import FeatureExtractionMixin
    from transformers.image_processing_base import ImageProcessingMixin
    from transformers.processing_utils import ProcessorMixin

    if isinstance(processor, ImageProcessingMixin | FeatureExtractionMixin):
        return None, processor
    tokenizer = getattr(processor, "tokenizer", None)
    if not isinstance(processor, ProcessorMixin) or not isinstance(tokenizer, PreTrainedTokenizerBase):
        got = type(processor).__name__
        raise UserError(f"tokenizer: must be the loaded model's transformers tokenizer (got {got})")
    return tokenizer, processor


@contextmanager
def in_use(model: Pretrained | str | PathLike[str]) -> Iterator[Pretrained]:
    """Yield the model for a measurement; a caller's model is in its present state, in evaluation mode.

    If `model` is a name, the model is loaded on the first call and reused by later calls. A caller's autocast
    and inference mode are suspended, since autocast changes numbers and inference mode has no gradients. A
    model that is already in use stays in use, and so does a model that the caller has in use for all calls
    (`in_use_for_all`).
    """
    pretrained = model if isinstance(model, Pretrained) else _opened(fspath(model))
    if pretrained.is_in_use:
        yield pretrained
        return
    lent = pretrained.lent
    whole = pretrained.whole if lent is None else lent
    if (used := shared_use(whole)) is not None:
        with in_use_for_none():
            yield replace(used, own_tokenizer=pretrained.own_tokenizer, source=pretrained.source)
        return
    with measuring(pretrained.name, whole):
        if lent is None:
            yield replace(pretrained, is_in_use=True)
            return
        reader = pretrained.own_tokenizer if pretrained.source is None else pretrained.source
        with borrowed(pretrained.name, lent, reader) as as_it_is:
            yield replace(as_it_is, is_in_use=True)


@contextmanager
def measuring(name: str, model: torch.nn.Module) -> Iterator[None]:
    """Reserve the model for measurements in this thread inside the block, and restore it afterwards.

    Messages from transformers are suppressed, and a caller's autocast and inference mode are suspended.
    """
    wants_gradients = torch.is_grad_enabled()
    with (
        transformers_quiet(),
        uncompiled(),
        threads_that_run(),
        torch.inference_mode(False),
        torch.set_grad_enabled(wants_gradients),
        without_autocast(),
        sole_use(model, name),
    ):
        yield


SHARDED = frozenset(("FullyShardedDataParallel", "FSDPModule", "DTensor"))
"""Names of torch classes whose parameters are split over processes (DeepSpeed's have a `ds_id`)."""
IN_PARTS = (
    "model: its weights are split over several processes (FSDP, tensor parallel, ZeRO-3), so a single "
    "process cannot run it"
)


def unwrapped(model: Any) -> PreTrainedModel:
    """Return the transformers model inside a wrapper of torch.compile, DDP or PEFT, or the model itself.

    Raises UserError if there is no such model, and for weights split over processes (FSDP, tensor parallel,
    ZeRO-3), which a single process cannot run.
    """
    inner = model
    while not isinstance(inner, PreTrainedModel):
        if hasattr(inner, "get_base_model"):  # from PEFT, with the adapters inside
            if getattr(getattr(inner, "active_peft_config", None), "is_prompt_learning", False):
                raise UserError(f"model: {VIRTUAL_TOKENS}")
            inner = inner.get_base_model()
        elif hasattr(inner, "_orig_mod"):  # from torch.compile
            inner = inner._orig_mod
        elif isinstance(getattr(inner, "module", None), torch.nn.Module):  # from DDP, DeepSpeed or FSDP
            inner = inner.module
        else:
            raise UserError(
                f"model: must be a transformers PreTrainedModel (got {_kind(inner)}); for any other module, "
                "use record or layers_of"
            )
    if is_sharded(inner) or is_sharded(model):
        raise UserError(f"{IN_PARTS}: measure its checkpoints with attn watch RUN")
    return inner


def is_sharded(model: torch.nn.Module) -> bool:
    """Return True if a model's weights are split over several processes."""
    parts = [*model.modules(), *model.parameters()]
    classes = {name for kind in {*map(type, parts)} for name in (each.__name__ for each in kind.__mro__)}
    return bool(classes & SHARDED) or any(hasattr(parameter, "ds_id") for parameter in model.parameters())


def checked_model(model: Any) -> PreTrainedModel:
    """Return the transformers model. Raises UserError for any other object."""
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"model: {NO_MODEL} (got {_kind(model)})")
    return model


def _kind(model: Any) -> str:
    """Return the class name of an unsupported model and, for a wrapper, of the model inside."""
    got = type(model).__name__
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    inner = next((type(part).__name__ for part in parts if isinstance(part, PreTrainedModel)), None)
    return got if inner is None else f"{got}: pass the {inner} inside it"


def _check_has_numbers(model: PreTrainedModel) -> None:
    """Raise UserError for weights on the meta device, unless an accelerate hook loads them when needed."""
    offloading: list[str] = []
    for name, module in model.named_modules():
        if hasattr(module, "_hf_hook"):
            offloading.append(name)
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        missing = next((key for key, tensor in tensors if tensor.is_meta), None)
        if missing is not None and not any(f"{name}.".startswith(f"{outer}.") for outer in offloading):
            raise UserError(f"model: {name}.{missing} is on the meta device, without data: load its weights")
