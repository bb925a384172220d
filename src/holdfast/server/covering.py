"""Jobs and schedules as a key may read them: what a type's schema marks as sensitive is for those who run the jobs, by
the scope work, and for administrators. Others see dots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from holdfast import codec, job_json, sensitive
from holdfast.app import Holdfast
from holdfast.handlers import Handler
from holdfast.job import JobView
from holdfast.server.principals import Principal

Schemas = Mapping[str, tuple[str, ...]]  # by job type; all that say something of a payload
_made: WeakKeyDictionary[Handler, str | None] = WeakKeyDictionary()


async def schemas(app: Holdfast, who: Principal) -> Schemas:
    """Those with marks in them. None for whoever may see all."""
    if who.may("work"):
        return {}
    found = [(each.job_type, each.payload_schema) for each in await app.store.job_types()]
    found += [(name, _own(handler)) for name, handler in app.handlers.items()]
    marked: dict[str, tuple[str, ...]] = {}
    for job_type, schema in found:
        if schema is not None and sensitive.has_marks(schema):
            marked[job_type] = (*marked.get(job_type, ()), schema)
    return marked


def _own(handler: Handler) -> str | None:
    """Of a type whose code is here, and may not have been announced yet. To make one takes milliseconds."""
    if handler not in _made:
        _made[handler] = handler.describe(0).payload_schema
    return _made[handler]


async def documents(app: Holdfast, who: Principal, jobs: Iterable[JobView]) -> list[dict[str, Any]]:
    known = await schemas(app, who)
    return [covered(known, job.job_type, job_json.document(job)) for job in jobs]


async def document(app: Holdfast, who: Principal, job: JobView) -> dict[str, Any]:
    return (await documents(app, who, [job]))[0]


def covered(known: Schemas, job_type: str, document: dict[str, Any]) -> dict[str, Any]:
    """A document that has a `payload`, without what nobody but workers should read in it."""
    said = known.get(job_type, ())
    if not said:
        return document
    payload = codec.decode(codec.encode(document["payload"]))
    for schema in said:
        payload = sensitive.masked(schema, payload)
    return document | {"payload": payload}
