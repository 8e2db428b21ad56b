"""The page that answers back, in Chromium: what is typed and clicked, two tabs, a server that ends."""

import contextlib
import re
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest

import attncli
from attncli.features.serve.page import FOLDER, START_SCRIPT, served_page
from attncli.features.serve.questions import ASKS, Question
from attncli.features.serve.served_model import ServedModel
from attncli.features.serve.server import ServedPage
from attncli.views import Display
from attncli.views.page.blocks import modules
from tests.features.serve.served import Running, running
from tests.views.page.pages import MARKUP, exports_and_imports

TEXT = "abcabcab"
HOSTILE = "<img src=x onerror=alert(1)>"

Tab = Callable[..., Any]


@contextlib.contextmanager
def serving(text: str = TEXT) -> Iterator[Running]:
    model = ServedModel({}, attncli.open_model())
    page = ServedPage(*served_page({**model.about(), "text": text}, ASKS, Display()))
    with running(model.answer, page) as it:
        yield it


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with serving() as it:
        yield it


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """Opens the link in a browser of its own, or beside another tab; nothing else is asked for or told."""
    contexts: list[Any] = []
    told: list[str] = []

    def open_tab(it: Running, *, beside: Any = None, hash: str = "", **options: Any) -> Any:
        context = browser.new_context(**options) if beside is None else beside.context
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("dialog", lambda dialog: (told.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: it.host in request.url or told.append(request.url))
        page.goto(it.secrets.link(it.port) + hash)
        answered(page, "heads", 1)
        return page

    yield open_tab
    for context in {id(each): each for each in contexts}.values():
        context.close()
    assert told == []


def answered(page: Any, ask: str, count: int) -> None:
    page.wait_for_selector(f"html[data-{ask}='{count}']", state="attached")


def tokens_of(page: Any) -> str:
    labels = page.locator("#map .map-left .label").all_text_contents()
    return "".join(label.split(" ", 1)[1] for label in labels)


def test_only_one_module_of_the_page_asks_the_server() -> None:
    sources = modules(START_SCRIPT, FOLDER)
    exported, imported = exports_and_imports(sources)
    # The page of a server has an address of its own.
    assert exported - imported == {"blocks", "shade", "picturesOf", "setView"}
    fetching = {name for name, source in sources.items() if MARKUP.search(source)}
    assert fetching == {"answers.js"} and MARKUP.findall(sources["answers.js"]) == ["fetch("]


def test_the_page_answers_typing_clicks_and_generation(served: Running, tab: Tab) -> None:
    page = tab(served)
    assert page.url.startswith(f"http://{served.host}{served.secrets.folder}") and "token" not in page.url
    assert tokens_of(page) == f"<bos>{TEXT}"
    answered(page, "next", 1)
    assert page.locator("#next-tokens li").count() == 12
    # Another text: Enter asks.
    page.fill("#asked-text", "ab ab")
    page.keyboard.press("Enter")
    answered(page, "heads", 2)
    answered(page, "next", 2)
    assert tokens_of(page) == "<bos>ab·ab"
    # Heads are taken out by a button, by a key and by a click, and put back.
    page.locator(".thumbnail[title='head 0:0']").click()
    page.click("#take-out")
    answered(page, "next", 3)
    assert page.locator("#next-title").inner_text() == "Next token: with all heads → without 0:0"
    assert page.locator(".thumbnail.out .caption").all_inner_texts() == ["0:0"]
    page.click("#takes-out")
    page.locator(".thumbnail[title='head 1:2']").click()
    answered(page, "next", 4)
    page.keyboard.press("a")  # of the head that the click chose: back again
    answered(page, "next", 5)
    page.keyboard.press("a")
    answered(page, "next", 6)
    assert page.locator("#out-heads button").all_inner_texts() == ["0:0 ×", "1:2 ×"]
    assert "→" in page.locator("#next-tokens .probability").first.inner_text()
    page.click("#ask-ablate")
    answered(page, "ablate", 1)
    assert "Effect of removing each head" in page.locator("#heading").inner_text()
    page.click("#put-back")
    answered(page, "next", 7)
    assert page.locator("#next-title").inner_text() == "Next token"
    # Why: of the likeliest, and of one that is clicked.
    page.locator("#next-tokens button").nth(1).click()
    answered(page, "why", 1)
    heading = page.locator("#heading").inner_text()
    assert heading.startswith("Why ") and heading.endswith(": ab ab")
    # Two tokens and ten, then they are the text.
    for count in (1, 2):
        page.click("#write-one")
        answered(page, "generate", count)
    page.click("#write-ten")
    answered(page, "generate", 3)
    assert page.locator("#row-curves, #tokens").count()
    written = page.locator("#written-text").inner_text()
    expected = attncli.generate(attncli.open_model(), "ab ab", max_new_tokens=12).text
    assert written.strip() == expected.strip() and page.locator("#written-before").inner_text() == "ab ab"
    page.click("#written-take")
    answered(page, "heads", 3)
    assert page.input_value("#asked-text") == f"ab ab{expected}"
    # What was answered before is in the list of reports.
    names = page.locator("#report option").all_inner_texts()
    asked = ["heads", "heads", "ablate", "why", "generate", "heads"]
    assert [name.split(":")[0].split(" ")[0] for name in names] == asked
    page.select_option("#report", label=f"heads: {TEXT}")
    page.wait_for_function("() => document.title.endsWith('abcabcab')")


@pytest.mark.nightly
def test_back_leads_to_the_text_before(served: Running, tab: Tab) -> None:
    """With its maps, which are kept; Forward leads to the later one again."""
    page = tab(served)
    for count, text in enumerate(("ab ab", "cd cd cd"), 2):
        page.fill("#asked-text", text)
        page.keyboard.press("Enter")
        answered(page, "heads", count)
    for move, text in (("back", "ab ab"), ("back", TEXT), ("forward", "ab ab")):
        page.evaluate(f"history.{move}()")
        page.wait_for_function("(text) => document.title.endsWith(`: ${text}`)", arg=text)
        assert page.input_value("#asked-text") == text
        assert tokens_of(page) == "<bos>" + text.replace(" ", "·")
    page.reload()
    answered(page, "heads", 1)
    assert page.input_value("#asked-text") == "ab ab"


def test_a_stopped_answer_is_kept_and_reported(browser: Any, tab: Tab) -> None:
    """Some of ten tokens; of what is lost nothing is there before the end."""
    model = ServedModel({}, attncli.open_model())

    def answer(question: Question, stopped: Event, put: Callable[[str], None]) -> None:
        def put_slowly(line: str) -> None:
            put(line)
            stopped.wait(5 if '"written"' in line and "ab" in question.text else 0)

        if question.ask == "ablate":
            stopped.wait(5)
        model.answer(question, stopped, put_slowly)

    page_of_model = ServedPage(*served_page({**model.about(), "text": TEXT}, ASKS, Display()))
    with running(answer, page_of_model) as it:
        page = tab(it)
        answered(page, "next", 1)
        page.click("#write-ten")
        page.wait_for_function("() => document.getElementById('written-text').textContent.length > 0")
        page.click("#stop")
        answered(page, "generate", 1)
        page.wait_for_function("() => document.getElementById('asked-state').textContent.includes('stopped')")
        said = page.locator("#asked-state").inner_text()
        assert re.fullmatch(r"generation stopped after [1-9] of 10 tokens", said)
        written = page.locator("#written-text").inner_text()
        page.click("#ask-ablate")
        page.click("#stop")
        answered(page, "ablate", 1)
        page.wait_for_function(
            "() => document.getElementById('asked-state').textContent.includes('ablation stopped')"
        )
        page.click("#written-take")
        answered(page, "heads", 2)
        assert page.input_value("#asked-text") == TEXT + written
        assert page.locator("#asked-state").inner_text() == ""


@pytest.mark.nightly
def test_a_reload_keeps_the_text_and_mistakes_are_one_line(served: Running, tab: Tab) -> None:
    page = tab(served)
    page.fill("#asked-text", "x" * 4000)
    page.keyboard.press("Enter")
    page.wait_for_selector("#asked-trouble:not([hidden])")
    assert page.locator("#asked-trouble").inner_text().startswith("text: ")
    assert tokens_of(page) == f"<bos>{TEXT}"  # what it showed stays
    page.fill("#asked-text", "\x01" * 200_000)  # in JSON more than the server takes
    page.keyboard.press("Enter")
    page.wait_for_selector("#asked-trouble:has-text('too long to send')")
    page.fill("#asked-text", HOSTILE)
    page.keyboard.press("Enter")
    answered(page, "heads", 4)
    assert page.locator("#asked-trouble").is_hidden() and page.locator("img").count() == 0
    page.reload()
    answered(page, "heads", 1)
    assert page.input_value("#asked-text") == HOSTILE
    assert tokens_of(page) == "<bos>" + HOSTILE.replace(" ", "·")


@pytest.mark.nightly
def test_answers_on_another_text_are_greyed_out(served: Running, tab: Tab) -> None:
    page = tab(served)
    answered(page, "next", 1)
    is_old = "() => document.querySelector('#next-box').inert"
    assert not page.evaluate(is_old)
    page.click("#write-one")
    answered(page, "generate", 1)
    answered(page, "next", 2)
    assert page.locator("#next-title").inner_text() == "Next token after the generated text"
    assert page.locator("#written").is_visible()
    # Another text in the box: what was answered is greyed until it is asked, and as it was if it comes back.
    page.fill("#asked-text", "ba ba")
    assert page.evaluate(is_old) and page.evaluate("() => document.querySelector('#written').inert")
    page.fill("#asked-text", TEXT)
    assert not page.evaluate(is_old) and not page.evaluate("() => document.querySelector('#written').inert")
    page.fill("#asked-text", "ba ba")
    page.click("#ask-why")
    assert page.locator("#written").is_hidden()
    answered(page, "why", 1)
    answered(page, "next", 3)  # of the text that is explained
    assert page.locator("#next-title").inner_text() == "Next token" and not page.evaluate(is_old)
    assert served.asked[-1].text == "ba ba"
    # Heads that are out count in what is asked; until it is answered, nothing says that it was.
    page.locator("#report").select_option(index=0)
    page.click("#take-out")
    assert page.evaluate(is_old) or "without" in page.locator("#next-title").inner_text()
    answered(page, "next", 4)
    for number, button in enumerate(("#ask-why", "#ask-heads", "#write-one")):
        page.click(button)
        answered(page, ("why", "heads", "generate")[number], (2, 2, 2)[number])
        heading = page.locator("#heading").inner_text()
        assert ", without 0:0" in heading and heading.endswith(": ba ba")
        assert {*served.asked[-1].heads} == {"0:0"}


@pytest.mark.nightly
def test_a_head_in_a_table_opens_its_map_and_reports_keep_their_state(served: Running, tab: Tab) -> None:
    page = tab(served)
    answered(page, "next", 1)
    page.fill("#from", "c")
    page.fill("#to", "a")
    page.keyboard.press("Tab")
    page.wait_for_function("() => document.querySelector('#sort').value === 'sought'")
    page.locator(".thumbnail").nth(5).click()
    head = page.locator("#matrix-title").inner_text()
    # Of all heads, where none is out; a row of the table leads to the map of its head, asked before.
    page.click("#ask-ablate")
    answered(page, "ablate", 1)
    assert page.locator("#finding").inner_text().startswith("Removing ")
    assert page.locator("#tables tbody button").count() == 8
    button = page.locator("#tables tbody button").nth(3)
    name = button.inner_text()
    button.click()
    page.wait_for_selector(f"#matrix-title:has-text('head {name}')")
    assert [each.ask for each in served.asked[-2:]] == ["next", "ablate"]
    # It stands as it was left, sorted by what was sought, and so it does when it is chosen again.
    assert page.input_value("#from") == "c" and page.input_value("#sort") == "sought"
    if name != head.rsplit(" ", 1)[1]:
        page.locator(".thumbnail").nth(5).click()
    page.locator("#report").select_option(index=1)
    page.wait_for_selector("#finding:not([hidden])")
    page.locator("#report").select_option(index=0)
    page.wait_for_function("title => document.querySelector('#matrix-title').textContent === title", arg=head)
    assert page.input_value("#to") == "a"


@pytest.mark.nightly
def test_two_tabs_never_mix(served: Running, tab: Tab) -> None:
    first = tab(served)
    second = tab(served, beside=first)
    for page, text in ((first, "cde"), (second, "fgh")):
        page.fill("#asked-text", text)
    for page in (first, second):
        page.locator("#asked-text").press("Enter")
    for page, text in ((first, "cde"), (second, "fgh")):
        answered(page, "heads", 2)
        answered(page, "next", 2)
        assert tokens_of(page) == f"<bos>{text}" and page.input_value("#asked-text") == text
    first.click("#take-out")
    answered(first, "next", 3)
    assert second.locator(".thumbnail.out").count() == 0


FORM = "<form method=post enctype=text/plain action={}><input name=x value=y></form>"


def test_another_site_in_the_same_browser_is_refused(served: Running, tab: Tab) -> None:
    page = tab(served)
    answered(page, "next", 1)
    before, folder = len(served.asked), page.url.partition("#")[0]
    other = page.context.new_page()
    other.route(
        "http://evil.example/**",
        lambda route: route.fulfill(body=FORM.format(f"{folder}ask"), content_type="text/html"),
    )
    other.goto("http://evil.example/")
    question = {"ask": "heads", "tab": "t", "text": "a"}
    got = other.evaluate(
        """async ([folder, question]) => {
            const read = async (name, options) => {
              try { return (await fetch(folder + name, { credentials: "include", ...options })).type; }
              catch (error) { return error.name; }
            };
            const post = { method: "POST", body: JSON.stringify(question) };
            return [
              await read("", {}),
              await read("ask", post),
              await read("ask", { ...post, headers: { "Content-Type": "application/json" } }),
              await read("ask", { ...post, mode: "no-cors" }),
            ];
        }""",
        [folder, question],
    )
    assert got[:3] == ["TypeError"] * 3 and got[3] in ("opaque", "TypeError")
    with other.expect_response(f"{folder}ask") as response:
        other.evaluate("() => document.forms[0].submit()")
    assert response.value.status == 403
    assert len(served.asked) == before


@pytest.mark.nightly
def test_a_stopped_server_is_reported_and_the_page_stays(browser: Any) -> None:
    context = browser.new_context()
    with serving() as it:
        page = context.new_page()
        page.goto(it.secrets.link(it.port))
        answered(page, "next", 1)
    page.wait_for_selector("#lost:not([hidden])")  # without a question
    line = page.locator("#lost").inner_text()
    assert line.startswith("The server has stopped or cannot be reached. Start attn serve again")
    assert tokens_of(page) == f"<bos>{TEXT}"
    page.fill("#asked-text", "abc")
    page.keyboard.press("Enter")
    answered(page, "heads", 2)
    assert page.locator("#lost").inner_text() == line and tokens_of(page) == f"<bos>{TEXT}"
    page.locator(".thumbnail").nth(3).click()  # what is shown can be looked at
    page.wait_for_selector("#matrix-title:has-text('head 0:3')")
    context.close()


@pytest.mark.nightly
def test_the_page_fits_the_width_of_a_phone(served: Running, tab: Tab) -> None:
    page = tab(served, viewport={"width": 390, "height": 800}, color_scheme="dark")
    answered(page, "next", 1)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    names = [page.locator(f"#{name}").bounding_box() for name in ("asked-text", "next-box", "write-ten")]
    assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in names)
