"""Moves between places on PostgreSQL: jobs are locked, read and moved as sets.

A slow way locks the rows of its jobs in `job` first, in the order of their ids, and then their places. Claims,
completions and promotions lock only places, and move jobs on without waiting for the row in `job`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from backstay.engines import places, sql_rows
from backstay.engines.places import ENDED, LATER, READY, RUNNING, WAITING, EventRow, Move, Standing
from backstay.engines.postgres.connection import Tx

_EVENT_FIELDS = EventRow.__struct_fields__
_IN_LINE = ("attempt", "failures", "version", "awaited", "parked", "expires_at")


async def standings(tx: Tx, job_ids: Sequence[str]) -> dict[str, Standing]:
    """Return how jobs stand; the caller has locked what must not change."""
    if not job_ids:
        return {}
    found = (places.standing_from(tuple(row)) for row in await tx.rows("standings", list(job_ids)))
    return {job.job_id: job for job in found}


async def locked(tx: Tx, job_ids: Sequence[str], others: Sequence[str] = ()) -> dict[str, Standing]:
    """Hold the places of jobs, whose rows in `job` are locked, and return how they stand; those of others, too, which
    are only held."""
    await tx.value("lock_places", [*job_ids, *others])
    return await standings(tx, job_ids)


async def write(tx: Tx, moves: Sequence[Move]) -> None:
    """Write moves of jobs that are locked; several of a job, in order, as one."""
    chains: dict[str, list[Move]] = {}
    for each in moves:
        chains.setdefault(each.after.job_id, []).append(each)
    if not chains:
        return
    left: dict[str, list[Standing]] = {}
    entered: dict[str, list[dict[str, Any]]] = {}
    details: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    spans: list[tuple[str, int, int]] = []
    for job_id, chain in chains.items():
        before, last = chain[0].before, chain[-1]
        if not _stays(chain):
            left.setdefault(before.place, []).append(before)
            entered.setdefault(last.after.place, []).append(_row(last))
        if any(each.writes_detail for each in chain):
            details.append(_detail(chain))
        events += [_event(job_id, event) for each in chain for event in each.events]
        for change in places.moved_tally(before, last.after):
            tx.tally(*change)
        if span := places.trimmed(last.after.version):
            spans.append((job_id, *span))
    await _revise(tx, [each for chain in chains.values() for each in chain])
    await _stay(tx, [(chain[0].before, chain[-1]) for chain in chains.values() if _stays(chain)])
    await _leave(tx, left, details)
    await _enter(tx, entered, events)
    if spans:
        await tx.execute("trim", *(list(column) for column in zip(*spans, strict=True)))


def _stays(chain: Sequence[Move]) -> bool:
    """Return whether a job continues to run or to wait. Its row is changed where it is: if it was deleted and inserted,
    the end of a dependency that waits for its lock would find it gone, and take it for one that no longer waits."""
    return chain[0].before.place == chain[-1].after.place in (RUNNING, WAITING)


async def _stay(tx: Tx, moves: Sequence[tuple[Standing, Move]]) -> None:
    running = [(before, move.after) for before, move in moves if move.after.place == RUNNING]
    waiting = [_row(move) for _, move in moves if move.after.place == WAITING]
    if moves:
        await tx.execute(
            "stay",
            [after.job_id for _, after in running],
            [after.version for _, after in running],
            _json(waiting),
            [before.kind != after.kind for before, after in running],
        )


async def _revise(tx: Tx, moves: Sequence[Move]) -> None:
    """Write what jobs that wait are given in place of what was submitted; of several of a job, the last."""
    revised = {move.after.job_id: move.revision for move in moves if move.revision is not None}
    if revised:
        payloads = [each.payload for each in revised.values()]
        await tx.execute("revise", list(revised), payloads, [each.payload_version for each in revised.values()])


async def restore(tx: Tx, jobs: Sequence[sql_rows.Restored]) -> None:
    """Give jobs, whose facts are stored, the place and detail that they had elsewhere."""
    entered: dict[str, list[dict[str, Any]]] = {}
    events: list[dict[str, Any]] = []
    details: list[dict[str, Any]] = []
    for job in jobs:
        after = job.move.after
        entered.setdefault(after.place, []).append(_row(job.move))
        events += [_event(after.job_id, event) for event in job.events]
        if job.move.differs:
            details.append(_detail([job.move]))
        tx.tally(after.kind, places.STORED, 1)
        if after.status in places.TALLIED:
            tx.tally(after.kind, after.status.value, 1)
    await _leave(tx, {}, details)
    if parents := [job for job in jobs if job.children]:
        columns = [[job.children[name] for job in parents] for name in places.CHILDREN]
        await tx.value("count_children", [job.move.after.job_id for job in parents], *columns)
    await _enter(tx, entered, events)


async def _leave(tx: Tx, left: dict[str, list[Standing]], details: Sequence[dict[str, Any]]) -> None:
    in_line = left.get(READY, ())
    await tx.execute(
        "leave",
        *([job.job_id for job in left.get(place, ())] for place in (LATER, WAITING, RUNNING, ENDED)),
        [_line(job) for job in in_line],
        *(
            [getattr(job, name) for job in in_line]
            for name in ("queue", "job_type", "priority", "scheduled_for", "job_id")
        ),
        _json(details),
    )


async def _enter(tx: Tx, entered: dict[str, list[dict[str, Any]]], events: Sequence[dict[str, Any]]) -> None:
    await tx.execute(
        "enter",
        *(_json(entered.get(place, ())) for place in (LATER, WAITING, RUNNING, ENDED, READY)),
        _json(events),
    )


def _row(move: Move) -> dict[str, Any]:
    after = move.after
    row = move.place_row()
    if after.place == READY:
        row = {name: row[name] for name in _IN_LINE}
    elif after.place == RUNNING:
        row["findable"] = after.content_hash is not None or after.result_tables is not None
        row["child"] = after.parent_job_id is not None
    row["job_id"] = after.job_id
    return row


def _detail(chain: Sequence[Move]) -> dict[str, Any]:
    row = chain[-1].detail_row()
    for each in chain[:-1]:
        row.update({name: value for name, value in each.kept.items() if row[name] is None})
    row["job_id"] = chain[-1].after.job_id
    return row


def _event(job_id: str, event: EventRow) -> dict[str, Any]:
    return {"job_id": job_id, **{name: getattr(event, name) for name in _EVENT_FIELDS}}


def _line(job: Standing) -> int:
    """Return the line in which a pending job stands; parked ones are two lines further on."""
    line = 2 if job.fairness_key is not None else int(job.concurrency_key is not None or job.rate_key is not None)
    return line + 2 if job.parked else line


def _json(rows: Iterable[dict[str, Any]]) -> str | None:
    rows = list(rows)
    return msgspec.json.encode(rows).decode() if rows else None
