"""Activations under other tools' names, and replaced heads, against transformers' attention."""

from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

import attncli
from attncli.models.patched_heads import PartChange, PatchedHead
from tests.conftest import Attn
from tests.model_folders import save_model, save_tokenizer

IDS = {"ids": [5, 6, 7, 5, 8, 9, 6, 3, 7, 11, 2]}
SIZES = {"hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 3, "vocab_size": 97}


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(4)
    config = LlamaConfig(**SIZES, num_key_value_heads=1, intermediate_size=48)
    return LlamaForCausalLM(config).eval()


def inputs() -> Tensor:
    return torch.tensor([IDS["ids"]])


@torch.no_grad()
def eager_weights(model: PreTrainedModel) -> list[Tensor]:
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    weights = model(inputs(), output_attentions=True).attentions
    model.set_attn_implementation(before)
    return list(weights)


@torch.no_grad()
def outputs_of(model: PreTrainedModel, name: str) -> Tensor:
    """The output of a module."""
    given: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_hook(lambda _module, _inputs, out: given.append(out))
    model(inputs())
    hook.remove()
    return given[0]


def test_names_and_layouts_are_transformer_lenses(llama: LlamaForCausalLM) -> None:
    cache = attncli.activation_cache(attncli.open_model(llama), IDS)
    assert len(cache) == 3 * 8
    for layer, weights in enumerate(eager_weights(llama)):
        place, path = f"blocks.{layer}.attn", f"model.layers.{layer}.self_attn"
        torch.testing.assert_close(cache[f"{place}.hook_pattern"], weights, atol=1e-6, rtol=0)
        scores = cache[f"{place}.hook_attn_scores"]
        torch.testing.assert_close(scores.softmax(dim=-1), weights, atol=1e-6, rtol=0)
        assert scores.isneginf().sum() == 5 * 11 * 10 // 2
        for part, heads in (("q", 5), ("k", 1), ("v", 1)):
            given = outputs_of(llama, f"{path}.{part}_proj").view(1, 11, heads, 8)
            torch.testing.assert_close(cache[f"{place}.hook_{part}"], given, atol=1e-6, rtol=0)
        rotated, before = cache[f"{place}.hook_rot_q"], cache[f"{place}.hook_q"]
        torch.testing.assert_close(rotated[:, 0], before[:, 0], atol=1e-6, rtol=0)  # the first position
        assert not torch.allclose(rotated[:, 1:], before[:, 1:], atol=1e-3)
        keys = cache[f"{place}.hook_rot_k"]
        product = torch.einsum("tqhd,tkd->thqk", rotated, keys[:, :, 0]) / 8**0.5
        seen = ~scores.isneginf()
        torch.testing.assert_close(product[seen], scores[seen], atol=1e-5, rtol=0)
        read = torch.einsum("thqk,tkd->tqhd", weights, cache[f"{place}.hook_v"][:, :, 0])
        torch.testing.assert_close(cache[f"{place}.hook_z"], read, atol=1e-6, rtol=0)


def test_scaling_rotations_are_separated_from_projections() -> None:
    """YaRN makes queries and keys longer; the outputs of the projections are recovered nevertheless."""
    torch.manual_seed(0)
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    config = LlamaConfig(**SIZES, num_key_value_heads=1, intermediate_size=48, rope_parameters=rope)
    model = LlamaForCausalLM(config).eval()
    cache = attncli.activation_cache(attncli.open_model(model), IDS)
    scale = 1 + 0.1 * log(4.0)
    for part, heads in (("q", 5), ("k", 1)):
        given = outputs_of(model, f"model.layers.1.self_attn.{part}_proj").view(1, 11, heads, 8)
        torch.testing.assert_close(cache[f"blocks.1.attn.hook_{part}"], given, atol=1e-6, rtol=0)
        lengths = cache[f"blocks.1.attn.hook_rot_{part}"].norm(dim=-1)
        torch.testing.assert_close(lengths, scale * given.norm(dim=-1), atol=1e-6, rtol=0)


def test_without_rotation_there_is_only_one_query() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=5, n_embd=40, vocab_size=97)).eval()
    cache = attncli.activation_cache(attncli.open_model(model), IDS)
    assert {name.rpartition(".")[2] for name in cache} == {
        *("hook_q", "hook_k", "hook_v", "hook_attn_scores", "hook_pattern", "hook_z")
    }
    parts = outputs_of(model, "transformer.h.1.attn.c_attn").split(40, dim=-1)
    for name, given in zip(("q", "k", "v"), parts, strict=True):
        torch.testing.assert_close(cache[f"blocks.1.attn.hook_{name}"], given.view(1, 11, 5, 8))


