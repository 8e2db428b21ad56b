"""The model behind `attn serve`, which answers questions in the same way as the commands."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import Event
from time import monotonic
from typing import Any

import torch

from attncli.core.progress import Stage
from attncli.errors import UserError, is_about_memory, out_of_memory
from attncli.features.generate.results import WrittenText
from attncli.features.serve.page import report_line
from attncli.features.serve.questions import HAS_STOPPED, AskedFor, Question
from attncli.features.why.door import why
from attncli.measure.next_tokens import ProbabilityCache, expected_next
from attncli.models.loading import in_use
from attncli.models.predicted import predicted_reading
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.reading_text import read_text
from attncli.models.removal import few_tokens, heads_removed
from attncli.models.stored import showing_blocks
from attncli.records.report import Report
from attncli.runs.runner import model_page_of, run_loaded
from attncli.settings import SPECS
from attncli.settings.fields import Given, checked_spec, with_key_names, with_maps
from attncli.settings.heads import HeadsSpec
from attncli.settings.models import ModelSpec
from attncli.system.plain_text import plain_text, readable_token

NAMES = {
    "sentence": "text",
    "max_new_tokens": "tokens to write",
    "ablate": "heads",
    "from": "looks from",
    "to": "looks to",
}
"""The names of settings on the page."""
NUM_NEXT = 12
SECONDS_BETWEEN_SHARES = 0.5
AFTER_WRITING = "\n\n"
"""What `generate` writes after the last token, when there is no generation left to stop."""
NO_TEXT = "text: must not be empty: type a text first"
TWO_STACKS = "This model has an encoder that reads the text, and a decoder that generates the output."
NO_WHY = "attn cannot attribute the next tokens of this model to heads."
NO_NEXT = "This model does not generate text: the page shows and ablates heads, but has no next tokens."


class Heard:
    """Receives the model's progress and sends generated text to the page; a stop acts like Ctrl-C.

    With `says_share`, it also sends the share that is done.
    """

    def __init__(self, stopped: Event, put: Callable[[str], None], *, says_share: bool) -> None:
        self.stopped, self.put, self.says_share = stopped, put, says_share
        self.said_at = monotonic()

    def __call__(self, share: float, /) -> None:
        self._go_on()
        if self.says_share and monotonic() - self.said_at >= SECONDS_BETWEEN_SHARES:
            self.said_at = monotonic()
            self.put(json.dumps({"share": share}))

    def _go_on(self) -> None:
        if self.stopped.is_set():
            raise KeyboardInterrupt

    def stage(self, stage: Stage, /) -> None:
        self._go_on()

    def if_long(self, ways_out: str, /) -> None:
        """Ignore the hint, because the user is waiting anyway."""

    def write(self, text: str, /) -> None:
        self.put(json.dumps({"written": plain_lines(text)}))
        if text != AFTER_WRITING:
            self._go_on()

    def begin(self, text: str, /) -> None:
        """Ignore the line, because the page counts the seconds."""

    def tell(self, line: str, /) -> None:
        """Ignore the line, because nobody reads it here."""

    def begin_layer(self, number: int, count: int, /) -> None:
        self._go_on()


def plain_lines(text: str) -> str:
    """Return the text with its line breaks, and with every invisible character made visible."""
    return "\n".join(map(plain_text, text.split("\n")))


@contextmanager
def page_setting_names() -> Iterator[None]:
    """Name settings in errors as the page does; name other settings as flags of attn serve."""
    try:
        yield
    except UserError as error:
        parts = [line.partition(": ") for line in error.lines]
        lines = [f"{NAMES.get(key, key)}{colon}{message}" for key, colon, message in parts]
        error.lines = tuple(
            with_key_names(line, flags=True).replace(" --", " attn serve --") for line in lines
        )
        raise


class ServedModel:
    """The model, with the settings that apply to every question."""

    def __init__(self, given: Mapping[str, Given], pretrained: Pretrained) -> None:
        self.given = {key: each for key, each in given.items() if key != "allow_download"}
        if (
            "model" in self.given
        ):  # A Spec needs an existing folder: the shipped model always exists, and the model is already open.
            self.given |= {"model": Given(HeadsSpec.default_model, "--model", True)}
        self.pretrained = pretrained
        self.known = ProbabilityCache()

    @cached_property
    def asks(self) -> list[AskedFor]:
        """The questions that this model can answer."""
        if self.pretrained.has_decoder:
            return ["heads", "ablate", "generate"]
        if self.pretrained.predicts != "next":
            return ["heads", "ablate"]
        asks: list[AskedFor] = ["heads", "next", "ablate", "generate"]
        try:
            with in_use(self.pretrained) as pretrained:
                why(pretrained, few_tokens(pretrained))
        except UserError:
            return asks
        return [*asks, "why"]

    def about(self) -> dict[str, Any]:
        """Return what the page says about the model, with a remark on questions that it cannot answer."""
        has_decoder = self.pretrained.has_decoder
        remark = "" if self.pretrained.predicts == "next" else NO_NEXT
        if "next" in self.asks and "why" not in self.asks:
            remark = NO_WHY
        return {
            "model": self.pretrained.name,
            "asks": self.asks,
            "remark": TWO_STACKS if has_decoder else remark,
            "continues": not has_decoder,
        }

    def answer(self, question: Question, stopped: Event, put: Callable[[str], None]) -> None:
        """Send the lines that answer a question: generated text, an announcement and report, or an error."""
        try:
            for line in self._lines(question, stopped, put):
                put(line)
        except KeyboardInterrupt:
            put(HAS_STOPPED)
        except UserError as error:
            put(json.dumps({"error": "; ".join(map(plain_text, error.lines))}))
        except Exception as error:
            if not is_about_memory(error):
                raise
            put(json.dumps({"error": out_of_memory(error)}))

    def _lines(self, question: Question, stopped: Event, put: Callable[[str], None]) -> Iterator[str]:
        if question.ask not in self.asks:
            raise UserError(f"{question.ask}: is not available for {self.pretrained.name}")
        if question.ask != "heads" and not question.text:
            raise UserError(NO_TEXT)
        heard = Heard(stopped, put, says_share=question.ask == "ablate")
        with (
            in_use(self.pretrained) as pretrained,
            showing_blocks(pretrained.whole, heard.begin_layer, in_memory=True),
            page_setting_names(),
        ):
            if question.ask == "next":
                yield json.dumps({"next": self._next(question, pretrained)})
                return
            name = title = ""
            if question.ask == "why":
                report, name, title = self._why(question, pretrained, heard)
            else:
                report = self._report(question, pretrained, heard)
        announcement: dict[str, Any] = {"report": True, "name": name or question.ask}
        if question.ask == "generate":
            text = _written_text(report, pretrained)
            count = report.result_of(WrittenText).counts.new_tokens
            announcement |= {"text": text, "shown": plain_lines(text), "count": count}
        yield json.dumps(announcement)
        without = () if question.ask == "ablate" else question.heads
        yield report_line(report, name=title, without=without)

    def _settings(self, question: Question) -> dict[str, Any]:
        """Return the settings for a question's command, except the model."""
        settings: dict[str, Any] = {"sentence": question.text or None}
        if question.ask == "ablate":
            settings |= {"heads": [*question.heads] or None, "jointly": len(question.heads) > 1}
        elif question.ask == "heads":
            settings |= {"ablate": [*question.heads] or None}
            settings |= {"from": [*question.queries] or None, "to": [*question.keys] or None}
        elif question.ask == "generate":
            settings |= {"max_new_tokens": question.steps}
        return {key: value for key, value in settings.items() if value is not None}

    def _spec(self, question: Question) -> ModelSpec:
        """Return the validated settings for a question's command."""
        settings = {
            key: Given(value, NAMES.get(key, key), True) for key, value in self._settings(question).items()
        }
        experiment = SPECS["heads" if question.ask == "next" else question.ask]
        spec = checked_spec(experiment, with_maps(experiment, self.given | settings, "attn serve"))
        assert isinstance(spec, ModelSpec)
        return spec if spec.model is None else spec.model_copy(update={"model": self.pretrained.name})

    def _reading(self, question: Question, pretrained: Pretrained) -> Reading:
        """Read the text with the model."""
        truncate = self._spec(question).truncate
        return read_text(pretrained, question.text, key="sentence", truncate=truncate)

    def _report(self, question: Question, pretrained: Pretrained, heard: Heard) -> Report:
        """Run the question's command, with the chosen heads ablated."""
        spec = self._spec(question)
        if question.ask == "ablate":
            return run_loaded(spec, pretrained, None, heard)
        if question.ask == "heads":  # ablates heads through a setting
            if "next" not in self.asks or not question.text:
                return run_loaded(spec, pretrained, None, heard)
            with self.known.filled_by_run(pretrained, self._reading(question, pretrained), question.heads):
                return run_loaded(spec, pretrained, None, heard)
        with heads_removed(question.heads, pretrained, key="heads"):
            return run_loaded(spec, pretrained, None, heard)

    def _why(self, question: Question, pretrained: Pretrained, heard: Heard) -> tuple[Report, str, str]:
        """Explain the chosen or the most likely next token; return the report, with its name and title."""
        spec, reading = self._spec(question), self._reading(question, pretrained)
        probabilities = self.known.get(pretrained, reading, question.heads)
        token = int(probabilities.argmax()) if question.token is None else question.token
        answered = predicted_reading(reading, pretrained, torch.Generator(), answer=token)
        with heads_removed(question.heads, pretrained, key="heads"):
            (report,) = model_page_of(spec).reports([spec], [answered], pretrained, heard)
        (label,) = pretrained.labels([token])
        probability = float(probabilities[token])
        share = f"{100 * probability:.{1 if probability >= 0.1 else 2}f} %"
        token_name = readable_token(label, pretrained.token_spelling)
        return report, plain_text(f"why {token_name}"), f"Why {token_name} ({share}) comes next"

    def _next(self, question: Question, pretrained: Pretrained) -> list[dict[str, Any]]:
        """Return the next tokens for the page, with their ids for `why`."""
        reading = self._reading(question, pretrained)
        tokens = expected_next(
            pretrained, reading, heads=question.heads, top=NUM_NEXT, cache=self.known
        ).tokens
        spelling = pretrained.token_spelling
        return [
            {
                "token": plain_text(readable_token(row.token, spelling)),
                "id": row.token_id,
                "probability": row.probability,
                **({"without": row.without} if question.heads else {}),
            }
            for row in tokens
        ]


def _written_text(report: Report, pretrained: Pretrained) -> str:
    """Return the generated text, with special tokens spelled as in the vocabulary."""
    labels = [row.token for row in report.result_of(WrittenText).tokens]
    special = {*pretrained.labels([*pretrained.special_ids])}
    if special.isdisjoint(labels):
        return report.written or ""
    ids: Any = pretrained.tokenizer.convert_tokens_to_ids(labels)
    return pretrained.text_of(ids, with_special=True)
