"""The arrows between the rooms, from the source's own import statements, and what stays unimported."""

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "attncli"

LEAVES = {"errors", "report", "memory", "plain_text", "file_digests"}
# What each room may import of ours. A package's __init__ holds no more than its version.
ARROWS = {
    "cli": {"commands", "settings", "core", *LEAVES},
    "api": {"settings", "runs", "models", "views", *LEAVES},
    "library": {"measure", "models", "core", *LEAVES} - {"report"},
    "commands": {
        *("cli", "runs", "views", "settings", "toys", "measure", "models", "core"),
        *("saved", "arrays", "report_parts", *LEAVES),
    },
    "runs": {"settings", "toys", "measure", "models", "core", "report_parts", *LEAVES},
    "views": {"settings", "core", *LEAVES},
    "toys": {"settings", "core", "report_parts", *LEAVES},
    "measure": {"models", "core", *LEAVES} - {"report"},
    "models": {"core", *LEAVES} - {"report"},
    "settings": {"models", "core", *LEAVES},
    "core": set(),
    "report_parts": {"settings", "core", "report"},
    "saved": {"arrays", "settings", *LEAVES},
    "arrays": {"errors", "report"},
    "file_digests": {"errors"},
    "memory": {"errors"},
    "plain_text": set(),
    "errors": set(),
    "report": set(),
}
LIBRARY = ("core", "models", "measure", "library")
TORCH_FREE = ("api", "cli", "settings", "saved", "arrays", "views", *LEAVES)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def modules_imported_at_once(path: Path) -> set[str]:
    """Those of the statements at the top level of a file."""
    nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
    return {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


# What the rooms without torch may import of core: tables of names.
NAMES = {"attncli.core.row_statistics", "attncli.core.head_names"}

SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_along_the_arrows(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    ours = {name.split(".")[1] for name in imported_modules(path) if name.startswith("attncli.")}
    assert ours - {"__version__"} <= ARROWS[room] | {room}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_library_knows_neither_settings_nor_words_for_people(path: Path) -> None:
    modules = {name.split(".")[0] for name in imported_modules(path)}
    assert not {"pydantic", "rich", "typer"} & modules or room_of(path) not in LIBRARY


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_typer_stays_in_cli_and_torch_out_of_the_outer_rooms(path: Path) -> None:
    modules = {name.split(".")[0] for name in imported_modules(path)}
    room = room_of(path)
    assert "typer" not in modules or room in ("cli", "commands")
    assert "torch" not in modules or room not in TORCH_FREE
    assert "rich" not in modules or room == "views"
    assert "textual" not in modules or path.stem in ("browser", "browser_panels")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_settings_and_views_know_only_the_names_of_what_is_measured(path: Path) -> None:
    modules = {name for name in imported_modules(path) if name.count(".") == 2}
    of_core = {name for name in modules if name.startswith("attncli.core.")}
    assert of_core <= NAMES or room_of(path) not in ("settings", "views")


def test_a_room_has_two_files_and_a_name_that_says_what_it_holds() -> None:
    rooms = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("__pycache__", "data")]
    assert {room.name for room in rooms} <= set(ARROWS)
    for room in rooms:
        assert len([file for file in room.glob("*.py") if file.name != "__init__.py"]) >= 2, room
    names = {path.stem for path in SOURCES}
    assert not names & {"utils", "helpers", "common", "base", "manager", "misc"}


def test_no_two_files_import_each_other() -> None:
    """Not when they are imported: what a function imports as it runs is not counted."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCES
    }
    before = {
        name: {
            imported if imported in names else imported.rpartition(".")[0]
            for imported in modules_imported_at_once(path)
            if imported.startswith("attncli.")
        }
        - {name}
        for name, path in names.items()
    }
    while free := [name for name, needed in before.items() if not needed & before.keys()]:
        for name in free:
            del before[name]
    assert not before, "these import each other, or what does"


def test_a_base_name_is_one_subject_s() -> None:
    counts = Counter(path.stem for path in SOURCES if path.stem != "__init__")
    assert {name: count for name, count in counts.items() if count > 3} == {}


CHECK = """
import sys
from attncli.cli import run
sys.stdout = sys.stderr = open({devnull!r}, "w")
code = run({arguments!r})
assert code == {code}, code
assert not {{"torch", "transformers", "matplotlib", "textual"}} & sys.modules.keys(), "torch was imported"
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["self", "--help"], 0),
        (["self", "--show-config"], 0),
        (["config", "schema"], 0),
        (["nonsense"], 2),
        (["self", "--nonsense"], 2),
        (["self", "--head-dim", "0"], 2),
        (["self", "--sentence", ""], 2),
        (["self", "--sentence", "..."], 2),
        (["self", "--file", "/nonexistent"], 2),
        (["self", "--config", "/nonexistent"], 2),
        (["self", "--num-tokens", "100000000000"], 2),
        (["batch", "/nonexistent"], 2),
        (["lesson"], 0),
        (["lesson", "1"], 0),
        (["lesson", "99"], 2),
        (["show", "--help"], 0),
        (["show", "/nonexistent"], 2),
        (["show", "/nonexistent.npz"], 2),
        (["self", "-o", "/nonexistent/x.png"], 2),
        (["batch", "--help"], 0),
        (["batch", "configs/sweep.yaml", "--dry-run"], 0),
        (["batch", "configs/sweep.yaml", "--file", "README.md", "-o", "/tmp/none.db", "--dry-run"], 0),
        (["batch", "configs/sweep.yaml", "--set", "embed_dim=3"], 2),
        (["batch", "configs/sweep.yaml", "--expect", "nonsense"], 2),
        (["batch", "configs/sweep.yaml", "--file", "/nonexistent"], 2),
        (["batch", "configs/sweep.yaml", "-o", "README.md.db", "--format", "csv"], 2),
        (["results", "--help"], 0),
        (["results", "README.md"], 2),
        (["export", "--help"], 0),
        (["export", "README.md", "-o", "/tmp/tidy.csv"], 2),
        (["heads", "--help"], 0),
        (["heads", "--show-config"], 0),
        (["heads", "--model", "/nonexistent"], 2),
        (["heads", "--model", str(ROOT / "configs")], 2),
        (["heads", "--sort", "nonsense"], 2),
        (["diff", "--help"], 0),
        (["diff", "self"], 2),
        (["diff", "self", "nonsense"], 2),
        (["diff", "/nonexistent.json", "self"], 2),
        (["diff", "self", "--set", "embed_dim=0"], 2),
        (["browse", "--help"], 0),
        (["browse"], 2),
        (["browse", "--nonsense"], 2),
        (["self", "--model", str(ROOT / "configs")], 2),
        (["self", "--model", str(ROOT / "configs"), "--embed-dim", "8"], 2),
        (["self", "--embedding", "previous"], 2),
        (
            ["self", "--embedding", "attncli/data/lessons/files/made-up.50d.txt", "--sentence", "unheard of"],
            2,
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_torch_stays_unimported(arguments: list[str], code: int) -> None:
    script = CHECK.format(devnull=os.devnull, arguments=arguments, code=code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_completion_of_commands_and_choices_leaves_torch_unimported() -> None:
    script = (
        "import sys\n"
        "from attncli.cli import run\n"
        "try:\n    run([])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = {
        **os.environ,
        "_ATTN_COMPLETE": "complete_bash",
        "COMP_WORDS": "attn self --projection ",
        "COMP_CWORD": "3",
    }
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["linear", "uniform", "none"], done


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
    assert done.stderr.splitlines() == ['model: needs: pip install "attncli[models]"']
