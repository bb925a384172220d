"""Factories for hand-made histories: a job's life in a few words, and the operations that led to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.lifecycle import TERMINAL, Event, Status
from holdfast.store.types import HistoryEvent, JobRecord
from holdfast.testing.history import Operation, Outcome, digest
from holdfast.testing.history.evidence import FAILURES, generations
from holdfast.testing.history.operations import Answer, Item

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
    "release": (Event.RELEASE, Status.WAITING, Status.PENDING),
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
            by_editor = word.startswith(("rescue", "cancel")) or word.endswith("by hand")
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

    def extend(self, job_id: str, attempt: int = 1, *, lease: int = 20_000, outcome: Outcome = Outcome.OK) -> None:
        item = Item(job_id=job_id, attempt=attempt, token=f"token {attempt}", lease=lease)
        self._add("extend", [item], [Answer(outcome=outcome)])

    def note(self, job_id: str, attempt: int = 1, *, outcome: Outcome = Outcome.OK) -> None:
        item = Item(job_id=job_id, attempt=attempt, token=f"token {attempt}")
        self._add("note", [item], [Answer(outcome=outcome)])

    def purge(self, job_id: str) -> None:
        self._add("purge", [Item(job_id=job_id)], [Answer()])

    def together(self, count: int) -> None:
        """The last `count` operations went on at the same time."""
        last = self.made[-count:]
        begun = min(op.invoked for op in last)
        done = max(op.returned or 0 for op in last)
        self.made[-count:] = [msgspec.structs.replace(op, invoked=begun, returned=done) for op in last]

    def _add(self, verb: str, items: list[Item], answers: list[Answer]) -> None:
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
                    answer=answer,
                    size=len(items),
                    answers=len(answers) if answer.outcome is Outcome.OK else None,
                )
            )
