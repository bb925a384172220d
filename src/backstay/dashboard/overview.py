"""The overview page: recent figures and the current state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Depends, Request, Response

from backstay.core import queues
from backstay.core.checks import count, span
from backstay.core.queues import Queue
from backstay.core.states import Status
from backstay.dashboard import counts, page, plots
from backstay.dashboard.counts import Census, History, Kind, Past, Standing, Sums, Taken, Window
from backstay.dashboard.plots import Plot
from backstay.dashboard.workers import seen_by
from backstay.server import worker_summary
from backstay.server.auth import Principal, needs
from backstay.server.worker_summary import WorkerSummary

TYPES_SHOWN = 12
QUEUES_SHOWN = 12
WORKERS_SHOWN = 6
RUNS_MIN = 20  # below this a 95th percentile means nothing
_ACTIVE = (Status.PENDING, Status.PROCESSING, Status.RETRYING, Status.SCHEDULED, Status.WAITING)
_ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)

router = page.pages()


@dataclass(frozen=True, slots=True)
class Tile:
    status: str
    count: int | None  # None: not counted yet
    within: str | None = None  # None: now


@dataclass(frozen=True, slots=True)
class Picture:
    """The plots of a window, and their totals."""

    throughput: Plot
    times: Plot
    failures: Plot
    total: Sums
    kinds: Sequence[tuple[Kind, Sums]]  # the busiest
    more_kinds: int


@router.get("", dependencies=[Depends(needs("read"))])
@router.get("/", dependencies=[Depends(needs("read"))])
async def overview(request: Request, window: str = "1h") -> Response:
    chosen = counts.WINDOWS.get(window, counts.WINDOWS["1h"])
    app, principal = page.app_of(request), page.reader_of(request)
    past, taken = await asyncio.gather(
        page.shared(request, History).read(chosen), page.shared(request, Census).latest()
    )
    picture, standing = drawn(chosen, past, principal), taken.standing
    summary = (await worker_summary.summary(request)).seen_by(principal.sees)
    ids = summary.ids(app.clock.now())
    return page.render(
        request,
        "overview.html",
        live="all",
        window=chosen,
        windows=counts.WINDOWS.values(),
        picture=picture,
        tiles=_tiles(standing, picture.total, chosen, principal),
        queues=await _queues(request, taken, summary, principal),
        queues_shown=QUEUES_SHOWN,
        dead=standing.dead if standing is not None and principal.sees_all else [],
        alone=standing.alone if standing is not None and principal.sees_all else 0,
        workers=await seen_by(app, principal, ids[:WORKERS_SHOWN], page.now_of(request)),
        more_workers=len(ids) - WORKERS_SHOWN,
        counted=standing is not None,
        is_complete=past.is_complete,
        again_ms=page.again_ms(past.again_seconds if past.is_complete else 0.1, taken.again_seconds),
        runs_min=RUNS_MIN,
        quantile=_quantile,
    )


def _quantile(buckets: Sequence[int], share: float) -> str:
    """Return a quantile, or None for a few runs: it would be interpolated within a bucket, and could exceed every run
    time."""
    seconds = counts.percentile(buckets, share) if sum(buckets) >= RUNS_MIN else None
    return "–" if seconds is None else span(seconds)


def drawn(window: Window, past: Past, principal: Principal) -> Picture:
    starts = [start for start, _ in past.slots]
    slots = [slot for _, slot in past.slots]
    sums = [slot.total if principal.sees_all else counts.summed(slot, principal.sees) for slot in slots]
    total = Sums()
    for each in sums:
        total.merge(each)
    width = window.slot_seconds
    kinds, number = counts.busiest(slots, past.events, principal.sees, TYPES_SHOWN)
    ran = "too few runs for percentiles"
    if sum(total.ran) >= RUNS_MIN:
        ran = f"half under {_quantile(total.ran, 0.5)}, 95% under {_quantile(total.ran, 0.95)}"
    return Picture(
        plots.counted(
            starts,
            {"completed": [each.completed for each in sums]},
            {"submitted": [each.submitted for each in sums]},
            slot_seconds=width,
            says=f"Last {window.in_words}: {count(total.completed, 'job')} completed, {total.submitted:,} submitted.",
        ),
        plots.spread(
            starts,
            {
                "p95": [counts.percentile(each.ran, 0.95) for each in sums],
                "p50": [counts.percentile(each.ran, 0.5) for each in sums],
            },
            slot_seconds=width,
            says=f"Run times in the last {window.in_words}: {ran}.",
        ),
        plots.counted(
            starts,
            {"failed": [each.failed for each in sums], "retried": [each.retried for each in sums]},
            {},
            slot_seconds=width,
            says=f"Last {window.in_words}: {count(total.failed, 'job')} failed, {total.retried:,} retried.",
        ),
        total,
        kinds,
        max(0, number - TYPES_SHOWN),
    )


def _tiles(standing: Standing | None, total: Sums, window: Window, principal: Principal) -> list[Tile]:
    """For a key limited to some queues, finished jobs come from the counters: stored counts cover all queues."""
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


async def _queues(request: Request, taken: Taken, workers: WorkerSummary, principal: Principal) -> list[Queue]:
    """Paused queues first, then the busiest."""
    app = page.app_of(request)
    serving = workers.serving(app.clock.now())
    found = queues.overview(await app.queue_settings(), taken.depths, await app.job_types(), serving)
    return sorted(
        (queue for queue in found if principal.sees(queue.name)),
        key=lambda queue: (not queue.paused, -queue.pending - queue.processing, queue.name),
    )
