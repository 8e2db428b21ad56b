"""What attn serve answers is what the commands say: the same reports, by the same settings."""

import copy
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import attncli
from attncli.features.serve.page import report_line
from attncli.features.serve.questions import AskedFor, Question
from attncli.features.serve.served_model import ServedModel
from attncli.models.removal import heads_removed
from attncli.settings.fields import Given
from tests.conftest import Attn
from tests.features.serve.served import Running, running
from tests.model_folders import save_model, save_writer
from tests.running import run
from tests.views.page.test_page import reports_in

TEXT = "abcabcab"
HOSTILE = "<script>alert(1)</script> a\u202eb [/INST]\n\x1b[31m &amp; {{x}}"


@pytest.fixture(scope="module")
def shipped() -> ServedModel:
    return ServedModel({}, attncli.open_model())


@pytest.fixture(scope="module")
def served(shipped: ServedModel) -> Iterator[Running]:
    with running(shipped.answer) as it:
        yield it


def compared(data: Mapping[str, Any]) -> dict[str, Any]:
    """A report without what says where its model came from, and its title, which names a token here."""
    return {key: value for key, value in data.items() if key not in ("settings", "heading", "title")}


TOKEN_C = 4
TOO_LONG = "must be at most 128 tokens for tiny-induction (got 3001)"


COMMANDS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "heads": (["--ablate", "0:1,1:0"], {"heads": ["0:1", "1:0"]}),
    "why": (["--answer", '"c"'], {"token": TOKEN_C}),
    "ablate": (["--heads", "0:1,1:0", "--jointly"], {"heads": ["0:1", "1:0"]}),
    "ablate all": ([], {}),
    "heads by tokens": (["--from", "b", "--to", "a,c#2"], {"queries": ["b"], "keys": ["a", "c#2"]}),
    "generate": (["--max-new-tokens", "5"], {"steps": 5}),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_answer_is_the_page_of_the_command(attn: Attn, served: Running, tmp_path: Path, name: str) -> None:
    flags, question = COMMANDS[name]
    ask = name.split()[0]
    page = tmp_path / "page.html"
    assert attn([ask, "--sentence", TEXT, *flags, "-o", str(page)]).code == 0
    (expected,) = reports_in(page.read_text())
    *others, announced, report = served.ask(ask, TEXT, **question).lines()
    if ask == "why":
        assert report.pop("subtitle") + ', answer "c"' == expected.pop("subtitle")
    assert compared(report) == compared(expected) and announced["report"] is True
    is_without = ", without 0:1, 1:0" in report["title"]
    assert is_without == (name == "heads")
    if ask == "generate":
        written = "".join(line["written"] for line in others)
        assert written.strip("\n") == announced["text"] and announced["count"] == 5


@pytest.mark.nightly
def test_next_tokens_equal_those_from_python(served: Running, shipped: ServedModel) -> None:
    (line,) = served.ask("next", TEXT, heads=["1:0"]).lines()
    rows = attncli.next_tokens(shipped.pretrained, TEXT, heads="1:0", top=12).tokens
    for name in ("probability", "without"):
        expected = pytest.approx(rows.column(name).tolist(), rel=1e-5)
        assert [each[name] for each in line["next"]] == expected
    (plain,) = served.ask("next", TEXT).lines()
    assert all("without" not in each for each in plain["next"])
    for each in plain["next"]:  # what the page asks when one is clicked
        *_, report = served.ask("why", TEXT, token=each["id"]).lines()
        share = f"{100 * each['probability']:.{1 if each['probability'] >= 0.1 else 2}f} %"
        assert report["title"].startswith(f"Why {each['token']} ({share}) comes next: abcabcab")
        parts = attncli.why(shipped.pretrained, TEXT, answer=each["id"]).parts
        assert report["statistics"]["parts"]["logit"] == pytest.approx(parts.logit)


def test_without_a_text_the_probe_is_surveyed(served: Running) -> None:
    *_, report = served.ask("heads", "").lines()
    assert len(report["tokens"]) == 49  # [BOS] and 24 random tokens, twice
    for ask in ("next", "why", "ablate", "generate"):
        assert served.ask(ask, "").lines() == [{"error": "text: must not be empty: type a text first"}]


