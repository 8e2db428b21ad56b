"""Calls from Python compared with the command line, and loaded models compared with their folders."""

import copy
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import jedi
import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import attncli
from attncli.settings import SPECS
from attncli.settings.heads import HeadsSpec
from tests.conftest import Attn, in_turn
from tests.model_folders import save_model, save_tokenizer
from tools.tiny_architectures import ARCHITECTURES

SHIPPED = str(HeadsSpec.default_model)
SENTENCE = "the cat sat because it was tired"


def as_json(report: attncli.Report) -> Any:
    return json.loads(json.dumps(report.to_data()))


def test_settings_are_keyword_arguments(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three")
    ended = attn(
        [
            "multihead",
            "--file",
            f"{tmp_path}/text.txt",
            "--embed-dim",
            "6",
            "--num-heads",
            "3",
            "--format",
            "json",
        ]
    )
    report = attncli.run(
        "multihead", file=tmp_path / "text.txt", embed_dim=np.int64(6), num_heads=3, sentence=None
    )
    assert as_json(report) == json.loads(ended.out)


def test_one_exception_holds_every_mistake() -> None:
    with pytest.raises(attncli.UserError) as raised:
        attncli.run("self", head_dim=0, causl=True, batch_size=2)
    assert str(raised.value).splitlines() == [
        "causl: unknown key (did you mean 'causal'?)",
        "head_dim: must be greater than 0 (got 0)",
        "batch_size: needs num_tokens",
    ]
    with pytest.raises(attncli.UserError, match=r"^experiment: got slef \(did you mean 'self'\?\): "):
        attncli.run("slef")
    with pytest.raises(attncli.UserError, match=r"^embedding: previous needs an earlier step"):
        attncli.run("self", embedding="previous")


def test_a_list_may_be_one_item_or_a_string_with_commas() -> None:
    listed = attncli.run("heads", sentence="the cat", **{"from": ["0", "2"]}, to=["t"], ablate=["1:0"])
    assert as_json(attncli.run("heads", sentence="the cat", from_="0,2", to="t", ablate="1:0")) == as_json(
        listed
    )
    assert attncli.run("scale-demo", factors=8).spec["factors"] == [8]
    with pytest.raises(attncli.UserError, match=r"^from_: needs to"):
        attncli.run("heads", from_="it")


def test_an_unknown_name_of_a_report_raises_the_known_names() -> None:
    report = attncli.run("self")
    asked: list[tuple[Callable[[], object], str]] = [
        (
            lambda: report.tensors["weigths"],
            "no tensor weigths (did you mean 'weights'?); known: input, scores, ",
        ),
        (lambda: report.table("heads"), "no table heads; known: none"),
        (lambda: report.statistics["score"], "no statistic score (did you mean 'scores'?); known: "),
        (
            lambda: attncli.run("heads").table("intervals"),
            "no table intervals; known: heads, patterns, strongest",
        ),
        (lambda: report.numbers("score"), "no numbers score (did you mean 'scores'?); known: scores, "),
        (lambda: report.numbers("scores")["spread"], "no number spread; known: mean, variance, min, max"),
        (lambda: report.tensors_of("columns"), "no group of tensors columns; known: rows, keys"),
        (
            lambda: report.tensors_of("rows")["entropi"],
            "no tensor entropi (did you mean 'entropy'?); known: ",
        ),
    ]
    for ask, line in asked:
        with pytest.raises(KeyError) as raised:
            ask()
        assert str(raised.value).startswith(line) and isinstance(raised.value, attncli.UserError)
    assert report.tensors.get("weigths") is None and pickle.loads(pickle.dumps(report)).tensors.keys()


def test_importing_attncli_imports_no_large_package() -> None:
    script = (
        "import sys, attncli; assert not {'torch', 'numpy', 'pydantic', 'rich'} & sys.modules.keys()\n"
        "assert {'run', 'heads'} <= set(dir(attncli))\n"
        "try:\n    attncli.run('self', head_dim=0)\nexcept attncli.UserError:\n    pass\n"
        "assert 'torch' not in sys.modules\n"
        "import gc; attncli.run('self'); assert gc.isenabled() and gc.get_freeze_count() == 0"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LOOKS: dict[str, Callable[[PreTrainedModel | str, Any], attncli.Report]] = {
    "heads": lambda model, tokenizer: attncli.run(
        "heads", model=model, tokenizer=tokenizer, sentence=SENTENCE, weighted=True
    ),
    "self": lambda model, tokenizer: attncli.run(
        "self", model=model, tokenizer=tokenizer, sentence=SENTENCE, layer=1, head=1, explain=True
    ),
    "multihead": lambda model, tokenizer: attncli.run(
        "multihead", model=model, tokenizer=tokenizer, sentence=SENTENCE, layer=1
    ),
}


@pytest.mark.parametrize(("look", "load"), in_turn(LOOKS, [AutoModel, AutoModelForCausalLM]))
def test_a_loaded_model_gives_the_report_of_its_folder(look: str, load: Any) -> None:
    model = load.from_pretrained(SHIPPED, dtype=torch.float32)
    loaded = LOOKS[look](model, AutoTokenizer.from_pretrained(SHIPPED))
    assert as_json(loaded) == as_json(LOOKS[look](SHIPPED, None))


@pytest.mark.parametrize("architecture", ["Llama", "BERT", "T5"])
def test_a_model_built_in_memory_equals_the_command_on_its_folder(
    architecture: str, attn: Attn, tmp_path: Path
) -> None:
    model = ARCHITECTURES[architecture].build()
    if model.config.is_encoder_decoder:
        model.config.decoder_start_token_id = 0
    save_tokenizer(tmp_path)
    report = attncli.heads(model, SENTENCE, tokenizer=AutoTokenizer.from_pretrained(tmp_path), maps="none")
    model.save_pretrained(tmp_path)
    command = json.loads(
        attn(["heads", "--model", str(tmp_path), "--sentence", SENTENCE, "--format", "json"]).out
    )
    data = as_json(report)
    assert data["spec"].pop("model") == type(model).__name__
    assert command["spec"].pop("model") == str(tmp_path)
    for key in ("notes", "about"):
        said = json.dumps(command.pop(key)).replace(tmp_path.name, type(model).__name__)
        assert json.dumps(data.pop(key)) == said
    assert data == command


def test_a_loaded_model_reads_the_probe_by_default() -> None:
    model, tokenizer = AutoModel.from_pretrained(SHIPPED), AutoTokenizer.from_pretrained(SHIPPED)
    assert (
        as_json(attncli.heads(model, tokenizer=tokenizer))["statistics"]
        == as_json(attncli.run("heads"))["statistics"]
    )


def test_unsuitable_models_are_refused() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    model = AutoModel.from_pretrained(SHIPPED)
    cases: list[tuple[str, dict[str, Any], list[str]]] = [
        (
            "self",
            {"model": torch.nn.Linear(2, 2), "tokenizer": tokenizer},
            ["model: must be the name of a folder or a transformers PreTrainedModel (got Linear)"],
        ),
        (
            "self",
            {"model": model},
            [
                "tokenizer: must be the loaded model's transformers tokenizer (got none); without it, use "
                'token ids instead of text: lines of JSON such as {"ids": [12, 7, 13]} in `texts` or `file`'
            ],
        ),
        (
            "self",
            {"model": model, "tokenizer": tokenizer, "device": "cpu", "embed_dim": 8},
            [
                "device: cannot be changed for a model that is already loaded: omit this setting",
                "embed_dim: cannot be combined with model, which has its own",
            ],
        ),
        (
            "norm",
            {"model": model, "tokenizer": tokenizer},
            ["model: unknown key for norm; known: " + ", ".join(SPECS["norm"].model_fields)],
        ),
    ]
    for experiment, settings, lines in cases:
        with pytest.raises(attncli.UserError) as raised:
            attncli.run(experiment, **settings)
        assert list(raised.value.lines) == lines


def test_the_folder_of_a_loaded_model_is_not_read_again(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    model, tokenizer = AutoModel.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert len(attncli.heads(model, SENTENCE, tokenizer=tokenizer).table("heads")) > 0


def test_commands_run_on_an_opened_model() -> None:
    opened = attncli.open_model(SHIPPED)
    assert repr(opened) == "<NotebookModel: tiny-induction, 2 layers, cpu>"
    report, expected = opened.heads(SENTENCE), attncli.run("heads", model=SHIPPED, sentence=SENTENCE)
    assert as_json(report)["statistics"] == as_json(expected)["statistics"]
    assert "<iframe " in report._repr_html_()
    loaded, tokenizer = (kind.from_pretrained(SHIPPED) for kind in (AutoModelForCausalLM, AutoTokenizer))
    lent = attncli.open_model(loaded, tokenizer).run("self", sentence=SENTENCE, layer=1, head=2)
    of_folder = attncli.run("self", model=SHIPPED, sentence=SENTENCE, layer=1, head=2)
    np.testing.assert_array_equal(lent.tensors["weights"].values, of_folder.tensors["weights"].values)
    with pytest.raises(attncli.UserError, match="tokenizer: a model from open_model already has a tokenizer"):
        attncli.run("heads", model=opened, tokenizer=tokenizer, sentence=SENTENCE)


def test_an_open_model_has_methods_and_lists_public_names() -> None:
    """A notebook completes names with jedi. The error for a command that is not a function names `run`."""
    model, text = attncli.open_model(), "to be or not to b"
    assert type(model.heads(text)) is attncli.NotebookReport
    for name in ("why", "ablate", "head_edges", "survey"):
        function = getattr(attncli, name)
        assert getattr(model, name)(text) == function(model, text)
        parameters = [*signature(function).parameters.values()]
        assert [*signature(getattr(model, name)).parameters.values()] == parameters[1:]
        assert getattr(model, name).__doc__ == function.__doc__
    assert model.why(text, answer="e").head == attncli.why(model, text, answer="e").head
    assert model.read_text(text).text.tokens == attncli.read_text(model, text).text.tokens
    for value, least, without in (
        (
            model,
            {"why", "cache", "answer_sources", "run", "name", "whole"},
            {"special_ids", "open_model", "Watch"},
        ),
        (model.heads(text), {"table"}, {"pairs"}),
    ):
        completed = {each.name for each in jedi.Interpreter("x.", [{"x": value}]).complete()}
        listed = {name for name in dir(value) if not name.startswith("_")}
        assert listed == {name for name in completed if not name.startswith("_")} and least <= listed
        assert not without & listed and len(listed) < 50
        assert all(hasattr(value, name) for name in listed)
    for name in ("circuit", "self"):
        way = f'NotebookModel has no attribute {name!r}: use model.run("{name}", ...)'
        with pytest.raises(AttributeError, match=f"{re.escape(way)}$"):
            getattr(model, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'norm'$"):
        getattr(model, "norm")  # noqa: B009
    assert copy.copy(model).name == model.name
