"""What at2 0.0.1, the package of AT2's authors, makes of the same answers: features, logits, learned weights.

    python tools/at2_weights.py AT2_FOLDER FOLDER [--prompts FILE]

AT2_FOLDER is what `pip download at2==0.0.1 --no-deps` gives, unpacked: its own requirements (spacy, nltk,
datasets) are those of its texts and tables, which are not needed, and stand-ins take their places. FOLDER is
a model of the kind Llama. Prints the largest differences.
"""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import attncli
from attncli.features.explanations.explanations import ReadAnswer
from attncli.features.explanations.learned_weights import Ablations, ablations, fitted_weights
from attncli.models.answers import given_answer
from attncli.models.loading import in_use
from attncli.models.source_texts import read_sourced, split_text

NEVER_CALLED = {
    "datasets": ("Dataset",),
    "nltk": ("download",),
    "spacy": (),
    "spacy.lang": (),
    "spacy.lang.en": ("English",),
    "huggingface_hub": ("hf_hub_download",),
}


def imported(folder: str) -> Any:
    """at2's trainer, features and estimator; what only its texts need has a stand-in."""
    for name, parts in NEVER_CALLED.items():
        module = ModuleType(name)
        for part in parts:
            setattr(module, part, lambda *_: None)
        sys.modules.setdefault(name, module)
    sys.path.insert(0, folder)
    files = {"features": "features", "estimators": "score_estimators", "trainer": "trainer", "utils": "utils"}
    modules = {name: import_module(f"at2.attribution.{part}") for name, part in files.items()}
    return SimpleNamespace(**modules, tasks=import_module("at2.tasks.base"))


class Task:
    """An answer as at2 asks for it: its tokens, their hidden states, the ranges of sources and answer."""

    def __init__(self, model: Any, ids: Tensor, num_prompt: int, places: list[list[int]]) -> None:
        with torch.no_grad():
            states = model(ids[None], output_hidden_states=True).hidden_states
        self.model, self.ids = model, ids
        self.hidden_states = [state[:, :-1] for state in states]
        self.target_token_range = num_prompt, len(ids)
        self.source_token_ranges = [(of_source[0], of_source[-1] + 1) for of_source in places]

    def logits(self, at2: Any, masks: Tensor) -> Tensor:
        """The logits of the answer's probability by at2's formulas, tokens hidden as at2 hides them."""
        rows = []
        start, end = self.target_token_range
        for mask in masks:
            seen = torch.ones(1, len(self.ids), dtype=torch.long)
            for (first, stop), is_there in zip(self.source_token_ranges, mask, strict=True):
                seen[0, first:stop] = int(is_there)
            with torch.no_grad():
                logits = self.model(self.ids[None], attention_mask=seen).logits[:, start - 1 : end - 1]
            rows.append(at2.tasks.compute_logit_probs(logits, self.ids[None, start:end])[0])
        return torch.from_numpy(at2.utils.aggregate_logit_probs(torch.stack(rows)))


def features_of(at2: Any, task: Task, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Of each source, and of each set, as `LinearScoreEstimatorTrainer` computes them."""
    config = task.model.config
    extractor = at2.features.AttentionFeatureExtractor(
        config.num_hidden_layers, config.num_attention_heads, model_type="llama"
    )
    of_tokens = extractor(task, *task.target_token_range).mean(dim=0)
    of_sources = torch.stack([of_tokens[first:stop].sum(dim=0) for first, stop in task.source_token_ranges])
    return of_sources, (masks.float() * 2 - 1) @ of_sources


def trained(at2: Any, features: Tensor, outputs: Tensor) -> Tensor:
    """The weights that at2's trainer learns from these, all answers in each step, in float64."""
    count, num_masks, num_features = features.shape
    extractor = at2.features.AttentionFeatureExtractor(num_features, 1, model_type="llama")
    trainer = at2.trainer.LinearScoreEstimatorTrainer.__new__(at2.trainer.LinearScoreEstimatorTrainer)
    trainer.feature_extractor, trainer.num_masks, trainer.save_path = extractor, num_masks, None
    trainer.dataset = range(count)
    trainer._task_datas = {place: {"num_targets": 1} for place in range(count)}
    trainer.is_features_and_outputs_completed = lambda _: True
    trainer._sample_batch = lambda *_, **__: (features, outputs)
    estimator = at2.estimators.LinearScoreEstimator(extractor).double()
    learned: Tensor = trainer.train(estimator, device="cpu", batch_size=count).linear.weight.data[0]
    return learned


def compared(at2: Any, folder: str, prompts: list[dict[str, Any]], num_runs: int) -> None:
    """Prints the largest differences of features, logits and learned weights."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    ours: list[Ablations] = []
    theirs: list[tuple[Tensor, Tensor]] = []
    largest = {"features": 0.0, "logits": 0.0}
    with in_use(attncli.open_model(folder)) as pretrained:
        for prompt in prompts:
            reading = read_sourced(
                pretrained, split_text(prompt["context"], "sentence", question=prompt["sentence"])
            )
            answer = given_answer(pretrained, prompt["answer"], reading.prompt.ids)
            mine = ablations(ReadAnswer(pretrained, reading, answer, num_runs=num_runs))
            # The first token counts for no source here.
            places = [[place for place in of_source if place] for of_source in reading.places]
            ids = torch.cat([reading.prompt.ids, torch.tensor(answer.ids)])
            task = Task(model, ids, len(reading.prompt.ids), places)
            of_sources, of_sets = features_of(at2, task, mine.masks)
            task.source_token_ranges = [(of_source[0], of_source[-1] + 1) for of_source in reading.places]
            logits = task.logits(at2, mine.masks)
            largest["features"] = max(
                largest["features"], float((of_sources.mT - mine.attention).abs().max())
            )
            largest["logits"] = max(largest["logits"], float((logits - mine.logits).abs().max()))
            ours.append(mine)
            theirs.append((of_sets, logits))
    for name, difference in largest.items():
        print(f"{name}: at most {difference:.2g} apart")
    features, outputs = (torch.stack(parts).double() for parts in zip(*theirs, strict=True))
    learned = fitted_weights(
        torch.stack([of_answer.features() for of_answer in ours]),
        torch.stack([of_answer.logits for of_answer in ours]),
    )
    expected = trained(at2, features, outputs)
    apart, of_largest = (float(numbers.abs().max()) for numbers in (learned - expected, expected))
    print(f"weights: at most {apart:.2g} apart, of {of_largest:.2g}")


def main() -> None:
    """The first of the prompts, by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("at2")
    parser.add_argument("folder")
    parser.add_argument(
        "--prompts", default=str(Path(__file__).parents[1] / "docs/studies/paraphrases.jsonl")
    )
    parser.add_argument("--num", type=int, default=5)
    parser.add_argument("--runs", type=int, default=16)
    arguments = parser.parse_args()
    lines = Path(arguments.prompts).read_text().splitlines()[: arguments.num]
    compared(imported(arguments.at2), arguments.folder, [*map(json.loads, lines)], arguments.runs)


if __name__ == "__main__":
    main()
