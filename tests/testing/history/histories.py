"""Factories for hand-made histories: a job's life in a few words, and the operations that led to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from backstay.core.records import HistoryEvent, JobRecord, RetentionPolicy, Schedule
from backstay.core.states import TERMINAL, Event, Status
from backstay.testing.history import Evidence, Operation, Outcome, digest
from backstay.testing.history.checker import check
from backstay.testing.history.evidence import FAILURES, Answer, Item, generations

MINUTE = 60_000_000

LIVES = {
    "submit": (Event.SUBMIT, None, Status.PENDING),
    "submit later": (Event.SUBMIT, None, Status.SCHEDULED),
    "submit waiting": (Event.SUBMIT, None, Status.WAITING),
    "due": (Event.DUE, Status.RETRYING, Status.PENDING),
    "first due": (Event.DUE, Status.SCHEDULED, Status.PENDING),
    "claim": (Event.CLAIM, Status.PENDING, Status.PROCESSING),
    "complete": (Event.COMPLETE, Status.PROCESSING, Status.COMPLETED),
    "retry": (Event.RETRY, Status.PROCESSING, Status.RETRYING),
    "exhaust": (Event.EXHAUST, Status.PROCESSING, Status.FAILED),
    "give back": (Event.GIVE_BACK, Status.PROCESSING, Status.PENDING),
    "snooze": (Event.SNOOZE, Status.PROCESSING, Status.SCHEDULED),
    "rescue": (Event.RESCUE, Status.PROCESSING, Status.RETRYING),
    "rescue to failed": (Event.RESCUE, Status.PROCESSING, Status.FAILED),
    "cancel": (Event.CANCEL, Status.PROCESSING, Status.CANCELLED),
    "cancel pending": (Event.CANCEL, Status.PENDING, Status.CANCELLED),
    "cancel retrying": (Event.CANCEL, Status.RETRYING, Status.CANCELLED),
    "retry cancelled by hand": (Event.MANUAL_RETRY, Status.CANCELLED, Status.PENDING),
    "retry by hand": (Event.MANUAL_RETRY, Status.COMPLETED, Status.PENDING),
    "retry failed by hand": (Event.MANUAL_RETRY, Status.FAILED, Status.PENDING),
    "reprioritise": (Event.REPRIORITISE, Status.PROCESSING, Status.PROCESSING),
    "reprioritise pending": (Event.REPRIORITISE, Status.PENDING, Status.PENDING),
    "wait": (Event.WAIT_FOR_CHILDREN, Status.PROCESSING, Status.WAITING),
    "release": (Event.RELEASE, Status.WAITING, Status.PENDING),
    "release to failed": (Event.RELEASE, Status.WAITING, Status.FAILED),
    "retry by hand to wait": (Event.MANUAL_RETRY, Status.CANCELLED, Status.WAITING),
    "release to cancelled": (Event.RELEASE, Status.WAITING, Status.CANCELLED),
}


def life(words: str, *, at: int = 1_000, by: str = "worker") -> tuple[HistoryEvent, ...]:
    """ "submit, claim, complete": versions, attempts and times follow."""
    events, attempt = [], 0
    for version, word in enumerate(words.split(", "), start=1):
        event, source, target = LIVES[word]
        attempt += event is Event.CLAIM
        events.append(HistoryEvent(version, at + version, event, source, target, attempt, by))
    return tuple(events)


def job(job_id: str, words: str | tuple[HistoryEvent, ...], **changes: Any) -> JobRecord:
    history = life(words) if isinstance(words, str) else words
    status = history[-1].target
    fields: dict[str, Any] = {
        "job_id": job_id,
        "job_type": "work",
        "queue": "default",
        "status": status,
        "priority": 50,
        "payload": "{}",
        "created_at": history[0].at,
        "updated_at": history[-1].at,
        "scheduled_for": history[0].at,
        "completed_at": history[-1].at if status in TERMINAL else None,
        "lease_expires_at": 10_000 if status is Status.PROCESSING else None,
        "attempt": max(event.attempt for event in history),
        "version": history[-1].version,
        "failures": sum(event.event in FAILURES for event in generations(history)[-1]),
        "max_attempts": 5,
        "timeout_micros": 1_000_000,
        "result": '"done"' if history[-1].event is Event.COMPLETE else None,
        "last_error": "ValueError: no" if status is Status.FAILED else None,
        "history": history,
    }
    return JobRecord(**{**fields, **changes})


def archived(job_id: str, words: str, *, at: int = 9_000, **changes: Any) -> JobRecord:
    """What the archive has of a job after such a life."""
    return job(job_id, words, **({"archived_at": at, "payload": "null", "result": None, "history": ()} | changes))


def a_schedule(**changes: Any) -> Schedule:
    """Every minute of the story's clock."""
    fields: dict[str, Any] = {
        "name": "tick",
        "cron": "* * * * *",
        "timezone": "UTC",
        "missed": "all",
        "job_type": "work",
        "template": "",
        "created_at": 0,
        "updated_at": 0,
        "next_at": MINUTE,
    }
    return Schedule(**(fields | changes))


