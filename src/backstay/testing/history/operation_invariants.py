"""Invariants of operations: what callers were told against what is stored; pausing, schedules, the archive."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from backstay.clock import MICROS, Instant
from backstay.core import schedules as core_schedules
from backstay.core.records import HistoryEvent, JobRecord, Schedule
from backstay.core.states import STAYING, TERMINAL, Counted, Event, Status, also_counted, counted
from backstay.limits import COUNTERS_DAYS, SCHEDULE_LATE_SECONDS, TICKS_PER_FIRING_MAX
from backstay.testing.history.evidence import (
    NEVER,
    Evidence,
    Moment,
    Operation,
    Outcome,
    digest,
    ends_a_claim,
    over_its_time,
    trimmed,
)
from backstay.testing.history.job_invariants import OF_A_CLAIM, Finding


def durable_acknowledgement(evidence: Evidence) -> Iterator[Finding]:
    """S1: every acknowledged job exists, or retention removed it after it had expired."""
    for job_id, op in evidence.acknowledged.items():
        if job_id not in evidence.by_id and not evidence.may_be_gone(job_id):
            yield job_id, f"was acknowledged to {op.process} and is not in the store"


def no_invention(evidence: Evidence) -> Iterator[Finding]:
    """S2: every existing job was submitted, with this payload."""
    if not evidence.recorded:
        return
    submitted: dict[str, set[str | None]] = defaultdict(set)
    for item, op in evidence.submissions:
        if op.known:
            submitted[item.job_id].add(item.payload)
    for job_id in evidence.archive:
        if job_id not in submitted:
            yield job_id, "is in the archive but was never submitted"
    for record in evidence.records:
        if record.job_id not in submitted:
            yield record.job_id, "is in the store but was never submitted"
        elif digest(record.payload) not in submitted[record.job_id]:
            yield record.job_id, "has a payload that was never submitted"


def conservation(evidence: Evidence) -> Iterator[Finding]:
    """S3: each job once, in one state, and the sums agree."""
    for job_id, times in Counter(record.job_id for record in evidence.records).items():
        if times > 1:
            yield job_id, f"is in the dump {times} times"
        if job_id in evidence.archive:
            yield job_id, "is among the jobs and in the archive"
    for record in evidence.records:
        if record.history and record.history[-1].target is not record.status:
            yield record.job_id, f"is {record.status}; its history says {record.history[-1].target}"
    if evidence.counts is not None:
        states = Counter(record.status.value for record in evidence.records)
        for status in Status:
            if states[status.value] != evidence.counts.get(status.value, 0):
                counted = evidence.counts.get(status.value, 0)
                yield "", f"{counted} jobs are counted as {status}, {states[status.value]} are found"
    if evidence.recorded:
        stored = evidence.by_id.keys() | evidence.archive.keys()
        told = {job_id for job_id in evidence.acknowledged if job_id in stored or not evidence.may_be_gone(job_id)}
        most = evidence.acknowledged.keys() | evidence.unknown | evidence.deleted
        if not len(told) <= len(stored) <= len(most):
            yield (
                "",
                f"{len(told)} jobs were acknowledged, {len(evidence.unknown)} are unknown, {len(stored)} stored",
            )


def fenced_calls(evidence: Evidence) -> Iterator[Finding]:
    """S5, for callers: nothing is granted to a caller that does not hold the claim, or no longer holds it."""
    tokens: dict[tuple[str, int], set[str | None]] = defaultdict(set)
    for op in evidence.of("claim", Outcome.OK):
        if op.attempt is not None:
            tokens[op.job_id, op.attempt].add(op.item.token)
    unheard = {op.item.token for op in evidence.of("claim", Outcome.INFO)}
    for op, attempt in _granted(evidence):
        holders = tokens.get((op.job_id, attempt), unheard)
        if op.item.token not in holders:
            yield (
                op.job_id,
                f"{op.verb} by {op.process} was granted with a token that attempt {op.attempt} never had",
            )
        over = evidence.over(op.job_id, attempt)
        if op.verb != "apply" and op.invoked > over:
            yield (
                op.job_id,
                f"{op.verb} by {op.process} was granted after its claim (attempt {op.attempt}) was over",
            )


def _granted(evidence: Evidence) -> Iterator[tuple[Operation, int]]:
    for verb in ("apply", "extend", "note", "record_step", "insert_children", "stage"):
        for op in evidence.of(verb, Outcome.OK):
            if op.item.token is not None and op.attempt is not None:
                yield op, op.attempt


def attempts_are_single(evidence: Evidence) -> Iterator[Finding]:
    """S6, for callers: an attempt is handed out once."""
    tokens: dict[tuple[str, int | None], set[str | None]] = defaultdict(set)
    for op in evidence.of("claim", Outcome.OK):
        tokens[op.job_id, op.attempt].add(op.item.token)
    for (job_id, attempt), holders in tokens.items():
        if len(holders) > 1:
            yield job_id, f"attempt {attempt} was handed out to {len(holders)} claims"


def result_integrity(evidence: Evidence) -> Iterator[Finding]:
    """S8: the result is that of the completing attempt; no result without a completion."""
    for record in evidence.records:
        if record.status is not Status.COMPLETED:
            if record.result is not None or record.result_artifact is not None:
                yield record.job_id, f"is {record.status} and has a result"
            continue
        end = record.history[-1]
        if end.event is Event.REUSE:
            donor = evidence.by_id.get(record.reused_from or "")
            if donor is not None and donor.status is Status.COMPLETED and donor.result != record.result:
                yield record.job_id, f"was reused from {donor.job_id} and has another result"
        elif evidence.recorded and record.result_artifact is None:
            handed_in = {op.item.result for op in evidence.on("apply", record.job_id) if _could_be(op, end)}
            if digest(record.result) not in handed_in:
                yield (
                    record.job_id,
                    f"has a result that attempt {end.attempt}, which completed it, did not hand in",
                )


def told_the_truth(evidence: Evidence) -> Iterator[Finding]:
    """S9: what was granted is in the log, what was refused is not; and the log has nothing that was not requested."""
    if not evidence.recorded:
        return
    for record in evidence.records:
        if trimmed(record.history):
            continue
        yield from _grants_are_logged(evidence, record)
        yield from _log_was_asked_for(evidence, record)
    for verb in ("claim", "apply", "extend", "note", "record_step"):
        for op in evidence.of(verb, Outcome.OK):
            if op.job_id not in evidence.by_id and not evidence.may_be_gone(op.job_id):
                yield op.job_id, f"{verb} by {op.process} was granted on a job that is not there"


def _grants_are_logged(evidence: Evidence, record: JobRecord) -> Iterator[Finding]:
    claims = {event.attempt for event in record.history if event.event is Event.CLAIM}
    for op in evidence.on("claim", record.job_id, Outcome.OK):
        if op.attempt not in claims:
            yield record.job_id, f"attempt {op.attempt} was handed to {op.process} and is not in the history"
    logged = {_change(event.event, event.attempt, event.target) for event in record.history}
    known = Counter(_key(op) for op in evidence.on("apply", record.job_id) if op.known)
    for op in evidence.on("apply", record.job_id):
        present = _key(op) in logged
        if op.outcome is Outcome.OK and not present:
            yield record.job_id, f"{_says(op)} was granted and is not in the history"
        if op.outcome is Outcome.STALE and present and not known[_key(op)]:
            yield record.job_id, f"{_says(op)} was refused, yet it is in the history"
    yield from _refused_for_nothing(evidence, record)


def _refused_for_nothing(evidence: Evidence, record: JobRecord) -> Iterator[Finding]:
    """Return refusals without a cause: the holder of a claim is refused only if another caller may have ended it
    before."""
    tokens = {(op.attempt, op.item.token) for op in evidence.on("claim", record.job_id, Outcome.OK)}
    for op in evidence.on("apply", record.job_id, Outcome.STALE):
        if (op.attempt, op.item.token) not in tokens or op.returned is None:
            continue
        others = [
            other
            for other in evidence.on("apply", record.job_id)
            if other.known and ends_a_claim(other.item) and other.attempt == op.attempt
        ]
        if ends_a_claim(op.item) and not any(other.invoked < op.returned for other in others):
            yield record.job_id, f"{_says(op)} was refused although it held the job"


def _log_was_asked_for(evidence: Evidence, record: JobRecord) -> Iterator[Finding]:
    for event in record.history:
        if event.event is Event.CLAIM:
            heard = any(op.attempt == event.attempt for op in evidence.on("claim", record.job_id, Outcome.OK))
            if not heard and event.by not in evidence.unheard:
                yield record.job_id, f"attempt {event.attempt} was claimed for {event.by}, who did not ask"
        elif event.event in OF_A_CLAIM or event.event in EDITS:
            asked = any(_could_be(op, event) for op in evidence.on("apply", record.job_id))
            if not asked:
                yield (
                    record.job_id,
                    f"version {event.version} ({event.event}) is in the history but was never requested",
                )


EDITS = frozenset({Event.CANCEL, Event.MANUAL_RETRY, Event.RESCHEDULE, *STAYING})


_Change = tuple[Event | None, int | None, Status | None]


def _change(event: Event | None, attempt: int | None, target: Status | None) -> _Change:
    """Return the expected change. Whether a manually retried job has to wait is decided by the store."""
    return event, attempt, None if event is Event.MANUAL_RETRY else target


def _key(op: Operation) -> _Change:
    return _change(op.item.event, op.attempt, op.item.target)


def _could_be(op: Operation, event: HistoryEvent) -> bool:
    return op.known and _key(op) == _change(event.event, event.attempt, event.target)


def _says(op: Operation) -> str:
    return f"{op.item.event} of attempt {op.attempt} by {op.process}"


def batches(evidence: Evidence) -> Iterator[Finding]:
    """S14: a batch submit is stored as a whole or not at all; other batches answer for each item, in order."""
    carriers = Counter(op.job_id for op in evidence.of("insert") if op.known)
    for call in evidence.calls.values():
        first = call[0]
        if first.verb != "claim" and first.answers is not None and first.answers != first.size:
            yield (
                first.job_id,
                f"{first.verb} by {first.process} asked for {first.size} and was answered {first.answers}",
            )
        if first.verb != "insert" or first.size == 1:
            continue
        own = [op.job_id for op in call if carriers[op.job_id] - op.known == 0 and not op.answer.existing]
        stored = [job_id for job_id in own if job_id in evidence.by_id or evidence.may_be_gone(job_id)]
        if stored and len(stored) < len(own):
            missing = next(job_id for job_id in own if job_id not in stored)
            yield (
                missing,
                f"is missing from a batch of {first.process} of which {len(stored)} of {len(own)} are stored",
            )
    for op in evidence.of("insert", Outcome.ERROR):
        if not carriers[op.job_id] and evidence.find(op.job_id) is not None:
            yield op.job_id, f"was refused to {op.process} with an error, yet it is stored"


def repeatable(evidence: Evidence) -> Iterator[Finding]:
    """S16: a repeated call has one effect and one answer."""
    answers: dict[str, set[str]] = defaultdict(set)
    for op in evidence.of("insert", Outcome.OK):
        if op.item.own_id:
            answers[op.job_id].add(op.answer.job_id)
    for job_id, answered in answers.items():
        if len(answered) > 1:
            yield job_id, f"was submitted again under its id and answered as {sorted(answered)}"
    for record in evidence.records:
        ends = Counter(event.attempt for event in record.history if ends_a_claim(event))
        for attempt, times in ends.items():
            if times > 1:
                yield record.job_id, f"attempt {attempt} was settled {times} times"
    yield from _settled_again(evidence)


def _settled_again(evidence: Evidence) -> Iterator[Finding]:
    """Check that a granted settlement is granted again, as long as nothing else happened to the job."""
    granted: dict[tuple[object, ...], int] = {}
    for op in evidence.of("apply", Outcome.OK):
        if op.item.token is not None and op.returned is not None:
            key = (op.job_id, op.item.token, *_key(op))
            granted[key] = min(granted.get(key, NEVER), op.returned)
    for op in evidence.of("apply", Outcome.STALE, Outcome.GONE):
        first = granted.get((op.job_id, op.item.token, *_key(op)), NEVER)
        record = evidence.by_id.get(op.job_id)
        if first < op.invoked and record is not None and _could_be_key(record.history[-1], op):
            yield op.job_id, f"{_says(op)} was granted, and refused when it was repeated"


def _could_be_key(event: HistoryEvent, op: Operation) -> bool:
    return _change(event.event, event.attempt, event.target) == _key(op)


_MINUTE = 60 * MICROS
_Key = tuple[Instant, str, str, Counted]  # minute, type, queue


def pausing(evidence: Evidence) -> Iterator[Finding]:
    """S20: from the acknowledgement of a pause until a call to resume, no job of the queue or type is claimed."""
    of_queue = _by_name(evidence.of("change_queue"), lambda op: op.item.queue)
    of_type = _by_name(evidence.of("change_limit"), lambda op: op.item.job_type)
    for op in evidence.of("claim", Outcome.OK):
        job = evidence.find(op.job_id)
        if job is None or op.item.repeat or op.returned is None:
            continue
        for what, changes in (
            (f"queue {job.queue}", of_queue.get(job.queue, ())),
            (f"type {job.job_type}", of_type.get(job.job_type, ())),
        ):
            for begun, ended in _pauses(changes):
                if begun < op.invoked and op.returned < ended:
                    yield op.job_id, f"attempt {op.attempt} was handed to {op.process} while {what} was paused"


def _by_name(changes: Iterable[Operation], name: Callable[[Operation], str | None]) -> dict[str, list[Operation]]:
    found: dict[str, list[Operation]] = defaultdict(list)
    for op in changes:
        if (named := name(op)) is not None and op.known:
            found[named].append(op)
    return found


def _pauses(changes: Sequence[Operation]) -> Iterator[tuple[Moment, Moment]]:
    for op in changes:
        if op.item.paused is True and op.outcome is Outcome.OK and op.returned is not None:
            resumed = [
                other.invoked
                for other in changes
                if other.item.paused is False and (other.returned or NEVER) > op.invoked
            ]
            yield op.returned, min(resumed, default=NEVER)


def limits_of_types(evidence: Evidence) -> Iterator[Finding]:
    """S25: from the acknowledgement of a limit of a type until another call to change it, no claim brings one more job
    of the type than may run at once."""
    for job_type, changes in _by_name(evidence.of("change_limit"), lambda op: op.item.job_type).items():
        spans = list(_limited(changes))
        if not spans:
            continue
        runs = sorted(_runs(evidence, job_type))
        ends = sorted(ended for _, ended in runs)
        begins = [begun for begun, _ in runs]
        of_call = Counter[tuple[str, int]]()
        for op in evidence.of("claim", Outcome.OK):
            job = evidence.find(op.job_id)
            if job is None or job.job_type != job_type or op.item.repeat or op.returned is None:
                continue
            # Those that ran for certain when this one was handed out, and those that the same call brought before it.
            running = bisect_left(begins, op.invoked) - bisect_right(ends, op.returned)
            running += of_call[op.process, op.number]
            of_call[op.process, op.number] += 1
            for begun, until, most in spans:
                if begun < op.invoked and op.returned < until and running >= most:
                    yield (
                        op.job_id,
                        f"attempt {op.attempt} was handed to {op.process} while {running} jobs of the type {job_type}"
                        f" ran, which was limited to {most}",
                    )


def _limited(changes: Sequence[Operation]) -> Iterator[tuple[Moment, Moment, int]]:
    for op in changes:
        if op.item.most and op.outcome is Outcome.OK and op.returned is not None:
            changed = [
                other.invoked
                for other in changes
                if other is not op and other.item.most is not None and (other.returned or NEVER) > op.invoked
            ]
            yield op.returned, min(changed, default=NEVER), op.item.most


def _runs(evidence: Evidence, job_type: str) -> Iterator[tuple[Moment, Moment]]:
    """Yield when the runs of a type had begun for certain, and when they may have ended at the earliest."""
    ends: dict[str, list[Moment]] = defaultdict(list)
    for op in evidence.of("apply"):
        ends[op.job_id].append(op.invoked)
    for op in evidence.of("claim", Outcome.OK):
        job = evidence.find(op.job_id)
        if job is not None and job.job_type == job_type and not op.item.repeat and op.returned is not None:
            yield op.returned, min((end for end in ends[op.job_id] if end > op.invoked), default=NEVER)


def counting(evidence: Evidence) -> Iterator[Finding]:
    """S21: the counters agree with the histories."""
    if evidence.counters is None:
        return
    types, since = _judged(evidence)
    happened: Counter[_Key] = Counter()
    for record in evidence.records:
        if record.job_type in types:
            happened.update(_happened(record))
    found: Counter[_Key] = Counter()
    for row in evidence.counters:
        if row.job_type in types:
            found[row.minute, row.job_type, row.queue, row.outcome] += row.count
    for key in sorted(happened.keys() | found.keys()):
        minute, job_type, queue, outcome = key
        if minute >= since and happened[key] != found[key]:
            yield (
                "",
                f"counted {found[key]} of {job_type} in {queue} as {outcome} in minute {minute};"
                f" their histories have {happened[key]}",
            )


def _judged(evidence: Evidence) -> tuple[set[str], Instant]:
    """Return the types whose jobs all exist with full history, and the time since which counters are kept."""
    left = {record.job_type for record in evidence.archive.values()}
    left |= {record.job_type for record in evidence.records if trimmed(record.history)}
    for item, _ in evidence.submissions:
        if item.job_type is not None and item.job_id not in evidence.by_id and evidence.may_be_gone(item.job_id):
            left.add(item.job_type)
    types = {record.job_type for record in evidence.records} - left
    latest = max((at for _, at in evidence.retirements), default=0)
    return types, latest - COUNTERS_DAYS * 86_400 * MICROS


def _happened(record: JobRecord) -> Iterator[_Key]:
    for event in record.history:
        for outcome in _outcomes(event):
            yield event.at - event.at % _MINUTE, record.job_type, record.queue, outcome


def _outcomes(event: HistoryEvent) -> Iterator[Counted]:
    if event.event is Event.REUSE and event.source is None:
        yield Counted.SUBMITTED
    outcome = counted(event.event, event.target)
    if outcome is not None:
        yield outcome
    if (beside := also_counted(event.event)) is not None:
        yield beside


def schedules(evidence: Evidence) -> Iterator[Finding]:
    """S19: one job per tick, and each tick before the schedule's next one was processed according to its policy."""
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
    """Check that a schedule is at each tick once: only an edit, which changes its version, may set it back."""
    granted = Counter((op.item.schedule, op.item.version, op.item.due_at) for op in evidence.of("fire", Outcome.OK))
    for (name, version, due_at), times in granted.items():
        if times > 1 and not _made_anew(evidence, str(name)):
            yield "", f"granted the firing of schedule {name} (version {version}) at {due_at} {times} times"


