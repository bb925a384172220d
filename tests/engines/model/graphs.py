"""A graph of jobs at random, driven to its end: dependencies under any rule, children, waits, failures, cancels, calls
that break off, claims that nobody settles."""

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, TypeVar

from backstay import failpoints
from backstay.core.dependencies import TriggerRule
from backstay.core.lifecycle import Cancelled, Completed, Discarded, Outcome, Raised, cancel, manual_retry, rescue
from backstay.core.port import Store
from backstay.core.records import JobRecord, Lost, NewJob, Staged, Transition
from backstay.core.states import TERMINAL
from backstay.errors import StoreError
from backstay.failpoints import FailpointReached
from backstay.testing.conformance.factories import NOW, SECOND, Claim, an_error, new_job, request
from tests.engines.model import random_jobs

T = TypeVar("T")
LEASE = 20 * SECOND
ROUNDS_MAX = 3_000
BREAKS = [
    f"{verb}.{moment}" for verb in ("apply", "stage", "unpack", "release") for moment in ("uncommitted", "committed")
]
RETRIES_MAX = 5  # by hand


class Graph:
    """Ids are the callers' own, so that whoever does not hear back may ask again."""

    def __init__(self, store: Store, draw: Random, size: int) -> None:
        self.store = store
        self.draw = draw
        self.size = size
        self.now = NOW
        self.known: list[str] = []
        self.retries = 0

    async def run(self) -> None:
        while len(self.known) < self.size:
            await self.submit()
            await self.act()
        for _ in range(ROUNDS_MAX):
            await self.act()
            if await self.is_over():
                return
        raise AssertionError("it does not come to an end")

    async def is_over(self) -> bool:
        return {each for each in await self.store.statuses(self.known) if each is not None} <= TERMINAL

    async def act(self) -> None:
        actions = [self.work, self.work, self.work, self.work, self.cancel_one, self.retry_one, self.upkeep]
        await self.draw.choice(actions)()

    async def upkeep(self) -> None:
        self.now += self.draw.choice((SECOND, LEASE))
        await self.store.promote(self.now, 100)
        for each in await self.store.expired(self.now, 100):
            lost = rescue(each, lease=each.lease_expires_at, now=self.now, reason="lost", by="w")
            await self.apply([lost])
        await self.call(lambda: self.store.release(self.now, 100))

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Once more where it broke off: nobody knows then whether it was done."""
        if self.draw.random() < 0.1:
            failpoints.switch(f"{self.draw.choice(BREAKS)}=raise@1")
        try:
            return await call()
        except (FailpointReached, StoreError):
            failpoints.switch("")
            return await call()
        finally:
            failpoints.switch("")

    async def apply(self, moves: Sequence[Transition]) -> None:
        await self.call(lambda: self.store.apply(moves, self.now))

    # Jobs that come

    async def submit(self) -> None:
        batch: list[NewJob] = []
        for _ in range(self.draw.randint(1, 12)):
            earlier = [*self.known, *(each.job_id for each in batch)]
            batch.append(self.a_job(earlier))
        await self.call(lambda: self.store.insert(batch, self.now))
        self.known += (each.job_id for each in batch)

    def a_job(self, earlier: list[str], **changes: Any) -> NewJob:
        fields: dict[str, Any] = {"own_id": True, "scheduled_for": self.now, "max_attempts": self.draw.randint(1, 3)}
        fields["on_dependency_failure"] = self.draw.choice(("cancel", "fail"))
        if earlier and self.draw.random() < 0.6:
            fields["depends_on"] = tuple(self.draw.sample(earlier, k=min(len(earlier), self.draw.randint(1, 4))))
            fields["trigger_rule"] = self.draw.choice(list(TriggerRule)).value
        elif earlier and "parent_job_id" not in changes and self.draw.random() < 0.2:
            # It waits for nobody: one that waited for what its parent keeps waiting would close a ring.
            fields["parent_job_id"] = self.draw.choice(earlier)
        return new_job(**(fields | changes))

    # Workers

    async def work(self) -> None:
        """Some die with what they have claimed; nobody hears of a claim that broke off."""
        lost = self.draw.choice((Lost.SHARED, Lost.SHARED, Lost.ALONE))
        asked = request(slots={"work": 30}, limit=self.draw.randint(1, 30), lease_micros=LEASE, lost=lost)
        claims = [Claim(job, asked.token) for job in await self.store.claim(asked, self.now)]
        moves = []
        for claim in claims:
            if self.draw.random() > 0.05:
                moves.append(await self.end(claim))
        if moves:
            await self.apply(moves)
        if moves and self.draw.random() < 0.1:  # the answer was lost
            await self.apply(moves)

    async def end(self, claim: Claim) -> Transition:
        room = self.size - len(self.known)
        bears = claim.job.waits < 2 and room > 0 and self.draw.random() < 0.3
        if not bears:
            return claim.ends(self.an_outcome(claim), now=self.now)
        jobs: list[NewJob] = []
        for _ in range(self.draw.randint(1, min(6, room))):
            jobs.append(self.a_job([each.job_id for each in jobs], parent_job_id=claim.job_id))
        self.known += (each.job_id for each in jobs)
        outcome = self.draw.choice((Completed("1"), random_jobs.waiting(self.draw), random_jobs.waiting(self.draw)))
        match self.draw.choice(("at once", "with it", "staged")):
            case "at once":
                await self.call(lambda: self.store.insert_children(claim.hold, jobs, self.now))
                return claim.ends(outcome, now=self.now)
            case "with it":
                return claim.ends(outcome, now=self.now, children=tuple(jobs))
            case _:
                for part, some in enumerate((jobs[:2], jobs[2:])):
                    await self.call(lambda part=part, some=some: self.store.stage(claim.hold, part, some, self.now))
                return claim.ends(outcome, now=self.now, staged=Staged(2, len(jobs)))

    def an_outcome(self, claim: Claim) -> Outcome:
        outcomes: list[Outcome] = [Completed("1")] * 4
        outcomes += [Raised(an_error()), Discarded(an_error("Poison", "never")), Cancelled("no need")]
        if claim.job.waits < 2:
            outcomes.append(random_jobs.waiting(self.draw))
        return self.draw.choice(outcomes)

    # Editors

    async def cancel_one(self) -> None:
        if self.draw.random() < 0.5:
            return
        job = await self.one(ended=False)
        if job is not None:
            await self.apply([cancel(job, by="me", reason=None)])

    async def retry_one(self) -> None:
        job = await self.one(ended=True)
        if job is not None and self.retries < RETRIES_MAX:
            self.retries += 1
            await self.apply([manual_retry(job, now=self.now, by="me", reason=None, rewait=True)])

    async def one(self, *, ended: bool) -> JobRecord | None:
        [job] = await self.store.get([self.draw.choice(self.known)]) if self.known else [None]
        return job if job is not None and (job.status in TERMINAL) is ended else None
