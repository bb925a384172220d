"""The SQLite store, driven at random beside a queue in plain Python: after every step both say the same.

HOLDFAST_MODEL_EXAMPLES=5000 makes a campaign of it, with new examples each time.
"""

import asyncio
import copy
import os
import shutil
import tempfile
from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.errors import DedupConflict, HoldfastError, IllegalTransition, UnknownDependency
from holdfast.lifecycle import (
    TERMINAL,
    Cancelled,
    Completed,
    Discarded,
    GivenBack,
    Outcome,
    Raised,
    RetryAsked,
    Snoozed,
    cancel,
    manual_retry,
    reschedule,
    rescue,
)
from holdfast.store.conformance.factories import NOW, SECOND, Claim, an_error, new_job, request
from holdfast.store.types import FOREVER, ExpiredClaim, JobRecord, NewJob, Note
from holdfast.stores.sqlite import SQLiteStore
from tests.model.reference import Queue

GATE_EXAMPLES = 60
EXAMPLES = int(os.environ.get("HOLDFAST_MODEL_EXAMPLES", GATE_EXAMPLES))
STEPS = 40
FAST_DISK = "/dev/shm" if os.path.isdir("/dev/shm") else None

T = TypeVar("T")
picks = st.integers(0, 1000)  # names a job, a claim or a record that is there, whichever there are

options = st.fixed_dictionaries(
    {
        "job_type": st.sampled_from(["a", "b"]),
        "queue": st.sampled_from(["x", "y"]),
        "priority": st.sampled_from([50, 10, 90]),
        "payload": st.sampled_from(["1", "2"]),
        "max_attempts": st.integers(1, 3),
        "on_dependency_failure": st.sampled_from(["cancel", "fail"]),
    }
)
specials = st.fixed_dictionaries(
    {},
    optional={
        "dedup_key": st.sampled_from(["k1", "k2"]),
        "dedup_for": st.sampled_from([30 * SECOND, FOREVER]),
        "dedup_conflict_is_error": st.just(True),
        "content_hash": st.sampled_from(["h1", "h2"]),
        "reuse_for": st.sampled_from([0, 60 * SECOND, FOREVER]),
        "concurrency_key": st.sampled_from(["c1", "c2"]),
        "depends_on": st.lists(picks, min_size=1, max_size=2),
        "parent": picks,
        "own_id": picks,
        "unknown": st.sampled_from(["depends_on", "parent_job_id"]),
    },
)
CONCURRENCY_LIMITS = {"c1": 1, "c2": 2}

outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed, st.sampled_from(["1", "null", '{"a":"snö"}'])),
    st.just(Raised(an_error())),
    st.builds(RetryAsked, st.just(an_error("Again", "later")), st.sampled_from([0, 10 * SECOND])),
    st.builds(Snoozed, st.sampled_from([0, 20 * SECOND])),
    st.just(GivenBack("stopping")),
    st.just(Discarded(an_error("Poison", "never"))),
    st.just(Cancelled("no need")),
)


