"""A small survey, and functions that drive the browser with keys and the mouse."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
from textual.pilot import Pilot

from attncli.features.browse.browser import Browser
from attncli.features.browse.browser_choice import BrowsedModel, Choice, grids
from attncli.features.browse.browser_panels import Panel, TokenBars
from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Report, Table

LAYERS, HEADS, TOKENS = 3, 5, 7
WORDS = ("the", "cat", "walks", "on", "the", "street", "today")
HOSTILE = ("[/INST]", "[red]x[/red]", ":smile:", "\x1b[31mred", "a\u202eb", "日本語", "👨\u200d👩")

Steps = Callable[[Browser, "Pilot[None]"], Awaitable[None]]


def random_weights(*shape: int) -> np.ndarray:
    weights = np.random.default_rng(0).random(shape).astype(np.float32)
    return weights / weights.sum(axis=-1, keepdims=True)


def survey(tokens: tuple[str, ...] = WORDS) -> Report:
    """Return a survey of 15 heads with two statistics, neither of which is in the order of the heads."""
    weights = random_weights(LAYERS, HEADS, len(tokens), len(tokens))
    rows = Table(
        {
            "layer": layer,
            "module": f"h.{layer}",
            "head": head,
            "kind": "self",
            "stack": "self",
            "entropy": ((layer * HEADS + head) * 4) % 15 / 15,
            "induction": float(weights[layer, head, 1, 0]),
        }
        for layer in range(LAYERS)
        for head in range(HEADS)
    )
    tensors = {"weights": NamedTensor(("layer", "head", "query", "key"), weights)}
    return Report(
        "heads", {"maps": "self"}, {}, tokens, tensors=tensors, result=read_result("heads", {"heads": rows})
    )


def driven(
    report: Report,
    steps: Steps,
    *,
    size: tuple[int, int] = (80, 24),
    depth: str = "truecolor",
    model: BrowsedModel | None = None,
) -> Choice:
    """Return the choice after these steps, which start at the first token, on a screen of this size."""
    choice = Choice(grids(report))
    choice.choose_token(0)

    async def drive() -> None:
        app = Browser(choice, depth=depth, model=model)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(app, pilot)

    asyncio.run(drive())
    return choice


async def press(app: Browser, pilot: "Pilot[None]", *keys: str) -> None:
    """Press each key once the app and its screen are done with the previous key.

    A pilot would sleep after each.
    """
    for key in keys:
        app.simulate_key(key)
        await pilot.pause(0)
        await pilot.pause(0)
    await pilot.pause()


def after(report: Report, *keys: str) -> Choice:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await press(app, pilot, *keys)

    return driven(report, steps)


def shown(panel: Panel) -> list[str]:
    """Return the lines of a panel on the screen."""
    lines = [panel.render_line(y).text for y in range(panel.size.height)]
    return [line for line in lines if line.strip()]


def screen_now(app: Browser) -> str:
    """Return the text of the screen."""
    update = app.screen._compositor.render_full_update()
    assert update is not None
    return "\n".join("".join(strip.text for strip in line) for line in update.strips)


def screen_text(report: Report, *keys: str, size: tuple[int, int] = (80, 24), depth: str = "none") -> str:
    texts: list[str] = []

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await press(app, pilot, *keys)
        texts.append(screen_now(app))

    driven(report, steps, size=size, depth=depth)
    return texts[0]


def bars_of(report: Report, *keys: str) -> dict[str, str]:
    """Return the numbers beside the bars, by label."""
    found: dict[str, str] = {}

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await press(app, pilot, *keys)
        for line in shown(app.query_one(TokenBars))[1:]:
            position, token, number, *_ = line.split()
            found[f"{position} {token}"] = number

    driven(report, steps, size=(160, 50))
    return found
