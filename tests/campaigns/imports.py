"""Imports a large queue of another system, with the command killed (SIGKILL) at random pages."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg

from backstay import Backstay
from backstay.limits import IMPORT_PAGE
from tests.campaigns.rounds import in_a_folder, say, versions
from tests.imports import (
    analysis_source,
    celery_source,
    delphi_source,
    embedding_source,
    pgqueuer_source,
    procrastinate_source,
    rq_source,
    scheduled_source,
)
from tests.imports.facts import Facts, digest, jobs_of, own_id
from tests.support.servers.dynamodb import DynamoDB
from tests.support.servers.postgres import Postgres
from tests.support.servers.redis import Redis

POINTS = ("adopt.uncommitted", "adopt.committed", "import.adopted", "import.page")
BETWEEN = POINTS[2:]  # DynamoDB commits in many small writes, none of which is a page
SECONDS = 3_600


class Source(NamedTuple):
    """A source that was made for a round: its name and address, what is in it, and the same of a job here."""

    name: str
    address: str
    facts: Callable[[], Iterator[Facts]]
    facts_of: Callable[[Any], Facts]


class Servers:
    """Real servers, each started when it is needed."""

    def __init__(self, opened: ExitStack, folder: Path) -> None:
        self._opened = opened
        self._folder = folder
        self._postgres: Postgres | None = None
        self._dynamodb: DynamoDB | None = None
        self._redis: Redis | None = None

    @property
    def postgres(self) -> Postgres:
        if self._postgres is None:
            self._postgres = self._opened.enter_context(Postgres())
        return self._postgres

    @property
    def dynamodb(self) -> DynamoDB:
        if self._dynamodb is None:
            self._dynamodb = self._opened.enter_context(DynamoDB(lasting=True))
        return self._dynamodb

    @property
    def redis(self) -> Redis:
        if self._redis is None:
            self._redis = self._opened.enter_context(Redis())
        return self._redis

    def queue(self, engine: str) -> str:
        """Return the address of an empty queue."""
        name = f"q_{secrets.token_hex(4)}"
        match engine:
            case "postgres":
                return self.postgres.url(schema=name)
            case "dynamodb":
                return self.dynamodb.url(name)
            case _:
                return f"sqlite:///{self._folder}/{name}.db"

    def database(self) -> str:
        """Return the address of an empty database."""
        name = f"source_{secrets.token_hex(4)}"
        with psycopg.connect(self.postgres.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"{self.postgres.url().rpartition('/')[0]}/{name}"


def analysis(servers: Servers, folder: Path, jobs: int) -> Source:
    path = folder / "jobs.db"
    analysis_source.make(path, jobs)
    return Source("analysis", str(path), lambda: analysis_source.facts(path), analysis_source.facts_of)


def delphi(servers: Servers, folder: Path, jobs: int) -> Source:
    return _delphi(servers, jobs, delphi_source.create_as_the_text_says)


def delphi_code(servers: Servers, folder: Path, jobs: int) -> Source:
    return _delphi(servers, jobs, delphi_source.create_job_queue_table)


def _delphi(servers: Servers, jobs: int, create: Callable[[Any, str], Any]) -> Source:
    address = servers.dynamodb.url(f"source_{secrets.token_hex(4)}")
    table = create(delphi_source.resource(address), urlsplit(address).netloc)
    delphi_source.make(table, jobs)
    return Source("delphi", address, lambda: delphi_source.facts(table), delphi_source.facts_of)


def embedding_jobs(servers: Servers, folder: Path, jobs: int) -> Source:
    url = servers.database()
    embedding_source.make(url, jobs)
    return Source("embedding-jobs", url, lambda: embedding_source.facts(url), embedding_source.facts_of)


def scheduled(servers: Servers, folder: Path, jobs: int) -> Source:
    address = servers.dynamodb.url(f"source_{secrets.token_hex(4)}")
    table = scheduled_source.create_table(delphi_source.resource(address), urlsplit(address).netloc)
    scheduled_source.make(table, jobs)
    return Source("scheduled", address, lambda: scheduled_source.facts(table), scheduled_source.facts_of)


def procrastinate(servers: Servers, folder: Path, jobs: int) -> Source:
    url = servers.database()

    async def make() -> None:
        await procrastinate_source.make(url, 10)
        await procrastinate_source.add(url, jobs - 70)

    in_a_thread(lambda: asyncio.run(make()))
    return Source("procrastinate", url, lambda: procrastinate_source.facts(url), procrastinate_source.facts_of)


def pgqueuer(servers: Servers, folder: Path, jobs: int) -> Source:
    url = servers.database()

    async def make() -> None:
        await pgqueuer_source.make(url, 10)
        await pgqueuer_source.add(url, jobs - 83)

    in_a_thread(lambda: asyncio.run(make()))
    return Source("pgqueuer", url, lambda: pgqueuer_source.facts(url), pgqueuer_source.facts_of)


def celery(servers: Servers, folder: Path, jobs: int) -> Source:
    url = servers.redis.empty()
    celery_source.celery(celery_source.make, url, 10)
    celery_source.celery(celery_source.add, url, jobs - 70)
    return Source("celery", url, lambda: celery_source.facts(url), celery_source.facts_of)


def rq(servers: Servers, folder: Path, jobs: int) -> Source:
    url = servers.redis.empty()
    rq_source.add(url, jobs)
    return Source(
        "rq", url, lambda: rq_source.facts(url), lambda job: rq_source.facts_of(job, {job.job_id: own_id(job)})
    )


def in_a_thread(work: Callable[[], None]) -> None:
    """Run what has a loop of its own."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()