def _made_anew(evidence: Evidence, name: str) -> bool:
    """Return whether the schedule was dropped and created again: the new one may begin at the same version and tick."""
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
    """Return the schedule at the version that a firing names; None if that is not certain."""
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
    if not right and schedule.overlap != "queue":
        right = len(made) <= 1 and set(made) <= set(due)  # the rest depends on a job that was active
    if not right or next_at <= due_at or due[-1] > op.now:
        yield (
            "",
            f"fired {schedule.name} at {op.now} from {due_at} to {next_at} for {made}: its policy is {schedule.missed}",
        )


def _ticks(schedule: Schedule, since: Instant, until: Instant) -> list[Instant]:
    """Return the last ticks in [since, until), up to a number; the first counts even if the rule would no longer
    produce it."""
    rule = core_schedules.Ticks(schedule)
    ticks: list[Instant] = []
    tick = until
    while len(ticks) <= TICKS_PER_FIRING_MAX and (tick := rule.latest(tick - 1) or since) > since:
        ticks.append(tick)
    return [since, *reversed(ticks)] if tick <= since else list(reversed(ticks))


def _nothing_left_out(evidence: Evidence, schedule: Schedule) -> Iterator[Finding]:
    """Check backwards from its current tick: each step was a firing whose jobs exist, or an edit."""
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
            yield "", f"has schedule {schedule.name} at {at}, where it was never moved"
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


