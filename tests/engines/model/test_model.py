"""Operators beside callers and workers: schedules, pauses, limits and retention, on each store and on the model.

BACKSTAY_MODEL_EXAMPLES=5000 makes a campaign of it, with new examples each time.
"""

import os
from random import Random
from typing import ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis.stateful import initialize, run_state_machine_as_test

from backstay.core.records import LimitChange, LimitOf, QueueChange, Schedule
from backstay.core.schedules import MISSED, defined, firing, paused, resumed, timing
from backstay.errors import BackstayError
from backstay.testing.conformance.factories import SECOND, new_job, remove_files
from tests.engines.model import random_jobs
from tests.engines.model.engines import Engine, on_postgres, on_sqlite
from tests.engines.model.machine import StoreBesideQueue
from tests.support.servers.postgres import Postgres

CAMPAIGN = os.environ.get("BACKSTAY_MODEL_EXAMPLES")
STEPS = 40
TWENTY_MINUTES = "*/20 * * * *"


class OperatedStoreBesideQueue(StoreBesideQueue):
    STEPS: ClassVar[dict[str, int]] = StoreBesideQueue.STEPS | {
        "pause_or_limit": 2,
        "pause_or_limit_type": 2,
        "change_schedule": 2,
        "fire": 2,
        "retire": 2,
    }

    @initialize()
    def nobody_has_read_a_schedule(self) -> None:
        self.read_schedules: list[Schedule] = []  # by editors and workers, now or long ago

    # Queues

    def pause_or_limit(self, draw: Random) -> None:
        wants: dict[str, object] = draw.choice(({"paused": True}, {"paused": False}, {"max_pending": 4}))
        if draw.random() < 0.3:
            wants = {"paused": False, "max_pending": 0}
        self.change_queue(draw.choice("xy"), QueueChange(**wants, by="me"))  # type: ignore[arg-type]

    def change_queue(self, name: str, change: QueueChange) -> None:
        row = self.run(self.store.change_queue(name, change, self.now))
        note(f"  {row}")
        self.queue.change(name, change)
        assert (row.paused_at is not None, row.max_pending) == (
            name in self.queue.paused,
            self.queue.max_pending.get(name),
        )
        listed = {row.name for row in self.run(self.store.queues())}
        assert listed == {*self.queue.paused, *self.queue.max_pending}

    def pause_or_limit_type(self, draw: Random) -> None:
        most = draw.choice((None, 1, 2, 3))
        wants = draw.choice(
            (LimitChange(paused=True), LimitChange(paused=False), LimitChange(limits=True, concurrency=most))
        )
        self.change_type(draw.choice("ab"), wants)

    def change_type(self, name: str, change: LimitChange) -> None:
        row = self.run(self.store.change_limit(LimitOf.TYPE, name, change, self.now))
        note(f"  {row}")
        self.queue.change_type(name, change)
        assert (row.paused_at is not None, row.concurrency) == (
            name in self.queue.paused_types,
            self.queue.most.get(name),
        )
        listed = {row.name for row in self.run(self.store.limits())}
        assert listed == {*self.queue.paused_types, *self.queue.most}

    # Schedules

    def change_schedule(self, draw: Random) -> None:
        name, missed = draw.choice(("s1", "s2")), draw.choice(MISSED)
        stored = self.queue.schedules.get(name)
        earlier = [each for each in self.read_schedules if each.name == name]
        if earlier and draw.random() < 0.3:
            stored = draw.choice(earlier[-3:])
        changed = None
        match draw.choice(("define", "define", "pause", "resume", "resume", "drop")):
            case "define":
                template = new_job(job_type="a", queue="x", payload=f'"{missed}"')
                changed = defined(stored, name, timing(TWENTY_MINUTES, missed=missed), template, self.now)
            case "pause" if stored is not None:
                changed = paused(stored, "me", self.now)
            case "resume" if stored is not None:
                changed = resumed(stored, self.now)
            case "drop":
                assert self.run(self.store.drop_schedule(name)) is self.queue.drop(name)
            case _:
                pass
        if changed is not None:
            self.save(changed, None if stored is None else stored.version)

    def save(self, schedule: Schedule, expected_version: int | None) -> None:
        verdict = self.run(self.store.save_schedule(schedule, expected_version))
        note(f"  {schedule} at {expected_version}: {verdict}")
        assert verdict is self.queue.save(schedule, expected_version)
        self.read_schedules += self.run(self.store.schedules())

    def fire(self, draw: Random) -> None:
        """By a worker that may have read the schedule long ago; and once more, because its answer was lost."""
        self.now += draw.choice((0, 1500 * SECOND, 1500 * SECOND, 5000 * SECOND))
        self.read_schedules += self.run(self.store.schedules())
        if not self.read_schedules:
            return
        seen = random_jobs.lately(draw, self.read_schedules[-6:])
        if draw.random() < 0.2:  # by a worker that overlooks a pause
            seen = msgspec.structs.replace(seen, paused_at=None)
        due = firing(seen, self.now)
        if due is None:
            return
        note(f"  {due}")
        for _ in range(2):
            try:
                [verdict] = self.run(self.store.fire([due], self.now))
            except BackstayError as refusal:
                self.refuses(refusal, lambda queue: queue.fire(due, self.now))
            else:
                assert verdict is self.queue.fire(due, self.now)

    # Retention

    def retire(self, draw: Random) -> None:
        self.now += draw.choice((1, 50 * SECOND))
        policy, limit = random_jobs.policy(draw), draw.choice((1, 3, 100))
        note(f"  {policy}, {limit} at a time")
        self.run(remove_files(self.store))
        archived, after = 0, None
        for _ in range(1000):
            done = self.run(self.store.retire(policy, self.now, limit, after))
            archived, after = archived + done.archived, done.next
            if after is None:
                break
        before = set(self.known())
        assert archived == self.queue.retire(policy, self.now)
        gone = sorted(before - set(self.known()))
        assert self.run(self.store.get(gone)) == [None] * len(gone)

    def drain(self) -> None:
        for name in ("x", "y"):
            self.change_queue(name, QueueChange(paused=False, max_pending=0))
        for name in ("a", "b"):
            self.change_type(name, LimitChange(paused=False, limits=True))
        super().drain()


def test_sqlite_does_what_a_queue_in_plain_python_does() -> None:
    _drive(on_sqlite, examples=100)


@pytest.mark.timeout(600)
def test_postgresql_does_what_a_queue_in_plain_python_does(postgres: Postgres) -> None:
    _drive(on_postgres(postgres), examples=50)


@pytest.mark.timeout(600)
def test_an_older_postgresql_does_too(postgres_15: Postgres) -> None:
    _drive(on_postgres(postgres_15), examples=15)


def _drive(engine: Engine, examples: int) -> None:
    run_state_machine_as_test(
        lambda: OperatedStoreBesideQueue(engine),
        settings=settings(
            max_examples=int(CAMPAIGN or examples),
            stateful_step_count=STEPS,
            derandomize=CAMPAIGN is None,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
