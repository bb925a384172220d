"""A job's document, whose fields are read one by one, says what the job says."""

from __future__ import annotations

import msgspec
import pytest

from backstay import Backstay, codec, options
from backstay.core.records import ErrorEntry, JobRecord
from backstay.core.states import Status
from backstay.job import FIELDS, Job, document

ID, OTHER = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c", "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4d"
FULL = JobRecord(
    job_id=ID,
    job_type="embedding",
    queue="gpu",
    status=Status.WAITING,
    priority=7,
    payload='{"a":1}',
    subject="user:7",
    tags='["x"]',
    created_by="web",
    created_at=1_000_000,
    updated_at=2_000_000,
    scheduled_for=3_000_000,
    started_at=4_000_000,
    completed_at=5_000_000,
    attempt=2,
    failures=1,
    max_attempts=5,
    timeout_micros=60_500_000,
    version=9,
    worker_id="w",
    worker_version="1.0",
    lease_expires_at=6_000_000,
    progress=0.25,
    stage="half",
    result='{"r":[]}',
    last_error="ValueError: no",
    errors=(ErrorEntry(attempt=1, at=4_500_000, type="ValueError", message="no", traceback="t"),),
    logs='[{"message":"m"}]',
    log_location="db",
    metrics='{"seconds":1.5}',
    artifacts='[{"name":"a.txt","uri":"file:///a.txt"}]',
    result_tables=("rows",),
    dedup_key="key\x1fgpu",
    content_hash="h",
    reused_from=OTHER,
    expires_at=9_000_000,
    parent_job_id=OTHER,
    root_job_id=OTHER,
    job_stage="stage",
    children=4,
    open_children=3,
    awaits='{"for":"children","rule":"all_done","on_failure":"fail"}',
    trigger_rule="all_done",
    on_dependency_failure="fail",
    dependencies=(OTHER,),
    dependent_jobs=(OTHER,),
    dependent_count=1,
    processing_micros=1_250_000,
    payload_version=2,
    concurrency_key="c",
    rate_key="r",
    rate_cost=5,
    fairness_key="f",
    schedule="nightly",
    tick_at=7_000_000,
    archived_at=8_000_000,
)


@pytest.mark.parametrize(
    "record",
    [
        FULL,
        msgspec.structs.replace(FULL, status=Status.PROCESSING),
        msgspec.structs.replace(FULL, status=Status.FAILED),
    ],
    ids=lambda record: record.status.value,
)
def test_a_document_has_what_the_job_has(record: JobRecord) -> None:
    job = Job(record)
    found = codec.decode(codec.encode(document(job)))
    wanted = codec.decode(codec.encode({name: getattr(job, name) for name in FIELDS}))
    assert found == wanted
    left = {name for name in FIELDS if found[name] in (None, [], {}, "", 0, False)}
    assert left <= {"deduplicated", "waits_for", "progress"}  # so that no field is compared by its default


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"queue": "mail"},
        {"priority": "high", "subject": "user:7", "created_by": "web"},
        {"queue": "mail", "priority": 3, "subject": None},
    ],
)
def test_usual_options_make_the_same_job_as_all_options_do(given: dict[str, object]) -> None:
    app = Backstay("sqlite:///never-opened.db")

    @app.job("letter", queue="post", priority=20, max_attempts=3, timeout=30)
    async def letter(payload: dict[str, int]) -> None: ...

    plain = options.build(letter, {"a": 1}, ID, 5_000_000, given)  # type: ignore[arg-type]
    full = options._with_options(letter, "letter", None, '{"a":1}', ID, 5_000_000, given)  # type: ignore[arg-type]
    assert plain == full
