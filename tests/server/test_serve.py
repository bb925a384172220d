"""backstay serve, as the process that people start"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from backstay import Backstay
from backstay.cli import serve
from backstay.cli.main import main
from backstay.errors import ConfigurationError
from backstay.server import listen

APP = f"{Path(__file__).parents[1] / 'cli' / 'cli_app.py'}:app"
CANARY = "bs_canary_9c1d"


class Process:
    """A serving process; a test waits for what it says."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BACKSTAY_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "backstay", "serve", "--port", "0", *arguments],
            cwd=folder,
            env={**inherited, "BACKSTAY_URL": f"sqlite:///{folder}/jobs.db", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._unheard: SimpleQueue[str | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self._unheard.put(line)
        self._unheard.put(None)

    def hear(self, text: str) -> str:
        while (line := self._unheard.get(timeout=60)) is not None:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"it ended without saying {text!r}:\n{''.join(self.lines)}")

    @property
    def address(self) -> str:
        found = re.search(r"http://[\d.:]+", self.hear("API "))
        assert found is not None
        return found[0]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join()
        while (line := self._unheard.get()) is not None:
            self.lines.append(line)
        return code


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(*arguments: str, **environment: str) -> Process:
        started.append(Process(tmp_path, *arguments, **environment))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait()
        each._reader.join()


def test_without_a_key_it_does_not_listen_where_others_could_ask(start: Start) -> None:
    for host in ("0.0.0.0", "::"):
        process = start("--host", host)
        assert process.process.wait(60) == 2
        said = process.hear("backstay: ")
        assert "is reachable from other machines" in said and "backstay keys create NAME --scope admin" in said


async def test_a_key_that_lives_opens_other_addresses_and_one_that_is_over_does_not(tmp_path: Path) -> None:
    async with Backstay(f"sqlite:///{tmp_path}/jobs.db") as app:
        with listen.bind("0.0.0.0", 0) as everywhere, listen.bind("127.0.0.1", 0) as here:
            await serve._check_who_may_ask(app, here)
            with pytest.raises(ConfigurationError, match="no API keys yet"):
                await serve._check_who_may_ask(app, everywhere)
            created = await app.create_key("deploys", ["admin"])
            await serve._check_who_may_ask(app, everywhere)
            await app.revoke_key(created.key.key_id)
            with pytest.raises(ConfigurationError, match="no API keys yet"):
                await serve._check_who_may_ask(app, everywhere)


def test_it_serves_works_and_stops_in_good_order(start: Start, tmp_path: Path) -> None:
    process = start("--workers", "2", "--app", APP)
    address = process.address
    assert process.hear("Dashboard").split() == ["Dashboard", f"{address}/dashboard"]
    fifo = tmp_path / "gate"
    os.mkfifo(fifo)
    with httpx.Client(base_url=address, timeout=60) as client:
        quick = client.post("/jobs/add", json={"payload": {"a": 2, "b": 3}}).json()["job_id"]
        with client.stream("GET", f"/jobs/{quick}/stream") as stream:
            events = "".join(stream.iter_text())
        assert "completed" in events
        assert client.get(f"/jobs/{quick}").json()["result"] == {"sum": 5}
        assert len(client.get("/workers").json()["items"]) == 2
        assert client.get("/dashboard").status_code == 200
        running = client.post("/jobs/until_told", json={"payload": {"fifo": str(fifo)}}).json()["job_id"]
        process.hear("begun")
        assert listening_sockets(process.process.pid) == 1  # workers open none of their own
        with client.stream("GET", f"/jobs/{running}/stream") as stream:
            parts = stream.iter_text()
            assert next(parts)
            process.process.send_signal(signal.SIGTERM)
            process.hear("SIGTERM")
            assert "".join(parts) is not None  # it ends, and not by a broken connection
        fifo.write_bytes(b"x")
    assert process.end() == 0, "".join(process.lines)

    async def outcome() -> str:
        async with Backstay(f"sqlite:///{tmp_path}/jobs.db") as app:
            return (await app.get(running)).status

    assert asyncio.run(outcome()) == "completed"


def test_nothing_that_is_secret_is_said(start: Start, tmp_path: Path) -> None:
    async def prepare() -> str:
        async with Backstay(f"sqlite:///{tmp_path}/jobs.db") as app:
            return (await app.create_key("tester", ["admin"])).text

    key = asyncio.run(prepare())
    process = start("--workers", "1", "--app", APP, "--log-format", "json", "--log-level", "debug", SECRET=CANARY)
    address = process.address
    with httpx.Client(base_url=address, timeout=60, headers={"X-API-Key": key, "X-Other": CANARY}) as client:
        client.post("/jobs/fail", json={"payload": {"a": 1}, "subject": CANARY, "tags": [CANARY]})
        client.post("/jobs/add", json={"payload": {"a": CANARY}})
        client.post("/jobs/nothing", json={"payload": CANARY})
        client.get(f"/jobs?subject={CANARY}&{CANARY}=1")
        client.get("/jobs", headers={"X-API-Key": f"bs_live_{CANARY}"})
        client.get(f"/jobs?api_key={key}")
        assert CANARY not in client.get("/metrics").text and key not in client.get("/metrics").text
        shown = Path(f"/proc/{process.process.pid}/cmdline").read_text(encoding="utf-8")
    assert process.end() == 0
    said = "".join(process.lines)
    assert CANARY not in said + shown
    assert key.split("_")[3] not in said + shown
    lines = [json.loads(line) for line in process.lines if line.startswith("{")]
    asked = [line for line in lines if line["logger"] == "backstay.access"]
    assert {201, 422, 404, 401, 400} <= {line["status"] for line in asked}
    assert all(line["request_id"] for line in asked)


def test_a_server_whose_store_is_away_waits_for_it_and_keeps_its_password(start: Start) -> None:
    process = start(BACKSTAY_URL=f"postgresql://someone:{CANARY}@127.0.0.1:1/jobs")
    process.hear("waiting for the store")
    assert process.end(signal.SIGINT) == 0
    assert CANARY not in "".join(process.lines)


def test_settings_come_from_options_and_else_from_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = serve._chosen(None, None, None, None, None, None, None)
    assert (chosen.host, chosen.port, chosen.workers, chosen.hosts, chosen.rate) == ("127.0.0.1", 8000, 0, (), 1000)
    for name, value in {"HOST": "::1", "PORT": "9", "SERVE_WORKERS": "3", "HOSTS": "a, b", "RATE": "5"}.items():
        monkeypatch.setenv(f"BACKSTAY_{name}", value)
    monkeypatch.setenv("BACKSTAY_PROXIES", "10.0.0.7, ::1")
    chosen = serve._chosen(None, None, None, None, None, None, None)
    assert chosen.proxies == ("10.0.0.7", "::1")
    assert (chosen.host, chosen.port, chosen.workers, chosen.hosts, chosen.rate) == ("::1", 9, 3, ("a", "b"), 5)
    chosen = serve._chosen("127.0.0.2", 0, 0, "c", ["::1,10.0.0.0/8", "fe80::1%eth0"], 7, timedelta(seconds=2))
    assert (chosen.host, chosen.port, chosen.workers, chosen.hosts, chosen.rate) == ("127.0.0.2", 0, 0, ("c",), 7)
    assert chosen.grace_seconds == 2
    assert chosen.proxies == ("::1", "10.0.0.0/8", "fe80::1%eth0")
    for name, value in {"PORT": "70000", "SERVE_WORKERS": "-1", "RATE": "0", "PROXIES": "nginx"}.items():
        with monkeypatch.context() as wrong:
            wrong.setenv(f"BACKSTAY_{name}", value)
            with pytest.raises(ConfigurationError, match=f"BACKSTAY_{name}"):
                serve._chosen(None, None, None, None, None, None, None)


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], logging_restored: None
) -> Callable[..., str]:
    for name in [name for name in os.environ if name.startswith("BACKSTAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        assert main(["serve", *arguments]) == 2
        return capsys.readouterr().err

    return run


def test_what_cannot_be_served_is_said_in_a_sentence(cli: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "workers need handlers" in cli("--workers", "1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose others with --host and --port" in cli("--port", str(taken.getsockname()[1]))
    assert "cannot listen on nowhere.invalid" in cli("--host", "nowhere.invalid", "--port", "0")

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name="uvicorn")

    monkeypatch.setattr(serve, "importlib", SimpleNamespace(import_module=missing))
    assert "run pip install '.[server]' in a checkout" in cli()


@pytest.mark.parametrize(
    ("package", "way"),
    [
        *((each, "main(['serve', '--port', '0'])") for each in ("fastapi", "jinja2", "prometheus_client", "uvicorn")),
        *((each, "asgi(Backstay('sqlite:///jobs.db'))") for each in ("fastapi", "jinja2", "prometheus_client")),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_what_brings_it(tmp_path: Path, package: str, way: str) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = None
from backstay import ConfigurationError, Backstay
from backstay.cli.main import main
from backstay.server import asgi
try:
    sys.exit({way})
except ConfigurationError as error:
    sys.exit(str(error))
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert f"the server needs more packages ({package}): run pip install '.[server]' in a checkout" in ended.stderr
    assert "once it is published: pip install 'backstay[server]'" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        (("0.0.0.0", 8000), "0.0.0.0:8000 (every address of this machine)"),
        (("::", 8000, 0, 0), "[::]:8000 (every address of this machine)"),
        (("192.0.2.7", 80), "192.0.2.7:80"),
    ],
)
def test_where_others_reach_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bound: Any, said: str
) -> None:
    heard: list[Callable[[], None]] = []
    monkeypatch.setattr(listen, "Server", lambda gate, started: heard.append(started))
    chosen = serve._chosen(bound[0], bound[1], 0, None, None, None, None)
    app, fake = Backstay("sqlite:///jobs.db"), SimpleNamespace(getsockname=lambda: bound)
    serve._server(app, chosen, fake)  # type: ignore[arg-type]
    heard[0]()
    assert f"Address    {said}\n" in capsys.readouterr().out


def listening_sockets(pid: int) -> int:
    held = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    found = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            found += fields[3] == "0A" and f"socket:[{fields[9]}]" in held
    return found


def test_too_few_file_descriptors_are_said_and_the_server_goes_on(start: Start) -> None:
    process = start()
    address = process.address
    pid = process.process.pid
    allowed = len(os.listdir(f"/proc/{pid}/fd")) + 8
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (allowed, allowed))
    host, _, port = address.removeprefix("http://").partition(":")

    connections = [socket.create_connection((host, int(port)), timeout=30) for _ in range(30)]
    said = process.hear("new connections cannot be accepted")
    for each in connections:
        each.close()

    assert f"its limit is {allowed}" in said
    assert "ulimit -n" in said
    ask(address)
    assert process.end() == 0


def ask(address: str) -> None:
    """Until it answers: closed connections are noticed one by one."""
    for _ in range(300):
        try:
            assert httpx.get(f"{address}/healthz", timeout=30).status_code < 500
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("no answer")
