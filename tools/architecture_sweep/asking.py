"""What `attn` says, through its command line, in this process."""

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from attncli.cli import run

INTERNAL = "internal error"
DENSE_NOTE = "as dense matrices"


@dataclass(frozen=True)
class Answer:
    """The reports of a command, or the line that it ended in."""

    reports: tuple[dict[str, Any], ...]
    line: str

    @property
    def is_refusal(self) -> bool:
        """Ended in a line that a user can read, as opposed to a mistake of attn's own."""
        return not self.reports and INTERNAL not in self.line

    def tensor(self, name: str, report: int = 0) -> np.ndarray | None:
        """A tensor of a report, NaN for null; None where it is not there."""
        tensor = self.reports[report]["tensors"].get(name)
        return None if tensor is None else np.array(tensor["values"], dtype=np.float64)

    @property
    def is_dense(self) -> bool:
        """Whether a note says that the weights are eager attention's."""
        return any(DENSE_NOTE in note for note in self.reports[0]["notes"])


def ask(arguments: Sequence[str | Path]) -> Answer:
    """One command line, its reports as JSON lines."""
    errors = io.StringIO()
    with TemporaryDirectory() as folder, redirect_stderr(errors), redirect_stdout(io.StringIO()):
        path = Path(folder) / "reports.jsonl"
        code = run([*map(str, arguments), "-o", str(path)])
        reports = tuple(map(json.loads, path.read_text().splitlines())) if path.exists() else ()
    lines = errors.getvalue().strip().splitlines()
    line = lines[-1] if lines and (code or not reports) else ""
    return Answer(reports if not code else (), line)
