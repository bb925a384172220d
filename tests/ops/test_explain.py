"""From facts to a sentence. That each reason is found for real is tested with apps and workers."""

from typing import Any

import msgspec
import pytest

from backstay.clock import MICROS
from backstay.core.records import JobRecord, QueueRow, WorkerRow
from backstay.core.states import Status
from backstay.ops.explain import Facts, judge
from backstay.ops.explanation import NAMED_MAX, Explanation, Params, Reason, RelatedJob

NOW = 1_900_000_000 * MICROS


def a_job(status: Status = Status.PENDING, **changes: Any) -> JobRecord:
    fields: dict[str, Any] = {
        "job_id": "j",
        "job_type": "report",
        "queue": "default",
        "status": status,
        "priority": 50,
        "payload": "{}",
        "created_at": NOW,
        "updated_at": NOW,
        "scheduled_for": NOW,
        "max_attempts": 5,
        "timeout_micros": 1,
    }
    return JobRecord(**(fields | changes))


def a_worker(worker_id: str = "w", **changes: Any) -> WorkerRow:
    fields: dict[str, Any] = {
        "worker_id": worker_id,
        "host": "h",
        "pid": 1,
        "process_key": "",
        "version": "1",
        "queues": ("default",),
        "job_types": ("report",),
        "concurrency": 1,
        "started_at": NOW,
        "heartbeat_at": NOW,
    }
    return WorkerRow(**(fields | changes))


def said(job: JobRecord, *workers: WorkerRow, **facts: Any) -> Explanation:
    return judge(Facts(job=job, now=NOW, workers=list(workers), **facts))


def test_an_explanation_is_a_reason_of_which_str_is_the_sentence() -> None:
    found = said(a_job())

    assert (found.reason, found.params, found.until, found.job_ids) == (Reason.NO_WORKER, Params(), None, ())
    assert f"{found}" == str(found) == "no worker is alive: start one"


def test_the_jobs_in_a_sentence_are_apart_from_its_words() -> None:
    found = said(a_job(Status.WAITING), dependencies={"a": Status.PENDING, "b": Status.PENDING})

    assert found.parts() == [
        "it is waiting for ",
        RelatedJob(job_id="a", status=Status.PENDING),
        " (pending)",
        " and ",
        RelatedJob(job_id="b", status=Status.PENDING),
        " (pending)",
    ]


def test_an_explanation_can_be_sent_as_json() -> None:
    found = said(a_job(Status.WAITING), dependencies={"a": Status.PENDING})

    sent = msgspec.json.encode(found)

    assert msgspec.json.decode(sent)["params"] == {"jobs": [{"job_id": "a", "status": "pending"}]}
    assert msgspec.json.decode(sent, type=Explanation) == found


@pytest.mark.parametrize("status", Status)
def test_every_state_has_an_explanation(status: Status) -> None:
    found = said(a_job(status, lease_expires_at=NOW + 1, worker_id="w", attempt=1, started_at=NOW, completed_at=NOW))

    assert not str(found).endswith((".", ":", ";", " "))


def test_some_workers_are_named_and_the_others_counted() -> None:
    workers = [a_worker(f"w{n}", job_types=("other",)) for n in range(NAMED_MAX + 2)]

    assert "w0, w1, w2 and 2 more handle other" in str(said(a_job(), *workers))
    assert "w0 handles other" in str(said(a_job(), workers[0]))


def test_what_stands_in_the_way_of_all_comes_before_what_concerns_one() -> None:
    paused = QueueRow(name="default", paused_at=NOW)
    keyed = a_job(concurrency_key="k", concurrency_limit=1)

    assert said(keyed, queue=paused, holders=["h"]).reason is Reason.QUEUE_PAUSED
    assert said(keyed, holders=["h"]).reason is Reason.NO_WORKER
    assert said(keyed, a_worker(), holders=["h"], claims={"w": {"report": 1}}).reason is Reason.KEY_FULL
    assert said(keyed, a_worker(), claims={"w": {"report": 1}}).reason is Reason.WORKERS_BUSY
    assert said(keyed, a_worker(), claims={"w": {}}).reason is Reason.IN_LINE


def test_a_pause_that_nobody_signed_is_told_without_a_name() -> None:
    found = said(a_job(), queue=QueueRow(name="default", paused_at=NOW))

    assert str(found) == "the queue default was paused at 2030-03-17 17:46:40 UTC"


def test_a_queue_that_was_only_limited_is_not_paused() -> None:
    assert said(a_job(), queue=QueueRow(name="default", max_pending=5)).reason is Reason.NO_WORKER


def test_of_many_jobs_that_are_waited_on_some_are_named_and_the_others_counted() -> None:
    waiting: dict[str, Status | None] = {f"job-{n}": Status.PENDING for n in range(NAMED_MAX + 4)}

    found = said(a_job(Status.WAITING), dependencies=waiting)

    assert str(found) == "it is waiting for job-0 (pending), job-1 (pending), job-2 (pending) and 4 more"
    assert found.job_ids == tuple(waiting)


def test_jobs_that_have_just_completed_are_not_waited_on() -> None:
    found = said(a_job(Status.WAITING), dependencies={"a": Status.COMPLETED})

    assert str(found) == "it is waiting for jobs that are finishing now"


def test_a_due_job_with_a_worker_only_has_to_wait_a_moment() -> None:
    found = said(a_job(Status.RETRYING, scheduled_for=NOW - 1), a_worker())

    assert found.reason is Reason.OVERDUE
    assert str(found).endswith("; a worker will start it in a moment")


def test_a_claim_that_ran_out_is_taken_up_by_any_worker() -> None:
    lost = a_job(Status.PROCESSING, lease_expires_at=NOW, worker_id="gone", attempt=1)

    assert "another worker will pick it up" in str(said(lost, a_worker()))
    assert "start one" in str(said(lost))


def test_one_that_its_key_holds_back_is_told_how_many_of_that_key_come_first() -> None:
    held_back = a_job(parked=True, concurrency_key="gpu", concurrency_limit=1, fairness_key="tenant")

    third, next_one = (said(held_back, a_worker(), claims={"w": {}}, ahead=ahead) for ahead in (3, 0))

    assert str(third) == "it is in line: 3 jobs of its key are ahead of it"
    assert str(next_one) == "a worker will claim it in a moment: it is next in line for its key"


def test_many_ahead_are_not_counted_to_the_end() -> None:
    assert "1,000 or more jobs" in str(said(a_job(), a_worker(), claims={"w": {}}, ahead=1_000))
    assert "99 jobs" in str(said(a_job(), a_worker(), claims={"w": {}}, ahead=99))
