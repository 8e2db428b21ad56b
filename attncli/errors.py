"""Errors that any part of attn may raise for the user, shown as one clear line instead of a traceback."""

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from attncli.index import installed_features
from attncli.system.platforms import machine_memory, memory_limit, memory_taken

# Exit codes.
DONE, FAILED, REFUSED, SOME_FAILED, NOT_WRITTEN, INTERRUPTED = 0, 1, 2, 3, 4, 130


NO_TEXT = "must hold at least one token (got an empty text)"


ALIKE = 0.7
"""The minimum similarity of a misspelled word to its suggestion. At 0.6, --save would suggest --scale."""


TRUTHS = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0"})
"""Values that people give to a switch, which takes no value."""


MOST_LINES = 20
"""The maximum number of lines of an error to print."""


def first_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines of an error to print: the first lines, then how many lines were left out."""
    if len(lines) <= MOST_LINES + 1:  # a line with the count would save nothing
        return [*lines]
    return [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES:,} more"]


class UserError(Exception):
    """A mistake that the user can correct. Each line names the place, the problem and the fix (exit code 2).

    `lines` holds all lines; `str()` shortens the list if it is long.
    """

    exit_code = REFUSED

    def __init__(self, *lines: str) -> None:
        self.lines = tuple(line.replace("\n", "↵") for line in lines)  # as plain_text shows it in a name
        super().__init__("\n".join(first_lines(self.lines)))


class RunError(UserError):
    """A correct command that failed while it was running (exit code 1)."""

    exit_code = FAILED


class WriteError(UserError):
    """A file, a store or standard output cannot be written: no permission or no space (exit code 4)."""

    exit_code = NOT_WRITTEN


class NoSuchName(UserError, KeyError):
    """A report has no part with this name; the message lists the names that it has."""

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        names = list(known)
        super().__init__(f"no {what} {name}{nearest(str(name), names)}; known: {', '.join(names) or 'none'}")

    def __str__(self) -> str:
        return self.lines[0]


class ClosedPipe(Exception):
    """The reader of standard output has closed the pipe."""


def discard_stdout() -> None:
    """Redirect standard output to the null device, so that Python's flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


SYNONYMS = {
    "num_heads": "n_heads n_head nhead heads num_attention_heads h",
    "num_kv_heads": "n_kv_heads kv_heads num_key_value_heads gqa",
    "skip_first_keys": "skip_sink",
    "embed_dim": "d_model hidden_size hidden_dim n_embd n_embed emb_dim embedding_dim model_dim dim",
    "head_dim": "d_k d_head head_size key_dim query_dim qk_dim hidden_size dim",
    "value_dim": "d_v v_dim",
    "head": "heads head_index attention_head",
    "layer": "layers num_layers n_layers num_hidden_layers block",
    "num_tokens": "seq_len seq_length sequence_length n_tokens length max_length n_ctx ctx_size n",
    "max_new_tokens": "n_predict num_predict max_tokens max_length n_tokens length num_tokens n",
    "causal": "mask is_causal causal_mask autoregressive decoder attn_mask attention_mask",
    "window": "sliding_window local window_size",
    "temperature": "temp t",
    "sampling_temperature": "temperature temp t",
    "top_k": "k num_keys",
    "rope_base": "theta rope_theta rope_freq_base base",
    "rope": "rotary",
    "softcap": "logit_softcap softcapping soft_cap",
    "output_projection": "w_o out_proj o_proj",
    "sentence": "text prompt input query p s",
    "file": "text_file prompt_file input_file input path f i",
    "texts": "dataset corpus input_file data",
    "context": "memory source src encoder_text",
    "model": "m checkpoint ckpt model_path model_name model_id pretrained hf hf_repo weights",
    "allow_download": "download online remote hub local_files_only",
    "dtype": "torch_dtype half fp16 bf16 float16 bfloat16 load_in_8bit load_in_4bit quantize precision",
    "device": "gpu cuda device_map ngl n_gpu_layers",
    "seed": "random_seed random_state manual_seed s",
    "truncate": "truncation trunc max_length",
    "sort": "sort_by order_by order",
    "statistic": "metric stat statistics",
    "from": "from_token query_token source",
    "to": "to_token key_token target",
    "answer": "to target token expected",
    "ablate": "prune prune_heads mask_heads head_mask knockout remove patch patching activation_patching",
    "approximate": "fast gradient",
    "output": "out outfile out_file output_file save save_to save_path to_file export dest",
    "format": "output_format as type fmt",
    "explain": "verbose v steps trace details verbosity",
    "precision": "digits decimals round",
    "color": "colour colors no_color no_colour",
    "config": "c cfg config_file settings yaml",
    "show_config": "print_config dump_config",
    "workers": "num_workers n_jobs jobs j threads processes parallel",
    "fresh": "overwrite force restart clean",
    "open": "show_plot view display",
    "float16": "fp16 half f16",
    "bfloat16": "bf16",
    "float32": "fp32 float f32 full float64 fp64 double",
    "cuda": "gpu cuda:0 cuda:1",
    "cpu": "mps metal",
    "table": "text txt plain pretty console",
    "md": "markdown",
    "html": "page web htm",
    "png": "image jpg jpeg gif picture plot",
    "csv": "excel xlsx tsv",
    "npz": "numpy npy",
    "safetensors": "torch pt pth bin",
}
"""What other tools call attn's flags, settings and formats. The first row whose key is available applies.

The cards of features list the synonyms of commands.
"""


