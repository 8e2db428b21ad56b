"""The interface is used if it matches eager attention; otherwise eager attention, after checks."""

import copy
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DPRConfig, PreTrainedModel
from transformers.models.dpr.modeling_dpr import DPREncoder
from transformers.models.llama.modeling_llama import LlamaAttention

from attncli.core.layer import AttentionLayer, ScoreRules, Visibility
from attncli.errors import UserError
from attncli.models import capture as capture_module
from attncli.models import layers as attention_interface
from attncli.models.architectures import layer_stack
from attncli.models.capture import (
    Way,
    capture,
    run_model,
    tried_again_when_changed,
    unchanged,
    with_eager_attention,
)
from attncli.models.layers import NAME, CapturedLayer
from tests.conftest import in_turn
from tests.eager import captured_layers, eager_weights, whole_weights
from tests.model_folders import save_writer
from tests.running import run
from tools.tiny_architectures import ARCHITECTURES, USUAL, Architecture, random_inputs

DIFF_LLAMA = Architecture("DiffLlamaModel", {**USUAL, "num_key_value_heads": 2})
BIG_BIRD = Architecture("BigBirdModel", {**USUAL, "block_size": 4, "num_random_blocks": 1})
UNKNOWN = {"sinks": torch.ones(3)}


def model_and_inputs(name: str, num_tokens: int = 13) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    model = ARCHITECTURES[name].build()
    return model, random_inputs(model, num_tokens)


def nothing(_: CapturedLayer) -> None:
    """Consume a layer."""


@pytest.mark.parametrize("argument", ["sinks", "indices", "block_indices", "new_in_transformers_6"])
def test_an_unknown_argument_leads_to_eager_attention(argument: str) -> None:
    model, inputs = model_and_inputs("Llama")
    assert capture(model, inputs | {argument: torch.ones(3)}, nothing).kind == "eager"


def test_arguments_that_change_no_weight_are_ignored() -> None:
    model, inputs = model_and_inputs("Llama")
    inputs["position_ids"] = torch.arange(13).unsqueeze(0)
    assert capture(model, inputs, nothing).kind == "interface"


def test_two_calls_that_form_one_layer_are_captured_eagerly() -> None:
    model = DIFF_LLAMA.build()
    inputs = random_inputs(model)
    how, layers = captured_layers(model, inputs)
    assert how == "eager" and [layer.layer for layer in layers.values()] == [0, 1]
    for place, weights in eager_weights(model, inputs).items():
        torch.testing.assert_close(whole_weights(layers[place]), weights, rtol=0, atol=1e-5)


def by_interface(model: PreTrainedModel) -> bool:
    return bool(model.config._attn_implementation == NAME)


def fails(model: PreTrainedModel) -> None:
    def fail(_module: Any, _inputs: Any) -> None:
        if by_interface(model):
            raise AttributeError("'Visibility' object has no attribute 'dtype'")

    model.get_submodule("encoder.layer.1").register_forward_pre_hook(fail)


def computes_something_else(model: PreTrainedModel) -> None:
    model.get_submodule("encoder.layer.1.output").register_forward_hook(
        lambda _module, _inputs, output: output.roll(1, -1) if by_interface(model) else output
    )


def leaves_a_layer_out(model: PreTrainedModel) -> None:
    part = model.get_submodule("encoder.layer.1.attention.self")
    forward = part.forward

    def forward_here(hidden: Tensor, *others: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
        return (torch.zeros_like(hidden), None) if by_interface(model) else forward(hidden, *others, **named)

    part.forward = forward_here  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [fails, computes_something_else, leaves_a_layer_out])
def test_each_layer_is_passed_on_once_if_the_interface_fails(
    change: Callable[[PreTrainedModel], None],
) -> None:
    model, inputs = model_and_inputs("BERT")
    assert capture(model, inputs, nothing).kind == "interface"
    model, inputs = model_and_inputs("BERT")
    change(model)
    layers: list[CapturedLayer] = []
    assert capture(model, inputs, layers.append).kind == "eager"
    assert [(layer.layer, layer.module) for layer in layers] == [
        (number, f"encoder.layer.{number}.attention.self") for number in range(2)
    ]


def test_the_way_of_capture_is_tried_once_for_all_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def counted(model: PreTrainedModel) -> AbstractContextManager[None]:
        tried.append(model)
        return with_eager_attention(model)

    monkeypatch.setattr("attncli.models.capture.with_eager_attention", counted)
    model = ARCHITECTURES["Llama"].build()
    for num_tokens in (13, 8, 40):
        capture(model, random_inputs(model, num_tokens), nothing)
    assert len(tried) == 1
    capture(model, random_inputs(model, 2), nothing)
    assert len(tried) == 2, "of fewer tokens all are tried"


