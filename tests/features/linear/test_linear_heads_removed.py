"""`attn ablate` on layers without a softmax: against the model itself, columns of its W_O set to zero."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import attncli
from attncli.errors import UserError
from attncli.features.ablate.results import HeadEffect, HeadEffects
from attncli.models.architectures import mixer_name
from attncli.models.removal import heads_removed
from tests.conftest import some_seldom
from tests.running import run
from tools.architecture_sweep.folders import text_of

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

MIXED = ("falcon_h1", "zamba", "zamba2")
"""Their layers have heads of both kinds."""
FAMILIES = (
    *("qwen3_next", "qwen3_5_text", "olmo_hybrid", "kimi_linear", "bailing_hybrid", "qwen4_exp_text"),
    *("bamba", "granitemoehybrid", "nemotron_h", "jamba", "minimax", *MIXED),
)
NUM_TOKENS = 17


def loaded(folder: str) -> tuple[PreTrainedModel, Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = AutoTokenizer.from_pretrained(folder)(text_of(NUM_TOKENS), return_tensors="pt").input_ids
    return model, ids


@torch.no_grad()
def loss_of(model: Any, ids: Tensor) -> float:
    logits = model(ids, use_cache=False).logits[0, :-1].double()
    return float(cross_entropy(logits, ids[0, 1:]))


def projection_of(model: nn.Module, module: str) -> nn.Linear:
    """W_O of a mixer, under the name that its family uses."""
    names = {name.removeprefix("model."): part for name, part in model.named_modules()}
    mixer: Any = names[module.removeprefix("model.")]
    assert mixer_name(type(mixer).__name__) is not None
    return mixer.o_proj if hasattr(mixer, "o_proj") else mixer.out_proj


@contextmanager
def without(projection: nn.Linear, head: int, num_heads: int) -> Iterator[None]:
    """Set the columns of W_O that belong to a head to zero."""
    kept = projection.weight.detach().clone()
    size = kept.shape[1] // num_heads
    with torch.no_grad():
        projection.weight[:, head * size : (head + 1) * size] = 0
    yield
    with torch.no_grad():
        projection.weight.copy_(kept)


def linear_rows(result: HeadEffects) -> list[HeadEffect]:
    return [row for row in result.heads if row.kind == "linear"]


@pytest.mark.parametrize("name", some_seldom(FAMILIES, FAMILIES[1::3] + FAMILIES[2::3]))
def test_removing_a_head_is_zeroing_its_columns(saved: Callable[[str], str], name: str) -> None:
    folder = saved(name)
    result = attncli.ablate(folder, text_of(NUM_TOKENS))
    model, ids = loaded(folder)
    rows = linear_rows(result)
    baseline = loss_of(model, ids)
    assert result.baseline is not None and result.baseline.loss == pytest.approx(baseline, abs=1e-5)
    counts = {module: sum(row.module == module for row in rows) for module in {row.module for row in rows}}
    for row in rows:
        with without(projection_of(model, row.module), row.head, counts[row.module]):
            assert row.loss == pytest.approx(loss_of(model, ids) - baseline, abs=2e-5), row
    assert max(abs(row.loss or 0) for row in rows) > 1e-4
    assert {row.kind for row in result.heads} == {"self", "linear"}
    assert {row.stack for row in rows} == {"linear" if name in MIXED else "self"}
    assert not any(note.startswith("Not shown") for note in result.notes)
    layers = [row.layer for row in result.heads]
    assert layers == sorted(layers)


@contextmanager
def reading(projection: nn.Linear, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the input of W_O (text, token, dim)."""
    hook = projection.register_forward_pre_hook(lambda _, inputs: (change(inputs[0]),))
    yield
    hook.remove()


@pytest.fixture(scope="module")
def qwen(saved: Callable[[str], str]) -> tuple[str, PreTrainedModel, Tensor]:
    return saved("qwen3_next"), *loaded(saved("qwen3_next"))


def head_of(read: Tensor, row: HeadEffect, num_heads: int) -> Tensor:
    """The part of W_O's input from one head, as a view (token, value_dim)."""
    return read.view(read.shape[1], num_heads, -1)[:, row.head]


def name_of(row: HeadEffect) -> str:
    return f"{row.layer}:{row.head}"


def instead(row: HeadEffect, num_heads: int, tokens: slice, given: Tensor, read: Tensor) -> Tensor:
    """The input of W_O with another output of a head."""
    changed = read.clone()
    head_of(changed, row, num_heads)[tokens] = given
    return changed


def gated(row: HeadEffect, num_heads: int, gate: Tensor, read: Tensor) -> Tensor:
    heads = read.view(1, read.shape[1], num_heads, -1)
    of_head = torch.arange(num_heads) == row.head
    return (heads * torch.where(of_head, gate, 1.0).view(1, 1, -1, 1)).view(read.shape)


def count_of(rows: list[HeadEffect], row: HeadEffect) -> int:
    return sum(other.module == row.module for other in rows)


