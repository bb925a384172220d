"""A store, driven at random beside a queue in plain Python: after every step both say the same.

Hypothesis draws one number per step, and the step follows from it: all things are tried about equally often, and a
failure still shrinks to the few steps that it needs. What a step did is told beside it. These are the steps of callers,
workers and editors; those of operators are in test_model.py.
"""

import asyncio
import copy
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from backstay.core.lifecycle import Completed, Outcome, cancel, manual_retry, reprioritise, reschedule, rescue
from backstay.core.records import ExpiredClaim, Hold, JobRecord, Lost, NewJob, Note, Staged, Transition, Verdict
from backstay.core.states import TERMINAL
from backstay.errors import BackstayError, IllegalTransition
from backstay.testing.conformance.factories import HOUR, NOW, SECOND, Claim, new_job, request
from tests.engines.model import random_jobs
from tests.engines.model.engines import Engine
from tests.engines.model.operations import OperatedQueue

EVERYTHING: dict[str, Any] = {"queues": ("x", "y"), "slots": {"a": 100, "b": 100}, "limit": 100}

T = TypeVar("T")
seeds = st.integers(0, 2**32)


class StoreBesideQueue(RuleBasedStateMachine):
    STEPS: ClassVar[dict[str, int]] = {  # with how often each is taken
        "insert": 3,
        "insert_many": 2,
        "claim": 3,
        "work_off": 3,
        "settle": 3,
        "bear": 4,
        "hold": 2,
        "promote": 2,
        "rescue": 2,
        "edit": 4,
    }

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.opened = ExitStack()

    @initialize(seed=seeds)
    def begin(self, seed: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.opened.callback(self.loop.close)
        self.store = self.opened.enter_context(self.engine(self.loop))
        self.queue = OperatedQueue()
        self.now = NOW - NOW % HOUR  # ticks then come at the same steps in every run
        self.claims: list[Claim] = []
        self.seen: list[JobRecord] = []  # what editors read, now or long ago
        self.found: list[ExpiredClaim] = []  # what rescuers read, now or long ago
        self.times: Counter[int] = Counter()
        mood = Random(seed)  # in each run some things happen often and some not at all; but jobs come and end in all
        moods = {name: often * mood.choice((0, 1, 1, 3)) for name, often in self.STEPS.items()}
        self.weights = [max(1, moods[name]) if name in ("insert", "work_off") else moods[name] for name in self.STEPS]

    def teardown(self) -> None:
        with self.opened:
            if hasattr(self, "store"):
                self.drain()

    def run(self, call: Awaitable[T]) -> T:
        return self.loop.run_until_complete(call)  # type: ignore[arg-type]

    @rule(seed=seeds)
    def step(self, seed: int) -> None:
        self.times[seed] += 1  # Hypothesis likes to repeat a number: each time it means something else
        draw = Random(f"{seed} {self.times[seed]}")
        [name] = draw.choices(list(self.STEPS), self.weights)
        note(f"{name}:")
        getattr(self, name)(draw)

    def known(self) -> list[str]:
        """Every job that can be read."""
        return [*self.queue.jobs, *self.queue.archive]

    # insert

    def insert(self, draw: Random) -> None:
        self.insert_batch([random_jobs.job(draw, self.now, self.known())])

    def insert_many(self, draw: Random) -> None:
        """Plain ones around one that may be special; or with one that depends on a job that is not there."""
        batch = [new_job(**random_jobs.common(draw), scheduled_for=self.now) for _ in range(draw.randint(1, 3))]
        batch.append(random_jobs.job(draw, self.now, self.known()))
        if draw.random() < 0.1:
            batch.append(new_job(depends_on=(new_job().job_id,)))
        self.insert_batch(batch)

    def insert_batch(self, batch: list[NewJob]) -> None:
        note(f"  {batch}")
        try:
            answers = self.run(self.store.insert(batch, self.now))
        except BackstayError as refusal:
            self.refuses(refusal, lambda queue: queue.insert(batch, self.now, None))
        else:
            self.queue.insert(batch, self.now, answers)

    def refuses(self, refusal: BackstayError, ask: Callable[[OperatedQueue], object]) -> None:
        """The model refuses for the same reason; what it had done until then is undone."""
        with pytest.raises(BackstayError) as caught:
            ask(copy.deepcopy(self.queue))
        assert caught.type is type(refusal)

    # claim

    def claim(self, draw: Random) -> None:
        self.take(
            worker_id=draw.choice(("w1", "w2")),
            queues=draw.choice((("x",), ("y",), ("x", "y"))),
            slots={job_type: draw.randint(0, 3) for job_type in draw.choice(("a", "b", "ab"))},
            limit=draw.randint(1, 4),
            lease_micros=draw.choice((0, 20 * SECOND)),
            lost=draw.choice((Lost.SHARED, Lost.SHARED, Lost.ALONE, Lost.NONE)),
        )

    def take_all(self) -> list[Claim]:
        return [*self.take(**EVERYTHING), *self.take(**EVERYTHING, lost=Lost.ALONE)]

    def take(self, **asked_for: Any) -> list[Claim]:
        asked = request(**asked_for)
        assert set(self.run(self.store.wait_alone(asked))) >= self.queue.wait_alone(asked)
        jobs = self.run(self.store.claim(asked, self.now))
        note(f"  {asked_for} took {[job.job_id for job in jobs]}")
        self.queue.claimed(asked, self.now, [job.job_id for job in jobs])
        if jobs:
            again = self.run(self.store.claim(msgspec.structs.replace(asked, repeat=True), self.now))
            assert again == jobs
        self.claims += (claims := [Claim(job, asked.token) for job in jobs])
        return claims

    def work_off(self, draw: Random) -> None:
        """A worker takes what there is and ends each in its own way, in one batch."""
        claims = self.take_all()
        self.now += draw.choice((0, 3 * SECOND))
        self.apply([claim.ends(random_jobs.outcome(draw), now=self.now) for claim in claims])

    def apply(self, moves: Sequence[Transition]) -> list[Verdict]:
        try:
            verdicts = self.run(self.store.apply(list(moves), self.now))
        except BackstayError as refusal:
            self.refuses(refusal, lambda queue: queue.apply(moves, self.now))
            return []
        note(f"  {[(move.event.value, move.job_id) for move in moves]}: {[each.value for each in verdicts]}")
        assert verdicts == self.queue.apply(moves, self.now)
        return verdicts

    # What holders do, some of whom hold nothing any more

    def settle(self, draw: Random) -> None:
        chosen = [random_jobs.lately(draw, self.claims) for _ in range(draw.randint(1, 3)) if self.claims]
        if chosen and draw.random() < 0.2:
            chosen[0] = msgspec.structs.replace(chosen[0], token="forged")
        batch = {claim.job_id: claim.ends(random_jobs.outcome(draw), now=self.now) for claim in chosen}
        self.apply(list(batch.values()))
        if batch and draw.random() < 0.5:  # the answer was lost: the same again, together with what has come since
            later = random_jobs.lately(draw, self.claims)
            batch.setdefault(later.job_id, later.completes(now=self.now))
            self.apply(list(batch.values()))

    def bear(self, draw: Random) -> None:
        """A run makes children: at once, with its completion or its wait, or in parts before it. Some say it twice."""
        if not self.claims:
            return
        claim = random_jobs.lately(draw, self.claims)
        jobs = random_jobs.children(draw, self.now, claim.job_id, self.known())
        note(f"  {claim.job_id}: {jobs}")
        ends = draw.choice((Completed("1"), random_jobs.waiting(draw), random_jobs.waiting(draw)))
        match draw.choice(("at once", "with it", "with it", "staged")):
            case "at once":
                self.bear_at_once(claim, jobs)
            case "with it":
                moves = [claim.ends(ends, now=self.now, children=jobs)]
                self.apply(moves)
                if draw.random() < 0.3:
                    self.apply(moves)
            case _:
                self.bear_in_parts(draw, claim, jobs, ends)

    def bear_at_once(self, claim: Claim, jobs: Sequence[NewJob]) -> None:
        try:
            answers = self.run(self.store.insert_children(claim.hold, jobs, self.now))
        except BackstayError as refusal:
            self.refuses(refusal, lambda queue: queue.insert(jobs, self.now, None))
        else:
            self.queue.insert_children(claim.hold, jobs, self.now, answers)

    def bear_in_parts(self, draw: Random, claim: Claim, jobs: Sequence[NewJob], ends: Outcome) -> None:
        """What is staged is known to be there: a worker sees to that."""
        there = {*self.known(), *(job.job_id for job in jobs)}
        jobs = [job for job in jobs if there.issuperset(job.depends_on)]
        parts = [jobs[:1], jobs[1:]]
        for part, some in enumerate(parts):
            assert self.run(self.store.stage(claim.hold, part, some, self.now)) is self.queue.stage(
                claim.hold, part, some
            )
        if draw.random() < 0.8:  # or it dies before it says so
            named = Staged(len(parts), len(jobs))
            self.apply([claim.ends(ends, now=self.now, staged=named)])

    def hold(self, draw: Random) -> None:
        """Extend the lease, keep a note, record a step."""
        if not self.claims:
            return
        hold = random_jobs.lately(draw, self.claims).hold
        if draw.random() < 0.2:
            hold = msgspec.structs.replace(hold, token="forged")
        if draw.random() < 0.4:
            self.reprioritise(draw, hold.job_id)
        self.extend([hold], draw.choice((0, 50 * SECOND)))
        said = Note(hold, progress=draw.choice((None, 0.25, 0.75)), stage=draw.choice((None, "half")))
        assert self.run(self.store.note([said], self.now)) == [self.queue.note(said)]
        answer = draw.choice(("1", "2"))
        recorded = self.run(self.store.record_step(hold, "step", answer, self.now))
        assert recorded is self.queue.record_step(hold, "step", answer)
        job = self.queue.jobs.get(hold.job_id)
        assert self.run(self.store.step(hold.job_id, "step")) == (None if job is None else job.steps.get("step"))

    def extend(self, holds: Sequence[Hold], span: int) -> None:
        verdicts = self.run(self.store.extend(holds, self.now + span, self.now))
        assert verdicts == [self.queue.extend(hold, self.now + span) for hold in holds]

    def reprioritise(self, draw: Random, job_id: str) -> None:
        """A job, whatever it does; if it runs, its holder notices nothing."""
        [record] = self.run(self.store.get([job_id]))
        if record is not None and record.status not in TERMINAL:
            self.apply([reprioritise(record, priority=draw.choice((10, 50, 90)), by="me", reason=None)])

    # Time, and what it brings

    def promote(self, draw: Random) -> None:
        self.pass_time(draw.choice((0, 1, 30 * SECOND, 3600 * SECOND)))

    def pass_time(self, span: int) -> None:
        self.now += span
        promoted = self.run(self.store.promote(self.now, 1000))
        assert (promoted.count, promoted.next_due_at) == self.queue.promote(self.now, 1000)
        self.run(self.store.release(self.now, 1000))  # nothing is left over, and nothing visible may change

    def rescue(self, draw: Random) -> None:
        self.now += draw.choice((0, 30 * SECOND))
        found = self.run(self.store.expired(self.now, 1000))
        assert {(each.job_id, each.attempt, each.lease_expires_at) for each in found} == self.queue.expired(self.now)
        self.found += found
        if self.found:
            expired = random_jobs.lately(draw, self.found)
            if draw.random() < 0.4:  # its holder is not dead after all
                self.extend([claim.hold for claim in self.claims if claim.job_id == expired.job_id][-1:], 50 * SECOND)
            self.apply([rescue(expired, lease=expired.lease_expires_at, now=self.now, reason="lost", by="w")])

    # Editors, some of whom read long ago

    def edit(self, draw: Random) -> None:
        if not self.queue.jobs:
            return
        [record] = self.run(self.store.get([draw.choice(list(self.queue.jobs))]))
        assert record is not None
        self.seen.append(record)
        if draw.random() < 0.3:
            record = draw.choice(self.seen)
        ended = record.status in TERMINAL
        try:
            match draw.choice(("cancel", "reschedule", "reprioritise") if not ended else ("retry",)):
                case "cancel":
                    move = cancel(record, by="me", reason=None)
                case "retry":
                    move = manual_retry(record, now=self.now, by="me", reason=None, rewait=draw.random() < 0.5)
                case "reprioritise":
                    move = reprioritise(record, priority=draw.choice((10, 50, 90)), by="me", reason=None)
                case _:
                    run_at = self.now + draw.choice((0, 15 * SECOND))
                    move = reschedule(record, run_at=run_at, now=self.now, by="me", reason=None)
        except IllegalTransition:
            return
        self.apply([move])

    # What holds after every step

    @invariant()
    def the_store_and_the_queue_say_the_same(self) -> None:
        if hasattr(self, "store"):
            self.run(self.compare())
            self.queue.check_keys()

    async def compare(self) -> None:
        known = self.known()
        records, statuses, counts, depths, counters, totals, schedules = await asyncio.gather(
            self.store.get(known),
            self.store.statuses(known),
            self.store.counts(),
            self.store.depths(),
            self.store.counters(0, 2**60),
            self.store.totals(),
            self.store.schedules(),
        )
        for record, status in zip(records, statuses, strict=True):
            assert record is not None
            assert record.status is status
            self.queue.check(record)
        assert counts == self.queue.counts()
        assert {(each.queue, each.job_type, each.status): each.count for each in depths} == self.queue.depths()
        self.queue.check_counters(counters)
        self.queue.check_totals(totals)
        assert schedules == [self.queue.schedules[name] for name in sorted(self.queue.schedules)]

    def drain(self) -> None:
        """In the end nothing is stuck: whatever is pending gets its turn, whatever waits is released."""
        for _ in range(len(self.queue.jobs) * 3 + 3):
            if {job.status for job in self.queue.jobs.values()} <= TERMINAL:
                break
            self.pass_time(4000 * SECOND)
            for record in self.run(self.store.get(list(self.queue.jobs))):
                if record is not None and record.lease_expires_at is not None:
                    self.apply([cancel(record, by="me", reason="the end")])
            if claims := self.take_all():
                self.apply([claim.completes(now=self.now) for claim in claims])
                continue
            # What is left may wait in a ring: a parent for its child, that for another job, and that for the parent.
            for record in self.run(self.store.get(list(self.queue.jobs))):
                if record is not None and record.awaits is not None:
                    self.apply([cancel(record, by="me", reason="the end")])
        self.the_store_and_the_queue_say_the_same()
        assert {job.status for job in self.queue.jobs.values()} <= TERMINAL
