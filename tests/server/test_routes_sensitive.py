"""What a type's model marks as sensitive: for workers and administrators, and dots for everyone else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from backstay import Backstay
from tests.server.routes_stage import Stage, staged

SECRET = "4111-secret"


class Payment(BaseModel):
    card: Annotated[str, Field(json_schema_extra={"sensitive": True})]
    amount: int


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("payment")
    async def payment(payload: Payment) -> int:
        return payload.amount

    async with staged(app) as stage:
        yield stage


async def answers(stage: Stage, key: dict[str, str]) -> list[str]:
    """Every answer that has a payload in it."""
    made = {"card": SECRET, "amount": 5}
    job = await stage.app.submit("payment", made, dedup_key="k")
    await stage.app.schedule("nightly", "@daily", "payment", made)
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/jobs", {}),
        ("GET", "/jobs/payment", {}),
        ("GET", f"/jobs/{job.job_id}", {}),
        ("GET", f"/jobs/payment/{job.job_id}", {}),
        ("GET", "/schedules", {}),
        ("GET", "/schedules/nightly", {}),
        ("POST", "/jobs/payment", {"json": {"payload": made, "dedup_key": "k"}}),
        ("POST", "/jobs/batch", {"json": {"jobs": [{"job_type": "payment", "payload": made, "dedup_key": "k"}]}}),
        ("DELETE", f"/jobs/{job.job_id}", {}),
        ("POST", f"/jobs/{job.job_id}/retry", {}),
    ]
    found = []
    for method, path, options in asked:
        answer = await stage.ask(method, path, headers=key, **options)
        assert answer.status_code == 200, answer.text
        found.append(answer.text)
    return found


async def test_a_reader_sees_dots_where_a_field_is_marked_and_the_rest_of_the_payload(stage: Stage) -> None:
    for text in await answers(stage, await stage.key("read", "submit")):
        assert SECRET not in text
        assert '"payload":{"card":"•••","amount":5}' in text


async def test_a_job_that_is_streamed_or_explained_tells_a_reader_no_secret(stage: Stage) -> None:
    job = await stage.app.submit("payment", {"card": SECRET, "amount": 5})
    await stage.app.cancel(job.job_id)
    key = await stage.key("read")
    for end in ("/history", "/logs", "/tree", "/explain", "/stream", "/tree/stream"):
        answer = await stage.http.get(f"/jobs/{job.job_id}{end}", headers=key)
        assert answer.status_code == 200
        assert SECRET not in answer.text


@pytest.mark.parametrize("scopes", [("admin",), ("read", "submit", "work"), ()])
async def test_administrators_workers_and_this_machine_without_keys_see_all_of_it(
    stage: Stage, scopes: tuple[str, ...]
) -> None:
    for text in await answers(stage, await stage.key(*scopes) if scopes else {}):
        assert SECRET in text


async def test_a_worker_that_claims_a_job_gets_its_whole_payload(stage: Stage) -> None:
    await stage.app.submit("payment", {"card": SECRET, "amount": 5})
    key = await stage.key("work")
    body = {"worker_id": "far", "job_types": ["payment"], "queues": ["default"], "version": "1"}
    await stage.ask("POST", "/workers/register", json=body, headers=key)
    claimed = await stage.ask("POST", "/workers/far/claim", json={}, headers=key)
    assert claimed.json()[0]["job"]["payload"] == {"card": SECRET, "amount": 5}
