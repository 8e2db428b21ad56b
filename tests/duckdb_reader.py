"""Tables as duckdb reads them, in a process of its own: at its end duckdb reports leaks of its own."""

import atexit
import json
import subprocess
import sys
from functools import cache
from typing import Any

SCRIPT = """
import duckdb, json, sys
for query in sys.stdin:
    found = duckdb.sql(json.loads(query))
    rows = found.fetchall()
    print(json.dumps([found.columns, [str(kind) for kind in found.types], rows]), flush=True)
"""


@cache
def _process() -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], text=True, stdin=pipe, stdout=pipe, stderr=pipe
    )
    atexit.register(process.communicate)
    return process


def read_by_duckdb(query: str) -> tuple[list[str], list[str], list[tuple[Any, ...]]]:
    """The columns, their types and the rows of a query."""
    process = _process()
    assert process.stdin is not None and process.stdout is not None
    print(json.dumps(query), file=process.stdin, flush=True)
    columns, kinds, rows = json.loads(process.stdout.readline())
    return columns, kinds, [tuple(row) for row in rows]
