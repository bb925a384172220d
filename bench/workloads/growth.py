"""Whether a store stays as it is under an hour of load: sizes of tables and indexes, dead rows, and claims.

    scripts/bench growth                                # an hour on PostgreSQL: bursts of 10,000 jobs every 5 s
    scripts/bench growth --store sqlite --minutes 10
    scripts/bench growth --minutes 3                    # everything in proportion, for a first look

One worker drains the bursts (`growth_load.py`), with retention on and short spans, so that jobs are archived and leave
the archive meanwhile. From the middle on, a transaction that has read something is held open for a sixth of the time:
for as long, the server can remove no dead row, and SQLite cannot start its write-ahead log anew.

Every ten seconds a sample is taken. A probe claims and completes ten jobs four times a second, through the port, from
the same line as the worker. The run is cut into six parts. The first is the warm-up, and the second is what the
third, before the transaction, and the last, after it, are compared with: a table, index or file is flat if its largest
size grew by less than a quarter, or by less than eight megabytes; claims if their median and 99th percentile did. How
many pages a claim reads to find the head of the line does not depend on what else the machine does, and tells whether
it walks past dead rows. Prints the sizes and verdicts, and writes a sample per minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import apsw
import asyncpg
from backstay.engines import open_url

from bench.harness import machine, places
from bench.harness.processes import BENCH, ROOT, WorkerDied, cpu_seconds, tree, worker_process
from bench.harness.table import aligned

LOAD = "bench.workloads.growth_load"
PARTS = 6  # warm-up, measured, before, held, recovery, after
HELD_PART = 3
SAMPLE_SECONDS = 10.0
SAMPLES_MIN = 60  # in a short run they are taken more often
MEGABYTE = 1_000_000
GROWTH_MAX = 1.25
SPARE_BYTES = 8 * MEGABYTE  # a table varies by this much between two vacuums, without growing
SPARE_MS = 2.0
SPARE_PAGES = 25.0
SPARE_DEAD = 20_000
SHOWN_BYTES = 2 * MEGABYTE

HEAD = """
SELECT job_id FROM backstay.ready WHERE line = 0 AND queue = 'default' AND job_type = 'noop'
ORDER BY priority DESC, scheduled_for, job_id LIMIT 100
"""
SIZES = """
SELECT relname, pg_relation_size(oid) FROM pg_class
WHERE relnamespace = 'backstay'::regnamespace AND relkind IN ('r', 'i')
"""
DEAD = """
SELECT relname, n_dead_tup, vacuum_count + autovacuum_count FROM pg_stat_user_tables WHERE schemaname = 'backstay'
"""
COUNTS = "SELECT (SELECT count(*) FROM backstay.ready), (SELECT count(*) FROM backstay.running)"


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float  # since the start
    part: int
    sizes: dict[str, int]  # bytes, by table, index or file
    dead: dict[str, int]  # rows, by table
    vacuums: dict[str, int]
    pending: int
    processing: int
    head_pages: float | None  # read to find the first hundred jobs of the line


@dataclass(slots=True)
class Run:
    minutes: float
    samples: list[Sample] = field(default_factory=list)
    claims: list[tuple[float, float, int]] = field(default_factory=list)  # at, milliseconds, jobs
    feed: dict[str, float] = field(default_factory=dict)
    cpu_share: float = 0.0  # as a share of one core: server, worker and feeder

    def part_of(self, seconds: float) -> int:
        return min(PARTS - 1, int(seconds / (self.minutes * 60) * PARTS))


class Watched(Protocol):
    """A store that is sampled."""

    async def sample(self) -> dict[str, Any]:
        """Return the fields of a sample that are read from the store."""
        ...

    async def hold(self) -> None:
        """Open a transaction that has read something."""
        ...

    async def let_go(self) -> None: ...


class Database:
    def __init__(self, url: str) -> None:
        self._url = url
        self._holder: Any = None

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self._url)

    async def sample(self) -> dict[str, Any]:
        read = self._connection
        stats = await read.fetch(DEAD)
        pending, processing = await read.fetchrow(COUNTS)
        plan = json.loads(await read.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {HEAD}"))[0]["Plan"]
        return {
            "sizes": {name: size for name, size in await read.fetch(SIZES) if size},
            "dead": {name: dead for name, dead, _ in stats if dead},
            "vacuums": {name: vacuums for name, _, vacuums in stats if vacuums},
            "pending": pending,
            "processing": processing,
            "head_pages": plan["Shared Hit Blocks"] + plan["Shared Read Blocks"],
        }

    async def hold(self) -> None:
        self._holder = await asyncpg.connect(self._url)
        await self._holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await self._holder.fetchval("SELECT count(*) FROM backstay.queue")

    async def let_go(self) -> None:
        await self._holder.close()


class File:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._holder: apsw.Connection | None = None

    async def open(self) -> None:
        self._connection = apsw.Connection(str(self._path))
        self._connection.set_busy_timeout(10_000)

    async def sample(self) -> dict[str, Any]:
        read = self._connection
        log = self._path.with_name(self._path.name + "-wal")
        page = read.execute("PRAGMA page_size").get
        used = read.execute("PRAGMA page_count").get - read.execute("PRAGMA freelist_count").get
        return {
            "sizes": {
                "file": self._path.stat().st_size,
                "pages in use": used * page,
                "write-ahead log": log.stat().st_size,
            },
            "dead": {},
            "vacuums": {},
            "pending": read.execute("SELECT count(*) FROM ready").get,
            "processing": read.execute("SELECT count(*) FROM running").get,
            "head_pages": None,
        }

    async def hold(self) -> None:
        self._holder = apsw.Connection(str(self._path))
        self._holder.execute("BEGIN")
        self._holder.execute("SELECT count(*) FROM queue").fetchall()

    async def let_go(self) -> None:
        if self._holder is not None:
            self._holder.close()


def main() -> None:
    options = _parse()
    with tempfile.TemporaryDirectory(prefix=".growth-", dir=options.dir or BENCH) as made:
        folder = Path(made)
        folder.chmod(0o755)
        with places.of(options.store, folder) as place:
            if options.store == "sqlite":
                url = f"sqlite:///{folder / 'jobs.db'}"
                watched: Database | File = File(folder / "jobs.db")
            else:
                url = place.fresh()[0].removeprefix("--url=")
                watched = Database(url)
            os.environ["BACKSTAY_URL"] = url
            run = asyncio.run(_load(options, url, watched, folder, place.server_pid))
            described = machine.describe(folder) | place.describe()
    verdicts = judge(run)
    print(_sizes_table(run), _figures_table(run), _verdicts_table(verdicts), sep="\n\n")
    path = options.json or BENCH / "runs" / f"growth-{options.store}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(_report(options, run, verdicts, described), indent=1) + "\n")
    print(f"\nwritten to {path}")
    sys.exit(1 if options.gate and not all(verdict.flat for verdict in verdicts) else 0)


async def _load(
    options: argparse.Namespace, url: str, watched: Database | File, folder: Path, server: int | None
) -> Run:
    run = Run(options.minutes)
    store = open_url(url)
    await store.open()
    await watched.open()
    span = options.keep if options.keep is not None else min(120.0, options.minutes * 60 / 30)
    keeps = {f"BACKSTAY_RETENTION_{name}": str(span) for name in ("COMPLETED", "FAILED", "CANCELLED")}
    keeps["BACKSTAY_RETENTION_ARCHIVE"] = str(2 * span)
    command = [sys.executable, "-m", "backstay", "worker", f"--app={LOAD}:app", "--concurrency=100"]
    command += [f"--processes={options.processes}"]
    with worker_process(command, folder / "worker.log", keeps) as worker:
        feeder = _feeder(options.burst, options.every)
        running = [worker.pid, feeder.pid, *([server] if server else [])]
        used = {"seconds": 0.0}
        start = time.monotonic()
        alive = _check(worker, feeder)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_sample(run, watched, start, alive))
                group.create_task(_probe(run, store, start))
                group.create_task(_hold(run, watched, start))
                group.create_task(_count_cpu(run, running, used, start))
        finally:
            feeder.send_signal(signal.SIGTERM)
            said, _ = feeder.communicate(timeout=60)
    run.feed = json.loads(said)
    run.cpu_share = used["seconds"] / (options.minutes * 60)
    await store.close()
    return run


def _feeder(burst: int, every: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", LOAD, str(burst), str(every)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=BENCH, env=environment, stdout=subprocess.PIPE)


def _check(worker: subprocess.Popen[bytes], feeder: subprocess.Popen[bytes]) -> Callable[[], None]:
    def alive() -> None:
        for process in (worker, feeder):
            if process.poll() is not None:
                raise WorkerDied(f"ended with code {process.returncode}: {process.args!r}")

    return alive


async def _sample(run: Run, watched: Watched, start: float, alive: Callable[[], None]) -> None:
    pause = min(SAMPLE_SECONDS, run.minutes * 60 / SAMPLES_MIN)
    while (seconds := time.monotonic() - start) < run.minutes * 60:
        alive()
        run.samples.append(Sample(seconds, run.part_of(seconds), **await watched.sample()))
        await asyncio.sleep(max(0.0, start + pause * len(run.samples) - time.monotonic()))


async def _probe(run: Run, store: Any, start: float) -> None:
    from bench.workloads.growth_load import PROBE_SECONDS, probe  # reads the environment on import

    while (seconds := time.monotonic() - start) < run.minutes * 60:
        run.claims.append((seconds, *await probe(store)))
        await asyncio.sleep(PROBE_SECONDS * random.uniform(0.5, 1.5))


async def _hold(run: Run, watched: Watched, start: float) -> None:
    part = run.minutes * 60 / PARTS
    await asyncio.sleep(start + HELD_PART * part - time.monotonic())
    await watched.hold()
    await asyncio.sleep(part)
    await watched.let_go()


async def _count_cpu(run: Run, running: Sequence[int], used: dict[str, float], start: float) -> None:
    """Add up the CPU time of all processes, of which the server's come and go."""
    seen: dict[int, float] = {}
    while time.monotonic() - start < run.minutes * 60:
        for pid in {each for root in running for each in tree(root)}:
            with suppress(OSError):
                seen[pid] = cpu_seconds(pid)
        await asyncio.sleep(1.0)
    used["seconds"] = sum(seen.values())


