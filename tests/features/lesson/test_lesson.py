"""`attn lesson`: the shipped pages, the numbers that they quote, and their files."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from attncli.cli import COMMANDS
from attncli.features.lesson.question import CommandLine, Prose, lessons, pages, read_lesson
from tests.conftest import Attn
from tests.running import LESSON_FILES

ALL = lessons()
PAGES = {number: text for number, _, text in pages()}
OF_NUMBER = {each.number: each for each in ALL}
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?![\w.])")


def test_lessons_are_listed_in_order(attn: Attn) -> None:
    listed = attn(["lesson"]).out.splitlines()
    assert [line.split()[0] for line in listed[: len(ALL)]] == [str(each.number) for each in ALL]
    assert listed[-1] == "Next: attn lesson 1" and len(listed) < 24 and max(map(len, listed)) <= 80
    readme = (LESSON_FILES.parent / "README.md").read_text()
    assert re.findall(r"^(\d+)\. \[.*?\]\(.*?/lessons/(.*?)\)", readme, re.MULTILINE) == [
        (str(each.number), f"{each.number:02}-{each.name}.md") for each in ALL
    ]


@pytest.mark.parametrize("number", PAGES)
def test_every_command_of_a_page_is_run_and_needs_no_shell(number: int) -> None:
    blocks = re.findall(r"```console\n(.*?)```", PAGES[number], re.DOTALL)
    written = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    parts = OF_NUMBER[number].parts
    commands = [part.line for part in parts if isinstance(part, CommandLine)]
    assert written == [f"attn {line}" for line in commands] and commands
    assert all(shlex.split(line)[0] in COMMANDS for line in commands)
    assert not [line for line in commands if re.search(r"[|&;<>$`*?]", line)]
    prose = " ".join(part.text for part in parts if isinstance(part, Prose))
    assert "](" not in prose and "```" not in prose


@pytest.mark.parametrize("number", PAGES)
def test_nothing_of_a_page_is_lost_or_damaged(number: int) -> None:
    """Letter by letter, apart from spaces and the lesson numbers that links add."""
    source = re.sub(r"```console\n.*?```", "", PAGES[number], flags=re.DOTALL).removeprefix("# ")
    source = re.sub(r"\[([^][]*)\]\([^() ]*\.md\)", r"\1", source.replace("```", ""))
    parts = [part.text for part in OF_NUMBER[number].parts if isinstance(part, Prose)]
    shown = re.sub(r" \(attn lesson \d+\)", "", " ".join([OF_NUMBER[number].title, *parts]))
    assert "".join(shown.split()) == "".join(source.split())


PAGE = """# From U[0, 1) to `a[b](c)`

