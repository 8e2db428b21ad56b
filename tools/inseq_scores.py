"""Two ways as inseq 0.7.1 has them, on the same answer: gradient x input, and the mean of all heads.

    python tools/inseq_scores.py FOLDER

In an environment with inseq (`pip install --no-deps inseq captum typeguard==2.13.3 treescope` beside attn's
own packages). FOLDER is a decoder. Prints the largest differences, over the tokens of the prompt.
"""

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import attncli
from attncli.features.explanations.explanations import ReadAnswer
from attncli.models.answers import given_answer
from attncli.models.loading import in_use
from attncli.models.source_texts import read_sourced, split_text

PROMPTS = Path(__file__).parents[1] / "docs/studies/paraphrases.jsonl"


def by_inseq(inseq: Any, folder: str, way: str, prompt: str, answer: str, **asked: Any) -> Tensor:
    """What inseq gives each token of the text for each token of the answer."""
    model = inseq.load_model(folder, way, device="cpu")
    result = model.attribute(
        input_texts=prompt, generated_texts=prompt + answer, show_progress=False, **asked
    )
    given: Tensor = result.sequence_attributions[0].target_attributions
    return given


def main() -> None:
    """The first paraphrase."""
    inseq = import_module("inseq")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    folder = parser.parse_args().folder
    prompt = json.loads(PROMPTS.read_text().splitlines()[0])
    with in_use(attncli.open_model(folder)) as pretrained:
        sourced = split_text(prompt["context"], "sentence", question=prompt["sentence"])
        reading = read_sourced(pretrained, sourced)
        answer = given_answer(pretrained, prompt["answer"], reading.prompt.ids)
        read = ReadAnswer(pretrained, reading, answer)
        count = len(reading.prompt.ids)
        text, written = pretrained.text_of(reading.prompt.ids.tolist()), pretrained.text_of(answer.ids)
        ours = {"input_x_gradient": read.gradients.gradient_input, "attention": read.weights.mean.sum(dim=0)}
    gradient = by_inseq(inseq, folder, "input_x_gradient", text, written, attributed_fn="logit")
    attention = by_inseq(inseq, folder, "attention", text, written)
    theirs = {
        "input_x_gradient": gradient[:count].sum(dim=-1).nansum(dim=1),
        "attention": attention[:count].mean(dim=(2, 3)).nansum(dim=1),
    }
    for name, numbers in theirs.items():
        apart, largest = (numbers - ours[name]).abs().max(), ours[name].abs().max()
        print(f"{name}: at most {float(apart):.2g} apart, of {float(largest):.2g}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
