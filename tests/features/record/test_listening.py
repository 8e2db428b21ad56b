"""What is heard of torch's functions, against torch's own weights; the program stays as it was."""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.modules import module as torch_modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

import attncli
from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Wanted
from attncli.core.row_tiles import GivenWeights
from attncli.features.record.listening import heard_layers
from attncli.features.record.listening.heard_calls import HeardCall
from attncli.features.record.listening.listener import Listener
from tests.conftest import in_turn
from tests.features.record.heard import heard, output_of, weights_of

CLOSE = 1e-5


class Attention(nn.Module):
    def __init__(self, dim: int = 12, num_heads: int = 3) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        texts, tokens, dim = x.shape
        query, key, value = self.qkv(x).view(texts, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        dropout = 0.3 if self.training else 0.0
        output = scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        projected: Tensor = self.out(output.transpose(1, 2).reshape(texts, tokens, dim))
        return projected


class Network(nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(3))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + (checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x))
        return x


MASKS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "causal": lambda: {"is_causal": True},
    "boolean": lambda: {"attn_mask": torch.rand(5, 7) > 0.3},
    "of keys": lambda: {"attn_mask": torch.tensor([[1] * 6 + [0], [1] * 4 + [0] * 3]).bool()[:, None, None]},
    "numbers": lambda: {"attn_mask": torch.randn(2, 1, 5, 7)},
    "of heads": lambda: {"attn_mask": torch.randn(4, 5, 7)},
    "of heads, boolean": lambda: {"attn_mask": torch.rand(4, 5, 7) > 0.2},
    "smallest numbers": lambda: {
        "attn_mask": torch.zeros(5, 7).masked_fill(torch.rand(5, 7) > 0.6, torch.finfo().min)
    },
    "scaled": lambda: {"scale": 0.3},
}


@pytest.mark.parametrize(("name", "dtype"), in_turn(MASKS, [torch.float32, torch.float64]))
def test_torch_attention_is_recorded_with_its_mask_and_scale(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    query, key, value = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6), torch.randn(2, 2, 7, 3)
    query, key, value = (part.to(dtype) for part in (query, key, value))
    more = MASKS[name]()
    if "attn_mask" in more and more["attn_mask"].dtype != torch.bool:
        more["attn_mask"] = more["attn_mask"].to(dtype)
    plain = scaled_dot_product_attention(query, key, value, enable_gqa=True, **more)
    result, (call,), _ = heard(
        lambda: scaled_dot_product_attention(query, key, value, enable_gqa=True, **more)
    )
    assert torch.equal(plain, result)
    assert (output_of(call) - plain).abs().max() < CLOSE
    assert call.attention.shape == (2, 4, 5, 7)


@pytest.mark.parametrize("lead", [(), (4,), (2, 4), (3, 2, 4), (2, 1, 2, 4)])
def test_leading_axes_are_texts_and_heads(lead: tuple[int, ...]) -> None:
    query = torch.randn(*lead, 5, 6)
    mask = torch.randn(*lead[:1], *[1] * len(lead[1:]), 5, 5)
    plain = scaled_dot_product_attention(query, query, query, attn_mask=mask)
    _, (call,), _ = heard(lambda: scaled_dot_product_attention(query, query, query, attn_mask=mask))
    assert (output_of(call).reshape(plain.shape) - plain).abs().max() < CLOSE
    assert call.has_heads is (len(lead) != 1)


def test_expanded_and_transposed_tensors_are_recorded() -> None:
    query = torch.randn(5, 3, 2, 8).permute(2, 1, 0, 3)
    key = torch.randn(1, 3, 1, 8).expand(2, 3, 7, 8)
    value = torch.randn(1, 1, 7, 8).expand(2, 3, 7, 8)
    plain = scaled_dot_product_attention(query, key, value)
    _, (call,), _ = heard(lambda: scaled_dot_product_attention(query, key, value))
    assert (output_of(call) - plain).abs().max() < CLOSE


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("is_training", [True, False])
def test_attention_inside_multihead_attention_is_recorded(need_weights: bool, is_training: bool) -> None:
    module = nn.MultiheadAttention(12, 3, batch_first=True).train(is_training)
    x, context = torch.randn(2, 5, 12), torch.randn(2, 5, 12)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    _, truth = module(x, context, context, key_padding_mask=padding, average_attn_weights=False)
    _, calls, _ = heard(
        lambda: module(x, context, context, key_padding_mask=padding, need_weights=need_weights)
    )
    (call,) = calls
    assert (call.module, call.kind) == ("MultiheadAttention", "cross")
    assert (weights_of(call) - truth).abs().max() < CLOSE


