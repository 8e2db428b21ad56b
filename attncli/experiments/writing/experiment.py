"""A model writes, and for each new token where each head looked."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from attncli.experiments.attention_report import build_report
from attncli.experiments.draws import Progress
from attncli.experiments.reading.texts import Texts
from attncli.experiments.writing.prompt import Prompt, read_prompt
from attncli.experiments.writing.report_parts import ReportParts
from attncli.experiments.writing.rows import MOST_KEYS_OF_HEADS, WrittenRows
from attncli.inputs.capture.capture import Way
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.inputs.models.pretrained import Pretrained
from attncli.inputs.models.writing import Decoding, settings_notes, write
from attncli.report import Report
from attncli.spec.models.generate import GenerateSpec


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
    rows = WrittenRows(spec, prompt.prompt.ids, prompt.needle, special, pretrained.has_decoder)
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
