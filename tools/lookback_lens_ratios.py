"""What Lookback Lens says of answers of SmolLM2: tests/measure/lookback_lens_ratios.json.

Its own program runs unchanged from a checkout (github.com/voidism/Lookback-Lens at f2846ef21dee, MIT, with a
transformers 4.32.0 that it changed, Apache 2.0), in an environment of its own:

    pip install torch==2.13.0 "numpy<2" tokenizers==0.13.3 "huggingface_hub<0.26" tiktoken editdistance \
        scikit-learn safetensors regex requests pyyaml filelock tqdm packaging jinja2
    pip install --no-deps LOOKBACK_LENS/transformers-4.32.0
    python tools/lookback_lens_ratios.py LOOKBACK_LENS SMOLLM2_FOLDER

Only what opens the model is adapted: that transformers reads no rope_theta, and merges as texts. The weights
are float64, so that rounding stays behind the digits that are written.
"""

import json
import runpy
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

OUTPUT = Path(__file__).parents[1] / "tests" / "measure" / "lookback_lens_ratios.json"
COMMIT = "f2846ef21deecc4c016fc44a1820373e3f255e96"
NUM_TOKENS = 11
BY_TOKEN = 2
"""Of so many answers the ratios of each token are written, of the others their means alone."""
DIGITS = 9
QUESTIONS = (
    (
        "where did tobias leave the violin",
        "under the old bridge",
        "Tobias left the violin under the old bridge and walked home in the rain.",
        "The baker closes at noon on Saturdays.",
        "Ferries to the island run twice a day in winter.",
    ),
    (
        "what colour is the door of the post office",
        "green",
        "The post office has a green door and a brass letter slot.",
        "Our library lends out tools, too.",
        "A fox was seen near the railway station on Monday.",
    ),
    (
        "who repaired the clock in the town hall",
        "Marta Lindqvist",
        "In 1987 Marta Lindqvist repaired the clock in the town hall without asking for money.",
        "The town hall was painted again last spring.",
        "Snow fell on the market square until midnight.",
    ),
    (
        "how many eggs does the recipe need",
        "three",
        "For the sponge whisk three eggs with the sugar until pale.",
        "Preheat the oven and butter the tin.",
        "Lemons keep for weeks in a cool cellar.",
    ),
    (
        "when does the night train to Vienna leave",
        "at 22:41",
        "The night train to Vienna leaves at 22:41 from platform nine.",
        "Bicycles travel free on regional trains.",
        "The dining car serves soup, dumplings and coffee.",
    ),
    (
        "which bird nests in the chimney",
        "a jackdaw",
        "A jackdaw has nested in the chimney for four years now.",
        "The roof needs new tiles on its north side.",
        "Sparrows quarrel in the hedge every morning.",
    ),
    (
        "what broke in the server room",
        "the second power supply",
        "At 03:12 the second power supply in the server room broke, and the alarm went off.",
        "The backup finished without errors.",
        "Two new racks will arrive in October.",
    ),
    (
        "what is the capital of Norland",
        "Hestvik",
        "Hestvik, the capital of Norland, lies at the mouth of a cold river.",
        "Norland exports timber and dried fish.",
        "Its parliament meets only in summer.",
    ),
    (
        "who wrote the letter",
        "the gardener",
        "It turned out that the gardener had written the letter and signed it with another name.",
        "The envelope was blue and smelled of tobacco.",
        "Nobody had heard the dog that evening.",
    ),
    (
        "why was the match called off",
        "the pitch was flooded",
        "The match was called off because the pitch was flooded after the storm.",
        "Tickets stay valid for the next home game.",
        "The goalkeeper signed for two more seasons.",
    ),
)
"""Question, answer, the document that has it, and two that have not."""


def write_questions(file: Path) -> None:
    """As step01_extract_attns.py reads NQ."""
    with file.open("w") as lines:
        for question, answer, document, *others in QUESTIONS:
            contexts = [{"text": document, "hasanswer": True}]
            contexts += [{"text": other, "hasanswer": False} for other in others]
            lines.write(json.dumps({"question": question, "answers": [answer], "ctxs": contexts}) + "\n")


def write_older_model(smollm2: Path, folder: Path) -> float:
    """The same weights and tokenizer as transformers 4.32 and tokenizers 0.13 read them; the base of RoPE."""
    config = json.loads((smollm2 / "config.json").read_text())
    base: float = config.pop("rope_parameters")["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
    (folder / "model.safetensors").symlink_to((smollm2 / "model.safetensors").resolve())
    tokenizer = json.loads((smollm2 / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    special = json.loads((smollm2 / "tokenizer_config.json").read_text())
    special["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return base


def extracted(sources: Path, smollm2: Path) -> tuple[list[dict[str, Any]], Any]:
    """What step01_extract_attns.py saves of each question, greedily answered, and its tokenizer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = write_older_model(smollm2, folder)
        llama = import_module("transformers.models.llama.modeling_llama")
        torch.set_default_dtype(torch.float64)
        llama.LlamaRotaryEmbedding.__init__.__defaults__ = (2048, base, None)
        questions, ratios = folder / "nq-open.jsonl", folder / "ratios.pt"
        write_questions(questions)
        sys.path.insert(0, str(sources))
        flags = {"model-name": folder, "data-path": questions, "output-path": ratios}
        sys.argv = ["step01_extract_attns.py", "--device=cpu", f"--max-new-tokens={NUM_TOKENS}"]
        sys.argv += [f"--{key}={value}" for key, value in flags.items()]
        runpy.run_path(str(sources / sys.argv[0]), run_name="__main__")
        tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(folder)
        return torch.load(ratios, weights_only=False), tokenizer


def rounded(values: Any) -> Any:
    """Nested lists of numbers with nine digits behind the point."""
    if isinstance(values, list):
        return [rounded(value) for value in values]
    return round(values, DIGITS)


def main(sources: Path, smollm2: Path) -> None:
    """The features of step03_lookback_lens.py by answer, layer and head."""
    saved, tokenizer = extracted(sources, smollm2)
    step03 = import_module("step03_lookback_lens")
    # (layer, head, token) each; the features are their means over the tokens
    features, *_ = step03.extract_time_series_features([answer["lookback_ratio"] for answer in saved])
    num_layers, num_heads, _ = saved[0]["lookback_ratio"].shape
    # As step01_extract_attns.py has it: for a Llama the token that is left out is <s>.
    extra_prompt_length = len(tokenizer("\n#Answer#:")["input_ids"]) - 1
    answers = []
    for number, (answer, mean) in enumerate(zip(saved, features, strict=True)):
        ids = tokenizer(answer["full_input_text"])["input_ids"]
        row = {
            "text": answer["full_input_text"],
            "completion": answer["model_completion"],
            "ids": ids,
            "completion_ids": answer["model_completion_ids"].tolist(),
            "context_length": len(ids) - extra_prompt_length,
            "mean": rounded(mean.reshape(num_layers, num_heads).tolist()),
        }
        if number < BY_TOKEN:
            row["by_token"] = rounded(answer["lookback_ratio"].tolist())
        answers.append(row)
    about = {"source": "github.com/voidism/Lookback-Lens", "commit": COMMIT}
    OUTPUT.write_text(json.dumps(about | {"answers": answers}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
