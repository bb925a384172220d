"""The audio service inside a test: its application with a queue and a cache of its own, and songs to send to it."""

from __future__ import annotations

import hashlib
import importlib
import io
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import analysis
import httpx
import pytest
from analysis import songs
from analysis.songs import Song
from analysis.sound import RATE
from scipy.io import wavfile

from backstay import Backstay, JobCancelled, JobFailed

FORM = (("verse", 4), ("chorus", 4))


@cache
def wav(tempo: int = 150, tonic: str = "C", bars: int = 4) -> bytes:
    """A song as a file: some fifteen seconds of it."""
    mono = songs.sing(Song("", tempo, tonic, "major", tuple((kind, bars) for kind, _ in FORM)))
    file = io.BytesIO()
    wavfile.write(file, RATE, (32_767 * mono).astype("int16"))
    return file.getvalue()


def content_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Service:
    def __init__(self, app: Backstay, client: httpx.AsyncClient, jobs: Any) -> None:
        self.app = app
        self.client = client
        self.jobs = jobs

    async def send(self, data: bytes) -> str:
        answer = await self.client.post("/audio", content=data)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["content_hash"])

    async def submit(self, kind: str, **body: Any) -> dict[str, Any]:
        answer = await self.client.post(f"/jobs/{kind}", json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def job(self, job_id: str) -> dict[str, Any]:
        answer = await self.client.get(f"/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def ended(self, job_id: str) -> dict[str, Any]:
        """The job once it has ended, however it did."""
        with suppress(JobFailed, JobCancelled):
            await self.app.result(job_id, timeout=60)
        return await self.job(job_id)


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> tuple[Any, Any]:
    """The modules `analysis.jobs` and `analysis.service`, as a process with this environment has them."""
    monkeypatch.setenv("CACHE_DIR", str(folder))
    monkeypatch.delenv("BACKSTAY_URL", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("jobs", "service"):
        monkeypatch.delitem(sys.modules, f"analysis.{name}", raising=False)
        monkeypatch.delattr(analysis, name, raising=False)
    return importlib.import_module("analysis.jobs"), importlib.import_module("analysis.service")


@asynccontextmanager
async def running(folder: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> AsyncIterator[Service]:
    jobs, module = loaded(folder, monkeypatch, **environment)
    async with module.service.router.lifespan_context(module.service):
        key = await jobs.app.create_key("tests", ["admin"])
        transport = httpx.ASGITransport(module.service)
        headers = {"X-API-Key": key.text}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            yield Service(jobs.app, client, jobs)
