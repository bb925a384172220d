"""What an insert answers. All that can fail is read before the commit: after it the jobs are in, and who is told of an
error then would submit them again."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from holdfast.errors import HoldfastError, StoreError
from holdfast.lifecycle import Status
from holdfast.store.types import Inserted, JobRecord
from holdfast.stores.dynamodb import items, reading
from holdfast.stores.dynamodb.deciding import Decided
from holdfast.stores.dynamodb.ground import Ground


async def existing(ground: Ground, decided: Decided) -> dict[str, JobRecord]:
    """The jobs that were there before, and answer for others."""
    ids = [job_id for job_id in _named(decided) if job_id not in decided.news]
    found: dict[str, JobRecord] = {}
    for job_id, record in zip(ids, await reading.get(ground, ids) if ids else (), strict=True):
        if record is None:
            raise StoreError(f"job {job_id} was removed while it answered for another: submit again")
        found[job_id] = record
    return found


def answers(
    decided: Decided, found: Mapping[str, JobRecord], statuses: Mapping[str, Status | None] | None = None
) -> list[Inserted]:
    """In order, as the jobs were decided where nothing newer is known of them."""
    given: list[Inserted] = []
    for answer in decided.answers:
        if isinstance(answer, Inserted):
            status = (statuses or {}).get(answer.job_id) or answer.status
            given.append(Inserted(answer.job_id, status, reused_from=answer.reused_from))
        else:
            record = found[answer] if answer in found else items.record(decided.news[answer].item, {})
            given.append(Inserted(answer, record.status, existing=record))
    return given


async def after_commit(ground: Ground, decided: Decided, found: dict[str, JobRecord]) -> list[Inserted]:
    """With a look at those that others of the same batch answer for, and at those that were linked, if there is one."""
    twins = [job_id for job_id in _named(decided) if job_id in decided.news]
    linked = [new.job.job_id for new in decided.news.values() if new.linked_later]
    statuses: dict[str, Status | None] = {}
    with contextlib.suppress(HoldfastError):
        if twins:
            stored = zip(twins, await reading.get(ground, twins), strict=True)
            found = found | {job_id: record for job_id, record in stored if record is not None}
        if linked:
            statuses = dict(zip(linked, await reading.statuses(ground, linked), strict=True))
    return answers(decided, found, statuses)


def _named(decided: Decided) -> list[str]:
    return list(dict.fromkeys(answer for answer in decided.answers if isinstance(answer, str)))
