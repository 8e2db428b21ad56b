"""Replaced heads, by the same mechanism as `ablate`, swaps and `--ablate`."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BitNetConfig,
    BitNetForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

import attncli
from attncli.models.patched_heads import PatchedHead
from tools.tiny_architectures import GROUPED, USUAL, Architecture

IDS = [5, 6, 7, 5, 8, 9, 6, 3, 7, 11, 2]
SIZES = {"hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 3, "vocab_size": 97}
ALBERT = Architecture("AlbertModel", {**USUAL, "embedding_size": 16})


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    """Six heads, of which each three share a key and a value."""
    torch.manual_seed(4)
    config = LlamaConfig(**SIZES, num_key_value_heads=2, intermediate_size=56)
    return LlamaForCausalLM(config).eval()


@pytest.fixture(autouse=True)
def nothing_is_left(llama: LlamaForCausalLM) -> Iterator[None]:
    yield
    assert llama.config._attn_implementation == "sdpa"
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in llama.modules())


@torch.no_grad()
def logits_of(model: PreTrainedModel, ids: list[int] | Tensor = IDS) -> Tensor:
    logits: Tensor = model(torch.as_tensor(ids).view(-1, len(IDS)))[0]
    return logits


def without_output(head: PatchedHead) -> Tensor:
    return torch.zeros_like(head.output)


def without_gated(head: PatchedHead) -> Tensor:
    return torch.zeros_like(head.gated)


def loss(logits: Tensor) -> float:
    return float(nn.functional.cross_entropy(logits[0, :-1], torch.tensor(IDS[1:])))


def test_the_example_on_the_page_prints_its_output() -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    section = page.partition("## Heads that you replace")[2]
    blocks = re.findall(r"```(python|text)\n(.*?)```", section, re.DOTALL)
    (_, code), (_, expected) = blocks[:2]
    with redirect_stdout(StringIO()) as written:
        exec(code, {})
    assert written.getvalue() == expected
    _, mine, ablate = expected.splitlines()
    assert mine == ablate


def test_one_run_may_change_a_different_head_in_each_text(llama: LlamaForCausalLM) -> None:
    """The effects equal those that `ablate` measures one by one."""
    rows = {f"{layer}:{head}": 6 * layer + head for layer in range(3) for head in range(6)}

    def without(head: PatchedHead) -> Tensor:
        output = head.output.clone()
        output[rows[head.name]] = 0
        return output

    model = attncli.open_model(llama)
    effects = attncli.ablate(model, {"ids": IDS}).heads
    whole = loss(logits_of(llama))
    with attncli.patch(model, [*rows], without):
        logits = logits_of(llama, [IDS] * len(rows))
    for name, row in rows.items():
        lost = loss(logits[row : row + 1]) - whole
        layer, head = map(int, name.split(":"))
        (effect,) = [each.loss for each in effects if (each.layer, each.head) == (layer, head)]
        assert lost == pytest.approx(effect, abs=2e-6)


@pytest.mark.parametrize("method", ["mean", "swap"])
def test_replacements_of_ablate_may_be_made_by_hand(llama: LlamaForCausalLM, method: str) -> None:
    model, other = attncli.open_model(llama), [5, 6, 7, 4, 8, 9, 6, 3, 7, 11, 2]
    kept: list[Tensor] = []

    def keep(head: PatchedHead) -> Tensor:
        kept.append(head.output)
        return head.output

    with attncli.patch(model, "1:4", keep):
        logits_of(llama, other if method == "swap" else IDS)
    given = kept[0].mean(dim=1, keepdim=True) if method == "mean" else kept[0]
    with attncli.patch(model, "1:4", lambda head: given.expand_as(head.output)):
        patched = logits_of(llama)
    settings: Any = {"method": method} | ({"other": {"ids": other}} if method == "swap" else {})
    (row,) = attncli.ablate(model, {"ids": IDS}, heads="1:4", **settings).heads
    assert loss(patched) - loss(logits_of(llama)) == pytest.approx(row.loss, abs=2e-6)


@torch.no_grad()
def test_gated_comes_after_the_norm() -> None:
    """BitNet has a norm after its heads: zeros after it and before it differ; `ablate` uses the former."""
    torch.manual_seed(0)
    model = BitNetForCausalLM(BitNetConfig(**GROUPED, eos_token_id=2)).eval()
    opened = attncli.open_model(model)
    whole = loss(model(torch.tensor([IDS])).logits)
    (row,) = attncli.ablate(opened, {"ids": IDS}, heads="1:3").heads
    with attncli.patch(opened, "1:3", without_gated, part="gated"):
        gated = loss(model(torch.tensor([IDS])).logits)
    with attncli.patch(opened, "1:3", without_output):
        before = loss(model(torch.tensor([IDS])).logits)
    assert gated - whole == pytest.approx(row.loss, abs=2e-6)
    assert abs(before - gated) > 1e-5
    with (
        attncli.patch(opened, "1:3", lambda head: head.gated),
        pytest.raises(attncli.UserError, match="gated is available only at W_O"),
    ):
        model(torch.tensor([IDS]))


def test_nested_patches_change_the_same_head(llama: LlamaForCausalLM) -> None:
    model = attncli.open_model(llama)
    with attncli.patch(model, "1:3", lambda head: head.output + 2) as patched:
        with attncli.patch(patched, "1:3", lambda head: 3 * head.output):
            both = logits_of(llama)
        with attncli.patch(patched, "1:3", lambda head: head.value.flip(-1), part="value"):
            value_and_output = logits_of(llama)
    with attncli.patch(model, "1:3", lambda head: 3 * (head.output + 2)):
        torch.testing.assert_close(both, logits_of(llama), atol=1e-5, rtol=0)
    parts = {"value": lambda head: head.value.flip(-1), "output": lambda head: head.output + 2}
    with attncli.hooks(model, {"1:3": parts}):
        torch.testing.assert_close(value_and_output, logits_of(llama), atol=1e-5, rtol=0)


def test_a_shared_key_is_replaced_only_for_the_named_head(llama: LlamaForCausalLM) -> None:
    """The rest of its group keeps its key; changing the whole group equals changing the model's key."""
    model = attncli.open_model(llama)
    before = attncli.layers(model, {"ids": IDS})[1].weights()
    turned = 1.5 * torch.eye(8).roll(1, 0)
    with attncli.patch(model, "1:4", lambda head: head.key @ turned, part="key") as patched:
        after = attncli.layers(patched, {"ids": IDS})[1].weights()
    others = [head for head in range(6) if head != 4]
    torch.testing.assert_close(after[:, others], before[:, others], atol=1e-6, rtol=0)
    assert not torch.allclose(after[:, 4], before[:, 4], atol=1e-4)
    with attncli.patch(model, ["1:3", "1:4", "1:5"], lambda head: 2 * head.key, part="key"):
        patched_logits = logits_of(llama)
    projection = llama.model.layers[1].self_attn.k_proj
    with torch.no_grad():
        projection.weight[8:] *= 2
        expected = logits_of(llama)
        projection.weight[8:] /= 2
    torch.testing.assert_close(patched_logits, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("part", ["key", "value", "output"])
def test_a_patched_model_generates_the_same_with_and_without_a_cache(
    llama: LlamaForCausalLM, part: Any
) -> None:
    with attncli.patch(attncli.open_model(llama), "1:4", lambda head: -4 * getattr(head, part), part=part):
        with_cache, without = (
            llama.generate(torch.tensor([IDS]), max_new_tokens=5, do_sample=False, use_cache=use)
            for use in (True, False)
        )
    assert torch.equal(with_cache, without)


@pytest.mark.parametrize("part", ["query", "pattern", "output", "gated"])
@torch.no_grad()
def test_a_padded_text_is_changed_like_a_single_text(part: Any) -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**SIZES, intermediate_size=56)).eval()
    texts = [IDS, IDS[3:10]]
    mask = torch.tensor([[1] * len(text) + [0] * (11 - len(text)) for text in texts])
    ids = torch.tensor([text + [0] * (11 - len(text)) for text in texts])

    def change(head: PatchedHead) -> Tensor:
        tensor: Tensor = getattr(head, part)
        return tensor.square() - 30 * tensor

    before = model(ids, attention_mask=mask).logits
    with attncli.patch(attncli.open_model(model), ["1:3", "2:0"], change, part=part):
        together = model(ids, attention_mask=mask).logits
        alone = [model(torch.tensor([text])).logits[0] for text in texts]
    for row, text, logits in zip(together, texts, alone, strict=True):
        torch.testing.assert_close(row[: len(text)], logits, atol=1e-5, rtol=0)
    assert not torch.allclose(together, before, atol=1e-4)


