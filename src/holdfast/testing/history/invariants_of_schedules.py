"""Invariants of schedules: every tick is decided once, under its policy, by who saw the schedule as it was."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from holdfast import cron
from holdfast.clock import MICROS, Instant
from holdfast.limits import SCHEDULE_LATE_SECONDS, TICKS_PER_FIRING_MAX
from holdfast.store.types import Schedule
from holdfast.testing.history.evidence import NEVER, Evidence
from holdfast.testing.history.invariants_of_jobs import Finding
from holdfast.testing.history.operations import Operation, Outcome


def schedules(evidence: Evidence) -> Iterator[Finding]:
    """S19: one job per tick, and each tick up to the schedule's next decided as its policy says."""
    yield from _one_job_per_tick(evidence)
    yield from _granted_once(evidence)
    yield from _granted_on_what_it_saw(evidence)
    for op in evidence.of("fire", Outcome.OK):
        yield from _decided_by_policy(evidence, op)
    for schedule in evidence.schedules or ():
        yield from _nothing_left_out(evidence, schedule)


def _one_job_per_tick(evidence: Evidence) -> Iterator[Finding]:
    everything = {**evidence.archive, **evidence.by_id}
    jobs = Counter((job.schedule, job.tick_at) for job in everything.values() if job.tick_at is not None)
    for (name, tick), times in jobs.items():
        if times > 1:
            yield "", f"has {times} jobs of schedule {name} for its tick {tick}"


def _granted_once(evidence: Evidence) -> Iterator[Finding]:
    """A schedule stands at a tick once: only who changes it, and with it its version, may set it back."""
    granted = Counter((op.item.schedule, op.item.version, op.item.due_at) for op in evidence.of("fire", Outcome.OK))
    for (name, version, due_at), times in granted.items():
        if times > 1 and not _made_anew(evidence, str(name)):
            yield "", f"granted the firing of schedule {name} (version {version}) at {due_at} {times} times"


def _made_anew(evidence: Evidence, name: str) -> bool:
    """After a schedule was dropped another of its name may begin at the same version and tick."""
    dropped = [op.invoked for op in evidence.of("drop_schedule") if op.known and op.item.schedule == name]
    saved = [op.invoked for op in evidence.of("save_schedule") if op.known and op.item.schedule == name]
    return bool(dropped) and any(moment > min(dropped) for moment in saved)


def _granted_on_what_it_saw(evidence: Evidence) -> Iterator[Finding]:
    for op in evidence.of("fire", Outcome.OK):
        seen = _definition(evidence, op)
        if seen is not None and seen.paused_at is not None:
            yield "", f"granted {op.process} a firing of schedule {op.item.schedule}, which was paused"
        for change in evidence.of("save_schedule", Outcome.OK):
            definition = change.item.definition
            if definition is None or definition.name != op.item.schedule or _made_anew(evidence, definition.name):
                continue
            if (change.returned or NEVER) < op.invoked and definition.version > (op.item.version or 0):
                yield (
                    "",
                    f"granted {op.process} a firing of schedule {definition.name} at version {op.item.version},"
                    f" which was at {definition.version} by then",
                )
        yield from _dropped_before(evidence, op)


def _dropped_before(evidence: Evidence, op: Operation) -> Iterator[Finding]:
    for drop in evidence.of("drop_schedule", Outcome.OK):
        if drop.item.schedule != op.item.schedule or (drop.returned or NEVER) >= op.invoked:
            continue
        again = (save for save in evidence.of("save_schedule") if save.item.schedule == op.item.schedule and save.known)
        if not any(save.invoked > drop.invoked for save in again):
            yield "", f"granted {op.process} a firing of schedule {op.item.schedule}, which was dropped"


def _definition(evidence: Evidence, op: Operation) -> Schedule | None:
    """The schedule as it was at the version that a firing names; None where that is not known for certain."""
    found = {
        (save.item.definition.cron, save.item.definition.missed, save.item.definition.paused_at): save.item.definition
        for save in evidence.of("save_schedule", Outcome.OK, Outcome.INFO)
        if save.item.definition is not None
        and (save.item.definition.name, save.item.definition.version) == (op.item.schedule, op.item.version)
    }
    return next(iter(found.values())) if len(found) == 1 else None


def _decided_by_policy(evidence: Evidence, op: Operation) -> Iterator[Finding]:
    schedule, due_at, next_at = _definition(evidence, op), op.item.due_at, op.item.next_at
    if schedule is None or due_at is None or next_at is None:
        return
    made = [job.tick_at for job in op.item.jobs]
    due = _ticks(schedule, due_at, next_at)
    match schedule.missed:
        case "all":
            right = made == due
        case "one":
            right = made == due[-1:]
        case _:
            on_time = op.now - due[-1] <= SCHEDULE_LATE_SECONDS * MICROS
            right = made == (due[-1:] if on_time else [])
    if not right or next_at <= due_at or due[-1] > op.now:
        yield (
            "",
            f"fired {schedule.name} at {op.now} from {due_at} to {next_at} for {made}: its policy is {schedule.missed}",
        )


def _ticks(schedule: Schedule, since: Instant, until: Instant) -> list[Instant]:
    """The last so many ticks in [since, until); the first counts even where the rule would not name it now."""
    rule = cron.parse(schedule.cron, schedule.timezone)
    ticks: list[Instant] = []
    tick = until
    while len(ticks) <= TICKS_PER_FIRING_MAX and (tick := rule.latest(tick - 1)) > since:
        ticks.append(tick)
    return [since, *reversed(ticks)] if tick <= since else list(reversed(ticks))


def _nothing_left_out(evidence: Evidence, schedule: Schedule) -> Iterator[Finding]:
    """Back from where it stands: each move was a firing whose jobs are there, or someone's change."""
    firings: dict[Instant | None, list[Operation]] = defaultdict(list)
    for op in evidence.of("fire"):
        if op.known and op.item.schedule == schedule.name:
            firings[op.item.next_at].append(op)
    saved = {
        save.item.definition.next_at
        for save in evidence.of("save_schedule", Outcome.OK, Outcome.INFO)
        if save.item.definition is not None and save.item.schedule == schedule.name
    }
    at: Instant | None = schedule.next_at
    if not evidence.recorded or (saved and at not in saved and not firings[at]):
        if evidence.recorded:
            yield "", f"has schedule {schedule.name} at {at}, where nobody moved it"
        return
    while at is not None and firings[at]:
        movers = firings.pop(at)
        if at not in saved and not any(_all_there(evidence, op) for op in movers):
            missing = [job.tick_at for op in movers for job in op.item.jobs]
            yield "", f"moved schedule {schedule.name} past {missing} to {at}, and their jobs are not there"
        at = next((op.item.due_at for op in movers if op.outcome is Outcome.OK), movers[0].item.due_at)
        firings.setdefault(at, [])


def _all_there(evidence: Evidence, op: Operation) -> bool:
    return all(job.job_id in evidence.by_id or evidence.may_be_gone(job.job_id) for job in op.item.jobs)
