"""A model writes, and for each new token where each head looked."""

import os
import resource
import select
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from time import monotonic
from typing import NoReturn

import torch
from torch import Tensor

from attncli.core.formulas import retrieval_score
from attncli.errors import UserError
from attncli.measure.writing import MOST_KEYS_OF_HEADS, WrittenRows
from attncli.memory import readable_bytes
from attncli.models.capture import Way
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.writing import Decoding, settings_notes, start_token, write
from attncli.report import NamedTensor, Numbers, Report, Row, Statistic, Table, Tensors
from attncli.report_parts import build_report, named
from attncli.settings.generate import GenerateSpec
from attncli.settings.text import Texts
from attncli.toys.sources import Progress

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
    return Prompt(replace(read, tokens=(), ids=read.ids[:0]), read, needle=needle)


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


MOST_MEAN_WEIGHTS = 2**22


@dataclass(frozen=True)
class ReportParts:
    """The rows of each new token, as tensors with the axes layer, head, query (and rank, key)."""

    spec: GenerateSpec
    prompt: Prompt
    rows: WrittenRows
    pretrained: Pretrained

    @property
    def written(self) -> list[int]:
        """The new tokens."""
        return [one.token for one in self.rows.tokens]

    def tokens(self) -> tuple[str, ...]:
        """What stands at the queries, and with one stack at the keys: all but the last token written."""
        if self.prompt.context is None:
            return (*self.prompt.text.tokens, *self.pretrained.labels(self.written[:-1]))
        return self.pretrained.labels([start_token(self.pretrained.whole), *self.written[:-1]])

    def context_tokens(self) -> tuple[str, ...]:
        """What stands at the keys of cross-attention."""
        return () if self.prompt.context is None else self.prompt.context.tokens

    @property
    def first_query(self) -> int:
        """The position of the query that chose the first token."""
        return len(self.prompt.text.ids) - 1 if self.prompt.context is None else 0

    def tensors(self) -> dict[str, NamedTensor]:
        """The weights that were asked for."""
        if self.spec.maps == "none":
            return {}
        each = [one.weights for one in self.rows.tokens]
        if self.spec.maps == "heads" and each[-1] is not None:
            whole = _by_query([weights for weights in each if weights is not None])
            return {"weights": self._placed_rows(whole, "query", "key")}
        means = [one.mean for one in self.rows.tokens]
        if len(means) * len(means[-1]) > MOST_MEAN_WEIGHTS:
            return {}
        return {"weights": named(_by_query(means), "query", "key")}

    def statistics(self) -> dict[str, Statistic]:
        """A row for each head, a row for each token, and every number of every row."""
        num_prompt, num_new = len(self.prompt.prompt.ids), len(self.written)
        found: dict[str, Statistic] = {
            "heads": self._ranked(self._heads()),
            "written": Table(self.rows.token_rows(self.pretrained.labels(self.written), self.first_query)),
            "writing": Numbers(prompt_tokens=num_prompt, new_tokens=num_new),
        }
        if self.prompt.needle:
            needle = {int(self.prompt.prompt.ids[place]) for place in self.prompt.needle}
            share = len(needle & {*self.written}) / len(needle)  # of its different tokens
            found["needle"] = Numbers(tokens=len(self.prompt.needle), copied=self.retrieval[1], found=share)
        return found | {"rows": self._rows()}

    @cached_property
    def retrieval(self) -> tuple[Tensor, int]:
        """The retrieval score of each head, and how many tokens were copied from the needle."""
        strongest = torch.stack([one.strongest for one in self.rows.tokens], dim=-1)
        ids, in_needle = self.rows.keys_after(len(self.written) - 1)
        return retrieval_score(strongest, torch.tensor(self.written), ids, in_needle)

    def needle_note(self) -> str:
        """What was copied of the needle."""
        first, last = self.prompt.needle[0], self.prompt.needle[-1]
        return f"The needle is at {first}-{last}; {self.retrieval[1]} of the new tokens are in it."

    def _ranked(self, heads: Table) -> Table:
        key, sign = self.spec.sort, 1 if self.spec.ascending else -1
        if key == "retrieval" and all(row.get(key) != row.get(key) for row in heads):
            key = "needle_mass"  # nothing was copied
        if key not in heads[0]:
            raise UserError(f"sort: {key} is for models of one stack, not for cross-attention")

        def rank(row: Row) -> float:
            value = row[key]
            return sign * value if isinstance(value, float) and value == value else inf

        return Table(sorted(heads, key=rank)[: self.spec.top])

    def _heads(self) -> Table:
        """The means over the new tokens; no number where none of them has one."""
        of_needle = {"retrieval": self.retrieval[0]} if self.prompt.needle else {}
        return Table(self.rows.head_rows(**of_needle))

    def _rows(self) -> Tensors:
        of_rows = {name: self._placed_rows(numbers, "query") for name, numbers in self.rows.numbers().items()}
        keys = torch.stack([one.top_keys for one in self.rows.tokens], dim=-2)
        weights = torch.stack([one.top_weights for one in self.rows.tokens], dim=-2)
        of_rows["top_keys"] = self._placed_rows(keys, "query", "rank")
        of_rows["top_weights"] = self._placed_rows(weights, "query", "rank")
        return Tensors(of_rows)

    def _placed_rows(self, tensor: Tensor, *axes: str) -> NamedTensor:
        """At the places of their layers, NaN or key -1 elsewhere; a chosen layer or head is not an axis."""
        if self.spec.layer is None:
            nothing = torch.nan if tensor.is_floating_point() else -1
            layers = [place.layer for place in self.rows.places]
            spread = tensor.new_full((max(layers) + 1, *tensor.shape[1:]), nothing)
            spread[layers] = tensor
            return named(spread, "layer", "head", *axes)
        if self.spec.head is None:
            return named(tensor[0], "head", *axes)
        return named(tensor[0, 0], *axes)


