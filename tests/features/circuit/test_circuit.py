"""Heads that feed heads, compared with `attn why`, TransformerLens and runs of transformers."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoTokenizer

from attncli.core.layer import AttentionLayer, ScoreRules, Visibility
from attncli.errors import UserError
from attncli.features.circuit import edges as circuit
from attncli.features.circuit.edges import _edges, compositions, head_edges
from attncli.features.circuit.logit_paths import decided_by_scores
from attncli.features.circuit.results import Compositions, HeadEdges, PartShare
from attncli.features.why.attribution import attribution
from attncli.features.why.scores import score_parts
from attncli.measure.scores import ScoreRow
from attncli.models.capture import with_eager_attention
from attncli.models.loading import in_use, open_model
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.probes import read_probe
from attncli.models.reading_text import read_text
from tests.conftest import in_turn
from tests.features.why.test_scores import LENS, OTHERS, SHIPPED, TOKENS, eager_weights, reading, tiny
from tools.tiny_architectures import GROUPED, HIDDEN, SEQ2SEQ, USUAL


def shares(edges: HeadEdges, layer: int | None, head: int | None, side: str) -> dict[Any, float]:
    return {
        (row["kind"], row["from_layer"], row["from_head"]): row["share"]
        for row in edges.rows
        if (row["layer"], row["head"], row["side"]) == (layer, head, side)
    }


@pytest.mark.parametrize("name", ["Llama", "BERT"])
def test_shares_of_a_head_are_means_over_its_queries(name: str) -> None:
    """Each query has the weight of its strongest key after the first."""
    pretrained = tiny(name)
    edges = head_edges(pretrained, [reading()])
    weights = eager_weights(pretrained.model, 2, 1).double()
    sums: dict[str, Counter[Any]] = {"key": Counter(), "query": Counter()}
    for query in range(len(TOKENS)):
        if (weights[query] > 0).sum() < 2:
            continue
        key = int(weights[query, 1:].argmax()) + 1
        found = score_parts(pretrained, reading(), layer=2, head=1, query=query, key=key)
        for side, parts in (("key", found.key_side), ("query", found.query_side)):
            for row in parts:
                sums[side][row["kind"], row["layer"], row["head"]] += row["score"] * float(
                    weights[query, key]
                )
    for side, by_part in sums.items():
        expected = {part: value / sum(by_part.values()) for part, value in by_part.items()}
        assert shares(edges, 2, 1, side) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "BERT", "Gemma 2", "Granite", "OLMo 2"])
def test_the_shares_of_a_side_add_up_to_one(name: str) -> None:
    edges = head_edges(tiny(name), [reading()])
    for layer in range(3):
        for head in range(4):
            for side in ("key", "query", "value"):
                of_side = shares(edges, layer, head, side)
                assert len(of_side) == 2 + 5 * layer
                assert sum(of_side.values()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", ["Llama", "BERT"])
def test_a_head_that_sees_a_single_key_only_has_shares_of_its_output(name: str) -> None:
    one = Reading(replace(reading().text, tokens=("cat",), ids=TOKENS[:1]))
    rows = head_edges(tiny(name), [one]).rows
    assert all((row.share is None) == (row.side != "value") for row in rows)


def test_named_heads_have_the_same_shares_as_among_all_heads() -> None:
    pretrained = tiny("Llama")
    every, some = (
        head_edges(pretrained, [reading()]),
        head_edges(pretrained, [reading()], heads=["2:1", "0:3"]),
    )
    assert {(row["layer"], row["head"]) for row in some.rows} == {(0, 3), (2, 1)}
    assert shares(some, 2, 1, "query") == pytest.approx(shares(every, 2, 1, "query"))
    assert some.weight == pytest.approx({place: every.weight[place] for place in ((0, 3), (2, 1))})
    with pytest.raises(UserError, match="head: must be from 0:0 to 2:3 in Llama"):
        head_edges(pretrained, [reading()], heads=["3:0"])


def logits_of(edges: HeadEdges, side: str) -> dict[Any, float]:
    """The effect on the logit through one side of each head, summed over the parts."""
    sums: dict[Any, float] = {}
    for row in edges.rows:
        if row["side"] == side and row["layer"] is not None:
            sums[row["layer"], row["head"]] = sums.get((row["layer"], row["head"]), 0.0) + row["logit"]
    return sums


def gpt2(text: str) -> tuple[HeadEdges, "HookedGpt2"]:
    with in_use(open_model(SHIPPED)) as pretrained:
        read = read_text(pretrained, text)
        return head_edges(pretrained, [read]), HookedGpt2(pretrained.whole, read.text.ids)


def test_the_effect_of_scores_is_the_difference_from_uniform_weights() -> None:
    """The mean value goes through W_O, the last norm and W_U, in the modules of transformers."""
    edges, hooked = gpt2("to be or not to be")
    model = hooked.model
    direction = model.lm_head.weight[hooked.logits[-1].argmax()].detach()
    decided, every = logits_of(edges, "key"), logits_of(edges, "value")
    assert logits_of(edges, "query") == pytest.approx(decided, abs=1e-5)
    for layer in range(2):
        block = model.transformer.h[layer]
        values = block.attn.c_attn(hooked.seen[block.ln_1][1])[:, 128:].detach()
        for head in range(4):
            own = slice(16 * head, 16 * head + 16)
            even = values[:, own].mean(dim=0) @ block.attn.c_proj.weight[own].detach()
            wrote = hooked.wrote(layer, head)
            ends = torch.stack([wrote[-1], even])
            adds, would = (
                float(
                    hooked.normed(model.transformer.ln_f, torch.cat([wrote[:-1], end[None]]))[-1] @ direction
                )
                for end in ends
            )
            assert every[layer, head] == pytest.approx(adds, abs=1e-4)
            assert decided[layer, head] == pytest.approx(adds - would, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("LlamaForCausalLM", GROUPED),
        ("Olmo2ForCausalLM", GROUPED),
        ("Qwen3NextForCausalLM", {**GROUPED, "layer_types": ["full_attention"] * 2, "num_experts": 0}),
        ("BartForCausalLM", SEQ2SEQ),
    ],
)
def test_the_effect_through_values_is_the_contribution_of_the_head(
    name: str, settings: dict[str, Any]
) -> None:
    """As in `attn why`, including norms after heads, gates before W_O and models without a last norm."""
    pretrained = with_head(name, settings)
    edges = head_edges(pretrained, [reading()])
    added = {
        (row["from_layer"], row["from_head"]): row["logit"]
        for row in edges.rows
        if row["layer"] is None and row["kind"] == "head"
    }
    assert logits_of(edges, "value") == pytest.approx(added, abs=1e-4)
    assert logits_of(edges, "query") == pytest.approx(logits_of(edges, "key"), abs=1e-4)
    if name == "LlamaForCausalLM":
        heads = attribution(pretrained, reading()).heads
        assert {(row.layer, row.head): row.contribution for row in heads} == pytest.approx(added, abs=1e-4)


@pytest.mark.parametrize(("softcap", "sink"), in_turn([None, 2.5], [None, 1.3]))
def test_scores_are_weighted_by_integrated_gradients(softcap: float | None, sink: float | None) -> None:
    """By autograd at 2,000 points; the sum is the difference from uniform weights."""
    generator = torch.Generator().manual_seed(3)
    query, key, value = torch.randn(3, 1, 1, 7, 5, generator=generator, dtype=torch.float64)
    bias = torch.randn(1, 1, 7, 7, generator=generator, dtype=torch.float64)
    rules = ScoreRules(softcap=softcap, bias=bias, temperature=0.7, sink=sink and torch.tensor([[sink]]))
    row = ScoreRow(AttentionLayer(query, key, value, Visibility(7, 7, causal=True), 1.0, rules), 0, 5)
    scores = 8 * torch.randn(7, generator=generator, dtype=torch.float64)
    worth = torch.randn(7, generator=generator, dtype=torch.float64)
    means = torch.zeros_like(scores)
    for step in range(2000):
        grown = ((step + 0.5) / 2000 * scores).requires_grad_()
        means += torch.autograd.grad(row.weights(grown) @ worth, grown)[0] / 2000
    decided = decided_by_scores(row, scores, worth)
    torch.testing.assert_close(decided, means, atol=2e-5, rtol=0)
    even = row.weights(torch.zeros_like(scores))
    assert float(decided @ scores) == pytest.approx(float((row.weights(scores) - even) @ worth), abs=1e-6)


def test_parts_that_cancel_have_no_share_and_are_sorted_by_the_logit() -> None:
    """A share of a sum near 0 is NaN; no share is 10 or more."""
    torch.testing.assert_close(
        circuit._shares(torch.tensor([3.0, -2.9, 1.0])), torch.tensor([3.0, -2.9, 1.0]) / 1.1
    )
    assert circuit._shares(torch.tensor([3.0, -2.9, 0.1], dtype=torch.float64)).isnan().all()
    assert circuit._shares(torch.zeros(3)).isnan().all()
    edges, _ = gpt2("the cat sat on the mat")
    numbers = [abs(edge["logit"]) for edge in edges.edges]
    assert numbers == sorted(numbers, reverse=True)
    kept = {(edge["from"], edge["to"], edge["side"]) for edge in edges.edges}
    rows = [row for row in edges.rows if row["kind"] == "head" and row["layer"] is not None]
    for row in rows:
        name = f"{row['from_layer']}:{row['from_head']}", f"{row['layer']}:{row['head']}", row["side"]
        assert (name in kept) == (abs(row["share"] or 0) >= 0.01 or abs(row["logit"]) >= 0.01 * numbers[0])


def test_shares_of_several_texts_are_means_with_intervals() -> None:
    """For three texts, Student's t gives mean -+ 4.3027 s / sqrt 3."""
    pretrained = tiny("Llama")
    texts = [
        Reading(replace(reading().text, tokens=tuple("abcdefghijk"), ids=TOKENS.roll(shift)))
        for shift in range(3)
    ]
    together = head_edges(pretrained, texts)
    alone = [head_edges(pretrained, [text]) for text in texts]
    assert together.num_texts == 3
    for place in range(0, len(together.rows), 7):
        of_texts = torch.tensor([edges.rows[place]["share"] for edges in alone], dtype=torch.float64)
        row = together.rows[place]
        assert row["share"] == pytest.approx(float(of_texts.mean()), abs=1e-9)
        half = 4.302652729911275 * float(of_texts.std()) / 3**0.5
        assert row["share_high"] - row["share"] == pytest.approx(half, abs=1e-6)
        assert row["share"] - row["share_low"] == pytest.approx(half, abs=1e-6)


