"""The gate on every engine: keys are read, used and revoked, and a login holds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from backstay.server.gate import Bounds
from backstay.testing import ManualClock
from tests.server.gated import served
from tests.server.test_sessions import browser_of, log_in, log_out

ENGINES = ("sqlite", "postgres", "dynamodb")


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "postgres":
            yield request.getfixturevalue("postgres").url(schema="gate", clock="caller")
        case "dynamodb":
            yield request.getfixturevalue("dynamodb").url()
        case _:
            yield f"sqlite:///{tmp_path}/jobs.db"


async def test_a_key_lets_in_until_it_is_revoked(url: str) -> None:
    clock = ManualClock()
    async with served(url, clock=clock, bounds=Bounds(answer_seconds=30)) as server, browser_of(server) as browser:
        assert (await server.client.get("/readyz")).status_code == 200
        assert (await server.client.get("/jobs")).status_code == 200
        await server.key("admin")
        created = await server.app.create_key("leaver", ["read"], queues=["mail"])
        key = {"X-API-Key": created.text}
        assert (await server.client.get("/jobs")).status_code == 401
        assert (await server.client.get("/jobs", headers=key)).status_code == 200
        assert (await log_in(browser, created.text)).status_code == 303
        assert (await browser.get("/dashboard/queues")).status_code == 200
        assert (await log_out(browser)).status_code == 303
        assert (await browser.get("/dashboard/queues")).status_code == 303
        await server.app.revoke_key(created.key.key_id)
        clock.advance(5)
        assert (await server.client.get("/jobs", headers=key)).status_code == 401
        document = (await server.client.get("/openapi.json", headers=await server.key("read"))).json()
        assert {"/jobs/letter", "/jobs/anything"} <= set(document["paths"])
