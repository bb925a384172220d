"""Remote workers: registration, heartbeats, and the job types that they announce.

Their rows are stored with those of other workers. Their process_key names no process here, so maintenance never takes
one for dead; it only sees their leases expire.
"""

from __future__ import annotations

import asyncio

import msgspec

from backstay import codec, limits
from backstay.app import Backstay
from backstay.clock import MICROS, Instant
from backstay.core import access_keys, payload_schema, sensitive, workers
from backstay.core.checks import check_job_type
from backstay.core.records import JobType, WorkerRow
from backstay.core.workers import is_silent, renewal_seconds
from backstay.server.auth import ClaimTokens, Principal
from backstay.server.long_poll import Claims
from backstay.server.problems import Problem
from backstay.server.remote_settle import Settling
from backstay.server.request_models import RegisterBody

FAR = "remote"  # the process_key of a worker over HTTP
_GOOD_SECONDS = 5.0  # how long a row is cached: another server may register the worker again
_KNOWN_MAX = 10_000  # workers cached here; the store has all of them


class _Known(msgspec.Struct):
    row: WorkerRow
    read_at: float
    ended: int = 0  # since the last heartbeat was written
    failed: int = 0
    busy_micros: int = 0


class Roster:
    def __init__(self, app: Backstay) -> None:
        self._app = app
        self._known: dict[str, _Known] = {}

    async def enter(self, who: Principal, row: WorkerRow) -> WorkerRow:
        """Register a worker, or change its registration; its figures are kept."""
        before = await self._stored(row.worker_id)
        if before is not None:
            if not _is_own(who, before) and not (_is_far(who, before) and await self._is_left(before)):
                raise _taken(before)
            row = msgspec.structs.replace(
                row,
                started_at=before.started_at,
                running=before.running,
                ended=before.ended,
                failed=before.failed,
                busy_micros=before.busy_micros,
                marks=before.marks,
            )
        return await self._write(row)

    async def named(self, who: Principal, worker_id: str) -> WorkerRow:
        known = self._known.get(worker_id)
        if known is not None and self._app.clock.monotonic() - known.read_at < _GOOD_SECONDS:
            row: WorkerRow | None = known.row
        elif (row := await self._stored(worker_id)) is not None:
            self._remember(row)
        if row is None or not any(map(who.sees, row.queues)):
            raise Problem(
                404,
                "worker-not-found",
                f"no worker {worker_id}: send POST /workers/register first",
                title="No such worker",
            )
        return _check_own(who, row)

    async def beat(self, row: WorkerRow) -> None:
        await self._write(row)

    async def seen(self, row: WorkerRow) -> None:
        """Store that a worker is alive, from time to time, because it asks for jobs."""
        if self._app.clock.now() - row.heartbeat_at > renewal_seconds(self._app.lease_seconds) * MICROS:
            await self._write(row)

    async def leave(self, worker_id: str) -> None:
        if (known := self._known.get(worker_id)) is not None:
            await self._write(known.row)  # its last figures are kept
        self._known.pop(worker_id, None)
        await self._app.remote_work.forget(worker_id)

    def settled(self, worker_id: str | None, ran_micros: int, failed: bool) -> None:
        """Count an ended attempt of this worker; the next heartbeat stores it."""
        known = self._known.get(worker_id or "")
        if known is not None:
            known.ended += 1
            known.failed += failed
            known.busy_micros += max(0, ran_micros)

    async def _write(self, row: WorkerRow) -> WorkerRow:
        if (known := self._known.get(row.worker_id)) is not None:
            row = msgspec.structs.replace(
                row,
                ended=row.ended + known.ended,
                failed=row.failed + known.failed,
                busy_micros=row.busy_micros + known.busy_micros,
            )
        row = workers.marked(msgspec.structs.replace(row, heartbeat_at=self._app.clock.now()))
        await self._app.remote_work.beat(row)
        self._remember(row)
        return row

    async def _stored(self, worker_id: str) -> WorkerRow | None:
        return next(iter(await self._app.workers([worker_id])), None)

    def _remember(self, row: WorkerRow) -> None:
        while len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[row.worker_id] = _Known(row, self._app.clock.monotonic())

    async def _is_left(self, row: WorkerRow) -> bool:
        """Return whether a worker's name is free: the worker is silent, or its key was revoked or has expired. So a
        worker can come back with a new key."""
        now = self._app.clock.now()
        if is_silent(row, now):
            return True
        return not any(
            key.key_id == row.key_id and access_keys.is_live(key, now) for key in await self._app.key_records()
        )


def _check_own(who: Principal, row: WorkerRow) -> WorkerRow:
    """Refuse the name of another worker."""
    if not _is_own(who, row):
        raise _taken(row)
    return row


