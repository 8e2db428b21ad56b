"""Shapes in signatures are checked while tests run; a fixture runs `attn` as its entry point does."""

import ast
import ctypes
import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.abc import MetaPathFinder
from itertools import combinations, product
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jsonschema
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

from tests.shapes import check_by_test, with_checks

# What was compiled for one process is there for the next that a test starts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Shown outputs are compared: the same digits on every processor with AVX2, as those of x86 have had for ten
# years. Elsewhere the last digits may differ, which tests/same_text.py allows. Read as torch is imported.
os.environ |= {"MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}


def ignore(signal_number: int, frame: object) -> None:
    """Ignore a signal here, but not in the programs that tests start: these have its default again."""


# In the background of a script a shell ignores SIGINT and SIGQUIT, nohup SIGHUP; programs inherit that.
IGNORED = "SIGNALS_THAT_TESTS_IGNORE"
ENDING = ("SIGINT", "SIGQUIT", "SIGHUP")
ignored = [each for each in ENDING if signal.getsignal(getattr(signal, each)) is signal.SIG_IGN]
for name in os.environ.setdefault(IGNORED, " ".join(ignored)).split():  # by pytest, and so by its workers
    signal.signal(getattr(signal, name), ignore)

# transformers compiles some hundred patterns anew for each model that it loads, more than Python keeps.
vars(re)["_MAXCACHE"] = 2**14

# Elsewhere the examples change with every run; what a machine checks before landing is the same twice.
settings.register_profile("default", deadline=None)  # a loaded machine fails no test
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")

ROOMS_OF_TENSORS = ("core", "models", "measure", "toys", "commands", "runs.report_parts", "runs.weight_rows")
install_import_hook(
    [f"attncli.{room}" for room in ROOMS_OF_TENSORS], f"{with_checks.__module__}.{with_checks.__name__}"
)
shapes = check_by_test()

ROOT = Path(__file__).parents[1]
# What a test file imports for models, for processes and the terminal browser; the fixture opens Chromium.
SLOW_IMPORTS = {"transformers", "subprocess", "textual", "tools"}
SLOW_FIXTURE = "browser"
SECONDS_FOR_CASES = 0.25
"""Of CPU, for the cases of one test in a quick run: the rest of a longer list waits for `make test`."""


@cache
def imported(path: Path) -> frozenset[str]:
    """The packages that a test file imports, itself or through what it imports of other files of tests."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            helper = ROOT / f"{module.replace('.', '/')}.py"
            is_of_tests = module.startswith("tests.") and helper not in (path, Path(__file__))
            names |= imported(helper) if is_of_tests else {module.split(".")[0]}
    return frozenset(names)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what starts processes or loads models")
    parser.addoption(
        "--nightly", action="store_true", help="also what is slow and breaks seldom, or at random"
    )


class NoModels(MetaPathFinder):
    """A test of a quick run ends, skipped, where it would import what models need, which takes seconds."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "transformers":
            pytest.skip("loads a model", allow_module_level=True)


def no_process(*_: object, **__: object) -> None:
    """A test of a quick run ends, skipped, where it would start a process."""
    pytest.skip("starts a process")


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("--quick"):
        vars(subprocess)["Popen"] = no_process
        BaseProcess.start = no_process  # type: ignore[method-assign]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_test = collection_path.name.startswith("test_") and config.getoption("--quick")
    return True if is_test and imported(collection_path) & SLOW_IMPORTS else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Garbage collection would traverse, again and again, the million objects that imports make and keep."""
    gc.disable()
    if session.config.getoption("--quick"):
        sys.meta_path.insert(0, NoModels())
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # A command freezes what its process has imported; here this would keep the model of each command.
        vars(gc)["freeze"] = lambda: None


LONGEST = [
    f"tests/{name}.py"
    for name in (
        *("features/record/test_record", "test_pages", "views/pictures/test_pictures"),
        *("commands/test_commands", "test_architectures", "core/test_each_engine"),
        *("commands/test_first_screens", "runs/test_survival", "features/generate/test_generate"),
        *("runs/test_cluster", "test_release", "runs/test_store", "test_adding", "test_plugins"),
        *("features/test_cards", "features/words/test_spoken_words", "measure/test_smollm2"),
        *("features/pairs/test_known_pairs", "views/tables/test_screens", "notebook/test_notebook"),
    )
]
"""Files of 15 seconds and more begin first, so that at the end no worker waits long for another."""


GROWTH = 400 * 2**20
"""Bytes that a process may grow by before what nothing refers to any more is looked for."""
resident_before = {"test": 0, "file": 0}


def resident() -> int:
    """The bytes of this process in memory, 0 where the system does not tell."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def release(after: str) -> None:
    """Free models that only their own cycles refer to: Python counts objects, which are few, not bytes."""
    if resident() > resident_before[after] + GROWTH:
        gc.collect()
        if sys.platform == "linux":
            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
        resident_before[after] = resident_before["test"] = resident()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After the last test of a file forget what cached functions keep: no other file asks for it."""
    yield
    module = getattr(item, "module", None)
    if module is None or (nextitem is not None and nextitem.path == item.path):
        release("test")
        return
    for each in vars(module).values():
        if hasattr(each, "cache_clear") and each.__module__ == module.__name__:
            each.cache_clear()
    if (loading := sys.modules.get("attncli.models.loading")) is not None:
        vars(loading)["_kept"].cache_clear()  # the model of the last command
    release("file")


def place_of(item: pytest.Item) -> int:
    name = item.path.relative_to(ROOT).as_posix()
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    assert all((ROOT / name).exists() for name in LONGEST)
    items.sort(key=place_of)
    # A test that somebody names runs.
    if not config.getoption("--nightly") and not any("::" in argument for argument in config.args):
        seldom = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=seldom)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    if config.getoption("--quick"):
        slow = [item for item in items if SLOW_FIXTURE in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


seconds_of: Counter[str] = Counter()


def pytest_runtest_setup(item: pytest.Item) -> None:
    test = item.nodeid.partition("[")[0]
    shapes.begin(test)
    if item.config.getoption("--quick") and seconds_of[test] > SECONDS_FOR_CASES:
        pytest.skip(f"other cases of it took {SECONDS_FOR_CASES} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    begun = time.process_time()
    yield
    seconds_of[item.nodeid.partition("[")[0]] += time.process_time() - begun


CHECKED = 2
"""Items that are checked at each end of a list."""


def _ends(value: Any) -> Any:
    """What JSON holds of the fields of a report, long lists cut: a matrix has thousands of equal cells."""
    from attncli.records.report import NamedTensor, Table, plain

    if isinstance(value, NamedTensor):
        return plain(value.values[tuple(slice(0, CHECKED) for _ in value.axes)])
    if isinstance(value, Mapping):
        return {name: _ends(item) for name, item in value.items()}
    if isinstance(value, list | tuple | Table):
        is_long = len(value) > 2 * CHECKED
        return [_ends(item) for item in ([*value[:CHECKED], *value[-CHECKED:]] if is_long else value)]
    return plain(value)


def _form(value: Any, words: frozenset[str]) -> Any:
    """All of a value of JSON that its schema can see: of texts these words alone, of numbers their sign."""
    if isinstance(value, dict):
        return tuple((name, _form(item, words)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(_form(item, words) for item in value)
    if isinstance(value, str):
        return value if value in words else str
    return type(value), isinstance(value, int | float) and value < 0


@pytest.fixture(scope="session", autouse=True)
def _reports_follow_their_schema() -> Iterator[None]:
    """Whatever report of whatever command a test writes as data, `attn info report-schema` describes it."""
    from attncli.records.report import Report
    from attncli.runs.saved_reports import report_schema

    schema = report_schema()
    validator = jsonschema.Draft202012Validator(schema)
    words = frozenset(re.findall(r'"([^"]*)"', json.dumps(schema)))
    fields, valid_forms = Report.fields, set()

    def checked_fields(report: Report) -> dict[str, Any]:
        found = fields(report)
        ends = _ends(found)
        form = ends["schema_version"], _form(ends, words)
        if form not in valid_forms:
            validator.validate(ends)
            valid_forms.add(form)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "fields", checked_fields)
        yield


def in_turn(cases: Iterable[Any], variants: Sequence[Any], *, most: int = 1) -> list[Any]:
    """Each case with `most` of the variants, or more to have each variant, in turn: not the whole product."""
    cases = [*cases]
    most = max(most, -(-len(variants) // len(cases)))
    return [
        (case, *(variant if isinstance(variant, tuple) else (variant,)))
        for number, case in enumerate(cases)
        for place, variant in enumerate(variants)
        if (place - number * most) % len(variants) < most
    ]


def in_pairs(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Cases in which any two values of two parameters meet at least once, in place of the whole product."""
    cases = [*product(*map(range, map(len, values)))]
    pairs = {case: {*combinations(enumerate(case), 2)} for case in cases}
    missing = {pair for of_case in pairs.values() for pair in of_case}
    chosen = []
    while missing:
        chosen.append(max(cases, key=lambda case: len(pairs[case] & missing)))
        missing -= pairs[chosen[-1]]
    return [tuple(part[place] for part, place in zip(values, case, strict=True)) for case in chosen]


def some_seldom(cases: Iterable[Any], seldom: Container[Any]) -> list[Any]:
    """These cases, of which some, near to others, wait for `make nightly`."""
    return [pytest.param(case, marks=[pytest.mark.nightly] if case in seldom else []) for case in cases]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Attn = Callable[[Sequence[str]], Ended]


@pytest.fixture
def attn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Attn:
    """Runs a command line in this process, with no terminal and no colour variables around."""
    from attncli.cli import run

    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)

    def run_attn(arguments: Sequence[str]) -> Ended:
        capsys.readouterr()  # progress bars of transformers, as a test saved a model
        code = run(arguments)
        return Ended(code, *capsys.readouterr())

    return run_attn