@pytest.mark.parametrize("is_training", [True, False])
def test_a_transformer_is_recorded_with_module_paths(is_training: bool) -> None:
    model = nn.Transformer(12, 2, 2, 2, 16, batch_first=True).train(is_training)
    source, target = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    mask = nn.Transformer.generate_square_subsequent_mask(7)

    def run() -> Tensor:
        torch.manual_seed(1)
        output: Tensor = model(source, target, tgt_mask=mask)
        return output

    plain = run()
    state = torch.get_rng_state()
    result, calls, _ = heard(run)
    assert torch.equal(plain, result)
    assert torch.equal(torch.get_rng_state(), state)
    assert [(call.module, call.kind) for call in calls] == [
        ("encoder.layers.0.self_attn", "self"),
        ("encoder.layers.1.self_attn", "self"),
        ("decoder.layers.0.self_attn", "self"),
        ("decoder.layers.0.multihead_attn", "cross"),
        ("decoder.layers.1.self_attn", "self"),
        ("decoder.layers.1.multihead_attn", "cross"),
    ]
    decoder = calls[2].attention
    assert isinstance(decoder, AttentionLayer)
    assert decoder.visibility.causal
    assert decoder.visibility.rule is None


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_recorded_with_score_mod_and_mask() -> None:
    query, key, value = torch.randn(2, 4, 16, 8), torch.randn(2, 2, 16, 8), torch.randn(2, 2, 16, 8)
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 5), None, None, 16, 16, device="cpu")

    def run() -> Any:
        return flex_attention(
            query,
            key,
            value,
            score_mod=lambda score, b, h, i, j: score + 0.1 * (i - j) * (h + 1),
            block_mask=mask,
            enable_gqa=True,
        )

    plain = run()
    _, (call,), _ = heard(run)
    assert call.function == "flex_attention"
    assert (output_of(call) - plain).abs().max() < CLOSE
    assert isinstance(call.attention, AttentionLayer)
    assert call.attention.visibility.window == 5


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_step_of_training_is_the_same_to_the_bit(checkpointed: bool) -> None:
    torch.manual_seed(0)
    model, x = Network(checkpointed=checkpointed), torch.randn(2, 5, 12)

    def step() -> tuple[Tensor, Sequence[Tensor], Tensor]:
        torch.manual_seed(4)
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return (
            loss,
            [each.grad.clone() for each in model.parameters() if each.grad is not None],
            torch.rand(3),
        )

    loss, gradients, after = step()
    (heard_loss, heard_gradients, heard_after), calls, listener = heard(step)
    assert torch.equal(loss, heard_loss)
    assert torch.equal(after, heard_after)
    assert all(map(torch.equal, gradients, heard_gradients))
    assert [call.module for call in calls] == [f"layers.{number}" for number in range(3)]
    assert {*listener.counts.values()} == {1}  # what runs again in the backward pass is no call


@pytest.mark.parametrize(
    ("calls", "numbers"), [(1, [0]), (2, [0, 1]), ("all", [0, 1, 2]), ("last", [0, 1, 2])]
)
def test_so_many_calls_of_a_module_are_read_and_all_are_counted(calls: Any, numbers: list[int]) -> None:
    model, x = Network().eval(), torch.randn(1, 4, 12)
    _, read, listener = heard(lambda: [model(x) for _ in range(3)], calls=calls)
    assert [call.call for call in read if call.module == "layers.1"] == numbers
    assert listener.counts == dict.fromkeys(("layers.0", "layers.1", "layers.2"), 3)


def test_modules_are_chosen_by_patterns_of_paths() -> None:
    model = Network().eval()
    _, calls, listener = heard(lambda: model(torch.randn(1, 4, 12)), modules="layers.1, *.2")
    assert [call.module for call in calls] == ["layers.1", "layers.2"]
    assert not _get_current_function_mode_stack()
    assert listener.counts.keys() == {"layers.1", "layers.2"}


def test_each_thread_records_its_own_calls() -> None:
    model, shapes = Network().eval(), {}

    def work(number: int) -> None:
        _, calls, listener = heard(lambda: model(torch.randn(number + 1, 4 + number, 12)))
        shapes[number] = {call.attention.shape for call in calls}, len(calls), listener.notes()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shapes == {n: ({(n + 1, 3, 4 + n, 4 + n)}, 3, []) for n in range(4)}


