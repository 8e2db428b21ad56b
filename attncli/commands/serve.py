"""`attn serve`: the page of a model that answers back, for whoever has its link, on this machine alone."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Event
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
from attncli.commands.generate import SENTENCE
from attncli.commands.output import first_words, progress_line
from attncli.core.progress import Stage
from attncli.errors import DONE, INTERRUPTED, UserError, is_about_memory, out_of_memory
from attncli.models.text_files import TokenIds
from attncli.plain_text import plain_text, readable_token
from attncli.settings import SPECS
from attncli.settings.fields import Given, checked_spec, in_words_of, with_maps
from attncli.settings.heads import HeadsSpec
from attncli.settings.models import ModelSpec
from attncli.settings.text import read_texts
from attncli.views import Display

if TYPE_CHECKING:
    from attncli.models.pretrained import Pretrained
    from attncli.report import Report
    from attncli.serving.guard import Secrets
    from attncli.serving.questions import AskedFor, Question

EXAMPLES = (
    "attn serve",
    'attn serve --model ./my-model "The capital of France is"',
    "attn serve --model ./my-model --port 8765",
)
OF_MODEL = ("model", "allow_download", "truncate", "dtype", "load", "device", "seed")
"""Settings that hold for every question."""
OF_FIRST_TEXT = ("sentence", "file")
PORT = option(
    "--port",
    "The port of 127.0.0.1 to serve at (default: a free one).",
    "INTEGER",
    kind=int,
    min=1,
    everyday="the port of 127.0.0.1 (a free one)",
)
TEXT = argument("text", "The text that is in the box at first.", "TEXT", required=False)
NAMES = {"sentence": "text", "max_new_tokens": "tokens to write"}
"""What the page calls a setting."""
MOST_PORT = 65535
NUM_NEXT = 12
AFTER_WRITING = "\n\n"
"""What `generate` writes below a text that is finished: nothing is left to stop."""
NO_TEXT = "text: type one first"
NO_HEADS = "heads: take one out first"
TWO_STACKS = "This model has an encoder, which reads the text, and a decoder, which writes after it."
NO_NEXT = "This model writes nothing: no next tokens, but heads, and what is lost without some of them."


class Heard:
    """Hears from a model while it works, and hands over what it writes; stopped, it does as Ctrl-C."""

    def __init__(self, stopped: Event, put: Callable[[str], None]) -> None:
        self.stopped, self.put = stopped, put

    def __call__(self, share: float, /) -> None:
        self._go_on()

    def _go_on(self) -> None:
        if self.stopped.is_set():
            raise KeyboardInterrupt

    def stage(self, stage: Stage, /) -> None:
        self._go_on()

    def if_long(self, ways_out: str, /) -> None:
        """It is waited for."""

    def write(self, text: str, /) -> None:
        self.put(json.dumps({"written": plain_lines(text)}))
        if text != AFTER_WRITING:
            self._go_on()

    def begin(self, text: str, /) -> None:
        """The page counts the seconds."""

    def tell(self, line: str, /) -> None:
        """Nobody reads it here."""

    def of_layers(self, number: int, count: int, /) -> None:
        self._go_on()


def plain_lines(text: str) -> str:
    """The text with its lines, and every other character made visible that would not be."""
    return "\n".join(map(plain_text, text.split("\n")))


@contextmanager
def named_as_on_page() -> Iterator[None]:
    """An error about a setting names it as the page does; others are flags of attn serve."""
    try:
        yield
    except UserError as error:
        parts = [line.partition(": ") for line in error.lines]
        named = [f"{NAMES.get(key, key)}{colon}{message}" for key, colon, message in parts]
        error.lines = tuple(in_words_of(line, flags=True) for line in named)
        raise


class ServedModel:
    """The model that is asked, as the commands ask it, with the settings that hold for every question."""

    def __init__(self, given: Mapping[str, Given], pretrained: "Pretrained") -> None:
        self.given = {key: given[key] for key in OF_MODEL if key in given and key != "allow_download"}
        self.pretrained = pretrained

    def asks(self) -> "list[AskedFor]":
        """What this model may be asked."""
        if self.pretrained.predicts == "next" and not self.pretrained.has_decoder:
            return ["heads", "next", "ablate", "why", "generate"]
        return ["heads", "ablate", "generate"] if self.pretrained.has_decoder else ["heads", "ablate"]

    def about(self) -> dict[str, Any]:
        """What the page knows of the model; in a line what is not for it."""
        has_decoder = self.pretrained.has_decoder
        remark = "" if self.pretrained.predicts == "next" else NO_NEXT
        return {
            "model": self.pretrained.name,
            "asks": self.asks(),
            "remark": TWO_STACKS if has_decoder else remark,
            "continues": not has_decoder,
        }

    def answer(self, question: "Question", stopped: Event, put: Callable[[str], None]) -> None:
        """The lines that answer a question: what is written, a report, announced before it, an error."""
        try:
            for line in self._lines(question, stopped, put):
                put(line)
        except KeyboardInterrupt:
            put(json.dumps({"stopped": True}))
        except UserError as error:
            put(json.dumps({"error": "; ".join(map(plain_text, error.lines))}))
        except Exception as error:
            if not is_about_memory(error):
                raise
            put(json.dumps({"error": out_of_memory(error)}))

    def _lines(self, question: "Question", stopped: Event, put: Callable[[str], None]) -> Iterator[str]:
        if question.ask not in self.asks():
            raise UserError(f"{question.ask}: is not for {self.pretrained.name}")
        if question.ask != "heads" and not question.text:
            raise UserError(NO_TEXT)
        if question.ask == "ablate" and not question.heads:
            raise UserError(NO_HEADS)
        if question.ask == "next":
            yield json.dumps({"next": self._next(question)})
            return
        report = self._report(question, Heard(stopped, put))
        from attncli.views.page import report_line

        said: dict[str, Any] = {"report": True}
        if question.ask == "generate":
            from attncli.records.writings import WrittenText

            written, counts = report.written or "", report.result_of(WrittenText).counts
            said |= {"text": written, "shown": plain_lines(written), "count": counts.new_tokens}
        yield json.dumps(said)
        yield report_line(report)

    def _settings(self, question: "Question") -> dict[str, Any]:
        """What the command of a question would be given beside the model."""
        settings: dict[str, Any] = {"sentence": question.text or None}
        if question.ask == "ablate":
            settings |= {"heads": [*question.heads], "jointly": len(question.heads) > 1}
        elif question.ask == "why":
            settings |= {"answer": question.answer}
        elif question.ask == "generate":
            settings |= {"max_new_tokens": question.steps}
        return {key: value for key, value in settings.items() if value is not None}

    def _report(self, question: "Question", heard: Heard) -> "Report":
        from attncli.runs.runner import run_loaded

        settings = {
            key: Given(value, NAMES.get(key, key), True) for key, value in self._settings(question).items()
        }
        given = with_maps(SPECS[question.ask], self.given | settings, "attn serve")
        spec = checked_spec(SPECS[question.ask], given)
        assert isinstance(spec, ModelSpec)
        if spec.model is not None:  # a page needs no more of its place
            spec = spec.model_copy(update={"model": self.pretrained.name})
        with named_as_on_page():
            return run_loaded(spec, self.pretrained, None, heard)

    def _next(self, question: "Question") -> list[dict[str, Any]]:
        """The next tokens, as the page shows them and as `why` takes each for its answer."""
        from attncli.library import next_tokens
        from attncli.models.pretrained import read_text

        pretrained = self.pretrained
        given = self.given | {"sentence": Given(question.text, "text", True)}
        spec = checked_spec(HeadsSpec, given)
        with named_as_on_page():
            reading = read_text(pretrained, question.text, key="sentence", truncate=spec.truncate)
            tokens = next_tokens(pretrained, reading, heads=question.heads, top=NUM_NEXT).tokens
        spelling = pretrained.token_spelling
        return [
            {
                "token": plain_text(readable_token(row.token, spelling)),
                "answer": _as_answer(pretrained.text_of([row.token_id]) or row.token, spelling),
                "probability": row.probability,
                **({"without": row.without} if question.heads else {}),
            }
            for row in tokens
        ]


def _as_answer(text: str, spelling: str | None) -> str:
    """A token as `why` takes it: in quotes as it stands, where its text has the blank before it, too."""
    return f'"{text}"' if spelling == "byte-level" and '"' not in text else text


def opened_model(spec: HeadsSpec, given: Mapping[str, Given]) -> ServedModel:
    """The model with what predicts tokens, where it has that. UserError for one that reads no text."""
    from attncli.models.folder import quiet_transformers
    from attncli.runs.runner import check_before_reading, model_of, page_of

    check_before_reading(spec)
    with progress_line() as progress:
        progress.begin(first_words([spec.model_source()]))
        page_of(spec)
        quiet_transformers()  # its messages would stand between the lines of the server
        pretrained = model_of(spec, progress, with_head=True)
    pretrained.check_reads_text()
    return ServedModel(given, pretrained)


def check_packages_of_serve() -> None:
    """UserError where what serves is not installed."""
    if any(find_spec(package) is None for package in ("starlette", "uvicorn")):
        raise UserError('serve: needs: pip install "attncli[serve]"')


def serve(text: str | None, config: str | None, port: int | None, sentence: str | None, **flags: Any) -> int:
    """Serve the page until Ctrl-C."""
    check_packages_of_serve()
    if text is not None:
        if sentence is not None:
            raise UserError(f"--sentence: cannot be combined with the argument ({text}): give one")
        refuse_file_name(text)
    if port is not None and port > MOST_PORT:
        raise UserError(f"--port: must be at most {MOST_PORT} (got {port})")
    given = given_settings("heads", config, {**flags, "sentence": sentence or text})
    for key in given.keys() - {*OF_MODEL, *OF_FIRST_TEXT}:
        raise UserError(given[key].line(key, "is not for attn serve, whose page is asked"))
    spec = checked_spec(HeadsSpec, given)
    from attncli.serving.guard import Secrets
    from attncli.serving.questions import OneModel
    from attncli.serving.server import ServedPage, app, bound_socket, server_of
    from attncli.views.page import served_page

    with bound_socket(port or 0) as listening, errors_at(spec, given, config):
        first_text = read_texts(spec).text or ""
        if isinstance(first_text, TokenIds):
            raise UserError("file: must hold a text, for the box of the page (got token ids)")
        served = opened_model(spec, given)
        about = served.about()
        is_shipped = spec.model is None and not first_text
        page = served_page({**about, "text": SENTENCE if is_shipped else first_text}, Display())
        secrets, model = Secrets(), OneModel(served.answer)
        server = server_of(app(ServedPage(*page), model, secrets))
        listening.listen()  # whoever opens the link at once waits for the server
        say_where(secrets, listening.getsockname()[1])
        try:
            server.run(sockets=[listening])
        except (KeyboardInterrupt, SystemExit) as ended:
            listening.close()
            if model.end():  # Python would wait for what it computes
                leave(ended)
            raise
    return DONE


def say_where(secrets: "Secrets", port: int) -> None:
    """The link on standard output; how to end it, and how to reach it from elsewhere, beside it."""
    print(secrets.link(port), flush=True)
    lines = (
        "The link is a key: whoever opens it here may ask the model. Ctrl-C ends it.",
        f"To open it from another machine, type there: ssh -L {port}:127.0.0.1:{port} HOST",
    )
    print("\n".join(lines), file=sys.stderr, flush=True)


def leave(ended: BaseException) -> NoReturn:
    """End the process at once, with the exit code of the signal."""
    code = ended.code if isinstance(ended, SystemExit) and isinstance(ended.code, int) else INTERRUPTED
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def command(name: str, summary: str) -> Command:
    """The command, with those flags of the survey that say which model, and what it reads at first."""
    settings = [each for each in setting_options(HeadsSpec) if each.name in (*OF_MODEL, *OF_FIRST_TEXT)]
    parameters: list[Parameter] = [TEXT, *settings, PORT, CONFIG, DEBUG]
    return Command(name, summary, serve, parameters, EXAMPLES)