def synonym(word: str, known: Collection[str]) -> str | None:
    """Return the word in `known` for what another tool calls `word`."""
    plain = word.lower().replace("-", "_")
    questions = (
        each for feature in installed_features().values() for each in feature.questions if not each.form_of
    )
    synonyms = SYNONYMS | {each.name: each.synonyms for each in questions if each.name not in SYNONYMS}
    rows = (ours for ours, theirs in synonyms.items() if ours in known and plain in theirs.split())
    return next(rows, None)


def similar_word(word: str, known: Collection[str]) -> str | None:
    """Return the word in `known` with a similar spelling, or the only one there that begins with `word`."""
    from difflib import get_close_matches

    plain = word.lower().replace("-", "_")
    folded = {name.lower(): name for name in known}
    close = get_close_matches(plain, folded, n=1, cutoff=ALIKE)
    begun = [name for name in folded if name.startswith(plain)] if len(plain) > 2 else []
    return next((folded[name] for name in [*close, *begun[: len(begun) == 1]]), None)


_hints_left: ContextVar[list[int] | None] = ContextVar("hints_left", default=None)


@contextmanager
def hints_for_first_lines() -> Iterator[None]:
    """Within this context, limit `nearest` to one hint per printed line: a hint takes a millisecond."""
    if _hints_left.get() is not None:
        yield
        return
    token = _hints_left.set([MOST_LINES])
    try:
        yield
    finally:
        _hints_left.reset(token)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the closest `known` word, or an empty string."""
    left = _hints_left.get()
    if left is not None:
        left[0] -= 1
        if left[0] < 0:
            return ""
    words = list(known)
    meant = synonym(word, words) or similar_word(word, words)
    return f" (did you mean {meant!r}?)" if meant else ""


def must_be_one_of(value: str, known: Collection[str]) -> str:
    """Return the message for an unknown value, with the closest valid value, if any, and then all of them."""
    names, hint = ", ".join(known), nearest(value, known)
    return f"got {value}{hint}: must be one of {names}" if hint else f"must be one of {names} (got {value})"


ALWAYS_THERE_BYTES = 16 * 2**20
"""Smaller sizes are not checked against free memory: importing torch takes more."""


def available_bytes() -> int:
    """Return the free memory in bytes: the smallest amount that the machine, control group or process has."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        available = machine_memory()
    try:
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        available = min(available, limit - int((group / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):
        pass
    most = memory_limit()
    if most is not None and (taken := memory_taken()) is not None:
        available = min(available, most - taken)
    return available


def readable_bytes(count: int) -> str:
    """Format a size in powers of 1000, like `17.2 GB`."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB", "EB"):
        if size < 1000 or unit == "EB":
            break
        size /= 1000
    return f"{size:.3g} {unit}"


def refuse_bytes(experiment: str, needed: int, instead: str) -> None:
    """Raise UserError, naming the memory needed and an alternative, if less memory than that is free."""
    if needed <= ALWAYS_THERE_BYTES:
        return
    available = available_bytes()
    if needed > available:
        sizes = (
            f"needs about {readable_bytes(needed)} of memory, but only {readable_bytes(available)} is free"
        )
        raise UserError(f"{experiment}: {sizes}: use {instead}")


TORCH_BYTES = 600 * 10**6
"""Address space that torch needs to load: with less, libraries abort with their own messages, or hang."""


def check_environment(*, needs_torch: bool) -> None:
    """Raise UserError if the working directory was deleted or if too little memory is free to load torch."""
    try:
        Path.cwd()
    except OSError as error:
        raise UserError(
            f"the working directory no longer exists ({error.strerror}): cd to another directory"
        ) from None
    is_loaded = "torch" in sys.modules
    if needs_torch and not is_loaded and memory_limit() is not None:
        free = available_bytes()
        if free < TORCH_BYTES:
            sizes = f"needs {readable_bytes(TORCH_BYTES)}, but only {readable_bytes(max(0, free))} is free"
            raise UserError(f"memory: torch {sizes}: raise the limit (ulimit -v)")


NO_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|out of memory|Cannot allocate memory|failed to map segment"
)
WANTED = re.compile(r"allocate (\d+) bytes|allocate ([\d.]+) ([KMG])iB")
LESS_MEMORY = "use a shorter text, --dtype bfloat16 with a model, or fewer --workers in a batch"


def is_about_memory(error: BaseException) -> bool:
    """Return True for an error caused by lack of memory, for which libraries raise several types."""
    # torch.OutOfMemoryError is recognized by name, because torch may not be imported.
    has_type = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return has_type or NO_MEMORY.search(str(error)) is not None


def wanted_memory(error: BaseException) -> str:
    """Return the memory that an allocation asked for, like `another 34.4 GB`, or `more` if unknown."""
    match = WANTED.search(str(error))
    if match is None:
        return str(error) if type(error) is MemoryError and error.args else "more"
    size = int(match[1]) if match[1] else float(match[2]) * 2 ** (10 * " KMG".index(match[3]))
    return f"another {readable_bytes(int(size))}"


def one_line_reason(error: BaseException) -> str:
    """Return the message of a foreign error on one line, or the name of its type if there is no message.

    Backquotes become apostrophes, because attn's own messages put keys in backquotes.
    """
    return " ".join(str(error).replace("`", "'").split()) or type(error).__name__


def raise_if_memory(error: Exception) -> None:
    """Raise MemoryError from an error that was caused by lack of memory."""
    if is_about_memory(error):
        raise MemoryError(wanted_memory(error)) from error


def out_of_memory(error: BaseException) -> str:
    """Return the message for lack of memory: how much is needed, how much is free, and what uses less."""
    free = readable_bytes(max(0, available_bytes()))
    if isinstance(error, ImportError):
        return f"out of memory: torch cannot be loaded with {free} free: raise the limit (ulimit -v)"
    return f"out of memory: needs {wanted_memory(error)}, but only {free} is free: {LESS_MEMORY}"
