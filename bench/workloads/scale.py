"""What a store costs that holds much of everything, compared with a small one.

`scripts/bench scale [--stores sqlite,postgres] [--only verbs,pages] [--share 1.0]`: 1,000,000 pending jobs over 1,000
types, each with a concurrency key of its own, 100,000 schedules, 10,000 workers, and the counters of an hour:

- verbs: claims, submits, maintenance, stats and doctor, at an app in this process;
- pages: each page of the dashboard and the lists of the HTTP API, from a real `backstay serve`;
- live: what open pages of the dashboard cost that server while jobs come in;
- commands: lists on the command line;
- idle: a worker with 200 types and nothing to do.

Each figure is the median of some calls, of which the first is left out, and the CPU time of a call in our process and
in the database server, which other work on the machine changes less. The size of an answer is in rows, lines or bytes:
a call is marked if it grows by more than its answer does. Prints a table and writes bench/results/scale.json.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sized
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from backstay import Backstay
from backstay.clock import MICROS, SystemClock
from backstay.core.records import ClaimRequest
from backstay.core.stats import Stats
from backstay.engines import open_url
from backstay.testing.conformance.factories import a_worker, new_job
from backstay.worker.maintenance import Scheduler, Sweeper

from bench.harness import machine, places
from bench.harness.processes import (
    BENCH,
    ROOT,
    check_alive,
    cpu_of_server,
    cpu_percent,
    cpu_seconds,
    resident_megabytes,
    worker_process,
)
from bench.harness.stores import execute
from bench.harness.table import aligned
from bench.workloads import scale_store
from bench.workloads.scale_store import IDLE_QUEUE, LARGE, QUEUES, SMALL, Size

FIGURES = BENCH / "results" / "scale.json"
SECTIONS = ("verbs", "pages", "live", "commands", "idle")
TRIES = 9
START_SECONDS = 60.0
APP = "--app=bench.workloads.scale_store:app"
BACKSTAY = (sys.executable, "-m", "backstay")
PAGES = (
    "", "/jobs", "/jobs?q=status:pending", "/jobs/{job}", "/trees/{job}", "/queues", "/schedules", "/workers", "/dead",
    "/subjects", "/trees", "/submit", "/keys", "/audit",
)  # fmt: skip
LISTS = ("/jobs?limit=50", "/jobs/{job}/explain", "/queues", "/types", "/schedules", "/workers", "/stats", "/metrics")
COMMANDS = ("workers", "schedules", "queues", "stats", "doctor")
PAUSE_SECONDS = 0.05
LIVE_PAGES = 5
LIVE_SECONDS = 10.0
IDLE_TYPES = 200
IDLE_SECONDS = 30.0
GROWS_MS = 5.0  # of CPU; less is noise
GROWS_FACTOR = 2.0

now = SystemClock().now


@dataclass(frozen=True, slots=True)
class Figure:
    ms: float  # median
    cpu_ms: float  # a call, in our process and in the database server
    answer: int

    def grows_faster(self, small: Figure) -> bool:
        """Whether it costs more than its answer explains."""
        answers = max(1.0, self.answer / max(1, small.answer))
        return self.cpu_ms - small.cpu_ms > GROWS_MS and self.cpu_ms > GROWS_FACTOR * answers * small.cpu_ms


Figures = dict[str, Figure]


class Meter:
    """Measures calls, with the CPU time of a database server if there is one."""

    def __init__(self, server: int | None) -> None:
        self._server = server
        self._counting = 0.0

    def cpu_of_server(self) -> float:
        return 0.0 if self._server is None else cpu_of_server(self._server)

    def cpu(self) -> float:
        """CPU seconds of our process and the server's. What it takes to add them up is not counted."""
        began = time.process_time()
        server = self.cpu_of_server()
        self._counting += time.process_time() - began
        return time.process_time() - self._counting + server

    async def call(self, name: str, call: Callable[[], Awaitable[Any]], found: Figures) -> None:
        await call()
        times = []
        before = self.cpu()
        for _ in range(TRIES):
            began = time.perf_counter()
            answer = await call()
            times.append(time.perf_counter() - began)
        used = self.cpu() - before
        add(found, name, Figure(1000 * median(times), 1000 * used / TRIES, _size(answer)))

    def get(self, connection: http.client.HTTPConnection, pid: int, path: str, found: Figures) -> None:
        body = _get(connection, path)
        times = []
        before = cpu_seconds(pid) + self.cpu_of_server()
        for _ in range(TRIES):
            time.sleep(PAUSE_SECONDS)
            began = time.perf_counter()
            body = _get(connection, path)
            times.append(time.perf_counter() - began)
        used = cpu_seconds(pid) + self.cpu_of_server() - before
        name = re.sub(r"[0-9a-f-]{36}", "{job}", path)
        add(found, name, Figure(1000 * median(times), 1000 * used / TRIES, len(body)))

    def command(self, name: str, environment: dict[str, str], found: Figures) -> None:
        times, used, lines = [], 0.0, 0
        for _ in range(3):
            before, began = _cpu_of_children(), time.perf_counter()
            before_server = self.cpu_of_server()
            done = subprocess.run(
                [*BACKSTAY, APP, name], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            times.append(time.perf_counter() - began)
            used += _cpu_of_children() - before + self.cpu_of_server() - before_server
            lines = len(done.stdout.splitlines())
            assert done.returncode in (0, 1), done.stderr
        add(found, f"backstay {name}", Figure(1000 * median(times), 1000 * used / 3, lines))


def add(found: Figures, name: str, figure: Figure) -> None:
    found[name] = figure
    say(f"  {name:32} {figure.ms:10.2f} ms {figure.cpu_ms:10.2f} ms of CPU {figure.answer:12,}")


def _size(answer: object) -> int:
    if isinstance(answer, Stats):
        return len(answer.by_type) + len(answer.by_minute)
    return len(answer) if isinstance(answer, Sized) else 1


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, (path, answer.status, body[:300])
    return body


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# What is measured


def request(types: list[str], queues: tuple[str, ...], limit: int, token: int) -> ClaimRequest:
    return ClaimRequest(
        worker_id="bench",
        worker_version="1",
        queues=queues,
        slots=dict.fromkeys(types, limit),
        limit=limit,
        lease_micros=3600 * MICROS,
        token=f"token-{token}",
    )


async def verbs(meter: Meter, url: str, size: Size, found: Figures) -> None:
    async with scale_store.app_at(url, size.types) as app:
        for name, call in _calls(app, size).items():
            await meter.call(name, call, found)


def _calls(app: Backstay, size: Size) -> dict[str, Callable[[], Awaitable[Any]]]:
    store, types, tokens, ids = app.store, size.type_names, count(), count()
    sweeper = Sweeper(store, SystemClock(), worker_id="bench", lease_seconds=60, sweep_seconds=1)
    scheduler = Scheduler(store, SystemClock(), look_seconds=1)

    def claim(of: list[str], queues: tuple[str, ...], limit: int) -> Callable[[], Awaitable[Any]]:
        return lambda: store.claim(request(of, queues, limit, next(tokens)), now())

    def submit(number: int) -> Callable[[], Awaitable[Any]]:
        async def call() -> None:
            jobs = [
                new_job(job_type=types[0], queue=QUEUES[0], concurrency_key=f"new-{next(ids)}") for _ in range(number)
            ]
            await store.insert(jobs, now())

        return call

    def look_round() -> Awaitable[Any]:
        sweeper._look_at = sweeper._look_here_at = 0.0  # which is usually rarer than a sweep
        return sweeper.sweep_once()

    async def beat() -> None:
        await store.beat(a_worker("bench", started_at=now(), heartbeat_at=now()))

    async def pause() -> None:
        await app.pause_queue(QUEUES[0])
        await app.resume_queue(QUEUES[0])

    return {
        "claim 1, one type": claim(types[:1], QUEUES[:1], 1),
        "claim 1, all types": claim(types, QUEUES, 1),
        "claim 20, all types": claim(types, QUEUES, 20),
        "claim, nothing there": claim(types, (IDLE_QUEUE,), 20),
        "submit 1": submit(1),
        "submit 100": submit(100),
        "promote": lambda: store.promote(now(), 100),
        "sweep": sweeper.sweep_once,
        "sweep, look at workers": look_round,
        "check schedules": scheduler.look,
        "decide ticks": scheduler._decide,
        "beat": beat,
        "counts": store.counts,
        "depths": store.depths,
        "stats": app.stats,
        "queues": app.queues,
        "pause and resume a queue": pause,
        "doctor": app.check_up,
    }


@contextmanager
def started(command: tuple[str, ...], url: str, types: int, log: Path, ready: str) -> Iterator[tuple[int, str]]:
    """A process of ours; yields its pid and what `ready` found in its log."""
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    with worker_process(command, log, {"BACKSTAY_URL": url, "SCALE_TYPES": str(types), **path}) as process:
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(ready, log.read_text())) is None:
            check_alive(process)
            assert time.monotonic() < deadline, f"{command} does not start"
            time.sleep(0.02)
        yield process.pid, found[1]
    log.unlink()


