"""A program is what it is without being recorded: its modules, functions, kernels and tracing."""

import re
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

from attncli.features.record.listening.listener import Listener
from attncli.features.record.listening.torch_paths import TRACED, TRANSFORMED
from tests.conftest import in_turn
from tests.features.record.heard import heard, weights_of


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(self.query(x), x, x)


class Pair(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.second(self.first(x))
        return mixed


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(3)
    return torch.randn(1, 5, 6)


# Modules


@pytest.mark.parametrize("modules", [None, "*"])
def test_unhashable_and_equal_modules_are_distinguished(modules: str | None, x: Tensor) -> None:
    class Unhashable(Attention):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Unhashable)

    class Equal(Attention):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        def __hash__(self) -> int:
            return 1

    for kind in (Unhashable, Equal):
        model = Pair(kind(), kind())
        plain = model(x)
        result, calls, listener = heard(partial(model, x), modules=modules)
        assert result.equal(plain) and not listener.notes()
        assert [call.module for call in calls] == ["first", "second"]


def test_a_module_with_failing_named_modules_runs(x: Tensor) -> None:
    class Nameless(Attention):
        def named_modules(self, *given: Any, **named: Any) -> Any:
            raise RuntimeError("no names")

    model = Pair(Nameless(), Attention())
    _, calls, listener = heard(lambda: model(x))
    assert [call.module for call in calls] == ["first", "second"] and not listener.notes()


class Stopped(BaseException):
    """As KeyboardInterrupt, and asyncio.CancelledError."""


@pytest.mark.parametrize("modules", [None, "first", "*"])
def test_an_interrupted_module_does_not_name_later_calls(modules: str | None, x: Tensor) -> None:
    class Stopping(Pair):
        def forward(self, x: Tensor) -> Tensor:
            self.first(x)
            raise Stopped

    stopping, model = Stopping(Attention(), Attention()), Pair(Attention(), Attention())

    def deeper(number: int) -> None:
        if number:
            deeper(number - 1)
        else:
            model(x)

    def program() -> None:
        with pytest.raises(Stopped):
            stopping(x)
        functional.scaled_dot_product_attention(x, x, x)
        deeper(3)
        model(x)

    _, calls, listener = heard(program, modules=modules)
    names = [call.module for call in calls if "(" not in call.module]
    wanted = ["first", "Pair.first", "second", "Pair.first", "second"]
    assert names == (["first"] if modules == "first" else wanted)
    assert not listener.running.stack or listener.running.stack[-1].has_ended()


# torch's own modules


def encoder(*, norm_first: bool = False) -> nn.TransformerEncoder:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(12, 2, 11, batch_first=True, norm_first=norm_first)
    norm = nn.LayerNorm(12)
    nn.init.normal_(norm.bias)
    return nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=not norm_first).eval()


def padding(*lengths: int) -> Tensor:
    return torch.arange(7) >= torch.tensor(lengths)[:, None]


def weights_by_torch(model: nn.TransformerEncoder, x: Tensor, **masks: Tensor) -> list[Tensor]:
    """Those of the slow path, which nn.MultiheadAttention itself gives."""
    weights = []
    for layer in model.layers:
        assert isinstance(layer, nn.TransformerEncoderLayer)
        inside = layer.norm1(x) if layer.norm_first else x
        given = {"key_padding_mask": masks.get("padding"), "attn_mask": masks.get("mask")}
        _, of_layer = layer.self_attn(inside, inside, inside, average_attn_weights=False, **given)
        weights.append(of_layer)
        x = layer(x, src_mask=masks.get("mask"), src_key_padding_mask=masks.get("padding"))
    return weights


ENCODED: dict[str, dict[str, Tensor]] = {
    "plain": {},
    "padded": {"padding": padding(7, 4)},
    "all shorter": {"padding": padding(5, 4)},
    "padded first": {"padding": padding(7, 4).flip(1)},
    "causal": {"mask": torch.ones(7, 7, dtype=torch.bool).triu(1)},
    "both": {"mask": torch.ones(7, 7, dtype=torch.bool).triu(1), "padding": padding(7, 4)},
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("name", "modules"), in_turn(ENCODED, [None, "layers.*.self_attn", "layers.*"]))
def test_torchs_encoder_keeps_its_output_and_is_recorded(name: str, modules: str | None) -> None:
    masks, x = ENCODED[name], torch.randn(2, 7, 12)
    for norm_first in (False, True):
        model = encoder(norm_first=norm_first)
        run = partial(model, x, mask=masks.get("mask"), src_key_padding_mask=masks.get("padding"))
        with torch.no_grad():
            plain = run()
            result, calls, listener = heard(run, modules=modules)
            before = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
            exact = weights_by_torch(model, x, **masks)
            torch.backends.mha.set_fastpath_enabled(before)
        assert plain.equal(result) and not listener.notes()
        assert [call.module for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]
        for call, weights in zip(calls, exact, strict=True):
            read = weights_of(call)
            queries = ~masks["padding"] if "padding" in masks else torch.ones(2, 7, dtype=torch.bool)
            rows = queries[:, None, :, None]
            torch.testing.assert_close(read * rows, weights * rows, rtol=0, atol=1e-5)
        assert torch.overrides.has_torch_function is HAS_TORCH_FUNCTION


