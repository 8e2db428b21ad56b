"""`attn serve`: an interactive page about a model on this machine, for the owner of its link."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NoReturn

from attncli.commands.command import (
    CONFIG,
    DEBUG,
    Command,
    Parameter,
    argument,
    given_settings,
    option,
    setting_options,
)
from attncli.commands.experiment import errors_at, refuse_file_name
from attncli.commands.output import first_words, progress_line
from attncli.errors import DONE, INTERRUPTED, UserError
from attncli.features.generate.question import SENTENCE
from attncli.records.token_ids import TokenIds
from attncli.settings.fields import Given, checked_spec
from attncli.settings.heads import HeadsSpec
from attncli.settings.text import read_texts
from attncli.system.plain_text import plain_text
from attncli.views import Display

if TYPE_CHECKING:
    from attncli.features.serve.guard import Secrets
    from attncli.features.serve.served_model import ServedModel

EXAMPLES = (
    "attn serve",
    'attn serve --model ./my-model "The capital of France is"',
    "attn serve --model ./my-model --port 8765",
)
MODEL_KEYS = ("model", "allow_download", "truncate", "dtype", "load", "device", "seed")
"""Settings that apply to every question."""
TEXT_KEYS = ("sentence", "file")
PORT = option(
    "--port",
    "The port on 127.0.0.1 to serve on (default: a free port).",
    "INTEGER",
    kind=int,
    min=1,
    everyday="the port on 127.0.0.1 (default: a free port)",
)
TEXT = argument("text", "The initial text of the page.", "TEXT", required=False)
MODEL = "a folder, a .gguf file or a package's name (tiny-induction)"
MOST_PORT = 65535


def opened_model(spec: HeadsSpec, given: Mapping[str, Given]) -> "ServedModel":
    """Open the model, with its prediction head if it has one.

    Raises UserError for a model that does not read text.
    """
    from attncli.models.folder import quiet_transformers
    from attncli.runs.runner import check_before_reading, model_of, page_of

    check_before_reading(spec)
    with progress_line() as progress:
        words = first_words([spec.model_source()])
        progress.begin(words)
        if not sys.stderr.isatty():  # in a log, nothing would be printed while the model is read
            print(f"{words}: the link follows", file=sys.stderr, flush=True)
        page_of(spec)
        quiet_transformers()  # the model's messages would mix with the server's
        pretrained = model_of(spec, progress, with_head=True)
    pretrained.check_reads_text()
    from attncli.features.serve.served_model import ServedModel

    return ServedModel({key: given[key] for key in MODEL_KEYS if key in given}, pretrained)


def check_packages() -> None:
    """Raise UserError if the server's packages are not installed."""
    if any(find_spec(package) is None for package in ("starlette", "uvicorn")):
        raise UserError('serve: needs: pip install "attncli[serve]"')


def serve(text: str | None, config: str | None, port: int | None, sentence: str | None, **flags: Any) -> int:
    """Serve the page until Ctrl-C is pressed."""
    check_packages()
    if text is not None:
        if sentence is not None:
            raise UserError(f"--sentence: cannot be combined with the argument ({text}): use one of them")
        refuse_file_name(text)
    if port is not None and port > MOST_PORT:
        raise UserError(f"--port: must be at most {MOST_PORT} (got {port})")
    given = given_settings("heads", config, {**flags, "sentence": sentence or text})
    for key in given.keys() - {*MODEL_KEYS, *TEXT_KEYS}:
        raise UserError(
            given[key].line(key, "cannot be used with attn serve: questions are asked on its page")
        )
    spec = checked_spec(HeadsSpec, given)
    from attncli.features.serve.guard import Secrets
    from attncli.features.serve.page import served_page
    from attncli.features.serve.questions import ASKS, OneModel
    from attncli.features.serve.server import MOST_CONNECTIONS, ServedPage, app, bound_socket, make_server

    with bound_socket(port or 0) as listening, errors_at(spec, given, config):
        first_text = read_texts(spec).text or ""
        if isinstance(first_text, TokenIds):
            raise UserError("file: must contain text for the page to show (got token ids)")
        served = opened_model(spec, given)
        about = served.about()
        is_shipped = spec.model is None and not first_text
        page = served_page({**about, "text": SENTENCE if is_shipped else first_text}, ASKS, Display())
        secrets, model = Secrets(), OneModel(served.answer)
        server = make_server(app(ServedPage(*page), model, secrets))
        listening.listen(MOST_CONNECTIONS)  # accept connections before the link is printed
        port = listening.getsockname()[1]
        say_where(served.pretrained.name, secrets, port, is_shipped=spec.model is None)
        try:
            server.run(sockets=[listening])
        except (KeyboardInterrupt, SystemExit) as ended:
            listening.close()
            if model.end():  # otherwise Python would wait for the running computation
                leave(ended)
            raise
    return DONE


def say_where(name: str, secrets: "Secrets", port: int, *, is_shipped: bool) -> None:
    """Print the link to standard output, and instructions for opening it to standard error."""
    print(secrets.link(port), flush=True)
    shipped = ", which ships with attn (use --model for another)" if is_shipped else ""
    about = (
        f"The link opens {plain_text(name)}{shipped}. Paste it into the browser's address bar. Keep it "
        "secret: anyone who opens it on this machine can use the model. Ctrl-C ends the server."
    )
    elsewhere = "To open the page from another machine, run this command there, then open the link:"
    lines = [
        *wrapped_lines(about),
        *wrapped_lines(elsewhere),
        f"  ssh -L {port}:127.0.0.1:{port} HOST",
        f"Use --port {port} to keep this port for the next server.",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def wrapped_lines(text: str) -> list[str]:
    """Wrap a text to the width of the terminal, up to 80 characters."""
    width = min(80, get_terminal_size().columns)
    return wrap(text, width, break_long_words=False, break_on_hyphens=False)


def leave(ended: BaseException) -> NoReturn:
    """End the process immediately, with the exit code of the signal."""
    code = ended.code if isinstance(ended, SystemExit) and isinstance(ended.code, int) else INTERRUPTED
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def command(name: str, summary: str) -> Command:
    """Return the command, with the survey's flags for a model and a first text."""
    settings = [each for each in setting_options(HeadsSpec) if each.name in (*MODEL_KEYS, *TEXT_KEYS)]
    settings = [replace(each, everyday=MODEL) if each.name == "model" else each for each in settings]
    parameters: list[Parameter] = [TEXT, *settings, PORT, CONFIG, DEBUG]
    return Command(name, summary, serve, parameters, EXAMPLES)
