"""What a tick does to the last job of its schedule if that is active: cancel it, or note the tick in it."""

from __future__ import annotations

from datetime import datetime

from backstay.clock import Clock, Instant, to_datetime
from backstay.core import lifecycle
from backstay.core.port import Store
from backstay.core.records import JobRecord, Node, Schedule, Transition
from backstay.core.schedules import creator
from backstay.core.states import TERMINAL
from backstay.errors import IllegalTransition
from backstay.ops.edit import apply_edits, edit
from backstay.ops.tree import Subtrees


async def last_active(store: Store, schedule: Schedule) -> JobRecord | None:
    """Return the job of the last tick if it is active. A job that only has the schedule's dedup key is not its own."""
    if schedule.overlap == "queue" or schedule.last_job_id is None:
        return None
    [record] = await store.get([schedule.last_job_id])
    if record is None or record.status in TERMINAL or record.schedule != schedule.name:
        return None
    return record


async def replace(store: Store, clock: Clock, schedule: Schedule, job: JobRecord, tick: Instant) -> None:
    """Cancel the last job, with everything below it, for the tick that replaces it."""
    by, reason = creator(schedule.name), f"replaced by the tick at {_at(to_datetime(tick))}"
    try:
        await edit(store, clock, job, None, lambda each, _: lifecycle.cancel(each, by=by, reason=reason))
    except IllegalTransition:
        return  # it has ended in the meantime
    if job.children:
        await Subtrees(store, clock, by, reason).cancel(job)


async def tell(store: Store, clock: Clock, schedule: Schedule, job: JobRecord, tick: Instant) -> None:
    """Note in the history of the last job that it is the reason why a tick has no job."""

    def decide(each: JobRecord | Node, _: Instant) -> Transition | None:
        if each.status in TERMINAL:
            return None
        return lifecycle.skip_tick(each, schedule=schedule.name, tick_at=tick)

    await apply_edits(store, clock, [job], decide)


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
