"""Cards of features: the index, features switched off or deleted, and the same cards in other packages."""

import dataclasses
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from attncli.cli import run
from attncli.feature import (
    Feature,
    LayerSource,
    Question,
    ReadingKind,
    View,
    card_places,
    with_absolute_places,
)
from attncli.index import FEATURES
from attncli.settings import KERNEL_COMMANDS
from attncli.views.page.blocks import PageBlock
from tests.running import ROOT
from tests.test_plugins import attn, install, install_card

FOLDERS = ROOT / "attncli" / "features"
WRITER = ROOT / "tools" / "write_index.py"
TEXT = "a b a b a b"


def card_of(name: str) -> Feature:
    module = importlib.import_module(f"attncli.features.{name}.feature")
    return with_absolute_places(module.FEATURE, f"attncli.features.{name}")


def test_the_index_has_the_card_of_each_folder_and_no_other() -> None:
    names = {file.parent.name for file in FOLDERS.glob("*/feature.py")}
    assert (
        names
        == {*FEATURES}
        == {path.name for path in FOLDERS.iterdir() if path.name[0] != "_" and path.is_dir()}
    )
    for name, feature in FEATURES.items():
        assert feature == card_of(name), "python tools/write_index.py"
    checked = subprocess.run([sys.executable, WRITER, "--check"], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("name", FEATURES)
def test_each_place_of_a_card_exists_and_its_page_is_listed(name: str) -> None:
    card = FEATURES[name]
    for module, part in (place.split(":") for place in (*card_places(card), *card.screens, *card.page)):
        assert hasattr(importlib.import_module(module), part)
    assert {*card.screens, *card.page} <= {*card.results.values()}
    assert not {each.name for each in card.questions} & KERNEL_COMMANDS
    assert all((FOLDERS / name / file.partition(":")[2]).is_file() for file in card.lessons)
    assert card.docs == "" or f"({card.docs})" in (ROOT / "docs" / "README.md").read_text()


def test_each_field_of_a_card_is_a_heading_of_the_page_and_on_its_card() -> None:
    text = (ROOT / "docs" / "plugins.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[1 : 1 + len(Feature._fields)] == [*Feature._fields]
    fields = [name for row in re.findall(r"^\| (`.*`) \| ", text, re.MULTILINE) for name in row.split(", ")]
    of_block = (field.name for field in dataclasses.fields(PageBlock))
    parts = (*Question._fields, *of_block, *View._fields, *LayerSource._fields, *ReadingKind._fields)
    assert fields == [f"`{name}`" for name in parts]
    card: dict[str, Feature] = {}
    exec((ROOT / "examples" / "attn-spread" / "attn_spread" / "feature.py").read_text(), card)
    assert all(card["FEATURE"]) and card["FEATURE"]._fields == Feature._fields


def python(
    code: str, folder: Path, *paths: Path, given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """A program with packages from these folders instead of the installed ones."""
    named = {"PYTHONPATH": ":".join(map(str, paths)), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        input=given, capture_output=True, text=True, cwd=folder, env={**os.environ, **named, **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a saved report of each kind of `attn cache`."""
    folder = tmp_path_factory.mktemp("saved")
    assert run(["cache", TEXT, "-o", f"{folder}/heads.json"]) == 0
    assert run(["cache", TEXT, "--policy", "sinks", "-o", f"{folder}/policies.json"]) == 0
    return folder


ASKED = """
import io, json, os, pkgutil, sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
import attncli
from attncli.cli import COMMANDS, run
from attncli.index import FEATURES, installed_features
from attncli.records.kinds import KINDS
from attncli.settings.config_file import config_schema
from tools.man_page import man_page
from tools.settings_page import settings_page
here, commands = {*installed_features()}, json.load(sys.stdin)
off = tuple(f"attncli.features.{name}" for name in {*FEATURES} - here)
for module in pkgutil.walk_packages(attncli.__path__, "attncli."):
    is_module = "-" not in module.name  # nor a compiled library
    if is_module and not module.name.startswith(("attncli.data", *off)):
        import_module(module.name)
ended = []
for words in commands:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run(words)
    ended.append([code, out.getvalue(), err.getvalue()])
os.environ |= {"_ATTN_COMPLETE": "complete_bash", "COMP_WORDS": "attn ", "COMP_CWORD": "1"}
with redirect_stdout(io.StringIO()) as completed, suppress(SystemExit):
    run([])
print(json.dumps({
    "ended": ended, "file": attncli.__file__, "commands": [*COMMANDS], "kinds": [*KINDS],
    "completed": completed.getvalue().split(), "public": [*attncli.__all__, *dir(attncli)],
    "has": [name for card in FEATURES.values() for name in card.functions if hasattr(attncli, name)],
    "schema": json.dumps(config_schema()), "pages": man_page() + settings_page(),
}))
"""
"""All of attn imported, commands run, and the names that it lists."""

OFF_IN_CI, GONE_IN_CI = ("cache", "pitfalls"), ("separate",)


def every_feature(in_ci: Sequence[str]) -> list[Any]:
    """All features, of which those that are not in CI wait for `make nightly`."""
    return [pytest.param(name, marks=() if name in in_ci else pytest.mark.nightly) for name in FEATURES]


def numbers_of_lessons(cards: Iterable[Feature]) -> list[int]:
    return [int(file.rpartition("/")[2].partition("-")[0]) for card in cards for file in card.lessons]


def commands_of(cards: Iterable[Feature]) -> set[str]:
    return {question.name for card in cards for question in card.questions if not question.form_of}


def reports_of(name: str, saved: Path, folder: Path) -> list[str]:
    """Files of saved reports with each kind of a feature; those that 0.4.0 wrote, as they are."""
    some = json.loads((saved / "heads.json").read_text())
    lines = (ROOT / "tests" / "releases" / "0.4.0.jsonl").read_text().splitlines()
    commands = {question.name for question in FEATURES[name].questions}
    reports = [each for each in map(json.loads, lines) if each["experiment"] in commands]
    reports += [some | {"experiment": kind.split(" of ")[0], "kind": kind} for kind in FEATURES[name].results]
    files = [folder / f"{number}.json" for number in range(len(reports))]
    for file, report in zip(files, reports, strict=True):
        file.write_text(json.dumps(report))
    return [file.name for file in files]


def assert_nowhere(name: str, saved: Path, folder: Path, root: Path, off: str = "") -> None:
    """All else imports, runs and is listed without a feature and what needs it; its reports are shown."""
    lacking = {name, *(other for other, card in FEATURES.items() if name in card.needs)}
    cards = [FEATURES[each] for each in lacking]
    gone = commands_of(cards)
    left = commands_of(FEATURES.values()) - gone
    asked = [[], ["--help"], ["info"], *([each] for each in sorted(gone))]
    asked += [["lesson"]] if "lesson" in left else []
    others = [["self", TEXT], ["heads", TEXT], *(["show", file] for file in reports_of(name, saved, folder))]
    asked += [words for words in others if words[0] in left]
    done = python(ASKED, folder, root, ROOT, given=json.dumps(asked), ATTN_OFF=off)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert Path(answer["file"]).is_relative_to(root)
    why = f"is switched off by ATTN_OFF={off}" if off else "is not a command"
    for words, (code, out, err) in zip(asked, answer["ended"], strict=True):
        if {*words[:1]} & gone:
            reasons = (f"{words[0]}: {why}", f"{words[0]}: needs the feature {name}, which is not available")
            assert code == 2 and err.startswith(reasons) and err.count("\n") == 1, words
            assert re.findall(r"did you mean attn ([\w-]+)\?", err) in ([], *([other] for other in left))
        else:
            assert code == 0 and out, (words, err)
    lessons = {words[-1]: out for words, (_, out, _) in zip(asked[3:], answer["ended"][3:], strict=True)}
    numbers = re.findall(r"^ ?([0-9]+)  ", lessons.get("lesson", ""), re.MULTILINE)
    assert not {*map(int, numbers)} & {*numbers_of_lessons(cards)}
    first, shown = answer["ended"][0][1], answer["ended"][1][1]
    assert {*re.findall(r"^  ([a-z][a-z-]*) ", shown, re.MULTILINE)} & ({*FEATURES} | gone | left) <= left
    assert {*re.findall(r"^  attn ([a-z]+)", first, re.MULTILINE)} <= left
    assert bool(off) == bool(re.search(rf"^off +{off or name}$", answer["ended"][2][1], re.MULTILINE))
    assert {*answer["commands"]} & (gone | left) == left == {*answer["completed"]} & (gone | left)
    functions, kinds = ({key for card in cards for key in getattr(card, field)} for field in PARTS)
    assert not functions & {*answer["public"], *answer["has"]} and not kinds & {*answer["kinds"]}
    settings = {kind.setting for card in cards for kind in card.readings.values()}
    assert not settings & {*re.findall(r'"(\w+)": \{', answer["schema"])}, "the flags of its readings"
    for word in gone:
        assert f'"const": "{word}"' not in answer["schema"] and f'.SS "attn {word} ' not in answer["pages"]


PARTS = ("functions", "results")


@pytest.mark.parametrize("name", every_feature(OFF_IN_CI))
def test_a_feature_that_is_switched_off_is_nowhere(name: str, saved: Path, tmp_path: Path) -> None:
    assert_nowhere(name, saved, tmp_path, ROOT, off=name)


def test_what_needs_a_feature_that_is_switched_off_says_so(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTN_OFF", "cache")
    files = {name: str(saved / f"{name}.json") for name in ("heads", "policies")}
    commands = [
        ["cache"],
        ["cahce"],
        ["show", files["heads"], "-o", "heads.json"],
        ["show", files["policies"], "-o", "policies.json"],
        ["show", files["heads"]],
        ["diff", files["heads"], files["heads"]],
        ["heads", "a b"],
    ]
    ended = attn(commands, tmp_path, off="cache")
    assert ended[0] == (2, "", "cache: is switched off by ATTN_OFF=cache\n")
    assert ended[1] == (2, "", "cahce: is not a command: see attn --help for all commands\n")
    assert [each.code for each in ended[2:]] == [0] * 5, ended
    assert "heads\n" in ended[4].out and "curve\n" in ended[4].out
    for name, file in files.items():
        assert (tmp_path / f"{name}.json").read_text() == Path(file).read_text(), "with its kind"


def copy_without(name: str, folder: Path) -> Path:
    """A copy of attncli in the folder, without the folder of a feature, its index written anew."""
    shutil.copytree(ROOT / "attncli", folder / "attncli")  # with what is compiled already
    shutil.rmtree(folder / "attncli" / "features" / name)
    subprocess.run([sys.executable, WRITER, "--package", folder / "attncli"], check=True)
    assert f'    "{name}": Feature(' not in (folder / "attncli" / "index.py").read_text()
    return folder


@pytest.mark.parametrize("name", every_feature(GONE_IN_CI))
def test_without_the_folder_of_a_feature_all_else_imports_and_runs(
    name: str, saved: Path, tmp_path: Path
) -> None:
    assert_nowhere(name, saved, tmp_path, copy_without(name, tmp_path))


@pytest.fixture(scope="module")
def without_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of attncli without features/cache."""
    return copy_without("cache", tmp_path_factory.mktemp("gone"))


def renamed(text: str) -> str:
    return text.replace("attncli.features.cache", "attn_cache")


@pytest.fixture(scope="module")
def package(without_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with features/cache as an installed package of its own, as one of site-packages."""
    site = tmp_path_factory.mktemp("site")
    install(site, "attn_cache", {}, {"features": {"cache": "attn_cache.feature:FEATURE"}})
    shutil.copytree(FOLDERS / "cache", site / "attn_cache", ignore=shutil.ignore_patterns("__pycache__"))
    for file in (site / "attn_cache").glob("*.py"):
        file.write_text(renamed(file.read_text()))
    return site


@pytest.mark.nightly
def test_a_feature_is_the_same_in_a_package_of_its_own(
    without_cache: Path, package: Path, saved: Path, tmp_path: Path
) -> None:
    commands = [
        ["cache", TEXT],
        ["cache", TEXT, "-o", "heads.json"],
        ["show", str(saved / "heads.json")],
        ["kv_cache"],
        ["info", "plugins"],
        ["--help"],
    ]
    built_in, _ = attn([commands[0], ["cache", TEXT, "-o", "built-in.json"]], tmp_path)
    asked, _, shown, synonym, plugins, listed = attn(commands, tmp_path, package, root=without_cache)
    assert asked == built_in and asked.code == 0
    assert shown.out.splitlines()[:9] == built_in.out.splitlines()[:9], "its first screen"
    assert (tmp_path / "heads.json").read_text() == (tmp_path / "built-in.json").read_text()
    assert synonym.err == "kv_cache: is not a command: did you mean attn cache?\n"
    assert re.split(r"\s{2,}", plugins.out.strip()) == ["features", "cache", "attn-cache 1.0", "ok"]
    models = listed.out.partition("Models:\n")[2].partition("\n\n")[0]
    assert "  cache       Increase in loss with a smaller cache, by head and policy" in models.splitlines()
    code = f"""
import attncli
result = attncli.cache(attncli.open_model(), {TEXT!r})
assert type(result).__module__ == "attn_cache.results" and len(result.heads) == 8
assert "cache" in dir(attncli) and "cache" not in attncli.__all__
"""
    done = python(code, tmp_path, without_cache, package)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_the_tests_of_a_feature_pass_for_it_in_a_package_of_its_own(
    without_cache: Path, package: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tests" / "features" / "cache"
    names = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=names)
    for file in (ROOT / "tests" / "features" / "cache").glob("*.*"):
        (folder / file.name).write_text(renamed(file.read_text()))
    for name in ("tools", "docs", "configs", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "attncli").symlink_to(without_cache / "attncli")
    paths = ":".join(map(str, (tmp_path, package)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", folder],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "attn_cache" in (folder / "test_cache.py").read_text()


CARD = """from attncli.feature import Feature, LayerSource, Question, View

FEATURE = Feature(
    questions=(Question({names}, "settings:Spec"),),
    results={{"norm": "results:Norms", "spread": "results:Spreads"}},
    functions={{"ablate": "door:ablate"}},
    statistics={{"entropy": "numbers:entropy"}},
    views={{"csv": View("views:write", (".tsv",)), "tsv": View("views:write", (".tsv", ".txt"))}},
    engines={{"rows": "engines:ROWS"}},
    layer_sources={{"new": LayerSource("layers:capture", {{"Mamba": "", "retention": "Retention$"}})}},
)
"""


def card_text(name: str, group: str = "Plugins") -> str:
    return CARD.format(names=f'"{name}", "How far each head looks", "{group}"')


def test_built_in_parts_win_and_one_line_says_so(tmp_path: Path) -> None:
    for package, feature, command, group in (
        ("attn_a", "spread", "norm", "Plugins"),
        ("attn_b", "cache", "spread", "Plugins"),
        ("attn_c", "spread", "spread", "Plugins"),
        ("attn_d", "wide", "wide", "Wide heads"),
    ):
        install_card(tmp_path, package, feature, {"feature": card_text(command, group)})
    norm, plugins, shown, spread, wide, written = attn(
        [
            ["norm", "--format", "json"],
            ["info", "plugins"],
            ["--help"],
            ["spread"],
            ["wide"],
            ["self", "a b", "--format", "csv"],
        ],
        tmp_path,
        tmp_path,
    )
    assert norm.code == 0 and json.loads(norm.out)["experiment"] == "norm"
    assert plugins.code == 1
    taken = "not used: the name is taken"
    common = "statistic entropy, view csv, suffix .txt, engine rows, layers of Mamba"
    second = "statistic entropy, view csv, view tsv, engine rows, layers of Mamba, layers of retention"
    assert [re.split(r"\s{2,}", line)[2:] for line in plugins.out.splitlines()] == [
        ["attn-a 1.0", f"{taken}: command norm, kind norm, function ablate, {common}"],
        ["attn-b 1.0", taken],
        ["attn-c 1.0", taken],
        ["attn-d 1.0", f"{taken}: kind norm, kind spread, function ablate, {second}"],
    ]
    assert "\nWide heads:\n  wide " in shown.out and "  spread " not in shown.out
    assert spread.code == 2 and wide.code == 1
    assert "No module named 'attn_d.settings'" in wide.err and wide.err.count("\n") == 1
    assert (written.code, written.err) == (0, "") and written.out.startswith("query,")


NEEDY = """from attncli.feature import Feature, Question

FEATURE = Feature(
    questions=(Question("{name}", "How far each head looks", "Models", "settings:Spec"),), needs=("{need}",)
)
"""


def test_a_feature_is_off_with_those_that_it_needs(tmp_path: Path) -> None:
    """Built-in or not, through others, and if it needs one that is not there."""
    assert "heads" in FEATURES["browse"].needs
    for name, need in {"near": "far", "far": "cache", "alone": "nothing"}.items():
        install_card(tmp_path, f"attn_{name}", name, {"feature": NEEDY.format(name=name, need=need)})
    lines = [["--help"], ["info", "plugins"], ["near", "a text"], ["alone"]]
    on, off = (attn(lines, tmp_path, tmp_path, off=off) for off in ("", "cache"))
    assert "\n  near " in on[0].out and "\n  far " in on[0].out and "\n  alone " not in on[0].out
    assert "\n  near " not in off[0].out and "\n  far " not in off[0].out
    states = {cells[1]: cells[3] for cells in (re.split(r"\s{2,}", line) for line in off[1].out.splitlines())}
    needs = "not used: needs {}, which is switched off or not available"
    assert states == {
        name: needs.format(need) for name, need in (("near", "far"), ("far", "cache"), ("alone", "nothing"))
    }
    assert (off[2].code, off[2].err) == (2, "near: is switched off by ATTN_OFF=cache\n")
    assert (off[3].code, off[3].err) == (2, "alone: needs the feature nothing, which is not available\n")
    browse, listed = attn([["browse"], ["--help"]], tmp_path, off="heads")
    assert (browse.code, browse.err) == (2, "browse: is switched off by ATTN_OFF=heads\n")
    assert "\n  browse " not in listed.out and "\n  serve " in listed.out
    done = python("import attncli; attncli.survey", tmp_path, tmp_path, ROOT)
    assert done.stderr == (
        "plugin alone (attn-alone 1.0): needs the feature nothing, which is not available\n"
    )


@pytest.mark.parametrize(
    ("off", "why"),
    [
        ("cahce", "cahce is not a feature: did you mean cache?"),
        ("scale-demo", "scale-demo is not a feature: did you mean scale_demo?"),
        ("multihead", "multihead is not a feature: did you mean attention?"),
        ("\x1b[1m", f"\\x1b[1m is not a feature: the features are {', '.join(FEATURES)}"),
    ],
)
def test_a_name_that_no_feature_has_is_one_line(tmp_path: Path, off: str, why: str) -> None:
    """Also if a batch starts workers, which read the cards again."""
    (tmp_path / "b.yaml").write_text("experiment: average\nsweep: {seed: [1, 2, 3, 4]}\n")
    code = (
        "import sys\nfrom attncli.cli import run\nif __name__ == '__main__':\n    sys.exit(run(sys.argv[1:]))"
    )
    (tmp_path / "program.py").write_text(code)
    command = ["batch", "b.yaml", "-o", "b.db", "--workers", "2"] if off == "cahce" else ["info"]
    done = subprocess.run(
        [sys.executable, "program.py", *command],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ATTN_OFF": off},
    )  # fmt: skip
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "ATTN_OFF" in line] == [f"ATTN_OFF: {why}"]


BROKEN: dict[str, tuple[str, str]] = {
    "gone": (
        "import a_package_that_is_not_there\n",
        "cannot be imported: ModuleNotFoundError: No module named",
    ),
    "no_card": (
        "FEATURE = 5\n",
        "its card is not valid: attn_no_card.feature:FEATURE is not an attncli.feature.Feature",
    ),
    "texts": (
        "from attncli.feature import Feature\n\nFEATURE = Feature(questions=('a',))\n",
        "its card is not valid: 'str' object has no attribute",
    ),
    "eager": ("import attncli.records.kinds\n", "a card and the __init__.py of its package may import only"),
}


def test_each_card_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for name, (code, _) in BROKEN.items():
        install_card(tmp_path, f"attn_{name}", name, {"feature": code})
    command = "import sys\nfrom attncli.cli import run\nsys.exit(run(['self', 'a b']))"
    done = python(command, tmp_path, tmp_path, ROOT)
    assert done.returncode == 0 and "a" in done.stdout
    lines = sorted(done.stderr.splitlines())
    for line, (name, (_, why)) in zip(lines, sorted(BROKEN.items()), strict=True):
        assert line.startswith(f"plugin {name} (attn-{name.replace('_', '-')} 1.0): ") and why in line
    line_of_shell = {"_ATTN_COMPLETE": "complete_bash", "COMP_WORDS": "attn se", "COMP_CWORD": "1"}
    assert (
        python("from attncli.cli import run\nrun([])", tmp_path, tmp_path, ROOT, **line_of_shell).stderr == ""
    )


def test_a_report_of_an_unknown_kind_is_shown_whole_and_kept(saved: Path, tmp_path: Path) -> None:
    report = json.loads((saved / "heads.json").read_text())
    report |= {"experiment": "spread", "kind": "spread of texts"}
    (tmp_path / "x.json").write_text(json.dumps(report))
    shown, written = attn([["show", "x.json"], ["show", "x.json", "-o", "y.json"]], tmp_path)
    assert (shown.code, written.code, shown.err) == (0, 0, "") and "curve\n" in shown.out
    again = json.loads((tmp_path / "y.json").read_text())
    assert {name: again[name] for name in report if name != "notes"} == {
        name: value for name, value in report.items() if name != "notes"
    }
    (tmp_path / "x.json").write_text(json.dumps(report | {"kind": "a\x1b[1m"}))
    (refused,) = attn([["show", "x.json"]], tmp_path)
    assert refused.code == 2 and "kind: must be a printable name" in refused.err
