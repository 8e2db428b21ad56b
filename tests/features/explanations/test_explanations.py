"""Ways to read the sources of an answer, against naive loops on runs of transformers, lxt and captum."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy.stats import spearmanr
from torch import Tensor

import attncli
from attncli.errors import UserError
from attncli.features.explanations.compared_ways import removal_curves, removal_steps
from attncli.features.explanations.explanations import (
    WAYS,
    ReadAnswer,
    SourceScores,
    WayToRead,
    correlation,
    first_agrees,
)
from attncli.features.explanations.relevance import attnlrp, directions, gradients
from attncli.features.explanations.results import TIED_NATS, first_ranked, tied_ranks
from attncli.features.explanations.screens import _agreements
from attncli.features.explanations.token_flow import (
    AnswerRun,
    alti,
    direct_contributions,
    rollout,
    value_norms,
)
from attncli.models.answers import given_answer
from attncli.models.loading import in_use, open_model
from attncli.models.pretrained import Pretrained
from attncli.models.replay import Replay
from attncli.models.source_texts import encoded_sources, read_sourced, split_text
from tests.conftest import Attn
from tests.features.explanations.naive_explanations import (
    carried_vectors,
    chefer_rows,
    keep_inputs,
    keep_outputs,
    near_rows,
    rolled,
)
from tests.features.why.test_why import GROUPED, PRE_NORM, save
from tests.model_folders import save_writer
from tools.architecture_sweep.folders import save_tokenizer, tiny_model

PROMPT, ANSWER = torch.tensor([1, 5, 9, 13, 7, 22, 31, 8, 9, 11, 4]), torch.tensor([12, 9, 3])
GEMMA = {**GROUPED, "query_pre_attn_scalar": 4}
CONSERVING = {
    **PRE_NORM,
    "MistralForCausalLM": {**GROUPED, "sliding_window": 5},
    "Gemma2ForCausalLM": {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "CohereForCausalLM": {**GROUPED, "logit_scale": 0.5, "use_qk_norm": True},
}
NAIVE = ("GPT2LMHeadModel", "LlamaForCausalLM")


class Naive:
    """A run of transformers: weights, values, W_O, the inputs of blocks, and gradients by autograd."""

    def __init__(self, folder: Path, name: str) -> None:
        self.model: Any = (
            getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").eval()
        )
        is_gpt2 = name.startswith("GPT2")
        self.blocks = self.model.transformer.h if is_gpt2 else self.model.model.layers
        self.projections = [block.attn.c_proj if is_gpt2 else block.self_attn.o_proj for block in self.blocks]
        self.matrices = [
            (one.weight if is_gpt2 else one.weight.mT).detach().double() for one in self.projections
        ]
        self.read: list[Tensor] = []
        self.gave: list[Tensor] = []
        self.values: list[Tensor] = []
        for block, projection in zip(self.blocks, self.projections, strict=True):
            keep_inputs(block, self.read)
            keep_outputs(projection, self.gave)
            keep_outputs(block.attn.c_attn if is_gpt2 else block.self_attn.v_proj, self.values)
        self.ids = torch.cat([PROMPT, ANSWER[:-1]]).unsqueeze(0)
        self.vectors = self.model.get_input_embeddings()(self.ids).detach().requires_grad_()
        out = self.model(inputs_embeds=self.vectors, output_attentions=True)
        self.weights = out.attentions
        rows = out.logits[0, len(PROMPT) - 1 :]
        self.logit = rows.gather(-1, ANSWER.unsqueeze(-1)).sum()
        self.num_heads = self.weights[0].shape[1]
        dim = self.matrices[0].shape[0] // self.num_heads
        if is_gpt2:
            self.values = [value[:, -self.num_heads * dim :] for value in self.values]
        self.values = [value.view(len(value), -1, dim).detach() for value in self.values]
        self.carried = [
            carried_vectors(weights[0], value, matrix)
            for weights, value, matrix in zip(self.weights, self.values, self.matrices, strict=True)
        ]

    def of_answer(self, rows: Tensor) -> Tensor:
        """Return the sum of the rows that chose the answer's tokens, for the tokens of the prompt."""
        return rows[len(PROMPT) - 1 :, : len(PROMPT)].sum(dim=0).detach()


