"""Scale-out on PostgreSQL: 1, 2, 4 and 8 worker processes on four hosts, until the server is the limit.

    scripts/bench scale-out                             # two splits of the processors, 3 rounds: about 7 minutes
    scripts/bench scale-out --splits 0.8:0.1 --processes 8 --rounds 1 --profile /tmp/server.perf
    scripts/bench scale-out --memory --flush 1          # on a busy disk: see below

Each host is a network namespace (`harness/hosts.py`), and so is the server's. The server gets so much of a core and
each process so much, as a split says: with 0.4:0.1 four processes want as much as the server has. Their control groups
go before everything else on the machine, and count their CPU time, so that the figures hold on a busy machine as well.
With `--memory` the data is in memory, and a commit waits for `--flush` milliseconds instead of a disk.

Jobs are those of `drain`. The queue is paused until all workers are there. What happens between the 25th and the 85th
hundredth of the jobs is measured. What a job costs with one process, in the first split, goes into the model of
`harness/capacity.py`, and what a claim costs while others are under way (`crowd`); it has to predict all other figures.

What this shows: costs per job, how they grow with the number of processes, what they wait for, and where the limit is.
What it cannot show: cores that get into each other's way, such as 64 of them that write to the same page of an index.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from backstay.engines.postgres.connection import Statements, connect, parse

from bench.harness import machine
from bench.harness.capacity import BATCH, Costs, Place, Prediction, best, predict
from bench.harness.contenders import Order
from bench.harness.hosts import Host, Share, hosts, shares
from bench.harness.marks import PROCESSES
from bench.harness.payload import notes
from bench.harness.places import Server
from bench.harness.processes import BENCH, check_alive, cpu_seconds, tree, worker_process
from bench.harness.setup import COMMAND, JOB_TYPE, Setup, open_setup
from bench.harness.stores import TABLES_OF_JOB
from bench.harness.table import aligned
from bench.workloads.drain import CONCURRENCY, FILL_BATCH

HOSTS = 4
QUEUE = "default"
FROM_SHARE, TO_SHARE = 0.25, 0.85  # of the jobs
LOOK_SECONDS = 0.1
SHM = Path("/dev/shm")
MEMORY_FLUSH_MS = 1.0
PROFILE_SECONDS = 4
CROWDS = (0, 7, 15, 31, 63)  # claims under way while another is measured
CROWD_CLAIMS = 30
CROWD_JOBS = (max(CROWDS) + 2) * BATCH
WITHIN = 0.2  # how far a prediction may be off
# What users ask for: cores of a server, all of which are its own.
SERVERS = (4, 16, 64)
PROCESSES_MAX = 400
USABLE = 0.75  # of a server's cores: the rest is for vacuum, checkpoints, reads, and bursts

READ = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
    (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
    (SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'),
    (SELECT sum(fsync_time)::float8 FROM pg_stat_io WHERE object = 'wal')
"""
STATEMENTS = """
SELECT CASE WHEN query LIKE '%.ended (%' THEN 'complete' WHEN query LIKE '%.running (%' THEN 'claim'
        WHEN query LIKE '%pg_notify%' THEN 'notify' ELSE 'other' END AS what,
    sum(calls)::float8, sum(total_exec_time)::float8, sum(shared_blks_hit)::float8
FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query NOT LIKE '%pg_stat%'
GROUP BY what
"""
WAITS = """
SELECT CASE state WHEN 'active' THEN coalesce(wait_event_type || ':' || wait_event, 'runs') ELSE state END
FROM pg_stat_activity WHERE application_name = 'backstay' AND state <> 'idle'
"""


@dataclass(frozen=True, slots=True)
class Split:
    server: float  # cores
    process: float

    @classmethod
    def of(cls, text: str) -> Split:
        server, _, process = text.partition(":")
        return cls(float(server), float(process))

    def __str__(self) -> str:
        return f"{self.server:g}:{self.process:g}"


@dataclass(frozen=True, slots=True)
class Reading:
    at: float
    jobs: int
    server_seconds: float
    client_seconds: float
    log_bytes: int
    commits: int
    flushes: int
    flush_ms: float  # all of them together
    statements: dict[str, tuple[float, float, float]]  # calls, milliseconds, pages


