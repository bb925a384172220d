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


REGISTER = {"worker_id": "far", "job_types": ["charge"], "queues": ["default"], "version": "1"}
MARKED = {"properties": {"card": {"type": "string", "sensitive": True}, "amount": {"type": "integer"}}}
PLAIN = {"properties": {"card": {"type": "string"}, "amount": {"type": "integer"}}}


async def announce(stage: Stage, key: dict[str, str], schema: dict[str, Any], **more: Any) -> None:
    answer = await stage.ask(
        "POST", "/workers/register", json=REGISTER | {"schemas": {"charge": schema}} | more, headers=key
    )
    assert answer.status_code == 200, answer.text


async def shown(stage: Stage, key: dict[str, str], job_id: str) -> Any:
    return (await stage.ask("GET", f"/jobs/{job_id}", headers=key)).json()["payload"]["card"]


async def test_a_worker_that_announces_a_plain_schema_does_not_uncover_what_was_marked(stage: Stage) -> None:
    work, read = await stage.key("work"), await stage.key("read")
    await announce(stage, work, MARKED)
    job = await stage.app.submit("charge", {"card": SECRET, "amount": 5})
    assert await shown(stage, read, job.job_id) == "•••"

    await announce(stage, work, PLAIN)
    await announce(stage, work, PLAIN, versions={"charge": 2})
    await announce(stage, await stage.key("admin"), PLAIN)

    assert await shown(stage, read, job.job_id) == "•••"


async def test_a_worker_can_mark_fields_that_its_schema_does_not_name(stage: Stage) -> None:
    await announce(stage, await stage.key("work"), PLAIN, sensitive={"charge": ["/card"]})
    job = await stage.app.submit("charge", {"card": SECRET, "amount": 5})
    assert await shown(stage, await stage.key("read"), job.job_id) == "•••"


async def test_only_an_administrator_takes_a_mark_away_once_the_code_no_longer_has_it(stage: Stage) -> None:
    work, read, admin = await stage.key("work"), await stage.key("read"), await stage.key("admin")
    await announce(stage, work, MARKED)
    job = await stage.app.submit("charge", {"card": SECRET, "amount": 5})
    field = {"json": {"field": "/card"}}

    for key in (read, work, await stage.key("submit")):
        assert (await stage.ask("POST", "/types/charge/unmark", headers=key, **field)).status_code == 403
    other = await stage.key("admin", queues=("mail",))
    assert (await stage.ask("POST", "/types/charge/unmark", headers=other, **field)).status_code == 404
    assert "charge" not in (await stage.ask("GET", "/types", headers=other)).text
    refused = await stage.ask("POST", "/types/charge/unmark", headers=admin, **field)
    assert refused.status_code == 422 and "deploy code without the mark first" in refused.json()["detail"]

    await announce(stage, work, PLAIN)
    listed = (await stage.ask("GET", "/types", headers=read)).json()["items"]
    assert {each["job_type"]: each["sensitive"] for each in listed}["charge"] == ["/card"]
    assert await shown(stage, read, job.job_id) == "•••"
    answer = await stage.ask("POST", "/types/charge/unmark", headers=admin, **field)
    assert (answer.status_code, answer.json()["sensitive"]) == (200, [])
    assert await shown(stage, read, job.job_id) == SECRET
    newest = (await stage.app.audit_trail())[0]
    assert (newest.action, newest.target, newest.before, newest.after) == (
        "type.unmark", "charge", {"sensitive": "/card"}, {"sensitive": ""},
    )  # fmt: skip


async def test_newer_code_without_a_mark_does_not_uncover_jobs_of_older_code(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    old, new = Backstay(url), Backstay(url)

    @old.job("payment")
    async def marked(payload: Payment) -> None: ...

    @new.job("payment", version=2)
    async def plain(payload: dict[str, Any]) -> None: ...

    async with old:
        job = await old.submit("payment", {"card": SECRET, "amount": 5})
    async with staged(new) as stage:
        assert await shown(stage, await stage.key("read"), job.job_id) == "•••"
        assert plain.marked == ("/card",)  # what is reported to Sentry is masked as well
