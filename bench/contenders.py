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

MODULES = {
    "holdfast": "holdfast_load",
    "holdfast, no history": "holdfast_bare",
    "holdfast, no retention": "holdfast_untidy",
    "limit": "limits",
    "limit, from dicts": "limits_from_dicts",
    "huey": "peers.huey_default",
    "huey, 1 ms polling": "peers.huey_polling",
    "persist-queue": "peers.persist_queue",
}
PACKAGES = {
    "holdfast": "holdfast",
    "holdfast, no history": "holdfast",
    "holdfast, no retention": "holdfast",
    "limit": "apsw",
    "limit, from dicts": "apsw",
    "huey": "huey",
    "huey, 1 ms polling": "huey",
    "persist-queue": "persistqueue",
}


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


Figures = dict[str, float]
Measure = Callable[[Order], Figures]


def measure_of(contender: str, workload: str) -> Measure:
    measures: Mapping[str, Measure] = import_module(MODULES[contender]).MEASURES
    return measures[workload]


def is_installed(contender: str) -> bool:
    spec = find_spec(PACKAGES[contender])
    return spec is not None and spec.origin is not None  # a folder without __init__.py is no package yet
