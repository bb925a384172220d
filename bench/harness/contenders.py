"""The contenders, and where their measurements are.

A measurement is a function that takes an `Order`, does the work once in a fresh folder and returns its figures by
metric. A contender has one for each of its workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from bench.peers import npm

# The modules of `bench` that hold the measurements: in `MEASURES`, or in what follows the colon.
CONTENDERS: dict[str, dict[str, tuple[str, ...]]] = {
    "sqlite": {
        "backstay": (
            "workloads.submit",
            "workloads.drain",
            "workloads.pickup",
            "workloads.history",
            "workloads.retention",
            "workloads.http_submit",
            "workloads.lanes",
        ),
        "backstay, no history": ("workloads.history:WITHOUT_HISTORY",),
        "backstay, no retention": ("workloads.retention:WITHOUT_RETENTION",),
        "limit": ("limits.sqlite",),
        "limit, places": ("limits.sqlite_places",),
        "limit, from dicts": ("limits.sqlite:FROM_DICTS",),
        "limit, HTTP": ("workloads.http_submit:BARE",),
        "huey": ("peers.huey",),
        "huey, 1 ms polling": ("peers.huey:POLLING",),
        "persist-queue": ("peers.persist_queue",),
    },
    "postgres": {
        "backstay": (
            "workloads.submit",
            "workloads.drain",
            "workloads.pickup",
            "workloads.history",
            "workloads.http_submit",
            "workloads.lanes",
            "workloads.wal",
        ),
        "backstay, 2 processes": ("workloads.drain:TWO_PROCESSES",),
        "backstay, no history": ("workloads.history:WITHOUT_HISTORY",),
        "limit": ("limits.postgres",),
        "limit, places": ("limits.postgres_places",),
        "limit, COPY": ("limits.postgres:COPY",),
        "limit, HTTP": ("workloads.http_submit:BARE",),
        "pgqueuer": ("peers.pgqueuer",),
        "procrastinate": ("peers.procrastinate",),
        "pg-boss": ("peers.node:PG_BOSS",),
        "graphile-worker": ("peers.node:GRAPHILE_WORKER",),
    },
    "dynamodb": {"backstay": ("workloads.dynamodb",)},
}
NEEDS = {"huey": "huey", "huey, 1 ms polling": "huey", "persist-queue": "persistqueue"} | {
    name: name for name in ("pgqueuer", "procrastinate")
}
NODE_PEERS = ("pg-boss", "graphile-worker")


@dataclass(frozen=True, slots=True)
class Order:
    """One measurement: how many jobs, and the empty folder to put its files in."""

    jobs: int
    folder: Path
    shared: Path  # kept between the rounds of a run: prepared files
    idle_seconds: float  # how long to watch an idle worker
    finished: int  # a large file: finished rows
    pending: int  # and waiting rows, of which `jobs` are measured
    retirable: int  # expired rows
    url: str | None = None  # an empty database of this sample; None: the store is a file in the folder


Figures = dict[str, float]
Measure = Callable[[Order], Figures]


def measure_of(store: str, contender: str, workload: str) -> Measure:
    for place in CONTENDERS[store][contender]:
        module, _, name = place.partition(":")
        measures: Mapping[str, Measure] = getattr(import_module(f"bench.{module}"), name or "MEASURES")
        if workload in measures:
            return measures[workload]
    raise SystemExit(f"{contender} does not take part in {workload} on {store}.")


def is_installed(contender: str) -> bool:
    if contender in NODE_PEERS:
        return npm.is_installed(contender)
    package = NEEDS.get(contender)
    return package is None or find_spec(package) is not None
