"""Modules that help, usage errors and toy experiments do not import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attncli.core.runtime import versions
from tests.conftest import Attn
from tests.running import ROOT

HEAVY = {"torch", "transformers", "matplotlib", "textual"}
TORCH_FREE_COMMANDS: list[tuple[list[str], int]] = [
    ([], 0),
    (["--help"], 0),
    (["--version"], 0),
    (["self", "--show-config"], 0),
    (["info"], 0),
    (["info", "config-schema"], 0),
    (["self", "--nonsense"], 2),
    (["self", "--head-dim", "1", "--head-dim", "2"], 2),
    (["self", "--sentence", "..."], 2),
    (["self", "--file", "/nonexistent"], 2),
    (["self", "--config", "/nonexistent"], 2),
    (["self", "--num-tokens", "100000000000"], 2),
    (["lesson"], 0),
    (["lesson", "1"], 0),
    (["show", "/nonexistent"], 2),
    (["show", "/nonexistent.npz"], 2),
    (["self", "-o", "/nonexistent/x.png"], 2),
    (["batch", "configs/sweep.yaml", "--dry-run"], 0),
    (["batch", "configs/sweep.yaml", "--file", "README.md", "-o", "/tmp/none.db", "--dry-run"], 0),
    (["batch", "configs/sweep.yaml", "--set", "embed_dim=3"], 2),
    (["batch", "configs/sweep.yaml", "--expect", "nonsense"], 2),
    (["batch", "configs/sweep.yaml", "-o", "README.md.db", "--format", "csv"], 2),
    (["results", "README.md"], 2),
    (["results", "README.md", "--tidy", "-o", "/tmp/tidy.csv"], 2),
    (["watch", "no-such-run-*"], 2),
    (["heads", "--help"], 0),
    (["heads", "--model", str(ROOT / "configs")], 2),
    (["heads", "--sort", "nonsense"], 2),
    (["cache", "--budget", "1", "abc"], 2),
    (["heads", "--texts", "tests/features/cache/kvpress_kept_keys.json"], 2),
    (["serve", "--port", "70000"], 2),
    (["diff", "self", "nonsense"], 2),
    (["diff", "/nonexistent.json", "self"], 2),
    (["diff", "self", "--set", "embed_dim=0"], 2),
    (["browse"], 2),
    (["self", "--model", str(ROOT / "configs"), "--embed-dim", "8"], 2),
    (["self", "--embedding", "previous"], 2),
    (
        ["self", "--embedding", "attncli/data/lessons/files/made-up.50d.txt", "--sentence", "unheard of"],
        2,
    ),
]
CHECK = f"""
import sys
from attncli.cli import run
sys.stdout = sys.stderr = open({os.devnull!r}, "w")
for arguments, code in {TORCH_FREE_COMMANDS}:
    ended = run(arguments)
    imported = {HEAVY} & sys.modules.keys()
    if ended != code or imported:
        sys.stderr = sys.__stderr__
        sys.exit(f"{{arguments}} ended with {{ended}}, imported: {{imported}}")
"""


def test_torch_stays_unimported() -> None:
    """All commands run in one process, because an import by any of them is an error."""
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "late"),
    [(["--version"], {"numpy", "pydantic"}), (["heads", "--help"], {"numpy", "sqlite3"})],
    ids=["version", "help"],
)
def test_help_and_version_import_little(arguments: list[str], late: set[str]) -> None:
    script = (
        f"import sys\nfrom attncli.cli import run\nrun({arguments})\nassert not {late} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_completion_leaves_torch_unimported() -> None:
    script = (
        "import sys\n"
        "from attncli.cli import run\n"
        "try:\n    run([])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    words = {"_ATTN_COMPLETE": "complete_bash", "COMP_WORDS": "attn why --head 1:", "COMP_CWORD": "3"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | words)
    assert done.stdout.split() == [f"1:{head}" for head in range(4)], done.stderr


def test_toy_experiments_need_no_transformers() -> None:
    script = (
        "import sys\n"
        "sys.modules['transformers'] = None\n"
        "from attncli.cli import run\n"
        "assert [run([name, '--format', 'json']) for name in ('self', 'multihead', 'cross')] == [0, 0, 0]\n"
        "assert run(['heads']) == 2\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ['--model: needs: pip install "attncli[models]"']


@pytest.mark.nightly
def test_a_stored_survey_is_shown_without_transformers(attn: Attn, tmp_path: Path) -> None:
    """Nor does unpickling a worker's result import torch."""
    texts, store = tmp_path / "texts.txt", str(tmp_path / "kept.db")
    texts.write_text("the cat saw the cat\nthe dog saw the dog\n")
    assert not attn(["heads", "--texts", str(texts), "-o", store]).code
    script = (
        "import sys\n"
        "sys.modules['transformers'] = None\n"
        "from attncli.cli import run\n"
        f"assert run(['heads', '--store', {store!r}]) == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and "2 texts" in done.stdout, done.stderr
    assert all(type(version) is str for version in versions().values())