@dataclass(frozen=True, slots=True)
class Sample:
    split: str
    processes: int
    round: int
    rate: float
    server_micros: float
    client_micros: float
    server_used: float  # of its share
    clients_used: float
    log_bytes: float
    commits: float  # for a thousand jobs
    flushes: float
    flush_ms: float
    statements: dict[str, dict[str, float]]
    waits: dict[str, float]  # of the sessions that were not idle


@dataclass(frozen=True, slots=True)
class Bed:
    """What all samples of a run share."""

    folder: Path
    hosts: Sequence[Host]
    server: Server
    server_share: Share
    shares: Sequence[Share]
    flush_ms: float | None
    profile: Path | None


def main() -> None:
    options = _parse()
    splits = [Split.of(text) for text in options.splits.split(",")]
    counts = [int(text) for text in options.processes.split(",")]
    if options.memory and options.dir is None:
        options.dir = SHM
    flush_ms = (options.flush or MEMORY_FLUSH_MS) if options.memory else options.flush
    with tempfile.TemporaryDirectory(prefix="backstay-scale-out-", dir=options.dir or BENCH) as made:
        folder = Path(made)
        folder.chmod(0o755)
        described = machine.describe(folder)
        with ExitStack() as stack:
            bed = _bed(stack, folder, flush_ms, options.profile)
            described |= bed.server.describe()
            crowd = asyncio.run(_crowd(bed))
            samples = [
                _sample(bed, split, count, number, options.jobs * min(count, 4))
                for number in range(1, options.rounds + 1)
                for split in splits
                for count in counts
            ]
    medians = {
        (split, count): _median([s for s in samples if s.split == str(split) and s.processes == count])
        for split in splits
        for count in counts
    }
    print(_figures_table(medians), _waits_table(medians), sep="\n\n")
    print("", _crowd_table(crowd), sep="\n")
    predicted = {}
    if (splits[0], 1) in medians:
        cost = _costs(medians[splits[0], 1], crowd)
        predicted = _predictions(medians, cost)
        print("", _predictions_table(medians, predicted), "", _servers_table(cost), sep="\n")
    if options.profile:
        print("", _profile_table(options.profile), sep="\n")
    path = options.json or BENCH / "runs" / "scale-out.json"
    path.parent.mkdir(exist_ok=True)
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    report = {"what": __doc__, "options": asked, "machine": described, "crowd": crowd}
    report["samples"] = [asdict(each) for each in samples]
    report["predictions"] = [
        {"split": str(split), "processes": count, "measured": medians[split, count].rate, **asdict(each)}
        for (split, count), each in predicted.items()
    ]
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\n{len(samples)} samples in {path}")


def _bed(stack: ExitStack, folder: Path, flush_ms: float | None, profile: Path | None) -> Bed:
    from tests.support.servers.postgres import Postgres

    made = stack.enter_context(hosts(HOSTS))
    server_share, *others = stack.enter_context(shares(["server", *(f"worker-{n}" for n in range(PROCESSES))]))
    access = folder / "access"
    access.write_text("host all all 0.0.0.0/0 trust\n")  # all who are in these namespaces
    settings = {
        "listen_addresses": "*",
        "hba_file": str(access),
        "shared_buffers": "1GB",
        "max_wal_size": "8GB",
        "autovacuum_naptime": "10s",  # so that every sample has its share of it
        "shared_preload_libraries": "pg_stat_statements",
        "track_wal_io_timing": "on",
    }
    if flush_ms is not None:  # the server's own way to wait before it flushes
        settings |= {"commit_delay": str(round(flush_ms * 1000)), "commit_siblings": "0"}
    server = stack.enter_context(Postgres(settings=settings, folder=folder / "server"))
    server_share.admit_tree(server.pid)
    return Bed(folder, made, Server(server.url(), server.pid), server_share, others, flush_ms, profile)


