"""A head's score as a sum of what earlier parts wrote: against transformers' own modules, by the formula.

Elhage et al. 2021, A mathematical framework for transformer circuits: the residual stream is a sum, and a
score is bilinear in it once the norms' scales are frozen.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from attncli.errors import UserError
from attncli.features.why.results import ScoreParts
from attncli.features.why.scores import score_parts
from attncli.models.loading import in_use, open_model
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.probes import read_probe
from attncli.settings.heads import HeadsSpec
from tools.tiny_architectures import ARCHITECTURES, GROUPED, HIDDEN, USUAL, Architecture

SHIPPED = str(HeadsSpec.default_model)
TOKENS = torch.tensor([5, 17, 3, 40, 17, 8, 60, 22, 5, 31, 9])
QUERY = 8
OTHERS = {
    "ALBERT": Architecture("AlbertModel", {**USUAL, "embedding_size": 16}),
    "OPT, norms behind": Architecture(
        "OPTModel",
        {**HIDDEN, "ffn_dim": 40, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    ),
    "Granite": Architecture("GraniteModel", {**GROUPED, "residual_multiplier": 0.5}),
    "Cohere": Architecture("CohereModel", GROUPED, "attention and MLP side by side"),
    "Gemma 3": Architecture("Gemma3TextModel", {**GROUPED, "sliding_window": 5, "query_pre_attn_scalar": 4}),
    "OLMo 2": Architecture("Olmo2Model", GROUPED, "norms behind attention and MLP"),
    "Phi": Architecture("PhiModel", {**USUAL, "pad_token_id": 0}, "partial rotation"),
    "Mixtral": Architecture("MixtralModel", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen 2": Architecture("Qwen2Model", GROUPED, "biases of query and key"),
    "Cohere, norms of heads": Architecture("CohereModel", {**GROUPED, "use_qk_norm": True}),
    "Granite-SWA": Architecture(
        "GraniteSWAModel",
        {**GROUPED, "residual_multiplier": 0.5, "sliding_window": 5},
        "sinks, rotations in a list",
    ),
    "Doge": Architecture("DogeModel", GROUPED, "a mask of its own, other for each head"),
    "Doge, few keys": Architecture("DogeModel", {**GROUPED, "keep_window_size": 4}),
}
SUMS = [
    *(
        "BERT",
        "RoBERTa",
        "DistilBERT",
        "ELECTRA",
        "ModernBERT",
        "GPT-2",
        "GPT-NeoX",
        "OPT",
        "Llama",
        "Mistral",
    ),
    *("Qwen3", "Gemma 2", "GPT-OSS", "Phi-3", *OTHERS),
]
NO_SUMS = {"T5": "an encoder and a decoder", "BLOOM": "computes its attention itself"}


def tiny(name: str, num_layers: int = 3) -> Pretrained:
    """A random model of this architecture, with more layers than usual."""
    architecture = (ARCHITECTURES | OTHERS)[name]
    settings: dict[str, Any] = {**architecture.settings}
    for key in {"num_hidden_layers", "n_layer", "n_layers", "num_layers"} & settings.keys():
        settings[key] = num_layers
    if "layer_types" in settings:
        settings["layer_types"] = [settings["layer_types"][i % 2] for i in range(num_layers)]
    model = replace(architecture, settings=settings).build()
    return Pretrained(name, model, AutoTokenizer.from_pretrained(SHIPPED))


def reading() -> Reading:
    return Reading(ModelText(tuple(map(str, TOKENS.tolist())), TOKENS))


def eager_weights(model: PreTrainedModel, layer: int, head: int) -> Tensor:
    model.set_attn_implementation("eager")
    outputs = model(input_ids=TOKENS.unsqueeze(0), output_attentions=True)
    weights: Tensor = outputs.attentions[layer][0, head]
    return weights


@pytest.mark.parametrize("name", SUMS)
def test_parts_add_up_to_the_score_that_gives_the_weight(name: str) -> None:
    """Test the first head and the last head, which share no key in grouped attention."""
    pretrained = tiny(name)
    for head in (0, 3):
        found = score_parts(pretrained, reading(), layer=2, head=head, query=QUERY)
        largest = max(abs(row["score"]) for row in (*found.key_side, *found.query_side))
        for side in (found.key_side, found.query_side):
            assert sum(row["score"] for row in side) == pytest.approx(found.above_mean, abs=1e-4 * largest)
            for part in ("embedding", "head", "mlp"):  # each has its own share
                scores = [abs(row["score"]) for row in side if row["kind"] == part]
                assert min(scores) > 1e-7 * largest, part
        assert found.pairs is not None and found.parts is not None
        assert float(found.pairs.sum()) == pytest.approx(found.above_mean, abs=1e-4 * largest)
        assert len(found.parts) == 1 + 2 * (4 + 1) + 1
        weights = eager_weights(pretrained.model, 2, head)[QUERY]
        # Eager attention of Granite-SWA returns rows without their sink.
        total = float(found.keys.column("weight").sum()) if name == "Granite-SWA" else 1.0
        assert found.weight == pytest.approx(float(weights[found.key]) * total, abs=1e-5)
        assert found.key_scores is not None
        hidden = torch.from_numpy(found.key_scores[0].key_adds).isnan()
        assert (weights[hidden] == 0).all() and abs(found.position) < 100
        if name.startswith("Doge"):
            assert torch.equal(hidden, weights == 0)


@pytest.mark.parametrize("name", NO_SUMS)
def test_scores_that_are_not_sums_are_refused(name: str) -> None:
    pretrained = tiny(name)
    both = replace(reading(), context=reading().text) if pretrained.has_decoder else reading()
    with pytest.raises(UserError, match=NO_SUMS[name]):
        score_parts(pretrained, both, layer=1, head=0)


def by_formula(model: Any, layer: int, head: int) -> tuple[list[Tensor], list[Tensor]]:
    """Compute the query and key of each part in a layer of a Llama, in float64, from hooks on its modules."""
    model = model.double()
    model.set_attn_implementation("eager")
    seen: dict[Any, Tensor] = {}

    def keep(module: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        seen[module] = inputs[0][0] if "o_proj" in names[module] else output[0]

    names = {module: name for name, module in model.named_modules()}
    for module, name in names.items():
        if name.endswith(("o_proj", "mlp", "embed_tokens")):
            module.register_forward_hook(keep)
    model(input_ids=TOKENS.unsqueeze(0))
    parts = [seen[model.embed_tokens]]
    for block in model.layers[:layer]:
        heads = seen[block.self_attn.o_proj].view(len(TOKENS), 4, 8)
        columns = block.self_attn.o_proj.weight.view(32, 4, 8)
        parts += [heads[:, number] @ columns[:, number].mT for number in range(4)]
        parts.append(seen[block.mlp])
    stream = torch.stack(parts).sum(dim=0)
    block = model.layers[layer]
    norm = block.input_layernorm
    size = (stream.square().mean(dim=-1, keepdim=True) + norm.variance_epsilon).sqrt()
    cos, sin = model.rotary_emb(stream.unsqueeze(0), torch.arange(len(TOKENS)).unsqueeze(0))
    queries, keys = [], []
    for part in parts:
        normed = part / size * norm.weight
        query = block.self_attn.q_proj(normed).view(1, len(TOKENS), 4, 8).transpose(1, 2)
        key = block.self_attn.k_proj(normed).view(1, len(TOKENS), 2, 8).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        queries.append(query[0, head])
        keys.append(key[0, head // 2])
    return queries, keys


@pytest.mark.parametrize("head", [0, 3])
def test_parts_match_the_formula(head: int) -> None:
    pretrained = tiny("Llama")
    found = score_parts(pretrained, reading(), layer=2, head=head, query=QUERY, key=4)
    queries, keys = by_formula(pretrained.model, 2, head)
    scale, visible = 8**-0.5, slice(0, QUERY + 1)
    scores = torch.stack([torch.stack([scale * key @ query[QUERY] for key in keys]) for query in queries])
    above = scores[..., 4] - scores[..., visible].mean(dim=-1)  # query part, key part
    assert found.pairs is not None
    np.testing.assert_allclose(found.pairs[:-1, :-1], above, atol=1e-5, rtol=1e-5)
    of_key = {(row["kind"], row["layer"], row["head"]): row for row in found.key_side}
    row = of_key["head", 1, 2]
    assert row["score"] == pytest.approx(float(above[:, 1 + 5 + 2].sum()), abs=1e-5)
    total = scores.sum(dim=(0, 1))[visible]
    without = (total - scores[:, 1 + 5 + 2].sum(dim=0)[visible]).softmax(dim=-1)[4]
    assert row["weight_without"] == pytest.approx(float(without), abs=1e-6)


@pytest.mark.parametrize("name", ["BERT", "GPT-2"])
def test_the_weight_without_a_part_matches_a_run_without_it(name: str) -> None:
    """A hook removes the contribution of the embedding from the keys, and keeps the scale of the norm."""
    pretrained = tiny(name, num_layers=1)
    found = score_parts(pretrained, reading(), layer=0, head=1, query=QUERY)
    row = next(row for row in found.key_side if row["kind"] == "embedding")
    model = pretrained.model
    model.set_attn_implementation("eager")

    def without_input(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if name == "BERT":
            return torch.zeros_like(output) + module.bias
        query, key, value = output.split(32, dim=-1)
        shift = model.h[0].ln_1.bias @ module.weight[:, 32:64] + module.bias[32:64]
        return torch.cat([query, torch.zeros_like(key) + shift, value], dim=-1)

    module = model.encoder.layer[0].attention.self.key if name == "BERT" else model.h[0].attn.c_attn
    with module.register_forward_hook(without_input):
        weights = model(input_ids=TOKENS.unsqueeze(0), output_attentions=True).attentions[0][0, 1]
    assert row["weight_without"] == pytest.approx(float(weights[QUERY, found.key]), abs=1e-5)


def test_scores_of_all_keys_agree_with_those_of_one_key() -> None:
    found = score_parts(tiny("Llama"), reading(), layer=2, head=1, query=QUERY, key=4)
    for side, rows in (("key", found.key_side), ("query", found.query_side)):
        assert found.key_scores is not None and found.parts is not None
        adds, without = (
            torch.from_numpy(np.asarray(found.key_scores.cells[f"{side}_{name}"]))
            for name in ("adds", "without")
        )
        places = {part.part: place for place, part in enumerate(found.parts)}
        for row in rows:
            place = places[row.part]
            assert row["score"] == pytest.approx(float(adds[place, 4]))
            assert row["weight_without"] == pytest.approx(float(without[place, 4]))
        assert adds[:, : QUERY + 1].sum(dim=1).abs().max() < 1e-4  # above the mean
        assert adds[:, QUERY + 1 :].isnan().all() and not adds[:, : QUERY + 1].isnan().any()
        other = score_parts(tiny("Llama"), reading(), layer=2, head=1, query=QUERY, key=6)
        assert float(adds[:, 6].sum()) == pytest.approx(other.above_mean, abs=1e-5)


def test_rounded_parts_are_refused() -> None:
    pretrained = tiny("Llama")
    pretrained.model.bfloat16()
    with pytest.raises(UserError, match="dtype: must be float32"):
        score_parts(pretrained, reading(), layer=1, head=0)


def test_the_shipped_model_finds_keys_through_previous_token_heads() -> None:
    """In the induction circuit (Olsson et al. 2022), 0:1 writes to the key; the token itself is the query."""
    with in_use(open_model(SHIPPED)) as pretrained:
        probe = read_probe(pretrained, 24, torch.Generator().manual_seed(0))
        found: ScoreParts = score_parts(pretrained, probe, layer=1, head=2, query=40)
    assert (found.key, found.query) == (40 - 23, 40)
    assert [found.key_side[0][key] for key in ("kind", "layer", "head")] == ["head", 0, 1]
    assert found.query_side[0]["kind"] == "embedding"
    assert found.key_side[0]["weight_without"] < found.weight - 0.1
    assert found.weight > 0.9
    assert found.writers is not None
    writer = found.writers[0]
    assert (writer["layer"], writer["head"], writer["query"], writer["key"]) == (0, 1, 17, 16)


LENS = json.loads(Path(__file__).with_name("transformer_lens_scores.json").read_text())


@pytest.mark.parametrize("name", LENS["heads"])
def test_parts_match_transformer_lens(name: str) -> None:
    """tools/transformer_lens_scores.py wrote the numbers, in which positions are a separate part."""
    with in_use(open_model(SHIPPED)) as pretrained:
        probe = read_probe(pretrained, 24, torch.Generator().manual_seed(0))
        found = score_parts(
            pretrained, probe, layer=1, head=int(name[-1]), query=LENS["query"], key=LENS["key"]
        )
    labels = {"embedding": "embed", "mlp": "0_mlp_out", "bias": "bias"}
    for side, rows in (("key", found.key_side), ("query", found.query_side)):
        own = {labels.get(row["kind"], f"L0H{row['head']}"): row["score"] for row in rows}
        theirs = {**LENS["heads"][name][side]}
        theirs["embed"] += theirs.pop("pos_embed")
        theirs.pop("bias"), own.pop("bias")  # theirs has not those of norms and projections
        assert own == pytest.approx(theirs, abs=1e-4)
