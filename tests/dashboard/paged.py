"""Someone at the dashboard without a script: pages are read, forms are filled in and sent."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from backstay import AuditRecord, Backstay
from backstay.server.application import assemble
from backstay.server.gate import Gate
from tests.dashboard.staged import Staged, fill, make_app

HERE = "http://localhost"
_TOKEN = re.compile(r'name="form_token" value="(\w+)"')
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)


@dataclass
class Page:
    status: int
    html: str
    url: str
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """What is read, with single blanks."""
        return " ".join(unescape(_TAGS.sub(" ", self.html)).split())


@dataclass
class Person:
    """Whoever has the dashboard open."""

    app: Backstay
    gate: Gate
    client: httpx.AsyncClient
    staged: Staged
    key: dict[str, str] = field(default_factory=dict)
    token: str = ""

    async def get(self, path: str) -> Page:
        return self._read(await self.client.get(f"/dashboard{path}", headers=self.key, follow_redirects=True))

    async def send(self, path: str, fields: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()) -> Page:
        """A form, and the page that follows."""
        if not self.token:
            await self.get("/jobs")
        pairs = [*(fields.items() if isinstance(fields, Mapping) else fields), ("form_token", self.token)]
        answer = await self.client.post(
            f"/dashboard{path}",
            content=urlencode(pairs),
            headers={
                **self.key,
                "Content-Type": "application/x-www-form-urlencoded",
                "Sec-Fetch-Site": "same-origin",
            },
            follow_redirects=True,
        )
        return self._read(answer)

    @asynccontextmanager
    async def with_key(self, *scopes: str, **options: Any) -> AsyncIterator[Person]:
        """Someone else, with a key of these scopes."""
        created = await self.app.create_key("somebody", scopes, **options)
        self.gate.inner.state.keyring.stale()  # type: ignore[attr-defined]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.gate), base_url=HERE) as client:
            yield Person(self.app, self.gate, client, self.staged, {"X-API-Key": created.text})

    async def trail(self) -> list[AuditRecord]:
        """Changes that were made in the dashboard, and not by the app that staged it, newest first."""
        return [entry for entry in await self.app.audit_trail() if entry.via == "dashboard"]

    def _read(self, answer: httpx.Response) -> Page:
        if found := _TOKEN.search(answer.text):
            self.token = found[1]
        return Page(answer.status_code, answer.text, str(answer.url), answer.headers)


@asynccontextmanager
async def person_at(app: Backstay, staged: Staged) -> AsyncIterator[Person]:
    """`app` is open."""
    gate = assemble(app, hosts=())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url=HERE) as client:
        yield Person(app, gate, client, staged)


@pytest.fixture(scope="session")
def staged_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Staged]:
    """Filled once; every test has a copy."""
    folder = tmp_path_factory.mktemp("staged")

    async def filled() -> Staged:
        async with make_app(f"sqlite:///{folder}/jobs.db", artifacts=f"file://{folder}/files") as app:
            return await fill(app)

    return folder, asyncio.run(filled())


@pytest.fixture
async def person(staged_folder: tuple[Path, Staged], tmp_path: Path) -> AsyncIterator[Person]:
    folder, staged = staged_folder
    shutil.copy(folder / "jobs.db", tmp_path / "jobs.db")
    shutil.copytree(folder / "files", tmp_path / "files")
    app = make_app(f"sqlite:///{tmp_path}/jobs.db", artifacts=f"file://{tmp_path}/files")
    async with app, person_at(app, staged) as found:
        yield found
