"""Backstay over HTTP: a real `backstay serve` on 127.0.0.1, without keys, on SQLite and on PostgreSQL.

`scripts/bench http [--jobs 1000000] [--rounds 3] [--seconds 4] [--stores sqlite,postgres]` prints two tables
and writes every sample to bench/results/bench-http.json.

- submits a second with one connection and with 32, into an empty store; `limits/http.py`, next to it,
  is uvicorn and one commit;
- reads a second of one job and of a page of 50, in a store with so many jobs;
- the pages of the dashboard in that store: the first request to a server that has just started, and 20 more.

Each sample has a server process of its own, and the client (`harness/http_client.py`) is a third process. How much of a
core it took is in the file: near 1, the client would be what was measured. So is the CPU time that the server's process
took for a request, which other work on the machine changes less than the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.harness import http_server, machine, places
from bench.harness.contenders import Order
from bench.harness.http_client import Asked
from bench.harness.http_server import Server
from bench.harness.payload import note
from bench.harness.processes import BENCH
from bench.harness.stores import PostgresDatabase, SqliteFile
from bench.harness.table import aligned
from bench.workloads import http_store

FIGURES = BENCH / "results" / "bench-http.json"
APP = "bench.workloads.http_store:app"
CONNECTIONS = (1, 32)
PAGES = ("/dashboard", "/dashboard/jobs", "/dashboard/queues")
FURTHER = 20  # requests for a page after the first
PAUSE_SECONDS = 0.1  # between them, so that counts are computed again
COUNTINGS = 5
PAGE_TARGET_MS = 300
BODY = json.dumps({"payload": note(0), "queue": http_store.QUEUES[0]})


@dataclass(frozen=True, slots=True)
class Sample:
    round: int
    store: str
    workload: str
    who: str
    figures: dict[str, Any]


class Bench:
    def __init__(self, place: places.Place, folder: Path, seconds: float) -> None:
        self.samples: list[Sample] = []
        self._place = place
        self._folder = folder
        self._seconds = seconds
        self._samples_made = 0

    def fill(self, jobs: int) -> http_store.Kept:
        self._large = self._fresh("large")
        return asyncio.run(http_store.fill(self._large, jobs))

    def submits(self, number: int, shuffled: random.Random) -> None:
        asked = {"method": "POST", "paths": [f"/jobs/{http_store.TYPES[0]}"], "expects": 201, "body": BODY}
        for connections in CONNECTIONS:
            whom = ["backstay", "limit"]
            shuffled.shuffle(whom)
            for who in whom:
                with self._empty_server(who) as running:
                    found = http_server.rates(running, seconds=self._seconds, connections=connections, **asked)
                self._add(number, f"submit, {_count(connections)}", who, found)

    def reads(self, number: int, kept: http_store.Kept) -> None:
        one = [f"/jobs/{job_id}" for job_id in kept.job_ids]
        for connections in CONNECTIONS:
            for name, paths in (("GET /jobs/{id}", one), ("GET /jobs?limit=50", ["/jobs?limit=50"])):
                with self._server(self._large.url) as running:
                    found = http_server.rates(
                        running, seconds=self._seconds, connections=connections, method="GET", paths=paths, expects=200
                    )
                self._add(number, f"{name}, {_count(connections)}", "backstay", found)

    def pages(self, number: int, kept: http_store.Kept) -> None:
        for page in PAGES:
            marks = [f"{kept.counts['completed']:,}"] if page == PAGES[0] else []
            with self._server(self._large.url) as running:
                asked = Asked(
                    running.address,
                    "GET",
                    [page],
                    200,
                    requests=1 + FURTHER,
                    pause_seconds=PAUSE_SECONDS,
                    marks=marks,
                )
                found = http_server.ask(asked)
            first, *rest = found["times_ms"]
            figures = {"first_ms": first, "p50_ms": median(rest), "p95_ms": sorted(rest)[int(0.95 * (FURTHER - 1))]}
            shown = {"counts_shown_from_request": found["marked"]} if marks else {}
            self._add(number, page, "backstay", figures | shown)

    def counting(self, number: int) -> None:
        """Measure the counts that a page would wait for if it waited, directly at the store."""
        self._add(number, "store.counts, store.depths", "backstay", asyncio.run(_counting(self._large.url)))

    def _add(self, number: int, workload: str, who: str, figures: dict[str, Any]) -> None:
        rounded = {name: None if value is None else round(value, 2) for name, value in figures.items()}
        self.samples.append(Sample(number, self._place.store, workload, who, rounded))
        print(f"round {number}  {self._place.store:9} {workload:36} {who:9} {rounded}", file=sys.stderr, flush=True)

    def _fresh(self, name: str) -> SqliteFile | PostgresDatabase:
        folder = self._folder / name
        folder.mkdir()
        if self._place.store == "sqlite":
            return SqliteFile(_order(folder, None))
        [option] = self._place.fresh(name)
        return PostgresDatabase(_order(folder, option.removeprefix("--url=")))

    @contextmanager
    def _empty_server(self, who: str) -> Iterator[Server]:
        store = self._fresh("sample")
        try:
            with self._server(store.url) if who == "backstay" else http_server.bare(store, self._log()) as running:
                yield running
        finally:
            shutil.rmtree(self._folder / "sample")

    @contextmanager
    def _server(self, url: str) -> Iterator[Server]:
        log = self._log()
        with http_server.backstay(APP, url, log) as running:
            yield running
        log.unlink()

    def _log(self) -> Path:
        self._samples_made += 1
        return self._folder / f"server-{self._samples_made}.log"


def _order(folder: Path, url: str | None) -> Order:
    return Order(jobs=0, folder=folder, shared=folder, idle_seconds=0, finished=0, pending=0, retirable=0, url=url)


def _count(connections: int) -> str:
    return f"{connections} connection{'s' if connections > 1 else ''}"


async def _counting(url: str) -> dict[str, float]:
    async with http_store.app_at(url) as app:
        counts, depths = [], []
        for _ in range(COUNTINGS):
            counts.append(await _milliseconds(app.store.counts()))
            depths.append(await _milliseconds(app.store.depths()))
    return {"counts_ms": median(counts), "depths_ms": median(depths)}


async def _milliseconds(asked: Any) -> float:
    start = time.perf_counter()
    await asked
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="in the store that is read from")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each sample of a rate")
    parser.add_argument("--stores", default="sqlite,postgres")
    parser.add_argument("--dir", type=Path, default=BENCH / "runs", help="on a real disk")
    parser.add_argument("--out", type=Path, default=FIGURES)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    if machine.is_in_memory(options.dir):
        sys.exit(f"{options.dir} is memory, where a commit costs nothing: name a folder on a disk with --dir")
    before = os.getloadavg()
    samples: list[Sample] = []
    described: dict[str, Any] = {}
    for store in options.stores.split(","):
        with tempfile.TemporaryDirectory(dir=options.dir) as name, places.of(store, Path(name)) as place:
            bench = Bench(place, Path(name), options.seconds)
            kept = bench.fill(options.jobs)
            shuffled = random.Random(options.seed)
            for number in range(1, options.rounds + 1):
                bench.pages(number, kept)
                bench.counting(number)
                bench.submits(number, shuffled)
                bench.reads(number, kept)
            samples += bench.samples
            described |= place.describe() | {f"{store}_jobs": kept.counts}
    summary = summarised(samples)
    print(tables(summary))
    told = {
        "command": " ".join(["scripts/bench", "http", *sys.argv[1:]]),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "client": "asyncio protocol by hand on uvloop, in a process of its own",
        "load_average": {"before": before, "after": os.getloadavg()},
        "machine": machine.describe(options.dir) | described,
        "rounds": options.rounds,
        "medians": summary,
        "samples": [asdict(sample) for sample in samples],
    }
    options.out.write_text(json.dumps(told, indent=1) + "\n")


def _medians(samples: list[Sample]) -> dict[tuple[str, str, str], dict[str, float]]:
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for sample in samples:
        figures = found.setdefault((sample.store, sample.workload, sample.who), {})
        for name, value in sample.figures.items():
            if value is not None:
                figures.setdefault(name, []).append(value)
    return {key: {name: median(values) for name, values in each.items()} for key, each in found.items()}


def _ratio(samples: list[Sample], store: str, workload: str) -> float | None:
    """Return Backstay ÷ the limit, round by round, then the median."""
    rates = {
        (sample.round, sample.who): sample.figures["rate"]
        for sample in samples
        if (sample.store, sample.workload) == (store, workload) and "rate" in sample.figures
    }
    ratios = [
        rate / rates[number, "limit"]
        for (number, who), rate in rates.items()
        if (number, "limit") in rates and who == "backstay"
    ]
    return median(ratios) if ratios else None


def summarised(samples: list[Sample]) -> list[dict[str, Any]]:
    rows = []
    for (store, workload, who), figures in _medians(samples).items():
        ratio = _ratio(samples, store, workload) if who == "backstay" else None
        rounded = {name: round(value, 2) for name, value in figures.items()}
        row = {"store": store, "workload": workload, "who": who, **rounded}
        rows.append(row if ratio is None else row | {"ratio_to_limit": round(ratio, 2)})
    return rows


def tables(summary: list[dict[str, Any]]) -> str:
    rates = [("store", "workload", "who", "per second", "p50 ms", "p95 ms", "÷ limit", "CPU ms", "client's core")]
    pages = [("store", "page", "first ms", "p50 ms", "p95 ms", f"under {PAGE_TARGET_MS} ms")]
    counting = [("store", "counts ms", "depths ms")]
    for row in summary:
        said = {name: f"{value:,.1f}" for name, value in row.items() if isinstance(value, float)}
        if "rate" in row:
            ratio = f"{row['ratio_to_limit']:.2f}" if "ratio_to_limit" in row else ""
            rates.append(
                (
                    row["store"],
                    row["workload"],
                    row["who"],
                    f"{row['rate']:,.0f}",
                    said["p50_ms"],
                    said["p95_ms"],
                    ratio,
                    f"{row['server_cpu_ms']:.2f}",
                    f"{row['client_cpu']:.0%}",
                )
            )
        elif "first_ms" in row:
            verdict = "yes" if max(row["first_ms"], row["p95_ms"]) < PAGE_TARGET_MS else "NO"
            pages.append((row["store"], row["workload"], said["first_ms"], said["p50_ms"], said["p95_ms"], verdict))
        else:
            counting.append((row["store"], said["counts_ms"], said["depths_ms"]))
    return "\n\n".join([aligned(rates, (3, 4, 5, 6, 7, 8)), aligned(pages, (2, 3, 4)), aligned(counting, (1, 2))])


def _commit() -> str:
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=BENCH, capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


if __name__ == "__main__":
    main()
