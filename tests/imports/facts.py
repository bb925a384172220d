"""What must be equal on both sides of an import, read on each side without the code that imports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Any

from backstay import Backstay, Job

Facts = tuple[Any, ...]


def digest(facts: Iterable[Facts]) -> tuple[int, str]:
    """How many, and the sum of their hashes: two sides need not have the same order."""
    count = total = 0
    for each in facts:
        count += 1
        hashed = hashlib.sha256(json.dumps(each, sort_keys=True, default=str).encode()).digest()
        total = (total + int.from_bytes(hashed)) % 2**256
    return count, f"{total:064x}"


def utc(value: Any) -> str | None:
    """A time in one spelling; one without a zone is UTC."""
    if value is None or value == "":
        return None
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


async def jobs_of(app: Backstay) -> AsyncIterator[Job]:
    after = None
    while True:
        page = await app.find(after=after, limit=500)
        for job in page:
            yield job
        after = page.next
        if after is None:
            return


def own_id(job: Job) -> str:
    """The id that a job had in the source: a tag, if it was not a UUID."""
    return next((tag for tag in job.tags if not tag.startswith("project:")), job.job_id)