def changed(history: Iterable[HistoryEvent], version: int, /, **changes: Any) -> tuple[HistoryEvent, ...]:
    return tuple(msgspec.structs.replace(event, **changes) if event.version == version else event for event in history)


class Calls:
    """Operations, one after another: each begins after the one before has returned, unless told otherwise."""

    def __init__(self) -> None:
        self.made: list[Operation] = []
        self._moment = 0

    def submit(self, *job_ids: str, outcome: Outcome = Outcome.OK, answered: str = "", **item: Any) -> None:
        item = {"payload": digest("{}"), "scheduled_for": 1_000, **item}
        existing = bool(answered)
        self._add(
            "insert",
            [Item(job_id=job_id, **item) for job_id in job_ids],
            [Answer(outcome=outcome, job_id=answered or job_id, existing=existing) for job_id in job_ids],
        )

    def claim(
        self,
        job_id: str,
        attempt: int = 1,
        *,
        token: str = "",
        lease: int = 10_000,
        by: str = "worker",
        outcome: Outcome = Outcome.OK,
    ) -> None:
        item = Item(token=token or f"token {attempt}", worker=by)
        answer = Answer(outcome=outcome)
        if outcome is Outcome.OK:
            answer = Answer(job_id=job_id, attempt=attempt, lease=lease)
        self._add("claim", [item], [answer])

    def apply(
        self,
        job_id: str,
        word: str,
        attempt: int = 1,
        *,
        token: str | None = "",
        outcome: Outcome = Outcome.OK,
        result: str | None = '"done"',
        **item: Any,
    ) -> None:
        event, source, target = LIVES[word]
        if token == "":
            by_editor = word.startswith(("rescue", "cancel", "reprioritise")) or word.endswith("by hand")
            token = None if by_editor else f"token {attempt}"
        self._add(
            "apply",
            [
                Item(
                    job_id=job_id,
                    event=event,
                    source=source,
                    target=target,
                    attempt=attempt,
                    token=token,
                    result=digest(result) if event is Event.COMPLETE else None,
                    **item,
                )
            ],
            [Answer(outcome=outcome)],
        )

    def stage(self, job_id: str, jobs: tuple[Item, ...], *, attempt: int = 1, part: int = 0) -> None:
        item = Item(job_id=job_id, attempt=attempt, token=f"token {attempt}", part=part, jobs=jobs)
        self._add("stage", [item], [Answer()])

    def insert_children(
        self, job_id: str, jobs: tuple[Item, ...], attempt: int = 1, *, outcome: Outcome = Outcome.OK
    ) -> None:
        item = Item(job_id=job_id, attempt=attempt, token=f"token {attempt}", jobs=jobs)
        stored = tuple(Answer(job_id=each.job_id) for each in jobs) if outcome is Outcome.OK else ()
        self._add("insert_children", [item], [Answer(outcome=outcome, jobs=stored)])

    def extend(self, job_id: str, attempt: int = 1, *, lease: int = 20_000, outcome: Outcome = Outcome.OK) -> None:
        item = Item(job_id=job_id, attempt=attempt, token=f"token {attempt}", lease=lease)
        self._add("extend", [item], [Answer(outcome=outcome)])

    def note(self, job_id: str, attempt: int = 1, *, outcome: Outcome = Outcome.OK) -> None:
        item = Item(job_id=job_id, attempt=attempt, token=f"token {attempt}")
        self._add("note", [item], [Answer(outcome=outcome)])

    def fire(
        self, *ticks: int, due: int | None = None, to: int | None = None, outcome: Outcome = Outcome.OK, **item: Any
    ) -> None:
        """Each tick makes the job "tick <minute>"; the schedule goes on a minute after the last."""
        jobs = tuple(
            Item(job_id=f"tick {tick}", job_type="work", payload=digest("{}"), schedule="tick", tick_at=tick * MINUTE)
            for tick in ticks
        )
        now = item.pop("now", max(ticks, default=0) * MINUTE)
        fields: dict[str, Any] = {
            "schedule": "tick",
            "version": 1,
            "due_at": (ticks[0] if due is None else due) * MINUTE,
            "next_at": (ticks[-1] + 1 if to is None else to) * MINUTE,
            "jobs": jobs,
        }
        self._add("fire", [Item(**(fields | item))], [Answer(outcome=outcome)], now=now)

    def save(self, schedule: Schedule, *, outcome: Outcome = Outcome.OK) -> None:
        item = Item(schedule=schedule.name, definition=schedule)
        self._add("save_schedule", [item], [Answer(outcome=outcome)])

    def drop(self, name: str = "tick") -> None:
        self._add("drop_schedule", [Item(schedule=name)], [Answer()])

    def change_queue(self, name: str = "default", *, paused: bool, outcome: Outcome = Outcome.OK) -> None:
        self._add("change_queue", [Item(queue=name, paused=paused)], [Answer(outcome=outcome)])

    def change_limit(
        self, name: str = "work", *, paused: bool | None = None, most: int | None = None, outcome: Outcome = Outcome.OK
    ) -> None:
        self._add("change_limit", [Item(job_type=name, paused=paused, most=most)], [Answer(outcome=outcome)])

    def retire(self, policy: RetentionPolicy, *, now: int = 9_000, outcome: Outcome = Outcome.OK) -> None:
        self._add("retire", [Item(policy=policy)], [Answer(outcome=outcome)], now=now)

    def purge(self, job_id: str) -> None:
        self._add("purge", [Item(job_id=job_id)], [Answer()])

    def together(self, count: int) -> None:
        """The last `count` operations went on at the same time."""
        last = self.made[-count:]
        begun = min(op.invoked for op in last)
        done = max(op.returned or 0 for op in last)
        self.made[-count:] = [msgspec.structs.replace(op, invoked=begun, returned=done) for op in last]

    def _add(self, verb: str, items: list[Item], answers: list[Answer], now: int = 0) -> None:
        number = len(self.made) + 1
        invoked, returned = self._moment + 1, self._moment + 2
        self._moment += 2
        for item, answer in zip(items, answers, strict=True):
            self.made.append(
                Operation(
                    process="p1",
                    number=number,
                    verb=verb,
                    item=item,
                    outcome=answer.outcome,
                    invoked=invoked,
                    returned=None if answer.outcome is Outcome.INFO else returned,
                    now=now,
                    answer=answer,
                    size=len(items),
                    answers=len(answers) if answer.outcome is Outcome.OK else None,
                )
            )


def judged(records: list[JobRecord], calls: Calls | None = None, **more: Any) -> set[str]:
    """The invariants that this breaks."""
    evidence = Evidence(records, None if calls is None else calls.made, **more)
    return {violation.invariant for violation in check(evidence)}
