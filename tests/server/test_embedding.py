"""Backstay inside a service of a user's own: mounted below a prefix, with a worker in its lifespan."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

import backstay.server
from backstay import Backstay
from backstay.errors import ConfigurationError
from tests.server.gated import HERE, listening, sample_app
from tests.support.eventually import eventually

SERVICE = Path(__file__).with_name("embedding_service.py")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error::RuntimeWarning", str(SERVICE)],
        env={**os.environ, "BACKSTAY_URL": f"sqlite:///{tmp_path}/jobs.db"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        yield output.readline().strip(), process
        process.kill()
        process.wait()


def test_a_service_with_a_worker_inside_runs_jobs_shows_them_and_stops(
    service: tuple[str, subprocess.Popen[str]],
) -> None:
    address, process = service
    with httpx.Client(base_url=address, timeout=60) as client:
        job_id = client.post("/songs", json={"title": "Tango"}).json()["job"]
        with client.stream("GET", f"/backstay/jobs/{job_id}/stream") as stream:
            assert "completed" in "".join(stream.iter_text())
        job = client.get(f"/backstay/jobs/{job_id}").json()
        assert (job["status"], job["result"]) == ("completed", {"analysed": "Tango"})
        made = client.post("/backstay/jobs/later", json={"payload": {"title": "x"}, "delay": 3600})
        assert made.headers["Location"] == f"/backstay/jobs/{made.json()['job_id']}"
        with client.stream("GET", f"{made.headers['Location']}/stream") as stream:
            parts = stream.iter_text()
            assert next(parts)
            process.send_signal(signal.SIGTERM)
            "".join(parts)  # ends although nothing has become of the job
    assert process.wait(30) in (0, -signal.SIGTERM)  # uvicorn ends as the signal would have ended it


async def test_links_cookies_and_the_document_know_the_prefix(tmp_path: Path) -> None:
    app = sample_app(f"sqlite:///{tmp_path}/jobs.db")
    around = FastAPI(lifespan=backstay.server.lifespan(app))
    around.mount("/inner/backstay", backstay.server.asgi(app))
    async with listening(around_server(around)) as address, httpx.AsyncClient(base_url=address) as client:
        assert (await client.get("/inner/backstay/healthz")).status_code == 200
        assert (await client.get("/inner/backstay/nowhere")).json()["instance"] == "/inner/backstay/nowhere"
        document = (await client.get("/inner/backstay/openapi.json")).json()
        assert document["servers"] == [{"url": "/inner/backstay"}]
        page = await client.get("/inner/backstay/dashboard/queues")
        assert page.status_code == 200
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
        assert len(links) > 5 and all(link.startswith("/inner/backstay/dashboard") for link in links)
        assert "Path=/inner/backstay/dashboard" in page.headers["set-cookie"]
        await app.create_key("tester", ["read"])
        around.routes[-1].app.inner.state.keyring.stale()  # type: ignore[attr-defined]
        sent_away = await client.get("/inner/backstay/dashboard/queues")
        assert sent_away.headers["location"].startswith("/inner/backstay/dashboard/login?next=%2Finner%2Fbackstay%2F")
        assert (await client.get(sent_away.headers["location"])).status_code == 200


def around_server(around: FastAPI) -> FastAPI:
    around.end_streams = lambda: None  # type: ignore[attr-defined]  # it has none of its own
    return around


async def test_without_a_worker_the_app_is_open_and_its_upkeep_is_done(tmp_path: Path) -> None:
    app = sample_app(f"sqlite:///{tmp_path}/jobs.db")
    async with backstay.server.lifespan(app)(None):
        job = await app.submit("anything", 1, delay=0.01)

        async def is_due() -> bool:
            return (await app.get(job.job_id)).status == "pending"

        await eventually(is_due)
    with pytest.raises(backstay.NotOpen):
        await app.get(job.job_id)


async def test_outside_of_a_lifespan_requests_are_told_that_the_app_is_not_open(tmp_path: Path) -> None:
    gate = backstay.server.asgi(Backstay(f"sqlite:///{tmp_path}/jobs.db"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url=HERE) as client:
        answer = await client.get("/jobs")
        assert answer.status_code == 503
        assert "async with app" in answer.json()["detail"]
        assert (await client.get("/healthz")).status_code == 200


def test_without_its_packages_the_server_says_which_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    for name in [name for name in sys.modules if name.startswith(("backstay.server.", "backstay.dashboard"))]:
        monkeypatch.delitem(sys.modules, name)
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[server\]' in a checkout"):
        backstay.server.asgi(app)