HAS_TORCH_FUNCTION = torch.overrides.has_torch_function


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_and_hidden_texts_keep_their_results() -> None:
    model, x = encoder(), torch.randn(2, 7, 12)
    nested = torch.nested.nested_tensor([x[0], x[1, :4]])
    layer = model.layers[0]
    programs: list[Callable[[], Tensor]] = [
        lambda: model(nested),
        lambda: layer(x, src_key_padding_mask=padding(7, 0)),
        lambda: layer.self_attn(nested, nested, nested, need_weights=False)[0],
        lambda: layer.self_attn(x, x, x, attn_mask=torch.eye(7) > 2)[0],
    ]
    for program in programs:
        with torch.inference_mode():
            plain = program()
            result, calls, listener = heard(program)
        if plain.is_nested:
            plain, result = (tensor.to_padded_tensor(0.0) for tensor in (plain, result))
        torch.testing.assert_close(result, plain, rtol=0, atol=0, equal_nan=True)
        assert calls and not listener.notes()
        assert all(call.attention.shape == (2, 2, 7, 7) for call in calls)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_torchs_encoder_is_recorded_in_other_precisions(dtype: torch.dtype) -> None:
    model, x = encoder(), torch.randn(2, 7, 12)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        model, x = (model, x) if dtype == torch.bfloat16 else (model.double(), x.double())
        plain = model(x)
        result, calls, listener = heard(lambda: model(x))
    assert result.equal(plain) and len(calls) == 2 and not listener.notes()


def test_an_interrupted_layer_restores_torch(x: Tensor) -> None:
    def stop(*given: object) -> None:
        raise Stopped

    layer = nn.TransformerEncoderLayer(6, 2, 11, batch_first=True).eval()
    layer.self_attn.out_proj.register_forward_pre_hook(stop)
    layer.linear1.register_forward_pre_hook(stop)

    def program() -> None:
        with pytest.raises(Stopped):
            layer(x)

    heard(program)
    assert torch.overrides.has_torch_function is HAS_TORCH_FUNCTION


