"""What remote workers tell of their job types: kept with the store, so that others can submit to them."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
from fastapi import Request

from holdfast import codec, foreign_schemas, limits
from holdfast.app import Holdfast
from holdfast.checks import check_job_type
from holdfast.clock import MICROS, Instant
from holdfast.server import changes
from holdfast.server.principals import Principal
from holdfast.server.problems import Problem
from holdfast.server.remote_bodies import RegisterBody
from holdfast.store.types import JobType

_SEEN_MICROS = 3600 * MICROS  # how old the last sight of a type may get before it is written anew


async def announced(app: Holdfast, who: Principal, body: RegisterBody) -> list[tuple[JobType | None, JobType]]:
    """Each type that a worker would change: as it stands in the store, and as it would. A Problem where one is refused.
    A type whose code is here, or that belongs to queues which the key does not see, stays as it is."""
    now = app.clock.now()
    known = {each.job_type: each for each in await app.store.job_types()}
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


async def announce(
    app: Holdfast, who: Principal, request: Request, found: list[tuple[JobType | None, JobType]]
) -> None:
    """What others' submits are checked by is changed under the name of who changed it."""
    seen = [said for stored, said in found if stored is not None and _trace(stored) == _trace(said)]
    if seen:
        await app.store.announce(seen)
    for stored, said in found:
        if said in seen:
            continue
        before = None if stored is None else _trace(stored)
        async with changes.audited(app, who, request, "type.announce", said.job_type, before) as entry:
            await app.store.announce([said])
            entry.after = _trace(said)


def _trace(said: JobType) -> dict[str, Any]:
    """A schema is too long for the trail: its hash tells whether it is the same."""
    text = said.payload_schema
    schema = None if text is None else f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}, {len(text):,} bytes"
    return {"version": said.version, "queue": said.queue, "schema": schema}


async def _said(stored: JobType | None, name: str, who: Principal, body: RegisterBody, now: Instant) -> JobType:
    version = body.versions.get(name, 1)
    schema = None
    if name in body.schemas:
        schema = await _checked(name, body.schemas[name], None if stored is None else stored.payload_schema)
    if stored is not None:
        if schema is None or (stored.version > version and not _is_key_of_admin(who)):
            return msgspec.structs.replace(stored, last_seen=now)
        _check_version(stored, version, who)
        return msgspec.structs.replace(stored, payload_schema=schema, version=version, last_seen=now)
    return JobType(
        job_type=name,
        queue="default" if "default" in body.queues else body.queues[0],
        priority=limits.PRIORITY,
        max_attempts=limits.MAX_ATTEMPTS,
        timeout_micros=round(limits.TIMEOUT_SECONDS * MICROS),
        payload_schema=schema,
        version=version,
        last_seen=now,
    )


def _is_key_of_admin(who: Principal) -> bool:
    """Where there are no keys everyone on this machine has all scopes, and an old worker must not undo a new one."""
    return who.key_id is not None and who.may("admin")


def _check_version(stored: JobType, version: int, who: Principal) -> None:
    """Older versions than the stored one are not listened to: a huge one would lock everybody else out."""
    if version > stored.version + 1 and not _is_key_of_admin(who):
        raise Problem(
            409,
            "version-too-high",
            f"payloads of {stored.job_type} are at version {stored.version}: announce {stored.version + 1} next, or use"
            " a key with the scope admin",
            title="The version of a payload goes up by one",
        )


def _differs(said: JobType, stored: JobType) -> bool:
    aged = said.last_seen - stored.last_seen > _SEEN_MICROS
    return aged or msgspec.structs.replace(said, last_seen=stored.last_seen) != stored


async def _checked(name: str, schema: dict[str, object], stored: str | None) -> str:
    """A schema as it is kept. Looking at a large one takes a second, in which others are answered."""
    text = codec.to_json(schema, f"schema of {name}")
    if text == stored:
        return text
    if len(text) > limits.SCHEMA_BYTES_MAX:
        wrong: str | None = f"it has more than {limits.SCHEMA_BYTES_MAX:,} bytes"
    else:
        wrong = await asyncio.to_thread(foreign_schemas.refusal, schema)
    if wrong is not None:
        raise Problem(422, "invalid-request", f"the schema of {name} cannot be used: {wrong}")
    return text