def _sample(bed: Bed, split: Split, count: int, number: int, jobs: int) -> Sample:
    for share in (bed.server_share, *bed.shares):
        share.limit(None)
    url = bed.server.fresh()[0].removeprefix("--url=")
    own = bed.folder / "sample"
    own.mkdir(exist_ok=True)
    order = Order(jobs, own, bed.folder, idle_seconds=0, finished=0, pending=0, retirable=0, url=url)
    setup = open_setup(order)
    asyncio.run(_submit(setup, jobs, pause=True))
    with psycopg.connect(url, autocommit=True) as watch, ExitStack() as stack:
        bed.server_share.dismiss([watch.info.backend_pid])
        watch.execute("CREATE EXTENSION pg_stat_statements")
        watch.execute(f"VACUUM (ANALYZE) {', '.join(f'backstay.{table}' for table in TABLES_OF_JOB)}".encode())
        watch.execute("CHECKPOINT")
        workers = [stack.enter_context(_worker(bed, url, each, own / f"worker-{each}.log")) for each in range(count)]

        def until(done: Callable[[], bool]) -> None:
            while not done():
                for worker in workers:
                    check_alive(worker)
                time.sleep(LOOK_SECONDS)

        until(lambda: watch.execute("SELECT count(*) FROM backstay.worker").fetchone() == (count,))
        for worker, share in zip(workers, bed.shares, strict=False):
            share.admit_tree(worker.pid)
            share.limit(split.process)
        bed.server_share.limit(split.server)
        asyncio.run(_resume(setup))
        until(lambda: setup.marks.count >= FROM_SHARE * jobs)
        first = _read(bed, watch, setup)
        profile = None if bed.profile is None else _profile(bed)
        waits: Counter[str] = Counter()

        def is_over() -> bool:
            waits.update(row[0] for row in watch.execute(WAITS))
            return setup.marks.count >= TO_SHARE * jobs

        until(is_over)
        last = _read(bed, watch, setup)
        if profile is not None:
            profile.wait()
        for share in (bed.server_share, *bed.shares):
            share.limit(None)
    sample = _figures(bed, split, count, number, first, last, waits)
    print(
        f"round {number}  {sample.split:8}  {count} processes  {sample.rate:8,.0f} jobs/s"
        f"  server {sample.server_micros:5.1f} µs  worker {sample.client_micros:5.1f} µs",
        file=sys.stderr,
        flush=True,
    )
    return sample


def _worker(bed: Bed, url: str, number: int, log: Path) -> Any:
    host = bed.hosts[number % len(bed.hosts)]
    command = host.command(*COMMAND, f"--concurrency={CONCURRENCY}")
    return worker_process(command, log, {"BACKSTAY_URL": url.replace("127.0.0.1", host.server_address)})


async def _submit(setup: Setup, jobs: int, *, pause: bool = False) -> None:
    payloads = notes(jobs)
    async with setup.app as app:
        if pause:
            await app.pause_queue(QUEUE)
        for start in range(0, jobs, FILL_BATCH):
            await app.submit_many([(JOB_TYPE, payload) for payload in payloads[start : start + FILL_BATCH]])


async def _resume(setup: Setup) -> None:
    async with setup.app as app:
        await app.resume_queue(QUEUE)


def _read(bed: Bed, watch: psycopg.Connection[Any], setup: Setup) -> Reading:
    row = watch.execute(READ).fetchone()
    assert row is not None
    statements = {what: (calls, ms, pages) for what, calls, ms, pages in watch.execute(STATEMENTS)}
    clients = sum(share.used_seconds for share in bed.shares)
    return Reading(time.monotonic(), setup.marks.count, bed.server_share.used_seconds, clients, *row, statements)


