"""Errors as clients get them: application/problem+json (RFC 9457), from one table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from holdfast import errors, keys
from holdfast.errors import HoldfastError
from holdfast.server.principals import Principal

log = logging.getLogger("holdfast.server")

MEDIA_TYPE = "application/problem+json"
PLACES_MAX = 20  # mistakes that are listed; a document can have as many as it has fields
AGAIN_SECONDS = 1  # when to ask again where nothing better is known


class Problem(Exception):
    """An answer that is not what was asked for."""

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
        """`instance` is the path that was asked for."""
        found = {"type": f"/problems/{self.slug}", "title": self.title, "status": self.status}
        found |= {} if self.detail is None else {"detail": self.detail}
        found |= {} if instance is None else {"instance": instance}
        return {**found, **self.fields}


# The first class that an error is of counts: put the special before the general.
STATUSES: dict[type[HoldfastError], tuple[int, str]] = {
    errors.PayloadTooLarge: (413, "payload-too-large"),
    errors.InvalidPayload: (422, "invalid-payload"),
    errors.UnknownJobType: (404, "unknown-job-type"),
    errors.UnknownDependency: (404, "unknown-dependency"),
    errors.DedupConflict: (409, "dedup-conflict"),
    errors.QueueFull: (429, "queue-full"),
    errors.InvalidSubmission: (422, "invalid-submission"),
    errors.JobNotFound: (404, "job-not-found"),
    errors.ArtifactNotFound: (404, "artifact-not-found"),
    errors.ScheduleNotFound: (404, "schedule-not-found"),
    errors.KeyNotFound: (404, "key-not-found"),
    errors.UnknownTable: (404, "unknown-table"),
    errors.IllegalTransition: (409, "illegal-transition"),
    errors.VersionConflict: (412, "version-conflict"),
    errors.ClaimLost: (409, "claim-lost"),
    errors.ResultGone: (410, "result-gone"),
    errors.RowsWithdrawn: (409, "rows-withdrawn"),
    errors.InvalidRow: (422, "invalid-row"),
    errors.ResultTooLarge: (413, "result-too-large"),
    errors.InvalidResult: (422, "invalid-result"),
    errors.StoreFull: (507, "store-full"),
    errors.StoreBusy: (503, "store-busy"),
    errors.StoreUnavailable: (503, "store-unavailable"),
    errors.StoreMoved: (503, "store-moved"),
    errors.StoreError: (503, "store-unavailable"),
    errors.SchemaMismatch: (503, "schema-mismatch"),
    errors.NotOpen: (503, "not-open"),
}

TITLES = {
    "payload-too-large": "The payload is too large",
    "invalid-payload": "The payload does not fit its job type",
    "unknown-job-type": "No such job type",
    "unknown-dependency": "No such job to depend on",
    "dedup-conflict": "The dedup key is taken by another payload",
    "queue-full": "The queue is full",
    "invalid-submission": "What was sent cannot be accepted",
    "job-not-found": "No such job",
    "artifact-not-found": "No such artifact",
    "schedule-not-found": "No such schedule",
    "key-not-found": "No such key",
    "unknown-table": "No such result table",
    "illegal-transition": "The job's state does not allow this",
    "version-conflict": "The job has changed since it was read",
    "claim-lost": "The claim is lost",
    "result-gone": "The result is gone",
    "rows-withdrawn": "The rows are withdrawn",
    "invalid-row": "A row cannot be accepted",
    "result-too-large": "The result is too large",
    "invalid-result": "The result is not JSON",
    "store-full": "The store is full",
    "store-busy": "The store is busy",
    "store-unavailable": "The store is not available",
    "store-moved": "The queue has moved",
    "schema-mismatch": "The store has another schema",
    "not-open": "The app is not open",
    "unauthenticated": "A key is needed",
    "out-of-scope": "The key may not do this",
    "foreign-queue": "The key does not reach this queue",
    "invalid-request": "The request cannot be accepted",
    "not-found": "No such path",
    "method-not-allowed": "No such method here",
    "invalid-json": "The body is not JSON that can be kept",
    "body-too-large": "The body is too large",
    "encoded-body": "The body is encoded",
    "unsupported-media-type": "The body is of another type",
    "bad-length": "The length of the body is no number",
    "two-lengths": "The body has two lengths",
    "repeated-header": "A header stands there twice",
    "key-in-url": "A key in the URL",
    "unknown-host": "No such host here",
    "no-keys": "Only this machine may ask",
    "foreign-origin": "This came from another site",
    "too-slow": "The request came too slowly",
    "too-slow-here": "The answer took too long",
    "too-many-failures": "Too many wrong keys",
    "too-many-requests": "Too many requests",
    "idempotency-key-reused": "The Idempotency-Key was used for something else",
    "already-completed": "The job has completed with another result",
    "internal": "Something went wrong here",
}

_OF_THE_STORE = {
    "store-full": "the store has no room left, and nothing was stored: try again when its operators have made room",
    "store-busy": "the store has too much to do: try again in a moment",
    "store-unavailable": "the store does not answer: try again in a moment; the log of the server says more",
    "store-moved": "the queue has moved to another store, and this server has to be started with its new location",
    "schema-mismatch": "the store has the schema of another release; the log of the server says more",
}


def of_error(error: HoldfastError, within: tuple[str, ...] = (), *, to: Principal | None = None) -> Problem:
    """What an error of ours is over HTTP. `within`: where in the request the payload stood, if that is to blame. `to`:
    who is told, where that is known."""
    for kind, (status, slug) in STATUSES.items():
        if isinstance(error, kind):
            again: dict[str, Any] = {"retry_after": AGAIN_SECONDS} if status in (429, 503) else {}
            places: dict[str, Any] = {"errors": _places(error, within)} if slug == "invalid-payload" else {}
            return Problem(status, slug, _said(error, slug, to), **again, **places)
    return Problem(500, "internal", str(error))


def _said(error: HoldfastError, slug: str, to: Principal | None) -> str:
    """What is wrong with a store names hosts, files and databases, which are nobody's business but the operators'."""
    said = _OF_THE_STORE.get(slug)
    if said is None:
        return str(error)
    log.warning("%s: %s", TITLES[slug], keys.masked(str(error)))
    if slug == "store-moved" and to is not None and to.may("admin") and to.sees_all:
        return str(error)
    return said


def _places(error: HoldfastError, within: tuple[str, ...]) -> list[dict[str, str]]:
    """What does not fit, as mistakes of a body are told."""
    found = getattr(error, "places", None) or [((), str(error))]
    return [
        {"loc": ".".join(map(str, (*within, "payload", *place))), "msg": message}
        for place, message in found[:PLACES_MAX]
    ]


def unauthenticated(detail: str = "send a key as `Authorization: Bearer …` or `X-API-Key`") -> Problem:
    return Problem(401, "unauthenticated", detail, headers={"WWW-Authenticate": 'Bearer realm="holdfast"'})


def out_of_scope(scopes: Sequence[str]) -> Problem:
    return Problem(403, "out-of-scope", f"this takes a key with the scope {' or '.join(scopes)}")


def foreign_queue(queue: str) -> Problem:
    return Problem(403, "foreign-queue", f"the key's patterns of queues do not cover {queue}")


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of a route: the problems that it can answer with, beside those that any route can."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}