@dataclass(frozen=True, slots=True)
class Verdict:
    what: str
    measured: float  # in the second part
    before: float  # before the transaction was held open
    held: float  # meanwhile
    after: float  # at the end
    spare: float

    @property
    def flat(self) -> bool:
        bound = max(self.measured * GROWTH_MAX, self.measured + self.spare)
        return self.before <= bound and self.after <= bound

    @property
    def word(self) -> str:
        return "flat" if self.flat else "GROWS"


def judge(run: Run) -> list[Verdict]:
    names = sorted({name for sample in run.samples for name in sample.sizes})
    found = [_of(run, f"size of {name}", lambda each, n=name: each.sizes.get(n, 0), max, SPARE_BYTES) for name in names]
    tables = sorted({name for sample in run.samples for name in sample.dead})
    found += [
        _of(run, f"dead rows of {name}", lambda each, n=name: each.dead.get(n, 0), median, SPARE_DEAD)
        for name in tables
    ]
    found.append(_of(run, "pending jobs", lambda each: each.pending, median, SPARE_DEAD))
    if any(sample.head_pages is not None for sample in run.samples):
        found.append(_of(run, "pages to the head of the line", lambda each: each.head_pages or 0, median, SPARE_PAGES))
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        parts = [[ms for at, ms, _ in run.claims if run.part_of(at) == part] for part in range(PARTS)]
        found.append(
            Verdict(
                f"claim {name}, ms", *(_rank(parts[part], share) for part in (1, 2, HELD_PART, PARTS - 1)), SPARE_MS
            )
        )
    return found


