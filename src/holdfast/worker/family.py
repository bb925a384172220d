"""What a run has submitted of children, until it is settled."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter

import msgspec

from holdfast import ids
from holdfast.lifecycle import Said, Staged
from holdfast.limits import CHILDREN_PART_MAX, STAGED_PART_BYTES_MAX
from holdfast.newjob import NewJob
from holdfast.store.types import JobRecord

_OVERHEAD_BYTES = 600  # of a job beside its payload, about


class Known(msgspec.Struct, frozen=True, gc=False):
    """A child of this run: what another one under its id is compared with."""

    job_type: str
    payload: str  # its digest: ten thousand payloads are not kept twice


class Family:
    """Children that were stored before this run, and those that go with its settlement, or are staged for it."""

    def __init__(self, parent_id: str) -> None:
        self._parent_id = parent_id
        self.stored: dict[str, JobRecord] = {}  # as they were when the run began; not more than are loaded
        self.at_once: dict[str, JobRecord] = {}  # stored by this run, before its settlement
        self.known: dict[str, Known] = {}
        # Every child that this run has submitted, in that order, stored before or not; if by a key, with a digest.
        self.named: dict[str, str] = {}
        self.pending: list[NewJob] = []
        self.pending_bytes = 0
        self.staging = asyncio.Lock()  # a handler may submit from many tasks at once
        self.parts = 0
        self.staged_jobs = 0
        self._alike: Counter[str] = Counter()

    def id_of(self, job_type: str, payload: str, key: str | None) -> str:
        """The same for the same child of every run: equal ones of one run are told apart by counting them."""
        if key is not None:
            return ids.derived(self._parent_id, f"key|{key}")
        alike = f"{job_type}|{digest(payload)}"
        self._alike[alike] += 1
        return ids.derived(self._parent_id, f"job|{job_type}|{self._alike[alike] - 1}|{payload}")

    def add(self, job: NewJob) -> None:
        self.known[job.job_id] = Known(job.job_type, digest(job.payload))
        self.pending.append(job)
        self.pending_bytes += _size(job)

    @property
    def is_full(self) -> bool:
        """Whether what is pending makes a part that can be staged."""
        return len(self.pending) >= CHILDREN_PART_MAX or self.pending_bytes >= STAGED_PART_BYTES_MAX

    def take(self) -> list[NewJob]:
        """What is pending, which is nobody else's to stage from here on."""
        jobs = self.pending
        self.keep([])
        return jobs

    def keep(self, jobs: list[NewJob]) -> None:
        self.pending, self.pending_bytes = jobs, sum(map(_size, jobs))

    def put_back(self, jobs: list[NewJob]) -> None:
        """Before those that have come meanwhile: children come after what they depend on."""
        self.keep([*jobs, *self.pending])

    def staged(self, jobs: list[NewJob]) -> None:
        self.parts += 1
        self.staged_jobs += len(jobs)

    def said(self) -> Said:
        if self.parts:
            return Said(staged=Staged(self.parts, self.staged_jobs))
        return Said(children=tuple(self.pending)) if self.pending else Said()

    def unsay(self) -> None:
        """What would have come with the settlement does not."""
        self.known.clear()
        self.named.clear()
        self._alike.clear()
        self.keep([])
        self.parts = self.staged_jobs = 0

    def __bool__(self) -> bool:
        """Whether anything goes with the settlement."""
        return bool(self.pending or self.parts)


def digest(payload: str) -> str:
    return hashlib.sha256(payload.encode()).hexdigest()


def in_parts(jobs: list[NewJob]) -> list[list[NewJob]]:
    parts: list[list[NewJob]] = [[]]
    size = 0
    for job in jobs:
        if parts[-1] and (len(parts[-1]) >= CHILDREN_PART_MAX or size + _size(job) > STAGED_PART_BYTES_MAX):
            parts.append([])
            size = 0
        parts[-1].append(job)
        size += _size(job)
    return parts


def _size(job: NewJob) -> int:
    return len(job.payload) + 40 * len(job.depends_on) + _OVERHEAD_BYTES
