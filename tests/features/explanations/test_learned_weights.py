"""AT2: attention, hidden sources and learned weights, against masks in transformers and a naive fit."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import attncli
from attncli.errors import UserError
from attncli.features.explanations.explanations import ReadAnswer
from attncli.features.explanations.learned_weights import ablations, fitted_weights, learned_weights
from attncli.models.answers import given_answer
from attncli.models.loading import in_use, open_model
from attncli.models.source_removals import losses_by_removal, sampled_masks
from attncli.models.source_texts import SourcedReading, read_sourced, split_text
from tests.conftest import Attn
from tests.features.why.test_why import PRE_NORM, save

LINES = "the cat walks\ndie katze sat on\nit was tired\nthe street was w23\nw20 w21 w22"
QUESTION, ANSWER = "because it", "was tired w30"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save(path, "LlamaForCausalLM", PRE_NORM["LlamaForCausalLM"])
    return path


class Masked:
    """A run of transformers: the attention to sources, and the probability of the answer under a mask."""

    def __init__(self, folder: Path, reading: SourcedReading, answer: list[int]) -> None:
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager"
        ).eval()
        self.places, self.count = reading.places, len(answer)
        self.ids = torch.cat([reading.prompt.ids, torch.tensor(answer)]).unsqueeze(0)

    @torch.no_grad()
    def log_probability(self, mask: Tensor, vectors: Tensor | None = None) -> float:
        seen = torch.ones_like(self.ids)
        for source, places in enumerate(self.places):
            seen[0, list(places)] = int(mask[source])
        given = {"input_ids": self.ids} if vectors is None else {"inputs_embeds": vectors}
        rows = self.model(**given, attention_mask=seen).logits[0, -self.count - 1 : -1].double()
        return float(rows.log_softmax(-1).gather(-1, self.ids[0, -self.count :, None]).sum())

    @torch.no_grad()
    def attention(self) -> Tensor:
        weights = torch.cat(self.model(self.ids, output_attentions=True).attentions)[0:]
        rows = weights.reshape(-1, *weights.shape[-2:])[:, -self.count - 1 : -1].double().mean(dim=1)
        sources = [[place for place in places if place] for places in self.places]
        return torch.stack([rows[:, places].sum(dim=-1) for places in sources], dim=-1)


def test_hidden_sources_match_attention_masks(folder: Path) -> None:
    with in_use(open_model(folder)) as pretrained:
        reading = read_sourced(pretrained, split_text(LINES, "line", question=QUESTION))
        answer = given_answer(pretrained, ANSWER, reading.prompt.ids)
        found = ablations(ReadAnswer(pretrained, reading, answer, num_runs=13, seed=3))
        losses = losses_by_removal(pretrained, reading, answer)
    naive = Masked(folder, reading, answer.ids)
    torch.testing.assert_close(found.attention, naive.attention(), atol=1e-6, rtol=1e-4)
    assert torch.equal(found.masks, sampled_masks(13, 5, 3))
    for mask, logit in zip(found.masks, found.logits.tolist(), strict=True):
        p = torch.tensor(naive.log_probability(mask), dtype=torch.float64)
        assert logit == pytest.approx(float(p - torch.log(-torch.expm1(p))), abs=1e-4)
    every = torch.ones(5, dtype=torch.bool)
    whole, embeddings = naive.log_probability(every), naive.model.get_input_embeddings()
    for source, places in enumerate(reading.places):
        one_gone = every.clone()
        one_gone[source] = False
        assert float(losses["hidden"][source]) == pytest.approx(
            whole - naive.log_probability(one_gone), abs=1e-4
        )
        vectors = embeddings(naive.ids).detach().clone()
        vectors[0, list(places)] = embeddings.weight.detach().mean(dim=0)
        assert float(losses["mean"][source]) == pytest.approx(
            whole - naive.log_probability(every, vectors), abs=1e-4
        )
    assert (losses["taken_out"] - losses["hidden"]).abs().max() > 1e-3


STEPS = 150


def test_the_fit_matches_a_linear_layer_and_corrcoef(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncli.features.explanations.learned_weights.STEPS", STEPS)
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(3, 11, 7, generator=generator, dtype=torch.float64)
    logits = features @ torch.randn(7, generator=generator, dtype=torch.float64)
    logits = logits + torch.randn(3, 11, generator=generator, dtype=torch.float64)
    layer = torch.nn.Linear(7, 1, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(layer.weight, 1 / 7)
    adam = torch.optim.Adam(layer.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=STEPS)
    for _ in range(STEPS):
        adam.zero_grad()
        scores = layer(features)[..., 0]
        pairs = [torch.stack(pair) for pair in zip(scores, logits, strict=True)]
        loss = -sum(torch.corrcoef(pair)[0, 1] for pair in pairs) / len(pairs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        adam.step()
        schedule.step()
    expected = layer.weight.detach()[0]
    torch.testing.assert_close(
        fitted_weights(features, logits), expected / expected.abs().sum(), atol=1e-6, rtol=1e-4
    )


def test_answers_that_need_no_source_are_refused(folder: Path) -> None:
    with in_use(open_model(folder)) as pretrained:
        reading = read_sourced(pretrained, split_text(LINES, "line", question=QUESTION))
        read = ReadAnswer(
            pretrained, reading, given_answer(pretrained, ANSWER, reading.prompt.ids), num_runs=3
        )
        same = ablations(read)._replace(logits=torch.ones(3, dtype=torch.float64))
    with pytest.raises(UserError, match="prompts: no answer depends on its sources"):
        learned_weights(read.weights.heads, [same])


def prompts(folder: Path) -> Path:
    lines = LINES.splitlines()
    rows = [
        {"sentence": QUESTION, "context": "\n".join(lines[start:] + lines[:start]), "answer": ANSWER}
        for start in range(3)
    ]
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_weights_are_learned_cached_and_compared(
    attn: Attn, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("attncli.features.explanations.learned_weights.STEPS", STEPS)
    file = prompts(tmp_path)
    settings = ["--split", "line", "--runs", "9", "--model", str(folder)]
    ended = attn(["source", str(file), "--learn", *settings, "--format", "json"])
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    rows = report["statistics"]["heads"]
    assert sum(abs(row["weight"]) for row in rows) == pytest.approx(1)
    assert all(before["weight"] >= after["weight"] for before, after in pairwise(rows))
    fit = report["statistics"]["learned"]
    assert fit["prompts"] == 3 and fit["correlation"] > fit["correlation_of_mean"]
    screen = attn(["source", str(file), "--learn", *settings])
    assert "Correlation of the scores with these answers' logits" in screen.out and "Saved in" in screen.out
    found = attncli.learned_head_weights(str(folder), str(file), split="line", num_runs=9)
    assert found.by_name == pytest.approx({f"{row['layer']}:{row['head']}": row["weight"] for row in rows})
    compared = attn(["source", str(file), "--compare", *settings, "--format", "json"])
    assert compared.code == 0, compared.err
    assert "at2" in {row["way"] for row in json.loads(compared.out)["statistics"]["compared"]}
    text = {"sources": LINES, "split": "line", "answer": ANSWER, "ways": ("at2", "all_heads")}
    explained = attncli.explanations(str(folder), QUESTION, **text, head_weights=found)
    with in_use(open_model(folder)) as pretrained:
        reading = read_sourced(pretrained, split_text(LINES, "line", question=QUESTION))
        read = ReadAnswer(pretrained, reading, given_answer(pretrained, ANSWER, reading.prompt.ids))
    weights = torch.tensor([found.by_name[f"{layer}:{head}"] for _, layer, head in read.weights.heads])
    scores = {row.source: row["at2"] for row in explained.sources}
    assert [scores[place] for place in range(1, 6)] == pytest.approx(
        (weights.double() @ read.attention).tolist()
    )
    (kept,) = tmp_path.glob("attncli/head-weights/*.json")
    kept.write_text('{"weights": {"a": 1.0}}')
    damaged = attn(["source", str(file), "--compare", *settings])
    assert (
        damaged.code == 2 and "is damaged: run attn source PROMPTS --learn to rewrite the file" in damaged.err
    )


def test_errors_of_learning_are_one_line(attn: Attn, folder: Path) -> None:
    for typed, message in (
        (["source", "--learn"], "--learn: needs --file"),
        (["source", "README.md", "--learn"], "must be a file of prompts, JSON Lines or CSV (got README.md)"),
        (["source", "a.jsonl", "--learn"], "no such file: a.jsonl"),
        (["source", "--learn", "--compare"], "cannot be combined with --learn"),
    ):
        ended = attn(typed)
        assert ended.code == 2 and message in re.sub(r"\s+", " ", ended.err), ended.err
    text = {"sources": LINES, "split": "line", "answer": ANSWER, "ways": "at2"}
    with pytest.raises(UserError, match=r"at2: .* has no learned head weights"):
        attncli.explanations(str(folder), QUESTION, **text)
    with pytest.raises(UserError, match=r"head_weights: .* has no head 7:1"):
        attncli.explanations(str(folder), QUESTION, **text, head_weights={"7:1": 1.0})
    with pytest.raises(UserError, match="head_weights: must have a number for each head"):
        attncli.explanations(str(folder), QUESTION, **text, head_weights={"0:1": "a"})