@torch.no_grad()
def read_on(model: PreTrainedModel, ids: Tensor, module: str) -> Tensor:
    """The input of W_O on a text."""
    reads: list[Tensor] = []
    with reading(projection_of(model, module), lambda read: reads.append(read.clone()) or read):
        model(ids, use_cache=False)
    return reads[0]


@torch.no_grad()
def test_the_mean_is_over_all_tokens_of_the_texts(qwen: tuple[str, PreTrainedModel, Tensor]) -> None:
    folder, model, _ = qwen
    texts = [text_of(NUM_TOKENS), text_of(11, seed=3)]
    rows = linear_rows(attncli.ablate(folder, texts, method="mean"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    all_ids = [tokenizer(text, return_tensors="pt").input_ids for text in texts]
    for row in rows[1::3]:
        num_heads = count_of(rows, row)
        reads = [head_of(read_on(model, of_text, row.module), row, num_heads) for of_text in all_ids]
        mean = torch.cat(reads).mean(dim=0)

        before = [loss_of(model, of_text) for of_text in all_ids]
        with reading(projection_of(model, row.module), partial(instead, row, num_heads, slice(None), mean)):
            losses = [loss_of(model, of_text) for of_text in all_ids]
        expected = sum(now - then for now, then in zip(losses, before, strict=True)) / 2
        assert row.loss == pytest.approx(expected, abs=2e-5)


@torch.no_grad()
def test_swapped_heads_have_their_output_on_the_other_prompt(
    qwen: tuple[str, PreTrainedModel, Tensor],
) -> None:
    folder, model, ids = qwen
    other = text_of(NUM_TOKENS, seed=5)
    there = AutoTokenizer.from_pretrained(folder)(other, return_tensors="pt").input_ids
    for token in (None, 6):
        settings: Any = {} if token is None else {"token": token}
        result = attncli.ablate(folder, text_of(NUM_TOKENS), method="swap", other=other, **settings)
        rows = linear_rows(result)
        assert result.back is not None and len(result.back) == len(result.heads)
        for row in rows[::3]:
            num_heads = count_of(rows, row)
            gave = head_of(read_on(model, there, row.module), row, num_heads)

            tokens = slice(None) if token is None else slice(token, token + 1)
            swapped = partial(instead, row, num_heads, tokens, gave[tokens])
            with reading(projection_of(model, row.module), swapped):
                loss = loss_of(model, ids)
            assert row.loss == pytest.approx(loss - loss_of(model, ids), abs=2e-5)


def test_approximate_effects_match_autograd(qwen: tuple[str, PreTrainedModel, Tensor]) -> None:
    folder, model, ids = qwen
    result = attncli.ablate(folder, text_of(NUM_TOKENS), approximate=True)
    rows = linear_rows(result)
    for row in rows[1::3]:
        num_heads, gate = count_of(rows, row), torch.ones((), requires_grad=True)

        with reading(projection_of(model, row.module), partial(gated, row, num_heads, gate)):
            loss = cross_entropy(model(ids, use_cache=False).logits[0, :-1], ids[0, 1:])
        (gradient,) = torch.autograd.grad(loss, gate)
        assert row.approximate == pytest.approx(float(gradient.abs()), rel=1e-3, abs=1e-6)


def test_heads_of_both_kinds_may_be_removed_together(qwen: tuple[str, PreTrainedModel, Tensor]) -> None:
    folder, model, ids = qwen
    whole = {name_of(row): row for row in attncli.ablate(folder, text_of(NUM_TOKENS)).heads}
    result = attncli.ablate(folder, text_of(NUM_TOKENS), heads=["1:1", "linear:0:2"], jointly=True)
    assert [(name_of(row), row.kind) for row in result.heads] == [("1:1", "self"), ("0:2", "linear")]
    assert [row.loss for row in result.heads] == pytest.approx(
        [whole["1:1"].loss, whole["0:2"].loss], abs=1e-5
    )
    assert result.joint is not None and result.joint.loss is not None
    softmax: Any = model.model.layers[1].self_attn.o_proj
    before = loss_of(model, ids)
    with without(softmax, 1, 4), without(model.model.layers[0].linear_attn.out_proj, 2, 4):
        assert result.joint.loss == pytest.approx(loss_of(model, ids) - before, abs=2e-5)


def test_linear_heads_of_mixed_layers_have_a_prefix(saved: Callable[[str], str]) -> None:
    whole = attncli.ablate(saved("falcon_h1"), text_of(NUM_TOKENS)).heads
    both = attncli.ablate(saved("falcon_h1"), text_of(NUM_TOKENS), heads=["0:1", "linear:0:1"]).heads
    assert [(row.kind, row.stack) for row in both] == [("self", "self"), ("linear", "linear")]
    for row in both:
        (same,) = [each for each in whole if (each.stack, each.layer, each.head) == (row.stack, 0, 1)]
        assert row.loss == pytest.approx(same.loss, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "sink", "heads": "0:2"},
            "method: sink needs heads with a softmax, but 0:2 belongs to a gated delta",
        ),
        ({"heads": "0:9"}, "heads: must be from 0:0 to 3:3 in "),
        ({"heads": "linear:1:1"}, "heads: .* has no stack linear"),
        (
            {"method": "swap", "other": text_of(NUM_TOKENS, 1), "into": "2:1"},
            "into: must be a head with a soft",
        ),
    ],
)
def test_wrong_heads_are_refused(
    qwen: tuple[str, PreTrainedModel, Tensor], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        attncli.ablate(qwen[0], text_of(NUM_TOKENS), **settings)


def test_a_sink_applies_only_to_heads_with_a_softmax(
    qwen: tuple[str, PreTrainedModel, Tensor],
) -> None:
    report = run("ablate", model=qwen[0], sentence=text_of(NUM_TOKENS), method="sink")
    assert {row["kind"] for row in report.table("heads")} == {"self"}
    assert report.missing == "Without a softmax and therefore not shown: gated delta net in layers 0, 2."


def test_the_report_ranks_both_kinds(
    qwen: tuple[str, PreTrainedModel, Tensor],
) -> None:
    report = run("ablate", model=qwen[0], sentence=text_of(NUM_TOKENS))
    heads = report.table("heads")
    losses = [row["loss"] for row in heads]
    assert len(heads) == 16 and losses == sorted(losses, reverse=True) and report.missing == ""
    assert {row["pattern"] for row in heads if row["kind"] == "linear"} == {"gated delta net"}
    assert report.tensors["loss"].values.shape == (4, 4)


@torch.no_grad()
def test_a_path_into_a_later_head_matches_hooks(saved: Callable[[str], str]) -> None:
    """In OLMo hybrid, whose attention has no gate, 0:2 is swapped only in the input of 3:1."""
    folder, other = saved("olmo_hybrid"), text_of(NUM_TOKENS, seed=5)
    settings: Any = {"method": "swap", "other": other, "heads": "0:2", "into": "3:1"}
    (row,) = attncli.ablate(folder, text_of(NUM_TOKENS), **settings).heads
    model, ids = loaded(folder)
    there = AutoTokenizer.from_pretrained(folder)(other, return_tensors="pt").input_ids
    first = model.model.layers[0].linear_attn.o_proj
    here_read, there_read = (read_on(model, each, "layers.0.linear_attn") for each in (ids, there))
    difference = torch.zeros_like(here_read)
    head_of(difference, row, 4)[:] = head_of(there_read, row, 4) - head_of(here_read, row, 4)
    last = model.model.layers[3]

    def changed(_block: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0] + difference @ first.weight.mT, *inputs[1:])

    reads: list[Tensor] = []
    before = last.register_forward_pre_hook(changed)
    with reading(last.self_attn.o_proj, lambda read: reads.append(read.clone()) or read):
        model(ids, use_cache=False)
    before.remove()
    size = reads[0].shape[-1] // 4
    given = reads[0][..., size : 2 * size]

    def with_head(read: Tensor) -> Tensor:
        return torch.cat([read[..., :size], given, read[..., 2 * size :]], dim=-1)

    plain = loss_of(model, ids)
    with reading(last.self_attn.o_proj, with_head):
        assert row.loss == pytest.approx(loss_of(model, ids) - plain, abs=2e-5)
    assert abs(row.loss or 0) > 1e-4