@pytest.mark.parametrize("all_threads", [True, False])
def test_other_threads_are_recorded_on_request_or_noted(all_threads: bool) -> None:
    model = Network().eval()

    def run() -> None:
        thread = threading.Thread(target=lambda: model(torch.randn(1, 4, 12)))
        thread.start()
        thread.join()

    _, calls, listener = heard(run, all_threads=all_threads)
    assert len(calls) == (3 if all_threads else 0)
    assert any("other threads" in note for note in listener.notes()) is not all_threads


def test_an_exception_in_the_program_restores_torch() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            scaled_dot_product_attention(x, x, x)
            raise ValueError("of the program")

    calls: list[HeardCall] = []
    listener = Listener(calls.append, modules="Failing")
    with pytest.raises(ValueError, match="of the program"), listener.listening():
        Failing()(torch.randn(1, 4, 6))
    assert len(calls) == 1
    assert not _get_current_function_mode_stack()
    assert not torch_modules._global_forward_hooks
    assert not torch_modules._global_forward_pre_hooks


def test_an_error_of_ours_does_not_reach_the_program() -> None:
    def fail(call: HeardCall) -> None:
        raise RuntimeError("of ours")

    listener = Listener(fail)
    x = torch.randn(1, 2, 4, 6)
    with listener.listening():
        result = scaled_dot_product_attention(x, x, x)
    assert torch.equal(result, scaled_dot_product_attention(x, x, x))
    assert "RuntimeError: of ours" in listener.notes()[0]


@pytest.mark.parametrize(
    "tensor", [torch.randn(1, 2, 0, 6), torch.randn(0, 2, 4, 6), torch.empty(1, 2, 4, 6, device="meta")]
)
def test_unreadable_tensors_leave_one_note(tensor: Tensor) -> None:
    _, calls, listener = heard(lambda: scaled_dot_product_attention(tensor, tensor, tensor))
    assert not calls
    assert len(listener.notes()) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_recorded(dtype: torch.dtype) -> None:
    x = torch.randn(1, 2, 4, 6).to(dtype)
    plain = scaled_dot_product_attention(x, x, x)
    _, (call,), _ = heard(lambda: scaled_dot_product_attention(x, x, x))
    assert (output_of(call) - plain.float()).abs().max() < 0.02