@torch.no_grad()
def test_a_module_of_several_layers_is_changed_in_one_layer() -> None:
    """ALBERT, in runs that begin at a later block: measurements of a patched model change that layer."""
    model = ALBERT.build()
    opened = attncli.open_model(model)
    both, patched_alone = (
        attncli.ablate(opened, {"ids": IDS}, heads=heads, jointly=True).joint.output_change
        for heads in (["1:0", "1:2"], ["1:2"])
    )
    plain = model(torch.tensor([IDS]))[0][0].double()
    with attncli.patch(opened, "1:2", without_output) as patched:
        changed = model(torch.tensor([IDS]))[0][0].double()
        (row,) = attncli.ablate(patched, {"ids": IDS}, heads="1:0").heads
    lost = ((changed - plain).norm(dim=-1) / plain.norm(dim=-1)).mean()
    assert float(lost) == pytest.approx(patched_alone, abs=1e-6)
    # Relative to the patched model, as a run of both is relative to the plain model.
    with attncli.patch(opened, ["1:0", "1:2"], without_output):
        of_both = model(torch.tensor([IDS]))[0][0].double()
    expected = ((of_both - changed).norm(dim=-1) / changed.norm(dim=-1)).mean()
    assert row.output_change == pytest.approx(float(expected), abs=1e-6)
    whole = ((of_both - plain).norm(dim=-1) / plain.norm(dim=-1)).mean()
    assert both == pytest.approx(float(whole), abs=1e-6)