@pytest.mark.parametrize(("name", "head"), [("qwen3_next", "2:3"), ("falcon_h1", "linear:0:1")])
def test_other_commands_without_a_head_match_zeroed_columns(
    saved: Callable[[str], str], name: str, head: str
) -> None:
    """Compare the next tokens, the generated text, and the contributions of the other heads."""
    text, folder = text_of(NUM_TOKENS), saved(name)
    opened = attncli.open_model(folder)
    model, ids = loaded(folder)
    row = next(each for each in attncli.why(opened, text).heads if each.name == head)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
    with torch.no_grad(), without(projection_of(model, row.module), row.head, 4):
        logits = model(ids, use_cache=False).logits[0, -1].double()
        ahead = model.generate(ids, max_new_tokens=6, **options)[0, ids.shape[1] :]
    expected = logits.softmax(dim=-1)
    tokens = attncli.next_tokens(opened, text, heads=head, top=5).tokens
    assert tokens.column("without").tolist() == pytest.approx(
        expected[tokens.column("token_id").tolist()].tolist(), abs=2e-6
    )
    assert any(abs(each.probability - (each.without or 0)) > 1e-4 for each in tokens)
    with heads_removed([head], opened):
        assert attncli.generate(opened, text, max_new_tokens=6).ids == ahead.tolist()
        why = attncli.why(opened, text, answer=int(logits.argmax()))
    assert why.parts.logit == pytest.approx(float(logits.max()), abs=1e-5)
    assert why.parts.sum == pytest.approx(why.parts.logit, abs=1e-4)
    contributions = {each.name: each.contribution for each in why.heads}
    assert contributions.pop(head) == 0 and any(contributions.values())