@pytest.mark.parametrize(
    ("ask", "more", "line"),
    [
        ("next", {"heads": ["7:0"]}, "heads: must be from 0:0 to 1:3 in tiny-induction (got 7:0)"),
        ("ablate", {"heads": ["7:0"]}, "heads: must be from 0:0 to 1:3 in tiny-induction (got 7:0)"),
        ("why", {"token": 10**6}, "answer: must be a token id of tiny-induction, below "),
        ("heads", {"keys": ["zebra"]}, "looks to: "),
        ("heads", {"text": "x" * 3000}, f"text: {TOO_LONG}: use attn serve --truncate to cut the text"),
        ("generate", {"steps": 900}, "tokens to write: must be at most 128"),
        ("next", {"text": "x" * 3000}, "text: "),
    ],
)
def test_an_error_is_the_line_of_the_command(
    served: Running, ask: str, more: dict[str, Any], line: str
) -> None:
    (reply,) = served.ask(ask, more.pop("text", TEXT), **more).lines()
    assert reply["error"].startswith(line) and "\n" not in reply["error"] and "/" not in reply["error"]


def test_hostile_text_is_data(served: Running) -> None:
    reply = served.ask("heads", HOSTILE)
    for character in ("<", "\u202e", "\x1b"):
        assert character not in reply.body.decode()
    *_, report = reply.lines()
    assert "".join(report["tokens"]).startswith("<bos><script>alert(1)</script>")
    (line,) = served.ask("next", HOSTILE).lines()
    assert line["next"]


def test_an_error_with_a_hostile_text_is_data(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "<script>\x1b[31m\n\u202e", "BERT")
    served = ServedModel({"model": Given(str(folder), "--model", True)}, attncli.open_model(folder))
    with running(served.answer) as it:
        for reply in (
            it.ask("next"),
            it.ask("heads", keys=[HOSTILE]),
            it.ask("heads", HOSTILE, heads=["9:9"]),
        ):
            ((kind, line),) = reply.lines()[-1].items()
            assert kind == "error" and not any(character in line for character in "\u202e\x1b\n")
            assert b"<" not in reply.body and "<script>" in line


def test_two_tabs_at_once_get_their_own_answers(served: Running) -> None:
    texts = [character * 5 + "b" for character in "cdef"]
    replies: dict[str, Any] = {}

    def ask(text: str) -> None:
        replies[text] = served.ask("heads", text, tab=text).lines()[-1]

    threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for text in texts:
        assert "".join(replies[text]["tokens"]).endswith(text)
        expected = report_line(run("heads", sentence=text, maps="auto"))
        assert compared(replies[text]) == compared(json.loads(expected))


def lines_of(served: ServedModel, ask: AskedFor, text: str = "the cat sat", **more: Any) -> list[Any]:
    lines: list[Any] = []
    put: Callable[[str], None] = lambda line: lines.append(json.loads(line))  # noqa: E731
    served.answer(Question(ask, "t", text, **more), Event(), put)
    return lines


@pytest.mark.parametrize("architecture", ["BERT", "T5"])
def test_questions_not_available_for_a_model_are_one_line(tmp_path: Path, architecture: str) -> None:
    folder = (save_writer if architecture == "T5" else save_model)(tmp_path / architecture, architecture)
    given = {"model": Given(str(folder), "--model", True)}
    served = ServedModel(given, attncli.open_model(folder))
    assert served.about()["remark"] and "next" not in served.asks and "why" not in served.asks
    assert lines_of(served, "next") == [{"error": f"next: is not available for {architecture}"}]
    shutil.rmtree(folder)  # it is in memory
    report = lines_of(served, "heads")[-1]
    assert report["experiment"] == "heads" and report["settings"]["model"] == architecture
    stack = "decoder:" if architecture == "T5" else ""
    assert lines_of(served, "ablate", heads=(f"{stack}0:1",))[-1]["experiment"] == "ablate"
    if "generate" in served.asks:
        assert lines_of(served, "generate", steps=3)[-1]["experiment"] == "generate"


class PanicException(BaseException):
    """As the tokenizers' Rust raises it: not an Exception."""