def test_another_thread_sees_the_unchanged_model(llama: LlamaForCausalLM) -> None:
    """Also at W_O, whose hook belongs to the thread that patches."""
    barrier, before = Barrier(2, timeout=20), logits_of(llama)

    def change(head: PatchedHead) -> Tensor:
        return torch.zeros_like(head.gated)

    def waiting(head: PatchedHead) -> Tensor:
        barrier.wait()  # the other thread runs between the attention and W_O of this one
        barrier.wait()
        return head.output

    def changes() -> Tensor:
        with attncli.hooks(attncli.open_model(llama), {"1:3": {"output": waiting, "gated": change}}):
            return logits_of(llama)

    def runs() -> Tensor:
        barrier.wait()
        logits = logits_of(llama)
        barrier.wait()
        return logits

    with ThreadPoolExecutor() as pool:
        changed, plain = (pool.submit(work) for work in (changes, runs))
    torch.testing.assert_close(plain.result(), before, atol=1e-5, rtol=0)
    assert not torch.allclose(changed.result(), before, atol=1e-4)


def test_errors_and_early_ends_leave_no_hook(llama: LlamaForCausalLM) -> None:
    def fails(head: PatchedHead) -> Tensor:
        raise ArithmeticError("of the caller")

    model = attncli.open_model(llama)
    changes: dict[str, Callable[[PatchedHead], Tensor]] = {"gated": fails}
    for before in ({}, {"output": fails}):
        with pytest.raises(ArithmeticError), attncli.hooks(model, {"1:3": {**changes, **before}}):
            logits_of(llama)
    # The run ends at the requested layer, before W_O reads the removed head.
    report = attncli.run("multihead", model=llama, sentence={"ids": IDS}, layer=1, ablate=["1:3"])
    assert report.tensors["weights"].values.shape == (6, 11, 11)


def test_a_callers_hooks_see_the_replacement(llama: LlamaForCausalLM) -> None:
    """At W_O, for a hook that the caller added before; also under autocast, which computes in bfloat16."""
    read: list[Tensor] = []
    projection = llama.model.layers[1].self_attn.o_proj
    with (
        projection.register_forward_hook(lambda _module, inputs, _output: read.append(inputs[0])),
        attncli.patch(attncli.open_model(llama), "1:3", without_gated, part="gated"),
    ):
        logits_of(llama)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits_of(llama)
    for each in read:
        heads = each.unflatten(-1, (6, 8))
        assert not heads[..., 3, :].any() and heads[..., 2, :].any()
    assert len(read) == 2
