"""The first page: how it goes, and what is there now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Depends, Request, Response

from holdfast import queues
from holdfast.clock import Instant
from holdfast.dashboard import figures, frame, plots
from holdfast.dashboard.figures import Kind, Sums, Window
from holdfast.dashboard.history import History
from holdfast.dashboard.plots import Plot
from holdfast.dashboard.standing import Census, Standing, Taken
from holdfast.dashboard.workers import Seen, seen_by
from holdfast.lifecycle import Status
from holdfast.queues import Queue
from holdfast.server.guarding import needs
from holdfast.server.principals import Principal
from holdfast.words import count, span

TYPES_SHOWN = 12
QUEUES_SHOWN = 12
RUNS_MIN = 20  # of which a 95th percentile says something
_ACTIVE = (Status.PENDING, Status.PROCESSING, Status.RETRYING, Status.SCHEDULED, Status.WAITING)
_ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)

router = frame.pages()


@dataclass(frozen=True, slots=True)
class Tile:
    status: str
    count: int | None  # None: not counted yet
    within: str | None = None  # None: now


@dataclass(frozen=True, slots=True)
class Picture:
    """The plots of a window, and what they add up to."""

    throughput: Plot
    times: Plot
    failures: Plot
    total: Sums
    kinds: Sequence[tuple[Kind, Sums]]


@router.get("", dependencies=[Depends(needs("read"))])
@router.get("/", dependencies=[Depends(needs("read"))])
async def overview(request: Request, window: str = "1h") -> Response:
    chosen = figures.WINDOWS.get(window, figures.WINDOWS["1h"])
    app, principal = frame.app_of(request), frame.reader_of(request)
    past, taken = await asyncio.gather(frame.kept(request, History).read(chosen), frame.kept(request, Census).latest())
    picture, standing = drawn(chosen, past.slots, principal), taken.standing
    workers = await seen_by(app, principal, frame.now_of(request))
    return frame.render(
        request,
        "overview.html",
        live="all",
        window=chosen,
        windows=figures.WINDOWS.values(),
        picture=picture,
        tiles=_tiles(standing, picture.total, chosen, principal),
        queues=await _queues(request, taken, workers, principal),
        queues_shown=QUEUES_SHOWN,
        dead=standing.dead if standing is not None and principal.sees_all else [],
        workers=workers,
        types_shown=TYPES_SHOWN,
        counted=standing is not None,
        is_complete=past.is_complete,
        again_ms=frame.again_ms(0 if past.is_complete else 0.1, taken.again_seconds),
        runs_min=RUNS_MIN,
        quantile=_quantile,
    )


def _quantile(buckets: Sequence[int], share: float) -> str:
    """Of few runs none is told: it would be a place inside a bucket, and longer than any of them took."""
    seconds = figures.percentile(buckets, share) if sum(buckets) >= RUNS_MIN else None
    return "–" if seconds is None else span(seconds)


def drawn(window: Window, slots: Sequence[tuple[Instant, figures.Slot]], principal: Principal) -> Picture:
    starts = [start for start, _ in slots]
    sums = [figures.summed(slot, principal.sees) for _, slot in slots]
    total = Sums()
    for each in sums:
        total.merge(each)
    width = window.slot_seconds
    ran = "too few to tell more than their average"
    if sum(total.ran) >= RUNS_MIN:
        ran = f"half under {_quantile(total.ran, 0.5)}, 95% under {_quantile(total.ran, 0.95)}"
    return Picture(
        plots.counted(
            starts,
            {"completed": [each.completed for each in sums]},
            {"submitted": [each.submitted for each in sums]},
            slot_seconds=width,
            says=f"In {window.says}, {count(total.completed, 'job')} completed and {total.submitted:,} came in.",
        ),
        plots.spread(
            starts,
            {
                "p95": [figures.percentile(each.ran, 0.95) for each in sums],
                "p50": [figures.percentile(each.ran, 0.5) for each in sums],
            },
            slot_seconds=width,
            says=f"How long attempts ran in {window.says}: {ran}.",
        ),
        plots.counted(
            starts,
            {"failed": [each.failed for each in sums], "retried": [each.retried for each in sums]},
            {},
            slot_seconds=width,
            says=f"In {window.says}, {count(total.failed, 'job')} failed for good, {total.retried:,} are tried again.",
        ),
        total,
        figures.by_kind((slot for _, slot in slots), principal.sees),
    )


def _tiles(standing: Standing | None, total: Sums, window: Window, principal: Principal) -> list[Tile]:
    """A key that sees some queues gets what ended from the counters: states are counted over all queues."""
    if standing is None:
        return [Tile(status.value, None) for status in (*_ACTIVE, *_ENDED)]
    if principal.sees_all:
        return [Tile(each.value, standing.counts.get(each.value, 0)) for each in (*_ACTIVE, *_ENDED)]
    active = dict.fromkeys(_ACTIVE, 0)
    for depth in standing.depths:
        if principal.sees(depth.queue):
            active[depth.status] += depth.count
    ended = {Status.COMPLETED: total.completed, Status.FAILED: total.failed, Status.CANCELLED: total.cancelled}
    return [
        *(Tile(status.value, number) for status, number in active.items()),
        *(Tile(status.value, number, window.says) for status, number in ended.items()),
    ]


async def _queues(request: Request, taken: Taken, workers: Sequence[Seen], principal: Principal) -> list[Queue]:
    """Those that are paused first, then those with the most to do."""
    store = frame.app_of(request).store
    found = queues.overview(
        await store.queues(),
        taken.depths,
        await store.job_types(),
        [seen.row for seen in workers if not seen.is_silent],
    )
    return sorted(
        (queue for queue in found if principal.sees(queue.name)),
        key=lambda queue: (not queue.paused, -queue.pending - queue.processing, queue.name),
    )
