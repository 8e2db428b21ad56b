"""What ContextCite says of an answer of SmolLM2: tests/measure/context_cite_scores.json.

Its packages pin others, so that it runs in an environment of its own, with attncli on the path:

    pip install -c constraints.txt context-cite==0.0.4
    PYTHONPATH=. python tools/context_cite_scores.py SMOLLM2_FOLDER

Its own sentences come from data that nltk fetches; the sources here are lines.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from context_cite import ContextCiter
from context_cite.context_partitioner import BaseContextPartitioner
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "tests" / "measure" / "context_cite_scores.json"
NUM_RUNS, NUM_TOKENS = 24, 12
FACT = "Tobias left the violin under the old bridge."
QUESTION = "Where did Tobias leave the violin?"


class Lines(BaseContextPartitioner):  # type: ignore[misc] # context-cite has no types
    """Each line is a source."""

    def split_context(self) -> None:
        """There is nothing to do."""

    @property
    def num_sources(self) -> int:
        """How many lines there are."""
        return len(self.context.split("\n"))

    def get_source(self, index: int) -> str:
        """A line."""
        line: str = self.context.split("\n")[index]
        return line

    def get_context(self, mask: Any = None) -> str:
        """The lines of a mask."""
        lines = self.context.split("\n")
        return "\n".join(line for place, line in enumerate(lines) if mask is None or mask[place])


def scores(folder: str) -> dict[str, Any]:
    """The masks, ln p of each token of the answer for each of them, and the effects of the sources."""
    lines = (ROOT / "configs" / "alice.txt").read_text().splitlines()[:11]
    context = "\n".join([*lines[:6], FACT, *lines[6:]])
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    citer = ContextCiter(
        model.eval(),
        tokenizer,
        context,
        QUESTION,
        generate_kwargs={"max_new_tokens": NUM_TOKENS, "do_sample": False},
        num_ablations=NUM_RUNS,
        prompt_template="{context}\n\n{query}",
        partitioner=Lines(context),
    )
    effects = citer.get_attributions(verbose=False)
    return {
        "context_cite": version("context-cite"),
        "context": context,
        "question": QUESTION,
        "answer": tokenizer.decode(citer._response_ids),
        "ids": citer._response_ids,
        "masks": citer._masks.astype(int).tolist(),
        # log sigmoid of the logit of p is ln p
        "log_probabilities": (-np.logaddexp(0, -citer._logit_probs.astype(np.float64))).tolist(),
        "effects": effects.tolist(),
    }


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(scores(sys.argv[1]), indent=1) + "\n")
