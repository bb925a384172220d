"""The limit with facts and places: a drain by hand on tables like Backstay's, with fence, result and counters.

What was submitted is written once; a claim and a completion move a narrow row from `ready` to `running` to `ended`.
One thread, no event loop: each payload is validated by Pydantic and each result encoded, but no handler is a task. It
has no keys, rates, turns, dependencies or retries, and never extends a lease.
"""

from __future__ import annotations

import os
import secrets
import time
import uuid
from pathlib import Path
from typing import Any

import apsw
import msgspec
from pydantic import BaseModel

from bench.harness.contenders import Figures, Order
from bench.harness.payload import notes

SCHEMA = """
CREATE TABLE job (
    seq             INTEGER PRIMARY KEY,
    job_id          TEXT    NOT NULL UNIQUE,
    job_type        TEXT    NOT NULL,
    queue           TEXT    NOT NULL,
    priority        INTEGER NOT NULL,
    scheduled_for   INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    timeout_micros  INTEGER NOT NULL,
    max_attempts    INTEGER NOT NULL,
    payload_version INTEGER NOT NULL DEFAULT 1,
    subject         TEXT,
    tags            TEXT,
    created_by      TEXT,
    root_job_id     TEXT,
    content_hash    TEXT,
    payload         TEXT    NOT NULL
);
CREATE TABLE ready (
    queue           TEXT    NOT NULL,
    job_type        TEXT    NOT NULL,
    rank            INTEGER NOT NULL, -- minus the priority
    scheduled_for   INTEGER NOT NULL,
    seq             INTEGER NOT NULL,
    payload_version INTEGER NOT NULL,
    attempt         INTEGER NOT NULL,
    failures        INTEGER NOT NULL,
    PRIMARY KEY (queue, job_type, rank, scheduled_for, seq)
) WITHOUT ROWID;
CREATE TABLE running (
    seq              INTEGER PRIMARY KEY,
    attempt          INTEGER NOT NULL,
    failures         INTEGER NOT NULL,
    token            TEXT    NOT NULL,
    worker_id        TEXT    NOT NULL,
    lease_expires_at INTEGER NOT NULL,
    started_at       INTEGER NOT NULL
);
CREATE TABLE ended (
    seq          INTEGER PRIMARY KEY,
    status       TEXT    NOT NULL,
    attempt      INTEGER NOT NULL,
    failures     INTEGER NOT NULL,
    worker_id    TEXT,
    started_at   INTEGER,
    completed_at INTEGER NOT NULL,
    result       TEXT
);
CREATE TABLE counter (
    minute   INTEGER NOT NULL,
    job_type TEXT    NOT NULL,
    queue    TEXT    NOT NULL,
    outcome  TEXT    NOT NULL,
    count    INTEGER NOT NULL,
    ran      INTEGER NOT NULL,
    PRIMARY KEY (minute, job_type, queue, outcome)
) WITHOUT ROWID;
"""
FACTS = """
INSERT INTO job
    (seq, job_id, job_type, queue, priority, scheduled_for, created_at, timeout_micros, max_attempts, payload)
VALUES (?, ?, 'noop', 'default', 50, ?, ?, 60000000, 3, ?)
"""
PLACE = "INSERT INTO ready VALUES ('default', 'noop', -50, ?, ?, 1, 0, 0)"
# One row of JSON: each row that SQLite hands over releases and takes the interpreter's lock.
HEAD = """
SELECT json_group_array(json_array(r.seq, r.attempt + 1, r.failures, r.scheduled_for, j.job_id, j.job_type, j.queue,
    j.priority, j.max_attempts, j.timeout_micros, j.created_at, r.payload_version, j.subject, j.tags, j.created_by,
    j.root_job_id, j.payload))
FROM (
    SELECT * FROM ready WHERE queue = 'default' AND job_type = 'noop' ORDER BY rank, scheduled_for, seq LIMIT ?
) AS r CROSS JOIN job AS j ON j.seq = r.seq
"""
CLAIM = """
INSERT INTO running SELECT value ->> 0, value ->> 1, value ->> 2, ?2, ?3, ?4 + 30000000, ?4 FROM json_each(?1)
"""
LEAVE = """
DELETE FROM ready WHERE (queue, job_type, rank, scheduled_for, seq) IN (
    SELECT 'default', 'noop', -50, value ->> 3, value ->> 0 FROM json_each(?))
"""
SETTLE = """
INSERT INTO ended
SELECT r.seq, 'completed', r.attempt, r.failures, r.worker_id, r.started_at, ?2, s.value ->> 3
FROM json_each(?1) AS s CROSS JOIN running AS r ON r.seq = s.value ->> 0
WHERE r.attempt = s.value ->> 1 AND r.token = s.value ->> 2
"""
RELEASE = "DELETE FROM running WHERE seq IN (SELECT value ->> 0 FROM json_each(?))"
COUNT = """
INSERT INTO counter VALUES (?1 / 60000000, 'noop', 'default', 'completed', ?2, ?3)
ON CONFLICT DO UPDATE SET count = count + excluded.count, ran = ran + excluded.ran
"""
FILL_BATCH = 1_000
BATCH = 200
WORKER_ID = f"limit:{os.getpid()}"