async def _crowd(bed: Bed) -> dict[int, float]:
    """Return the server's CPU time for a job of a claim, by how many other claims are under way. Each of those holds as
    many jobs at the head of the line. The claims that are measured are rolled back, so that none leaves dead rows to
    the next."""
    url = bed.server.fresh()[0].removeprefix("--url=")
    order = Order(CROWD_JOBS, bed.folder, bed.folder, idle_seconds=0, finished=0, pending=0, retirable=0, url=url)
    await _submit(open_setup(order), CROWD_JOBS)
    statement = Statements("backstay")["claim_lane"]
    asked = (QUEUE, JOB_TYPE, BATCH, 1, BATCH, 1, "crowd", "1", 60_000_000, None, 0)
    found: dict[int, float] = {}
    async with AsyncExitStack() as stack:

        async def session() -> Any:
            connection = await connect(parse(url))
            stack.push_async_callback(connection.close)
            return connection

        own = await session()
        await own.execute(f"VACUUM (ANALYZE) {', '.join(f'backstay.{table}' for table in TABLES_OF_JOB)}")
        pid = await own.fetchval("SELECT pg_backend_pid()")
        held = 0
        for others in CROWDS:
            for _ in range(others - held):
                other = await session()
                await other.execute("BEGIN")
                assert len(await other.fetch(statement, *asked)) == BATCH
            held = others
            figures = []
            for _ in range(CROWD_CLAIMS):
                before = cpu_seconds(pid)
                transaction = own.transaction()
                await transaction.start()
                assert len(await own.fetch(statement, *asked)) == BATCH
                await transaction.rollback()
                figures.append((cpu_seconds(pid) - before) / BATCH * 1e6)
            found[others] = median(figures)
    return found


def _figures(
    bed: Bed, split: Split, count: int, number: int, first: Reading, last: Reading, waits: Counter[str]
) -> Sample:
    jobs, seconds = last.jobs - first.jobs, last.at - first.at
    server, clients = last.server_seconds - first.server_seconds, last.client_seconds - first.client_seconds
    flushes = last.flushes - first.flushes
    statements = {}
    for what, (calls, ms, pages) in last.statements.items():
        calls_before, ms_before, pages_before = first.statements.get(what, (0.0, 0.0, 0.0))
        if calls > calls_before:
            statements[what] = {
                "calls_per_1000_jobs": (calls - calls_before) / jobs * 1000,
                "ms": (ms - ms_before) / (calls - calls_before),
                "pages_per_job": (pages - pages_before) / jobs,
            }
    return Sample(
        split=str(split),
        processes=count,
        round=number,
        rate=jobs / seconds,
        server_micros=server / jobs * 1e6,
        client_micros=clients / jobs * 1e6,
        server_used=server / seconds / split.server,
        clients_used=clients / seconds / split.process / count,
        log_bytes=(last.log_bytes - first.log_bytes) / jobs,
        commits=(last.commits - first.commits) / jobs * 1000,
        flushes=flushes / jobs * 1000,
        flush_ms=(last.flush_ms - first.flush_ms) / max(1, flushes) + (bed.flush_ms or 0.0),
        statements=statements,
        waits={what: seen / waits.total() for what, seen in waits.most_common(8)},
    )


def _profile(bed: Bed) -> subprocess.Popen[bytes]:
    assert bed.server.server_pid is not None
    assert bed.profile is not None
    pids = ",".join(map(str, tree(bed.server.server_pid)))
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "1999", "-p", pids, "-o", str(bed.profile)]
    return subprocess.Popen([*command, "--", "sleep", str(PROFILE_SECONDS)])


# What is read from the samples


