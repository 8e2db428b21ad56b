"""The screen of a bare `attn`: a trained head and suggestions for what to type next."""

import sys
from dataclasses import replace

from attncli.commands.command import LESSON_FILES, color_depth, width
from attncli.runs.saved_reports import read_reports
from attncli.settings import is_offered
from attncli.views import Display
from attncli.views.layout import Screen
from attncli.views.sections import Grid, Paragraph
from attncli.views.tables import sections

FIRST_LOOK = "bat-cave.json", "bat"


SUGGESTIONS = {
    'attn self "the cat walks on the street"': "your own sentence, random weights",
    "attn lesson 1": "why attention, in a few minutes",
    "attn heads --model FOLDER": "what each head of a model does",
    "attn --help": "every command",
}
"""Commands to type next, with what they show."""


def show_first_look() -> None:
    """Print a trained head, what one of its words looks at, and what to type next."""
    (report,) = read_reports(str(LESSON_FILES / FIRST_LOOK[0])).reports
    is_terminal = sys.stdout.isatty()
    display = Display(width=width(is_terminal), colors=color_depth("auto", is_terminal))
    parts = sections(report, replace(display, show=("weights",), precision=display.screen_precision))
    grid = next(part for part in parts if isinstance(part, Grid))
    weights, word = report.tensors["weights"].values, report.tokens.index(FIRST_LOOK[1])
    nearest = weights[word].argsort()[::-1]
    first, second = (f'"{report.tokens[key]}" ({weights[word, key]:.2f})' for key in nearest[:2])
    screen = Screen(sys.stdout, display)
    screen.draw(Paragraph(f"attn: {report.spec['sentence']}", "title"))
    title = f"where each token looks: weights of a trained head ({report.spec['model']})"
    screen.draw(replace(grid, title=title))
    row = f'Row {word}: "{FIRST_LOOK[1]}" looks most at {first} and {second}. Each row sums to 1.'
    screen.draw(Paragraph(row, "line"))
    screen.draw(Paragraph("Next:", "lead"))
    suggestions = {line: result for line, result in SUGGESTIONS.items() if is_offered(line)}
    line_width = max(map(len, suggestions))
    for line, result in suggestions.items():
        screen.draw(Paragraph(f"  {line:<{line_width}}   {result}", "line"))
