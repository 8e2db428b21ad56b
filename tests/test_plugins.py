"""Packages that extend attn, one of them examples/attn-spread, run by commands."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from attncli.cli import COMMANDS
from attncli.feature import FORMER_GROUPS
from attncli.settings import KERNEL_COMMANDS, QUESTIONS
from attncli.views import VIEWS
from tests.test_adding import ROOT, install_wheel
from tools.architecture_sweep.folders import head_class, save_model, text_of

RUN = """if True:
    import io, json, sys
    from contextlib import redirect_stderr, redirect_stdout
    from attncli.cli import run
    ended = []
    for arguments in json.load(sys.stdin):
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = run(arguments)
        ended.append([code, out.getvalue(), err.getvalue()])
    print(json.dumps(ended))
"""


class Ended(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def install(site: Path, name: str, modules: dict[str, str], entry_points: dict[str, dict[str, str]]) -> None:
    """Write a package's modules and metadata as `pip install --target` does."""
    for module, code in modules.items():
        (site / f"{module}.py").write_text(code)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = [
        "\n".join([f"[attncli.{group}]", *(f"{key} = {place}" for key, place in of_group.items())])
        for group, of_group in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(sections) + "\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages with examples/attn-spread."""
    site = tmp_path_factory.mktemp("site")
    install_wheel(site)
    return site


def install_card(site: Path, package: str, name: str, modules: dict[str, str]) -> None:
    """Install a package with a card, its module feature.py, and an entry point with that name."""
    (site / package).mkdir(parents=True)
    for module, code in {"__init__": "", **modules}.items():
        (site / package / f"{module}.py").write_text(code)
    install(site, package, {}, {"features": {name: f"{package}.feature:FEATURE"}})


def attn(
    commands: Sequence[Sequence[str]],
    folder: Path,
    *sites: Path,
    root: Path = ROOT,
    off: str = "",
    then: str = "",
) -> list[Ended]:
    """What commands print in one process that has the packages of these folders, and attn from `root`.

    It runs the code `then` after them.
    """
    path = ":".join(map(str, (*sites, root)))
    process = subprocess.run(
        [sys.executable, "-c", RUN + then],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **{"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(folder)},
            **{"OMP_NUM_THREADS": "1", "ATTN_OFF": off},
        },
        timeout=120,
        check=True,
    )
    return [Ended(*ended) for ended in json.loads(process.stdout)]


def test_a_package_works_with_views_batches_and_exports(site: Path, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("experiment: similarity\nsweep: {embed_dim: [4, 8]}\n")
    words = ["the cat sees the cat", "--embed-dim", "5"]
    commands = {
        "help": ["--help"],
        "table": ["similarity", *words],
        "centered": ["similarity", *words, "--centered", "-o", "x.json"],
        "saved": ["similarity", *words, "-o", "y.json"],
        "batch": ["batch", "b.yaml", "-o", "b.db", "--workers", "1", "--expect", "similarity.max < 1.5"],
        "schema": ["info", "config-schema"],
    }
    # dot only draws which heads feed which, and subtitles only have spoken words.
    every = [view for view in (*VIEWS, "tsv") if view not in ("dot", "srt", "vtt")]
    commands |= {f"as {view}": ["similarity", *words, "-o", f"y.{view}", "--format", view] for view in every}
    commands["difference"] = ["diff", "y.json", "x.json"]
    commands["export as parquet"] = ["results", "--tidy", "b.db", "-o", "b.parquet"]
    commands["results"] = ["results", "b.db"]
    commands["synonym"] = ["reach"]
    ended = dict(zip(commands, attn([*commands.values()], tmp_path, site), strict=True))
    assert {name for name, each in ended.items() if each.code} == {"synonym"}
    assert ended["synonym"].err == "reach: is not a command: did you mean attn spread?\n"
    models, learn = (ended["help"].out.partition(f"{group}:\n")[2] for group in ("Models", "Learn"))
    assert "\n  spread      Distance between the keys" in models.partition("\n\n")[0]
    assert "\n  similarity  Similarity of the vectors" in learn.partition("\n\n")[0]
    for name in ("as csv", "as heatmap", "as md"):
        assert "similarity" in (tmp_path / f"y.{name[3:]}").read_text()
    assert "similarity" in ended["table"].out and "similarity" in ended["difference"].out
    assert "similarity" in (tmp_path / "y.html").read_text() and "similarity" in ended["schema"].out
    assert "similarity.variance" in ended["results"].out
    assert all((tmp_path / f"y.{view}").stat().st_size for view in every)
    assert (tmp_path / "b.parquet").exists()


@pytest.fixture(scope="module")
def lfm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model with short convolutions, which attn does not measure without a package."""
    folder = tmp_path_factory.mktemp("lfm2")
    save_model("lfm2", folder, head_class("lfm2"))
    return folder


@torch.no_grad()
def convolution_row_sums(folder: Path, text: str) -> list[float]:
    """The sums of the rows of the first convolution, in loops: w_ij = C_i k_(i-j) B_j, mean over channels."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    module, projected = model.model.layers[0].conv, list[torch.Tensor]()
    module.in_proj.register_forward_hook(
        lambda _module, _inputs, output: projected.append(output[0].double())
    )
    model(**AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt"))
    write, read, _ = projected[0].chunk(3, dim=-1)
    taps = module.conv.weight[:, 0].double()
    most = taps.shape[-1] - 1
    return [
        sum(
            float((read[i] * taps[:, most - i + j] * write[j]).mean()) for j in range(max(0, i - most), i + 1)
        )
        for i in range(len(read))
    ]


@pytest.mark.nightly
def test_layers_of_a_package_are_listed_and_measured(site: Path, lfm2: Path, tmp_path: Path) -> None:
    words = [text_of(11), "--model", str(lfm2), "--format", "json"]
    commands = [[name, *words] for name in ("heads", "ablate", "why", "circuit")]
    commands.append(["generate", *words, "--max-new-tokens", "2"])
    ended = attn(commands, tmp_path, site)
    assert [each.code for each in ended] == [0] * 5, ended
    heads, effects, logit, edges, written = (json.loads(each.out) for each in ended)
    assert not {"missing"} & (heads.keys() | effects.keys() | logit.keys() | edges.keys())
    rows = heads["statistics"]["linear"]
    assert {(row["layer"], row["head"], row["mixer"]) for row in rows} == {
        (0, 0, "short convolution"),
        (2, 0, "short convolution"),
    }
    sums = convolution_row_sums(lfm2, text_of(11))
    assert rows[0]["row_sum"] == pytest.approx(sum(sums) / len(sums), rel=1e-4)
    assert rows[0]["local_share"] == pytest.approx(1) and rows[0]["half_life"] is None
    kinds = {(row["layer"], row["kind"], row["pattern"]) for row in effects["statistics"]["heads"]}
    assert (0, "linear", "short convolution, all channels") in kinds and (1, "self", "") not in kinds
    parts = logit["statistics"]["parts"]
    assert parts["sum"] == pytest.approx(parts["logit"], abs=1e-4)
    assert any(row["from"] == "linear:0:0" for row in edges["statistics"]["edges"])
    why = "Without a softmax and therefore not shown: short convolution in layers 0, 2."
    assert written["missing"] == why, "its layer has no cache of rows"


@pytest.mark.nightly
def test_layers_without_their_package_are_named(lfm2: Path, tmp_path: Path) -> None:
    commands = [["heads", text_of(11), "--model", str(lfm2)], ["why", text_of(11), "--model", str(lfm2)]]
    heads, why = attn(commands, tmp_path)
    assert (
        heads.out.splitlines()[1]
        == "Without a softmax and therefore not shown: short convolution in layers 0, 2."
    )
    assert (
        why.code == 2
        and "attn cannot split the heads of its short convolution layers: use a decoder" in why.err
    )


PARTS = """from attncli.feature import Feature, LayerSource, Question, View

FEATURE = Feature(
    questions=(
        Question("gone", "How far each head looks", "Models", "settings:Spec"),
        Question("lost", "How far each head looks", "Models", command="commands:command"),
    ),
    results={"gone": "results:Kind", "heads of gone": "results:Heads"},
    screens={"results:Kind": "screens:KIND"},
    functions={"gone": "door:gone"},
    statistics={"gone_mass": "statistics:gone_mass"},
    views={"gone": View("views:write", (".gone",))},
    engines={"gone": "engines:GONE"},
    layer_sources={"gone": LayerSource("layers:capture", {"gated recurrence": ""})},
)
"""
MODULES = ("settings", "commands", "results", "screens", "door", "statistics", "views", "engines", "layers")
WHY = "cannot be imported: ModuleNotFoundError: No module named 'a_package_that_is_not_there'"


def line_of(place: str) -> str:
    return f"plugin gone (attn-gone 1.0): attn_gone.{place} {WHY}"


@pytest.mark.nightly
def test_a_broken_module_prints_a_line_and_other_parts_work(site: Path, tmp_path: Path) -> None:
    """Every module except the card is broken; each process prints each message once."""
    broken = tmp_path / "site"
    broken.mkdir()
    modules = dict.fromkeys(MODULES, "import a_package_that_is_not_there\n")
    install_card(broken, "attn_gone", "gone", {**modules, "feature": PARTS})

    def ended(*commands: list[str]) -> list[Ended]:
        return attn(commands, tmp_path, site, broken)

    shown, command, other, view, works = ended(
        ["--help"], ["gone"], ["lost"], ["average", "a b", "--format", "gone"], ["similarity", "a b"]
    )
    assert (shown.code, shown.err) == (0, "") and "\n  gone " in shown.out and "\n  lost " in shown.out
    assert (command.code, command.out, command.err) == (1, "", f"{line_of('settings:Spec')}\n")
    assert (other.code, other.out, other.err) == (1, "", f"{line_of('commands:command')}\n")
    assert (view.code, view.err) == (1, f"{line_of('views:write')}\n")
    assert works.code == 0

    (found,) = ended(["self", "a b c", "--format", "json"])
    assert (found.code, {*found.err.splitlines()}) == (
        0,
        {line_of("engines:GONE"), line_of("statistics:gone_mass")},
    )
    rows = json.loads(found.out)["statistics"]["rows"]
    assert {*rows["gone_mass"]} == {None} and None not in rows["nearby_mass"]

    (spread,) = ended(["spread", "a b", "--format", "json"])
    report = json.loads(spread.out) | {"experiment": "gone"}
    (tmp_path / "gone.json").write_text(json.dumps(report))
    shown, again = ended(["show", "gone.json"], ["show", "gone.json", "--format", "json"])
    assert shown.code == 0 and "\nheads\n" in shown.out and "spread" in shown.out
    assert shown.err.splitlines() == [line_of("results:Kind"), line_of("settings:Spec")]
    assert again.err == "" and json.loads(again.out) == report

    save_model("recurrent_gemma", tmp_path / "hybrid")
    survey, hybrid = ended(["heads", "a b a b"], ["heads", text_of(7), "--model", str(tmp_path / "hybrid")])
    assert hybrid.code == 0 and line_of("layers:capture") in hybrid.err.splitlines()
    assert "no softmax: gated recurrence in layer" in hybrid.out
    lines = survey.err.splitlines()
    assert survey.code == 0 and line_of("results:Heads") in lines
    assert len(lines) == len({*lines}) and all(line.endswith(WHY) for line in lines)

    (listed,) = ended(["info", "plugins"])
    assert listed.code == 1
    assert [re.split(r"\s{2,}", line) for line in listed.out.splitlines()] == [
        ["features", "gone", "attn-gone 1.0", line_of("settings:Spec").partition(": ")[2]],
        ["features", "spread", "attn-spread 1.0", "ok"],
    ]


@pytest.mark.nightly
def test_an_error_while_a_question_runs_names_the_package(tmp_path: Path) -> None:
    """A module that the page imports later is broken; earlier reports are still shown as tables."""
    install_wheel(tmp_path)
    package = "plugin spread (attn-spread 1.0)"
    (saved,) = attn([["spread", "a b", "-o", "x.json"]], tmp_path, tmp_path)
    for module, part in {"screens": "SCREEN", "results": "HeadSpreads"}.items():
        (tmp_path / "attn_spread" / f"{module}.py").write_text("raise ValueError('a\\x1b[1m')\n")
        shown, asked = attn([["show", "x.json"], ["spread", "a b"]], tmp_path, tmp_path)
        line = f"{package}: attn_spread.{module}:{part} cannot be imported: ValueError: a\\x1b[1m\n"
        assert (saved.code, shown.code, shown.err) == (0, 0, line) and "\nheads\n" in shown.out
        assert asked.code == (module == "results")
    assert re.fullmatch(
        f"{re.escape(package)}: ValueError: a\\S+ \\(use --debug to see where\\)\n", asked.err
    )


@pytest.mark.nightly
def test_a_broken_block_and_a_missing_lesson_print_a_line_each(tmp_path: Path) -> None:
    install_wheel(tmp_path)
    folder = tmp_path / "attn_spread"
    (folder / "spread.css").unlink()
    (folder / "lessons" / "01-spread.md").unlink()
    commands = [["spread", "a b", "-o", "x.html"], ["lesson"], ["info", "plugins"]]
    written, listed, plugins = attn(commands, tmp_path, tmp_path)
    why = "FileNotFoundError: spread.css is not in the folder of the block spread"
    broken = f"attn_spread.page:BLOCK cannot be imported: {why}"
    assert (written.code, written.err) == (0, f"plugin spread (attn-spread 1.0): {broken}\n")
    assert '"heads"' in (tmp_path / "x.html").read_text()
    lost = (
        "plugin spread (attn-spread 1.0): attn_spread:lessons/01-spread.md cannot be read: FileNotFoundError"
    )
    assert (listed.code, listed.err.count("\n")) == (0, 1) and listed.err.startswith(lost)
    assert listed.out.splitlines()[-1] == "Next: attn lesson 1" and len(listed.out.splitlines()) > 20
    assert plugins.code == 1 and plugins.out.rstrip().endswith(broken)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise ValueError('odd rows')", "ValueError: odd rows"),
        (
            "return rows.weights",
            r"TypeError: must return a tensor of shape \(.*\), one number per row \(got shape",
        ),
    ],
)
def test_a_statistic_that_fails_is_named(tmp_path: Path, body: str, why: str) -> None:
    card = (
        "from attncli.feature import Feature\nFEATURE = Feature(statistics={'odd_mass': 'statistics:mass'})\n"
    )
    modules = {"feature": card, "statistics": f"def mass(rows):\n    {body}\n"}
    install_card(tmp_path / "site", "attn_odd", "odd", modules)
    (ended,) = attn([["self", "the cat sees the cat"]], tmp_path, tmp_path / "site")
    assert ended.code == 1
    assert re.fullmatch(rf"plugin .*: statistic odd_mass: {why}.*\n", ended.err), ended.err


def test_a_function_of_a_broken_module_raises_the_line(tmp_path: Path) -> None:
    install_card(tmp_path, "attn_gone", "gone", {"door": "raise SystemExit(5)", "feature": PARTS})
    code = """
import attncli
try:
    attncli.gone
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    assert (
        done.stdout == "plugin gone (attn-gone 1.0): attn_gone.door:gone cannot be imported: SystemExit: 5\n"
    )


def test_entry_points_of_former_groups_are_reported(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    former = {group: {f"old_{group}": "attn_old:PART"} for group in FORMER_GROUPS}
    install(site, "attn_old", {"attn_old": "raise SystemExit(5)"}, former)
    listed, shown = attn([["info", "plugins"], ["self", "a b"]], tmp_path, site)
    assert listed.code == 1
    assert [re.split(r"\s{2,}", line) for line in listed.out.splitlines()] == [
        [
            *(group, f"old_{group}", "attn-old 1.0"),
            f"no longer supported: list the part in the card's `{field}`, and the card in attncli.features",
        ]
        for group, field in FORMER_GROUPS.items()
    ]
    assert (shown.code, shown.err) == (0, "")


def test_damaged_metadata_of_a_package_that_torch_reads_are_named(tmp_path: Path) -> None:
    """Any package, because torch looks for backends in all entry points."""
    install(tmp_path, "damaged", {}, {})
    (tmp_path / "damaged-1.0.dist-info" / "entry_points.txt").write_bytes(b"[a]\n\xff")
    done = subprocess.run(
        [sys.executable, "-m", "attncli", "self"],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "damaged 1.0: its entry_points.txt is damaged, so torch cannot be imported: reinstall the package\n"
    )


def test_help_imports_only_cards_from_packages(tmp_path: Path) -> None:
    """Damaged metadata is ignored."""
    site = tmp_path / "site"
    site.mkdir()
    for number in range(10):
        modules = {**dict.fromkeys(MODULES, "raise SystemExit(5)")}
        code = PARTS.replace('"gone"', f'"p{number}"').replace('"lost"', f'"q{number}"')
        install_card(site, f"attn_p{number}", f"p{number}", {**modules, "feature": code})
    for name, content in {
        "cut": b"[attncli.features",
        "binary": b"[attncli.features]\n\xff",
        "odd": b"[attncli.features]\na b",
    }.items():
        (site / f"{name}-1.0.dist-info").mkdir()
        (site / f"{name}-1.0.dist-info" / "entry_points.txt").write_bytes(content)
    (ended,) = attn([["--help"]], tmp_path, site)
    assert (ended.code, ended.err) == (0, "") and all(f"p{number}  " in ended.out for number in range(10))


def test_no_question_has_the_name_of_a_kernel_command() -> None:
    assert {*COMMANDS} - {*QUESTIONS} <= KERNEL_COMMANDS
