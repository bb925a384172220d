"""A `jobs.db` as the analysis service's document makes it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from backstay import Job
from tests.imports.facts import Facts, own_id, utc

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id              TEXT PRIMARY KEY,           -- job_xxxxxxxxxxxx
    type            TEXT NOT NULL,              -- "analyze" | "lrc"
    status          TEXT NOT NULL DEFAULT 'queued',  -- queued | processing | completed | failed
    progress        REAL NOT NULL DEFAULT 0.0,
    stage           TEXT NOT NULL DEFAULT '',
    error_message   TEXT,

    -- Serialized request/result as JSON
    request_json    TEXT NOT NULL,              -- Full AnalyzeJobRequest or LrcJobRequest
    result_json     TEXT,                       -- Full JobResult (NULL until completed)

    -- Timestamps (ISO 8601 strings, UTC)
    created_at      TEXT NOT NULL,
    updated_at      TEXT NOT NULL,

    -- For cache key lookups and deduplication
    content_hash    TEXT NOT NULL,              -- Audio content hash from request

    -- Index for common queries
    CHECK (status IN ('queued', 'processing', 'completed', 'failed')),
    CHECK (type IN ('analyze', 'lrc'))
);

CREATE INDEX IF NOT EXISTS idx_jobs_status ON jobs(status);
CREATE INDEX IF NOT EXISTS idx_jobs_content_hash ON jobs(content_hash);
CREATE INDEX IF NOT EXISTS idx_jobs_created_at ON jobs(created_at);
"""
START = datetime(2026, 11, 12, 8, tzinfo=UTC)
STATES = ("queued", "processing", "completed", "failed")
BECOMES = {"queued": "pending", "processing": "retrying", "completed": "completed", "failed": "failed"}
INSERT = "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def make(path: Path, jobs: int) -> None:
    """A queue of so many jobs, of every type and in every state."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(SCHEMA)
        connection.executemany(INSERT, (row(number) for number in range(jobs)))
    connection.close()


def row(number: int) -> tuple[object, ...]:
    status = STATES[number % 4]
    job_type = ("analyze", "lrc")[number // 4 % 2]
    content_hash = f"{number:064x}"
    request: dict[str, object] = {"content_hash": content_hash, "force": False}
    if job_type == "lrc":
        request |= {"lyrics": f"Zeile {number}\nschön", "title": "t", "artist": "a"}
    created = START + timedelta(seconds=number)
    return (
        f"job_{number:012x}",
        job_type,
        status,
        {"queued": 0.0, "processing": 0.4, "completed": 1.0, "failed": 0.7}[status],
        {"queued": "", "processing": "beats", "completed": "complete", "failed": "error"}[status],
        f"ValueError: broken {number}" if status == "failed" else None,
        json.dumps(request),
        json.dumps({"tempo_bpm": number + 0.5, "beats": [0.25, 0.5]}) if status == "completed" else None,
        created.isoformat(),
        (created + timedelta(minutes=number % 60)).isoformat(),
        content_hash,
    )


def facts(path: Path) -> Iterator[Facts]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        for each in connection.execute("SELECT * FROM jobs ORDER BY id"):
            job_id, job_type, status, progress, stage, error, request, result, created, updated, content_hash = each
            yield (
                job_id,
                job_type,
                BECOMES[status],
                0.0 if status == "processing" else progress,
                "requeued" if status == "processing" else stage,
                error,
                json.loads(request),
                None if result is None else json.loads(result),
                utc(created),
                utc(updated) if status != "queued" else utc(created),
                content_hash,
            )
    connection.close()


def facts_of(job: Job) -> Facts:
    return (
        own_id(job),
        job.job_type,
        job.status.value,
        job.progress,
        job.stage,
        job.last_error if job.status == "failed" else None,
        job.payload,
        job.result,
        utc(job.created_at),
        utc(job.updated_at),
        job.subject,
    )
