"""Writes docs/images/heads.svg, README's screen in colours: python tools/readme_picture.py"""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "heads.svg"
ARGUMENTS = ("heads", "--num-tokens", "8", "--format", "heatmap", "--color", "truecolor")
COLUMNS = 80
FONT_FACES = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""They name addresses on the web."""


def picture(printed: str) -> str:
    """An SVG of a terminal in which a command has printed this."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    command = " ".join(["$ attn", *ARGUMENTS[: ARGUMENTS.index("--color")]])
    console.print(Text(command, style="bold"))
    for line in printed.rstrip("\n").split("\n"):
        console.print(Text.from_ansi(line), soft_wrap=True)
    return FONT_FACES.sub("", console.export_svg(title="attn", unique_id="attn"))


if __name__ == "__main__":
    ended = subprocess.run(
        [sys.executable, "-m", "attncli", *ARGUMENTS],
        env={**os.environ, "COLUMNS": str(COLUMNS), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    PICTURE.write_text(picture(ended.stdout))