def _is_own(who: Principal, row: WorkerRow) -> bool:
    return _is_far(who, row) and (row.key_id in (None, who.key_id) or who.may("admin"))


def _is_far(who: Principal, row: WorkerRow) -> bool:
    """Return whether it is a remote worker that serves only queues that the key sees."""
    return row.process_key == FAR and all(map(who.sees, row.queues))


def _taken(row: WorkerRow) -> Problem:
    return Problem(
        409, "worker-id-taken", f"{row.worker_id} is the id of another worker: register with an id of your own"
    )


class RemoteWorkers:
    """What a server holds for its remote workers: their rows, the claims that wait, settlements, and claim tokens."""

    def __init__(self, app: Backstay) -> None:
        self.app = app
        self.roster = Roster(app)
        self.claims = Claims(app)
        self.settling = Settling(app)
        self._tokens: ClaimTokens | None = None

    async def tokens(self) -> ClaimTokens:
        if self._tokens is None:
            self._tokens = ClaimTokens(await self.app.server_secret())
        return self._tokens


_SEEN_MICROS = 3600 * MICROS  # how often the time at which a type was last seen is stored


async def announced(app: Backstay, who: Principal, body: RegisterBody) -> list[tuple[JobType | None, JobType]]:
    """Return each type that a worker would change: as stored, and as changed. Raise a Problem if one is refused. A type
    whose code is here, or whose queue the key does not see, is not changed."""
    now = app.clock.now()
    known = {each.job_type: each for each in await app.job_types()}
    found = []
    for name in dict.fromkeys(body.job_types):
        if check_job_type(name) in app.handlers:
            continue
        stored = known.get(name)
        if stored is not None and not who.sees(stored.queue):
            continue
        said = await _said(stored, name, who, body, now)
        if stored is None or _differs(said, stored):
            found.append((stored, said))
    return found


async def _said(stored: JobType | None, name: str, who: Principal, body: RegisterBody, now: Instant) -> JobType:
    version = body.versions.get(name, 1)
    schema = None
    if name in body.schemas:
        schema = await _checked(name, body.schemas[name], None if stored is None else stored.payload_schema)
    marks = sensitive.union(body.sensitive.get(name, ()), await asyncio.to_thread(sensitive.marks_of, schema))
    if stored is not None:
        if schema is None or (stored.version > version and not _is_key_of_admin(who)):
            return msgspec.structs.replace(stored, last_seen=now, sensitive=sensitive.union(stored.sensitive, marks))
        _check_version(stored, version, who)
        said = msgspec.structs.replace(stored, payload_schema=schema, version=version, last_seen=now, sensitive=marks)
        return sensitive.announced(stored, said)
    return JobType(
        job_type=name,
        queue="default" if "default" in body.queues else body.queues[0],
        priority=limits.PRIORITY,
        max_attempts=limits.MAX_ATTEMPTS,
        timeout_micros=round(limits.TIMEOUT_SECONDS * MICROS),
        payload_schema=schema,
        version=version,
        last_seen=now,
        sensitive=marks,
    )


def _is_key_of_admin(who: Principal) -> bool:
    """Return whether the key has the scope admin. Without keys, every client on this machine has all scopes, but an old
    worker must not override a new one."""
    return who.key_id is not None and who.may("admin")


def _check_version(stored: JobType, version: int, who: Principal) -> None:
    """Refuse a version that skips some: it goes up by one at a time, because older versions are ignored, so that a huge
    one would lock out all others."""
    if version > stored.version + 1 and not _is_key_of_admin(who):
        raise Problem(
            409,
            "version-too-high",
            f"payloads of {stored.job_type} are at version {stored.version}: announce {stored.version + 1} next, or use"
            " a key with the scope admin",
            title="A payload version goes up by one",
        )


def _differs(said: JobType, stored: JobType) -> bool:
    aged = said.last_seen - stored.last_seen > _SEEN_MICROS
    return aged or msgspec.structs.replace(said, last_seen=stored.last_seen) != stored


async def _checked(name: str, schema: dict[str, object], stored: str | None) -> str:
    """Return a schema as it is stored. A large one takes a second to check, in a thread."""
    text = codec.to_json(schema, f"schema of {name}")
    if text == stored:
        return text
    if len(text) > limits.SCHEMA_BYTES_MAX:
        wrong: str | None = f"it has more than {limits.SCHEMA_BYTES_MAX:,} bytes"
    else:
        wrong = await asyncio.to_thread(payload_schema.refusal, schema)
    if wrong is not None:
        raise Problem(422, "invalid-request", f"the schema of {name} cannot be used: {wrong}")
    return text
