"""The arrows between the rooms, checked by import statements and by the modules that tables name."""

import ast
from functools import cache
from pathlib import Path

from attncli.index import FEATURES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "attncli"

LEAVES = {"errors", "feature", "index", "records", "system"}
# The rooms of attncli that each room may import.
ARROWS = {
    "cli": {"commands", "settings", "core", *LEAVES},
    "notebook": {"settings", "runs", "models", "views", *LEAVES},
    "commands": {"runs", "views", "settings", "toys", "measure", "models", "core", *LEAVES},
    "features": {
        *("notebook", "commands", "runs", "views", "settings"),
        *("toys", "measure", "models", "core", *LEAVES),
    }
    - {"index"},
    "feature": set(),
    "index": {"feature", "features", "records", "settings", "views"},
    "runs": {"settings", "toys", "measure", "models", "core", *LEAVES},
    "views": {"settings", "core", *LEAVES},
    "toys": {"core", "records", "errors"},
    "measure": {"models", "core", *LEAVES},
    "models": {"core", *LEAVES},
    "settings": {"models", "core", *LEAVES},
    "core": {"system", "feature", "index"},
    "records": {"core", "errors", "feature", "index", "system"},
    "errors": {"index", "system"},
    "system": set(),
    "testing": set(),
}

LIBRARY = ("core", "models", "measure")
TORCH_FREE = ("cli", "notebook", "settings", "views", *LEAVES)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


TABLES = {
    "__init__.py": "attncli.",
    "cli.py": "",
    "core/names.py": "",
    "settings/__init__.py": "",
    "views/__init__.py": "attncli.views.",
}
"""The files whose tables name what is imported when it is asked for, and what the names begin with."""
LOADERS = {"import_module", "__import__", "load_place", "load_usable_place"}


def modules_named(path: Path) -> set[str]:
    """The modules of attncli that strings of a file name, in full or as in its table."""
    prefixes = {"", TABLES.get(path.relative_to(PACKAGE).as_posix(), "")}
    texts = {
        node.value.partition(":")[0]
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {prefix + text for prefix in prefixes for text in texts} & {*MODULES}


def modules_needed(path: Path) -> set[str]:
    """The modules that a file imports, also in functions, but not only for type checkers."""
    unneeded = {
        node
        for part in nodes_of(path)
        if isinstance(part, ast.If)
        for statement in part.body
        for node in ast.walk(statement)
    }
    nodes = [node for node in nodes_of(path) if isinstance(node, ast.ImportFrom) and node not in unneeded]
    return {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


# What the rooms without torch may import of core: tables of names.
NAMES = {f"attncli.core.{name}" for name in ("names", "process", "runtime")}

DATA = PACKAGE / "data"
"""What lessons and tests read; the programs in it are not of the package."""
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if DATA not in path.parents)
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES
}


KERNEL = [path for path in SOURCES if path.relative_to(PACKAGE).parts[0] not in ("features", "index.py")]


