"""How often each head looks along each syntactic relation, beside the best fixed offset."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from attncli.errors import UserError
from attncli.experiments.ablate.named_heads import AblatedHeads
from attncli.experiments.attention_report import build_report
from attncli.experiments.reading.many_texts import ManyTexts
from attncli.experiments.reading.texts import Texts
from attncli.experiments.relations.relation_counts import ALL, DIRECTIONS, RelationCounter, RelationCounts
from attncli.experiments.relations.sentence_file import ParsedSentence, SentenceFile
from attncli.experiments.survey.reading import refuse_merged
from attncli.inputs.capture.capture import capture
from attncli.inputs.models.pretrained import Pretrained, Reading
from attncli.report import Numbers, Report, Table
from attncli.spec.models.heads import HeadsSpec
from attncli.statistics.intervals import share_interval

HOW_NOTE = (
    "to head: the word that a dependent looks at most is its head; from head: the word that looks at it most "
    "is its head. Special tokens and the word itself do not count (Clark et al. 2019)."
)
BEST_NOTE = (
    "95 % intervals are Wilson's; more: the head beyond the offset, where the two intervals do not overlap. "
    "The best of {heads} heads was picked on these very words: expect a smaller share on others."
)


def report_relations(
    spec: HeadsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    """The best head of each relation, and every head's share of every relation's words.

    Clark et al. 2019 (1906.04341), section 4.2 and table 1. UserError for a model of two stacks, and for a
    tokenizer that does not tell where its tokens are in the text.
    """
    name = pretrained.name
    if pretrained.has_decoder:
        raise UserError(f"relations: {name} has an encoder and a decoder: relations are for one stack")
    if not pretrained.tokenizer.is_fast:
        raise UserError(f"relations: the tokenizer of {name} does not say where its tokens stand in the text")
    assert spec.relations is not None

    def read(sentence: ParsedSentence) -> Reading:
        text = pretrained.read(
            sentence.text, "relations", truncate=spec.truncate, words=lambda _: sentence.of_character
        )
        refuse_merged(spec, Reading(text).in_words(), pretrained, "shorter sentences")
        return Reading(text)

    counts = RelationCounts()
    way_notes: dict[str, None] = {}
    with SentenceFile(spec.relations) as file:
        many: ManyTexts[ParsedSentence] = ManyTexts(file, read, progress, key="relations")
        for batch in many.batches():
            sentences, readings = zip(*batch, strict=True)
            counter = RelationCounter(sentences, readings, counts)
            with ExitStack() as hooks:
                ablated = AblatedHeads(spec.ablate, pretrained, counter.take, hooks)
                way = capture(pretrained.model, pretrained.inputs(readings), ablated.take)
            way_notes |= dict.fromkeys(way.notes())
            ablated.check_all_found()
    if not counts.hits:
        raise UserError(
            f"relations: {file.label}: has no relation between two words that {name} can tell apart"
        )
    every = list(_every_head(counts))
    about = Numbers(
        num_sentences=many.num_read,
        num_words=counts.num_words,
        num_relations=counts.words[ALL],
        num_unaligned=counts.num_unaligned,
    )
    heads = _head_rows(every)
    notes = [
        f"{name}: {len(heads)} heads, on {counts.words[ALL]:,} relations in {many.num_read:,} sentences.",
        HOW_NOTE,
        BEST_NOTE.format(heads=f"{len(heads):,}"),
        *_unaligned(counts.num_unaligned),
        *many.notes(),
        *way_notes,
        *ablated.notes(),
    ]
    tables = {"relations": _best(every, counts), "heads": heads, "intervals": Table(every)}
    return build_report(spec, Texts(), {}, {**tables, "sentences": about}, notes)


def _unaligned(count: int) -> list[str]:
    relations = "1 relation is" if count == 1 else f"{count:,} relations are"
    why = "left out, of words without tokens of their own, or that were cut off."
    return [f"{relations} {why}"] if count else []


def _every_head(counts: RelationCounts) -> Iterator[dict[str, Any]]:
    """One row per relation, direction and head; the relations with the most words first."""
    order = sorted(counts.words, key=lambda name: (name != ALL, -counts.words[name], name))
    for name in order:
        count, number = counts.words[name], counts.numbers[name]
        for layer, hits in counts.hits.items():
            for direction, of_heads in zip(DIRECTIONS, _of_relation(hits, number), strict=True):
                for head, found in enumerate(of_heads):
                    lower, upper = share_interval(found, count)
                    yield {
                        **{"stack": "self", "layer": layer, "head": head, "statistic": f"{name}.{direction}"},
                        **{"relation": name, "direction": direction, "hits": found, "words": count},
                        **{"mean": found / count, "lower": lower, "upper": upper},
                    }


def _of_relation(hits: torch.Tensor, number: int) -> list[list[int]]:
    """The hits of each direction and head; zeros where a layer was last seen before the relation was."""
    found: list[list[int]] = (hits[:, number] if number < hits.shape[1] else hits[:, 0] * 0).tolist()
    return found


def _best(every: list[dict[str, Any]], counts: RelationCounts) -> Table:
    """For each relation the head that finds the most words, and the offset of the most syntactic heads."""
    best: dict[str, dict[str, Any]] = {}
    for row in every:
        best[row["relation"]] = max(best.get(row["relation"], row), row, key=lambda one: one["hits"])
    table = Table()
    for name, row in best.items():
        # Of equal ones the nearest, the one before the word first.
        offset, found = min(counts.offsets[name].items(), key=lambda one: (-one[1], abs(one[0]), one[0]))
        lower, upper = share_interval(found, counts.words[name])
        table.append(
            {
                **{key: row[key] for key in ("relation", "words", "layer", "head", "direction")},
                **{"share": row["mean"], "lower": row["lower"], "upper": row["upper"]},
                **{"offset": offset, "offset_share": found / counts.words[name]},
                **{"offset_lower": lower, "offset_upper": upper},
            }
        )
    return table


def _head_rows(every: list[dict[str, Any]]) -> Table:
    """One row per head, with its share of each relation's words in each direction."""
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for row in every:
        layer, head = row["layer"], row["head"]
        own = rows.setdefault((layer, head), {"layer": layer, "head": head, "kind": "self", "stack": "self"})
        own[row["statistic"]] = row["mean"]
    return Table(rows.values())
