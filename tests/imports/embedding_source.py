"""An embedding queue, as the SQL of the document makes it, in a real PostgreSQL with pgvector."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg

from backstay import Job
from tests.imports.facts import Facts, own_id, utc

# What the document's tables refer to: rules, projects, users.
AROUND = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE SCHEMA auth;
CREATE TABLE auth.users (id UUID PRIMARY KEY);
CREATE TABLE projects (id UUID PRIMARY KEY);
CREATE TABLE rules (id UUID PRIMARY KEY, embedding VECTOR(768));
"""
SCHEMA = """
CREATE TYPE job_status AS ENUM ('pending', 'processing', 'completed', 'failed', 'retrying');
CREATE TYPE job_priority AS ENUM ('low', 'normal', 'high', 'urgent');

CREATE TABLE embedding_jobs (
    id UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    rule_id UUID NOT NULL REFERENCES rules(id) ON DELETE CASCADE,

    -- Job configuration
    status job_status NOT NULL DEFAULT 'pending',
    priority job_priority NOT NULL DEFAULT 'normal',
    embedding_model TEXT NOT NULL DEFAULT 'nomic-embed-text',

    -- Input data for embedding
    input_text TEXT NOT NULL,
    text_hash TEXT NOT NULL, -- For deduplication

    -- Processing tracking
    attempts INTEGER DEFAULT 0,
    max_attempts INTEGER DEFAULT 3,

    -- Timing
    created_at TIMESTAMPTZ DEFAULT NOW(),
    started_at TIMESTAMPTZ,
    completed_at TIMESTAMPTZ,

    -- Results
    embedding_vector VECTOR(768), -- Store result here
    embedding_dimensions INTEGER,
    error_message TEXT,
    processing_time_ms INTEGER,

    -- Worker tracking
    worker_id TEXT,
    worker_version TEXT,

    -- Metadata
    project_id UUID REFERENCES projects(id) ON DELETE CASCADE,
    created_by UUID REFERENCES auth.users(id) ON DELETE SET NULL,

    -- Constraints
    CONSTRAINT valid_attempts CHECK (attempts >= 0 AND attempts <= max_attempts),
    CONSTRAINT completed_jobs_have_embedding CHECK (
        (status = 'completed' AND embedding_vector IS NOT NULL) OR
        (status != 'completed')
    )
);

-- Indexes for job processing
CREATE INDEX idx_embedding_jobs_status ON embedding_jobs(status);
CREATE INDEX idx_embedding_jobs_priority ON embedding_jobs(priority, created_at);
CREATE INDEX idx_embedding_jobs_rule_id ON embedding_jobs(rule_id);
CREATE INDEX idx_embedding_jobs_text_hash ON embedding_jobs(text_hash);
CREATE INDEX idx_embedding_jobs_created_at ON embedding_jobs(created_at);

-- Partial indexes for active jobs
CREATE INDEX idx_embedding_jobs_pending ON embedding_jobs(priority, created_at)
WHERE status = 'pending';

CREATE INDEX idx_embedding_jobs_processing ON embedding_jobs(started_at)
WHERE status = 'processing';
"""
DEAD_LETTERS = """
CREATE TABLE embedding_job_failures AS
SELECT * FROM embedding_jobs WHERE status = 'failed';
"""
START = datetime(2026, 11, 12, 8, tzinfo=UTC)
STATES = ("pending", "processing", "completed", "failed", "retrying")
BECOMES = {"processing": "retrying"}
PRIORITIES = {"low": 25, "normal": 50, "high": 75, "urgent": 100}
COLUMNS = (
    "id", "rule_id", "status", "priority", "embedding_model", "input_text", "text_hash", "attempts", "max_attempts",
    "created_at", "started_at", "completed_at", "embedding_vector", "embedding_dimensions", "error_message",
    "processing_time_ms", "worker_id", "worker_version", "project_id", "created_by",
)  # fmt: skip
VECTOR = [round(n / 1000, 3) for n in range(768)]
PROJECT, USER = UUID(int=1), UUID(int=2)


