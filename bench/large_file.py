"""Make a large Holdfast file quickly: let Holdfast write one real job, then copy its row by SQL.

The columns are read from the file, so that this survives changes of the schema.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apsw

ID_COLUMN = "job_id"
ID_PREFIX = 24  # of a UUID's 36 characters; the last 12 become a counter


def multiply(file: Path, table: str, job_id: str, numbers: range) -> None:
    """Add a copy of one job's row for each number, which becomes the end of the copy's id.

    Where another column repeats the job's id, a copy has its own id there too.
    """
    connection = apsw.Connection(str(file))
    try:
        _load_without_journal(connection)
        columns, values = _copied(connection, table, job_id)
        connection.execute(
            f"""
            WITH RECURSIVE counter (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM counter WHERE n < :last)
            INSERT INTO {table} ({", ".join(columns)})
            SELECT {", ".join(values)} FROM counter CROSS JOIN {table} AS job WHERE job.{ID_COLUMN} = :job_id
            """,
            {"first": numbers[0], "last": numbers[-1], "job_id": job_id},
        )
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    finally:
        connection.close()
    _sync(file)


def copy(source: Path, target: Path) -> None:
    """A durable copy: the disk's work for it is over before the clock starts."""
    shutil.copyfile(source, target)
    target.chmod(0o600)
    _sync(target)


def _load_without_journal(connection: apsw.Connection) -> None:
    # Nothing here must survive a crash: the file is made again when it is not complete.
    connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    connection.execute("PRAGMA journal_mode = OFF").fetchall()
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -400000")


def _copied(connection: apsw.Connection, table: str, job_id: str) -> tuple[list[str], list[str]]:
    """The columns to write, and the expression that gives each its value."""
    columns: list[str] = []
    values: list[str] = []
    for _, name, declared, _, _, key in connection.execute(f"PRAGMA table_info({table})"):
        if key and declared == "INTEGER":
            continue  # SQLite numbers the rows itself
        repeats_id = connection.execute(
            f'SELECT "{name}" IS {ID_COLUMN} FROM {table} WHERE {ID_COLUMN} = ?', (job_id,)
        ).get
        columns.append(f'"{name}"')
        values.append(_new_id(name) if repeats_id else f'job."{name}"')
    return columns, values


def _new_id(name: str) -> str:
    return f"""substr(job."{name}", 1, {ID_PREFIX}) || printf('%012x', n)"""


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