def test_autocast_and_inference_mode_are_left_as_they_are() -> None:
    model, x = Network().eval(), torch.randn(1, 4, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        plain = model(x)
        result, calls, _ = heard(lambda: model(x))
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(plain, result)
    assert len(calls) == 3


def test_heads_setting_splits_a_single_axis() -> None:
    x = torch.randn(6, 4, 5)
    _, (unknown,), _ = heard(lambda: scaled_dot_product_attention(x, x, x))
    assert (unknown.attention.shape[:2], unknown.has_heads) == ((1, 6), False)
    _, (known,), _ = heard(lambda: scaled_dot_product_attention(x, x, x), heads={"*": 3})
    assert (known.attention.shape[:2], known.has_heads) == ((2, 3), True)


LEADS = {
    "texts x heads, 1": ((6, 1), 3, lambda whole: whole.view(2, 3, *whole.shape[2:])),
    "heads, texts": ((3, 2), 3, lambda whole: whole.transpose(0, 1)),
    "texts, groups, heads": ((2, 3, 5), 15, lambda whole: whole.flatten(1, 2)),
    "texts, windows, heads": ((2, 5, 3), 3, lambda whole: whole.flatten(0, 1)),
    "texts, heads, windows": (
        (2, 3, 5),
        3,
        lambda whole: whole.transpose(1, 2).flatten(0, 1),
    ),
}


@pytest.mark.parametrize(("lead", "mask"), in_turn(LEADS, ["none", "all", "texts", "last"]))
def test_heads_setting_splits_any_axes(lead: str, mask: str) -> None:
    sizes, num_heads, arranged = LEADS[lead]
    query, key = torch.randn(*sizes, 4, 8), torch.randn(*sizes, 7, 8)
    of_mask = {
        "none": (),
        "all": sizes,
        "texts": (sizes[0], *[1] * (len(sizes) - 1)),
        "last": (*[1] * (len(sizes) - 1), sizes[-1]),
    }[mask]
    bias = torch.randn(*of_mask, 4, 7)
    _, (call,), _ = heard(
        lambda: scaled_dot_product_attention(query, key, key, attn_mask=bias), heads={"*": num_heads}
    )
    whole = (query @ key.mT * 8**-0.5 + bias).softmax(dim=-1)
    torch.testing.assert_close(weights_of(call), arranged(whole), rtol=0, atol=1e-6)
    torch.testing.assert_close(output_of(call), arranged(whole @ key), rtol=0, atol=1e-5)


def test_shared_keys_belong_to_their_heads_on_any_axes() -> None:
    query, key = torch.randn(2, 3, 5, 4, 8), torch.randn(2, 3, 1, 7, 8)
    _, (call,), _ = heard(lambda: scaled_dot_product_attention(query, key, key), heads={"*": 15})
    whole = (query @ key.mT * 8**-0.5).softmax(dim=-1).flatten(1, 2)
    torch.testing.assert_close(weights_of(call), whole, rtol=0, atol=1e-6)


def test_heads_that_no_axes_make_are_refused() -> None:
    x = torch.randn(2, 3, 5, 4, 8)
    _, calls, listener = heard(lambda: scaled_dot_product_attention(x, x, x), heads={"*": 6})
    assert not calls
    assert "`heads` (6) does not match the axes of texts and heads (2 x 3 x 5)" in listener.notes()[0]


@pytest.mark.parametrize("lead", ["texts x heads", "texts, heads", "texts, groups, heads"])
def test_the_projection_determines_the_heads(lead: str) -> None:
    class Projecting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(12, 12)

        def forward(self, x: Tensor) -> Tensor:
            whole = self.linear(x).view(2, 5, 6, 2).transpose(1, 2)
            if lead == "texts x heads":
                whole = whole.reshape(12, 5, 2)
            elif lead == "texts, groups, heads":
                whole = whole.unflatten(1, (2, 3))
            return scaled_dot_product_attention(whole, whole, whole)

    layer = Projecting()
    _, (call,), _ = heard(lambda: layer(torch.randn(2, 5, 12)))
    assert (call.attention.shape[:2], call.has_heads) == ((2, 6), True)


class Windows(nn.Module):
    """Attention by hand whose leading axes are not texts and heads."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.weights: Tensor | None = None

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        self.weights = (query @ key.mT).softmax(dim=-1)
        return self.weights @ key


@pytest.mark.parametrize(
    ("lead", "num_heads", "arranged"),
    [
        ((2, 3), 3, lambda weights: weights),
        ((3, 2), 3, lambda weights: weights.transpose(0, 1)),
        ((3, 2, 1), 3, lambda weights: weights[:, :, 0].transpose(0, 1)),
        ((2, 5, 3), 15, lambda weights: weights.flatten(1, 2)),
        ((6, 5), 3, lambda weights: torch.stack([weights[0:3], weights[3:6]]).transpose(1, 2).flatten(0, 1)),
        ((6,), 3, lambda weights: torch.stack([weights[0:3], weights[3:6]])),
        ((2, 5), 3, lambda weights: weights),
    ],
    ids=[
        "text head",
        "head text",
        "head row column",
        "text group head",
        "text-head window",
        "1 axis",
        "3 of 10",
    ],
)
def test_heads_are_on_the_axis_that_the_module_says(
    lead: tuple[int, ...], num_heads: int, arranged: Callable[[Tensor], Tensor]
) -> None:
    module = Windows(num_heads)
    query, key = torch.randn(*lead, 4, 8), torch.randn(*lead, 7, 8)
    _, (call,), _ = heard(lambda: module(query, key))
    assert module.weights is not None and call.weights is not None
    expected = arranged(module.weights)
    torch.testing.assert_close(call.weights, expected, rtol=0, atol=0)
    torch.testing.assert_close(weights_of(call), expected, rtol=0, atol=1e-6)


def test_a_number_of_heads_from_further_out_does_not_split_texts() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads, self.inner = 4, nn.Sequential(nn.Identity(), Pooled())

        def forward(self, query: Tensor) -> Any:
            return self.inner(query)

    class Pooled(nn.Module):
        def forward(self, query: Tensor) -> Tensor:
            return (query @ query.mT).softmax(dim=-1) @ query

    root, query = Outer(), torch.randn(8, 1, 4, 8)
    _, (call,), _ = heard(lambda: root(query))
    assert call.attention.shape[:2] == (8, 1)


def test_nothing_is_kept_of_the_program() -> None:
    model = Network().eval()
    listener = Listener(lambda call: None)
    with listener.listening():
        kept = weakref.ref(model(torch.randn(1, 4, 12)))
        gone = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None
    assert gone() is None


def test_a_module_has_one_path_and_shares_it_with_no_other() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.encoder(x, x, x)[0]

    x, holders, paths = torch.randn(1, 3, 8), [Holder() for _ in range(3)], list[str]()
    listener = Listener(lambda call: paths.append(call.module), calls="all")
    with listener.listening():
        holders[0].encoder(x, x, x)
        for holder in holders:
            holder(x)
        del holders[2], holder
        gc.collect()
        Holder()(x)
    first, second, third = "MultiheadAttention", "encoder", "Holder.encoder"
    assert paths == [first, first, second, third, third]


def test_overlapping_recordings_restore_everything() -> None:
    x, heard = torch.randn(1, 2, 3, 4), list[list[HeardCall]]([[], []])
    modes = len(_get_current_function_mode_stack())
    torch._dynamo.reset()
    first, second = (Listener(each.append, calls="all").listening() for each in heard)
    first.__enter__()
    second.__enter__()
    assert torch._dynamo.eval_frame._stance.stance == "force_eager"
    first.__exit__(None, None, None)
    assert torch._dynamo.eval_frame._stance.stance == "force_eager"
    scaled_dot_product_attention(x, x, x)
    second.__exit__(None, None, None)
    scaled_dot_product_attention(x, x, x)
    assert torch._dynamo.eval_frame._stance.stance == "default"
    assert len(_get_current_function_mode_stack()) == modes
    assert [len(each) for each in heard] == [0, 1]


def test_rows_hidden_from_some_heads_are_noted() -> None:
    mask = torch.ones(1, 2, 3, 3, dtype=torch.bool)
    mask[0, 1, 1] = False
    x = torch.randn(1, 2, 3, 4)
    listener = Listener(lambda call: pytest.fail("it is not read"))
    with listener.listening():
        scaled_dot_product_attention(x, x, x, attn_mask=mask)
    (note,) = listener.notes()
    assert "hides every key of a row, but only from some heads" in note


def test_rows_hidden_from_some_heads_by_hand_are_recorded_as_weights() -> None:
    seen = torch.ones(1, 2, 12, 12, dtype=torch.bool)
    seen[0, 1, 7] = False
    heard: list[HeardCall] = []
    x = torch.randn(1, 2, 12, 4)
    with Listener(heard.append).listening():
        scores = (x @ x.mT).masked_fill(~seen, -torch.inf)
        weights = scores.softmax(dim=-1).nan_to_num(0.0)
        _ = weights @ x
    (call,) = heard
    kept = call.attention if call.weights is None else GivenWeights(call.weights, seen[:, 0])
    given = attend(kept, Wanted(weights=True)).weights
    assert given is not None and isinstance(call.attention, GivenWeights)
    torch.testing.assert_close(given.nan_to_num(0.0), weights)


@pytest.mark.parametrize("axes", [(1, 2), (2, 1), (1, 1)])
def test_one_text_or_head_of_queries_is_for_all_keys(axes: tuple[int, int]) -> None:
    query, key = torch.randn(*axes, 3, 4), torch.randn(2, 2, 5, 4)
    heard: list[HeardCall] = []
    with Listener(heard.append).listening():
        output = scaled_dot_product_attention(query, key, key)
    weights = attend(heard[0].attention, Wanted(weights=True)).weights
    assert weights is not None
    torch.testing.assert_close(weights @ key, output)


class Folded(nn.Module):
    """Heads and texts on one axis: heads first, as the Set Transformer has them, Lee and others 2019."""

    def __init__(self, *, is_fused: bool, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.is_fused = num_heads, is_fused
        self.query, self.key = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.query(x), self.key(x), x
        query, key, value = (torch.cat(part.split(4, dim=2), dim=0) for part in parts)
        if self.is_fused:
            return scaled_dot_product_attention(query, key, value)
        return torch.bmm((query.bmm(key.mT) / 2).softmax(-1), value)

    def weights(self, x: Tensor) -> Tensor:
        query, key = (
            part.double().unflatten(2, (3, 4)).transpose(1, 2) for part in (self.query(x), self.key(x))
        )
        return (query @ key.mT / 2).softmax(-1)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("num_heads", [3, 5])
def test_heads_joined_before_texts_are_separated(is_fused: bool, num_heads: int) -> None:
    model, x = Folded(is_fused=is_fused, num_heads=num_heads), torch.randn(5, 7, 12)
    _, (call,), _ = heard(lambda: model(x))
    assert call.has_heads
    torch.testing.assert_close(weights_of(call).double(), model.weights(x), rtol=0, atol=1e-6)


class OneHead(nn.Module):
    """(text, token, dim) by projections of its own, in a model whose number of heads is another's."""

    def __init__(self, *, is_fused: bool) -> None:
        super().__init__()
        self.is_fused, self.query = is_fused, nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x)
        if self.is_fused:
            return scaled_dot_product_attention(query, x, x)
        return torch.matmul((query @ x.mT).softmax(-1), x)