def test_a_callers_model_is_tried_again_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def counted(model: PreTrainedModel) -> AbstractContextManager[None]:
        tried.append(model)
        return with_eager_attention(model)

    def num_trials(num_tokens: int) -> int:
        tried.clear()
        inputs = random_inputs(model, num_tokens)
        with unchanged(model), tried_again_when_changed(model, model):
            capture(model, inputs, nothing)
        return len(tried)

    monkeypatch.setattr("attncli.models.capture.with_eager_attention", counted)
    model = ARCHITECTURES["Llama"].build()
    old = type(model.get_submodule("layers.1.self_attn")).forward
    part = model.get_submodule("layers.1.self_attn")
    llama = sys.modules[type(part).__module__]
    eager, rotated = llama.eager_attention_forward, llama.rotate_half
    assert num_trials(13) == 2, "some tokens and all of them"
    assert num_trials(13) == num_trials(11) == 0
    assert num_trials(14) == 2, "a longer text"
    for _ in range(2):  # a different hook in place of the first
        hook = part.register_forward_hook(lambda *_: None)
        assert num_trials(13) > 0
        assert num_trials(13) == 0
        hook.remove()
    for change in (
        lambda: model.train(),
        lambda: setattr(part, "scaling", 0.3),
        lambda: setattr(part, "forward", part.forward),
        lambda: setattr(part, "q_proj", copy.deepcopy(part.q_proj)),
        lambda: setattr(part.config, "rope_theta", 7.0),
        lambda: setattr(part, "active_adapters", ["default"]),
        lambda: part.active_adapters.append("second"),
        lambda: model.half(),
        lambda: model.float().requires_grad_(False),
        lambda: monkeypatch.setattr(
            llama, "eager_attention_forward", lambda *given, **named: eager(*given, **named)
        ),
        lambda: monkeypatch.setattr(llama, "rotate_half", lambda vectors: rotated(vectors)),
    ):
        change()
        assert num_trials(13) > 0
        assert num_trials(13) == 0
    monkeypatch.setattr(type(part), "forward", lambda *given, **named: old(*given, **named))
    assert num_trials(13) > 0


@pytest.mark.parametrize("architecture", [ARCHITECTURES["T5"], ARCHITECTURES["BLOOM"], BIG_BIRD])
def test_with_eager_attention_restores_the_model(architecture: Architecture) -> None:
    model = architecture.build()
    hook = model.register_forward_hook(lambda *_: None)
    before = {name: {**vars(module)} for name, module in model.named_modules()}
    with torch.no_grad(), with_eager_attention(model):
        assert model.config._attn_implementation == "eager"
        model.register_forward_hook(lambda *_: None)
        model(**random_inputs(model), output_attentions=True)
    assert {name: vars(module) for name, module in model.named_modules()} == before
    assert list(model._forward_hooks) == [hook.id]
    assert model.config._attn_implementation == architecture.build().config._attn_implementation


def test_a_model_that_needs_other_inputs_is_refused() -> None:
    model, _ = model_and_inputs("ViT")
    with pytest.raises(UserError, match=r"model: vit cannot run on only text: \w+Error: "):
        capture(model, {"input_ids": torch.arange(5).unsqueeze(0)}, nothing)


@pytest.mark.parametrize("more", [{}, UNKNOWN], ids=["interface", "eager"])
def test_an_error_of_the_consumer_passes_through(more: dict[str, Tensor]) -> None:
    model, inputs = model_and_inputs("Llama")

    def fail(_: CapturedLayer) -> None:
        raise KeyError("our own")

    with pytest.raises(KeyError, match="our own"):
        capture(model, inputs | more, fail)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), RuntimeError("can't allocate memory: 9")])
def test_lack_of_memory_does_not_lead_to_eager_attention(error: Exception) -> None:
    model, inputs = model_and_inputs("Llama")

    def fail(_module: Any, _inputs: Any) -> None:
        raise error

    model.get_submodule("layers.1").register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        capture(model, inputs, nothing)


BROKEN: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "scores": (lambda p: p - 0.5, "returns negative weights"),
    "unnormalised": (lambda p: 2 * p, "rows that sum to more than 1"),
    "not finite": (lambda p: p * torch.nan, "returns weights that are NaN"),
    "window": (lambda p: p[..., :5], "has 13 queries and 5 keys, but the texts have 13 and 13 tokens"),
    "flat": (lambda p: p[:, 0], "returns no weights with axes text, head, query and key"),
    "future": (lambda p: p.flip(-1), "is causal but returns weights on later tokens"),
}