@contextmanager
def _server(url: str, size: Size, folder: Path) -> Iterator[tuple[int, str]]:
    command = (*BACKSTAY, "serve", "--port=0", "--rate=1000000", "--log-level=warning", APP)
    with started(command, url, size.types, folder / "server.log", r"API +http://(\S+)\n") as running:
        yield running


def pages(meter: Meter, url: str, size: Size, folder: Path, job_id: str, found: Figures) -> None:
    with _server(url, size, folder) as (pid, address), closing(http.client.HTTPConnection(address)) as connection:
        for path in (*(f"/dashboard{each}" for each in PAGES), *LISTS):
            meter.get(connection, pid, path.format(job=job_id), found)


def live(meter: Meter, url: str, size: Size, folder: Path, found: Figures) -> None:
    """CPU time of the server per second, with open pages, while ten jobs a second come in."""
    with _server(url, size, folder) as (pid, address):
        open_pages = [http.client.HTTPConnection(address) for _ in range(LIVE_PAGES)]
        for connection in open_pages:
            connection.request("GET", "/dashboard/live?topic=all", headers={"Accept": "text/event-stream"})
            assert connection.getresponse().status == 200
        before = cpu_seconds(pid)
        asyncio.run(submit_for(url, LIVE_SECONDS, 0.1))
        used = (cpu_seconds(pid) - before) / LIVE_SECONDS
        for connection in open_pages:
            connection.close()
    add(found, "live updates, a second", Figure(1000.0, 1000 * used, 1))


