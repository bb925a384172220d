"""What a store with 10,000,000 finished and 1,000,000 pending jobs costs, compared with a nearly empty one.

    scripts/bench large                                  # SQLite and PostgreSQL: 20 GB, half an hour when idle
    scripts/bench large --quick                          # a twentieth of the jobs
    scripts/bench large --stores postgres --only find

- drain: jobs a second, and the CPU time of a job, by claims and completions of 100 at the port; the time of a claim;
- find: the first page of a search by each filter, by one that few jobs match, and by one that none matches; deeper
  pages; get and explain;
- counts: what the overview, `stats`, metrics and `doctor` read;
- pages: every page of the dashboard and the lists of the HTTP API, from a real `backstay serve`.

A call is marked if its CPU time grows by more than its answer does (as in `scale.py`). Prints a table and writes
bench/runs/large.json.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from backstay import Backstay, JobHandle
from backstay.backoff import Backoff
from backstay.clock import MICROS, SystemClock
from backstay.core.lifecycle import Completed, decide
from backstay.core.records import ClaimRequest

from bench.harness import http_server, machine, places
from bench.harness.contenders import Order
from bench.harness.payload import note
from bench.harness.processes import BENCH
from bench.harness.stores import PostgresDatabase, SqliteFile
from bench.workloads import http_store, scale
from bench.workloads.http_store import QUEUES, TYPES
from bench.workloads.scale import Figures, Meter

APP = "bench.workloads.http_store:app"
FINISHED, PENDING = 10_000_000, 1_000_000
QUICK = 20  # a quick run has so many times fewer jobs
SMALL_JOBS = 2_000
SECTIONS = ("find", "counts", "pages", "drain")
DRAINED, BATCH = 20_000, 100
NEEDLES = 20  # jobs that differ from all others: half of them older than all of these, half newer
PAGES = (
    "", "/jobs", "/jobs?q=status:pending", "/jobs?q=status:failed", "/jobs?q=status:completed", "/jobs?q=tag:needle",
    "/jobs/{job}", "/trees/{job}", "/trees", "/queues", "/schedules", "/workers", "/dead", "/subjects", "/submit",
    "/keys", "/audit",
)  # fmt: skip
LISTS = ("/jobs?limit=50", "/jobs/{job}/explain", "/queues", "/types", "/schedules", "/workers", "/stats", "/metrics")
NOBODY = "nowhere"  # no job has this subject, tag, queue …

T = TypeVar("T")

clock = SystemClock()


def main() -> None:
    options = _parse()
    options.dir.mkdir(parents=True, exist_ok=True)
    share = QUICK if options.quick else 1
    sizes = {"small": (SMALL_JOBS, SMALL_JOBS), "large": (options.finished // share, options.pending // share)}
    only = options.only.split(",")
    told: dict[str, Any] = {}
    for store in options.stores.split(","):
        with tempfile.TemporaryDirectory(prefix=".large-", dir=options.dir) as name:
            folder = Path(name)
            folder.chmod(0o755)
            with places.of(store, folder) as place:
                found: dict[str, Figures] = {}
                for label, size in sizes.items():
                    found[label], filled = measure(place, folder, label, size, only)
                    told.setdefault(store, {})[f"{label}, filled"] = filled
                print(f"{store}\n{scale.table(found['small'], found['large'])}\n", flush=True)
                told[store] |= place.describe()
                told[store] |= {
                    label: {each: asdict(figure) for each, figure in figures.items()}
                    for label, figures in found.items()
                }
    document = {
        "command": " ".join(["scripts/bench", "large", *sys.argv[1:]]),
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load_average": os.getloadavg(),
        "machine": machine.describe(options.dir),
        "jobs": {label: {"finished": size[0], "pending": size[1]} for label, size in sizes.items()},
        "stores": told,
    }
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {options.json}")


def measure(
    place: places.Place, folder: Path, label: str, size: tuple[int, int], only: list[str]
) -> tuple[Figures, dict[str, float]]:
    found: Figures = {}
    meter = Meter(place.server_pid)
    store = _fresh(place, folder / label, label)
    began = time.perf_counter()
    needles = asyncio.run(_fill(store, *size))
    filled = {"seconds": time.perf_counter() - began, "bytes": _bytes(store)}
    _say(f"{place.store}, {label}: filled in {filled['seconds']:.0f} s, {filled['bytes'] / 1e9:.2f} GB")
    if "find" in only:
        asyncio.run(_find(meter, store.url, needles, found))
    if "counts" in only:
        asyncio.run(_counts(meter, store.url, found))
    if "pages" in only:
        _pages(meter, store.url, folder / f"{label}.log", needles[0], found)
    if "drain" in only:  # last: it changes the store
        asyncio.run(_drain(meter, store.url, found))
    return found, filled


def _fresh(place: places.Place, folder: Path, name: str) -> SqliteFile | PostgresDatabase:
    folder.mkdir()
    url = next((each.removeprefix("--url=") for each in place.fresh(name)), None)
    order = Order(jobs=0, folder=folder, shared=folder, idle_seconds=0, finished=0, pending=0, retirable=0, url=url)
    return SqliteFile(order) if url is None else PostgresDatabase(order)


async def _fill(store: SqliteFile | PostgresDatabase, finished: int, pending: int) -> list[str]:
    """Fill an empty store; return the ids of the needles."""
    oldest = await _needles(store.url)
    jobs = finished + pending
    shares = {"completed": finished * 0.99 / jobs, "failed": finished * 0.01 / jobs, "pending": pending / jobs}
    await http_store.fill(store, jobs, shares)
    newest = await _needles(store.url)
    if isinstance(store, PostgresDatabase):
        store.execute("VACUUM (ANALYZE)")  # as autovacuum would have done
        store.execute("CHECKPOINT")
    return [job.job_id for job in (*oldest, *newest)]


async def _needles(url: str) -> list[JobHandle]:
    options: dict[str, Any] = {"subject": "needle", "tags": ["needle"], "created_by": "needle", "delay": 30 * 86_400}
    async with http_store.app_at(url) as app:
        return await app.submit_many([(TYPES[0], note(number), options) for number in range(NEEDLES // 2)])


def _bytes(store: SqliteFile | PostgresDatabase) -> int:
    if isinstance(store, PostgresDatabase):
        return store.value("SELECT pg_database_size(current_database())")
    return store.file.stat().st_size


async def _find(meter: Meter, url: str, needles: list[str], found: Figures) -> None:
    async with http_store.app_at(url) as app:
        searches: dict[str, dict[str, Any]] = {
            "all": {},
            **{f"status={status}": {"status": status} for status in _STATES},
            "job_type": {"job_type": TYPES[3]},
            "queue": {"queue": QUEUES[2]},
            "status and type": {"status": "failed", "job_type": TYPES[3]},
            "status and queue": {"status": "pending", "queue": QUEUES[2]},
            "subject, few": {"subject": "needle"},
            "tag, few": {"tag": "needle"},
            "created_by, few": {"created_by": "needle"},
            "worker, none": {"worker": NOBODY},
            "root, none": {"root": needles[0]},
            "content_hash, none": {"content_hash": "0" * 64},
            "queue, none": {"queue": NOBODY},
            "status and tag, none": {"status": "completed", "tag": NOBODY},
            "pending by priority": {"status": "pending", "order": "priority"},
            "pending and type by priority": {"status": "pending", "job_type": TYPES[3], "order": "priority"},
            "all by priority": {"order": "priority"},
            "failed by priority": {"status": "failed", "order": "priority"},
        }
        for name, query in searches.items():
            await meter.call(f"find {name}", _page(app, query), found)
        deep = await app.find(limit=500)
        for _ in range(4):
            deep = await app.find(limit=500, after=deep.next) if deep.next else deep
        await meter.call("find, after 2,000", _page(app, {"after": deep.next}), found)
        await meter.call("get", lambda: app.get(needles[0]), found)
        await meter.call("explain", lambda: app.explain(needles[0]), found)


_STATES = ("pending", "processing", "completed", "failed", "cancelled", "scheduled", "retrying", "waiting")


def _page(app: Backstay, query: dict[str, Any]) -> Callable[[], Awaitable[Any]]:
    return lambda: app.find(limit=50, **query)


async def _counts(meter: Meter, url: str, found: Figures) -> None:
    async with http_store.app_at(url) as app:
        for name, call in {
            "counts": app.store.counts,
            "depths": app.store.depths,
            "stats": app.stats,
            "queues": app.queues,
            "dead letters": app.dead,
            "doctor": app.check_up,
        }.items():
            await meter.call(name, call, found)


def _pages(meter: Meter, url: str, log: Path, job_id: str, found: Figures) -> None:
    with (
        http_server.backstay(APP, url, log) as running,
        closing(http.client.HTTPConnection(running.address.removeprefix("http://"))) as connection,
    ):
        for path in (*(f"/dashboard{each}" for each in PAGES), *LISTS):
            meter.get(connection, running.pid, path.format(job=job_id), found)


async def _drain(meter: Meter, url: str, found: Figures) -> None:
    """Claim and complete at the port, as many as there are, but not more than `DRAINED`."""
    steps: dict[str, list[tuple[float, float]]] = {"claim of 100": [], "completion of 100": []}  # ms, and CPU ms

    async def timed(step: str, call: Awaitable[T]) -> T:
        before, began = meter.cpu(), time.perf_counter()
        answer = await call
        ms = 1_000 * (time.perf_counter() - began)
        steps[step].append((ms, 1_000 * (meter.cpu() - before)))
        return answer

    async with http_store.app_at(url) as app:
        began, jobs = time.perf_counter(), 0
        while jobs < DRAINED:
            token = f"drain-{jobs}"
            request = ClaimRequest(
                worker_id="drain",
                worker_version="1",
                queues=QUEUES,
                slots=dict.fromkeys(TYPES, BATCH),
                limit=BATCH,
                lease_micros=600 * MICROS,
                token=token,
            )
            claimed = await timed("claim of 100", app.store.claim(request, clock.now()))
            if not claimed:
                break
            now, done = clock.now(), Completed('{"seen": 0}')
            ended = [decide(j, done, now=now, backoff=Backoff(), draw=0, token=token, by="drain") for j in claimed]
            await timed("completion of 100", app.store.apply(ended, now))
            jobs += len(claimed)
        ms = 1_000 * (time.perf_counter() - began) / jobs
    scale.add(found, "drain, a job", scale.Figure(ms, sum(cpu for each in steps.values() for _, cpu in each) / jobs, 1))
    for name, times in steps.items():
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            ms, cpu_ms = (sorted(each)[math.ceil(share * len(times)) - 1] for each in zip(*times, strict=True))
            scale.add(found, f"{name}, {label}", scale.Figure(ms, cpu_ms, 1))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench large", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--stores", default="sqlite,postgres")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"some of {', '.join(SECTIONS)}")
    parser.add_argument("--finished", type=int, default=FINISHED)
    parser.add_argument("--pending", type=int, default=PENDING)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the jobs")
    parser.add_argument("--dir", type=Path, default=BENCH / "runs", help="on a real disk")
    parser.add_argument("--json", type=Path, default=BENCH / "runs" / "large.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