# By name: how a source is made, and the engine that it is imported into unless another is given.
SOURCES: dict[str, tuple[Callable[[Servers, Path, int], Source], str]] = {
    "analysis": (analysis, "sqlite"),
    "celery": (celery, "sqlite"),
    "delphi": (delphi, "postgres"),
    "delphi-code": (delphi_code, "sqlite"),
    "embedding-jobs": (embedding_jobs, "postgres"),
    "pgqueuer": (pgqueuer, "postgres"),
    "procrastinate": (procrastinate, "postgres"),
    "rq": (rq, "sqlite"),
    "scheduled": (scheduled, "sqlite"),
}


async def imports(seed: int, kills: int, jobs: int, names: list[str], engine: str | None) -> dict[str, Any]:
    started = time.monotonic()
    faults: list[str] = []
    found: dict[str, Any] = {}
    for name in names or list(SOURCES):

        async def run(folder: Path, name: str = name) -> None:
            with ExitStack() as opened:
                into = engine or SOURCES[name][1]
                found[name] = await one(Servers(opened, folder), folder, name, into, jobs, kills, random.Random(seed))

        await in_a_folder(faults, f"import-{name}-{seed}", run)
    return {
        "what": "imports",
        "verdict": "failed" if faults or len(found) < len(names or SOURCES) else "passed",
        "asked": {"kills": kills, "jobs": jobs, "seed": seed, "sources": names, "into": engine},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - started),
        "versions": versions(),
        "sources": found,
        "faults": faults[:50],
    }


async def one(
    servers: Servers, folder: Path, name: str, engine: str, jobs: int, kills: int, draw: random.Random
) -> dict[str, Any]:
    """Import one source, killed so many times, and compare both sides."""
    say(f"{name}: making {jobs:,} jobs")
    source = SOURCES[name][0](servers, folder, jobs)
    before = digest(source.facts())
    queue = servers.queue(engine)
    killed = []
    pages = max(1, -(-jobs // IMPORT_PAGE) // (kills + 1))
    for number in range(kills):
        # A later try passes over the pages of the earlier ones first.
        point = f"{draw.choice(BETWEEN if engine == 'dynamodb' else POINTS)}@{pages * number + draw.randint(1, pages)}"
        run_import(source, queue, dies_at=point)
        killed.append(point)
        say(f"{name}: {number + 1} of {kills} kills")
    began, used = time.monotonic(), _processor_seconds()
    run_import(source, queue)
    took, processor = time.monotonic() - began, _processor_seconds() - used
    say(f"{name}: comparing")
    async with Backstay(queue) as app:
        here = digest([source.facts_of(job) async for job in jobs_of(app)])
    assert digest(source.facts()) == before, f"the source {name} was changed"
    assert before[0] == jobs
    assert here == before, f"{name}: {before} in the source, {here} here"
    return {
        "into": engine,
        "kills": killed,
        "jobs": here[0],
        "sum of hashes": here[1][:16],
        "seconds of the last try": round(took, 1),
        "its processor seconds": round(processor, 1),
    }


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_import(source: Source, queue: str, *, dies_at: str = "") -> None:
    name, _, nth = dies_at.partition("@")
    done = subprocess.run(
        [sys.executable, "-m", "backstay", "--url", queue, "import", source.name, source.address, "--yes"],
        env={**os.environ, "BACKSTAY_FAILPOINTS": f"{name}=kill9@{nth}" if dies_at else ""},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    expected = -signal.SIGKILL if dies_at else 0
    assert done.returncode == expected, (dies_at, done.returncode, done.stderr[-2000:])
    if not dies_at:
        assert "both sides were compared and match" in done.stderr, done.stderr[-2000:]
