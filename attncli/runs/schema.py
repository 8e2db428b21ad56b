"""The tables of a store, in every version of them, and whether a file has these and nothing else."""

import re
import sqlite3
from contextlib import closing
from functools import cache
from itertools import product
from pathlib import Path

from attncli.errors import UserError

APPLICATION_ID = 0x6174746E  # "attn" in the file's header
CATALOGUE_ID = 0x61747470  # "attp", of the database of a folder store
SCHEMA_VERSION = 3
KNOWN_VERSIONS = (1, 2, SCHEMA_VERSION)

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
-- What the figures of a run are, by their position; runs of the same shape share these rows.
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
    weights TEXT,                     -- the file beside the store that has this run's weights
    encoding INTEGER,                 -- how its figures are kept, see packing.py; NULL for float64
    figures BLOB                      -- numbers, little end first, in the order of their columns
);
"""

# Of a folder store, whose runs have their numbers in parts: `figures` is a part's number and a row of it.
PARTS = """
CREATE TABLE parts (
    part INTEGER PRIMARY KEY,
    file TEXT NOT NULL,
    size INTEGER NOT NULL,
    first_row INTEGER NOT NULL DEFAULT 0  -- of the part in its file, which small parts share in the end
);
"""

# What stores had up to version 2, to know them by.
ENCODING = re.compile(r"    encoding INTEGER.*\n")
POWERS = "CREATE TABLE powers (exponent INTEGER PRIMARY KEY, power REAL);"
BYTES = f"X'{bytes(range(256)).hex()}'"
TIDY = """
CREATE VIEW tidy AS
WITH bytes AS (
    SELECT run, id, layer, head, batch, token, statistic, {bytes}
    FROM runs JOIN columns USING (shape) WHERE status = 'done'{of_last_plan}
),
parts AS (
    SELECT *, b7 >> 7 AS negative, ((b7 & 127) << 4) | (b6 >> 4) AS exponent,
        (((b6 & 15) << 48) + (b5 << 40) + (b4 << 32) + (b3 << 24) + (b2 << 16) + (b1 << 8) + b0)
            / 4503599627370496.0 AS fraction
    FROM bytes
)
SELECT run, id, layer, head, {places}statistic,
    (1 - 2 * negative) * ((exponent > 0) + fraction) * power AS value
FROM parts JOIN powers USING (exponent)
"""


OF_LAST_PLAN = " AND plan IS NULL"

# How stores of earlier versions are read. The only plan of version 1 names all runs of its store.
READ_EARLIER = {
    1: """
CREATE TEMP VIEW store AS SELECT *, 1 AS plan FROM main.store;
CREATE TEMP VIEW runs AS SELECT *, NULL AS plan, NULL AS encoding FROM main.runs;
""",
    2: "CREATE TEMP VIEW runs AS SELECT *, NULL AS encoding FROM main.runs;",
}


def _tidy(*, rows: bool) -> str:
    byte = "instr({alphabet}, substr(figures, 8 * position + {place}, 1)) - 1 AS b{number}"
    parts = (byte.format(alphabet=BYTES, place=i + 1, number=i) for i in range(8))
    return TIDY.format(
        bytes=", ".join(parts), places="batch, token, " if rows else "", of_last_plan=OF_LAST_PLAN
    )


def create(connection: sqlite3.Connection, *, rows: bool, weights: bool, has_parts: bool = False) -> None:
    """An empty store; the one of a folder `has_parts`."""
    connection.executescript(TABLES + PARTS if has_parts else TABLES)
    connection.execute("INSERT INTO store (keeps_rows, keeps_weights) VALUES (?, ?)", (rows, weights))
    connection.execute(f"PRAGMA application_id = {CATALOGUE_ID if has_parts else APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.commit()


def version_of(connection: sqlite3.Connection) -> int:
    """The version of a store, its log included."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(connection: sqlite3.Connection) -> None:
    """Upgrade a store of an earlier version to this one, in one transaction; no row of a run is rewritten."""
    connection.execute("BEGIN IMMEDIATE")
    if version_of(connection) == 1:
        _add_plans(connection)
    _add_encodings(connection)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.commit()


def _add_plans(connection: sqlite3.Connection) -> None:
    """From version 1 to 2."""
    (rows,) = connection.execute("SELECT EXISTS (SELECT 1 FROM store WHERE keeps_rows)").fetchone()
    connection.execute("ALTER TABLE store ADD COLUMN plan INTEGER NOT NULL DEFAULT 1")
    connection.execute("ALTER TABLE runs ADD COLUMN plan INTEGER")
    connection.execute("DROP VIEW tidy")
    connection.execute(_tidy(rows=bool(rows)))


def _add_encodings(connection: sqlite3.Connection) -> None:
    """From version 2 to 3."""
    connection.execute("DROP VIEW tidy")
    connection.execute("DROP TABLE powers")
    connection.execute("ALTER TABLE runs ADD COLUMN encoding INTEGER")


COMMENT_OR_BLANK = re.compile(r"--[^\n]*|\s+")

Schema = frozenset[tuple[str, ...]]
"""Type, name, table and definition of all that a database has, without comments and blanks."""

OF_ANALYZE = {
    ("table", name, name, f"CREATE TABLE {name}({columns})")
    for name, columns in (("sqlite_stat1", "tbl,idx,stat"), ("sqlite_stat4", "tbl,idx,neq,nlt,ndlt,sample"))
}
"""What `ANALYZE` in another program leaves behind."""


def _schema_of(connection: sqlite3.Connection) -> Schema:
    rows = connection.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM main.sqlite_schema")
    words = (tuple(" ".join(COMMENT_OR_BLANK.sub(" ", str(each)).split()) for each in row) for row in rows)
    return frozenset(words) - OF_ANALYZE


@cache
def _known_schemas() -> dict[Schema, int]:
    """The version of each: as this attn and those before it create and migrate stores."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        known = {_schema_of(connection): SCHEMA_VERSION}
        connection.executescript(PARTS)
        known[_schema_of(connection)] = SCHEMA_VERSION
    for rows, is_from_version_1 in product((False, True), repeat=2):
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript(ENCODING.sub("", TABLES) + POWERS)
            connection.execute("INSERT INTO store (keeps_rows, keeps_weights) VALUES (?, 0)", (rows,))
            if is_from_version_1:
                connection.execute("ALTER TABLE store DROP COLUMN plan")
                connection.execute("ALTER TABLE runs DROP COLUMN plan")
                connection.execute(_tidy(rows=rows).replace(OF_LAST_PLAN, ""))
                known[_schema_of(connection)] = 1
                _add_plans(connection)
            else:
                connection.execute(_tidy(rows=rows))
            known[_schema_of(connection)] = 2
            _add_encodings(connection)
            known[_schema_of(connection)] = SCHEMA_VERSION
    return known


def refuse_other_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Raise UserError where a store has anything that attn does not create, before any of it is used.

    A view in the place of a table, a trigger, a default or a computed column would run what whoever made the
    file wants.
    """
    schema, version = _schema_of(connection), version_of(connection)
    if _known_schemas().get(schema) == version:
        return
    alike = [known for known, of_version in _known_schemas().items() if of_version == version]
    nearest = min(alike or _known_schemas(), key=lambda known: len(known ^ schema))
    added, missing = sorted(schema - nearest), sorted(nearest - schema)
    kind, name, *_ = (added or missing)[0]
    which = f"{kind} {name:.40}"
    what = f"{which}, which attn did not write so" if added else f"no {which}"
    raise UserError(
        f"{path}: has {what}: left unchanged: remove what was changed, or start over with --fresh"
    )