def change_weights(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    """Change the weights of Llama's eager attention."""
    forward = LlamaAttention.forward

    def changed(self: LlamaAttention, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        output, weights = forward(self, *args, **kwargs)
        return output, None if weights is None else change(weights)

    monkeypatch.setattr(LlamaAttention, "forward", changed)


@pytest.mark.parametrize("kind", BROKEN)
def test_weights_of_eager_attention_are_checked(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = model_and_inputs("Llama")
    change, message = BROKEN[kind]
    change_weights(monkeypatch, change)
    with pytest.raises(UserError, match=f"model: llama cannot be shown: .*{message}") as caught:
        capture(model, inputs | UNKNOWN, nothing)
    assert kind == "flat" or "layers.0.self_attn" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_that_are_returned_twice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = model_and_inputs("Llama")
    first: list[Tensor] = []

    def change(weights: Tensor) -> Tensor:
        first.append(weights)
        return first[0]

    change_weights(monkeypatch, change)
    with pytest.raises(UserError, match=r"layers.0.self_attn returns the same weights twice"):
        capture(model, inputs | UNKNOWN, nothing)


def test_a_model_that_adapts_to_a_text_is_restored_for_the_next() -> None:
    model = BIG_BIRD.build()
    for num_tokens in (48, 13, 48):
        inputs = random_inputs(model, num_tokens)
        how, layers = captured_layers(model, inputs)
        assert how == "eager" and len(layers) == 2
        for place, weights in eager_weights(BIG_BIRD.build(), inputs).items():
            torch.testing.assert_close(whole_weights(layers[place]), weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "stack"),
    [
        ("encoder.block.0.layer.0.SelfAttention", "encoder"),
        ("decoder.layers.3.encoder_attn", "decoder"),
        ("language_model.encoder.layers.0.self_attn", "encoder"),
        ("text_encoder.layers.1.self_attn", "encoder"),
        ("text_decoder.layers.1.cross_attention", "decoder"),
        ("encoder_attentions", "encoder"),
        ("h.0.attn", ""),
    ],
)
def test_module_names_tell_the_stack(module: str, stack: str) -> None:
    assert layer_stack(module) == stack


def changed_layers(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Layers as if the interface did not pass on a sink, a cap, a bias or a window."""

    def built(
        query: Tensor, key: Tensor, value: Tensor, seen: Visibility, scale: float, rules: ScoreRules
    ) -> Any:
        seen = replace(seen, **{name: to for name, to in changed.items() if name == "window"})
        rules = replace(rules, **{name: to for name, to in changed.items() if name != "window"})
        return AttentionLayer(query, key, value, seen, scale, rules)

    monkeypatch.setattr("attncli.models.layers.AttentionLayer", built)


def with_settings(name: str, **settings: Any) -> PreTrainedModel:
    architecture = ARCHITECTURES[name]
    return replace(architecture, settings={**architecture.settings, **settings}).build()


def with_small_sinks() -> PreTrainedModel:
    model = ARCHITECTURES["GPT-OSS"].build()
    for layer in model.layers:
        layer.self_attn.sinks.fill_(-7)
    return model


def with_small_bias() -> PreTrainedModel:
    model = ARCHITECTURES["T5"].build()
    for stack in (model.encoder, model.decoder):
        stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.mul_(1e-3)
    return model


MISSING: dict[str, tuple[Callable[[], PreTrainedModel], dict[str, Any]]] = {
    "sink": (with_small_sinks, {"sink": None}),
    "cap": (lambda: with_settings("Gemma 2", attn_logit_softcapping=40.0), {"softcap": None}),
    "bias": (with_small_bias, {"bias": None}),
    "window": (lambda: with_settings("Mistral", sliding_window=30), {"window": None}),
}


@pytest.mark.parametrize("missing", MISSING)
def test_rules_that_the_interface_omits_are_noticed(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the effect is below a hundredth, or absent from the first tokens."""
    build, changed = MISSING[missing]
    inputs = random_inputs(build(), 45)
    assert captured_layers(build(), inputs)[0] == "interface"
    changed_layers(monkeypatch, **changed)
    model = build()
    how, layers = captured_layers(model, inputs)
    assert how == "eager"
    for place, weights in eager_weights(build(), inputs).items():
        torch.testing.assert_close(whole_weights(layers[place]), weights, rtol=0, atol=1e-5)


def test_a_long_window_is_tried_within_a_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncli.models.capture.TRIAL_SCORES", 4 * 20**2)
    model = with_settings("Mistral", sliding_window=30)
    assert capture(model, random_inputs(model, 30), nothing).notes() == []
    notes = capture(model, random_inputs(model, 45), nothing).notes()
    assert notes == [
        "The weights were not compared with the model's own eager attention beyond the first 20 tokens."
    ]


def test_outputs_without_names_are_compared() -> None:
    """DPR's encoder returns a plain tuple."""
    model = DPREncoder(DPRConfig(**USUAL)).eval()
    inputs = {"input_ids": torch.arange(5, 18).unsqueeze(0)}
    assert capture(model, inputs, nothing) == Way("interface")


def test_an_interface_without_comparison_is_noted() -> None:
    model, inputs = model_and_inputs("BERT")

    def fail(_module: Any, _inputs: Any) -> None:
        if not by_interface(model):
            raise AttributeError("no eager\nattention")

    model.get_submodule("encoder.layer.1").register_forward_pre_hook(fail)
    way = capture(model, inputs, nothing)
    fails = "which fails: AttributeError: no eager attention"
    note = f"The weights were not compared with the model's own eager attention, {fails}"
    assert way.kind == "interface" and way.notes() == [note]


@pytest.mark.parametrize(
    ("settings", "count"),
    in_turn([{}, {"causal": True}, {"causal": True, "window": 4}, {"window": 4}], [1, 5, 11]),
)
def test_the_last_queries_of_a_mask_equal_slices(settings: dict[str, Any], count: int) -> None:
    """A slice equals the slice of the whole matrix, with as many keys as queries and with more."""
    for num_keys in (11, 17):
        drawn = torch.rand(2, num_keys, generator=torch.Generator().manual_seed(count)) > 0.3
        mask = Visibility(11, num_keys, key_mask=drawn, **settings)
        for whole in (mask, replace(mask, rule=lambda i, j: (i.unsqueeze(-1) + j).unsqueeze(0) % 3 > 0)):
            expected = whole.whole(torch.device("cpu")).unsqueeze(1)[:, :, slice(-count, None), :]
            found = whole[:, :, slice(-count, None), :]
            assert torch.equal(found.whole(torch.device("cpu")).unsqueeze(1), expected)


@pytest.mark.parametrize(("queries", "keys"), [(slice(None), slice(0, 3)), (slice(2, 5), slice(None))])
def test_other_slices_of_a_mask_are_refused(queries: slice, keys: slice) -> None:
    with pytest.raises(NotImplementedError):
        Visibility(11, 11)[:, :, queries, keys]


def failing(module: str, error: type[Exception]) -> Callable[..., Any]:
    """A failing function in a module of this name."""
    names: dict[str, Any] = {"__name__": module, "error": error}
    exec("def fail(*_, **__):\n    raise error('by itself')", names)
    found: Callable[..., Any] = names["fail"]
    return found


@pytest.mark.parametrize("error", [TypeError, KeyError, AssertionError])
def test_errors_of_attn_are_not_blamed_on_the_model(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the consumer of layers, before the model runs, and inside the model's calls."""
    model, inputs = model_and_inputs("Llama")
    fail = failing("attncli.models", error)
    with pytest.raises(error, match="by itself"):
        capture(model, inputs, fail)
    for place, name in ((capture_module, "_numbering"), (attention_interface, "layer_kind")):
        with monkeypatch.context() as patched, pytest.raises(error, match="by itself"):
            patched.setattr(place, name, fail)
            run_model(model, inputs, nothing)


@pytest.mark.parametrize("error", [TypeError, KeyError, AssertionError])
def test_a_model_that_fails_by_itself_is_refused(error: type[Exception]) -> None:
    """Before attention, after it, and with an unknown argument."""
    model, inputs = model_and_inputs("Llama")
    reason = f"model: llama cannot run on only text: {error.__name__}: '?by itself"
    for part in (model.get_input_embeddings(), model.get_submodule("norm")):
        hook = part.register_forward_hook(failing("transformers.models.pictures", error))
        with hook, pytest.raises(UserError, match=reason):
            run_model(model, inputs, nothing)
    model.forward = lambda pixels: None  # type: ignore[method-assign,misc]
    with pytest.raises(UserError, match="cannot run on only text: TypeError"):
        run_model(model, {}, nothing)


@pytest.mark.parametrize(
    ("experiment", "settings"),
    [
        ("heads", {"sentence": "the cat sat"}),
        ("heads", {"texts": "texts.txt"}),
        ("heads", {"texts": "texts.txt", "head": "0:1", "sort": "entropy", "num_examples": 1}),
        ("self", {"sentence": "the cat sat"}),
        ("ablate", {"sentence": "the cat sat"}),
        ("why", {"sentence": "the cat sat"}),
        ("generate", {"sentence": "the cat sat", "max_new_tokens": 2}),
    ],
)
def test_every_report_notes_a_missing_comparison(
    experiment: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(*_: Any, **__: Any) -> Way:
        return Way("interface", "Not compared, says the test.")

    monkeypatch.setattr("attncli.models.capture._tried", tried)
    folder = save_writer(tmp_path / "model", "Llama")
    (tmp_path / "texts.txt").write_text("the cat sat\nthe street\n")
    texts = {"texts": str(tmp_path / "texts.txt")} if "texts" in settings else {}
    report = run(experiment, model=str(folder), **{**settings, **texts})
    assert report.notes.count("Not compared, says the test.") == 1