def _of(
    run: Run, what: str, read: Callable[[Sample], float], reduce: Callable[[Iterable[float]], float], spare: float
) -> Verdict:
    parts = [[read(sample) for sample in run.samples if sample.part == part] for part in range(PARTS)]
    return Verdict(what, *(reduce(parts[part]) for part in (1, 2, HELD_PART, PARTS - 1)), spare)


def _rank(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0


def _sizes_table(run: Run) -> str:
    rows: list[tuple[str, ...]] = [("largest size in each part, MB", *map(str, range(1, PARTS + 1)), "")]
    names = sorted({name for sample in run.samples for name in sample.sizes})
    for name in names:
        sizes = [max((s.sizes.get(name, 0) for s in run.samples if s.part == part), default=0) for part in range(PARTS)]
        if max(sizes) >= SHOWN_BYTES:
            rows.append((name, *(f"{size / MEGABYTE:.1f}" for size in sizes), ""))
    totals = [max((sum(s.sizes.values()) for s in run.samples if s.part == part), default=0) for part in range(PARTS)]
    rows.append(("all", *(f"{size / MEGABYTE:.1f}" for size in totals), ""))
    return aligned(rows, right=tuple(range(1, PARTS + 1)))


def _figures_table(run: Run) -> str:
    rows = [("load", "")]
    rows += [
        ("submitted", f"{run.feed['submitted']:,.0f} jobs, {run.feed['submitted'] / run.minutes / 60:,.0f} a second"),
        ("a burst arrives at", f"{run.feed['median_rate']:,.0f} jobs/s (median)"),
        ("bursts left out", f"{run.feed['bursts_left_out']:,.0f}, because the last five had not run yet"),
        ("CPU", f"{run.cpu_share:.2f} cores: server, worker and feeder"),
        ("claims of the probe", f"{len(run.claims):,}, {sum(1 for _, _, got in run.claims if got):,} of them got jobs"),
        ("vacuums", _vacuums(run)),
    ]
    return aligned(rows, right=())


def _vacuums(run: Run) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(run.samples[-1].vacuums.items())) or "none"


