"""The ledger of a storm: files that the processes write by themselves, one line per write to the kernel.

A line survives the death of its process. Submitters sync as well, so that an acknowledgement that they write down is as
durable as the job is promised to be. Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

FOLDER = "BACKSTAY_STORM_LEDGER"  # the environment variable, for handlers in children of workers


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """A handler began or ended an attempt. The nonce is in the result, if there is one."""

    job_id: str
    attempt: int
    nonce: str
    at: int
    what: Literal["begin", "end"]
    kind: str = ""
    key: str = ""  # the concurrency or rate key


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written before a submit, and again once it was acknowledged."""

    job_ids: tuple[str, ...]
    kinds: tuple[str, ...]
    at: int
    acknowledged: bool = False
    dedup_key: str = ""
    answered: str = ""  # the id that the queue answered with
    depends_on: dict[str, list[str]] = {}  # job id, to those that have to complete before it begins
    delays: dict[str, float] = {}  # job id, to seconds from now before which it must not begin


class Cancelled(msgspec.Struct, frozen=True):
    """Written before a cancellation, and again once it was acknowledged."""

    job_id: str
    acknowledged: bool = False


class Scribe:
    """Appends lines to a file of this process."""

    def __init__(self, folder: Path, ending: str, *, sync: bool = False) -> None:
        name = f"{os.getpid()}-{secrets.token_hex(4)}.{ending}"
        self._descriptor = os.open(folder / name, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        self._sync = sync
        self.pid = os.getpid()

    def write(self, line: msgspec.Struct) -> None:
        os.write(self._descriptor, msgspec.json.encode(line) + b"\n")
        if self._sync:
            os.fdatasync(self._descriptor)


class Runs:
    """Notes the runs of this process."""

    def __init__(self) -> None:
        self._scribe: Scribe | None = None

    def begin(self, job_id: str, attempt: int, kind: str, key: str = "") -> Run:
        run = Run(job_id, attempt, secrets.token_hex(6), time.monotonic_ns(), "begin", kind, key)
        self._write(run)
        return run

    def end(self, run: Run) -> str:
        """Write the end of a run, before its result is returned; return its nonce."""
        self._write(msgspec.structs.replace(run, at=time.monotonic_ns(), what="end"))
        return run.nonce

    def _write(self, run: Run) -> None:
        if self._scribe is None or self._scribe.pid != os.getpid():  # a worker is a fork
            self._scribe = Scribe(Path(os.environ[FOLDER]), "runs")
        self._scribe.write(run)


class Ledger(msgspec.Struct):
    """All that was written in a storm."""

    asked: list[Asked]
    cancelled: dict[str, bool]  # job id, to whether it was acknowledged
    runs: list[Run]

    @property
    def acknowledged(self) -> set[str]:
        """Return the ids of all jobs that the queue has acknowledged."""
        return {each.answered or job_id for each in self.asked if each.acknowledged for job_id in each.job_ids}


def read(folder: Path) -> Ledger:
    ledger = Ledger([], {}, [])
    for path in sorted(folder.glob("*.submits")):
        ledger.asked += msgspec.json.decode(_array(path), type=list[Asked])
    for path in sorted(folder.glob("*.cancels")):
        for each in msgspec.json.decode(_array(path), type=list[Cancelled]):
            ledger.cancelled[each.job_id] = ledger.cancelled.get(each.job_id, False) or each.acknowledged
    for path in sorted(folder.glob("*.runs")):
        ledger.runs += msgspec.json.decode(_array(path), type=list[Run])
    return ledger


def _array(path: Path) -> bytes:
    return b"[" + b",".join(_lines(path)) + b"]"


def _lines(path: Path) -> Iterator[bytes]:
    *whole, _ = path.read_bytes().split(b"\n")  # a line that was not finished was not written
    yield from whole
