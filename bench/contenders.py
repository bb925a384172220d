"""Who takes part, and where its measurements are.

A contender's module has `MEASURES`: by the name of a workload, a function that takes an `Order`, does the
work once in a fresh folder and answers its figures by metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from peers import node

MODULES = {
    "sqlite": {
        "holdfast": "holdfast_load",
        "holdfast, no history": "holdfast_bare",
        "holdfast, no retention": "holdfast_untidy",
        "limit": "limits",
        "limit, from dicts": "limits_from_dicts",
        "huey": "peers.huey_default",
        "huey, 1 ms polling": "peers.huey_polling",
        "persist-queue": "peers.persist_queue",
    },
    "postgres": {
        "holdfast": "holdfast_load",
        "holdfast, 2 processes": "holdfast_two_processes",
        "holdfast, no history": "holdfast_bare",
        "limit": "postgres_limits",
        "limit, COPY": "postgres_limits_copy",
        "pgqueuer": "peers.pgqueuer_peer",
        "procrastinate": "peers.procrastinate_peer",
        "pg-boss": "peers.pg_boss",
        "graphile-worker": "peers.graphile_worker",
    },
    "dynamodb": {"holdfast": "holdfast_units"},
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
    shared: Path  # kept over the rounds of one run: prepared files
    idle_seconds: float  # how long to watch an idle worker
    finished: int  # a large file: rows that are over
    pending: int  # and rows that wait, of which `jobs` are measured
    retirable: int  # rows that are over their time
    url: str | None = None  # an empty database of this sample; None: the store is a file in the folder


Figures = dict[str, float]
Measure = Callable[[Order], Figures]


def measure_of(store: str, contender: str, workload: str) -> Measure:
    measures: Mapping[str, Measure] = import_module(MODULES[store][contender]).MEASURES
    return measures[workload]


def is_installed(contender: str) -> bool:
    if contender in NODE_PEERS:
        return node.is_installed(contender)
    package = NEEDS.get(contender)
    return package is None or find_spec(package) is not None
