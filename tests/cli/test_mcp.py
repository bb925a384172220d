"""An agent talks to a queue through `backstay mcp`: a real client of the protocol, over the pipes of a real process."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from pydantic import BaseModel, SecretStr

from backstay import Backstay, Context
from backstay.core.states import Status

LOOKS = {
    *("list_jobs", "show_job", "job_history", "explain_job", "list_queues", "list_job_types", "stats"),
    *("dead_letters", "doctor"),
}
JOBS = {"submit_job", "cancel_job", "retry_job"}
OPERATES = {"cancel_jobs", "retry_jobs", "pause_queue", "resume_queue"}

Agent = Callable[..., AbstractAsyncContextManager[Client]]


class Charge(BaseModel):
    customer: str
    card: SecretStr = SecretStr("none")


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Backstay]:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("charge", max_attempts=1)
    async def charge(payload: Charge, ctx: Context) -> str:
        if payload.customer == "broke":
            raise ValueError("x" * 20_000)
        return "charged"

    async with app:
        yield app


@pytest.fixture
def agent(app: Backstay, tmp_path: Path) -> Agent:
    @asynccontextmanager
    async def start(*options: str) -> AsyncIterator[Client]:
        command = ["-m", "backstay", "mcp", "--url", app.url, *options]
        async with Client(StdioServerParameters(command=sys.executable, args=command, cwd=str(tmp_path))) as client:
            yield client

    return start


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    found: dict[str, Any] = answer.structured_content
    return found


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return " ".join(part.text for part in answer.content if part.type == "text")


async def tools(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def test_an_agent_gets_only_the_tools_that_its_scopes_allow(agent: Agent) -> None:
    async with agent() as reader:
        assert await tools(reader) == LOOKS
        assert "submit_job" in await refused(reader, "submit_job", job_type="charge", payload={"customer": "ada"})
    async with agent("--scopes", "read,submit") as submitter:
        assert await tools(submitter) == LOOKS | JOBS
    async with agent("--scopes", "admin") as operator:
        assert await tools(operator) == LOOKS | JOBS | OPERATES
        looks = {tool.name for tool in (await operator.list_tools()).tools if tool.annotations.read_only_hint}
        assert looks == LOOKS


async def test_an_agent_submits_finds_explains_and_cancels_a_job(app: Backstay, agent: Agent) -> None:
    async with agent("--scopes", "read,submit", "--name", "claims-agent") as client:
        payload = {"customer": "ada"}
        dry = await ask(client, "submit_job", job_type="charge", payload=payload, delay_seconds=3600, dry_run=True)
        assert dry["would_submit"]["queue"] == "default"
        assert sum((await app.counts()).values()) == 0
        stored = await ask(client, "submit_job", job_type="charge", payload=payload, delay_seconds=3600)
        [line] = (await ask(client, "list_jobs", status="scheduled"))["jobs"]
        assert line["job_id"] == stored["job_id"]
        assert "due in" in line["details"]
        assert "scheduled" in (await ask(client, "explain_job", job_id=stored["job_id"]))["reason"]
        trial = await ask(client, "cancel_job", job_id=stored["job_id"], reason="a mistake", dry_run=True)
        assert trial["jobs"] == 1
        assert (await app.get(stored["job_id"])).status == Status.SCHEDULED
        await ask(client, "cancel_job", job_id=stored["job_id"], reason="a mistake")
    job = await app.get(stored["job_id"])
    assert (job.status, job.created_by) == (Status.CANCELLED, "claims-agent")
    assert (job.history[-1].by, job.history[-1].why) == ("claims-agent", "a mistake")
    [entry] = await app.audit_trail()
    assert (entry.action, entry.by, entry.via, entry.outcome) == ("job.cancel", "claims-agent", "mcp", "ok")


async def test_many_jobs_are_changed_only_by_an_agent_that_says_so(app: Backstay, agent: Agent) -> None:
    await app.submit_many([("charge", {"customer": str(number)}) for number in range(3)])
    async with agent("--scopes", "admin") as client:
        found = await ask(client, "cancel_jobs", reason="test data", job_type="charge")
        assert (found["dry_run"], found["jobs"]) == (True, 3)
        assert (await app.counts())["pending"] == 3
        await ask(client, "cancel_jobs", reason="test data", job_type="charge", dry_run=False)
        assert (await app.counts())["cancelled"] == 3
        assert "at least one condition" in await refused(client, "cancel_jobs", reason="everything", dry_run=False)
        await ask(client, "pause_queue", name="default", reason="the bank is down", dry_run=True)
        assert not (await app.queues())[0].paused
        await ask(client, "pause_queue", name="default", reason="the bank is down")
        assert (await app.queues())[0].paused


async def test_an_agent_sees_neither_other_queues_nor_sensitive_fields(app: Backstay, agent: Agent) -> None:
    seen = await app.submit("charge", {"customer": "ada", "card": "4111"}, queue="shop")
    hidden = await app.submit("charge", {"customer": "bob"}, queue="bank")
    async with agent("--scopes", "admin", "--queues", "shop*") as client:
        assert [each["job_id"] for each in (await ask(client, "list_jobs"))["jobs"]] == [seen.job_id]
        assert [each["name"] for each in (await ask(client, "list_queues"))["queues"]] == ["shop"]
        for tool in ("show_job", "explain_job", "job_history"):
            assert f"no job {hidden.job_id}" in await refused(client, tool, job_id=hidden.job_id)
        assert "no job" in await refused(client, "cancel_job", job_id=hidden.job_id, reason="no")
        assert "bank" in await refused(client, "pause_queue", name="bank", reason="no")
        assert "bank" in await refused(client, "submit_job", job_type="charge", payload={"customer": "x"}, queue="bank")
        await ask(client, "cancel_jobs", reason="all", status="pending", dry_run=False)
        assert "doctor" not in await tools(client)
    assert (await app.get(hidden.job_id)).status == Status.PENDING
    async with agent("--scopes", "read") as reader:
        payload = (await ask(reader, "show_job", job_id=seen.job_id))["payload"]
    assert payload["customer"] == "ada"
    assert "4111" not in str(payload)


async def test_answers_are_short_enough_to_read_and_errors_say_what_is_wrong(app: Backstay, agent: Agent) -> None:
    async with app.worker():
        job = await app.submit("charge", {"customer": "broke"})
        await job.wait(30)
    async with agent("--scopes", "read,submit") as client:
        shown = await ask(client, "show_job", job_id=job.job_id)
        assert shown["last_error"].startswith("ValueError: xxx")
        assert len(str(shown)) < 20_000
        [group] = (await ask(client, "dead_letters"))["groups"]
        assert (group["error_type"], group["count"]) == ("ValueError", 1)
        assert (await ask(client, "stats"))["counts"]["failed"] == 1
        [charge] = (await ask(client, "list_job_types"))["job_types"]
        assert "customer" in charge["payload_schema"]["properties"]
        assert {each["level"] for each in (await ask(client, "doctor"))["findings"]} >= {"ok"}
        wrong = await refused(client, "submit_job", job_type="charge", payload={"customr": "ada"})
        assert "InvalidPayload" in wrong
        assert "customer" in wrong
        assert "UnknownJobType" in await refused(client, "submit_job", job_type="chrge", payload={})
