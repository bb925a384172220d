"""The judge: evidence of a run in, every broken invariant of the guarantees out.

Each invariant is a small pure function; its id is that of the guarantees. S17 (isolation) belongs to the
server; S18 (clock freedom) is a way to run the others: with `clocks="arbitrary"` those that compare store
times are left out. S19 to S21 are those of operating: schedules, pausing, counting; retention is part of S1.
S22 to S24 are those of trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from holdfast.lifecycle import TERMINAL
from holdfast.testing.history import invariants_of_calls as calls
from holdfast.testing.history import invariants_of_dependencies as dependencies
from holdfast.testing.history import invariants_of_jobs as jobs
from holdfast.testing.history import invariants_of_operating as operating
from holdfast.testing.history import invariants_of_order as order
from holdfast.testing.history import invariants_of_retention as retention
from holdfast.testing.history import invariants_of_schedules as schedules
from holdfast.testing.history import invariants_of_trees as trees
from holdfast.testing.history.evidence import Evidence

Invariant = Callable[[Evidence], Iterator[tuple[str, str]]]

INVARIANTS: Mapping[str, tuple[Invariant, ...]] = {
    "S1": (calls.durable_acknowledgement, retention.retention),
    "S2": (calls.no_invention,),
    "S3": (calls.conservation,),
    "S4": (jobs.single_completion,),
    "S5": (jobs.fencing, calls.fenced_calls),
    "S6": (jobs.version_chain, calls.attempts_are_single),
    "S7": (order.lease_exclusion, order.leases_go_with_claims),
    "S8": (calls.result_integrity,),
    "S9": (calls.told_the_truth,),
    "S10": (jobs.retry_bound,),
    "S11": (order.deduplication,),
    "S12": (dependencies.dependencies,),
    "S13": (order.not_before,),
    "S14": (calls.batches,),
    "S15": (jobs.cancel_or_complete,),
    "S16": (calls.repeatable,),
    "S19": (schedules.schedules,),
    "S20": (operating.pausing,),
    "S21": (operating.counting,),
    "S22": (trees.numbers_of_parents,),
    "S23": (trees.children_of_committed_runs,),
    "S24": (trees.waiting_parents,),
}
OF_STORE_TIME = frozenset({"S7", "S13"})


class Violation(NamedTuple):
    invariant: str
    job_id: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.job_id or 'the run'} {self.sentence}"


def check(evidence: Evidence, *, clocks: Literal["sane", "arbitrary"] = "sane") -> list[Violation]:
    """Every violation of a safety invariant."""
    return [
        Violation(name, job_id, sentence)
        for name, functions in INVARIANTS.items()
        if clocks == "sane" or name not in OF_STORE_TIME
        for function in functions
        for job_id, sentence in function(evidence)
    ]


def unfinished(evidence: Evidence) -> list[Violation]:
    """Liveness, L1: with faults over and a healthy worker, every job ends."""
    return [
        Violation("L1", record.job_id, f"is still {record.status} (attempt {record.attempt})")
        for record in evidence.records
        if record.status not in TERMINAL
    ]
