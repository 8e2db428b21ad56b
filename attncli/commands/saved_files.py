"""Saved reports and arrays read from files, for the commands that show them."""

from pathlib import Path

from attncli.commands.command import option, refuse_flags
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
        "Tokens of an array: one per line, or a JSON list.",
        "FILE",
        group="Input",
        everyday="a file with the array's tokens, one per line",
        reads_file=True,
    ),
    option(
        "--context-tokens",
        "Tokens of the array's keys, if they differ from the queries'.",
        "FILE",
        group="Input",
        everyday="tokens of the keys, if they differ from the queries'",
        reads_file=True,
    ),
    option(
        "--array",
        "The array to read from a file with several arrays.",
        "NAME",
        group="Input",
        everyday="the array to open, if the file has several arrays",
    ),
)


def refuse_unreadable_format(file: str, use: str = "show", *, suggests_models: bool = False) -> None:
    """Raise UserError for a picture, page or table, judged by the suffix, unless the file holds JSON.

    `use` is the verb for the JSON report that the message recommends. With `suggests_models`, the message
    also mentions the flag that gives the file to a model.
    """
    path = Path(file)
    view = SUFFIXES.get(path.suffix.lower(), "json")
    if view in READ or not path.is_file():
        return
    with path.open("rb") as stream:
        if stream.read(64).lstrip()[:1] == b"{":
            return
    advice = f"save the report as JSON (-o {path.stem}.json) and {use} that file"
    for key, kind in FILE_KINDS.items():
        if suggests_models and kind.is_one(path):
            advice += f"; use --{key} {file} --model MODEL to see where a model looks in a {kind.name}"
    raise UserError(f"{file}: reports cannot be read from {path.suffix.lower()} files: {advice}")


def opened(
    file: str, tokens: str | None = None, context_tokens: str | None = None, array: str | None = None
) -> SavedReports:
    """Return the reports in a file. Torch is imported only for an array, after all other checks."""
    refuse_unreadable_format(file)
    flags = {"tokens": tokens, "context_tokens": context_tokens, "array": array}
    most_bytes = available_bytes()
    if file == STDIN or not is_array_file(file):
        refuse_flags(flags, f"is only for arrays (.npz, .npy, .safetensors, .pt), but {file} is not an array")
        try:
            return read_reports(file, most_bytes=most_bytes)
        except UserError as error:
            if "is not UTF-8 text" not in str(error):
                raise
            readable = "saved reports (.json, .jsonl, .npz, .safetensors) and arrays (.npy, .pt)"
            name = "standard input" if file == STDIN else file
            raise UserError(f"{name}: is not text: attn show reads {readable}") from None
    if array is None and (report := read_array_report(file, most_bytes=most_bytes)) is not None:
        refuse_flags(flags, f"is only for arrays from another tool, but {file} is an attn report")
        return SavedReports((report,), several=False)
    if tokens == context_tokens == STDIN:
        raise UserError("--context-tokens: cannot read stdin, which --tokens already reads")
    query_tokens, key_tokens = (
        None if name is None else read_tokens(name) for name in (tokens, context_tokens)
    )
    numbers, has_context = read_weights(file, name=array, most_bytes=most_bytes)
    if query_tokens is None and not has_context:
        query_tokens = tokens_beside(file, numbers.shape) or None
    weights = checked_weights(numbers, file, query_tokens, key_tokens, most_bytes=most_bytes)
    from attncli.runs.weight_rows import weights_report

    source = {"file": Path(file).name, "array": array}
    return SavedReports(
        (weights_report(weights, source, query_tokens or (), key_tokens or (), has_context=has_context),),
        several=False,
    )