async def submit_for(url: str, seconds: float, pause: float) -> list[float]:
    store = open_url(url)
    await store.open()
    times: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        await store.insert([new_job(job_type="elsewhere", queue="elsewhere")], now())
        times.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(pause)
    await store.close()
    return times


def commands(meter: Meter, url: str, size: Size, found: Figures) -> None:
    environment = {"BACKSTAY_URL": url, "SCALE_TYPES": str(size.types), "COLUMNS": "120"}
    for name in COMMANDS:
        meter.command(name, environment, found)


def idle(meter: Meter, url: str, folder: Path, found: Figures) -> None:
    """CPU time of a worker per second. It has no jobs, and sees all others."""
    command = (*BACKSTAY, "worker", f"--queues={IDLE_QUEUE}", APP)
    with started(command, url, IDLE_TYPES, folder / "worker.log", r"(worker \S+ started)") as (pid, _):
        time.sleep(10)  # retention has had its first look
        before, began = meter.cpu_of_server(), time.monotonic()
        percent = cpu_percent(pid, IDLE_SECONDS)
        server = 100 * (meter.cpu_of_server() - before) / (time.monotonic() - began)
        memory = resident_megabytes(pid)
    add(found, f"idle worker, {IDLE_TYPES} types, a second", Figure(1000.0, 10 * percent, 1))
    say(f"  {percent:.2f} % of a core, {server:.2f} % in the database server, {memory:.1f} MB")


