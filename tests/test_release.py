"""The release: built from the source distribution, installed elsewhere, and used as in the README."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from email import message_from_bytes
from itertools import chain
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from attncli import __version__
from attncli.records.papers import bibliography
from tests.same_text import assert_same_text
from tools import with_progress

ROOT = Path(__file__).parent.parent


def run(command: Sequence[str | Path], **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    out: str = done.stdout
    return out


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, with the compiler of this machine if there is one."""
    folder = tmp_path_factory.mktemp("release")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT])
    (wheel,) = folder.glob(f"attncli-{__version__}-*.whl")
    assert (folder / f"attncli-{__version__}.tar.gz").exists()
    return wheel


# Modules are compiled when they are imported: pip would compile all of them, in four environments.
OPTIONS = ("--no-deps", "--no-index", "--no-compile")


def installed(wheel: Path, interpreter: str, folder: Path) -> Path:
    """Return the installed command, in an environment with attn's dependencies but not the repository."""
    run([interpreter, "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", python, "install", *OPTIONS, wheel])
    (site,) = folder.glob("lib/*/site-packages")
    # A folder in a .pth file is added to the path, but its .pth files are not read: no editable install.
    needed = [folder for folder in sys.path if Path(folder).name == "site-packages"]
    (site / "needed.pth").write_text("".join(f"{folder}\n" for folder in needed))
    place = run([python, "-c", "import attncli; print(attncli.__file__)"], cwd=folder)
    assert Path(place.strip()).is_relative_to(site)
    return python.parent / "attn"


@pytest.fixture(scope="module")
def attn(wheel: Path) -> Path:
    return installed(wheel, sys.executable, wheel.parent / "env")


