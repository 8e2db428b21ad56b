"""What is measured of a running program: against the survey of a model, whole runs, and naive means."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import attncli
from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Marks, Patterns, ScoreRules, Visibility, Wanted
from attncli.core.mask_tensors import recognised, split_mask
from attncli.core.names import HEAD_STATISTICS
from attncli.core.row_tiles import GivenWeights
from attncli.features.record import growing_texts, measured_calls
from attncli.features.record.heard_modules import mask_name
from attncli.features.record.listening.heard_calls import HeardCall
from attncli.features.record.recorder import RecordedRuns, Recorder
from attncli.features.record.results import RecordedHeads
from tests.conftest import in_pairs

TEXT = "3 7 1 9 2 5 3 7 1 9 2 5"


def call_of(
    attention: AttentionLayer | GivenWeights,
    *,
    module: str = "layers.0.attn",
    call: int = 0,
    kind: str = "self",
    weights: Tensor | None = None,
    has_heads: bool = True,
) -> HeardCall:
    return HeardCall(module, call, kind, "by hand", attention, weights, has_heads)


def random_layer(
    num_queries: int,
    num_keys: int | None = None,
    *,
    texts: int = 1,
    heads: int = 3,
    kv_heads: int | None = None,
    seed: int = 0,
    visibility: Visibility | None = None,
    rules: ScoreRules | None = None,
) -> AttentionLayer:
    generator = torch.Generator().manual_seed(seed)
    keys = num_queries if num_keys is None else num_keys
    sizes = ((heads, num_queries), (kv_heads or heads, keys), (kv_heads or heads, keys))
    parts = [torch.randn(texts, *size, 5, generator=generator) for size in sizes]
    seen = visibility or Visibility(num_queries, keys, causal=True)
    return AttentionLayer(*parts, seen, 5**-0.5, rules or ScoreRules())


def runs_of(heard: Sequence[HeardCall]) -> list[RecordedHeads]:
    """What each run of a program is."""
    runs: list[RecordedHeads] = []
    recording = RecordedRuns(
        lambda places: Recorder(places=places), lambda recorder: runs.append(recorder.result({}))
    )
    for call in heard:
        recording.take(call)
    recording.end()
    return runs


def test_a_run_is_a_call_of_an_outermost_module_or_a_text_that_grows() -> None:
    whole = random_layer(8)
    prompt, *steps = (
        replace(
            whole,
            query=whole.query[:, :, start:end],
            key=whole.key[:, :, :end],
            value=whole.value[:, :, :end],
            visibility=Visibility(end - start, end, causal=True),
        )
        for start, end in ((0, 5), (5, 6), (6, 7), (7, 8))
    )
    other, cross = random_layer(5, seed=1), random_layer(1, 4, seed=2, visibility=Visibility(1, 4))
    heard = [replace(call_of(prompt), outermost=1)]
    for number, step in enumerate(steps, 2):  # what else a step of the generation calls belongs to it
        heard += [
            replace(call_of(step, call=number - 1), outermost=number),
            replace(call_of(cross, module="layers.0.cross", kind="cross"), outermost=number),
        ]
    heard.append(replace(call_of(other, module="other"), outermost=9))
    heard.append(replace(call_of(other), outermost=10))
    generated, second, third = runs_of(heard)
    assert_same_numbers(
        recorded_heads([call_of(whole)]),
        replace(generated, heads=generated.heads.where(lambda head: head.stack == "self")),
    )
    assert [(row.module, row.layer) for row in second.modules] == [("other", 1)]
    assert [(row.module, row.layer) for row in third.modules] == [("layers.0.attn", 0)]
    assert_same_numbers(recorded_heads([call_of(other)]), third)


def recorded_heads(heard: Sequence[HeardCall], **settings: Any) -> RecordedHeads:
    recorder = Recorder(**settings)
    for call in heard:
        recorder.take(call)
    return recorder.result({})


def assert_same_numbers(a: RecordedHeads, b: RecordedHeads, within: float = 1e-6) -> None:
    for name in HEAD_STATISTICS:
        assert (name in a.heads.cells) == (name in b.heads.cells), name
        if name in a.heads.cells:
            np.testing.assert_allclose(a.heads.column(name), b.heads.column(name), atol=within, err_msg=name)


@pytest.fixture(scope="module")
def captured() -> Any:
    return attncli.layers(attncli.open_model(), TEXT)


def test_statistics_equal_those_of_the_survey(captured: Any) -> None:
    model = attncli.open_model()
    survey = attncli.survey(model, TEXT)
    tokens = attncli.run("heads", sentence=TEXT).tokens
    calls = [call_of(layer.attention, module=layer.module) for layer in captured]
    heads = recorded_heads(calls, tokens=tokens)
    for name in HEAD_STATISTICS:
        if name in survey.heads.cells and not name.startswith("special_mass"):
            ours, theirs = heads.heads.column(name), survey.heads.column(name)
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6, err_msg=name)
    assert heads.heads.column("pattern").tolist() == survey.heads.column("pattern").tolist()
    assert heads.heads.column("module").tolist() == [layer.module for layer in captured for _ in range(4)]
    assert [(row.mask, row.heads, row.measured) for row in heads.modules] == [("causal", 4, 1)] * 2
    for name in survey.without_first.cells:
        if name not in ("stack", "special_mass"):
            ours, theirs = heads.without_first.column(name), survey.without_first.column(name)
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6, err_msg=name)


def test_without_names_no_token_is_a_copy_of_another(captured: Any) -> None:
    heads = recorded_heads([call_of(layer.attention, module=layer.module) for layer in captured]).heads
    assert np.isnan(heads.column("induction")).all() and np.isnan(heads.column("duplicate_token")).all()
    assert np.isfinite(heads.column("previous_token")).all()
    different = [str(number) for number in range(captured[0].attention.shape[2])]
    of_names = recorded_heads([call_of(layer.attention) for layer in captured[:1]], tokens=different).heads
    for name in set(of_names.cells) & {*HEAD_STATISTICS} - {
        "special_mass_mul",
        "induction_mul",
        "duplicate_token_mul",
    }:
        np.testing.assert_allclose(heads.column(name)[:4], of_names.column(name), atol=1e-6, err_msg=name)
    named = recorded_heads([call_of(captured[0].attention)], tokens=["a"] * captured[0].attention.shape[2])
    assert np.isfinite(named.heads.column("duplicate_token")).all()


@pytest.mark.parametrize("length", [7, 300])
def test_given_weights_have_the_numbers_of_their_layer(length: int) -> None:
    layer = random_layer(length, texts=2)
    weights = attend(layer, Wanted(weights=True)).weights
    assert weights is not None
    whole = recorded_heads([call_of(layer)])
    for attention in (layer, GivenWeights(weights, layer.visibility.whole(torch.device("cpu")))):
        ours = recorded_heads([call_of(attention, weights=weights)])
        for name in set(whole.heads.cells) & {*HEAD_STATISTICS} - {"max_score"}:
            np.testing.assert_allclose(
                ours.heads.column(name), whole.heads.column(name), rtol=2e-5, atol=2e-5, err_msg=name
            )
        assert [row.mask for row in ours.modules] == ["causal"]


def test_half_precision_weights_and_rows_without_a_key() -> None:
    seen = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    seen[:, 0] = False
    layer = random_layer(5, visibility=recognised(seen))
    weights = attend(layer, Wanted(weights=True)).weights
    assert weights is not None
    heads = recorded_heads([call_of(layer, weights=weights.half())]).heads
    whole = recorded_heads([call_of(layer)]).heads
    np.testing.assert_allclose(heads.column("max_weight"), whole.column("max_weight"), atol=1e-3)
    weights[:, 1:, 0] = torch.nan  # as torch's softmax of -inf alone
    undefined = recorded_heads([call_of(layer, weights=weights)])
    for name in {*HEAD_STATISTICS} & undefined.heads.cells.keys():
        assert np.isnan(undefined.heads.column(name)[1:]).all(), name
    assert np.isfinite(undefined.heads.column("entropy")[0]) and undefined.modules[0].nan_texts == 1
    assert any(note.startswith("NaN in weights of layers.0.attn, in 1 text") for note in undefined.notes)


def test_a_batch_is_texts() -> None:
    layer = random_layer(6, texts=4)
    batch = recorded_heads([call_of(layer)])
    assert batch.num_texts == 4 and len(batch.intervals) and batch.modules[0].texts == 4
    ones = [
        recorded_heads([call_of(replace(layer, query=q[None], key=k[None], value=v[None]))]).heads
        for q, k, v in zip(layer.query, layer.key, layer.value, strict=True)
    ]
    for name in ("entropy", "previous_token", "sink_mass"):
        mean = np.mean([heads.column(name) for heads in ones], axis=0)
        np.testing.assert_allclose(batch.heads.column(name), mean, atol=1e-6)
    calls = [
        call_of(replace(layer, query=q[None], key=k[None], value=v[None]), call=number)
        for number, (q, k, v) in enumerate(zip(layer.query, layer.key, layer.value, strict=True))
    ]
    assert_same_numbers(recorded_heads(calls), batch)
    last = recorded_heads(calls, calls="last")
    assert last.num_texts == 1 and last.modules[0].measured == 4
    np.testing.assert_array_equal(last.heads.column("entropy"), ones[-1].column("entropy"))


def test_cross_attention_has_a_separate_stack() -> None:
    calls = [
        call_of(random_layer(5), module="decoder.0.self"),
        call_of(
            random_layer(5, 7, visibility=Visibility(5, 7)), module="decoder.0.multihead_attn", kind="cross"
        ),
        call_of(random_layer(5, seed=2), module="decoder.1.self"),
        call_of(random_layer(3, 9, heads=2, visibility=Visibility(3, 9)), module="other", kind="cross"),
    ]
    recorder = Recorder()
    for call in calls:
        recorder.take(call)
    heads = recorder.result({})
    places = [(row.stack, row.layer, row.module) for row in heads.modules]
    assert places == [
        ("self", 0, "decoder.0.self"),
        ("self", 1, "decoder.1.self"),
        ("cross", 0, "decoder.0.multihead_attn"),
        ("cross", 1, "other"),
    ]
    rows = heads.heads.where(lambda row: row.stack == "cross")
    assert len(rows) == 5 and all(row.distance is None and row.entropy is not None for row in rows)
    fewest = {row.stack: row.num_rows for row in heads.patterns if row.statistic == "sink_mass"}
    assert fewest == {"self": 5, "cross": 3}
    maps = recorder.maps("cross")["weights"]
    assert maps.shape == (2, 3, 5, 7) and np.isnan(maps[1]).all() and recorder.unmapped("cross") == ["other"]
    np.testing.assert_allclose(maps[0].sum(axis=-1), 1, atol=1e-6)


def prefix_of(layer: AttentionLayer, start: int, stop: int, *, static: int | None = None) -> AttentionLayer:
    """The call of a cached run that has the queries from `start`; with `static` of a cache as long."""
    whole = layer.visibility.whole(torch.device("cpu"))[:, start:stop, :stop]
    bias = layer.rules.bias
    rules = layer.rules if bias is None else replace(layer.rules, bias=bias[:, :, start:stop, :stop])
    key, value = layer.key[:, :, :stop], layer.value[:, :, :stop]
    if static is None:
        seen = recognised(whole)
    else:
        key, value = (torch.nn.functional.pad(part, (0, 0, 0, static - stop)) for part in (key, value))
        seen, _ = split_mask(
            torch.nn.functional.pad(whole, (0, static - stop))[:, None], stop - start, static
        )
    return AttentionLayer(layer.query[:, :, start:stop], key, value, seen, layer.scale, rules)


@pytest.mark.parametrize("num_keys", [3, 7, 11])
def test_token_names_do_not_change_cross_attention(num_keys: int) -> None:
    """Names for 7 tokens fit the queries: whatever the number of keys, the heads have the same statistics."""
    torch.manual_seed(num_keys)
    module = nn.MultiheadAttention(20, 4, batch_first=True).eval()
    query, context = torch.randn(1, 7, 20), torch.randn(1, num_keys, 20)
    with attncli.record() as plain:
        module(query, context, context)
    with attncli.record(tokens=[*"abcdabc"]) as named:
        module(query, context, context)
    assert [row.head for row in named.heads] == [0, 1, 2, 3]
    assert named.notes == ["tokens: has 7 names, but there was no self-attention."]
    assert named.heads.column("entropy").tolist() == plain.heads.column("entropy").tolist()


@pytest.mark.parametrize(
    ("static", "case", "ends"),
    in_pairs([None, 17], ["causal", "padding", "window", "bias"], [(5, 6, 7, 8, 11), (1, 2, 3), (4, 8, 11)]),
)
def test_steps_of_a_generation_are_one_text(static: int | None, case: str, ends: tuple[int, ...]) -> None:
    count = ends[-1]
    visibility, rules, texts = Visibility(count, count, causal=True), ScoreRules(), 1
    if case == "padding":
        texts = 2
        padding = torch.ones(2, count, dtype=torch.bool)
        padding[1, :1] = False
        visibility = replace(visibility, key_mask=padding)
    elif case == "window":
        visibility = replace(visibility, window=3)
    elif case == "bias":
        if static is not None:
            pytest.skip("a bias has the keys of its layer")
        rules = ScoreRules(bias=torch.randn(1, 4, count, count))
    layer = random_layer(count, texts=texts, heads=4, kv_heads=2, visibility=visibility, rules=rules)
    starts = (0, *ends[:-1])
    calls = [
        call_of(prefix_of(layer, start, stop, static=static), call=number)
        for number, (start, stop) in enumerate(zip(starts, ends, strict=True))
    ]
    recorder = Recorder()
    for call in calls[:2]:
        recorder.take(call)
    recorder.result({})  # looked at meanwhile
    for call in calls[2:]:
        recorder.take(call)
    steps, whole = recorder.result({}), recorded_heads([call_of(layer)])
    assert steps.num_texts == texts and steps.modules[0].num_queries == count
    assert steps.modules[0].measured == len(calls)
    assert_same_numbers(steps, whole)
    other = Recorder()
    other.take(call_of(layer))
    np.testing.assert_allclose(recorder.maps("self")["weights"], other.maps("self")["weights"], atol=1e-6)


def test_another_text_begins_where_the_keys_are_others() -> None:
    layer, another = random_layer(6), random_layer(7, seed=5)
    step = prefix_of(another, 6, 7)
    calls = [call_of(layer), call_of(another, call=1), call_of(step, call=2)]
    assert recorded_heads(calls).num_texts == 3
    calls = [
        call_of(prefix_of(layer, 0, 5)),
        call_of(prefix_of(layer, 5, 6), call=1),
        call_of(another, call=2),
    ]
    assert recorded_heads(calls).num_texts == 2


def test_steps_beyond_the_memory_limit_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncli.features.record.recorder.MOST_COPIED", 300)
    layer = random_layer(8, heads=1)
    calls = [call_of(prefix_of(layer, 0, 5)), *(call_of(prefix_of(layer, at, at + 1)) for at in (5, 6, 7))]
    heads = recorded_heads(calls)
    assert heads.num_texts == 1 and heads.modules[0].num_queries == 6
    assert any(note.startswith("2 steps of layers.0.attn were left out") for note in heads.notes)


def test_nothing_of_the_program_is_kept() -> None:
    import gc
    import weakref

    layer = random_layer(6, texts=2)
    watched = [weakref.ref(part) for part in (layer.query, layer.key, layer.value)]
    recorder = Recorder()
    recorder.take(call_of(layer))
    del layer
    gc.collect()
    assert [part() for part in watched] == [None] * 3


def test_a_grid_of_patches() -> None:
    layer = random_layer(14, visibility=Visibility(14, 14))
    heads = recorded_heads([call_of(layer)], grid=(3, 4)).heads
    assert np.isfinite(heads.column("neighbour")).all() and "previous_token" not in heads.cells
    assert measured_calls.grid_places((3, 4), 14)[[1, 2, 13]].nan_to_num(-1).tolist() == [
        [-1, -1],
        [0, 0],
        [2, 3],
    ]
    few = recorded_heads([call_of(random_layer(5))], grid=(3, 4))
    assert "neighbour" not in few.heads.cells and any(note.startswith("grid:") for note in few.notes)


def test_long_texts_have_maps_of_blocks() -> None:
    recorder = Recorder(whole_tokens=20)
    recorder.take(call_of(random_layer(130, texts=2)))
    maps = recorder.maps("self")
    assert set(maps) == {"pooled_mean", "pooled_max"} and maps["pooled_max"].shape[:2] == (1, 3)


def test_in_inference_mode_and_looked_at_outside() -> None:
    recorder = Recorder()
    with torch.inference_mode():
        for seed in (1, 2):
            recorder.take(call_of(random_layer(5, seed=seed), call=seed))
        recorder.take(call_of(prefix_of(random_layer(6, seed=3), 0, 5)))
        recorder.take(call_of(prefix_of(random_layer(6, seed=3), 5, 6)))
    assert recorder.result({}).num_texts == 3


def test_another_number_of_heads_is_left_out() -> None:
    calls = [call_of(random_layer(5)), call_of(random_layer(5, heads=2), call=1)]
    heads = recorded_heads(calls)
    assert heads.num_texts == 1
    assert any("1 call of layers.0.attn was left out" in note for note in heads.notes)


def test_masks_have_names() -> None:
    masks = {
        "none": Visibility(5, 5),
        "causal": Visibility(5, 5, causal=True),
        "causal, window": Visibility(5, 5, causal=True, window=2),
        "padding": Visibility(5, 5, key_mask=torch.ones(1, 5, dtype=torch.bool)),
        "other": Visibility(5, 5, rule=lambda i, j: (i[:, None] + j)[None] % 2 == 0),
    }
    assert [mask_name(mask) for mask in masks.values()] == [*masks]
    assert growing_texts.without_unused_keys(layer := random_layer(5)) is layer


@pytest.mark.parametrize("first_key", [0, 1])
def test_patterns_of_neighbours_have_the_rows_of_the_general_ones(first_key: int) -> None:
    none = torch.zeros(2, 7, dtype=torch.bool)
    settings = (
        tuple(measured_calls.OFFSETS),
        torch.arange(7).expand(2, -1),
        Marks(none, none, none),
        first_key,
    )
    assert torch.equal(measured_calls.NeighbourPatterns(*settings).rows, Patterns(*settings).rows)


def test_calls_are_counted_of_each_kind_that_a_module_attends_in() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            return scaled_dot_product_attention(self.query(x), self.key(other), other)

    model, x, other = Either(), torch.randn(1, 5, 6), torch.randn(1, 7, 6)
    with attncli.record(calls="all") as seen:
        model(x, x)
        model(x, other)
        model(x, other)
    assert [(row.kind, row.calls, row.measured) for row in seen.modules] == [("self", 1, 1), ("cross", 2, 2)]