class HookedGpt2:
    """The inputs and outputs of the modules of a GPT-2 for some tokens."""

    def __init__(self, model: Any, ids: Tensor) -> None:
        self.model, self.ids = model, ids
        seen: dict[Any, tuple[Tensor, Tensor]] = {}

        def keep(module: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            seen[module] = inputs[0][0], output[0]

        body = model.transformer
        modules = [*(block.attn.c_proj for block in body.h), *(block.ln_1 for block in body.h), body.ln_f]
        hooks = [module.register_forward_hook(keep) for module in modules]
        with torch.no_grad(), with_eager_attention(model):
            self.logits = model(input_ids=ids.unsqueeze(0)).logits[0]
        for hook in hooks:
            hook.remove()
        self.seen = seen

    def wrote(self, layer: int, head: int) -> Tensor:
        """The vectors that a head added to the stream at each token."""
        projection = self.model.transformer.h[layer].attn.c_proj
        own = slice(16 * head, 16 * head + 16)
        written: Tensor = self.seen[projection][0][:, own] @ projection.weight[own]
        return written.detach()

    def normed(self, norm: Any, vectors: Tensor) -> Tensor:
        """The norm applied to these vectors with its scale frozen and without its shift."""
        read, _ = self.seen[norm]
        centred = vectors - vectors.mean(dim=-1, keepdim=True)
        size = (read.var(dim=-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
        normed: Tensor = centred / size * norm.weight
        return normed.detach()


def test_shares_of_the_logits_are_relative_to_the_mean_over_tokens() -> None:
    with in_use(open_model(SHIPPED)) as pretrained:
        text = read_text(pretrained, "to be or not to be")
        found = head_edges(pretrained, [text])
        hooked = HookedGpt2(pretrained.whole, text.text.ids)
        matrix = pretrained.whole.lm_head.weight.detach()
    targets = text.text.ids[1:]
    directions = matrix[targets] - matrix.mean(dim=0)
    logits = hooked.logits[:-1]
    total = (logits.gather(1, targets.unsqueeze(1)) - logits.mean(dim=1, keepdim=True)).sum()
    own = shares(found, None, None, "logit")
    assert sum(own.values()) == pytest.approx(1, abs=1e-4)
    for layer in range(2):
        for head in range(4):
            normed = hooked.normed(hooked.model.transformer.ln_f, hooked.wrote(layer, head))
            adds = (normed[:-1] * directions).sum()
            assert own["head", layer, head] == pytest.approx(float(adds / total), abs=1e-4)


def with_head(name: str, settings: dict[str, Any]) -> Pretrained:
    """A random model with its language-modelling head and with random norms and biases."""
    kind = getattr(transformers, name)
    torch.manual_seed(5)
    model = kind(kind.config_class(**settings)).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.1))
    return Pretrained(name, model.base_model, AutoTokenizer.from_pretrained(SHIPPED), with_head=model)


NARROW = {**HIDDEN, "ffn_dim": 40, "word_embed_proj_dim": 12}
TO_LOGITS: dict[str, tuple[str, dict[str, Any]]] = {
    "a projection before W_U": ("OPTForCausalLM", NARROW),
    "and no last norm": ("OPTForCausalLM", {**NARROW, "do_layer_norm_before": False}),
    "a norm without a gain": ("OlmoForCausalLM", GROUPED),
    "the same norm before the blocks": ("NanoChatForCausalLM", {**GROUPED, "final_logit_softcapping": None}),
    "factors": ("GraniteForCausalLM", {**GROUPED, "residual_multiplier": 0.5}),
    "rotations in a list": ("GraniteSWAForCausalLM", {**GROUPED, "sliding_window": 5}),
    "no norm": ("BartForCausalLM", SEQ2SEQ),
}


@pytest.mark.parametrize("case", TO_LOGITS)
def test_contributions_to_the_logits_add_up_to_the_logits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contributions add up to the logits of transformers minus their means."""
    sums: list[float] = []
    inner = circuit._added_to_logits

    def summed(*given: Any) -> Any:
        found = inner(*given)
        assert found is not None
        sums.append(float(found[1].sum()))
        return found

    monkeypatch.setattr(circuit, "_added_to_logits", summed)
    pretrained = with_head(*TO_LOGITS[case])
    edges = head_edges(pretrained, [reading()])
    assert sum(shares(edges, None, None, "logit").values()) == pytest.approx(1, abs=1e-4)
    pretrained.whole.set_attn_implementation("eager")
    with torch.no_grad():
        logits = pretrained.whole(input_ids=TOKENS.unsqueeze(0), use_cache=False).logits[0, :-1].double()
    total = (logits.gather(1, TOKENS[1:].unsqueeze(1)) - logits.mean(dim=1, keepdim=True)).sum()
    assert sums == [pytest.approx(float(total), rel=1e-3)]


TRANSFORMED = {
    "ModernBertDecoderForCausalLM": {**USUAL, "layer_types": ["full_attention"] * 2, "pad_token_id": 0},
    "RobertaPreLayerNormForCausalLM": {**USUAL, "is_decoder": True},
    "XLMRobertaXLForCausalLM": {**USUAL, "is_decoder": True},
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_logits_of_a_transformed_stream_have_no_shares(name: str) -> None:
    """With an activation before W_U, logits have no shares and heads no copying scores."""
    pretrained = with_head(name, TRANSFORMED[name])
    edges, found = head_edges(pretrained, [reading()]), compositions(pretrained)
    reason = "between its last block and W_U, the model applies more than a norm and matrix products"
    assert edges.rows and not [row for row in edges.rows if row["side"] == "logit"]
    assert edges.notes == (f"No shares of the logits of {name}: {reason}.",)
    assert found.rows and not found.copying
    assert found.notes == (f"No copying scores of {name}: {reason}.",)


def test_copying_scores_include_projections() -> None:
    """The eigenvalues are those of W_U P_out W_OV P_in W_E (token, token)."""
    pretrained = with_head("OPTForCausalLM", NARROW)
    copying = compositions(pretrained).copying
    assert len(copying) == 2 * 4
    model: Any = pretrained.whole.double()
    body = model.model.decoder
    for row in copying:
        block, own = body.layers[row["layer"]], slice(8 * row["head"], 8 * row["head"] + 8)
        read = body.project_in.weight @ body.embed_tokens.weight.mT  # (stream, token)
        read = (read - read.mean(dim=0)) * block.self_attn_layer_norm.weight.unsqueeze(1)
        wrote = block.self_attn.out_proj.weight[:, own] @ block.self_attn.v_proj.weight[own] @ read
        wrote = (wrote - wrote.mean(dim=0)) * body.final_layer_norm.weight.unsqueeze(1)
        values = torch.linalg.eigvals(model.lm_head.weight @ body.project_out.weight @ wrote)
        assert row["score"] == pytest.approx(float(values.real.sum() / values.abs().sum()), abs=1e-4)


def test_weights_without_the_ten_strongest_edges_agree_with_transformers() -> None:
    """In transformers, a hook removes the head from only one side."""
    with in_use(open_model(SHIPPED)) as pretrained:
        probe = read_probe(pretrained, 24, torch.Generator().manual_seed(0))
        edges = head_edges(pretrained, [probe])
        hooked = HookedGpt2(pretrained.whole, probe.text.ids)
        between = [row for row in edges.rows if row["kind"] == "head" and row["side"] in ("key", "query")]
        strongest = sorted((row for row in between if row["layer"]), key=lambda row: -row["strength"])[:10]
        block = pretrained.whole.transformer.h[1]
        falls = []
        for row in strongest:
            found = score_parts(pretrained, probe, layer=1, head=row["head"], query=40)
            sides = found.key_side if row["side"] == "key" else found.query_side
            place = ("head", row["from_layer"], row["from_head"])
            said = next(part for part in sides if (part["kind"], part["layer"], part["head"]) == place)
            wrote = hooked.normed(block.ln_1, hooked.wrote(row["from_layer"], row["from_head"]))
            columns = slice(64, 128) if row["side"] == "key" else slice(0, 64)

            def without(
                module: Any,
                inputs: Any,
                output: Tensor,
                columns: slice = columns,
                wrote: Tensor = wrote,
                only: slice = slice(None) if row["side"] == "key" else slice(40, 41),
            ) -> Tensor:
                changed = output.clone()
                changed[0, only, columns] -= (wrote @ module.weight[:, columns])[only]
                return changed

            ids = probe.text.ids.unsqueeze(0)
            with (
                with_eager_attention(pretrained.whole),
                block.attn.c_attn.register_forward_hook(without),
                torch.no_grad(),
            ):
                weights = pretrained.whole(input_ids=ids, output_attentions=True).attentions[1]
            weight = float(weights[0, row["head"], 40, found.key])
            assert said["weight_without"] == pytest.approx(weight, abs=1e-5)
            falls.append(found.weight - weight)
    assert falls[0] > 0.1 and sum(falls) > 0


@pytest.fixture(scope="module")
def shipped() -> Compositions:
    with in_use(open_model(SHIPPED)) as pretrained:
        return compositions(pretrained)


@pytest.mark.parametrize("side", ["key", "query", "value"])
def test_compositions_agree_with_transformer_lens(side: str, shipped: Compositions) -> None:
    """tools/transformer_lens_scores.py wrote the numbers, from the same weights."""
    rows = [row for row in shipped.rows if row["side"] == side]
    assert len(rows) == 16
    for row in rows:
        theirs = LENS["compositions"][side][row["from_layer"]][row["from_head"]][row["layer"]][row["head"]]
        assert row["score"] == pytest.approx(theirs, abs=1e-4)


def test_copying_scores_agree_with_the_eigenvalues_of_the_whole_matrix(shipped: Compositions) -> None:
    """W_U W_OV W_E (token, token) comes from the weights of transformers' modules."""
    with in_use(open_model(SHIPPED)) as pretrained:
        model: Any = pretrained.whole

    def normed(vectors: Tensor, norm: Any) -> Tensor:
        return (vectors - vectors.mean(dim=-1, keepdim=True)) * norm.weight.double()

    body = model.transformer
    for row in shipped.copying:
        block, own = body.h[row["layer"]], slice(16 * row["head"], 16 * row["head"] + 16)
        value = block.attn.c_attn.weight[:, 128:192][:, own].double()
        read = normed(body.wte.weight.double(), block.ln_1) @ value
        whole = (
            normed(read @ block.attn.c_proj.weight[own].double(), body.ln_f)
            @ model.lm_head.weight.double().mT
        )
        values = torch.linalg.eigvals(whole.detach())
        assert row["score"] == pytest.approx(float(values.real.sum() / values.abs().sum()), abs=1e-5)


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma 2"])
def test_compositions_agree_with_the_whole_matrices(name: str) -> None:
    """||W_OV W_QK|| is computed from the weights of transformers' modules."""
    pretrained = tiny(name)
    model: Any = pretrained.model

    def of_head(layer: int, head: int) -> dict[str, Tensor]:
        block = model.layers[layer]
        attention = block.self_attn
        dim = attention.head_dim
        own, shared = (slice(dim * number, dim * number + dim) for number in (head, head // 2))
        is_less_one = name == "Gemma 2"
        gain = block.input_layernorm.weight + is_less_one
        query, key, value = (
            projection.weight[rows] * gain
            for projection, rows in (
                (attention.q_proj, own),
                (attention.k_proj, shared),
                (attention.v_proj, shared),
            )
        )
        if name == "Qwen3":
            query = query * attention.q_norm.weight.unsqueeze(1)
            key = key * attention.k_norm.weight.unsqueeze(1)
        output = attention.o_proj.weight[:, own]
        if name == "Gemma 2":
            output = output * (block.post_attention_layernorm.weight + 1).unsqueeze(1)
        return {"query": (query.mT @ key), "key": (key.mT @ query), "value": value.mT @ output.mT}

    found = compositions(pretrained)
    assert not found.copying
    for row in found.rows:
        writes = of_head(row["from_layer"], row["from_head"])["value"]
        reads = of_head(row["layer"], row["head"])[row["side"]]
        expected = (writes @ reads).norm() / writes.norm() / reads.norm()
        assert row["score"] == pytest.approx(float(expected), abs=1e-5)


def test_compositions_of_one_head_are_a_subset(shipped: Compositions) -> None:
    with in_use(open_model(SHIPPED)) as pretrained:
        found = compositions(pretrained, head="0:1")
        with pytest.raises(UserError, match="head: must be from 0:0 to 1:3"):
            compositions(pretrained, head="2:0")
    assert found.rows == [row for row in shipped.rows if (row["from_layer"], row["from_head"]) == (0, 1)]
    assert [(row["layer"], row["head"]) for row in found.copying] == [(0, 1)]


@pytest.mark.parametrize(
    ("name", "reason"), [("BERT", "normalised before they reach the stream"), ("T5", "an encoder and a")]
)
def test_models_without_a_residual_stream_are_refused(name: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        compositions(tiny(name))


def test_families_of_decoders_compose() -> None:
    for name in ("Mistral", "GPT-NeoX", "Phi", *(one for one in OTHERS if one in ("Granite", "Cohere"))):
        scores = [row["score"] for row in compositions(tiny(name)).rows]
        assert len(scores) == 3 * 3 * 16 and all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize("rounding", [1e-15, -1e-15])
def test_rounding_neither_drops_nor_reorders_edges(rounding: float) -> None:
    """A share at the limit and two edges of equal strength do not depend on the number of threads."""
    shares = np.array([0.01 - rounding, 0.5 + rounding, 0.5 - rounding])
    rows = PartShare.table(
        layer=[1] * 3,
        head=[0] * 3,
        side=["key"] * 3,
        kind=["head"] * 3,
        from_layer=[0] * 3,
        from_head=[2, 1, 0],
        share=shares,
        strength=shares,
    )
    assert [edge.start for edge in _edges(rows)] == ["0:1", "0:0", "0:2"]
