"""Every route, every method, every kind of asker: generated from the table of routes, so that none can be left out.

What a route should take is said here a second time, by a rule. A new route is under the rule from its first day; one
that is meant to be different needs a line in DIFFERENT.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi import APIRouter, Depends, FastAPI

from backstay import Backstay
from backstay.dashboard import page
from backstay.errors import ConfigurationError
from backstay.server import routing
from backstay.server.application import assemble
from backstay.server.auth import anyone, needs
from backstay.server.gate import Bounds, Gate
from backstay.server.routing import Row
from backstay.testing import ManualClock
from tests.server.asgi_request import Answered, ask
from tests.server.gated import sample_app

SCOPES = ("read", "submit", "work", "admin")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
ELSEWHERE = "10.0.0.7"
CANARY = "bs-canary-of-another-queue"

ANYONE: tuple[str, ...] = ()
DIFFERENT: dict[tuple[str, str], tuple[str, ...]] = {
    ("GET", "/"): ANYONE,
    ("GET", "/healthz"): ANYONE,
    ("HEAD", "/healthz"): ANYONE,
    ("GET", "/readyz"): ANYONE,
    ("HEAD", "/readyz"): ANYONE,
    ("GET", "/dashboard/static/{release}/{name}"): ANYONE,
    ("GET", "/dashboard/login"): ANYONE,
    ("POST", "/dashboard/login"): ANYONE,
    ("POST", "/dashboard/logout"): ANYONE,
    ("POST", "/dashboard/theme"): ANYONE,
    ("GET", "/audit"): ("admin",),
    ("GET", "/dashboard/audit"): ("admin",),
    ("GET", "/dashboard/keys"): ("admin",),
    ("GET", "/dashboard/submit"): ("submit",),
    ("POST", "/jobs/batch"): ("submit",),
    ("POST", "/jobs/{job_type}"): ("submit",),
    ("POST", "/dashboard/submit"): ("submit",),
    ("DELETE", "/jobs/{job_id}"): ("submit", "admin"),
    ("DELETE", "/jobs/{job_type}/{job_id}"): ("submit", "admin"),
    ("POST", "/jobs/{job_id}/retry"): ("submit", "admin"),
    ("POST", "/jobs/{job_id}/events/{name}"): ("submit", "admin"),
    ("POST", "/events"): ("submit", "admin"),
    ("POST", "/jobs/cancel"): ("submit", "admin"),
    ("POST", "/jobs/retry"): ("submit", "admin"),
    ("POST", "/dashboard/jobs/{job_id}/cancel"): ("submit", "admin"),
    ("POST", "/dashboard/jobs/{job_id}/retry"): ("submit", "admin"),
    ("POST", "/dashboard/jobs/bulk"): ("submit", "admin"),
}
AT_THE_DOOR = ("/dashboard/login", "/dashboard/logout")  # which answer for themselves who came in
OF_WORKERS = re.compile(r"/workers/.*|/jobs/\{job_id\}/(complete|fail|outcome|extend|progress|output|step|wait)")


def expected(method: str, path: str) -> tuple[str, ...]:
    """Reading takes read, what workers send takes work, and every other change is an administrator's."""
    if (method, path) in DIFFERENT:
        return DIFFERENT[method, path]
    if method in ("GET", "HEAD"):
        return ("read",)
    return ("work",) if OF_WORKERS.fullmatch(path) else ("admin",)


