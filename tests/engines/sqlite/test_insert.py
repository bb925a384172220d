"""Many jobs are stored as they were given, however few statements that takes."""

from typing import Any

import pytest

from backstay.core.records import JobRecord, NewJob, shared
from backstay.engines.sqlite import insert
from backstay.engines.sqlite.store import SQLiteStore
from backstay.testing.conformance.factories import DAY, NOW, new_job

RUNS: list[dict[str, Any]] = [
    {},
    {"job_type": "other", "subject": "a subject", "tags": '["a"]'},
    {"queue": "slow", "priority": 10, "max_attempts": 1, "timeout_micros": 7, "payload_version": 2},
    {"scheduled_for": NOW + DAY, "created_by": "ann", "fairness_key": "tenant", "fairness_weight": 3},
]
ALIKE = [changes for changes in RUNS for _ in range(20)]
MIXED = [changes for _ in range(20) for changes in RUNS]


@pytest.mark.parametrize("has_lists", [True, False])
@pytest.mark.parametrize("given", [ALIKE, MIXED], ids=["alike", "mixed"])
async def test_many_jobs_are_stored_as_given(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, given: list[dict[str, Any]], has_lists: bool
) -> None:
    monkeypatch.setattr(insert, "CAN_BIND_LISTS", has_lists)
    jobs = [new_job(payload=f'{{"n": {n}, "text": "Grüße 😀"}}', **changes) for n, changes in enumerate(given)]
    await store.insert(jobs, NOW)
    found = [each for each in await store.get([job.job_id for job in jobs]) if each is not None]
    assert [shared(each, NewJob) for each in found] == [_kept(job) for job in jobs]
    assert len({each.created_at for each in found}) == 1


def _kept(job: NewJob) -> dict[str, Any]:
    """What a record tells of a new job."""
    return shared(job, JobRecord)