def test_paths_belong_to_the_whole_model(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    opened = attncli.open_model(llama)
    cache = attncli.activation_cache(opened, IDS, names="nnsight")
    weights = eager_weights(llama)[2]
    torch.testing.assert_close(cache["model.layers.2.self_attn.pattern"], weights, atol=1e-6, rtol=0)
    assert cache["model.layers.2.self_attn.key"].shape == (1, 1, 11, 8)
    llama.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    report = attncli.run("heads", model=str(tmp_path), sentence="the cat", names="nnsight")
    assert "model.layers.2.self_attn.query" in report.tensors  # also for a model loaded without its head
    torch.manual_seed(0)
    bert = BertModel(BertConfig(**SIZES, intermediate_size=48)).eval()
    assert "encoder.layer.1.attention.self.key" in attncli.activation_cache(
        attncli.open_model(bert), IDS, names="nnsight"
    )


def tiny_t5(**settings: Any) -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    config = T5Config(num_layers=2, num_heads=5, d_model=40, d_kv=8, d_ff=48, vocab_size=97, **settings)
    return T5ForConditionalGeneration(config).eval()


def test_stacks_are_named_as_in_transformer_lens() -> None:
    cache = attncli.activation_cache(attncli.open_model(tiny_t5()), IDS)
    for place in ("encoder_blocks.1.attn", "decoder_blocks.1.self_attn", "decoder_blocks.0.cross_attn"):
        assert cache[f"{place}.hook_pattern"].shape == (1, 5, 11, 11)


def test_a_saved_cache_can_be_shown(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    cache = attncli.activation_cache(attncli.open_model(llama), IDS)
    expected = torch.cat(eager_weights(llama)).numpy()
    save_file(cache, tmp_path / "cache.safetensors")
    np.savez(tmp_path / "cache.npz", **{name: tensor.numpy() for name, tensor in cache.items()})
    tokens = [f"t{number}" for number in range(11)]
    for given in (cache, tmp_path / "cache.safetensors", tmp_path / "cache.npz"):
        report = attncli.read_cache(given, tokens)
        np.testing.assert_allclose(report.tensors["weights"].values, expected, atol=1e-6)
        assert report.tokens == tuple(tokens)
    gone = {name: tensor for name, tensor in cache.items() if not name.startswith("blocks.1")}
    with pytest.raises(attncli.UserError, match="has only the layers 0, 2"):
        attncli.read_cache(gone)
    several = {name: torch.cat([tensor] * 3) for name, tensor in cache.items()}
    with pytest.raises(attncli.UserError, match="contains 3 texts"):
        attncli.read_cache(several)
    with pytest.raises(attncli.UserError, match="contains no attention weights"):
        attncli.read_cache({"loss": torch.zeros(3)})


class HookedCache:
    """Like TransformerLens's ActivationCache: names and items, but not a Mapping."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.keys, self.items = tensors.keys, tensors.items


def test_a_cache_may_come_from_transformer_lens_or_be_a_list_or_one_layer(llama: LlamaForCausalLM) -> None:
    cache, eager = attncli.activation_cache(attncli.open_model(llama), IDS), eager_weights(llama)
    lone = {"blocks.1.attn.hook_pattern": eager[1]}
    for given, array, expected in (
        (HookedCache(cache), None, eager),
        (dict(enumerate(eager)), None, eager),
        (cache, "blocks.1.attn.hook_pattern", eager[1:2]),
        (eager[1:2], None, eager[1:2]),
        (lone, None, eager[1:2]),
    ):
        weights = attncli.read_cache(given, array=array).tensors["weights"].values
        np.testing.assert_allclose(weights, torch.cat(expected).numpy(), atol=1e-6)
    whole = {"attention": torch.cat(eager)}
    assert attncli.read_cache(whole).tensors["weights"].values.shape == (3, 5, 11, 11)


@pytest.mark.parametrize("settings", [{}, {"use_cache": False}, {"cache_implementation": "static"}], ids=str)
def test_steps_of_generation_become_rows(tmp_path: Path, settings: dict[str, Any]) -> None:
    """A forward pass over the whole text has the same rows as `generate` had step by step."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, intermediate_size=48, num_key_value_heads=1, attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    written = model.generate(
        torch.tensor([IDS["ids"]]), do_sample=False, min_new_tokens=4, max_new_tokens=4, pad_token_id=0,
        output_attentions=True, return_dict_in_generate=True, **settings,
    )  # fmt: skip
    whole = torch.cat(model(written.sequences[:, :-1], output_attentions=True).attentions).numpy(force=True)
    torch.save(written.attentions, tmp_path / "steps.pt")
    for given in (written, written.attentions, {"attentions": written.attentions}, tmp_path / "steps.pt"):
        report = attncli.read_cache(given)
        np.testing.assert_allclose(report.tensors["weights"].values, whole, atol=1e-6)
    one_step = attncli.read_cache(written.attentions, array="0.*")
    np.testing.assert_allclose(one_step.tensors["weights"].values[..., :11], whole[:, :, :11, :11], atol=1e-6)


@pytest.mark.parametrize("num_keys", [4, 7])
def test_rows_of_cross_attention_have_another_text(tmp_path: Path, num_keys: int) -> None:
    """With as many keys as steps, and with more: no row looks at its own token."""
    model = tiny_t5(decoder_start_token_id=0, eos_token_id=None, attn_implementation="eager")
    ids = torch.randint(3, 90, (1, num_keys))
    written = model.generate(
        ids, do_sample=False, max_new_tokens=4, output_attentions=True, return_dict_in_generate=True
    )
    whole = model(ids, decoder_input_ids=written.sequences[:, :-1], output_attentions=True)
    torch.save({"cross_attentions": written.cross_attentions}, tmp_path / "cross.pt")
    for given in (
        written.cross_attentions,
        tmp_path / "cross.pt",
        {"cross_attentions": whole.cross_attentions},
    ):
        report = attncli.read_cache(given)
        expected = torch.cat(whole.cross_attentions).numpy(force=True)
        np.testing.assert_allclose(report.tensors["weights"].values, expected, atol=1e-6)
        assert report.context_tokens == tuple(f"k{number}" for number in range(num_keys))
        assert not {"distance", "local_mass"} & report.tensors_of("rows").keys()
    own = attncli.read_cache(written, array="decoder_attentions.*.*").tensors["weights"].values
    np.testing.assert_allclose(own, torch.cat(whole.decoder_attentions).numpy(force=True), atol=1e-6)
    with pytest.raises(
        attncli.UserError, match=r"to one of encoder_attentions.\*, decoder_attentions.\*.\*, cross"
    ):
        attncli.read_cache(written)


def test_nested_lists_that_are_not_steps_are_refused() -> None:
    rows = [torch.rand(1, 5, size, size).softmax(dim=-1) for size in (3, 4, 5)]
    with pytest.raises(
        attncli.UserError, match="3 × 3, 4 × 4, 5 × 5 queries and keys, which are not generation steps of"
    ):
        attncli.read_cache([[each] * 2 for each in rows])
    with pytest.raises(attncli.UserError, match="contains 3 texts or beams: save only one"):
        attncli.read_cache([[torch.cat([rows[0]] * 3)] * 2])


def test_anything_but_a_cache_is_one_line(llama: LlamaForCausalLM) -> None:
    cache = attncli.activation_cache(attncli.open_model(llama), IDS)
    weights = cache["blocks.0.attn.hook_pattern"]
    two = {f"{stack}.0.attn.hook_pattern": weights for stack in ("encoder_blocks", "decoder_blocks")}
    wrong: list[tuple[Any, Any, str]] = [
        (weights, None, "cache: must be a mapping of names to tensors"),
        ({1: weights, 2: weights}, None, "has only the layers 1, 2"),
        ({"a.0.pattern": weights.to("meta")}, None, "a.0.pattern must be a tensor or an array of numbers"),
        ({"a.0.pattern": weights.to_sparse()}, None, "a.0.pattern must be a tensor or an array of numbers"),
        ({"a.0.pattern": weights.to(torch.complex64)}, None, "a.0.pattern must be a tensor or an array"),
        (two, None, r"set `array` to one of encoder_blocks.\*.attn.hook_pattern, decoder_blocks"),
        (
            {name: cache[name] for name in cache if name.endswith("scores")},
            None,
            "contains no attention weights",
        ),
        ({"blocks.0.attn.hook_q": weights}, None, "contains no attention weights"),
        (cache, "blocks.0.attn.hook_patern", "did you mean 'blocks.0.attn.hook_pattern'"),
        (cache, 3, r"array: must be a name, .* \(got 3\)"),
    ]
    for given, array, line in wrong:
        with pytest.raises(attncli.UserError, match=line):
            attncli.read_cache(given, array=array)
    with pytest.raises(attncli.UserError, match=r"^tokens: must contain 11 tokens"):
        attncli.read_cache(cache, ["a", "b"])


def test_the_command_writes_the_same_cache_as_the_function(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    opened = attncli.open_model(llama)
    report = attncli.run("heads", model=llama, sentence=IDS, names="transformer_lens")
    for name, tensor in attncli.activation_cache(opened, IDS).items():
        np.testing.assert_array_equal(report.tensors[name].values, tensor.numpy())
    from attncli.views import Display, load_view

    with (tmp_path / "x.npz").open("wb") as stream:
        load_view("npz")([attncli.Report(**vars(report))], stream, Display())
    assert {*np.load(tmp_path / "x.npz")} == {*report.tensors}
    with (tmp_path / "x.safetensors").open("wb") as stream:
        load_view("safetensors")([attncli.Report(**vars(report))], stream, Display())
    assert {*load_file(tmp_path / "x.safetensors")} == {*report.tensors}


def llama_of(model: LlamaForCausalLM) -> Any:
    return attncli.open_model(model)


def without_output(head: PatchedHead) -> Tensor:
    return torch.zeros_like(head.output)


def test_parts_are_changed_in_order(llama: LlamaForCausalLM) -> None:
    met: dict[str, Tensor] = {}

    def keep(name: str, change: PartChange) -> PartChange:
        def changed(head: PatchedHead) -> Tensor:
            met[name] = change(head)
            return met[name]

        return changed

    changes: dict[str, PartChange] = {
        "query": keep("query", lambda head: 2 * head.query),
        "pattern": keep("pattern", lambda head: head.pattern / 2),
        "output": keep("output", lambda head: head.output + 1),
    }
    with attncli.hooks(llama_of(llama), {"0:2": changes}), torch.no_grad():
        llama(inputs())
    cache = attncli.activation_cache(llama_of(llama), IDS)
    keys, values = cache["blocks.0.attn.hook_rot_k"][0, :, 0], cache["blocks.0.attn.hook_v"][0, :, 0]
    query = 2 * cache["blocks.0.attn.hook_rot_q"][0, :, 2]
    hidden = torch.ones(11, 11).triu(1).bool()
    weights = (query @ keys.T / 8**0.5).masked_fill(hidden, -torch.inf).softmax(dim=-1) / 2
    torch.testing.assert_close(met["pattern"][0], weights, atol=1e-6, rtol=0)
    torch.testing.assert_close(met["output"][0], weights @ values + 1, atol=1e-6, rtol=0)


def raised(wrong: Callable[[], Any]) -> str:
    with pytest.raises(attncli.UserError) as error, wrong():
        pass
    return str(error.value)


def test_a_cache_contains_changed_parts(llama: LlamaForCausalLM) -> None:
    """The cache has replaced outputs, also after a replaced pattern, at W_O and in the next layer."""
    model, text, read = attncli.open_model(llama), IDS, list[Tensor]()
    parts: Any = {"pattern": lambda head: head.pattern.square(), "output": lambda head: head.output - 1}
    projection = llama.model.layers[0].self_attn.o_proj
    with (
        projection.register_forward_hook(lambda _module, inputs, _output: read.append(inputs[0])),
        attncli.hooks(model, {"0:1": parts, "0:2": {"output": without_output}}),
    ):
        cache = attncli.activation_cache(model, text)
        by_path = attncli.activation_cache(model, text, names="nnsight")
    torch.testing.assert_close(cache["blocks.0.attn.hook_z"].flatten(2), read[-1])
    for part, hook in {"output": "hook_z", "pattern": "hook_pattern"}.items():
        axes = (1, 2) if part == "output" else (1, 1)
        torch.testing.assert_close(
            by_path[f"model.layers.0.self_attn.{part}"], cache[f"blocks.0.attn.{hook}"].transpose(*axes)
        )
    assert not cache["blocks.0.attn.hook_z"][:, :, 2].any()
    assert set(cache) >= {"blocks.1.attn.hook_q", "blocks.1.attn.hook_z"}
    with attncli.patch(model, "0:1", lambda head: head.gated, part="gated"):
        assert "0:1 has a replaced gated" in raised(lambda: attncli.activation_cache(model, text))


def test_wrong_changes_are_one_line(llama: LlamaForCausalLM) -> None:
    model = llama_of(llama)
    nothing: Any = {"z": without_output}
    of_stacks = attncli.open_model(tiny_t5())
    assert "must be encoder|decoder|cross:LAYER:HEAD" in raised(
        lambda: attncli.patch(of_stacks, "1:1", without_output)
    )
    assert "has only 2 layers (got decoder:2:1)" in raised(
        lambda: attncli.patch(of_stacks, "decoder:2:1", without_output)
    )
    assert "3 layers (got 3:0)" in raised(lambda: attncli.patch(model, "3:0", without_output))
    assert "must be one of query, key" in raised(lambda: attncli.hooks(model, {"0:0": nothing}))
    assert "must be a function" in raised(lambda: attncli.hooks(model, {"0:0": {"key": 3}}))  # type: ignore[dict-item]
    assert "must be LAYER:HEAD" in raised(lambda: attncli.hooks(model, {"first": {"key": without_output}}))
    with (
        pytest.raises(attncli.UserError, match=r"layer 0 has 5 heads \(got 0:5\)"),
        attncli.patch(model, "0:5", without_output),
    ):
        llama(inputs())
    with (
        pytest.raises(attncli.UserError, match=r"output of 0:4 must be a tensor of shape \(1, 11, 8\)"),
        attncli.patch(model, "0:4", lambda head: head.output[:, 1:]),
    ):
        llama(inputs())
    assert llama.config._attn_implementation == "sdpa"


def test_measurements_that_need_unchanged_parts_are_refused(llama: LlamaForCausalLM) -> None:
    with (
        attncli.patch(llama_of(llama), "1:3", lambda head: head.pattern / 2, part="pattern") as patched,
        pytest.raises(attncli.UserError, match="1:3 has a replaced pattern"),
    ):
        attncli.ablate(patched, IDS)
    with attncli.patch(llama_of(llama), "1:3", without_output) as patched:
        for split in (attncli.why, attncli.head_edges):
            with pytest.raises(attncli.UserError, match="1:3 has a replaced output"):
                split(patched, IDS)


def test_a_cache_with_only_patterns_is_noted(tmp_path: Path, attn: Attn) -> None:
    folder = save_model(tmp_path, "BLOOM")
    with pytest.warns(RuntimeWarning, match="computes its attention itself: the cache has only its patterns"):
        cache = attncli.activation_cache(attncli.open_model(folder), IDS)
    assert {*cache} == {f"blocks.{layer}.attn.hook_pattern" for layer in range(2)}
    said = attn(["heads", "the cat sat", "--model", str(folder), "--names", "transformer_lens"])
    assert "the cache has only its patterns" in " ".join(said.out.split())
