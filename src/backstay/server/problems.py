"""Errors as clients get them: application/problem+json (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from itertools import islice
from typing import Any

from backstay.core import access_keys
from backstay.errors import PROBLEM_MEDIA_TYPE, PROBLEMS, BackstayError, VersionConflict

log = logging.getLogger("backstay.server")

PLACES_MAX = 20  # errors that are listed; a document can have one per field
AGAIN_SECONDS = 1  # when to retry, if nothing better is known


class Problem(Exception):
    """An error as a response."""

    def __init__(
        self,
        status: int,
        slug: str,
        detail: str | None = None,
        *,
        title: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(detail or title or slug)
        self.status = status
        self.slug = slug
        self.title = title or TITLES.get(slug) or HTTPStatus(status).phrase
        self.detail = detail
        self.headers = dict(headers or {})
        self.fields = fields
        if "retry_after" in fields:
            self.headers.setdefault("Retry-After", str(fields["retry_after"]))

    def document(self, instance: str | None = None) -> dict[str, Any]:
        """Return the problem document; `instance` is the requested path."""
        found = {"type": f"/problems/{self.slug}", "title": self.title, "status": self.status}
        found |= {} if self.detail is None else {"detail": self.detail}
        found |= {} if instance is None else {"instance": instance}
        return {**found, **self.fields}


TITLES = {
    "payload-too-large": "The payload is too large",
    "invalid-payload": "The payload does not match its job type",
    "unknown-job-type": "No such job type",
    "unknown-dependency": "No such job to depend on",
    "dedup-conflict": "The dedup key is taken by another payload",
    "queue-full": "The queue is full",
    "invalid-submission": "The submission is invalid",
    "job-not-found": "No such job",
    "artifact-not-found": "No such artifact",
    "schedule-not-found": "No such schedule",
    "key-not-found": "No such key",
    "unknown-table": "No such result table",
    "illegal-transition": "The job's state does not allow this",
    "version-conflict": "The job has changed since it was read",
    "invalid-event": "The event does not fit",
    "event-refused": "The job receives no events",
    "events-full": "There are too many events",
    "claim-lost": "The claim is lost",
    "result-gone": "The result is gone",
    "rows-withdrawn": "The rows were withdrawn",
    "invalid-row": "The row is invalid",
    "result-too-large": "The result is too large",
    "invalid-result": "The result is not JSON",
    "store-full": "The store is full",
    "store-busy": "The store is busy",
    "store-unavailable": "The store is not available",
    "store-moved": "The queue was transferred",
    "schema-mismatch": "The store has another schema",
    "not-open": "The app is not open",
    "unauthenticated": "A key is needed",
    "out-of-scope": "The key is not allowed to do this",
    "foreign-queue": "The key has no access to this queue",
    "invalid-request": "The request is invalid",
    "not-found": "No such path",
    "method-not-allowed": "Method not allowed",
    "invalid-json": "The body is not valid JSON",
    "body-too-large": "The body is too large",
    "encoded-body": "The body has a content encoding",
    "unsupported-media-type": "The body has the wrong media type",
    "bad-length": "The length of the body is not a number",
    "two-lengths": "The body has two lengths",
    "repeated-header": "A header was sent twice",
    "key-in-url": "The URL contains a key",
    "unknown-host": "Unknown host name",
    "no-keys": "Only the local machine has access",
    "foreign-origin": "The request came from another site",
    "too-slow": "The request arrived too slowly",
    "too-slow-here": "The response took too long",
    "too-many-failures": "Too many wrong keys",
    "too-many-requests": "Too many requests",
    "idempotency-key-reused": "The Idempotency-Key was used for something else",
    "already-completed": "The job completed with another result",
    "internal": "Internal error",
}

_OF_THE_STORE = {
    "store-full": "the store is out of space, and nothing was stored: try again when its operators have freed some",
    "store-busy": "the store is busy: try again in a moment",
    "store-unavailable": "the store is not responding: try again in a moment; see the server log for details",
    "store-moved": "the queue was transferred to another store: restart this server with its new URL",
    "schema-mismatch": "the store has the schema of another release; see the server log for details",
}


def of_error(error: BackstayError, within: tuple[str, ...] = (), *, to_operator: bool = False) -> Problem:
    """Return the problem for an error of ours. `within`: where in the request the payload was, if the error is about
    it. `to_operator`: whether the client may learn the location of the store."""
    for kind, (status, slug) in PROBLEMS.items():
        if isinstance(error, kind):
            again: dict[str, Any] = {"retry_after": AGAIN_SECONDS} if status in (429, 503) else {}
            places: dict[str, Any] = {"errors": _places(error, within)} if slug == "invalid-payload" else {}
            return Problem(status, slug, _detail(error, slug, to_operator), **again, **places)
    return Problem(500, "internal", str(error))


def _detail(error: BackstayError, slug: str, to_operator: bool) -> str:
    """Return the detail of an error. Errors of a store name hosts, files and databases, which only operators should
    see."""
    said = _OF_THE_STORE.get(slug)
    if said is None:
        return str(error)
    log.warning("%s: %s", TITLES[slug], access_keys.masked(str(error)))
    if slug == "store-moved" and to_operator:
        return str(error)
    return said


def _places(error: BackstayError, within: tuple[str, ...]) -> list[dict[str, str]]:
    """Return what is wrong with a payload, in the form of validation errors of a body."""
    found = getattr(error, "places", None) or [((), str(error))]
    return [
        {"loc": ".".join(map(str, (*within, "payload", *place))), "msg": message}
        for place, message in found[:PLACES_MAX]
    ]


def unauthenticated(detail: str = "send a key as `Authorization: Bearer …` or `X-API-Key`") -> Problem:
    return Problem(401, "unauthenticated", detail, headers={"WWW-Authenticate": 'Bearer realm="backstay"'})


def out_of_scope(scopes: Sequence[str]) -> Problem:
    return Problem(403, "out-of-scope", f"this needs a key with the scope {' or '.join(scopes)}")


def foreign_queue(queue: str) -> Problem:
    return Problem(403, "foreign-queue", f"the key's queue patterns do not cover {queue}")


def invalid(errors: Iterable[Mapping[str, Any]]) -> Problem:
    """Return the problem for what a model found wrong: the first error in words, and all of them with their places. It
    never has a value, which may be a secret."""
    found = [
        {"loc": ".".join(str(part) for part in each["loc"]), "msg": str(each["msg"])}
        for each in islice(errors, PLACES_MAX)
    ]
    first = found[0] if found else {"loc": "", "msg": "it does not match"}
    detail = f"{first['loc']}: {first['msg']}" if first["loc"] else first["msg"]
    return Problem(422, "invalid-request", detail, errors=found)


@contextmanager
def raced(expected: int | None = None) -> Iterator[None]:
    """Wrap a change. Without an If-Match there is no precondition that could fail: the job or schedule kept changing,
    which is a conflict."""
    try:
        yield
    except VersionConflict as error:
        if expected is not None:
            raise
        raise Problem(409, "version-conflict", str(error)) from None


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of a route: the problems that it can answer with, besides those of every route."""
    content = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}