def _median(samples: Sequence[Sample]) -> Sample:
    """Return the sample of the median rate, with the medians of what is compared."""
    middle = sorted(samples, key=lambda each: each.rate)[len(samples) // 2]
    names = ("rate", "server_micros", "client_micros", "server_used", "clients_used", "log_bytes", "flush_ms")
    medians = {name: median(getattr(each, name) for each in samples) for name in names}
    return Sample(**{**asdict(middle), **medians})


Medians = dict[tuple[Split, int], Sample]


def _costs(one: Sample, crowd: dict[int, float]) -> Costs:
    most = max(crowd)
    return Costs(one.server_micros, (crowd[most] - crowd[0]) / most, one.client_micros, one.log_bytes)


def _predictions(medians: Medians, cost: Costs) -> dict[tuple[Split, int], Prediction]:
    return {
        (split, count): predict(cost, Place(split.server, count, split.process, sample.flush_ms))
        for (split, count), sample in medians.items()
    }


def _crowd_table(crowd: dict[int, float]) -> str:
    rows = [
        ("other claims under way", *map(str, crowd)),
        ("claim, server µs per job", *(f"{each:.1f}" for each in crowd.values())),
    ]
    return aligned(rows, right=tuple(range(1, len(rows[0]))))


def _figures_table(medians: Medians) -> str:
    heads = ("server:process", "processes", "jobs/s", "server µs", "worker µs", "server used", "workers used")
    rows: list[tuple[str, ...]] = [
        (*heads, "log bytes", "commits/1000", "flushes/1000", "flush ms", "pages/job: claim", "complete", "jobs/claim")
    ]
    for (split, count), each in medians.items():
        claim, complete = each.statements["claim"], each.statements["complete"]
        rows.append(
            (
                str(split),
                str(count),
                f"{each.rate:,.0f}",
                f"{each.server_micros:.1f}",
                f"{each.client_micros:.1f}",
                f"{each.server_used:.0%}",
                f"{each.clients_used:.0%}",
                f"{each.log_bytes:,.0f}",
                f"{each.commits:.1f}",
                f"{each.flushes:.1f}",
                f"{each.flush_ms:.1f}",
                f"{claim['pages_per_job']:.1f}",
                f"{complete['pages_per_job']:.1f}",
                f"{1000 / claim['calls_per_1000_jobs']:.0f}",
            )
        )
    return aligned(rows, right=tuple(range(1, len(rows[0]))))


def _waits_table(medians: Medians) -> str:
    rows: list[tuple[str, ...]] = [("server:process", "processes", "what sessions that are not idle do")]
    for (split, count), each in medians.items():
        rows.append((str(split), str(count), ", ".join(f"{what} {share:.0%}" for what, share in each.waits.items())))
    return aligned(rows, right=(1,))


def _predictions_table(medians: Medians, predicted: dict[tuple[Split, int], Prediction]) -> str:
    rows: list[tuple[str, ...]] = [("server:process", "processes", "measured", "predicted", "error", "limit", "")]
    for (split, count), each in predicted.items():
        measured = medians[split, count].rate
        error = each.rate / measured - 1
        verdict = "" if abs(error) <= WITHIN else f"over {WITHIN:.0%}"
        rows.append(
            (str(split), str(count), f"{measured:,.0f}", f"{each.rate:,.0f}", f"{error:+.0%}", each.limit, verdict)
        )
    return aligned(rows, right=(1, 2, 3, 4))


def _servers_table(cost: Costs) -> str:
    rows: list[tuple[str, ...]] = [("cores of the server", "usable", "processes", "jobs/s", "server µs", "log MB/s")]
    for cores in SERVERS:
        place = best(cost, [Place(cores * USABLE, count) for count in range(1, PROCESSES_MAX + 1)])
        rate = predict(cost, place).rate
        micros = cost.server_micros_of(place.processes)
        log = rate * cost.log_bytes / 1e6
        rows.append((str(cores), f"{USABLE:.0%}", str(place.processes), f"{rate:,.0f}", f"{micros:.0f}", f"{log:,.0f}"))
    title = (
        f"costs: server {cost.server_micros:.1f} µs and {cost.crowd_micros:.2f} µs for each further process,"
        f" worker {cost.client_micros:.1f} µs, {cost.log_bytes:,.0f} bytes of log"
    )
    return f"{title}\n\n{aligned(rows, right=tuple(range(6)))}"


def _profile_table(path: Path) -> str:
    command = ["perf", "report", "-i", str(path), "--stdio", "--percent-limit", "0.8", "--sort", "dso,symbol"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("#"))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench scale-out", description="Worker processes on several hosts, until the server is the limit."
    )
    parser.add_argument(
        "--splits", default="0.4:0.1,0.8:0.1", help="cores of the server and of each process (default 0.4:0.1,0.8:0.1)"
    )
    parser.add_argument("--processes", default="1,2,4,8", help=f"default 1,2,4,8; {PROCESSES} at most")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--jobs", type=int, default=30_000, help="for each of up to four processes (default 30,000)")
    parser.add_argument("--memory", action="store_true", help="keep the data in memory, and wait instead of flushing")
    parser.add_argument("--flush", type=float, help="milliseconds that each flush waits (default 0, in memory 1)")
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure (default: this repository)")
    parser.add_argument("--profile", type=Path, help="where perf writes what the server does; best with one sample")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/runs)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
