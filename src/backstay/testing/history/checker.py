"""The checker: takes the evidence of a run, and returns every violated invariant of the guarantees.

Each invariant is a small pure function; its id is that of the guarantees. S17 (isolation) belongs to the server; S18
(clock freedom) is a way to run the others: with `clocks="arbitrary"` those that compare store times are left out. S19
to S21 are those of operating: schedules, pausing, counting; retention is part of S1. S22 to S24 are those of trees, S25
is that of limits set at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from backstay.core.states import TERMINAL
from backstay.testing.history import job_invariants, operation_invariants
from backstay.testing.history.evidence import Evidence

Invariant = Callable[[Evidence], Iterator[tuple[str, str]]]

INVARIANTS: Mapping[str, tuple[Invariant, ...]] = {
    "S1": (operation_invariants.durable_acknowledgement, operation_invariants.retention),
    "S2": (operation_invariants.no_invention,),
    "S3": (operation_invariants.conservation,),
    "S4": (job_invariants.single_completion,),
    "S5": (job_invariants.fencing, operation_invariants.fenced_calls),
    "S6": (job_invariants.version_chain, operation_invariants.attempts_are_single),
    "S7": (job_invariants.lease_exclusion, job_invariants.leases_go_with_claims),
    "S8": (operation_invariants.result_integrity,),
    "S9": (operation_invariants.told_the_truth,),
    "S10": (job_invariants.retry_bound,),
    "S11": (job_invariants.deduplication,),
    "S12": (job_invariants.dependencies,),
    "S13": (job_invariants.not_before,),
    "S14": (operation_invariants.batches,),
    "S15": (job_invariants.cancel_or_complete,),
    "S16": (operation_invariants.repeatable,),
    "S19": (operation_invariants.schedules,),
    "S20": (operation_invariants.pausing,),
    "S21": (operation_invariants.counting,),
    "S22": (job_invariants.numbers_of_parents,),
    "S23": (job_invariants.children_of_committed_runs,),
    "S24": (job_invariants.waiting_parents,),
    "S25": (operation_invariants.limits_of_types,),
}
OF_STORE_TIME = frozenset({"S7", "S13"})


class Violation(NamedTuple):
    invariant: str
    job_id: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.job_id or 'the run'} {self.sentence}"


def check(evidence: Evidence, *, clocks: Literal["sane", "arbitrary"] = "sane") -> list[Violation]:
    """Return every violation of a safety invariant."""
    return [
        Violation(name, job_id, sentence)
        for name, functions in INVARIANTS.items()
        if clocks == "sane" or name not in OF_STORE_TIME
        for function in functions
        for job_id, sentence in function(evidence)
    ]


def unfinished(evidence: Evidence) -> list[Violation]:
    """Return violations of liveness, L1: after the faults, with a healthy worker, every job ends."""
    return [
        Violation("L1", record.job_id, f"is still {record.status} (attempt {record.attempt})")
        for record in evidence.records
        if record.status not in TERMINAL
    ]