def is_relevant(node: ast.AST) -> bool:
    """Return True for imports, strings, blocks for type checkers, and calls that import by name."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Constant(value=str()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in LOADERS
    return False


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """The relevant nodes of a file: all nodes of the package would take hundreds of megabytes."""
    return tuple(filter(is_relevant, ast.walk(ast.parse(path.read_text()))))


@cache
def imports() -> dict[Path, set[str]]:
    """The modules that each file imports."""
    return {path: imported_modules(path) for path in SOURCES}


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports()[path]}


def test_rooms_import_along_the_arrows() -> None:
    for path, modules in imports().items():
        room = room_of(path)
        if room not in ("__init__", "__main__"):
            ours = {name.split(".")[1] for name in modules if name.startswith("attncli.")}
            assert ours <= ARROWS[room] | {room}, path


OUTER_PARTS = {"question", "settings", "screens", "results", "command", "names", "feature"}
"""The files of a feature that read settings and write reports."""
FUNCTIONS = {"library", "patching"}
"""The modules of measure whose functions users call, too."""
# What they import of the kernel's measure beside these: a list that only becomes shorter.
MEASURED_BY_QUESTIONS = {
    # One run of a model serves many texts of a batch, each with settings, maps and pictures of its own; what
    # the library gives of a survey is one text's statistics.
    ("heads", "heads"),
    ("heads", "head_numbers"),
    ("heads", "looks"),
    # Who sees whom in a layer, as a report states it.
    ("attention", "masks"),
}


def test_questions_call_the_library_and_measure_nothing_themselves() -> None:
    """Readings come from models and measurements from the library, as for a user of Python."""
    by_questions, by_commands = set(), set()
    for path, modules in imports().items():
        measured = {name.split(".")[2] for name in modules if name.startswith("attncli.measure.")} - FUNCTIONS
        if room_of(path) == "commands":
            by_commands |= {(path.stem, name) for name in measured}
        elif room_of(path) == "features" and path.stem in OUTER_PARTS:
            by_questions |= {(path.parent.name, name) for name in measured}
    assert by_questions == MEASURED_BY_QUESTIONS
    assert not by_commands


def test_tables_name_modules_along_the_arrows() -> None:
    for path in SOURCES:
        room = room_of(path)
        if room not in ("__init__", "__main__"):
            ours = {name.split(".")[1] for name in modules_named(path) if "." in name}
            assert ours <= ARROWS[room] | {room}, path


def test_only_tables_import_by_name() -> None:
    files, imports_by_text = set(), 0
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.Call):
                files.add(path.relative_to(PACKAGE).as_posix())
                imports_by_text += "import" in ast.unparse(node.func)
    # The formulas are those that core/names.py names, whose docstrings describe the statistics of plugins;
    # cards name engines, sources of layers, and what `attn info plugins` tries.
    of_cards = {"core/engines.py", "models/layer_sources.py", "commands/info.py", "feature.py"}
    of_formulas = {"core/formulas.py", "records/meanings.py"}
    assert files <= {*TABLES} - {"core/names.py"} | of_formulas | of_cards
    assert imports_by_text == 1


def test_the_library_knows_neither_settings_nor_words_for_people() -> None:
    for path in SOURCES:
        is_library = room_of(path) in (*LIBRARY, "toys")
        assert not is_library or not {"pydantic", "rich", "typer"} & packages(path), path


def test_only_explanations_of_the_toys_know_reports() -> None:
    knowing = [
        path.stem
        for path, modules in imports().items()
        if "attncli.records.report" in modules and room_of(path) == "toys"
    ]
    assert knowing and all(name.startswith("explained_") for name in knowing)


TORCH_FREE_PARTS = {"feature", "names", "settings", "results", "screens", "page"}
"""The files of a feature that help, usage errors and saved reports import."""


def test_neither_the_kernel_nor_a_feature_imports_a_feature_that_it_does_not_need() -> None:
    for path, modules in imports().items():
        named = {
            name.split(".")[2]
            for name in modules | modules_named(path)
            if name.startswith("attncli.features.")
        }
        is_feature = path.is_relative_to(PACKAGE / "features") and path.parent.name != "features"
        own = path.relative_to(PACKAGE / "features").parts[0] if is_feature else ""
        may_name = {own, *FEATURES[own].needs} if is_feature else set()
        assert path.name == "index.py" or named <= may_name, path
        assert not is_feature or path.stem not in TORCH_FREE_PARTS or not {"torch"} & packages(path), path


ORDINARY_WORDS = {
    *("self", "cross", "heads", "batch", "source", "results", "show", "norm", "attention", "examples"),
    *("cache", "changed_heads", "ablate", "pairs", "relations", "words", "linear", "pictures", "sound"),
}
"""Names of features that are also kinds of attention, axes, keys, or words of messages."""


def test_no_string_of_the_kernel_is_the_name_of_a_feature() -> None:
    """Nor of a command, function or kind of results of a feature, or of a place in its folder."""
    cards = FEATURES.values()
    names = {*FEATURES, *(question.name for card in cards for question in card.questions)}
    names |= {kind for card in cards for kind in card.results} | {
        name for card in cards for name in card.functions
    }
    naming = {
        (path.relative_to(PACKAGE).as_posix(), node.value)
        for path in KERNEL
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value in names - ORDINARY_WORDS or ("features." in node.value and " " not in node.value)
    }
    assert not naming


SERVING_MORE = {
    "records.attention",
    *("records.surveys", "settings.heads"),
}
"""Modules of the kernel that cards name, since more than one feature imports them: fewer each time."""


def test_the_places_of_a_card_are_in_its_folder() -> None:
    others = set()
    for name, card in FEATURES.items():
        places = [*card.results.values(), *card.screens, *card.screens.values(), *card.functions.values()]
        places += [*card.page, *card.page.values()]
        for question in card.questions:
            places += filter(None, (question.spec, question.page, question.model_page, question.command))
        others |= {
            place.partition(":")[0] for place in places if not place.startswith(f"attncli.features.{name}.")
        }
    assert others == {f"attncli.{name}" for name in SERVING_MORE}


def test_typer_stays_in_cli_and_torch_out_of_the_outer_rooms() -> None:
    for path in SOURCES:
        modules, room = packages(path), room_of(path)
        assert "typer" not in modules or room == "cli", path
        assert "torch" not in modules or room not in TORCH_FREE, path
        assert (
            "rich" not in modules or room == "views" or path.stem == "screens" or path.parent.name == "browse"
        ), path
        assert "textual" not in modules or path.stem in ("browser", "browser_panels"), path
        assert not {"starlette", "uvicorn"} & modules or path.parent.name == "serve", path


def test_settings_and_views_know_only_the_names_of_measurements() -> None:
    for path, modules in imports().items():
        of_core = {name for name in modules if name.count(".") == 2 and name.startswith("attncli.core.")}
        assert of_core <= NAMES or room_of(path) not in ("records", "settings", "views"), path


def test_no_two_files_import_each_other() -> None:
    before = {
        name: {
            imported if imported in MODULES else imported.rpartition(".")[0]
            for imported in modules_needed(path)
            if imported.startswith("attncli.")
        }
        - {name}
        for name, path in MODULES.items()
    }
    while free := [name for name, needed in before.items() if not needed & before.keys()]:
        for name in free:
            del before[name]
    assert not before, "circular imports"
