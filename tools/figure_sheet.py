"""Writes docs/images/figures.png, a figure of every kind with its command: python tools/figure_sheet.py"""

import shlex
import subprocess
import sys
from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory

from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parent.parent
SHEET = ROOT / "docs" / "images" / "figures.png"
SENTENCE = "the old keeper of the lighthouse walked down to the harbour every"
COMMANDS = (
    "attn self",
    f"attn self '{SENTENCE}' --causal",
    "attn cross 'the cat walks' --context 'die Katze geht auf der Strasse'",
    "attn multihead",
    "attn average",
    "attn pitfalls no-scaling",
    "attn scale-demo",
    "attn norm",
    "attn heads",
    "attn heads --sort induction",
    "attn ablate",
    "attn why",
    "attn circuit",
    "attn circuit --weights",
    "attn generate --maps heads",
    "attn cache",
    "attn cache --policy sinks,knorm",
    "attn source",
    "attn source --compare",
    "attn separate",
    "attn watch",
    "attn show lessons/coffee-last.json",
    "attn show lessons/hello-first.json",
)
SCALE, COLUMNS, GAP, TEXT = 0.36, 4, 14, 11
"""The size of a figure in the sheet, the columns of narrow figures, and pixels between and above figures."""
COLOURS = 96


def drawn(command: str, folder: Path, number: int) -> Image.Image:
    """Run a command with `-o` and return its figure at the scale of the sheet."""
    output = folder / f"{number}.png"
    _, *words = shlex.split(command)
    subprocess.run(
        [sys.executable, "-m", "attncli", *words, "-o", str(output)],
        env={**environ, "PYTHONPATH": str(ROOT)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with Image.open(output) as figure:
        size = [round(SCALE * side) for side in figure.size]
        return figure.convert("RGB").resize((size[0], size[1]), Image.Resampling.LANCZOS)


def sheet(figures: list[tuple[str, Image.Image]]) -> Image.Image:
    """Put each figure below its command, in the column that ends first; wide figures come last."""
    narrow = min(figure.width for _, figure in figures)
    font = ImageFont.truetype(Path(get_data_path(), "fonts", "ttf", "DejaVuSansMono.ttf"), TEXT)
    ends = [GAP] * COLUMNS
    placed = []
    for command, figure in sorted(figures, key=lambda pair: pair[1].width > 1.5 * narrow):
        span = 1 if figure.width < 1.5 * narrow else 2
        starts = [max(ends[column : column + span]) for column in range(0, COLUMNS, span)]
        column = span * starts.index(min(starts))
        placed.append((command, figure, GAP + column * (narrow + GAP), min(starts)))
        ends[column : column + span] = [min(starts) + figure.height + TEXT + 2 * GAP] * span
    whole = Image.new("RGB", (GAP + COLUMNS * (narrow + GAP), max(ends)), "#d4d4d4")
    draw = ImageDraw.Draw(whole)
    for command, figure, x, y in placed:
        longest = int(figure.width / font.getlength("m"))
        draw.text((x, y), command if len(command) <= longest else f"{command[: longest - 1]}…", "black", font)
        whole.paste(figure, (x, y + TEXT + 4))
    return whole


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        figures = [(command, drawn(command, Path(folder), n)) for n, command in enumerate(COMMANDS)]
    sheet(figures).quantize(COLOURS, dither=Image.Dither.NONE).save(SHEET, optimize=True)
