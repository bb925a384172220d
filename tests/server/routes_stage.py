"""An app with a job of each kind behind its whole server, asked over ASGI; every answer is held against OpenAPI."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import jsonschema
from pydantic import BaseModel

from backstay import Backoff, Backstay, Context, JobCancelled, JobFailed, ResultRow
from backstay.server import routing
from backstay.server.application import assemble
from backstay.server.gate import Gate

PAGE = b"<!doctype html><script>alert(1)</script><h1>Report</h1>"
FILM = bytes(range(256)) * 40
_document: dict[str, Any] = {}  # the same for every stage


class Letter(BaseModel):
    to: str
    copies: int = 1


class Comment(ResultRow, table="comments", key="comment_id", subject="conversation"):
    comment_id: int
    conversation: str
    text: str


def staged_app(url: str, **options: Any) -> Backstay:
    app = Backstay(url, **options)

    @app.job("letter", queue="mail")
    async def letter(payload: Letter) -> dict[str, Any]:
        return {"sent": payload.to}

    @app.job("anything")
    async def anything(payload: Any) -> Any:
        return payload

    @app.job("broken", max_attempts=1, backoff=Backoff(0))
    async def broken(payload: Any) -> None:
        raise ValueError(f"no {payload}")

    @app.job("report", results=[Comment])
    async def report(payload: Any, ctx: Context) -> str:
        ctx.log.info("begun")
        rows = [Comment(comment_id=n, conversation="ab"[n % 2], text=f"<b>{n}</b>") for n in range(5)]
        await ctx.results(Comment).put(rows)
        await ctx.artifact("report.html", PAGE)
        await ctx.artifact("film.bin", FILM)
        await ctx.artifact("notes.txt", "schön")
        return "x" * 100_000  # more than a record holds: it is kept in a file

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> None:
        for n in range(payload):
            await ctx.submit("anything", n)

    return app


class Stage:
    def __init__(self, app: Backstay, gate: Gate, http: httpx.AsyncClient) -> None:
        self.app = app
        self.http = http
        self._gate = gate

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Every method and path, of the API and of the dashboard."""
        rows = routing.rows(self._gate.inner)  # type: ignore[arg-type]
        return sorted((method, row.path) for row in rows for method in row.methods)

    async def submit(self, job_type: str = "anything", **body: Any) -> dict[str, Any]:
        answer = await self.ask("POST", f"/jobs/{job_type}", json=body)
        assert answer.status_code in (200, 201), answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """And see that the answer is one that the document promises."""
        answer = await self.http.request(method, path, **options)
        self._check(answer)
        return answer

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.ask("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def key(self, *scopes: str, queues: tuple[str, ...] = (), name: str = "tester") -> dict[str, str]:
        created = await self.app.create_key(name, scopes, queues=queues)
        self._gate.inner.state.keyring.stale()  # type: ignore[attr-defined]
        return {"Authorization": f"Bearer {created.text}"}

    async def run(self) -> None:
        """Let a worker do all there is."""
        async with self.app.worker(poll_interval=0.05):
            for job in await self.app.find(limit=1000):
                if job.status not in ("completed", "failed", "cancelled", "scheduled"):
                    with suppress(JobFailed, JobCancelled):
                        await self.app.result(job.job_id, timeout=30)

    def _check(self, answer: httpx.Response) -> None:
        operation = _operation(answer.request.method.lower(), answer.request.url.path)
        if operation is None:
            assert answer.status_code in (404, 405)
            return
        said = operation["responses"].get(str(answer.status_code))
        assert said is not None, f"{answer.request.method} {answer.request.url} → {answer.status_code}: {answer.text}"
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        if media_type in ("application/json", "application/problem+json"):
            schema = said.get("content", {}).get(media_type, {}).get("schema", {})
            jsonschema.Draft202012Validator({**schema, "components": _document["components"]}).validate(answer.json())


def _operation(method: str, path: str) -> dict[str, Any] | None:
    uuid = "[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
    for template, operations in _document["paths"].items():
        pattern = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
        pattern = re.sub(r"\{(?:job_)?id\}", uuid, pattern)
        pattern = re.sub(r"\{key\}", ".+", pattern)
        pattern = re.sub(r"\{id_or_type\}", r"(?!batch)[A-Za-z0-9._:-]+", pattern)
        pattern = re.sub(r"\{\w+\}", f"(?!{uuid}|batch)[^/]+", pattern)
        if re.fullmatch(pattern, path) and method in operations:
            found: dict[str, Any] = operations[method]
            return found
    return None


@asynccontextmanager
async def staged(app: Backstay, gate: Gate | None = None) -> AsyncIterator[Stage]:
    gate = gate or assemble(app, hosts=())
    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://localhost") as http:
        gate.inner.state.keyring.stale()  # type: ignore[attr-defined]
        if not _document:
            _document.update((await http.get("/openapi.json")).json())
        yield Stage(app, gate, http)


@asynccontextmanager
async def fresh_stage(folder: Path) -> AsyncIterator[Stage]:
    """The same app and server for all tests of this process, since making them takes a while, on a new file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    async with staged(*_kept(f"sqlite:///{folder}/jobs.db")) as stage:
        yield stage


@lru_cache
def _kept(url: str) -> tuple[Backstay, Gate]:
    app = staged_app(url)
    return app, assemble(app, hosts=())