A draw from U[0, 1), or [a *second*
one](13-scaling.md) (see [these [two]](https://example.org/x)); `[no](link.md)`, \\[neither], [nor this].

    literal  [0, 1)

- one [page](../x.md)
- two

  ```
  [as it is](y.md)
  ```

3. three

> said

```console
$ attn norm
mean [0, 1)

$ attn self
```
"""


def test_what_a_page_may_hold() -> None:
    assert read_lesson(3, "x", PAGE) == (
        3,
        "x",
        "From U[0, 1) to `a[b](c)`",
        (
            Prose(
                "A draw from U[0, 1), or a *second* one (attn lesson 13) (see these [two] "
                "(https://example.org/x)); `[no](link.md)`, [neither], [nor this]."
            ),
            Prose("    literal  [0, 1)", literal=True),
            Prose("- one page"),
            Prose("- two"),
            Prose("[as it is](y.md)", literal=True),
            Prose("3. three"),
            Prose("said"),
            CommandLine("norm"),
            CommandLine("self"),
        ),
    )


@pytest.mark.parametrize("number", PAGES)
def test_every_number_that_a_lesson_quotes_is_in_its_own_output(number: int) -> None:
    blocks = re.findall(r"```console\n(.*?)```", PAGES[number], re.DOTALL)
    printed = [float(text) for block in blocks for text in NUMBER.findall(block)]
    for part in OF_NUMBER[number].parts:
        for text in NUMBER.findall(part.text) if isinstance(part, Prose) else ():
            decimals = len(text.partition(".")[2])
            assert any(f"{value:.{decimals}f}" == text for value in printed), (text, part.text)


@pytest.mark.nightly
def test_the_program_of_a_lesson_is_printed_whole_and_runs(attn: Attn) -> None:
    """With the Python that runs attn, whatever is on PATH."""
    (printed,) = (part.text for part in OF_NUMBER[22].parts if isinstance(part, Prose) and part.literal)
    assert printed == (LESSON_FILES / "own-model.py").read_text().rstrip()
    ended = attn(["lesson", "own-model"])
    assert ended.code == 0 and re.search(r"^layer 0 +P +D$", ended.out, re.MULTILINE)
    assert re.search(r"^0 b +-1\.00 .* 0\.97 ", ended.out, re.MULTILINE)


@pytest.mark.parametrize("which", ["residual-stream", "4"])
def test_a_pipe_gets_the_whole_lesson(attn: Attn, which: str) -> None:
    ended = attn(["lesson", which])
    assert (ended.code, ended.err) == (0, "")
    (found,) = (each for each in ALL if which in (str(each.number), each.name))
    assert ended.out.startswith(f"\n══ Lesson {found.number}: {found.title} ")
    assert f"\nNext: attn lesson {found.number + 1} " in ended.out
    flat = ended.out.split()
    for block in re.findall(r"```console\n(.*?)```", PAGES[found.number], re.DOTALL):
        words = block.split()
        assert words in [flat[i : i + len(words)] for i, word in enumerate(flat) if word == "$"]


@pytest.mark.parametrize(
    ("which", "near"),
    [
        *((which, f"one of 1 to {len(ALL)}") for which in ("99", "01", "../README", "")),
        ("Vectors", "11 glove"),
    ],
)
def test_unknown_lessons_are_refused(attn: Attn, which: str, near: str) -> None:
    line = f"lesson: no lesson is called {which}: give {near} (see attn lesson for a list)\n"
    assert attn(["lesson", which]) == (2, "", line)


def test_a_lesson_continues_after_a_command_that_fails(attn: Attn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncli.commands.command.resolved_file", lambda file: file)
    ended = attn(["lesson", "1"])
    assert ended.code == 1 and "Next: attn lesson 2" in ended.out
    assert ended.err.count("lessons/bat-cave.json: ") == 1


def test_files_are_copied_and_never_overwritten(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only files, although pip compiles the program beside them."""
    installed = tmp_path / "installed"
    shutil.copytree(LESSON_FILES, installed, ignore=shutil.ignore_patterns("__pycache__"))
    (installed / "__pycache__").mkdir()
    monkeypatch.setattr("attncli.features.lesson.question.LESSON_FILES", installed)
    folder = tmp_path / "a" / "b"
    ended = attn(["lesson", "--copy", str(folder)])
    names = sorted(file.name for file in LESSON_FILES.iterdir() if file.is_file())
    assert (ended.code, ended.out) == (0, f"{folder}: {', '.join(names)}\n")
    assert all((folder / name).read_bytes() == (LESSON_FILES / name).read_bytes() for name in names)
    ended = attn(["lesson", "--copy", str(folder)])
    assert ended == (2, "", f"{folder}: already has {names[0]}: use another folder\n")
    assert attn(["lesson", "1", "--copy", "x"]).code == 2
    (tmp_path / "file").touch()
    assert attn(["lesson", "--copy", str(tmp_path / "file" / "x")]).err.endswith(
        "cannot be written: Not a directory\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "show lessons/bat-cave.json",
        "diff lessons/copy-bird.json lessons/copy-kird.json",
        "batch lessons/glove.yaml --dry-run",
        "self --file lessons/sentence.txt --embedding random",
        "self --embedding lessons/made-up.50d.txt --show weights",
    ],
)
def test_files_of_lessons_are_found_from_any_folder(
    attn: Attn, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = attn(shlex.split(line))
    assert (ended.code, ended.err) == (0, "") and ended.out
    assert list(tmp_path.iterdir()) == []
    assert attn(["lesson", "--copy", "lessons"]).code == 0
    assert line.startswith("batch") or attn(shlex.split(line)).out == ended.out  # a plan names its files


def test_a_users_file_replaces_a_lessons_file(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lessons").mkdir()
    Path("lessons/bat-cave.json").write_text("mine")
    assert attn(["show", "lessons/bat-cave.json"]).err.startswith("lessons/bat-cave.json:1")
    assert attn(["show", "lessons/none.json"]).err == "lessons/none.json: no such file\n"
    assert attn(["show", "lessons/../bat-cave.json"]).code == 2
    assert "lessons/simple.yaml" in attn(["self", "lessons/simple.yaml"]).out
    assert attn(["self", "-o", "lessons/simple.yaml"]).code == 2


def test_attn_alone_shows_a_trained_head_and_next_commands(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    ended = attn([])
    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "") and len(lines) < 24 and max(map(len, lines)) <= 80
    assert re.search(r"^2 bat +0\.02 .* 0\.27 ", ended.out, re.MULTILINE)
    assert 'Row 2: "bat" looks most at "cave" (0.27) and "flew" (0.19).' in ended.out
    ways = [shlex.split(line.split("   ")[0]) for line in lines[-4:]]
    assert [words[:2] for words in ways] == [["attn", name] for name in ("self", "lesson", "heads", "--help")]
    assert all(attn(words[1:]).code == 0 for words in ways if "FOLDER" not in words)
    assert list(tmp_path.iterdir()) == []