def _by_query(rows: list[Tensor]) -> Tensor:
    """Rows (…, key) of growing length as one tensor (…, query, key), 0 on the keys after each query."""
    most = rows[-1].shape[-1]
    padded = [torch.nn.functional.pad(row, (0, most - row.shape[-1])) for row in rows]
    return torch.stack(padded, dim=-2)


def read(spec: GenerateSpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Prompt:
    """What the model reads; UserError for what does not fit, and for a needle that is not there."""
    return read_prompt(spec, texts, pretrained)


def report_each(
    specs: Sequence[GenerateSpec],
    readings: Sequence[Prompt],
    pretrained: Pretrained,
    progress: Progress | None,
) -> list[Report]:
    """For each text what the model writes, one after the other: they end at different tokens."""
    return [_report(spec, prompt, pretrained, progress) for spec, prompt in zip(specs, readings, strict=True)]


def _report(spec: GenerateSpec, prompt: Prompt, pretrained: Pretrained, progress: Progress | None) -> Report:
    special = torch.tensor(sorted(pretrained.special_ids - pretrained.unknown_ids), dtype=torch.long)
    rows = WrittenRows(
        prompt.prompt.ids,
        special,
        needle=prompt.needle,
        is_cross=pretrained.has_decoder,
        layer=spec.layer,
        head=spec.head,
        top_k=spec.top_k,
        keeps_heads=spec.maps == "heads",
    )
    decoding = Decoding(spec.max_new_tokens, spec.temperature, spec.top_p, spec.seed, spec.prefill_chunk)
    ids = prompt.prompt.ids.unsqueeze(0).to(pretrained.model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    how, is_unfinished = Way("interface"), False
    try:
        take = _on_token(rows, pretrained, progress)
        how = write(pretrained.whole, inputs, decoding, take, pretrained.tokenizer)
    except KeyboardInterrupt:
        # A user who waits for this run alone gets what was written so far.
        if progress is None or not rows.tokens:
            raise
        is_unfinished = True
    if progress is not None:
        progress.write("\n\n")
    parts = ReportParts(spec, prompt, rows, pretrained)
    notes = [*_notes(parts, how, is_unfinished=is_unfinished), *prompt.left_out_notes()]
    read = Texts(parts.tokens(), parts.context_tokens(), token_spelling=pretrained.token_spelling)
    report = build_report(spec, read, parts.tensors(), parts.statistics(), notes)
    return replace(report, first_query=parts.first_query, is_unfinished=is_unfinished)


def _on_token(
    rows: WrittenRows, pretrained: Pretrained, progress: Progress | None
) -> Callable[[int, Sequence[CapturedLayer]], None]:
    """Keeps the rows of each token, and shows its text as progress: whole characters alone."""
    shown = ""

    def take(token: int, layers: Sequence[CapturedLayer]) -> None:
        nonlocal shown
        rows.take(token, layers)
        if progress is None:
            return
        text = pretrained.text_of([one.token for one in rows.tokens])
        if not text.endswith("\ufffd"):
            progress.write(text[len(shown) :])
            shown = text

    return take


def _notes(parts: ReportParts, how: Way, *, is_unfinished: bool) -> list[str]:
    spec, pretrained = parts.spec, parts.pretrained
    num_prompt, num_new = len(parts.prompt.prompt.ids), len(parts.written)
    notes = [f"{pretrained.name}: {num_prompt} tokens in the prompt, {num_new} new ones."]
    notes.append(f"Written: {' '.join(pretrained.text_of(parts.written).split())}")
    if is_unfinished:
        notes.append(f"Interrupted: it was to write {spec.max_new_tokens} tokens at most.")
    if spec.model is None:
        notes.append("This model ships with attn: it copies. --model FOLDER takes another.")
    if pretrained.has_decoder:
        notes.append("The rows are those of cross-attention: where the decoder looks in the prompt.")
    if parts.prompt.needle:
        notes.append(parts.needle_note())
    if spec.maps == "heads" and parts.rows.tokens[-1].weights is None:
        notes.append(f"Beyond {MOST_KEYS_OF_HEADS} keys the map is the mean over the heads.")
    notes += settings_notes(pretrained.whole.generation_config)
    return notes + how.notes()
