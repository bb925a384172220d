"""The limit of the machine: hand-written apsw, on a table with ten columns and one index, synchronous=FULL.

No queue can do better with the same batches: no ids, no history, no result, no fence, no validation.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import cast

import apsw

from bench.harness.contenders import Figures, Order
from bench.harness.payload import note, notes

SCHEMA = """
CREATE TABLE job (
    id          INTEGER PRIMARY KEY,
    queue       TEXT    NOT NULL DEFAULT 'default',
    priority    INTEGER NOT NULL DEFAULT 50,
    status      INTEGER NOT NULL DEFAULT 0,
    payload     TEXT    NOT NULL,
    attempt     INTEGER NOT NULL DEFAULT 0,
    due_at      REAL    NOT NULL DEFAULT 0,
    worker      TEXT,
    lease_until REAL,
    ended_at    REAL
);
CREATE INDEX job_ready ON job (queue, priority, id) WHERE status = 0;
"""
INSERT = "INSERT INTO job (payload) VALUES (?)"
CLAIM = """
UPDATE job SET status = 1, attempt = attempt + 1, worker = 'limit', lease_until = ?
WHERE id IN (SELECT id FROM job WHERE status = 0 AND queue = 'default' ORDER BY priority, id LIMIT ?)
RETURNING id, payload
"""
SETTLE = "UPDATE job SET status = 2, ended_at = ? WHERE id = ? AND status = 1"
BATCH = 100
LEASE_SECONDS = 60
WARM_UP_JOBS = 50
PAYLOAD = json.dumps(note(0))


def single_commits(order: Order) -> Figures:
    connection = create(order.folder / "limit.db")
    for _ in range(WARM_UP_JOBS):
        connection.execute(INSERT, (PAYLOAD,))
    start = time.perf_counter()
    for _ in range(order.jobs):
        connection.execute(INSERT, (PAYLOAD,))
    return {"rate": order.jobs / (time.perf_counter() - start)}


def bulk(order: Order) -> Figures:
    """Insert payloads that are JSON already."""
    connection = create(order.folder / "limit.db")
    rows = [(PAYLOAD,)] * order.jobs
    start = time.perf_counter()
    insert_all(connection, rows)
    return {"rate": order.jobs / (time.perf_counter() - start)}


def bulk_from_dicts(order: Order) -> Figures:
    """The same with payloads as dicts, like a caller of `submit_many`."""
    connection = create(order.folder / "limit.db")
    payloads = notes(order.jobs)
    start = time.perf_counter()
    insert_all(connection, [(json.dumps(payload),) for payload in payloads])
    return {"rate": order.jobs / (time.perf_counter() - start)}


def drain(order: Order) -> Figures:
    """Claim 100 in one commit, decode them, settle 100 in another."""
    connection = create(order.folder / "limit.db")
    insert_all(connection, [(PAYLOAD,)] * order.jobs)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    settled = 0
    start = time.perf_counter()
    while claimed := _claim(connection):
        for _, payload in claimed:
            json.loads(payload)
        _settle(connection, claimed)
        settled += len(claimed)
    seconds = time.perf_counter() - start
    assert settled == order.jobs
    return {"rate": settled / seconds}


def _claim(connection: apsw.Connection) -> list[tuple[int, str]]:
    connection.execute("BEGIN IMMEDIATE")
    rows = connection.execute(CLAIM, (time.time() + LEASE_SECONDS, BATCH)).fetchall()
    connection.execute("COMMIT")
    return cast(list[tuple[int, str]], rows)


def _settle(connection: apsw.Connection, claimed: list[tuple[int, str]]) -> None:
    now = time.time()
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(SETTLE, [(now, job_id) for job_id, _ in claimed])
    connection.execute("COMMIT")


def insert_all(connection: apsw.Connection, rows: list[tuple[str]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, rows)
    connection.execute("COMMIT")


def create(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    assert connection.pragma("synchronous") == 2, "the limit must pay for durable commits like everyone else"
    connection.execute(SCHEMA)
    return connection


MEASURES = {
    "submit-blocking": single_commits,
    "submit-one": single_commits,
    "submit-concurrent": single_commits,
    "submit-many": bulk,
    "drain": drain,
}
FROM_DICTS = {"submit-many": bulk_from_dicts}