def _verdicts_table(verdicts: Sequence[Verdict]) -> str:
    rows: list[tuple[str, ...]] = [("what", "measured", "before", "held", "after", "verdict")]
    for each in verdicts:
        if each.flat and each.what.startswith(("size", "dead")) and each.held <= each.spare:
            continue  # small
        scale = MEGABYTE if each.what.startswith("size") else 1
        figures = (each.measured, each.before, each.held, each.after)
        unit = ", MB" if scale != 1 else ""
        rows.append((each.what + unit, *(f"{figure / scale:,.1f}" for figure in figures), each.word))
    return aligned(rows, right=(1, 2, 3, 4))


def _report(
    options: argparse.Namespace, run: Run, verdicts: Sequence[Verdict], described: Mapping[str, Any]
) -> dict[str, Any]:
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    return {
        "what": __doc__,
        "options": asked,
        "place": dict(described),
        "load": run.feed
        | {"cores": round(run.cpu_share, 3), "jobs_per_second": run.feed["submitted"] / run.minutes / 60},
        "verdicts": [asdict(verdict) | {"flat": verdict.flat} for verdict in verdicts],
        "minutes": list(_by_minute(run)),
    }


def _by_minute(run: Run) -> Iterable[dict[str, Any]]:
    shown = {n for s in run.samples for n, size in s.sizes.items() if size >= SHOWN_BYTES}
    for minute in range(math.ceil(run.minutes)):
        samples = [sample for sample in run.samples if int(sample.seconds / 60) == minute]
        claims = [ms for at, ms, _ in run.claims if int(at / 60) == minute]
        if samples:
            last = samples[-1]
            yield {
                "minute": minute,
                "part": last.part + 1,
                "bytes": {name: size for name, size in sorted(last.sizes.items()) if name in shown},
                "dead": {name: dead for name, dead in sorted(last.dead.items()) if dead >= 1_000},
                "vacuums": last.vacuums,
                "pending_most": max(sample.pending for sample in samples),
                "head_pages_most": max(sample.head_pages or 0 for sample in samples),
                "claims": len(claims),
                "claim_ms": {"p50": round(_rank(claims, 0.5), 3), "p99": round(_rank(claims, 0.99), 3)},
            }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench growth", description="Whether a store stays flat under load: sizes, dead rows, claims."
    )
    parser.add_argument("--store", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--minutes", type=float, default=60, help="a sixth of it the transaction is held (default 60)")
    parser.add_argument("--burst", type=int, default=10_000, help="jobs of a burst (default 10,000)")
    parser.add_argument("--every", type=float, default=5, help="seconds between bursts (default 5)")
    parser.add_argument(
        "--keep", type=float, help="seconds that ended jobs are kept, and half as long as their archive"
    )
    parser.add_argument("--processes", type=int, default=1, help="worker processes (default 1)")
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure (default: this repository)")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/runs)")
    parser.add_argument("--gate", action="store_true", help="exit with 1 when anything grows")
    return parser.parse_args()


if __name__ == "__main__":
    main()
