"""The tables of a store, and the rejection of a file that contains anything else."""

import re
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from attncli.errors import UserError
from attncli.runs.number_tables import NUMBER_TABLES

APPLICATION_ID = 0x6174746E  # "attn" in the file's header
SCHEMA_VERSION = 4

TABLES = """
-- One row: what is kept of each run, and the number of the plan of the last batch.
CREATE TABLE store (
    keeps_rows INTEGER NOT NULL,
    keeps_weights INTEGER NOT NULL,
    plan INTEGER NOT NULL DEFAULT 1
);
-- The resolved settings of an experiment, as JSON, without its texts.
CREATE TABLE settings (
    settings INTEGER PRIMARY KEY,
    experiment TEXT NOT NULL,
    seed INTEGER NOT NULL,
    spec TEXT NOT NULL,
    UNIQUE (experiment, spec)
);
-- The versions that runs were made with, as JSON.
CREATE TABLE environments (environment INTEGER PRIMARY KEY, versions TEXT NOT NULL UNIQUE);
-- Which numbers a run has, in their order; runs of the same shape share these rows.
CREATE TABLE columns (
    shape INTEGER NOT NULL,
    position INTEGER NOT NULL,
    statistic TEXT NOT NULL,
    layer INTEGER,
    head INTEGER,
    batch INTEGER,
    token INTEGER,
    PRIMARY KEY (shape, position)
) WITHOUT ROWID;
CREATE TABLE runs (
    run INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,         -- SHA-256 of settings and texts
    id TEXT,                          -- the prompt's id, or its line in the last plan that names the run
    source TEXT NOT NULL,             -- where it was planned
    settings INTEGER NOT NULL REFERENCES settings,
    sentence TEXT,
    context TEXT,
    status TEXT NOT NULL CHECK (status IN ('done', 'failed')),
    error TEXT,
    environment INTEGER REFERENCES environments,
    plan INTEGER,                     -- the last plan that names it; NULL for that of the last batch
    shape INTEGER,
    weights TEXT                      -- the file beside the store that has this run's weights
);
"""


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of a store; the number tables have no statistics yet."""
    connection.executescript(TABLES)
    for table in NUMBER_TABLES:
        connection.execute(table.definition())


def create(connection: sqlite3.Connection, *, rows: bool, weights: bool) -> None:
    """Create an empty store."""
    create_tables(connection)
    connection.execute("INSERT INTO store (keeps_rows, keeps_weights) VALUES (?, ?)", (rows, weights))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.commit()


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the version of a store, taking its log into account."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


COMMENT_OR_BLANK = re.compile(r"--[^\n]*|\s+")

Schema = frozenset[tuple[str, ...]]
"""The type, name, table and definition of everything in a database, without comments and blanks."""

ANALYZE_TABLES = {
    ("table", name, name, f"CREATE TABLE {name}({columns})")
    for name, columns in (("sqlite_stat1", "tbl,idx,stat"), ("sqlite_stat4", "tbl,idx,neq,nlt,ndlt,sample"))
}
"""Tables that another program creates with `ANALYZE`."""


def _read_schema(connection: sqlite3.Connection) -> Schema:
    rows = connection.execute(
        "SELECT type, name, tbl_name, coalesce(sql, '') FROM main.sqlite_schema"
    ).fetchall()
    number_tables = {table.name: table for table in NUMBER_TABLES}
    schema = set()
    for kind, name, table_name, sql in rows:
        table = number_tables.get(name)
        if kind == "table" and table and sql == table.definition(table.statistics(connection)):
            sql = table.definition()  # its statistics may differ
        definition = (kind, name, table_name, sql)
        words = (" ".join(COMMENT_OR_BLANK.sub(" ", str(each)).split()) for each in definition)
        schema.add(tuple(words))
    return frozenset(schema) - ANALYZE_TABLES


@cache
def _expected_schema() -> Schema:
    with closing(sqlite3.connect(":memory:")) as connection:
        create_tables(connection)
        return _read_schema(connection)


def refuse_unknown_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Raise UserError if a store has anything that attn does not create, before any of it is used.

    A view in place of a table, a trigger, a default or a computed column would run code of the file's author.
    """
    connection.execute("BEGIN")  # a batch may add statistics meanwhile
    schema, expected = _read_schema(connection), _expected_schema()
    connection.execute("COMMIT")
    added, missing = sorted(schema - expected), sorted(expected - schema)
    if not added and not missing:
        return
    kind, name, *_ = (added or missing)[0]
    which = f"{kind} {name:.40}"
    what = f"{which}, which attn did not write" if added else f"no {which}"
    raise UserError(f"{path}: has {what}: left unchanged: undo that change, or start over with --fresh")