def retention(evidence: Evidence) -> Iterator[Finding]:
    """S1, for archived jobs: none was active, none archived early, trees archived as a whole, and no event lost."""
    for record in evidence.archive.values():
        if record.status not in TERMINAL or record.completed_at is None or record.archived_at is None:
            yield record.job_id, f"was archived and has not ended: it is {record.status}"
        elif evidence.recorded:
            yield from _on_time(evidence, record, record.completed_at, record.archived_at)
            yield from _ended_so(evidence, record)
            yield from _nothing_forgotten(evidence, record)
    yield from _whole_trees(evidence)


def _on_time(evidence: Evidence, record: JobRecord, ended: int, archived: int) -> Iterator[Finding]:
    policies = [policy for policy, at in evidence.retirements if at == archived]
    if not policies:
        yield record.job_id, f"was archived at {archived}, when no purge was requested"
    elif not any(over_its_time(policy, record.job_type, record.status, ended, archived) for policy in policies):
        yield record.job_id, f"ended {record.status} at {ended} and was archived at {archived}, before its time"


def _ended_so(evidence: Evidence, record: JobRecord) -> Iterator[Finding]:
    """Return whether a call ended it in this state; if it waited for another job, the end of that one may have."""
    depends = any(op.item.depends_on for op in evidence.on("insert", record.job_id))
    waited = depends or record.content_hash is not None
    ended = any(
        op.known and (op.item.target, op.attempt) == (record.status, record.attempt)
        for op in evidence.on("apply", record.job_id)
    )
    if not waited and not ended:
        yield record.job_id, f"is archived as {record.status}, but never ended that way"


def _nothing_forgotten(evidence: Evidence, record: JobRecord) -> Iterator[Finding]:
    """Check that everything granted is older than what the archive shows."""
    for op in evidence.on("claim", record.job_id, Outcome.OK):
        if op.attempt is not None and op.attempt > record.attempt:
            yield record.job_id, f"is archived at attempt {record.attempt}, and attempt {op.attempt} was handed out"
    for op in evidence.on("apply", record.job_id, Outcome.OK):
        if op.item.version is not None and op.item.version >= record.version:
            yield (
                record.job_id,
                f"is archived at version {record.version}, and {op.item.event} was granted on {op.item.version}",
            )


def _whole_trees(evidence: Evidence) -> Iterator[Finding]:
    left = {record.root_job_id or job_id: job_id for job_id, record in evidence.archive.items()}
    stayed = {record.root_job_id or job_id: job_id for job_id, record in evidence.by_id.items()}
    for root in left.keys() & stayed.keys():
        yield left[root], f"was archived without {stayed[root]}, which is of the same tree"
