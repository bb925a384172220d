"""What remote workers tell of their job types: kept with the store, so that others can submit to them."""

from __future__ import annotations

import msgspec

from holdfast import codec, limits, schemas
from holdfast.app import Holdfast
from holdfast.checks import check_job_type
from holdfast.clock import MICROS, Instant
from holdfast.errors import InvalidPayload
from holdfast.server.principals import Principal
from holdfast.server.problems import Problem
from holdfast.server.remote_bodies import RegisterBody
from holdfast.store.types import JobType

_SEEN_MICROS = 3600 * MICROS  # how old the last sight of a type may get before it is written anew
_SCHEMA_BYTES_MAX = 64 * limits.KIB


async def announce(app: Holdfast, who: Principal, body: RegisterBody) -> None:
    """A type whose code is here, or that belongs to queues which the key does not see, stays as it is."""
    now = app.clock.now()
    known = {each.job_type: each for each in await app.store.job_types()}
    changed = []
    for name in dict.fromkeys(body.job_types):
        if check_job_type(name) in app.handlers:
            continue
        stored = known.get(name)
        if stored is not None and not who.sees(stored.queue):
            continue
        said = _said(stored, name, body, now)
        if stored is None or _differs(said, stored):
            changed.append(said)
    if changed:
        await app.store.announce(changed)


def _said(stored: JobType | None, name: str, body: RegisterBody, now: Instant) -> JobType:
    schema = None if name not in body.schemas else _checked(name, body.schemas[name])
    version = body.versions.get(name, 1)
    if stored is not None:
        if stored.version > version or schema is None:
            return msgspec.structs.replace(stored, last_seen=now)
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


def _differs(said: JobType, stored: JobType) -> bool:
    aged = said.last_seen - stored.last_seen > _SEEN_MICROS
    return aged or msgspec.structs.replace(said, last_seen=stored.last_seen) != stored


def _checked(name: str, schema: dict[str, object]) -> str:
    """A schema as it is kept. Every later submit is checked with it, so it must not reach out, nor run in rings."""
    text = codec.to_json(schema, f"schema of {name}")
    wrong = None
    if len(text) > _SCHEMA_BYTES_MAX:
        wrong = f"it has more than {_SCHEMA_BYTES_MAX:,} bytes"
    elif any(not str(each).startswith("#") for each in _references(schema)):
        wrong = "it refers to something outside itself: put it in with $defs"
    else:
        try:
            schemas.check(name, text, "null")
        except InvalidPayload:
            pass  # it works: it says what does not fit
        except RecursionError:
            wrong = "it refers to itself without an end"
        except Exception as error:
            wrong = f"it is no JSON Schema ({type(error).__name__})"
    if wrong is not None:
        raise Problem(422, "invalid-request", f"the schema of {name} cannot be used: {wrong}")
    return text


def _references(part: object) -> list[object]:
    found: list[object] = []
    waiting = [part]
    while waiting:
        match waiting.pop():
            case dict() as mapping:
                found += [value for key, value in mapping.items() if key in ("$ref", "$dynamicRef", "$recursiveRef")]
                waiting += mapping.values()
            case list() as items:
                waiting += items
            case _:
                pass
    return found
