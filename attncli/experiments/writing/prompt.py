"""What a model reads before it writes: the text, a question below it, a needle in it, the chat template."""

import os
import resource
import select
import signal
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import NoReturn

from attncli.errors import UserError
from attncli.experiments.reading.texts import Texts
from attncli.inputs.models.pretrained import ModelText, Pretrained, Reading
from attncli.memory import readable_bytes
from attncli.spec.models.generate import GenerateSpec

SENTENCE_ENDS = (". ", "! ", "? ", ".\n", "!\n", "?\n", "\n")
RENDERED = "\x02"
"""Stands before a prompt, since a reason is one line of text."""
MOST_SECONDS, MOST_MEMORY, MOST_REASON, PIPE_BYTES = 5, 512 * 2**20, 300, 2**20
MOST_COPIES, MOST_WRITTEN = 4, 10**6
"""How often a template may repeat the text, and how many characters it may add."""


@dataclass(frozen=True)
class Prompt(Reading):
    """With a decoder the prompt goes to the encoder; `needle` are the places of the needle in the prompt."""

    needle: tuple[int, ...] = ()

    @property
    def prompt(self) -> ModelText:
        """What was given."""
        return self.context or self.text


def read_prompt(spec: GenerateSpec, texts: Texts, pretrained: Pretrained) -> Prompt:
    """The prompt as the model reads it; UserError for what does not fit, and a needle that is not there."""
    assert texts.text is not None
    key = "file" if spec.file else "sentence"
    text = texts.text
    if spec.needle_depth is not None:
        text = _with_needle(spec, text, key, pretrained)
    if spec.question is not None:
        text = f"{text.rstrip()}\n\n{spec.question}"
    if spec.chat:
        text = _in_template(text, pretrained)
    if spec.prefill_chunk is not None and pretrained.has_decoder:
        raise UserError(f"prefill_chunk: {pretrained.name} has an encoder, which reads the prompt at once")
    num_new = 0 if pretrained.has_decoder else spec.max_new_tokens - 1
    most = pretrained.most_tokens()
    if most is not None and num_new >= most:
        raise UserError(
            f"max_new_tokens: must be at most {most} for {pretrained.name} (got {spec.max_new_tokens})"
        )
    has_needle_text = spec.needle is not None and spec.needle_tokens() is None
    if has_needle_text:
        _check_spans(pretrained)
    read = pretrained.read(
        text, key, truncate=spec.truncate, num_new=num_new, is_whole=spec.chat, with_spans=has_needle_text
    )
    needle = _needle(spec, text, read)
    if not pretrained.has_decoder:
        return Prompt(read, needle=needle)
    return Prompt(replace(read, tokens=(), ids=read.ids[:0]), read, needle)


def _in_template(text: str, pretrained: Pretrained) -> str:
    """The text in the model's own chat template, which is a program: it is rendered in a process of its own,
    which ends where it takes too long or too much. UserError for whatever goes wrong there.
    """
    if not pretrained.tokenizer.chat_template:
        raise UserError(f"chat: {pretrained.name} has no chat template: leave chat out")
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Of threads that may hold a lock: what follows takes none but Python's own.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if not process:
        os.close(reading)
        _render(text, pretrained, writing)
    os.close(writing)
    answer = _answer(reading, process)
    if not answer.startswith(RENDERED):
        raise UserError(f"chat: the chat template of {pretrained.name} fails: {answer}")
    return answer.removeprefix(RENDERED)


def _render(text: str, pretrained: Pretrained, writing: int) -> NoReturn:
    """Write the whole prompt after a mark, or in one line why there is none, and end this process."""
    code = 1
    try:
        _limit_memory()
        try:
            written = _rendered(text, pretrained).encode("utf-8", "surrogatepass")
        except MemoryError:
            written = f"it takes more than {readable_bytes(MOST_MEMORY)}".encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(written)
        code = 0
    except BaseException:  # a mistake of ours: the process that waits says so
        traceback.print_exc()
    os._exit(code)


