"""A model writes, and for each new token where each head looked."""

from collections.abc import Callable, Sequence
from math import inf

import torch

from attncli.errors import UserError
from attncli.experiments.attention_report import build_report
from attncli.experiments.draws import Progress
from attncli.experiments.reading.texts import Texts
from attncli.experiments.survey.experiment import EAGER_NOTE
from attncli.experiments.writing.found import Found, copied_note
from attncli.experiments.writing.prompt import Prompt, read_prompt
from attncli.experiments.writing.rows import MOST_KEYS_OF_HEADS, WrittenRows
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.inputs.models.pretrained import Pretrained
from attncli.inputs.models.writing import Decoding, write
from attncli.report import Report, Row, Table
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
    manner = Decoding(
        spec.max_new_tokens,
        None if spec.greedy else spec.temperature,
        None if spec.greedy else spec.top_p,
        spec.seed,
        spec.prefill_chunk,
    )
    ids = prompt.prompt.ids.unsqueeze(0).to(pretrained.model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    how, is_unfinished = "interface", False
    try:
        how = write(pretrained.whole, inputs, manner, _taken(rows, pretrained, progress))
    except KeyboardInterrupt:
        # Where somebody waits for this one alone, what there is, is shown.
        if progress is None or not rows.tokens:
            raise
        is_unfinished = True
    if progress is not None:
        progress.write("\n\n")
    found = Found(spec, prompt, rows, pretrained)
    notes = [*_notes(spec, found, pretrained, how, is_unfinished=is_unfinished), *prompt.left_out_notes()]
    read = Texts(found.tokens(), found.context_tokens(), token_spelling=pretrained.token_spelling)
    report = build_report(spec, read, found.tensors(), found.statistics(_chosen), notes)
    return found.placed(report, is_unfinished=is_unfinished)


def _taken(
    rows: WrittenRows, pretrained: Pretrained, progress: Progress | None
) -> Callable[[int, Sequence[CapturedLayer]], None]:
    """Keeps the rows of each token, and tells its text: whole characters alone."""
    told = ""

    def take(token: int, layers: Sequence[CapturedLayer]) -> None:
        nonlocal told
        rows.take(token, layers)
        if progress is None:
            return
        text = pretrained.text_of([one.token for one in rows.tokens])
        if not text.endswith("\ufffd"):
            progress.write(text[len(told) :])
            told = text

    return take


def _chosen(spec: GenerateSpec, heads: Table) -> Table:
    key, sign = spec.sort, 1 if spec.ascending else -1
    if key == "retrieval" and all(row.get(key) != row.get(key) for row in heads):
        key = "needle_mass"  # nothing was copied
    if key not in heads[0]:
        raise UserError(f"sort: {key} is for models of one stack, not for cross-attention")

    def rank(row: Row) -> float:
        value = row[key]
        return sign * value if isinstance(value, float) and value == value else inf

    return Table(sorted(heads, key=rank)[: spec.top])


def _notes(
    spec: GenerateSpec, found: Found, pretrained: Pretrained, how: str, *, is_unfinished: bool
) -> list[str]:
    num_prompt, num_new = len(found.prompt.prompt.ids), len(found.rows.tokens)
    notes = [f"{pretrained.name}: {num_prompt} tokens in the prompt, {num_new} new ones."]
    notes.append(f"Written: {' '.join(pretrained.text_of(found.written).split())}")
    if is_unfinished:
        notes.append(f"Interrupted: it was to write {spec.max_new_tokens} tokens at most.")
    if spec.model is None:
        notes.append("This model ships with attn: it copies. --model FOLDER takes another.")
    if pretrained.has_decoder:
        notes.append("The rows are those of cross-attention: where the decoder looks in the prompt.")
    if prompt_note := copied_note(found):
        notes.append(prompt_note)
    if spec.maps == "heads" and found.rows.tokens[-1].weights is None:
        notes.append(f"Beyond {MOST_KEYS_OF_HEADS} keys the map is the mean over the heads.")
    if how == "eager":
        notes.append(EAGER_NOTE)
    return notes