@pytest.mark.parametrize("name", NAIVE)
def test_ways_match_naive_loops(name: str, tmp_path: Path) -> None:
    save(tmp_path, name, PRE_NORM[name])
    naive = Naive(tmp_path, name)
    count, first = naive.ids.shape[1], len(PROMPT) - 1
    eye, mixed, norms = torch.eye(count), list[Tensor](), torch.zeros(count, count, dtype=torch.float64)
    for carried, read, gave in zip(naive.carried, naive.read, naive.gave, strict=True):
        sizes = carried.norm(dim=-1)
        norms += sizes / sizes.sum(dim=-1, keepdim=True) / len(naive.blocks)
        vectors = carried.clone()
        vectors[range(count), range(count)] += read
        mixed.append(near_rows(vectors, read + gave))
    of_vectors, *of_weights = torch.autograd.grad(naive.logit, [naive.vectors, *naive.weights])
    means = [weights[0].mean(dim=0) for weights in naive.weights]
    expected = {
        rollout: naive.of_answer(rolled([(mean + eye) / 2 for mean in means])),
        value_norms: naive.of_answer(norms),
        alti: naive.of_answer(rolled(mixed)),
    }
    with in_use(open_model(tmp_path)) as pretrained:
        run = AnswerRun(pretrained, PROMPT, ANSWER)
        for way, numbers in expected.items():
            torch.testing.assert_close(way(run), numbers, atol=1e-5, rtol=1e-4)
        found = gradients(run)
        contributions = direct_contributions(run, directions(run))
    chefer = naive.of_answer(chefer_rows(naive.weights, of_weights))
    torch.testing.assert_close(found.attention_gradient, chefer, atol=1e-5, rtol=1e-4)
    by_input = (of_vectors * naive.vectors)[0].sum(dim=-1)[: len(PROMPT)].double().detach()
    torch.testing.assert_close(found.gradient_input, by_input, atol=1e-5, rtol=1e-4)
    # Straight into the logits: a norm's scale is a constant, all blocks between add nothing.
    norm = naive.model.transformer.ln_f if name.startswith("GPT2") else naive.model.model.norm
    last_stream: list[Tensor] = []
    keep_inputs(norm, last_stream)
    with torch.no_grad():
        naive.model(naive.ids)
    direct = torch.zeros(len(PROMPT), dtype=torch.float64)
    for row, token in enumerate(ANSWER.tolist()):
        stream = last_stream[0][first + row]
        if name.startswith("GPT2"):
            scale = (stream.var(unbiased=False) + norm.eps).rsqrt()
        else:
            scale = (stream.square().mean() + norm.variance_epsilon).rsqrt()
        column = naive.model.lm_head.weight[token].detach().double() * norm.weight.detach().double() * scale
        for carried in naive.carried:
            vectors = carried[first + row, : len(PROMPT)]
            centres = vectors.mean(dim=-1, keepdim=True) if name.startswith("GPT2") else 0
            direct += (vectors - centres) @ column
    torch.testing.assert_close(contributions, direct, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CONSERVING)
def test_relevance_adds_up_to_the_logits(name: str, tmp_path: Path) -> None:
    """AttnLRP conserves relevance in all architectures, with random norms and biases."""
    save(tmp_path, name, dict(CONSERVING[name]))
    with in_use(open_model(tmp_path)) as pretrained:
        run = AnswerRun(pretrained, PROMPT, ANSWER)
        parts = attnlrp(run)
        assert parts.error < 1e-4 * max(1.0, abs(parts.logits))
        assert float(parts.prompt.abs().sum()) > 1e-3
        assert value_norms(run).sum() <= len(ANSWER) + 1e-9
        if name not in ("OPTForCausalLM", "Gemma2ForCausalLM"):
            # Rows of sum 1: what is not of the prompt is of the answer's tokens.
            assert 0 < alti(run).sum() <= len(ANSWER) + 1e-9


def test_a_missing_rule_is_detected_by_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, "LlamaForCausalLM", PRE_NORM["LlamaForCausalLM"])
    monkeypatch.setattr("attncli.models.relevance_rules.PRODUCTS", set())
    with (
        in_use(open_model(tmp_path)) as pretrained,
        pytest.raises(UserError, match="attnlrp: does not apply to"),
    ):
        attnlrp(AnswerRun(pretrained, PROMPT, ANSWER))


LINES = "key=brass\ndoor=oak\nhat=wool\nlamp=green\ncup=tin"


@pytest.fixture(scope="module")
def copier() -> Pretrained:
    """The shipped model, which copies, so that the right source is known."""
    return attncli.open_model()