def other_interpreters() -> Iterator[str]:
    """Yield an interpreter for each other supported version of Python that this machine has."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for version in re.findall(r'Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()):
        known = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"{version}.*/bin/python"))]
        code = f"import sys; assert sys.version_info[:2] == ({version.replace('.', ', ')})"
        working = (
            one
            for one in known
            if one and not subprocess.run([one, "-c", code], capture_output=True).returncode
        )
        if version != f"{sys.version_info.major}.{sys.version_info.minor}" and (one := next(working, None)):
            yield one


@pytest.mark.nightly
def test_other_versions_of_python_run_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """Only commands without compiled packages: torch and pydantic are installed for one version."""
    pass_in_use = "compiled" if shutil.which("cc") else "torch"
    for number, interpreter in enumerate(other_interpreters()):
        command = installed(wheel, interpreter, tmp_path / str(number))
        bare = {"PATH": "/nowhere", "COLUMNS": "80"}
        version = run([command, "--version"], cwd=tmp_path, env=bare)
        assert version == f"attn {__version__} (tile pass: {pass_in_use})\n"
        assert run([command, "--help"], cwd=tmp_path, env=bare).startswith("Usage: attn ")


def test_the_wheel_has_the_compiled_pass(attn: Path, tmp_path: Path) -> None:
    pass_in_use = "compiled" if shutil.which("cc") else "torch"
    assert run([attn, "--version"], cwd=tmp_path) == f"attn {__version__} (tile pass: {pass_in_use})\n"
    off = run([attn, "--version"], cwd=tmp_path, env={**os.environ, "ATTN_COMPILED": "0"})
    assert off == f"attn {__version__} (tile pass: torch)\n"


@pytest.mark.nightly
def test_without_a_compiler_a_wheel_is_for_every_machine_and_works(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("*.so", ".git", ".venv", "tests", "docs", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, source]
    said = run(build, env={**os.environ, "CC": str(tmp_path / "no-such-compiler")})
    assert "error" not in said.lower() and "warning" not in said.lower()
    wheel = tmp_path / f"attncli-{__version__}-py3-none-any.whl"
    command = installed(wheel, sys.executable, tmp_path / "env")
    bare = {"PATH": "/nowhere", "HOME": str(tmp_path), "COLUMNS": "80"}
    assert run([command, "--version"], cwd=tmp_path, env=bare) == f"attn {__version__} (tile pass: torch)\n"
    assert "weights" in run([command, "self", "the cat"], cwd=tmp_path, env=bare)


def first_commands() -> dict[str, str]:
    """The README's first commands that need only attn, with their outputs."""
    blocks = re.findall(
        r"```console\n\$ (attn[^|\n]*)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    return {command: shown for command, shown in blocks if "/" not in command and "\n$ " not in shown}


def test_the_first_commands_of_the_readme(attn: Path, tmp_path: Path) -> None:
    commands = [*first_commands().items()]
    assert commands
    path = f"{attn.parent}{os.pathsep}{os.environ['PATH']}"
    for command, shown in commands:
        out = run(["bash", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": path, "COLUMNS": "80"})
        assert_same_text("".join(f"{line.rstrip()}\n" for line in out.splitlines()), shown)


def urls() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, str] = project["urls"]
    return found


def anchors(page: Path) -> set[str]:
    """The ids that a site gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_link_of_the_description_has_a_target(wheel: Path) -> None:
    """A package index renders it: no link is relative, and files in the repository exist."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = MarkdownIt("commonmark").enable("table").render(metadata.get_payload())
    links, images = (re.findall(rf'<{tag}="([^"]*)"', page) for tag in ("a href", "img src"))
    assert len(images) == 3 and len(links) > 20
    pages, files = (
        f"{urls()['Repository']}/blob/HEAD/",
        "https://raw.githubusercontent.com/attncli/attn/HEAD/",
    )
    assert files.split("/")[3:5] == urls()["Repository"].split("/")[3:5]
    for target in [*links, *images, *urls().values()]:
        assert target.startswith("https://"), target
        path, _, anchor = target.removeprefix(files if target in images else pages).partition("#")
        if "https:" not in path:
            assert (ROOT / path).exists(), target
            assert not anchor or anchor in anchors(ROOT / path), target
        else:
            assert target in ("https://docs.astral.sh/uv/", urls()["Repository"], urls()["Issues"]), target
    assert all("https:" not in image.removeprefix(files) for image in images)


def test_every_file_names_the_same_repository() -> None:
    place = urls()["Repository"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["repository-code"] == place
    assert bibliography()["attn"].fields["url"] == place
    entry = (ROOT / "README.md").read_text().partition("```bibtex\n")[2].partition("```")[0]
    itself = bibliography()["attn"]
    fields = {**itself.fields, "version": __version__}
    order = ("author", "title", "version", "url")
    assert entry.strip() == itself._replace(fields={name: fields[name] for name in order}).bibtex()
    assert f"home: {place}\n" in (ROOT / "conda" / "meta.yaml").read_text()


def test_the_wheel_has_lessons_and_the_man_page(attn: Path, tmp_path: Path) -> None:
    lesson = run([attn, "lesson", "1"], cwd=tmp_path)
    assert re.search(r"^2 bat +0\.02.* 0\.27 ", lesson, re.MULTILINE)  # of a command, not of the page
    shown = run([attn, "show", "lessons/bat-cave.json"], cwd=tmp_path)
    assert re.search(r"^2 bat +0\.02.* 0\.27 ", shown, re.MULTILINE)
    assert "weights" in run([attn, "batch", "lessons/glove.yaml", "--show", "weights"], cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    run([attn, "lesson", "--copy", "lessons"], cwd=tmp_path)
    assert (tmp_path / "lessons" / "causal.yaml").read_text().startswith("#")
    page = attn.parents[1] / "share" / "man" / "man1" / "attn.1"
    assert page.read_text() == (ROOT / "docs" / "attn.1").read_text()


@pytest.mark.nightly  # the README begins with a survey of it
def test_the_wheel_has_a_model(attn: Path, tmp_path: Path) -> None:
    assert "heads" in run([attn, "heads", "--num-tokens", "6"], cwd=tmp_path)


@pytest.mark.nightly
def test_a_program_of_another_interpreter_is_recorded(attn: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys, torch\n"
        "torch.nn.MultiheadAttention(8, 2)(*[torch.randn(3, 1, 8)] * 3)\n"
        "print(sys.modules['attncli'].__file__)\n"
    )
    out = run([attn, "record", "-o", "heads.json", "--", sys.executable, "program.py"], cwd=tmp_path)
    assert Path(out.strip()).is_relative_to(attn.parents[1]) and (tmp_path / "heads.json").exists()


def test_every_file_names_this_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[headings[0] == "Unreleased"] == __version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    form = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
    assert f'placeholder: "attn {__version__} (tile pass: ' in form


def test_the_extra_all_has_every_extra_for_users() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (every,) = map(Requirement, extras["all"])
    assert every.extras == extras.keys() - {"all", "dev", "docs"}
    assert "attncli[all,docs]" in extras["dev"]


def test_the_conda_recipe_has_what_the_package_needs() -> None:
    text = jinja2.Template((ROOT / "conda" / "meta.yaml").read_text()).render(
        compiler=lambda language: language
    )
    recipe = yaml.safe_load(text)
    assert recipe["package"] == {"name": "attncli", "version": __version__}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {Requirement(line.partition("  #")[0]) for line in project["dependencies"]}
    wanted = {f"{'pytorch' if each.name == 'torch' else each.name} {each.specifier}" for each in needed}
    written = {Requirement(line.replace(" ", "", 1)) for line in recipe["requirements"]["run"]}
    assert {f"{each.name} {each.specifier}" for each in written} == {
        *wanted,
        f"python {project['requires-python']}",
    }


def test_progress_is_printed_during_a_silent_installation(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "installed").write_bytes(bytes(3 * 10**6))
    assert with_progress.run(tmp_path, ["sh", "-c", "sleep 0.5; exit 3"], seconds=0.2) == 3
    first, *_ = capfd.readouterr().out.splitlines()
    assert first == f"  still installing after 0 s: 3 MB in {tmp_path}"
    assert with_progress.run(tmp_path / "absent", ["true"]) == 0 and capfd.readouterr().out == ""


def test_folders_that_disappear_while_they_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir
    for name in ("stays", "goes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(bytes(10**6))

    def scan_late(path: Any) -> Any:
        if Path(path).name == "goes":
            raise FileNotFoundError(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_late)
    assert with_progress.megabytes(tmp_path) == 1


@pytest.mark.parametrize("name", ["numpy", "rich", "textual", "transformers", "typer"])
def test_dependencies_allow_the_tested_version_but_not_the_next(name: str) -> None:
    """The next major version is excluded; for transformers, whose private parts attn uses, the next minor."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    every = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    (allowed,) = {
        str(each.specifier) for each in map(Requirement, every) if each.name == name and each.specifier
    }
    (tested,) = re.findall(rf"^{name}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    major, minor, *_ = Version(tested).release
    following = f"{major}.{minor + 1}" if name == "transformers" else f"{major + 1}"
    assert SpecifierSet(allowed).contains(tested) and not SpecifierSet(allowed).contains(following)