def make(url: str, jobs: int) -> None:
    """A queue of so many jobs, of every priority and in every status."""
    with psycopg.connect(url) as connection:
        connection.execute(AROUND)
        connection.execute(SCHEMA)
        connection.execute("INSERT INTO projects VALUES (%s)", (PROJECT,))
        connection.execute("INSERT INTO auth.users VALUES (%s)", (USER,))
        rules = max(1, jobs // 2)
        with connection.cursor() as cursor:
            with cursor.copy("COPY rules (id) FROM STDIN") as copy:
                for number in range(rules):
                    copy.write_row((UUID(int=1000 + number),))
            with cursor.copy(f"COPY embedding_jobs ({', '.join(COLUMNS)}) FROM STDIN") as copy:
                for number in range(jobs):
                    copy.write_row(row(number, rules))


def row(number: int, rules: int) -> tuple[Any, ...]:
    status = STATES[number % 5]
    text = f"Rule {number % rules}: prefer 'short' functions, schön"
    created = START + timedelta(seconds=number)
    has_started, is_done = status != "pending", status == "completed"
    return (
        UUID(int=(7 << 96) | (4 << 76) | (8 << 60) | number),
        UUID(int=1000 + number % rules),
        status,
        tuple(PRIORITIES)[number // 5 % 4],
        "nomic-embed-text",
        text,
        hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(),
        {"pending": 0, "processing": 1 + number % 3, "completed": 1 + number % 2, "failed": 3, "retrying": 1}[status],
        3,
        created,
        created + timedelta(minutes=1) if has_started else None,
        created + timedelta(minutes=2) if is_done else None,
        "[" + ",".join(map(str, VECTOR)) + "]" if is_done else None,
        768 if is_done else None,
        {"failed": "Max attempts exceeded: out of memory", "retrying": "ConnectError: no route"}.get(status),
        10 + number % 100 if is_done else None,
        f"worker-{number % 4}" if has_started else None,
        "1.2.0" if has_started else None,
        PROJECT if number % 3 else None,
        USER if number % 2 else None,
    )


def facts(url: str) -> Iterator[Facts]:
    with psycopg.connect(url) as connection:
        for values in connection.execute("SELECT * FROM embedding_jobs ORDER BY id"):
            each = dict(zip(COLUMNS, values, strict=True))
            status = each["status"]
            yield (
                str(each["id"]),
                BECOMES.get(status, status),
                PRIORITIES[each["priority"]],
                {
                    "rule_id": str(each["rule_id"]),
                    "project_id": str(each["project_id"]) if each["project_id"] else None,
                    "input_text": each["input_text"],
                    "text_hash": each["text_hash"],
                    "embedding_model": each["embedding_model"],
                },
                each["attempts"],
                utc(each["created_at"]),
                utc(each["started_at"]),
                utc(each["completed_at"]),
                json.loads(each["embedding_vector"]) if each["embedding_vector"] else None,
                each["embedding_dimensions"],
                each["error_message"] if status != "processing" else None,
                each["processing_time_ms"],
                each["worker_id"],
                each["worker_version"],
                str(each["created_by"]) if each["created_by"] else None,
            )


def facts_of(job: Job) -> Facts:
    is_done = job.status == "completed"
    return (
        own_id(job),
        job.status.value,
        job.priority,
        job.payload,
        job.attempt,
        utc(job.created_at),
        utc(job.started_at),
        utc(job.completed_at) if is_done else None,
        job.result["embedding_vector"] if is_done else None,
        job.result["embedding_dimensions"] if is_done else None,
        None if "was running" in (job.last_error or "") else job.last_error,
        job.metrics.get("processing_time_ms"),
        job.worker_id,
        job.worker_version,
        job.created_by,
    )
