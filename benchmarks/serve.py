"""How long `attn serve` takes to show a text, beside the command that shows the same, as typed.

    python benchmarks/serve.py MODEL [--words 760] [--rounds 5]

In turns: `attn heads --model MODEL --file FILE` from start to end, the same with `-o page.html`, and on a
page of a server that runs, from Enter in the box until the heads of the text are drawn, in Chromium without a
GPU. Each round has another text. Prints the seconds by the clock of each, their medians, and the ratio to the
command.
"""

import argparse
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ALICE = Path(__file__).parent.parent / "configs" / "alice.txt"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
ATTN = (sys.executable, "-m", "attncli")
LONGEST_WAIT = 300_000  # milliseconds


def text_of(words: int, number: int) -> str:
    """The first words of a story, again and again, after a word that no other round has."""
    return " ".join([f"round{number}", *itertools.islice(itertools.cycle(ALICE.read_text().split()), words)])


def seconds_of_command(*arguments: str) -> float:
    """The seconds of `attn` as typed."""
    begun = time.perf_counter()
    subprocess.run([*ATTN, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


@contextmanager
def page_of_server(model: str) -> Iterator[Any]:
    """The page of a server that runs, once the model has answered on it."""
    from playwright.sync_api import sync_playwright

    server = subprocess.Popen(
        [*ATTN, "serve", "--model", model, "the cat sat"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    link = server.stdout.readline().strip()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(link)
            wait_for(page, "heads", 1)
            yield page
            browser.close()
    finally:
        server.terminate()
        server.wait()


def wait_for(page: Any, question: str, count: int) -> None:
    """Until so many questions of a kind are answered, and shown."""
    page.wait_for_selector(f"html[data-{question}='{count}']", state="attached", timeout=LONGEST_WAIT)


def seconds_of_page(page: Any, text: str, number: int) -> float:
    """From Enter until the heads of the text are drawn; the next tokens follow, and are not counted."""
    page.fill("#asked-text", text)
    begun = time.perf_counter()
    page.press("#asked-text", "Enter")
    wait_for(page, "heads", number + 1)
    passed = time.perf_counter() - begun
    page.wait_for_selector("#next-box:not([hidden])", timeout=LONGEST_WAIT)
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--words", type=int, default=760)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {"attn heads": [], "attn heads -o page.html": [], "attn serve": []}
    with tempfile.TemporaryDirectory() as folder, page_of_server(given.model) as page:
        file, written = Path(folder, "text.txt"), str(Path(folder, "page.html"))
        for number in range(1, given.rounds + 1):
            text = text_of(given.words, number)
            file.write_text(text)
            command = ("heads", "--model", given.model, "--file", str(file))
            seconds["attn heads"].append(seconds_of_command(*command))
            seconds["attn heads -o page.html"].append(seconds_of_command(*command, "-o", written))
            seconds["attn serve"].append(seconds_of_page(page, text, number))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    for name, each in seconds.items():
        rounds = " ".join(f"{one_round:.2f}" for one_round in each)
        ratio = medians[name] / medians["attn heads"]
        print(f"{name:24} {medians[name]:6.2f} s, {ratio:.2f} of the command   ({rounds})")


if __name__ == "__main__":
    main()
