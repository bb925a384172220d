"""What a job is at, in words that cannot be misread."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.cli.output import note, progress_line
from backstay.clock import MICROS, to_datetime
from backstay.core.event_details import Dependency
from backstay.core.records import HistoryEvent, JobRecord
from backstay.core.states import Event, Status
from backstay.job import Job

NOW = 1_800_000_000 * MICROS
LATER = NOW + 9 * MICROS
EARLIER = NOW - 3 * MICROS


def job(status: Status, **fields: Any) -> Job:
    return Job(
        JobRecord(
            **{
                "job_id": "00000000-0000-7000-8000-000000000000",
                "job_type": "send",
                "queue": "default",
                "status": status,
                "priority": 50,
                "payload": "{}",
                "created_at": EARLIER,
                "updated_at": NOW,
                "scheduled_for": EARLIER,
                "max_attempts": 5,
                "timeout_micros": MICROS,
                **fields,
            }
        )
    )


CANCELLED = HistoryEvent(3, NOW, Event.CANCEL, Status.PENDING, Status.CANCELLED, 0, "ada", "by mistake")
EARLIER_LIFE = HistoryEvent(1, NOW, Event.CANCEL, Status.PENDING, Status.CANCELLED, 0, "ada", "long ago")

FIRST = "00000000-0000-7000-8000-000000000001"
WENT_DOWN = HistoryEvent(
    1, NOW, Event.RELEASE, Status.WAITING, Status.CANCELLED, 0, details=Dependency(FIRST, Status.CANCELLED)
)


@pytest.mark.parametrize(
    ("given", "short", "long"),
    [
        (job(Status.SCHEDULED, scheduled_for=LATER), "due in 9 s", "due in 9 s"),
        (job(Status.SCHEDULED), "due now", "due now"),
        (
            job(Status.RETRYING, scheduled_for=LATER, failures=1, last_error="OSError: no"),
            "retry in 9 s: OSError: no",
            "1 of 5 attempts failed, retrying in 9 s: OSError: no",
        ),
        (job(Status.PROCESSING, started_at=EARLIER), "running 3 s", ""),
        (
            job(Status.PROCESSING, started_at=EARLIER, progress=0.4, stage="umap"),
            "40% umap, running 3 s",
            "umap",
        ),
        (job(Status.WAITING, dependencies=("a", "b")), "waiting for 2 jobs", "waiting for 2 other jobs"),
        (job(Status.PENDING), "", "waiting for a worker"),
        (job(Status.PENDING, suspicion=1), "", "waiting for a worker"),
        (job(Status.PENDING, suspicion=2), "runs alone after losing a worker", "waiting to run alone"),
        (job(Status.COMPLETED, processing_micros=1_500_000), "took 1.5 s", "took 1.5 s"),
        (job(Status.COMPLETED, reused_from="x"), "result reused", "result reused"),
        (job(Status.FAILED, last_error="OSError: no"), "OSError: no", "OSError: no"),
        (job(Status.CANCELLED, history=(EARLIER_LIFE, CANCELLED)), "by mistake", "by mistake"),
        (job(Status.CANCELLED), "", ""),
        (
            job(Status.CANCELLED, history=(WENT_DOWN,), dependencies=(FIRST,)),
            f"because of {FIRST}",
            f"because of {FIRST}",
        ),
        (
            job(
                Status.FAILED,
                history=(WENT_DOWN,),
                dependencies=("x", FIRST),
                last_error=f"DependencyFailed: {FIRST} failed",
            ),
            f"because of {FIRST}",
            f"because of {FIRST}",
        ),
    ],
)
def test_a_note_says_what_its_number_means(given: Job, short: str, long: str) -> None:
    assert note(given, to_datetime(NOW)) == short
    assert progress_line(given, to_datetime(NOW)) == long