# Functions


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "softmax", "linear", "dropout"])
def test_functions_replaced_by_a_program_are_called_equally_often(
    name: str, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, calls = getattr(functional, name), []

    def replaced(*given: Any, **named: Any) -> Any:
        calls.append(name)
        return 2 * before(*given, **named)

    model = nn.MultiheadAttention(6, 2, batch_first=True)
    monkeypatch.setattr(functional, name, replaced)
    for need_weights in (False, True):
        calls.clear()
        torch.manual_seed(3)
        plain, _ = model(x, x, x, need_weights=need_weights)
        count = len(calls)
        torch.manual_seed(3)
        (result, _), heard_calls, _ = heard(partial(model, x, x, x, need_weights=need_weights))
        assert len(calls) == 2 * count and result.equal(plain) and len(heard_calls) == 1


def test_tensor_subclasses_are_called_as_torch_calls_them(x: Tensor) -> None:
    asked = []

    class Asked(Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            asked.append(function)
            result = super().__torch_function__(function, types, arguments, named or {})  # type: ignore[no-untyped-call]
            return result

    model, given = nn.MultiheadAttention(6, 2, batch_first=True), x.as_subclass(Asked)
    plain, _ = model(given, given, given)
    count = asked.count(functional.multi_head_attention_forward)
    (result, _), calls, _ = heard(lambda: model(given, given, given))
    assert asked.count(functional.multi_head_attention_forward) == 2 * count > 0
    assert type(result) is Asked and result.equal(plain) and len(calls) == 1


# Tracing and compiling


class ByHand(Attention):
    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = (self.query(x) @ x.mT).softmax(-1) @ x
        return mixed


@pytest.mark.parametrize("kind", [Attention, ByHand])
def test_traced_and_transformed_code_is_unchanged_and_noted(kind: type[Attention], x: Tensor) -> None:
    model = kind()

    def traced() -> str:
        graph = torch.jit.trace(model, x, check_trace=False).inlined_graph  # type: ignore[no-untyped-call]
        return re.sub(r"___torch_mangle_\d+\.|#.*", "", str(graph))

    programs: dict[str, tuple[Callable[[], object], str]] = {
        "trace": (traced, TRACED),
        "fx": (lambda: str(torch.fx.symbolic_trace(model).graph), TRACED),
        "vmap": (lambda: torch.vmap(lambda part: model(part[None])[0])(x).tolist(), TRANSFORMED),
        "grad": (lambda: torch.func.grad(lambda part: model(part).sum())(x).tolist(), TRANSFORMED),
    }
    if kind is ByHand:
        del programs["fx"]  # it calls no function there
    for program, line in programs.values():
        with warnings.catch_warnings(record=True) as before:
            warnings.simplefilter("always")
            plain = program()
        with warnings.catch_warnings(record=True) as after:
            warnings.simplefilter("always")
            result, calls, listener = heard(program)
        assert result == plain and not calls and listener.notes() == [line]
        assert [str(each.message) for each in after] == [str(each.message) for each in before]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_compiled_functions_run_uncompiled_with_a_note(x: Tensor) -> None:
    """Also outside of modules, where the compiler is imported while a recording is open."""
    compiled = []

    def backend(graph: Any, _inputs: object) -> Any:
        compiled.append(graph)
        return graph.forward

    before = torch.compile

    def program() -> Tensor:
        step = torch.compile(lambda x: functional.scaled_dot_product_attention(x, x, x), backend=backend)
        result: Tensor = step(x)
        return result

    _, calls, listener = heard(program)
    assert not compiled and len(calls) == 1
    assert listener.notes() == ["Compiled code ran uncompiled during the recording."]
    assert torch.compile is before
    program()
    assert compiled
    # It is said of what was compiled before, too, and not of flex_attention alone, which compiles itself.
    step = torch.compile(lambda x: functional.scaled_dot_product_attention(x, x, x), backend=backend)
    _, calls, listener = heard(lambda: step(x))
    assert len(calls) == 1 and listener.notes() == ["Compiled code ran uncompiled during the recording."]
    many = torch.randn(1, 2, 16, 8)
    _, calls, listener = heard(lambda: flex_attention(many, many, many))
    assert len(calls) == 1 and not listener.notes()


# Errors


@pytest.mark.parametrize("wrong", ["product", "softmax", "attention"])
def test_tracebacks_equal_those_without_recording(wrong: str, x: Tensor) -> None:
    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Any:
            if wrong == "product":
                return x @ x
            if wrong == "softmax":
                return functional.softmax(x, dim=5)
            return functional.multi_head_attention_forward(x, x, x, 6, 4, *[None] * 9)  # type: ignore[arg-type]

    def frames() -> list[tuple[str, str]]:
        with pytest.raises((RuntimeError, IndexError, AssertionError)) as caught:
            Pair(Wrong(), Attention())(x)
        entries = traceback.extract_tb(caught.value.__traceback__)
        # The tests' own wrappers check types.
        return [(entry.filename, entry.name) for entry in entries if "jaxtyping" not in entry.filename]

    plain = frames()
    recorded, _, _ = heard(frames)
    assert recorded == plain


class Warns(nn.Module):
    """Warns at three lines."""

    def forward(self, x: Tensor) -> Tensor:
        functional.mse_loss(x, x[:1])
        functional.log_softmax(x)
        weights = functional.softmax(x @ x.mT)
        return weights @ x


def test_a_warning_names_the_line_of_the_program() -> None:
    """By which it is shown once, too, and which filters of modules look at."""
    model, x = Warns(), torch.randn(2, 5, 8)

    def places(program: Callable[[], object]) -> list[tuple[str, int, str]]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            for _ in range(2):
                program()
                functional.softmax(x)
        return [(each.filename, each.lineno, str(each.message)) for each in seen]

    alone = places(lambda: model(x))
    assert len(alone) == 4 and {name for name, *_ in alone} == {__file__}
    globals().pop("__warningregistry__", None)
    with Listener(lambda _: None).listening():
        assert places(lambda: model(x)) == alone


def test_compiling_warns_only_about_hooks_of_the_program() -> None:
    """Under warnings as errors, one of attn's hooks would end the program."""
    module, x = torch.compile(nn.Linear(8, 8), backend="eager"), torch.randn(2, 5, 8)
    with warnings.catch_warnings(), Listener(lambda _: None).listening():
        warnings.simplefilter("error")
        module(x)
        hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
        try:
            with pytest.raises(UserWarning, match="global hooks"):
                module(x)
        finally:
            hook.remove()
