"""`attn cache`: each head limited by a mask of its own, put by hand into eager attention; and kvpress."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from attncli.core.engines import MASKED_QUERIES
from attncli.errors import UserError
from attncli.features.cache import policies as cache_policies
from attncli.features.cache.limited_heads import Judge, limited_heads
from attncli.features.cache.names import CACHE_POLICIES
from attncli.features.cache.policies import PromptLayer, by_expected_weight
from attncli.features.cache.prompt_cache import (
    PromptCache,
    SmallerCaches,
    _cached_parts,
    policy_costs,
    rounded_cache,
)
from attncli.features.cache.results import LimitedHeads
from attncli.models.loading import in_use, open_model
from attncli.models.predicted import Judged, judged_reading, read_judged
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.removal_runs import FirstTokens
from tests.conftest import in_turn
from tests.model_folders import save_tokenizer, save_writer
from tools.kvpress_kept_keys import BUDGET, NUM_PROMPT, SHOWN, tiny_llama, tokens
from tools.tiny_architectures import GROUPED, USUAL

SINK, WINDOW = 2, 3
ATTENTIONS = {"GPT-2": "attn"}


def judged(pretrained: Pretrained, num_tokens: int = 23) -> Judged:
    ids = torch.randint(4, 61, (num_tokens,), generator=torch.Generator().manual_seed(1))
    return judged_reading(Reading(ModelText(pretrained.labels(ids.tolist()), ids)), pretrained)


def kept_entries(num_tokens: int, sink: int, window: int) -> Tensor:
    """Entry by entry, from the words of the docstring."""
    seen = torch.zeros(num_tokens, num_tokens, dtype=torch.bool)
    for i in range(num_tokens):
        for j in range(i + 1):
            seen[i, j] = j < sink or j > i - window
    return seen


@contextmanager
def masked_by_hand(model: PreTrainedModel, hidden: dict[int, Tensor]) -> Iterator[None]:
    """While it is open, the mask of each attention module also hides these (head, query, key) by a hook."""
    name = ATTENTIONS.get("GPT-2" if model.config.model_type == "gpt2" else "", "self_attn")
    modules = [module for path, module in model.named_modules() if path.endswith(f".{name}")]
    hooks = []
    for module in modules:
        layer = module.layer_idx

        def hide(_module: nn.Module, inputs: Any, named: dict[str, Any], layer: int = layer) -> Any:
            mask = named["attention_mask"]
            lowest = torch.finfo(torch.float32).min
            added = torch.zeros(hidden[layer].shape).masked_fill(hidden[layer], lowest).unsqueeze(0)
            return inputs, {**named, "attention_mask": (mask + added).clamp(min=lowest)}

        hooks.append(module.register_forward_pre_hook(hide, with_kwargs=True))
    yield
    for hook in hooks:
        hook.remove()


@torch.no_grad()
def by_hand(
    model: PreTrainedModel, ids: Tensor, limited: set[tuple[int, int]], sink: int = SINK, window: int = WINDOW
) -> Tensor:
    """The logits with eager attention, where these key/value heads are limited."""
    config = model.config
    num_heads = config.num_attention_heads
    group = num_heads // getattr(config, "num_key_value_heads", num_heads)
    few = ~kept_entries(len(ids), sink, window)
    hidden = {}
    for layer in range(config.num_hidden_layers):
        own = [few if (layer, head // group) in limited else few & False for head in range(num_heads)]
        hidden[layer] = torch.stack(own)
    model.set_attn_implementation("eager")
    with masked_by_hand(model, hidden):
        logits: Tensor = model(ids.unsqueeze(0)).logits[0].double()
    return logits


def lost(whole: Tensor, logits: Tensor, ids: Tensor) -> tuple[float, float]:
    """KL and loss of what follows."""
    p, q = whole.log_softmax(-1)[:-1], logits.log_softmax(-1)[:-1]
    divergence = float((p.exp() * (p - q)).sum(-1).mean())
    targets = ids[1:, None]
    return divergence, float((p.gather(-1, targets) - q.gather(-1, targets)).mean())


HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
TURNED_IN_PART = {
    "Phi": {"rope_parameters": HALF},
    "StableLm": {"rope_parameters": HALF},
    "GPTNeoX": {"rope_parameters": HALF},
    "DeepseekV3": {
        **{"q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4},
        **{"v_head_dim": 8, "first_k_dense_replace": 2, "rope_interleave": False},
    },
}


def prompt_layers(model: PreTrainedModel, folder: Path) -> list[PromptLayer]:
    """The layers of a prompt of 20 tokens, as the policy `expected` gets them."""
    save_tokenizer(folder)
    layers: list[PromptLayer] = []

    def keep(layer: PromptLayer) -> Tensor:
        layers.append(layer)
        return by_expected_weight(layer)

    lent = open_model(model, AutoTokenizer.from_pretrained(folder))
    with in_use(lent) as pretrained, pytest.MonkeyPatch.context() as patch:
        patch.setitem(cache_policies.SCORES, "expected", keep)
        PromptCache(pretrained, judged(pretrained), 20, ["expected"])
    return layers


@pytest.mark.parametrize("name", TURNED_IN_PART)
@torch.no_grad()
def test_rotations_of_a_part_of_each_head_are_undone(name: str, tmp_path: Path) -> None:
    """To the queries that the projection gives, before they are turned."""
    kind: Any = getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(1)
    settings = {**USUAL, "num_key_value_heads": 4, **TURNED_IN_PART[name]}
    model = kind(kind.config_class(**settings)).eval()
    given: list[Tensor] = []
    for path, module in model.named_modules():
        if path.endswith(("q_proj", "query_key_value")):
            module.register_forward_hook(lambda _module, _inputs, output: given.append(output))
    layers = prompt_layers(model, tmp_path)
    of_text = [output for output in given if output.shape[1] == 23]
    for layer, projected in zip(layers, of_text[-2:], strict=True):
        assert layer.rotation is not None
        query = layer.rotation.undone(layer.attention.query)
        of_heads = projected.view(1, 23, 4, -1).transpose(1, 2)[:, :, :20, : query.shape[-1]]
        torch.testing.assert_close(query, of_heads, rtol=0, atol=1e-5)


UNTURNED = {
    "SmolLM3ForCausalLM": ({"no_rope_layers": [1, 0], "pad_token_id": 0}, [True, False]),
    "Cohere2ForCausalLM": (
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4},
        [False, True],
    ),
    "GPT2LMHeadModel": ({"n_layer": 2, "n_head": 4, "n_embd": 32}, [False, False]),
}
"""Which layers turn queries and keys by their positions, whatever they are given."""


@pytest.mark.parametrize("name", UNTURNED)
def test_layers_without_rotation_are_not_unrotated(name: str, tmp_path: Path) -> None:
    kind: Any = getattr(transformers, name)
    settings, expected = UNTURNED[name]
    model = kind(kind.config_class(**USUAL, **settings)).eval()
    assert [layer.rotation is not None for layer in prompt_layers(model, tmp_path)] == expected


def check_limited(
    found: LimitedHeads, model: PreTrainedModel, ids: Tensor, sink: int, window: int, within: float
) -> None:
    """Compare each head, the curve and any budget with runs by hand; some head must be needed."""

    def check(row: Any, limited: set[tuple[int, int]]) -> None:
        logits = by_hand(model, ids, limited, sink, window)
        assert (row["kl"], row["loss"]) == pytest.approx(lost(whole, logits, ids), abs=within)

    whole = by_hand(model, ids, set(), sink, window)
    order = [(row["layer"], row["head"]) for row in reversed(found.heads)]
    for row in found.heads:
        check(row, {(row["layer"], row["head"])})
    for row in found.curve:
        check(row, {*order[: row["limited"]]})
    if found.at_budget is not None:
        check(found.at_budget, {*order} - {(row["layer"], row["head"]) for row in found.full or ()})
    assert len({*order}) == len(order) == found.curve[-1]["limited"]
    assert max(row["kl"] for row in found.heads) > 1e-3


@pytest.mark.parametrize("architecture", ["Llama", "GPT-2", "Mistral", "GPT-OSS", "Gemma 2"])
def test_a_limited_head_is_a_run_with_a_mask_by_hand(architecture: str, tmp_path: Path) -> None:
    folder = save_writer(tmp_path, architecture)
    with in_use(open_model(str(folder))) as pretrained:
        reading = judged(pretrained)
        found = limited_heads(pretrained, reading, sink=SINK, window=WINDOW)
        check_limited(found, pretrained.whole, reading.text.ids, SINK, WINDOW, 1e-4)


CHUNKED: dict[str, Any] = {
    **{**GROUPED, "num_hidden_layers": 4, "intermediate_size_mlp": 40, "num_local_experts": 2},
    **{"interleave_moe_layer_step": 2, "no_rope_layers": [1, 1, 1, 0], "attention_chunk_size": 8},
}
CONVOLVED: dict[str, Any] = {
    **{**GROUPED, "num_hidden_layers": 3, "block_multiple_of": 8},
    "layer_types": ["conv", "full_attention", "full_attention"],
}
MIXED: dict[str, dict[str, Any]] = {
    "Llama4ForCausalLM": CHUNKED,
    "Lfm2ForCausalLM": CONVOLVED,
    "GraniteMoeHybridForCausalLM": {
        **{**GROUPED, "num_local_experts": 0, "shared_intermediate_size": 40},
        **{"layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 16},
        **{"mamba_d_state": 8, "mamba_n_groups": 1, "position_embedding_type": "rope"},
    },
}
"""Layers that see chunks of the text, and blocks without attention before the first that has it."""
WINDOWS: dict[str, dict[str, Any]] = {
    "Gemma2ForCausalLM": {**GROUPED, "sliding_window": 7, "query_pre_attn_scalar": 4},
    "MistralForCausalLM": {**GROUPED, "sliding_window": 9},
}
HELD_FROM = {
    "Llama4ForCausalLM": [24, 24, 24, 0],
    "Gemma2ForCausalLM": [23, 0],
    "MistralForCausalLM": [21, 21],
}
"""The first of 30 keys that each layer still sees."""


def wild(name: str) -> PreTrainedModel:
    """A tiny model whose attention is far from uniform."""
    kind: Any = getattr(transformers, name)
    torch.manual_seed(3)
    model: PreTrainedModel = (
        kind(kind.config_class(**{**MIXED, **WINDOWS}[name])).eval().requires_grad_(False)
    )
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.mul_(8)
    return model


@pytest.mark.parametrize(
    ("name", "num_tokens", "sink", "window"),
    [
        *in_turn(MIXED, [(23, 2, 3), (40, 1, 4)]),
        # More queries than are computed at a time with a mask, of layers with and without a window.
        ("Gemma2ForCausalLM", 2 * MASKED_QUERIES + 7, 3, 5),
        ("Lfm2ForCausalLM", 2 * MASKED_QUERIES + 7, 3, 5),
    ],
)
def test_limited_heads_of_mixed_layers_are_runs_with_masks_by_hand(
    name: str, num_tokens: int, sink: int, window: int, tmp_path: Path
) -> None:
    save_tokenizer(tmp_path)
    with in_use(open_model(wild(name), AutoTokenizer.from_pretrained(tmp_path))) as pretrained:
        reading = judged(pretrained, num_tokens)
        found = limited_heads(pretrained, reading, sink=sink, window=window, budget=0.6)
    check_limited(found, wild(name).double(), reading.text.ids, sink, window, 2e-6)


@pytest.mark.parametrize("num_tokens", [49_152, 262_144])
def test_losses_on_large_vocabularies_equal_those_in_float64(num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    whole = 4 * torch.randn(7, num_tokens, generator=generator) + 20
    logits = whole + 0.05 * torch.randn(7, num_tokens, generator=generator)
    ids = torch.randint(num_tokens, (8,), generator=generator)
    reading = Judged(ModelText(("",) * 8, ids), places=torch.arange(7), targets=ids[1:], needle=(2, 5))
    p, q = (each.double().log_softmax(-1) for each in (whole, logits))
    kl, losses = (p.exp() * (p - q)).sum(-1), (p - q).gather(-1, ids[1:, None])[:, 0]
    for same in (0, 3):  # the first places, which are left out of the runs, are alike
        kl[:same], losses[:same] = 0, 0
        found = Judge(whole, reading, same).lost(logits[same:])
        expected = (kl.mean(), losses.mean(), losses[[2, 5]].mean(), kl.max())
        numbers = [found[name] for name in ("kl", "loss", "needle", "worst")]
        assert numbers == pytest.approx([float(number) for number in expected], abs=1e-8)
    assert Judge(whole, reading).lost(whole)["kl"] == 0


def test_bytes_and_weights_are_those_of_the_kept_keys(tmp_path: Path) -> None:
    folder = save_writer(tmp_path, "Llama")
    with in_use(open_model(str(folder))) as pretrained:
        reading = judged(pretrained)
        found = limited_heads(pretrained, reading, sink=SINK, window=WINDOW)
        eager = pretrained.whole
        eager.set_attn_implementation("eager")
        with torch.no_grad():
            weights = eager(reading.text.ids.unsqueeze(0), output_attentions=True).attentions
    config = eager.config
    num_kv, group = config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads
    kept = kept_entries(23, SINK, WINDOW)
    for row in found.heads:
        own = weights[row["layer"]][0, row["head"] * group : (row["head"] + 1) * group]
        assert row["kept_weight"] == pytest.approx(float((own * kept).sum(-1).mean()), abs=1e-5)
    per_key = 4 * 2 * config.head_dim
    whole = config.num_hidden_layers * num_kv * 23 * per_key
    assert found.baseline["bytes"] == whole
    assert found.curve[-1]["bytes"] == config.num_hidden_layers * num_kv * (SINK + WINDOW) * per_key


def test_a_budget_above_the_search_has_the_cost_of_its_heads(tmp_path: Path) -> None:
    """Layers with windows keep little: fewer heads stay limited than in the last round of the search."""
    folder = save_writer(tmp_path, "Gemma 2")
    with in_use(open_model(str(folder))) as pretrained:
        reading = judged(pretrained, 60)
        ids = reading.text.ids
        whole = by_hand(pretrained.whole, ids, set(), 1, 7)
        for budget in (0.5, 0.9, 0.97):
            found = limited_heads(pretrained, reading, budget=budget, sink=1, window=7)
            every = {(row["layer"], row["head"]) for row in found.heads}
            limited = every - {(row["layer"], row["head"]) for row in found.full}
            assert len(limited) == found.at_budget["limited"] and found.at_budget["cache"] <= budget
            alone = limited_heads(pretrained, reading, sink=1, window=7)
            assert (found.heads, found.forgotten) == (alone.heads, alone.forgotten)
            kl, loss = lost(whole, by_hand(pretrained.whole, ids, limited, 1, 7), ids)
            assert (found.at_budget["kl"], found.at_budget["loss"]) == pytest.approx((kl, loss), abs=1e-4)


def test_a_budget_counts_the_keys_of_layers_with_windows(tmp_path: Path) -> None:
    folder = save_writer(tmp_path, "Mistral")
    with in_use(open_model(str(folder))) as pretrained:
        found = limited_heads(pretrained, judged(pretrained, 60), budget=0.9)
    per_key = found.baseline["bytes"] / len(found.heads)
    limited = found.at_budget["bytes"] - per_key * len(found.full)
    assert 0 < found.at_budget["cache"] <= 0.9 and found.full
    assert limited <= 0.3 * found.baseline["bytes"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"window": 0}, "window"), ({"sink": -1}, "sink"), ({"budget": float("nan")}, "budget")],
)
def test_impossible_numbers_are_refused(llama: Pretrained, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}: must be"):
        limited_heads(llama, judged(llama), **settings)


@pytest.mark.parametrize("architecture", ["Llama", "GPT-2"])
def test_a_budget_selects_the_heads_needed_beside_limited_heads(architecture: str, tmp_path: Path) -> None:
    """By hand: of twice as many, the third goes whose limits add least to those that are there."""
    folder = save_writer(tmp_path, architecture)
    with in_use(open_model(str(folder))) as pretrained:
        reading = judged(pretrained)
        found = limited_heads(pretrained, reading, sink=SINK, window=WINDOW, budget=0.6)
        model, ids = pretrained.whole, reading.text.ids
        whole = by_hand(model, ids, set())

        def kl(limited: set[tuple[int, int]]) -> float:
            return lost(whole, by_hand(model, ids, limited), ids)[0]

        order = [(row["layer"], row["head"]) for row in reversed(found.heads)]
        num_full = len(found.full)
        tried, limited = order[-2 * num_full :], {*order[: -2 * num_full]}
        while len(tried) > num_full:
            tried.sort(key=lambda place: kl({*limited, place}))
            num_dropped = min(len(tried) - num_full, max(1, len(tried) // 3))
            limited |= {*tried[:num_dropped]}
            del tried[:num_dropped]
        assert 0 < num_full < len(order) / 2 and found.at_budget["cache"] <= 0.6
        assert [(row["layer"], row["head"]) for row in found.full] == tried[::-1]
        assert found.at_budget["kl"] == pytest.approx(kl(limited), abs=1e-4)
        assert found.at_budget["limited"] == len(limited) == len(order) - num_full


def test_limited_heads_take_at_most_a_third_of_a_budget(llama: Pretrained) -> None:
    reading = judged(llama, 128)
    usual = limited_heads(llama, reading)
    found = limited_heads(llama, reading, budget=0.3)
    assert (usual.sink, usual.window) == (1, 16)
    assert (found.sink, found.window) == (1, 11), "a third of 38 keys"
    few = limited_heads(llama, reading, window=32, budget=0.3)
    assert few.window == 32 and len(few.full) < len(found.full)
    with pytest.raises(UserError, match=r"budget: must be at least 0\.13.*\(got 0\.1\)"):
        limited_heads(llama, reading, window=16, budget=0.1)


def test_a_model_without_a_cache_is_refused_in_a_line(tmp_path: Path) -> None:
    folder = save_writer(tmp_path, "T5")
    with in_use(open_model(str(folder))) as pretrained, pytest.raises(UserError, match="smaller cache needs"):
        read_judged(pretrained, "the cat sat")


@pytest.fixture(scope="module")
def kvpress() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "kvpress_kept_keys.json").read_text())
    return found


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pretrained]:
    """The very model of the script that asked kvpress."""
    folder = save_writer(tmp_path_factory.mktemp("llama"), "Llama")
    with torch.no_grad():
        tiny_llama().save_pretrained(folder)
    with in_use(open_model(str(folder))) as pretrained:
        yield pretrained


@pytest.mark.parametrize("policy", ["sinks", "h2o", "tova", "snapkv", "pyramidkv", "knorm", "expected"])
@torch.no_grad()
def test_kept_keys_equal_those_of_kvpress(policy: str, llama: Pretrained, kvpress: dict[str, Any]) -> None:
    assert kvpress["budget"] == BUDGET
    ids = tokens()[0]
    reading = judged_reading(Reading(ModelText(llama.labels(ids.tolist()), ids)), llama)
    cache = PromptCache(llama, reading, NUM_PROMPT, [policy])
    kept = cache.select_keys(policy, BUDGET)
    theirs = kvpress["policies"][policy]
    assert [[head.tolist() for head in layer] for layer in kept] == theirs["kept"]
    copies = [lambda call, start: _cached_parts(kept[call], start)]
    logits = cache.run.without([()], SmallerCaches(copies, cache.run.starts), 0)[0]
    if theirs["logits"] is not None:
        torch.testing.assert_close(logits[:, :SHOWN], torch.tensor(theirs["logits"])[:-1], rtol=0, atol=1e-4)


def hidden_after(
    start: int, kept: Sequence[Sequence[Tensor]], num_tokens: int, group: int
) -> dict[int, Tensor]:
    """For each layer, the keys (head, query, key) before `start` that later queries no longer see."""
    hidden = {}
    for layer, of_layer in enumerate(kept):
        gone = torch.zeros(len(of_layer), num_tokens, num_tokens, dtype=torch.bool)
        for head, keys in enumerate(of_layer):
            gone[head, start:, :start] = True
            gone[head, start:, keys] = False
        hidden[layer] = gone.repeat_interleave(group, dim=0)
    return hidden


@torch.no_grad()
def lost_by_hand(
    model: PreTrainedModel, ids: Tensor, start: int, kept: Sequence[Sequence[Tensor]]
) -> tuple[float, float]:
    """KL and loss of the tokens after `start` with eager attention to the keys that stay."""
    group = model.config.num_attention_heads // len(kept[0])
    model.set_attn_implementation("eager")
    whole = model(ids.unsqueeze(0)).logits[0].double()
    with masked_by_hand(model, hidden_after(start, kept, len(ids), group)):
        logits = model(ids.unsqueeze(0)).logits[0].double()
    return lost(whole[start:], logits[start:], ids[start:])


@pytest.mark.parametrize("architecture", ["Llama", "GPT-2", "Mistral", "GPT-OSS", "Gemma 2"])
def test_a_policy_is_a_run_with_a_mask_by_hand(architecture: str, tmp_path: Path) -> None:
    """Every query of the last tokens sees the first keys that stay, and those of the last tokens."""
    folder = save_writer(tmp_path, architecture)
    policies = [name for name in CACHE_POLICIES if name != "random"]
    with in_use(open_model(str(folder))) as pretrained:
        reading = judged(pretrained, 41)
        ids, start = reading.text.ids, 41 - 4 - 1
        costs = policy_costs(pretrained, [reading], policies=policies, budgets=[0.3, 0.7])
        assert (costs.prompt, costs.judged) == (start, 4)
        with torch.no_grad():
            cache = PromptCache(pretrained, reading, start, policies)
        for row in costs.policies:
            kept = cache.select_keys(row["policy"], row["budget"])
            expected = lost_by_hand(pretrained.whole, ids, start, kept)
            assert (row["kl"], row["loss"]) == pytest.approx(expected, abs=1e-4), row["policy"]


@pytest.mark.parametrize(
    ("policy", "name"),
    in_turn(
        ["window", "sinks", "h2o", "pyramidkv", "heads", "random"],
        ["Llama4ForCausalLM", "Gemma2ForCausalLM", "MistralForCausalLM"],
    ),
)
@torch.no_grad()
def test_a_budget_is_a_share_of_the_keys_that_each_layer_holds(
    name: str, policy: str, tmp_path: Path
) -> None:
    """What the prompt's last token sees: its window, or the part of its chunk that was read."""
    save_tokenizer(tmp_path)
    start, num_tokens = 30, 34
    with in_use(open_model(wild(name), AutoTokenizer.from_pretrained(tmp_path))) as pretrained:
        reading = judged(pretrained, num_tokens)
        kept = PromptCache(pretrained, reading, start, [policy]).select_keys(policy, 0.5)
        rows = policy_costs(pretrained, [reading], policies=[policy], budgets=[0.5, 1.0]).policies
        held = [range(first, start) for first in HELD_FROM[name]]
        for keys_held, of_layer in zip(held, kept, strict=True):
            for keys in of_layer:
                assert {*keys.tolist()} <= {*keys_held}
                assert policy == "heads" or abs(len(keys) - len(keys_held) / 2) <= 0.5
        expected = lost_by_hand(pretrained.whole, reading.text.ids, start, kept)
    assert (rows[0]["kl"], rows[0]["loss"]) == pytest.approx(expected, abs=1e-5)
    num_kept = sum(len(keys) for of_layer in kept for keys in of_layer)
    share = num_kept / sum(len(keys) * 2 for keys in held)
    assert rows[0]["cache"] == pytest.approx(share) and share <= 0.5 + 0.1 * (policy == "pyramidkv")
    assert rows[1]["cache"] == 1 and rows[1]["kl"] == pytest.approx(0, abs=1e-6)