class ManyHeads(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.num_heads, self.part = 4, part

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.part(x)
        return pooled


@pytest.mark.parametrize(("num_texts", "is_fused"), in_turn([1, 3, 4, 8], [False, True]))
def test_texts_are_not_heads_if_no_projection_has_heads(num_texts: int, is_fused: bool) -> None:
    model, x = ManyHeads(OneHead(is_fused=is_fused)), torch.randn(num_texts, 5, 6)
    _, (call,), listener = heard(lambda: model(x))
    assert call.attention.shape == (num_texts, 1, 5, 5) and call.has_heads and not listener.notes()


class HeadByHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.query_key = 3, nn.Linear(12, 24)

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.query_key(x).view(*x.shape[:2], 2, 3, 4).permute(2, 0, 3, 1, 4)
        return torch.cat([(query[:, h] @ key[:, h].mT).softmax(-1) @ key[:, h] for h in range(3)], dim=-1)


@pytest.mark.parametrize("num_texts", [2, 3])
def test_heads_one_by_one_are_one_head_each(num_texts: int) -> None:
    model, x = HeadByHead(), torch.randn(num_texts, 5, 12)
    _, calls, _ = heard(lambda: model(x))
    assert [call.attention.shape for call in calls] == [(num_texts, 1, 5, 5)] * 3


@pytest.mark.parametrize("is_fused", [False, True])
def test_rows_hidden_by_finite_numbers_are_noted(is_fused: bool) -> None:
    query, mask = torch.randn(2, 3, 5, 4), torch.zeros(5, 5)
    mask[2] = -1e9

    def notes() -> list[str]:
        with attncli.record() as seen:
            if is_fused:
                scaled_dot_product_attention(query, query, query, attn_mask=mask)
            else:
                torch.matmul((query @ query.mT + mask).softmax(-1), query)
        return [line for line in seen.notes if "heads are one axis" not in line]

    (line,) = notes()
    assert "rows without keys" in line
    mask[:, 2] = -1e9  # padding
    (line,) = notes()
    assert line.startswith("8 rows were measured; 2 padding rows were left out")
    mask[2], mask[:, 2] = -torch.inf, 0
    assert not [line for line in notes() if "rows without keys" in line]


@pytest.mark.parametrize("is_bool", [False, True])
def test_large_masks_that_the_program_changes_stay_in_layers(
    is_bool: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heard_layers, "MOST_SPLIT", 10)
    query, mask = torch.randn(1, 2, 5, 4), torch.rand(1, 1, 5, 5) > 0.3
    mask = mask if is_bool else torch.zeros(1, 1, 5, 5).masked_fill(~mask, -torch.inf)
    with attncli.record() as seen:
        scaled_dot_product_attention(query, query, query, attn_mask=mask)
    before = seen.layers[0].weights()
    mask.zero_()
    assert seen.layers[0].weights().equal(before)


class BandAttention(nn.Module):
    """Attention without a softmax, as of a band of keys that an extension computes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(dim=1)


class AttentionWeights(nn.Module):
    """The weights of an attention whose values are multiplied by the module that calls it."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(dim=-1)


class SplitAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = AttentionWeights()

    def forward(self, x: Tensor) -> Tensor:
        weights: Tensor = self.weights(x)
        return weights @ x


def test_a_module_of_attention_without_any_is_noted() -> None:
    x = torch.randn(1, 5, 3)
    _, calls, listener = heard(lambda: nn.Sequential(BandAttention(), SplitAttention(), nn.ReLU())(x))
    assert [call.module for call in calls] == ["1"]
    (line,) = listener.notes()
    assert line.startswith("0: no attention was detected in BandAttention, ")
    _, calls, listener = heard(lambda: nn.Sequential(BandAttention(), SplitAttention())(x), modules="1")
    assert len(calls) == 1 and not listener.notes()
