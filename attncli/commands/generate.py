"""A model writes, and for each new token where each head looked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from attncli.commands.heads import pictures_of
from attncli.errors import UserError, readable_bytes
from attncli.measure.writing import (
    MOST_KEYS_OF_HEADS,
    Prompt,
    Writing,
    WrittenRows,
    read_picture_prompt,
    read_prompt,
    writing,
)
from attncli.models.pretrained import Pretrained
from attncli.models.stored import use_of
from attncli.models.writing import Decoding, settings_notes, start_token, writer_of
from attncli.report import NamedTensor, Numbers, Picture, Report, Row, Statistic, Table, Tensors
from attncli.report_parts import build_report, named
from attncli.settings.generate import GenerateSpec
from attncli.settings.text import Texts, text_or_file
from attncli.toys.attention import Progress

MOST_MEAN_WEIGHTS = 2**22


@dataclass(frozen=True)
class ReportParts:
    """The rows of each new token, as tensors with the axes layer, head, query (and rank, key)."""

    spec: GenerateSpec
    found: Writing
    pretrained: Pretrained

    @property
    def prompt(self) -> Prompt:
        """What was given."""
        return self.found.prompt

    @property
    def rows(self) -> WrittenRows:
        """What was kept of each new token."""
        return self.found.rows

    @property
    def written(self) -> list[int]:
        """The new tokens."""
        return self.found.tokens

    def tokens(self) -> tuple[str, ...]:
        """What stands at the queries, and with one stack at the keys: all but the last token written."""
        if self.prompt.context is None:
            return (*self.prompt.text.tokens, *self.pretrained.labels(self.written[:-1]))
        start = start_token(writer_of(self.pretrained.whole).model)
        return self.pretrained.labels([start, *self.written[:-1]])

    def context_tokens(self) -> tuple[str, ...]:
        """What stands at the keys of cross-attention."""
        return () if self.prompt.context is None else self.prompt.context.tokens

    def pictures(self) -> tuple[Picture, ...]:
        """Those that it read; what was written lies on none of them."""
        beside = (None,) * max(0, len(self.written) - 1)
        return tuple(
            one if one.axis == "context_tokens" else replace(one, boxes=one.boxes + beside)
            for one in pictures_of(self.prompt)
        )

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
        labels = self.pretrained.labels(self.written)
        found: dict[str, Statistic] = {
            "heads": self._ranked(self._heads()),
            "written": Table(self.rows.token_rows(labels, self.first_query, best=self.found.best_head)),
            "writing": Numbers(prompt_tokens=num_prompt, new_tokens=num_new),
        }
        if self.found.log_probabilities is not None:
            found["writing"] = Numbers(
                prompt_tokens=num_prompt,
                new_tokens=num_new,
                log_probability=float(self.found.log_probabilities.sum()),
            )
        if self.prompt.needle:
            needle = {int(self.prompt.prompt.ids[place]) for place in self.prompt.needle}
            share = len(needle & {*self.written}) / len(needle)  # of its different tokens
            found["needle"] = Numbers(
                tokens=len(self.prompt.needle), copied=self.found.retrieval[1], found=share
            )
        return found | {"rows": self._rows()}

    def needle_note(self) -> str:
        """What was copied of the needle."""
        first, last = self.prompt.needle[0], self.prompt.needle[-1]
        return f"The needle is at {first}-{last}; {self.found.retrieval[1]} of the new tokens are in it."

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
        of_needle = {"retrieval": self.found.retrieval[0]} if self.prompt.needle else {}
        return Table(self.rows.head_rows(**of_needle))

    def _rows(self) -> Tensors:
        of_rows = {name: self._placed_rows(numbers, "query") for name, numbers in self.rows.numbers().items()}
        ranks = slice(self.spec.top_k)
        keys = torch.stack([one.top_keys[..., ranks] for one in self.rows.tokens], dim=-2)
        weights = torch.stack([one.top_weights[..., ranks] for one in self.rows.tokens], dim=-2)
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
    if spec.image is not None:
        return read_picture_prompt(
            pretrained,
            spec.image,
            texts.text or "",
            max_new_tokens=spec.max_new_tokens,
            question=spec.question,
            chat=spec.chat,
        )
    assert texts.text is not None
    if spec.prefill_chunk is not None and pretrained.has_decoder:
        raise UserError(f"prefill_chunk: {pretrained.name} has an encoder, which reads the prompt at once")
    return read_prompt(
        pretrained,
        texts.text,
        max_new_tokens=spec.max_new_tokens,
        answer=None if spec.answer is None else text_or_file(spec.answer, "answer"),
        question=spec.question,
        chat=spec.chat,
        needle=spec.needle_tokens() or spec.needle,
        needle_depth=spec.needle_depth,
        length=spec.lengths,
        truncate=spec.truncate,
        key="file" if spec.file else "sentence",
    )


def report_each(
    specs: Sequence[GenerateSpec],
    readings: Sequence[Prompt],
    pretrained: Pretrained,
    progress: Progress | None,
) -> list[Report]:
    """For each text what the model writes, one after the other: they end at different tokens."""
    return [_report(spec, prompt, pretrained, progress) for spec, prompt in zip(specs, readings, strict=True)]


def _report(spec: GenerateSpec, prompt: Prompt, pretrained: Pretrained, progress: Progress | None) -> Report:
    if progress is not None:
        _tell_of_reading(pretrained, progress)
    found = writing(
        pretrained,
        prompt,
        Decoding(spec.max_new_tokens, spec.sampling_temperature, spec.top_p, spec.seed, spec.prefill_chunk),
        layer=spec.layer,
        head=spec.head,
        top_k=spec.top_k,
        keeps_heads=spec.maps == "heads",
        on_text=None if progress is None else progress.write,
    )
    if progress is not None and not prompt.answer:
        progress.write("\n\n")
    parts = ReportParts(spec, found, pretrained)
    num_prompt, num_new = len(prompt.prompt.ids), len(parts.written)
    read = Texts(parts.tokens(), parts.context_tokens(), token_spelling=pretrained.token_spelling)
    report = build_report(
        spec,
        read,
        parts.tensors(),
        parts.statistics(),
        [*_notes(parts), *prompt.left_out_notes()],
        about=f"{pretrained.name}: {num_prompt} tokens in the prompt, {num_new} "
        f"{'in the answer' if prompt.answer else 'new ones'}.",
        written=pretrained.text_of(parts.written),
        pictures=parts.pictures(),
    )
    return replace(report, first_query=parts.first_query, is_unfinished=found.is_unfinished)


def _tell_of_reading(pretrained: Pretrained, progress: Progress) -> None:
    """What a token will take, of a model that is read anew for each."""
    use = use_of(pretrained.whole)
    if use is not None and not use.keeps:
        size, seconds = use.one_run()
        each = f"{readable_bytes(size)} of {pretrained.name} for each token, at least {seconds:.2g} s"
        progress.tell(f"generate: reads {each}")


def _notes(parts: ReportParts) -> list[str]:
    spec, pretrained = parts.spec, parts.pretrained
    notes = []
    if parts.found.is_unfinished:
        notes.append(f"Interrupted: it was to write {spec.max_new_tokens} tokens at most.")
    if spec.model is None:
        notes.append("This model ships with attn: it copies. --model FOLDER takes another.")
    if parts.prompt.context is not None:
        where = "prompt" if parts.prompt.seen is None else "picture"
        notes.append(f"The rows are those of cross-attention: where the decoder looks in the {where}.")
    if parts.prompt.needle:
        notes.append(parts.needle_note())
    if spec.maps == "heads" and parts.rows.tokens[-1].weights is None:
        notes.append(f"Beyond {MOST_KEYS_OF_HEADS} keys the map is the mean over the heads.")
    if parts.found.log_probabilities is not None:
        total = float(parts.found.log_probabilities.sum())
        notes.append(f"The answer was read, not written: its log-probability is {total:.2f}.")
    else:
        notes += settings_notes(pretrained.whole.generation_config)
    return notes + parts.found.way.notes()
