"""The workloads on each store: size, contenders, and how the figures are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

OURS = "backstay"
OURS_TWICE = "backstay, 2 processes"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    unit: str
    better: Literal["higher", "lower"]
    digits: int


RATE = (Metric("rate", "jobs/s", "higher", 0),)
LATENCY = (Metric("p50", "ms p50", "lower", 2), Metric("p99", "ms p99", "lower", 2))


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    metrics: tuple[Metric, ...]
    contenders: tuple[str, ...]
    jobs: int
    quick_jobs: int
    fewer_jobs: Mapping[str, int] = field(default_factory=dict)  # for peers too slow for the full count

    def jobs_for(self, contender: str, *, quick: bool) -> int:
        jobs = self.quick_jobs if quick else self.jobs
        return min(jobs, self.fewer_jobs.get(contender, jobs))


HTTP = (Metric("rate", "requests/s", "higher", 0), Metric("cpu", "ms CPU of the server", "lower", 2))
HTTP_WORKLOADS = tuple(
    Workload(
        f"http-{connections}",
        f"submit over HTTP, {connections} connection{'s' if connections > 1 else ''}",
        HTTP,
        (OURS, "limit, HTTP"),
        jobs=3_000,
        quick_jobs=1_000,
    )
    for connections in (1, 32)
)

CLAIM = (
    Metric("p50", "ms p50", "lower", 2),
    Metric("p99", "ms p99", "lower", 2),
    Metric("cpu", "ms CPU", "lower", 2),
    Metric("alone", "ms, another's submit", "lower", 2),
    Metric("alone-max", "ms, the slowest", "lower", 2),
    Metric("submit", "ms, its submit meanwhile", "lower", 2),
    Metric("submit-max", "ms, the slowest", "lower", 2),
)
LANES = (
    *(
        Workload(f"lanes-{name}", f"claim over {title}", CLAIM, (OURS,), jobs=300, quick_jobs=60)
        for name, title in (
            ("1x1", "one type in one queue"),
            ("5x1000", "5 types × 1,000 queues"),
            ("5x2000", "5 types × 2,000 queues"),
            ("200x200", "200 types × 200 queues"),
            ("200-own", "200 types, each in its queue"),
        )
    ),
    Workload(
        "lanes-idle",
        "idle worker with 200 types",
        (Metric("cpu", "% of a core", "lower", 2), Metric("server", "% of a core, server", "lower", 2)),
        (OURS,),
        jobs=0,
        quick_jobs=0,
    ),
)

SQLITE = (
    Workload(
        "submit-blocking",
        "submit one at a time, blocking",
        RATE,
        (OURS, "limit", "persist-queue", "huey"),
        jobs=3_000,
        quick_jobs=1_000,
    ),
    Workload(
        "submit-one",
        "submit one at a time, asyncio",
        RATE,
        (OURS, "limit"),
        jobs=3_000,
        quick_jobs=1_000,
    ),
    Workload(
        "submit-concurrent",
        "submit from 64 tasks (limit: single commits)",
        RATE,
        (OURS, "limit"),
        jobs=20_000,
        quick_jobs=10_000,
        fewer_jobs={"limit": 3_000},
    ),
    Workload(
        "submit-many",
        "submit_many of 10,000",
        RATE,
        (OURS, "limit", "limit, from dicts"),
        jobs=10_000,
        quick_jobs=10_000,
    ),
    Workload(
        "drain",
        "drain by one worker",
        RATE,
        (OURS, "limit", "limit, places", "huey", "huey, 1 ms polling", "persist-queue"),
        jobs=20_000,
        quick_jobs=20_000,
        fewer_jobs={"huey": 4_000, "huey, 1 ms polling": 4_000, "persist-queue": 2_000},
    ),
    Workload(
        "pickup-same",
        "pickup, same process",
        LATENCY,
        (OURS,),
        jobs=300,
        quick_jobs=100,
    ),
    Workload(
        "pickup-other",
        "pickup, other process",
        LATENCY,
        (OURS, "huey", "huey, 1 ms polling"),
        jobs=300,
        quick_jobs=100,
    ),
    Workload(
        "idle",
        "idle worker",
        (Metric("cpu", "% of a core", "lower", 2), Metric("rss", "MB RSS", "lower", 1)),
        (OURS, "huey", "huey, 1 ms polling"),
        jobs=0,
        quick_jobs=0,
    ),
    Workload(
        "history",
        "drain in a large file",
        RATE,
        (OURS, "backstay, no history"),
        jobs=20_000,
        quick_jobs=20_000,
    ),
    Workload(
        "retention",
        "drain during retention",
        RATE,
        (OURS, "backstay, no retention"),
        jobs=20_000,
        quick_jobs=20_000,
    ),
    *HTTP_WORKLOADS,
    *LANES,
)

POSTGRES = (
    Workload(
        "submit-one",
        "submit one at a time",
        RATE,
        (OURS, "limit", "pgqueuer", "procrastinate", "pg-boss", "graphile-worker"),
        jobs=3_000,
        quick_jobs=1_000,
        fewer_jobs={"procrastinate": 1_000},
    ),
    Workload("submit-concurrent", "submit from 64 tasks", RATE, (OURS,), jobs=20_000, quick_jobs=10_000),
    Workload(
        "submit-many",
        "submit_many of 10,000",
        RATE,
        (OURS, "limit", "limit, COPY", "pgqueuer", "procrastinate", "pg-boss", "graphile-worker"),
        jobs=10_000,
        quick_jobs=10_000,
    ),
    Workload(
        "drain",
        "drain",
        RATE,
        (OURS, OURS_TWICE, "limit", "limit, places", "pgqueuer", "procrastinate", "pg-boss", "graphile-worker"),
        jobs=40_000,
        quick_jobs=20_000,
        fewer_jobs={"procrastinate": 2_000},
    ),
    Workload("pickup-same", "pickup, same process", LATENCY, (OURS,), jobs=300, quick_jobs=100),
    Workload(
        "pickup-other",
        "pickup, other process",
        LATENCY,
        (OURS, "pgqueuer", "procrastinate", "graphile-worker"),
        jobs=300,
        quick_jobs=100,
    ),
    Workload(
        "idle",
        "idle worker",
        (Metric("cpu", "% of a core", "lower", 2), Metric("rss", "MB RSS", "lower", 1)),
        (OURS, "pgqueuer", "procrastinate", "graphile-worker"),
        jobs=0,
        quick_jobs=0,
    ),
    Workload(
        "history",
        "drain in a large table",
        RATE,
        (OURS, "backstay, no history"),
        jobs=40_000,
        quick_jobs=20_000,
    ),
    *HTTP_WORKLOADS,
    *LANES,
    Workload(
        "wal",
        "WAL, submit to completion",
        (Metric("bytes", "bytes/job", "lower", 0),),
        (OURS, "limit, places", "pgqueuer", "pg-boss", "graphile-worker"),
        jobs=20_000,
        quick_jobs=10_000,
    ),
)

UNITS = (
    Metric("submit", "write units/job: submit", "lower", 2),
    Metric("claim", "write units/job: claim", "lower", 2),
    Metric("complete", "write units/job: complete", "lower", 2),
    Metric("reads", "read units/job", "lower", 2),
    Metric("rate", "jobs/s on DynamoDB Local", "higher", 0),
)
DYNAMODB = (
    Workload("units-one", "jobs one by one", UNITS, (OURS,), jobs=40, quick_jobs=10),
    # DynamoDB Local reports the write units of only one item of a transaction: so only reads are shown here.
    Workload("units-together", "jobs by fifties", UNITS[3:], (OURS,), jobs=400, quick_jobs=100),
    Workload(
        "units-idle",
        "idle worker",
        (Metric("reads", "read units/day", "lower", 0), Metric("writes", "write units/day", "lower", 0)),
        (OURS,),
        jobs=0,
        quick_jobs=0,
    ),
)

WORKLOADS = {"sqlite": SQLITE, "postgres": POSTGRES, "dynamodb": DYNAMODB}

# The large file of the workload "history": finished rows and waiting rows.
FINISHED, PENDING = 1_000_000, 200_000
QUICK_FINISHED, QUICK_PENDING = 100_000, 50_000
# The file of the workload "retention": expired finished rows, more than are archived during the measurement.
RETIRABLE, QUICK_RETIRABLE = 300_000, 50_000
IDLE_SECONDS, QUICK_IDLE_SECONDS = 10.0, 3.0


def select(store: str, only: str | None) -> tuple[Workload, ...]:
    """Return the store's workloads whose names begin with one of the comma-separated words; without any, all."""
    workloads = WORKLOADS[store]
    if only is None:
        return workloads
    words = tuple(word.strip() for word in only.split(","))
    for word in words:
        if not any(workload.name.startswith(word) for workload in workloads):
            names = ", ".join(workload.name for workload in workloads)
            raise SystemExit(f'No workload begins with "{word}". There are: {names}.')
    return tuple(workload for workload in workloads if workload.name.startswith(words))
