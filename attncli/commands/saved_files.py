"""Files of saved reports and of arrays, which commands show."""

from pathlib import Path

from attncli.commands.command import option, refuse_given
from attncli.errors import UserError, available_bytes
from attncli.models.arrays import (
    checked_weights,
    is_array_file,
    read_tokens,
    read_weights,
    tokens_beside,
)
from attncli.models.text_files import FILE_KINDS
from attncli.runs.saved_reports import SavedReports, read_array_report, read_reports
from attncli.system.files import STDIN
from attncli.views import SUFFIXES

READ = ("json", "jsonl", "npz", "safetensors")


ARRAY_FLAGS = (
    option(
        "--tokens",
        "An array's tokens: one per line, or a JSON list.",
        "FILE",
        group="Input",
        everyday="an array's tokens, one per line",
        reads_file=True,
    ),
    option(
        "--context-tokens",
        "The tokens of its keys, where they differ.",
        "FILE",
        group="Input",
        everyday="the tokens of its keys",
        reads_file=True,
    ),
    option(
        "--array",
        "The array, where a file has several.",
        "NAME",
        group="Input",
        everyday="the array, where a file has several",
    ),
)


def refuse_what_is_only_written(file: str, use: str = "show", *, asks_models: bool = False) -> None:
    """Raise UserError for a drawing, a page or a table, by its suffix, unless it holds JSON.

    `use` is what to do with the report that is saved instead; with `asks_models` a file that models read can
    be given to one.
    """
    path = Path(file)
    view = SUFFIXES.get(path.suffix.lower(), "json")
    if view in READ or not path.is_file():
        return
    with path.open("rb") as stream:
        if stream.read(64).lstrip()[:1] == b"{":
            return
    read = f"save the report as JSON too (-o {path.stem}.json) and {use} that"
    for key, kind in FILE_KINDS.items():
        if asks_models and kind.is_one(path):
            read += f"; --{key} {file} --model MODEL shows where a model looks in a {kind.name}"
    raise UserError(f"{file}: no report can be read from {path.suffix.lower()}: {read}")


def opened(
    file: str, tokens: str | None = None, context_tokens: str | None = None, array: str | None = None
) -> SavedReports:
    """The reports of a file; of an array one, for which torch is imported once all else is in order."""
    refuse_what_is_only_written(file)
    flags = {"tokens": tokens, "context_tokens": context_tokens, "array": array}
    most_bytes = available_bytes()
    if file == STDIN or not is_array_file(file):
        refuse_given(flags, f"is for arrays (.npz, .npy, .safetensors, .pt), and {file} is not one")
        try:
            return read_reports(file, most_bytes=most_bytes)
        except UserError as error:
            if "is not UTF-8 text" not in str(error):
                raise
            read = "attn show reads saved reports (.json, .jsonl, .npz, .safetensors) and arrays (.npy, .pt)"
            raise UserError(f"{'standard input' if file == STDIN else file}: is no text: {read}") from None
    if array is None and (report := read_array_report(file, most_bytes=most_bytes)) is not None:
        refuse_given(flags, f"is for arrays from another tool, and {file} is a report of attn")
        return SavedReports((report,), several=False)
    if tokens == context_tokens == STDIN:
        raise UserError("--context-tokens: cannot read stdin, too: --tokens does already")
    named_tokens, named_context = (
        None if name is None else read_tokens(name) for name in (tokens, context_tokens)
    )
    numbers, has_context = read_weights(file, name=array, most_bytes=most_bytes)
    if named_tokens is None and not has_context:
        named_tokens = tokens_beside(file, numbers.shape) or None
    weights = checked_weights(numbers, file, named_tokens, named_context, most_bytes=most_bytes)
    from attncli.runs.weight_rows import weights_report

    source = {"file": Path(file).name, "array": array}
    return SavedReports(
        (weights_report(weights, source, named_tokens or (), named_context or (), has_context=has_context),),
        several=False,
    )
