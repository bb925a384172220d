"""GET /: where people and programs arrive."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from backstay.server import asgi
from tests.server.routes_fixtures import stage as stage
from tests.server.routes_stage import Stage

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


async def test_a_browser_goes_on_to_the_dashboard(stage: Stage) -> None:
    answer = await stage.ask("GET", "/", headers={"Accept": BROWSER})
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/json, text/html;q=0.5", "text/html;q=x"])
async def test_a_program_is_told_where_everything_is_and_needs_no_key_for_that(stage: Stage, accept: str) -> None:
    await stage.key("admin")
    answer = await stage.ask("GET", "/", headers={"Accept": accept})
    assert answer.status_code == 200
    links = answer.json()
    assert links == {
        "dashboard": "/dashboard", "health": "/healthz", "openapi": "/openapi.json", "ready": "/readyz"
    }  # fmt: skip
    assert (await stage.http.get(links["health"])).status_code == 200


async def test_below_a_prefix_it_leads_to_what_is_below_the_prefix(stage: Stage) -> None:
    service = FastAPI()
    service.mount("/backstay", asgi(stage.app))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(service), base_url="http://localhost") as http:
        page = await http.get("/backstay/", headers={"Accept": BROWSER})
        assert (page.status_code, page.headers["location"]) == (303, "/backstay/dashboard")
        assert (await http.get("/backstay/")).json()["openapi"] == "/backstay/openapi.json"