class StoreBesideQueue(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.mkdtemp(dir=FAST_DISK)
        self.store = SQLiteStore(f"sqlite:///{self.folder}/jobs.db")
        self.run(self.store.open())
        self.queue = Queue()
        self.now = NOW
        self.claims: list[Claim] = []
        self.tokens: list[str] = []
        self.seen: list[JobRecord] = []  # what editors read, now or long ago
        self.found: list[ExpiredClaim] = []  # what rescuers read, now or long ago

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            self.drain()
        finally:
            self.run(self.store.close())
            self.loop.close()
            shutil.rmtree(self.folder)

    def run(self, call: Awaitable[T]) -> T:
        return self.loop.run_until_complete(call)  # type: ignore[arg-type]

    # insert

    def a_job(self, common: dict[str, Any], special: dict[str, Any], delay: int) -> NewJob:
        fields: dict[str, Any] = dict(common, scheduled_for=self.now + delay)
        known = list(self.queue.jobs)
        if "dedup_key" in special:
            fields["dedup_key"] = special["dedup_key"]
            fields["dedup_conflict_is_error"] = special.get("dedup_conflict_is_error", False)
            if "dedup_for" in special:
                fields["dedup_until"] = min(FOREVER, self.now + special["dedup_for"])
        if "content_hash" in special:
            fields["content_hash"] = special["content_hash"]
            if "reuse_for" in special:
                fields["reuse_since"] = max(0, self.now - special["reuse_for"])
        if "concurrency_key" in special:
            fields["concurrency_key"] = special["concurrency_key"]
            fields["concurrency_limit"] = CONCURRENCY_LIMITS[special["concurrency_key"]]
        if known and "depends_on" in special:
            fields["depends_on"] = tuple(known[pick % len(known)] for pick in special["depends_on"])
        if known and "parent" in special:
            fields["parent_job_id"] = known[special["parent"] % len(known)]
        if known and "own_id" in special:
            fields["own_id"] = True
            if special["own_id"] % 2:
                fields["job_id"] = known[special["own_id"] % len(known)]
        if special.get("unknown") == "depends_on":
            fields["depends_on"] = (new_job().job_id,)
        elif special.get("unknown") == "parent_job_id":
            fields["parent_job_id"] = new_job().job_id
        return new_job(**fields)

    @rule(common=options, special=specials, delay=st.sampled_from([0, 0, 25 * SECOND]))
    def insert(self, common: dict[str, Any], special: dict[str, Any], delay: int) -> None:
        self.insert_batch([self.a_job(common, special, delay)])

    @rule(jobs=st.lists(st.tuples(options, specials), min_size=2, max_size=4))
    def insert_many(self, jobs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        self.insert_batch([self.a_job(common, special, 0) for common, special in jobs])

    @rule(common=options, count=st.integers(1, 4))
    def insert_plain(self, common: dict[str, Any], count: int) -> None:
        self.insert_batch([new_job(**common, scheduled_for=self.now) for _ in range(count)])

    def insert_batch(self, batch: list[NewJob]) -> None:
        before = copy.deepcopy(self.queue)
        answers, refusal = None, None
        try:
            answers = self.run(self.store.insert(batch, self.now))
        except HoldfastError as error:
            refusal = type(error)
        expected = None
        try:
            self.queue.insert(batch, self.now, answers)
        except (DedupConflict, UnknownDependency) as error:
            self.queue, expected = before, type(error)
        assert refusal is expected

    # claim

    @rule(
        worker=st.sampled_from(["w1", "w2"]),
        queues=st.sampled_from([("x",), ("y",), ("x", "y")]),
        slots=st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 3), min_size=1),
        limit=st.integers(1, 4),
        lease=st.sampled_from([0, 20 * SECOND]),
    )
    def claim(self, worker: str, queues: tuple[str, ...], slots: dict[str, int], limit: int, lease: int) -> None:
        asked = request(worker_id=worker, queues=queues, slots=slots, limit=limit, lease_micros=lease)
        jobs = self.run(self.store.claim(asked, self.now))
        self.queue.claimed(asked, self.now, [job.job_id for job in jobs])
        self.claims += [Claim(job, asked.token) for job in jobs]
        if jobs:
            again = self.run(self.store.claim(msgspec.structs.replace(asked, repeat=True), self.now))
            assert again == jobs

    # What holders do, some of whom hold nothing any more

    @precondition(lambda self: self.claims)
    @rule(moves=st.lists(st.tuples(picks, outcomes), min_size=1, max_size=3))
    def settle(self, moves: list[tuple[int, Outcome]]) -> None:
        batch = {}
        for pick, outcome in moves:
            claim = self.claims[pick % len(self.claims)]
            batch[claim.job_id] = claim.ends(outcome, now=self.now)
        verdicts = self.run(self.store.apply(list(batch.values()), self.now))
        assert verdicts == self.queue.apply(list(batch.values()), self.now)

    @precondition(lambda self: self.claims)
    @rule(pick=picks, outcome=outcomes)
    def settle_the_latest_twice(self, pick: int, outcome: Outcome) -> None:
        claim = self.claims[-1 - pick % min(3, len(self.claims))]
        for _ in range(2):
            settlement = claim.ends(outcome, now=self.now)
            verdicts = self.run(self.store.apply([settlement], self.now))
            assert verdicts == self.queue.apply([settlement], self.now)

    @precondition(lambda self: self.claims)
    @rule(chosen=st.lists(picks, min_size=1, max_size=3), forged=st.booleans(), span=st.sampled_from([0, 50 * SECOND]))
    def extend(self, chosen: list[int], forged: bool, span: int) -> None:
        holds = [self.claims[pick % len(self.claims)].hold for pick in chosen]
        if forged:
            holds[0] = msgspec.structs.replace(holds[0], token="forged")
        verdicts = self.run(self.store.extend(holds, self.now + span, self.now))
        assert verdicts == [self.queue.extend(hold, self.now + span) for hold in holds]

    @precondition(lambda self: self.claims)
    @rule(pick=picks, progress=st.sampled_from([None, 0.25, 0.75]), stage=st.sampled_from([None, "half"]))
    def note(self, pick: int, progress: float | None, stage: str | None) -> None:
        note = Note(self.claims[pick % len(self.claims)].hold, progress=progress, stage=stage)
        assert self.run(self.store.note([note], self.now)) == [self.queue.note(note)]

    @precondition(lambda self: self.claims)
    @rule(pick=picks, name=st.sampled_from(["s1", "s2"]), answer=st.sampled_from(["1", "2"]))
    def record_step(self, pick: int, name: str, answer: str) -> None:
        hold = self.claims[pick % len(self.claims)].hold
        verdict = self.run(self.store.record_step(hold, name, answer, self.now))
        assert verdict is self.queue.record_step(hold, name, answer)
        assert self.run(self.store.step(hold.job_id, name)) == self.queue.jobs[hold.job_id].steps.get(name)

    # Time, and what it brings

    @rule(span=st.sampled_from([1, 10 * SECOND, 70 * SECOND]))
    def advance(self, span: int) -> None:
        self.now += span

    @rule(span=st.sampled_from([0, 30 * SECOND, 3600 * SECOND]))
    def promote(self, span: int) -> None:
        self.now += span
        promoted = self.run(self.store.promote(self.now, 1000))
        assert (promoted.count, promoted.next_due_at) == self.queue.promote(self.now, 1000)

    @rule()
    def look_for_expired_claims(self) -> None:
        found = self.run(self.store.expired(self.now, 1000))
        assert {(each.job_id, each.attempt, each.lease_expires_at) for each in found} == self.queue.expired(self.now)
        self.found += found

    @precondition(lambda self: self.found)
    @rule(pick=picks)
    def rescue(self, pick: int) -> None:
        expired = self.found[-1 - pick % len(self.found)]
        move = rescue(expired, lease=expired.lease_expires_at, now=self.now, reason="lost", by="w")
        assert self.run(self.store.apply([move], self.now)) == self.queue.apply([move], self.now)

    @rule()
    def release(self) -> None:
        self.run(self.store.release(self.now, 1000))  # nothing is left over, and nothing visible may change

    # Editors, some of whom read long ago

    @precondition(lambda self: self.queue.jobs)
    @rule(pick=picks)
    def read(self, pick: int) -> None:
        job_ids = list(self.queue.jobs)
        [record] = self.run(self.store.get([job_ids[pick % len(job_ids)]]))
        assert record is not None
        self.seen.append(record)

    @precondition(lambda self: self.seen)
    @rule(pick=picks, what=st.sampled_from(["cancel", "retry", "reschedule"]), delay=st.sampled_from([0, 15 * SECOND]))
    def edit(self, pick: int, what: str, delay: int) -> None:
        record = self.seen[-1 - pick % len(self.seen)]
        try:
            match what:
                case "cancel":
                    move = cancel(record, by="me", reason=None)
                case "retry":
                    move = manual_retry(record, now=self.now, by="me", reason=None)
                case _:
                    move = reschedule(record, run_at=self.now + delay, now=self.now, by="me", reason=None)
        except IllegalTransition:
            return
        assert self.run(self.store.apply([move], self.now)) == self.queue.apply([move], self.now)

    # What holds after every step

    @invariant()
    def the_store_and_the_queue_say_the_same(self) -> None:
        if not hasattr(self, "store"):
            return
        records = self.run(self.store.get(list(self.queue.jobs)))
        for record in records:
            assert record is not None
            self.queue.check(record)
        assert self.run(self.store.counts()) == self.queue.counts()
        self.queue.check_keys()

    def drain(self) -> None:
        """In the end nothing is stuck: whatever is pending gets its turn, whatever waits is released."""
        everything = {"queues": ("x", "y"), "slots": {"a": 100, "b": 100}, "limit": 100}
        for _ in range(len(self.queue.jobs) * 3 + 3):
            if {job.status for job in self.queue.jobs.values()} <= TERMINAL:
                break
            self.now += 4000 * SECOND
            self.promote(0)
            for record in self.run(self.store.get(list(self.queue.jobs))):
                if record is not None and record.lease_expires_at is not None:
                    move = cancel(record, by="me", reason="the end")
                    assert self.run(self.store.apply([move], self.now)) == self.queue.apply([move], self.now)
            asked = request(**everything)
            jobs = self.run(self.store.claim(asked, self.now))
            self.queue.claimed(asked, self.now, [job.job_id for job in jobs])
            moves = [Claim(job, asked.token).completes() for job in jobs]
            assert self.run(self.store.apply(moves, self.now)) == self.queue.apply(moves, self.now)
        self.the_store_and_the_queue_say_the_same()
        assert {job.status for job in self.queue.jobs.values()} <= TERMINAL


TestStoreBesideQueue = StoreBesideQueue.TestCase
TestStoreBesideQueue.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    derandomize=EXAMPLES == GATE_EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
