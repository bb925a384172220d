"""A job as a JSON document: the one place that makes it, for the command line and over HTTP.

Payload and result are put in as they are stored: a page of jobs is not parsed only to be written again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import codec
from holdfast.job import FIELDS, Job, JobView

_NULL = msgspec.Raw(b"null")
_READ_AS = {name: name for name in FIELDS if name not in ("payload", "result")}


def document(job: JobView) -> dict[str, Any]:
    """The fields of the contract, for codec.encode. A large result, which is kept in a file, is null here."""
    record = job.record
    found = {name: getattr(job, name) if name in _READ_AS else None for name in FIELDS}
    found["payload"] = raw(record.payload)
    found["result"] = raw(record.result)
    return found


def whole(job: Job) -> dict[str, Any]:
    """The same with a large result, which is read from its file: not for an event loop."""
    found = document(job)
    if job.record.result_artifact is not None:
        found["result"] = raw(job.result_text())
    return found


def raw(text: str | None) -> msgspec.Raw:
    """Stored JSON as it is. What somebody wrote past Holdfast and is none is shown as a text, and breaks no page."""
    if text is None:
        return _NULL
    try:
        return codec.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return msgspec.Raw(codec.encode(text))