def _limit_memory() -> None:
    """Where the system says how much this process has, it may take but little more."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        most = int(statm.read_text().split()[0]) * resource.getpagesize() + MOST_MEMORY
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


def _rendered(text: str, pretrained: Pretrained) -> str:
    message = [{"role": "user", "content": text}]
    try:
        whole = pretrained.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    except MemoryError:
        raise
    except Exception as error:  # a program of somebody else may fail in any way
        return " ".join(str(error).split())[:MOST_REASON] or type(error).__name__
    assert isinstance(whole, str)
    if len(whole) > len(text) * MOST_COPIES + MOST_WRITTEN:
        return f"it makes {len(whole):,} characters of {len(text):,}"
    return f"{RENDERED}{whole}"


def _answer(reading: int, process: int) -> str:
    """What a process writes until it ends; it is ended where it takes too long."""
    parts: list[bytes] = []
    end = monotonic() + MOST_SECONDS
    is_done = False
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        try:
            while not is_done and select.select([pipe], [], [], max(0.0, end - monotonic()))[0]:
                parts.append(pipe.read(PIPE_BYTES))
                is_done = not parts[-1]
        finally:
            if not is_done:
                os.kill(process, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if not is_done:
        return f"it takes more than {MOST_SECONDS} s"
    assert code != 1, "rendering failed: its traceback is above"
    return b"".join(parts).decode("utf-8", "surrogatepass") or f"its process ended with {code}"


def _needle(spec: GenerateSpec, text: str, read: ModelText) -> tuple[int, ...]:
    """The places of the needle's tokens: those that hold a character of it where it first occurs."""
    if spec.needle is None:
        return ()
    if (tokens := spec.needle_tokens()) is not None:
        if tokens[1] > len(read.ids):
            raise UserError(
                f"needle: must end at {len(read.ids)}, the number of tokens, or before (got {spec.needle})"
            )
        return tuple(range(*tokens))
    start = text.find(spec.needle)
    if start < 0:
        raise UserError(f"needle: is not in the prompt as it stands (got {spec.needle:.60})")
    end = start + len(spec.needle)
    assert read.spans is not None
    found = tuple(i for i, (first, last) in enumerate(read.spans) if max(first, start) < min(last, end))
    # Special tokens cover no characters.
    kept = [place for first, last in read.spans if first < last for place in (first, last)]
    needle = text[max(start, min(kept, default=0)) : min(end, max(kept, default=0))]
    if not found or (read.left_out and spec.needle.strip() not in needle):
        raise UserError("needle: is in the part of the text that was cut off")
    return found


def _check_spans(pretrained: Pretrained) -> None:
    """UserError for a tokenizer that does not say which characters a token covers."""
    if not pretrained.tokenizer.is_fast:
        message = "does not say which characters a token covers: give token positions, as 12:20"
        raise UserError(f"needle: {pretrained.name} {message}")


def _spans(text: str, pretrained: Pretrained) -> Sequence[tuple[int, int]]:
    """The characters of each token, without special ones."""
    _check_spans(pretrained)
    read = pretrained.encoded(
        text, return_offsets_mapping=True, add_special_tokens=False, padding=False, truncation=False
    )
    spans: list[tuple[int, int]] = read["offset_mapping"]
    return spans


def _with_needle(spec: GenerateSpec, text: str, key: str, pretrained: Pretrained) -> str:
    """The text, cut where asked for, with the needle after the sentence that ends at or before that share."""
    assert spec.needle is not None and spec.needle_depth is not None
    text = text.strip()
    if spec.lengths is not None:
        spans = _spans(text, pretrained)
        room = spec.lengths - len(_spans(spec.needle, pretrained))
        if not 0 < room <= len(spans):
            needed = f"{len(spans)} tokens and the needle {spec.lengths - room}"
            raise UserError(f"lengths: the {key} has {needed}: {spec.lengths} cannot be made of them")
        text = text[: spans[room - 1][1]]
    place = round(spec.needle_depth * len(text))
    if place < len(text):
        place = max((text.rfind(end, 0, place) + len(end) for end in SENTENCE_ENDS), default=0)
        place = place if place > max(map(len, SENTENCE_ENDS)) else 0
    parts = text[:place].rstrip(), spec.needle, text[place:].lstrip()
    return " ".join(filter(None, parts))
