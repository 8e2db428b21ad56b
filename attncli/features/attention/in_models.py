"""Self-, multi-head and cross-attention in one layer of a model, as reports."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.commands.surveys import ablated_notes
from attncli.core.engines import attend
from attncli.core.formulas import Plane
from attncli.core.layer import AttentionLayer, Computed, Wanted
from attncli.core.names import head_range
from attncli.core.summaries import moments
from attncli.errors import UserError, refuse_bytes
from attncli.features.attention.settings import CrossOfModelSpec, MultiheadOfModelSpec, SelfOfModelSpec
from attncli.measure.masks import layer_mask, scale_of
from attncli.models.architectures import output_projection, source_of
from attncli.models.capture import Way, capture
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.openers import OPENERS, FileInput
from attncli.models.pretrained import Pretrained, Reading, attention_between_words, reader_of, stack_texts
from attncli.models.reading_text import shifted_right, tokens_of_text
from attncli.models.removal import heads_removed
from attncli.models.side_by_side import of_this_run
from attncli.models.token_names import check_tokens_named, positions_that_look, token_named
from attncli.models.words import words_of_characters
from attncli.records.attention import LayerStatistics, ScoreMoments, ScoreRule
from attncli.records.report import NamedTensor, Report, Step
from attncli.runs.report_parts import WORDS_NOTE, build_report, named
from attncli.runs.weight_rows import LeadingAxes, row_tensors
from attncli.settings.fields import BYTES_PER_TOP_KEY, BYTES_PER_WEIGHT
from attncli.settings.pages import ModelPage
from attncli.settings.text import Texts, explained_token

AttentionOfModel = SelfOfModelSpec | MultiheadOfModelSpec | CrossOfModelSpec


class ChosenLayer:
    """Stores the layer of a given kind and number when the model computes it, and then stops the model.

    In an encoder-decoder model, self-attention is the encoder's. Without a number, the first layer that has
    attention is stored, since not every layer does. `with_output` also stores the output of W_O.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        hooks: ExitStack,
        *,
        kind: str,
        number: int | None,
        head: int | None,
        with_output: bool,
    ) -> None:
        self.pretrained = pretrained
        self.hooks = hooks
        self.kind, self.number, self.head, self.with_output = kind, number, head, with_output
        self.stack = "encoder" if pretrained.has_decoder and kind == "self" else None
        self.layer: CapturedLayer | None = None
        self.output: Tensor | None = None
        self.num_heads: dict[int, int] = {}

    def take(self, layer: CapturedLayer) -> None:
        """Store the layer if it is the chosen one, and stop the model now or after its W_O."""
        if self.layer is not None or layer.kind != self.kind or self.stack not in (None, layer.stack):
            return
        self.num_heads[layer.layer] = layer.attention.shape[1]
        if self.number is not None and layer.layer != self.number:
            return
        self.layer = layer
        projection = self._projection(layer)
        if projection is None:
            raise StopCapture
        self.hooks.enter_context(projection.register_forward_hook(of_this_run(self._take_output)))

    def _projection(self, layer: CapturedLayer) -> nn.Module | None:
        attention = layer.attention
        if not self.with_output or not isinstance(attention, AttentionLayer):
            return None
        in_dim = attention.num_heads * attention.value.shape[-1]
        return output_projection(self.pretrained.model, layer.module, in_dim)

    def _take_output(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        """Store the output of W_O, whose input has passed any gates and norms that follow the heads."""
        assert self.layer is not None
        num_texts, _, num_queries, _ = self.layer.attention.shape
        self.output = output.reshape(num_texts, num_queries, -1)
        raise StopCapture

    def chosen(self) -> CapturedLayer:
        """The stored layer. Raises UserError if the model has no such layer."""
        if self.layer is not None:
            return self.layer
        name = self.pretrained.name
        if not self.num_heads:
            where = f" ({self.stack})" if self.stack else ""
            raise UserError(f"model: no {self.kind}-attention can be read from {name}{where}")
        numbers = sorted(self.num_heads)
        mixer = None if self.number is None else self.pretrained.layer_mixer(self.number)
        mixer_note = ""
        if mixer is not None:
            advice = ": use attn heads or attn generate" if source_of(mixer) else ""
            mixer_note = f"; layer {self.number} ({mixer}) has no softmax{advice}"
        if self.head is not None:
            got = f"(got {self.number}:{self.head}){mixer_note}"
            raise UserError(f"head: {head_range(self.num_heads)} in {name} {got}")
        layers = f"{len(numbers)} {self.kind}-attention layer{'s' * (len(numbers) > 1)}"
        is_whole = numbers == list(range(len(numbers)))
        valid = f"below {len(numbers)}" if is_whole else f"one of {', '.join(map(str, numbers))}"
        raise UserError(f"layer: must be {valid} (got {self.number}): {name} has {layers}{mixer_note}")


def read(spec: AttentionOfModel, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    """Read the text for the queries and, if the model has a decoder, the text for its encoder.

    Raises UserError if the model cannot read the texts, if the model lacks cross-attention, or if a named
    token is not in the texts.
    """
    if (file := spec.read_file) is not None:
        file_input = FileInput(file.name, texts.text, spec.truncate, is_cross=spec.reads_context)
        reading = OPENERS[file.what].read_for_layer(pretrained, file_input)
        _explained_position(spec, reading, pretrained)
        check_tokens_named(spec.looking_tokens(), [reading.text], pretrained, key="from")
        return reading
    assert texts.text is not None
    key = "file" if spec.file else "sentence"
    words = words_of_characters if spec.words else None
    text = tokens_of_text(pretrained, texts.text, key, truncate=spec.truncate, words=words)
    if not spec.reads_context:
        reading = Reading(text, text if pretrained.has_decoder else None)
    elif not pretrained.has_decoder:
        raise UserError(f"model: {pretrained.name} has no cross-attention: use an encoder-decoder model")
    else:
        assert texts.context is not None
        key = "context_file" if spec.text_sources()[1].file else "context"
        context = tokens_of_text(pretrained, texts.context, key, truncate=spec.truncate, words=words)
        reading = Reading(shifted_right(pretrained, text), context)
    _explained_position(spec, reading, pretrained)
    return reading


def _explained_position(spec: AttentionOfModel, reading: Reading, pretrained: Pretrained) -> int | None:
    """The position of the token whose row is explained. Raises UserError for an unknown or ambiguous name."""
    if spec.token is None:
        return None
    return token_named(str(spec.token), reading.text.in_words(), pretrained, key="token")


def _with_default_head(spec: AttentionOfModel, pretrained: Pretrained) -> AttentionOfModel:
    """The spec, with the model's most informative head if it reads a file but names no layer or head."""
    if spec.read_file is None or not spec.reads_context or spec.model_fields_set & {"layer", "head"}:
        return spec
    place = OPENERS[spec.read_file.what].telling_head(pretrained)
    return spec if place is None else spec.model_copy(update={"layer": place[0], "head": place[1]})


def report_each(
    specs: Sequence[AttentionOfModel],
    readings: Sequence[Reading],
    pretrained: Pretrained,
    progress: object,
) -> list[Report]:
    """Report weights, scores, output and statistics of one layer, or of one of its heads, for each text."""
    specs = [_with_default_head(spec, pretrained) for spec in specs]
    spec = specs[0]
    pretrained = reader_of(pretrained, readings[0])
    num_queries, num_context = readings[0].counts
    num_keys = num_context if spec.reads_context else num_queries
    num_heads = getattr(pretrained.model.config.get_text_config(), "num_attention_heads", 1)
    bytes_per_row = num_keys * BYTES_PER_WEIGHT + min(spec.top_k, num_keys) * BYTES_PER_TOP_KEY
    needed = len(specs) * num_heads * num_queries * bytes_per_row
    refuse_bytes(spec.experiment, needed, "fewer tokens, or attn heads for only the statistics")
    with ExitStack() as hooks, heads_removed(spec.ablate, pretrained, runs_whole=False):
        chosen = ChosenLayer(
            pretrained,
            hooks,
            kind="cross" if spec.reads_context else "self",
            number=spec.layer if "layer" in spec.model_fields_set else None,
            head=None if spec.shows_all_heads else spec.head,
            with_output=spec.shows_all_heads and not spec.words,
        )
        way = capture(pretrained.model, pretrained.inputs(readings), chosen.take)
    layer = chosen.chosen()
    notes = [*_notes(spec, pretrained, layer, way), *ablated_notes(spec.ablate)]
    if spec.words:
        notes.append(WORDS_NOTE)
        layer = replace(layer, attention=attention_between_words(layer, readings))
    query, key = stack_texts(readings[0], layer.stack_name)
    places = None if query is not key or query.origin is None else query.origin.grid
    computed = _computed(spec, pretrained, layer, places)
    reports = []
    for text, (text_spec, token_reading) in enumerate(zip(specs, readings, strict=True)):
        reading = token_reading.in_words()
        position = _explained_position(text_spec, token_reading, pretrained)
        resolved = text_spec.model_copy(update={"layer": layer.layer, "token": position})
        tensors, result = _tensors_and_statistics(resolved, layer, computed, chosen.output, text)
        if spec.explain:
            ids = {"token_ids": named(reading.text.ids, "token")}
            if spec.reads_context and reading.context is not None:
                ids |= {"context_token_ids": named(reading.context.ids, "key")}
            tensors = ids | tensors
        context = reading.context.tokens if spec.reads_context and reading.context else ()
        read = Texts(reading.text.tokens, context, token_spelling=pretrained.spelling_of(reading.text))
        if spec.read_file is not None:
            queries = positions_that_look(spec.looking_tokens(), reading.text, pretrained) or []
            resolved = resolved.model_copy(update={"from": [reading.text.tokens[query] for query in queries]})
        text_notes, pictures = [*notes, *token_reading.left_out_notes()], reading.drawn()
        reports.append(build_report(resolved, read, tensors, result, text_notes, pictures=pictures))
    return reports


def steps(spec: AttentionOfModel, report: Report) -> tuple[Step, ...]:
    """Explain the computation step by step, with the model's own query, key, value and score rule."""
    from attncli.toys.attention import AttentionForm
    from attncli.toys.explained_attention import attention_steps

    return attention_steps(
        report, AttentionForm(), token=explained_token(spec.token, report.tokens), head=spec.head
    )


def _notes(spec: AttentionOfModel, pretrained: Pretrained, layer: CapturedLayer, way: Way) -> list[str]:
    place = f"layer {layer.layer}" if spec.shows_all_heads else f"head {layer.layer}:{spec.head}"
    notes = [f"{pretrained.name}, {place} (module {layer.module})."]
    attention = layer.attention
    if isinstance(attention, AttentionLayer):
        if attention.group > 1:
            notes.append(
                f"Each key/value head serves {attention.group} query heads (grouped-query attention)."
            )
        if attention.rules.sink is not None:
            notes.append("A sink outside the keys takes part of each row, so the rows sum to less than one.")
        window = attention.visibility.window
        notes += [f"A query sees at most {window} keys."] if window else []
    return notes + way.notes()


def _computed(
    spec: AttentionOfModel,
    pretrained: Pretrained,
    layer: CapturedLayer,
    places: Float[Tensor, "token 2"] | None,
) -> Computed:
    """Compute the attention of all heads and texts. Raises UserError if the layer lacks the chosen head."""
    num_heads, head = layer.attention.shape[1], spec.head or 0
    if head >= num_heads:
        valid = f"{head_range({layer.layer: num_heads})} in {pretrained.name}"
        raise UserError(f"head: {valid} (got {layer.layer}:{head})")
    ranks = min(spec.top_k, layer.attention.shape[3])
    plane = None if places is None else Plane(places.to(layer.attention.like.device))
    wanted = Wanted(rows=spec.weight_statistics(), top_k=ranks, weights=True, received_mass=True, plane=plane)
    if isinstance(layer.attention, AttentionLayer):
        wanted = replace(wanted, output=True, scores=True)
    return attend(layer.attention, wanted)


def _tensors_and_statistics(
    spec: AttentionOfModel,
    layer: CapturedLayer,
    computed: Computed,
    projected: Tensor | None,
    text: int,
) -> tuple[dict[str, NamedTensor], LayerStatistics]:
    """Return the tensors and statistics of one text, for all heads or the chosen head."""
    head, attention = spec.head or 0, layer.attention
    lead = LeadingAxes(has_batch=False, has_head=spec.shows_all_heads)
    place = slice(text, text + 1), slice(None) if lead.has_head else slice(head, head + 1)
    tensors: dict[str, NamedTensor] = {}
    result, mask = LayerStatistics(), layer_mask(attention, text)
    output = None
    if isinstance(attention, AttentionLayer):
        assert computed.scores is not None and computed.raw_scores is not None
        assert computed.output is not None
        raw, scaled = computed.raw_scores[place], computed.scores[place]
        scores = lead.named(raw, "query", "key", mask=mask, scale=scale_of(attention))
        tensors = {"scores": scores}
        if spec.explain:
            key, value = attention.expanded()
            tensors = {
                "query": lead.named(attention.query[place], "query", "dim"),
                "key": lead.named(key[place], "key", "dim"),
                "value": lead.named(value[place], "key", "dim"),
                **tensors,
                "scaled_scores": lead.named(scaled, "query", "key", mask=mask),
            }
        result = LayerStatistics(
            scores=_visible_moments(raw),
            scaled_scores=_visible_moments(scaled),
            score_rule=_score_rule(attention, head) if spec.explain else None,
        )
        output = lead.back(computed.output[place])
    assert computed.weights is not None
    tensors |= {"weights": lead.named(computed.weights[place], "query", "key", mask=mask)}
    if output is not None and lead.has_head:
        tensors |= {"head_outputs": named(output, "head", "query", "dim")}
        output = None if projected is None else projected[text]
    if isinstance(attention, AttentionLayer) and spec.explain and attention.rules.bias is not None:
        bias = attention.rules.bias.expand(attention.shape)
        tensors |= {"bias": lead.named(bias[place], "query", "key")}
    if output is not None:
        tensors |= {"output": named(output, "query", "dim")}
    ranked = computed.top_keys, computed.top_weights, computed.received_mass
    top_keys, top_weights, received_mass = (None if part is None else part[place] for part in ranked)
    part = Computed(
        rows={name: row[place] for name, row in computed.rows.items()},
        top_keys=top_keys,
        top_weights=top_weights,
        received_mass=received_mass,
    )
    measured = row_tensors(part, lead, None)
    return tensors, replace(result, rows=measured.rows, keys=measured.keys)


def _visible_moments(scores: Tensor) -> ScoreMoments:
    return ScoreMoments.single(**moments(scores[scores > -torch.inf]))


def _score_rule(layer: AttentionLayer, head: int) -> ScoreRule:
    sink = None if layer.rules.sink is None else layer.rules.sink[0, head].item()
    return ScoreRule.single(scale=layer.scale, softcap=layer.rules.softcap, sink=sink)


PAGE = ModelPage(read=read, report_each=report_each, steps=steps)
