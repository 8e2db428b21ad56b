"""The arrows between the rooms, from the source's own import statements."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "attncli"

LEAVES = {"arguments", "errors", "files", "records", "report", "plain_text"}
# What each room may import of ours. A package's __init__ holds no more than its version.
ARROWS = {
    "cli": {"commands", "settings", "core", "signals", *LEAVES},
    "api": {"settings", "runs", "models", "views", *LEAVES},
    "library": {"measure", "models", "core", *LEAVES} - {"report"},
    "commands": {
        *("runs", "views", "settings", "toys", "measure", "models", "core"),
        *("saved", "arrays", "report_parts", *LEAVES),
    },
    "runs": {"settings", "toys", "measure", "models", "core", "report_parts", *LEAVES},
    "views": {"settings", "core", *LEAVES},
    "toys": {"core", "errors", "report"},
    "measure": {"models", "core", *LEAVES} - {"report"},
    "models": {"core", *LEAVES} - {"report"},
    "settings": {"models", "core", *LEAVES},
    "core": set(),
    "report_parts": {"settings", "core", "records", "report"},
    "saved": {"arrays", "settings", *LEAVES},
    "arrays": {"core", "errors", "files", "models", "plain_text"},
    "plain_text": set(),
    "records": {"core", "errors", "plain_text"},
    "arguments": {"core", "errors"},
    "errors": set(),
    "files": set(),
    "signals": set(),
    "report": {"errors", "records"},
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


def modules_needed(path: Path) -> set[str]:
    """Those of the statements of a file, in functions too, but for what type checkers alone import."""
    tree = ast.parse(path.read_text())
    unneeded = {
        node
        for part in ast.walk(tree)
        if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING"
        for statement in part.body
        for node in ast.walk(statement)
    }
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node not in unneeded]
    return {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


# What the rooms without torch may import of core: tables of names.
NAMES = {f"attncli.core.{name}" for name in ("names", "process", "runtime")}

SOURCES = sorted(PACKAGE.rglob("*.py"))


@cache
def imports() -> dict[Path, set[str]]:
    """The modules that each file imports: two seconds, which only the worker with these tests spends."""
    return {path: imported_modules(path) for path in SOURCES}


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports()[path]}


def test_rooms_import_along_the_arrows() -> None:
    for path, modules in imports().items():
        room = room_of(path)
        if room not in ("__init__", "__main__"):
            ours = {name.split(".")[1] for name in modules if name.startswith("attncli.")}
            assert ours - {"__version__"} <= ARROWS[room] | {room}, path


def test_the_library_knows_neither_settings_nor_words_for_people() -> None:
    for path in SOURCES:
        is_library = room_of(path) in (*LIBRARY, "toys")
        assert not is_library or not {"pydantic", "rich", "typer"} & packages(path), path


def test_of_the_toys_only_what_explains_a_report_knows_reports() -> None:
    knowing = [
        path.stem
        for path, modules in imports().items()
        if "attncli.report" in modules and room_of(path) == "toys"
    ]
    assert knowing and all(name.startswith("explained_") for name in knowing)


def test_typer_stays_in_cli_and_torch_out_of_the_outer_rooms() -> None:
    for path in SOURCES:
        modules, room = packages(path), room_of(path)
        assert "typer" not in modules or room == "cli", path
        assert "torch" not in modules or room not in TORCH_FREE, path
        assert "rich" not in modules or room == "views", path
        assert "textual" not in modules or path.stem in ("browser", "browser_panels"), path


def test_settings_and_views_know_only_the_names_of_what_is_measured() -> None:
    for path, modules in imports().items():
        of_core = {name for name in modules if name.count(".") == 2 and name.startswith("attncli.core.")}
        assert of_core <= NAMES or room_of(path) not in ("records", "settings", "views"), path


def test_of_other_packages_only_what_is_public_is_imported() -> None:
    for path, modules in imports().items():
        parts = {part for name in modules for part in name.split(".")}
        assert not {part for part in parts if part.startswith("_") and not part.endswith("__")}, path


def test_a_room_has_two_files_and_a_name_that_says_what_it_holds() -> None:
    rooms = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("__pycache__", "data")]
    assert {room.name for room in rooms} <= set(ARROWS)
    for room in rooms:
        assert len([file for file in room.glob("*.py") if file.name != "__init__.py"]) >= 2, room
    names = {path.stem for path in SOURCES}
    assert not names & {"utils", "helpers", "common", "base", "manager", "misc"}


def test_no_two_files_import_each_other() -> None:
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCES
    }
    before = {
        name: {
            imported if imported in names else imported.rpartition(".")[0]
            for imported in modules_needed(path)
            if imported.startswith("attncli.")
        }
        - {name}
        for name, path in names.items()
    }
    while free := [name for name, needed in before.items() if not needed & before.keys()]:
        for name in free:
            del before[name]
    assert not before, "these import each other, or what does"


# Of each a subject in several rooms: asked for on a page, computed in measure or toys, perhaps with settings.
SUBJECTS = {
    "ablate",
    "attention",
    "cache",
    "circuit",
    "examples",
    "heads",
    "pitfalls",
    "relations",
    "results",
    "sources",
    "why",
    "writing",
}


def test_a_base_name_is_one_subject_s() -> None:
    counts = Counter(path.stem for path in SOURCES if path.stem != "__init__")
    assert {name for name, count in counts.items() if count > 1} <= SUBJECTS, "two subjects, or a new one"