@dataclass(frozen=True, slots=True)
class Stage:
    """A server with something of every kind in it."""

    app: Backstay
    gate: Gate
    table: list[Row]
    job_id: str
    keys: dict[str, dict[str, str]]
    victim: str

    async def ask(
        self, method: str, row: Row | str, headers: dict[str, str] | None = None, client: str = ELSEWHERE
    ) -> Answered:
        path = row if isinstance(row, str) else self.filled(row.path_format)
        sent = dict(headers or {})
        body = b""
        if path.startswith("/dashboard"):
            sent |= {"Sec-Fetch-Site": "same-origin", "Cookie": f"{page.FORM_COOKIE}=fixed"}
            sent["Content-Type"] = "application/x-www-form-urlencoded"
            body = urlencode(_form(path, self.job_id)).encode()
        elif method not in ("GET", "HEAD", "OPTIONS", "TRACE"):
            sent["Content-Type"] = "application/json"
            body = json.dumps(_document(path)).encode()
        return await ask(self.gate, method, path, sent, b"" if method in ("GET", "HEAD") else body, client)

    def filled(self, path: str) -> str:
        name = "mail" if "/queues/" in path else "nightly" if "/schedules/" in path else "note.txt"
        name = "dashboard.css" if "/static/" in path else name
        values = {
            "job_id": self.job_id,
            "job_type": "letter",
            "name": name,
            "worker_id": "far-away",
            "table": "words",
            "key": "k",
            "key_id": self.victim,
            "verb": "pause",
            "release": "x",
            "path": "x",
        }
        return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], path)

    async def seen(self) -> Any:
        """All that a change could have changed."""
        jobs = [(job.job_id, job.version) for job in await self.app.find(limit=100)]
        queues = [(queue.name, queue.paused, queue.max_pending) for queue in await self.app.queues()]
        schedules = [(each.name, each.paused, each.version) for each in await self.app.schedules()]
        return jobs, queues, schedules, [(key.key_id, key.state) for key in await self.app.api_keys()]


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    clock = ManualClock()
    app = sample_app(f"sqlite:///{folder}/jobs.db", clock)
    gate = assemble(app, hosts=(), bounds=Bounds(failures_burst=100_000))
    async with app:
        job = await app.submit("letter", {"to": CANARY}, subject=CANARY)
        await app.schedule("nightly", "0 3 * * *", "letter", {"to": CANARY})
        keys: dict[str, dict[str, str]] = {}

        async def make(name: str, *scopes: str, **options: Any) -> str:
            created = await app.create_key(name, scopes, **options)
            keys[name] = {"X-API-Key": created.text}
            return created.key.key_id

        for scope in SCOPES:
            await make(scope, scope)
        await make("elsewhere", *SCOPES, queues=["other*"])
        await make("expired", *SCOPES, expires_in=1)
        revoked = await make("revoked", *SCOPES)
        victim = await make("victim", "read")
        await app.revoke_key(revoked)
        clock.advance(2)
        yield Stage(app, gate, routing.rows(gate.inner), job.job_id, keys, victim)  # type: ignore[arg-type]


def _document(path: str) -> Any:
    if path in ("/jobs/cancel", "/jobs/retry"):
        return {"job_ids": ["019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"]}
    match path.rsplit("/", 1)[-1]:
        case "batch":
            return {"jobs": [{"job_type": "letter", "payload": {"to": "x"}}]}
        case "register":
            return {"worker_id": "far-away", "job_types": ["letter"], "queues": ["mail"], "version": "1"}
        case "claim":
            return {"limit": 1, "wait_seconds": 0, "request_id": "r"}
        case "letter":
            return {"payload": {"to": "x"}}
        case "limit":
            return {"max_pending": 5}
        case "nightly":
            return {"cron": "@daily", "job_type": "letter", "payload": {"to": "x"}}
        case "complete" | "fail" | "outcome" | "extend" | "progress":
            return {"token": "x"}
        case "output":
            return {"token": "x", "first": 1, "entries": ["x"]}
        case _:
            return {}


def _form(path: str, job_id: str) -> list[tuple[str, str]]:
    token = (page.FIELD, page._token("fixed"))
    filled = {"/dashboard/submit": [("job_type", "letter"), ("payload/to", "x")], "/dashboard/keys": [("name", "n")]}
    bulk = [("job_id", job_id), ("action", "cancel"), ("do", "cancel"), ("confirmed", "yes")]
    return [token, *filled.get(path, bulk), ("scope", "read"), ("max_pending", "5"), ("priority", "90")]


def is_refusal(answered: Answered, row: Row) -> bool:
    """Of someone who is nobody: told to show a key, or shown where."""
    if row.path.startswith("/dashboard"):
        return answered.status == 303 and answered.headers["location"].startswith("/dashboard/login")
    return answered.status == 401 and answered.headers["content-type"] == "application/problem+json"


async def test_every_route_takes_the_scope_that_the_rule_says(tmp_path: Path) -> None:
    gate = assemble(sample_app(f"sqlite:///{tmp_path}/jobs.db"))
    table = routing.rows(gate.inner)  # type: ignore[arg-type]
    wrong = [
        f"{method} {row.path_format}: takes {row.scopes}, should take {expected(method, row.path_format)}"
        for row in table
        for method in row.methods
        if row.scopes != expected(method, row.path_format)
    ]
    assert wrong == []
    there = {(method, row.path_format) for row in table for method in row.methods}
    assert [line for line in DIFFERENT if line not in there] == []
    assert [row.path for row in table if row.opening == "local"] == ["/metrics"]