@pytest.mark.parametrize("kind", [ZeroDivisionError, PanicException, SystemExit])
def test_an_internal_error_is_one_line_and_the_server_continues(
    kind: type[BaseException],
    shipped: ServedModel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise kind("/home/somebody/secret.txt")

    monkeypatch.setattr(ServedModel, "_report", fail)
    with running(shipped.answer) as it:
        (line,) = it.ask("heads").lines()
        assert line == {"error": f"internal error: {kind.__name__} (please report it)"}
        monkeypatch.undo()
        assert it.ask("heads").lines()[-1]["experiment"] == "heads"
    assert "secret" not in "".join(capsys.readouterr())


def test_ablation_reports_its_progress(shipped: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncli.features.serve.served_model.SECONDS_BETWEEN_SHARES", 0)
    *shares, announced, report = lines_of(shipped, "ablate", TEXT)
    numbers = [line["share"] for line in shares]
    assert numbers == sorted(numbers) and 0 < numbers[0] < numbers[-1] <= 1
    assert announced["report"] and len(report["statistics"]["heads"]) == 8


def test_stopped_generation_keeps_its_tokens(shipped: ServedModel) -> None:
    stopped, lines = Event(), list[Any]()

    def put(line: str) -> None:
        lines.append(json.loads(line))
        if len(lines) == 3:
            stopped.set()

    shipped.answer(Question("generate", "t", TEXT, steps=50), stopped, put)
    *written, _, announced, report = lines
    assert len(written) == 3 == announced["count"] and report["experiment"] == "generate"
    assert "".join(each["written"] for each in written) == announced["text"]


@pytest.mark.parametrize("ask", ["heads", "next", "ablate", "why", "generate"])
def test_a_withdrawn_question_ends_at_the_next_layer(shipped: ServedModel, ask: AskedFor) -> None:
    stopped, lines = Event(), list[Any]()
    stopped.set()
    layers: list[int] = []
    hooks = [
        module.register_forward_hook(lambda *_: layers.append(1))
        for name, module in shipped.pretrained.whole.named_modules()
        if name.endswith("self_attn")
    ]
    shipped.known.__init__()  # type: ignore[misc]  # what a test before asked is not known
    heads = ("0:1",) if ask == "ablate" else ()
    shipped.answer(
        Question(ask, "t", TEXT, heads=heads), stopped, lambda line: lines.append(json.loads(line))
    )
    for hook in hooks:
        hook.remove()
    assert lines == [{"stopped": True}] and len(layers) == 0


@pytest.mark.parametrize("architecture", ["GPT-2", "Llama"])
def test_a_text_is_read_once_for_heads_and_next_tokens(tmp_path: Path, architecture: str) -> None:
    """Also without heads; what a run for the heads says of the next token is what a run for it says."""
    folder = save_writer(tmp_path / architecture, architecture)
    opened = attncli.open_model(folder)
    served, runs = ServedModel({"model": Given(str(folder), "--model", True)}, opened), list[int]()
    hook = opened.model.register_forward_hook(lambda *_: runs.append(1))
    for heads in ((), ("0:1", "1:0")):
        lines_of(served, "heads", heads=heads)
        before = len(runs)
        (line,) = lines_of(served, "next", heads=heads)
        assert len(runs) == before
        expected = attncli.next_tokens(opened, "the cat sat", heads=list(heads), top=12).tokens
        assert [each["id"] for each in line["next"]] == expected.column("token_id").tolist()
        name = "without" if heads else "probability"
        assert [each[name] for each in line["next"]] == pytest.approx(
            expected.column(name).tolist(), rel=1e-5
        )
    hook.remove()


def test_next_tokens_of_a_model_that_gives_nan_are_an_error(tmp_path: Path) -> None:
    opened = attncli.open_model(save_writer(tmp_path / "Llama", "Llama"))
    for parameter in opened.whole.get_output_embeddings().parameters():
        parameter.data[3] = float("nan")
    served = ServedModel({}, opened)
    assert lines_of(served, "heads")[-1]["experiment"] == "heads"  # whose run is heard for the next tokens
    (line,) = lines_of(served, "next")
    assert "returns NaN" in line["error"]


def test_removed_heads_apply_to_every_question(tmp_path: Path) -> None:
    folder, heads = save_writer(tmp_path / "Llama", "Llama"), ("0:1", "1:0")
    opened = attncli.open_model(folder)
    served = ServedModel({"model": Given(str(folder), "--model", True)}, opened)
    asks: tuple[AskedFor, ...] = ("heads", "why", "generate")
    for ask in asks:
        with heads_removed(heads, opened):
            *_, expected = lines_of(served, ask, steps=5, token=7)
        *_, plain = lines_of(served, ask, steps=5, token=7)
        *_, without = lines_of(served, ask, heads=heads, steps=5, token=7)
        assert ", without 0:1, 1:0: " in without["title"] and "without" not in plain["title"]
        assert without["statistics"]["heads"] != plain["statistics"]["heads"]
        if ask != "heads":  # whose settings say it, too
            assert without["statistics"] == expected["statistics"]


def test_generated_special_tokens_are_shown_and_added_to_the_text(shipped: ServedModel) -> None:
    tokenizer = copy.deepcopy(shipped.pretrained.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["c"]})
    opened = replace(shipped.pretrained, own_tokenizer=tokenizer)
    (plain,) = (line for line in lines_of(shipped, "generate", TEXT, steps=5) if "count" in line)
    (said,) = (
        line for line in lines_of(ServedModel({}, opened), "generate", TEXT, steps=5) if "count" in line
    )
    assert said["text"] == said["shown"] == plain["text"] == "cabca" and said["count"] == 5