def test_ways_find_the_line_that_a_model_copies(copier: Pretrained) -> None:
    found = attncli.explanations(copier, "lamp=", LINES, split="line", answer="green", num_runs=32)
    first = {row.way: row.first for row in found.ways}
    assert set(first) == WAYS.keys() - {"best_heads", "at2"}
    right = {name for name, number in first.items() if number == 4}
    assert {"all_heads", "value_norms", "attnlrp", "direct_logit", "context_cite"} <= right
    assert found.sources[0].source == 4 and found.sources[0].lost == max(found.sources.column("lost"))
    assert found.notes == (
        "best_heads: the retrieval heads of tiny-induction are unknown: find them with attn source "
        "--find-heads",
        "at2: tiny-induction has no learned head weights: learn them with attn source PROMPTS --learn",
    )
    assert found.tokens is not None
    assert found.tokens.shape == (len(found.ways), 54)


def test_ways_find_the_right_source_of_every_copy(copier: Pretrained) -> None:
    """The model copies the line that begins like the question: all ways but gradient x input find it."""
    lines = LINES.splitlines()
    asked = [line.split("=") for line in lines]
    prompts = [
        {"sentence": f"{key}=", "context": LINES, "answer": value, "right": number}
        for number, (key, value) in enumerate(asked, start=1)
    ]
    others = [{**prompt, "context": "\n".join(lines[::-1])} for prompt in prompts]
    weights = attncli.learned_head_weights(copier, others, split="line", num_runs=8)
    found = attncli.compare_explanations(copier, prompts, split="line", num_runs=16, head_weights=weights)
    right = {row.way: row.right for row in found.ways if row.kind != "ordering"}
    assert right.keys() == (WAYS.keys() - {"best_heads"}) | {"removal"}
    assert 0 < (right.pop("gradient_input") or 0) < 1
    assert set(right.values()) == {1.0}


def test_areas_match_separate_runs(copier: Pretrained) -> None:
    assert (
        removal_steps(5) == [1, 2, 4, 5]
        and removal_steps(3) == [1, 2, 3]
        and removal_steps(8) == [1, 2, 4, 8]
    )
    with in_use(copier) as pretrained:
        reading = read_sourced(pretrained, split_text(LINES, "line", question="lamp="))
        answer = given_answer(pretrained, "green", reading.prompt.ids)
        read = ReadAnswer(pretrained, reading, answer)
        found, tied = removal_curves(read, [[2, 5, 3, 1, 4], [1, 1, 1, 1, 1]])
        assert tied.morf == tied.lerf != 0

        def logp(kept: list[int]) -> float:
            mask = [place in kept for place in range(5)]
            prompt = torch.tensor(encoded_sources(pretrained, reading.sourced.with_only(mask))[0])
            return float(Replay(pretrained.whole, prompt, answer).log_probabilities(prompt).sum())

        whole = logp([0, 1, 2, 3, 4])
        for order, area in (([3, 0, 2, 4, 1], found.morf), ([1, 4, 2, 0, 3], found.lerf)):
            lost = [0.0, *((whole - logp(order[step:])) / len(answer.ids) for step in (1, 2, 4, 5))]
            expected = np.trapezoid(lost, [0, 0.2, 0.4, 0.8, 1.0])
            assert area == pytest.approx(float(expected), abs=1e-4)


def test_equal_scores_have_equal_ranks() -> None:
    assert tied_ranks([0.2, 0.5, 0.2, 0.9]) == [3, 2, 3, 1]
    assert tied_ranks([1.0, 1.0 + 1e-9, 0.5]) == [1, 1, 3]
    assert tied_ranks([7e-6, 0.3, -3e-5], TIED_NATS) == [2, 1, 2]
    assert first_ranked([3, 2, 3, 1]) == 4 and first_ranked([1, 1, 3]) is None
    assert correlation([1, 1, 1], [1, 2, 3]) is None and first_agrees([1, 1, 3], [1, 2, 3]) == 0
    assert first_agrees([1, 2, 3], [1, 1, 3]) is None
    expected = spearmanr([0.2, 0.5, 0.2, 0.9], [0.3, 0.1, 0.0, 2.0]).statistic
    assert correlation([3, 2, 3, 1], tied_ranks([0.3, 0.1, 0.0, 2.0])) == pytest.approx(expected)