@pytest.mark.parametrize("who", [None, "revoked", "expired", "forged"])
async def test_nobody_gets_anywhere_by_any_method(tmp_path: Path, who: str | None) -> None:
    async with staged(tmp_path) as stage:
        headers = {"X-API-Key": "bs_live_forged"} if who == "forged" else stage.keys[who] if who else {}
        before = await stage.seen()
        wrong = []
        for row in stage.table:
            for method in METHODS:
                answered = await stage.ask(method, row, headers)
                if row.opening == "anyone":
                    is_right = answered.status < 400 or method not in row.methods or row.path in AT_THE_DOOR
                else:
                    is_right = is_refusal(answered, row)
                if not is_right:
                    wrong.append(f"{method} {row.path}: {answered.status}")
                if CANARY.encode() in answered.body:
                    wrong.append(f"{method} {row.path} tells {CANARY}")
        assert wrong == [], "\n".join(wrong)
        assert await stage.seen() == before


async def test_a_key_with_another_scope_is_refused_on_every_route(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        before = await stage.seen()
        wrong = []
        for row in stage.table:
            for scope in SCOPES[:3]:
                if not row.scopes or scope in row.scopes:
                    continue
                for method in row.methods:
                    answered = await stage.ask(method, row, stage.keys[scope])
                    if answered.status != 403 or CANARY.encode() in answered.body:
                        wrong.append(f"{method} {row.path} with {scope}: {answered.status}")
        assert wrong == [], "\n".join(wrong)
        assert await stage.seen() == before


async def test_the_right_key_is_let_in_on_every_route_and_reading_changes_nothing(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        wrong, changed, last = [], set(), await stage.seen()
        for row in stage.table:
            for scope in {*row.scopes, "admin"} if row.scopes else {"read"}:
                for method in row.methods:
                    answered = await stage.ask(method, row, stage.keys[scope])
                    before, last = last, await stage.seen()
                    changed |= {part for part, (old, new) in enumerate(zip(before, last, strict=True)) if old != new}
                    if method in ("GET", "HEAD") and last != before:
                        wrong.append(f"{method} {row.path} changed something")
                    if row.path in AT_THE_DOOR:
                        continue
                    if answered.status in (0, 401, 403, 405) or answered.status >= 500 or is_refusal(answered, row):
                        wrong.append(f"{method} {row.path} with {scope}: {answered.status}")
        assert wrong == [], "\n".join(wrong)
        assert changed == {0, 1, 2, 3}  # those who may do change all that others are watched for


async def test_a_key_for_other_queues_sees_and_changes_nothing_of_this_one(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        before = await stage.seen()
        wrong = []
        for row in stage.table:
            for method in row.methods:
                answered = await stage.ask(method, row, stage.keys["elsewhere"])
                if answered.status == 0 or answered.status >= 500:
                    wrong.append(f"{method} {row.path}: {answered.status}")
                if "{job_id}" in row.path_format and answered.status not in (404, 405, 422):
                    wrong.append(f"{method} {row.path} tells its job from one that is not there: {answered.status}")
                tells_id = "{job_id}" not in row.path_format and stage.job_id.encode() in answered.body
                if CANARY.encode() in answered.body or tells_id:
                    wrong.append(f"{method} {row.path} tells what is in another queue")
                if (after := await stage.seen()) != before:
                    wrong.append(f"{method} {row.path} changed {_difference(before, after)}")
                    before = after
        assert wrong == [], "\n".join(wrong)


def _difference(before: Any, after: Any) -> str:
    return "; ".join(f"{old} -> {new}" for old, new in zip(before, after, strict=True) if old != new)[:500]


async def test_metrics_are_for_this_machine_without_a_key_and_for_others_with_one(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        assert (await stage.ask("GET", "/metrics", client="127.0.0.1")).status == 200
        assert (await stage.ask("GET", "/metrics")).status == 401
        assert (await stage.ask("GET", "/metrics", stage.keys["work"])).status == 403
        assert (await stage.ask("GET", "/metrics", stage.keys["read"])).status == 200


def test_a_route_that_does_not_say_who_may_call_it_stops_the_server_from_starting() -> None:
    for dependencies in ([], [Depends(lambda: None)], [Depends(anyone), Depends(needs("read"))]):
        api, router = FastAPI(openapi_url=None, docs_url=None, redoc_url=None), APIRouter()

        @router.get("/new", dependencies=dependencies)
        async def new() -> None: ...

        api.include_router(router)
        with pytest.raises(ConfigurationError, match="/new does not say who may call it"):
            routing.rows(api)
