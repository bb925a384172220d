"""The peers on Node.js: a script of each peer submits and works, Python counts."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import AbstractContextManager
from typing import Any

from bench.harness import timing
from bench.harness.contenders import Figures, Measure, Order
from bench.harness.marks import FILE_VARIABLE as MARKS_VARIABLE
from bench.harness.marks import Marks
from bench.harness.processes import cpu_percent, resident_megabytes, worker_process
from bench.harness.stores import PostgresDatabase, wal_position
from bench.harness.timing import jobs_per_second
from bench.peers.npm import FOLDER

FILL_BATCH = 5_000
URL_VARIABLE = "BENCH_POSTGRES_URL"


class NodePeer:
    def __init__(self, script: str, unsettled: str) -> None:
        self._script = str(FOLDER / script)
        self._unsettled = unsettled

    def measures(self) -> dict[str, Measure]:
        return {
            "submit-one": self._submit_one,
            "submit-many": self._submit_many,
            "drain": self._drain,
            "wal": self._wal,
            "pickup-other": self._pickup,
            "idle": self._idle,
        }

    def _submit_one(self, order: Order) -> Figures:
        self._open(order)
        return {"rate": order.jobs / self._run("one", order.jobs)["seconds"]}

    def _submit_many(self, order: Order) -> Figures:
        self._open(order)
        return {"rate": order.jobs / self._run("many", order.jobs, FILL_BATCH)["seconds"]}

    def _drain(self, order: Order) -> Figures:
        marks = self._open(order)
        self._run("many", order.jobs, FILL_BATCH)
        store = PostgresDatabase(order)
        store.execute("VACUUM ANALYZE")
        store.execute("CHECKPOINT")
        with self._worker(order) as worker:
            return {"rate": jobs_per_second(worker, marks, order.jobs, lambda: store.value(self._unsettled) > 0)}

    def _wal(self, order: Order) -> Figures:
        assert order.url is not None
        marks = self._open(order)
        self._run("many", 0, FILL_BATCH)  # the tables
        store = PostgresDatabase(order)
        store.execute("CHECKPOINT")
        before = wal_position(order.url)
        self._run("many", order.jobs, FILL_BATCH)
        with self._worker(order) as worker:
            jobs_per_second(worker, marks, order.jobs, lambda: store.value(self._unsettled) > 0)
            return {"bytes": (wal_position(order.url) - before) / order.jobs}

    def _pickup(self, order: Order) -> Figures:
        marks = self._open(order)
        self._run("many", 0, FILL_BATCH)
        with self._worker(order):
            self._run("warm", timing.WARM_UP_JOBS, timing.WARM_UP_NUMBER)
            timing.wait_for_count(marks, timing.WARM_UP_JOBS)
            begun = self._run("load", order.jobs, timing.GAP_SECONDS * 1000)["begun"]
            timing.wait_for_count(marks, timing.WARM_UP_JOBS + order.jobs)
        return timing.percentiles([int(each) for each in begun], marks)

    def _idle(self, order: Order) -> Figures:
        marks = self._open(order)
        self._run("many", 0, FILL_BATCH)
        with self._worker(order) as worker:
            self._run("warm", 1, timing.WARM_UP_NUMBER)
            timing.wait_for_count(marks, 1)
            time.sleep(1.0)
            return {"cpu": cpu_percent(worker.pid, order.idle_seconds), "rss": resident_megabytes(worker.pid)}

    def _open(self, order: Order) -> Marks:
        assert order.url is not None
        os.environ[URL_VARIABLE] = order.url
        os.environ[MARKS_VARIABLE] = str(order.folder / "marks")
        return Marks.create(order.folder / "marks", order.jobs)

    def _run(self, what: str, *arguments: float) -> dict[str, Any]:
        command = ["node", self._script, what, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self._script} {what} failed: {done.stderr[-500:]}")
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def _worker(self, order: Order) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return worker_process(["node", self._script, "worker"], order.folder / "worker.log", {})


# Two loops that take 5,000 jobs each and settle them as one, polling as fast as it allows.
PG_BOSS = NodePeer(
    "pg_boss.mjs", "SELECT count(*) FROM pgboss.job WHERE state < 'completed' AND name = 'noop'"
).measures()
# With its batched settings: a local queue of 500, completions gathered. It deletes finished jobs.
GRAPHILE_WORKER = NodePeer("graphile_worker.mjs", "SELECT count(*) FROM graphile_worker._private_jobs").measures()