def test_a_way_with_equal_scores_has_no_order(monkeypatch: pytest.MonkeyPatch, copier: Pretrained) -> None:
    silent = WayToRead(lambda answer: SourceScores(torch.full((answer.num_sources,), 0.1)), 1)
    monkeypatch.setattr("attncli.features.explanations.explanations.WAYS", {**WAYS, "rollout": silent})
    ways = ("rollout", "attnlrp")
    found = attncli.explanations(copier, "lamp=", LINES, split="line", answer="green", ways=ways)
    assert found.ranks("rollout") == [None] * 5 and found.ranks("attnlrp")[0] == 1
    row = found.ways[0]
    assert (row.way, row.first, row.first_agrees, row.spearman) == ("rollout", None, 0, None)
    assert found.has_single_source and [*_agreements(found, "source")][1:] == [
        "Several sources are tied for first in: rollout."
    ]


def test_random_orders_differ_between_prompts_of_equal_length(copier: Pretrained) -> None:
    prompt = {"sentence": "lamp=", "context": LINES, "answer": "green"}
    found = attncli.compare_explanations(copier, [prompt] * 3, split="line", ways="attnlrp")
    gaps = [row.gap for row in found.prompts if row.way == "random"]
    assert (
        len({*gaps}) > 1
        and len({round(row.gap or 0, 4) for row in found.prompts if row.way == "attnlrp"}) == 1
    )


HYBRID = ("rollout", "attention_gradient", "value_norms", "alti")


@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_layers_without_a_softmax_are_not_skipped_silently(tmp_path: Path) -> None:
    config = tiny_model("qwen3_next").config
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    text = "the cat walks\ndie katze sat\nit was tired"
    ways = ("all_heads", "gradient_input", *HYBRID)
    found = attncli.explanations(str(tmp_path), "it", text, split="line", answer="was", ways=ways)
    assert [row.way for row in found.ways] == ["all_heads", "gradient_input"]
    mean, *refused = found.notes
    assert mean.startswith("all_heads: the mean only covers layers with weights. ")
    assert [note.partition(":")[0] for note in refused] == [*HYBRID]
    reasons = {note.rpartition(": ")[2] for note in refused}
    assert reasons == {"some layers mix tokens without a softmax or do not mix them"}


def test_the_first_token_and_source_notes(copier: Pretrained) -> None:
    text = "lamp=green\nkey=brass\nlamp=green"
    ways = ("all_heads", "rollout")
    found = attncli.explanations(copier, "lamp=", text, split="line", answer="green", ways=ways)
    assert found.tokens is not None and (found.tokens[:, 0] > 0).all()
    assert found.notes == ("line1, line3 have the same text, so each can replace another that is removed.",)
    line = next(row for row in found.sources if row.source == 1)
    # A token that begins the text stands before the line: it counts for no source.
    rest = found.tokens[0, 1 : 1 + line.tokens].sum()
    assert float(line["all_heads"]) == pytest.approx(rest, rel=1e-5)


def prompts(folder: Path) -> Path:
    rows = [
        {"sentence": "lamp=", "context": LINES, "answer": "green", "id": "a", "right": "line4"},
        {"sentence": "key=", "context": LINES, "answer": "brass", "right": 1},
        {"sentence": "hat=", "context": "door=oak\nhat=wool\nkey=brass\nbed=iron", "answer": "wool"},
    ]
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_ways_are_compared_over_prompts(attn: Attn, tmp_path: Path) -> None:
    file = prompts(tmp_path)
    ended = attn(["source", str(file), "--compare", "--split", "line", "--runs", "16", "--format", "json"])
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    rows = {row["way"]: row for row in report["statistics"]["compared"]}
    assert rows.keys() == (WAYS.keys() - {"best_heads", "at2"}) | {
        "removal",
        "last",
        "first",
        "longest",
        "random",
    }
    gaps = [row["gap"] for row in report["statistics"]["compared"]]
    assert gaps == sorted(gaps, reverse=True)
    assert rows["removal"]["spearman"] == pytest.approx(1) and rows["removal"]["right"] == 1
    assert rows["attnlrp"]["right"] == 1 and rows["attnlrp"]["is_better"] in (0, 1)
    of_way = [row for row in report["statistics"]["prompts"] if row["way"] == "attnlrp"]
    assert [row["prompt"] for row in of_way] == ["a", "2", "3"]
    assert rows["attnlrp"]["gap"] == pytest.approx(np.mean([row["gap"] for row in of_way]))
    spread = np.std([row["gap"] for row in of_way], ddof=1) / 3**0.5 * 4.302653
    assert rows["attnlrp"]["gap_high"] == pytest.approx(rows["attnlrp"]["gap"] + spread, rel=1e-5)
    assert report["statistics"]["refused"][0]["refused"] == "best_heads"
    shown = attn(["source", str(file), "--compare", "--split", "line", "--runs", "16"])
    assert "AttnLRP" in shown.out and "(last first)" in shown.out and "order by position or" in shown.out
    assert "gap: MoRF - LeRF, nats per token; rank corr. and first agrees: with removal." in shown.out
    assert "on 3 prompts" in " ".join(shown.out.split())
    page = tmp_path / "page.html"
    line = ["source", str(file), "--compare", "--split", "line", "--runs", "2", "-o", str(page)]
    assert attn(line).code == 0
    assert re.search(r'"finding": ?"[^"]*order by position or length', page.read_text())
    many = attncli.compare_explanations(
        attncli.open_model(),
        [json.loads(line) for line in file.read_text().splitlines()],
        split="line",
        ways="attnlrp",
    )
    assert many.ways.where(lambda row: row.way == "attnlrp")[0].gap == pytest.approx(rows["attnlrp"]["gap"])