class Note(BaseModel):
    user_id: int
    text: str


def drain(order: Order) -> Figures:
    """Claim 200 in one commit, validate them, settle 200 in another."""
    connection = _create(order.folder / "limit.db")
    _fill(connection, order.jobs)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    settled = 0
    start = time.perf_counter()
    while True:
        token = secrets.token_hex(16)
        claimed = _claim(connection, token)
        if not claimed:
            break
        _settle(connection, [(job[0], job[1], token, _handle(job[-1])) for job in claimed])
        settled += len(claimed)
    seconds = time.perf_counter() - start
    assert settled == order.jobs == connection.execute("SELECT count(*) FROM ended").get
    return {"rate": settled / seconds}


def _claim(connection: apsw.Connection, token: str) -> list[list[Any]]:
    connection.execute("BEGIN IMMEDIATE")
    claimed: list[list[Any]] = msgspec.json.decode(connection.execute(HEAD, (BATCH,)).get)
    places = msgspec.json.encode([job[:4] for job in claimed]).decode()
    connection.execute(CLAIM, (places, token, WORKER_ID, _now()))
    connection.execute(LEAVE, (places,))
    connection.execute("COMMIT")
    return claimed


def _handle(payload: str) -> str:
    note = Note.__pydantic_validator__.validate_json(payload)
    return msgspec.json.encode({"seen": note.user_id}).decode()


def _settle(connection: apsw.Connection, ended: list[tuple[int, int, str, str]]) -> None:
    batch, now = msgspec.json.encode(ended).decode(), _now()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(SETTLE, (batch, now))
    assert connection.changes() == len(ended), "each must be found with its attempt and token"
    connection.execute(RELEASE, (batch,))
    connection.execute(COUNT, (now, len(ended), 0))
    connection.execute("COMMIT")


def _fill(connection: apsw.Connection, jobs: int) -> None:
    payloads = [msgspec.json.encode(each).decode() for each in notes(jobs)]
    for first in range(0, jobs, FILL_BATCH):
        now = _now()
        numbered = list(enumerate(payloads[first : first + FILL_BATCH], first + 1))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(FACTS, [(seq, str(uuid.uuid4()), now, now, payload) for seq, payload in numbered])
        connection.executemany(PLACE, [(now, seq) for seq, _ in numbered])
        connection.execute("COMMIT")


def _now() -> int:
    return time.time_ns() // 1_000


def _create(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000").fetchall()
    connection.execute("PRAGMA cache_size = -65536")
    assert connection.pragma("synchronous") == 2, "the limit must pay for durable commits like everyone else"
    connection.execute(SCHEMA)
    return connection


MEASURES = {"drain": drain}