def test_a_budget_is_a_share_of_the_cache_whatever_the_policy(llama: Pretrained) -> None:
    ids = tokens()[0]
    reading = judged_reading(Reading(ModelText(llama.labels(ids.tolist()), ids)), llama)
    costs = policy_costs(llama, [reading], budgets=[0.3, 0.6], bits=4)
    for row in costs.policies[:-1]:
        assert row["budget"] - 0.1 < row["cache"] <= row["budget"] + 0.01, row
    by_name = {(row["policy"], row["budget"]): row["kl"] for row in costs.policies}
    assert by_name["heads", 0.6] < by_name["random", 0.6]
    assert costs.policies[-1]["policy"] == "4 bits"


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_is_by_channel_and_by_token(bits: int) -> None:
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 1, 3, 70, 64, generator=generator)
    found = rounded_cache(FirstTokens(key, value, None), bits)  # type: ignore[arg-type]
    levels = 2**bits - 1
    for of, theirs in (
        (found[0][1, 32:64, 5], key[0, 1, 32:64, 5]),
        (found[1][2, 9, 32:], value[0, 2, 9, 32:]),
    ):
        least, most = float(theirs.min()), float(theirs.max())
        naive = [
            least + round((x - least) / (most - least) * levels) * (most - least) / levels
            for x in theirs.tolist()
        ]
        torch.testing.assert_close(of, torch.tensor(naive), rtol=0, atol=1e-5)
    assert torch.equal(found[0][:, 64:], key[0, :, 64:]) and torch.equal(found[1][:, 64:], value[0, :, 64:])