def test_errors_of_comparisons_are_one_line(attn: Attn, tmp_path: Path, copier: Pretrained) -> None:
    model = save_writer(tmp_path / "model", "BART")
    ended = attn(
        ["source", "<source>it was</source> <source>a</source> so", "--model", str(model), "--compare"]
    )
    assert ended.code == 2 and ended.err.count("\n") == 1
    assert "is not a decoder that predicts the next token: use --method removal" in ended.err
    conflict = attn(["source", "--compare", "--method", "removal"])
    assert conflict.code == 2 and "compare" in conflict.err
    with pytest.raises(UserError, match="ways: must be one of all_heads"):
        attncli.explanations(copier, "lamp=", LINES, split="line", answer="green", ways="lrp")
    with pytest.raises(UserError, match="sources: a ranking needs at least 3"):
        attncli.explanations(copier, "lamp=", "lamp=green", split="line", answer="green")
    with pytest.raises(UserError, match="right: must be one of line1 to line5"):
        attncli.compare_explanations(
            copier, [{"sentence": "lamp=", "context": LINES, "answer": "green", "right": 7}], split="line"
        )
    prompt = {"sentence": "lamp=", "context": LINES, "answer": ["green"]}
    with pytest.raises(UserError, match="prompts: 1: answer: must be a text"):
        attncli.compare_explanations(copier, [prompt], split="line")
    with pytest.raises(UserError, match="num_runs: must be at least 2"):
        attncli.explanations(copier, "lamp=", LINES, split="line", answer="green", num_runs=1)
    file = tmp_path / "p.jsonl"
    file.write_text('{"sentence": "a"}\n')  # whose parts are the sources
    ended = attn(["source", str(file), "--compare"])
    assert ended.code == 2 and "sources: a ranking needs at least 3" in ended.err
    file.write_text('{"context": "a"}\n')
    ended = attn(["source", str(file), "--compare"])
    assert ended.code == 2 and "sentence: is required" in ended.err


def test_the_model_is_left_unchanged(tmp_path: Path) -> None:
    save(tmp_path, "LlamaForCausalLM", PRE_NORM["LlamaForCausalLM"])
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path).train()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    parameters = {name: (value.requires_grad, value.clone()) for name, value in model.named_parameters()}
    implementation = model.config._attn_implementation
    calls: list[int] = []
    model.model.norm.register_forward_hook(lambda *_: calls.append(1))
    text = "the cat walks\ndie katze sat\nit was tired"
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        opened = attncli.open_model(model, tokenizer)
        within = attncli.explanations(opened, "it", text, split="line", answer="was", num_runs=8)
    outside = attncli.explanations(opened, "it", text, split="line", answer="was", num_runs=8)
    assert [dict(row) for row in within.sources] == [dict(row) for row in outside.sources]
    assert calls and model.training and model.config._attn_implementation == implementation
    assert not any(value.grad is not None for value in model.parameters())
    for name, value in model.named_parameters():
        assert value.requires_grad == parameters[name][0] and torch.equal(value, parameters[name][1])
    for module in model.modules():
        assert len(module._forward_hooks) == (module is model.model.norm)