# The run


@contextmanager
def fresh_store(place: places.Place, folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """The URL of an empty store, and a folder."""
    inside = folder / name
    inside.mkdir()
    option = next(iter(place.fresh(name)), None)
    yield option.removeprefix("--url=") if option else f"sqlite:///{inside / 'jobs.db'}", inside
    shutil.rmtree(inside)


def measure(place: places.Place, folder: Path, name: str, size: Size, only: list[str]) -> Figures:
    found: Figures = {}
    meter = Meter(place.server_pid)
    with fresh_store(place, folder, name) as (url, inside):
        began = time.perf_counter()
        job_id = asyncio.run(scale_store.fill(url, size))
        if place.server_pid is not None:
            execute(url, "VACUUM (ANALYZE)")  # as autovacuum would have done
        say(f"{place.store}, {name}: filled in {time.perf_counter() - began:.0f} s")
        if "pages" in only:  # first: the verbs claim the job
            pages(meter, url, size, inside, job_id, found)
        if "live" in only:
            live(meter, url, size, inside, found)
        if "commands" in only:
            commands(meter, url, size, found)
        if "idle" in only:
            idle(meter, url, inside, found)
        if "verbs" in only:
            asyncio.run(verbs(meter, url, size, found))
    return found


def table(small: Figures, large: Figures) -> str:
    rows = [("what", "small ms", "large ms", "÷", "small CPU", "large CPU", "÷", "answer ÷", "")]
    for name, before in small.items():
        after = large[name]
        rows.append(
            (
                name,
                f"{before.ms:,.1f}",
                f"{after.ms:,.1f}",
                f"{after.ms / before.ms:,.1f}",
                f"{before.cpu_ms:,.1f}",
                f"{after.cpu_ms:,.1f}",
                f"{after.cpu_ms / max(0.001, before.cpu_ms):,.1f}",
                f"{after.answer / max(1, before.answer):,.1f}",
                "grows faster than its answer" if after.grows_faster(before) else "",
            )
        )
    return aligned(rows, tuple(range(1, 8)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default="sqlite,postgres")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"some of {', '.join(SECTIONS)}")
    parser.add_argument("--share", type=float, default=1.0, help="of the large store's jobs, schedules and workers")
    parser.add_argument("--dir", type=Path, default=BENCH / "runs", help="on a real disk")
    parser.add_argument("--out", type=Path, default=FIGURES)
    options = parser.parse_args()
    only = options.only.split(",")
    options.dir.mkdir(parents=True, exist_ok=True)
    large = replace(
        LARGE,
        jobs=round(LARGE.jobs * options.share),
        schedules=round(LARGE.schedules * options.share),
        workers=round(LARGE.workers * options.share),
    )
    before = os.getloadavg()
    told: dict[str, Any] = {}
    for store in options.stores.split(","):
        with tempfile.TemporaryDirectory(dir=options.dir) as name, places.of(store, Path(name)) as place:
            folder = Path(name)
            found = {
                label: measure(place, folder, label, size, only) for label, size in (("small", SMALL), ("large", large))
            }
            print(f"{store}\n{table(found['small'], found['large'])}\n", flush=True)
            told[store] = {
                **place.describe(),
                **{label: {each: asdict(figure) for each, figure in found[label].items()} for label in found},
            }
    document = {
        "command": " ".join(["scripts/bench", "scale", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load_average": {"before": before, "after": os.getloadavg()},
        "machine": machine.describe(options.dir),
        "sizes": {"small": asdict(SMALL), "large": asdict(large)},
        "stores": told,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
