"""Schedules declared in code, and which code holds while old and new code run side by side. Pure.

The store remembers of each app a digest of what the code declares that holds now, and the digests that it has replaced.
Code that the store has not seen is newer, and replaces it. Code that was replaced is older: it changes nothing as long
as a worker with the newer code lives, so that an old worker that starts again in the middle of a deploy does not undo
it; after a rollback, when the workers with the newer code are gone, it holds again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core import schedules, workers
from backstay.core.records import Declaration, JobTemplate, Schedule, WorkerRow
from backstay.core.schedules import Timing
from backstay.limits import SUPERSEDED_MAX


class DeclaredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule in code: with its job if the handler is in the same code, otherwise with what its type needs."""

    name: str
    when: Timing
    job_type: str
    job: JobTemplate | None
    payload: Any = None
    options: Mapping[str, Any] = {}


class Code(msgspec.Struct, frozen=True):
    """What the code of an app declares."""

    origin: str
    schedules: tuple[DeclaredSchedule, ...]
    job_types: tuple[str, ...]  # that it handles
    digest: str

    @classmethod
    def of(cls, origin: str, declared: Iterable[DeclaredSchedule], job_types: Iterable[str]) -> Code:
        listed = tuple(sorted(declared, key=lambda each: each.name))
        return cls(origin, listed, tuple(sorted(job_types)), _digest(listed))


def _digest(declared: Iterable[DeclaredSchedule]) -> str:
    told = [
        (
            each.name,
            each.when,
            each.job_type,
            None if each.job is None else schedules.template_text(each.job),
            each.payload,
            {name: str(value) for name, value in sorted(each.options.items())},
        )
        for each in declared
    ]
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:24]


class Standing(Enum):
    """How the code of a worker stands to the code that holds."""

    CURRENT = "it is that code"
    NEWER = "it replaces that code"
    OLDER = "newer code holds, and a worker with it lives"
    FOREIGN = "another app has the same name"


def standing(stored: Declaration | None, code: Code, living: Iterable[WorkerRow]) -> Standing:
    """`living`: the workers that take jobs now, at least those of this app."""
    if stored is None:
        return Standing.NEWER
    if stored.digest == code.digest:
        return Standing.CURRENT
    if not any((each.origin, each.declares) == (stored.origin, stored.digest) for each in living):
        return Standing.NEWER
    if not set(stored.job_types) & set(code.job_types):
        return Standing.FOREIGN
    return Standing.OLDER if code.digest in stored.superseded else Standing.NEWER


def replaced(stored: Declaration | None, code: Code, now: Instant) -> Declaration:
    """Return the declaration when this code holds. It still names what the replaced code declared: that is removed
    after it is stored."""
    names = {each.name for each in code.schedules}
    if stored is None:
        return Declaration(
            origin=code.origin, digest=code.digest, since=now, names=tuple(sorted(names)), job_types=code.job_types
        )
    earlier = [stored.digest, *(each for each in stored.superseded if each not in (stored.digest, code.digest))]
    return Declaration(
        origin=code.origin,
        digest=code.digest,
        since=now,
        names=tuple(sorted(names | set(stored.names))),
        job_types=code.job_types,
        superseded=tuple(earlier[:SUPERSEDED_MAX]),
        version=stored.version + 1,
    )


def settled(stored: Declaration, code: Code) -> Declaration | None:
    """Return the declaration once everything else is removed; None if it is stored like that."""
    names = tuple(each.name for each in code.schedules)
    if names == stored.names:
        return None
    return msgspec.structs.replace(stored, names=names, version=stored.version + 1)


def to_remove(stored: Iterable[Schedule], code: Code) -> list[Schedule]:
    """Return the schedules that the app declared once and does not declare any more."""
    names = {each.name for each in code.schedules}
    return [each for each in stored if each.declared_by == code.origin and each.name not in names]


def living(rows: Iterable[WorkerRow], now: Instant) -> list[WorkerRow]:
    """Return the workers that take jobs."""
    return [row for row in rows if workers.takes_jobs(row, now) and not workers.is_dead(row.process_key)]
