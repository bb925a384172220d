"""The app behind the server of `http.py`, and a store with many jobs for it.

One job of each kind and outcome is submitted and run by Backstay itself, the rest are copies of their rows
(`harness/stores.py`). The counters are spread over a day, so that they add up to the jobs that are there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from backstay import Backstay, Discard, JobFailed, JobHandle
from pydantic import BaseModel

from bench.harness.payload import note
from bench.harness.stores import PostgresDatabase, SqliteFile

QUEUES = tuple(f"queue-{n}" for n in range(5))
TYPES = ("embedding", "thumbnail", "invoice", "email", "report", "import", "export", "cleanup")
KINDS = tuple((job_type, queue) for job_type in TYPES for queue in QUEUES)
SHARES = {"completed": 0.90, "failed": 0.01, "pending": 0.09}  # pending last: the others need a worker
FAILS = "fails"
MIXED_IN = 5  # the copies are made in parts, so that kinds and outcomes are interleaved
MINUTES = 1_440

_KEPT = "CREATE TABLE kept_counter AS SELECT * FROM {schema}counter"
# The share of one minute; the sum over all minutes is exact.
_SPREAD = """
INSERT INTO {schema}counter ({columns}, count, ran_micros, waited_micros)
SELECT {values}, jobs * (n + 1) / {minutes} - jobs * n / {minutes},
    (jobs * (n + 1) / {minutes} - jobs * n / {minutes}) * (ran_micros / count),
    (jobs * (n + 1) / {minutes} - jobs * n / {minutes}) * (waited_micros / count)
FROM (SELECT *, CASE outcome {cases} END AS jobs FROM kept_counter) AS kept
CROSS JOIN ({numbers}) AS numbers
WHERE jobs * (n + 1) / {minutes} > jobs * n / {minutes}
"""
_NUMBERS = {
    "sqlite": "WITH RECURSIVE c (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {last}) SELECT n FROM c",
    "postgres": "SELECT n::bigint FROM generate_series(0, {last}) AS n",
}


class Note(BaseModel):
    user_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The ids that the measurements request."""

    job_ids: list[str]
    counts: dict[str, int]


def app_at(url: str) -> Backstay:
    app = Backstay(url)
    for job_type in TYPES:
        app.job(job_type, max_attempts=1)(_work)
    return app


async def _work(payload: Note) -> dict[str, int]:
    if payload.text == FAILS:
        raise Discard("as it was told to")
    return {"seen": payload.user_id}


async def fill(store: SqliteFile | PostgresDatabase, jobs: int, shares: Mapping[str, float] = SHARES) -> Kept:
    each = {status: round(jobs * share / len(KINDS)) for status, share in shares.items()}
    made = await _one_of_each(store.url)
    copies: list[tuple[str, range]] = []
    for part in range(MIXED_IN):
        for status, handles in made.items():
            first, last = (max(1, each[status] * at // MIXED_IN) for at in (part, part + 1))
            copies += [(handle.job_id, range(first, last)) for handle in handles if last > first]
    store.multiply_all(copies)
    _spread_counters(store, each)
    if isinstance(store, PostgresDatabase):
        store.execute(
            "VACUUM (ANALYZE) backstay.job, backstay.ready, backstay.ended"
        )  # as autovacuum would have done with a million rows
        store.execute("VACUUM (ANALYZE) backstay.counter")
    return Kept(
        [handle.job_id for handles in made.values() for handle in handles],
        {status: number * len(KINDS) for status, number in each.items()},
    )


async def _one_of_each(url: str) -> dict[str, list[JobHandle]]:
    made: dict[str, list[JobHandle]] = {}
    async with app_at(url) as app:
        for status in SHARES:
            text = FAILS if status == "failed" else note(0)["text"]
            made[status] = [
                await app.submit(job_type, {"user_id": number, "text": text}, queue=queue)
                for number, (job_type, queue) in enumerate(KINDS)
            ]
            if status == "pending":
                continue
            async with app.worker(queues=list(QUEUES)):
                for handle in made[status]:
                    with suppress(JobFailed):
                        await handle.result(timeout=60)
    return made


def _spread_counters(store: SqliteFile | PostgresDatabase, each: dict[str, int]) -> None:
    engine, schema = ("postgres", "backstay.") if isinstance(store, PostgresDatabase) else ("sqlite", "")
    shard = ["shard"] if schema else []
    kinds = ["job_type", "queue", "priority", "outcome", *shard, "bucket"]
    jobs = {"submitted": sum(each.values()), "completed": each["completed"], "failed": each["failed"]}
    store.execute(_KEPT.format(schema=schema))
    store.execute(f"DELETE FROM {schema}counter")
    store.execute(
        _SPREAD.format(
            schema=schema,
            columns=", ".join(["minute", *kinds]),
            values=", ".join([f"minute - 60000000 * ({MINUTES - 1} - n)", *kinds]),
            minutes=MINUTES,
            cases=" ".join(f"WHEN '{outcome}' THEN {number}" for outcome, number in jobs.items()),
            numbers=_NUMBERS[engine].format(last=MINUTES - 1),
        )
    )
    store.execute("DROP TABLE kept_counter")


app = app_at(os.environ.get("BACKSTAY_URL", "sqlite:///jobs.db"))
