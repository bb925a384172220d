"""Invariants of jobs: their history, leases, due times, keys, dependencies and trees."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from backstay.clock import Instant
from backstay.core.dependencies import Brood, TriggerRule
from backstay.core.lifecycle import allowed
from backstay.core.records import FOREVER, HistoryEvent, JobRecord
from backstay.core.states import TERMINAL, Event, Status
from backstay.limits import GIVE_BACKS_MAX, HISTORY_HEAD, SNOOZES_MAX
from backstay.testing.history.evidence import (
    FAILURES,
    NEVER,
    Edge,
    Evidence,
    Moment,
    Operation,
    Outcome,
    ends_a_claim,
    generations,
    trimmed,
)

Finding = tuple[str, str]  # job_id, sentence

# Events that the holder of a claim writes, or that are decided for a claim.
OF_A_CLAIM = frozenset(
    {
        Event.COMPLETE,
        Event.RETRY,
        Event.EXHAUST,
        Event.DISCARD,
        Event.SNOOZE,
        Event.GIVE_BACK,
        Event.WAIT_FOR_CHILDREN,
        Event.SLEEP,
        Event.WAIT_FOR_EVENT,
        Event.RESCUE,
    }
)


def single_completion(evidence: Evidence) -> Iterator[Finding]:
    """S4: one completion per generation; an ended job changes only by a manual retry."""
    for record in evidence.records:
        for life in generations(record.history):
            completions = [event.version for event in life if event.target is Status.COMPLETED]
            if len(completions) > 1:
                yield record.job_id, f"was completed more than once, by versions {completions}"
        before = None
        for event in record.history:
            if before in TERMINAL and event.event is not Event.MANUAL_RETRY:
                yield (
                    record.job_id,
                    f"had ended ({before}), yet version {event.version} made it {event.target}",
                )
            before = event.target
        if record.status is Status.COMPLETED and record.result is not None and record.result_artifact is not None:
            yield record.job_id, "has two results, one inline and one as an artifact"


def fencing(evidence: Evidence) -> Iterator[Finding]:
    """S5, for the log: what is decided for a claim happens while that claim is the current one."""
    for record in evidence.records:
        current, status = 0, None
        for event in record.history:
            if event.event is Event.CLAIM:
                current = event.attempt
            elif event.event in OF_A_CLAIM or (event.event is Event.CANCEL and event.source is Status.PROCESSING):
                if event.attempt != current and not _jumped(record, event.version):
                    yield (
                        record.job_id,
                        f"attempt {event.attempt} wrote {event.event} (version {event.version})"
                        f" while attempt {current} held the job",
                    )
                elif status is not Status.PROCESSING and not _jumped(record, event.version):
                    yield (
                        record.job_id,
                        f"attempt {event.attempt} wrote {event.event} (version {event.version})"
                        f" while the job was {status}",
                    )
            status = event.target


def version_chain(evidence: Evidence) -> Iterator[Finding]:
    """S6: versions 1, 2, 3 …; each event starts where the last one ended; attempts grow by one per claim."""
    for record in evidence.records:
        yield from ((record.job_id, sentence) for sentence in _chain(record))


def _chain(record: JobRecord) -> Iterator[str]:
    history = record.history
    if not history:
        yield "has no history"
        return
    version, attempt, status = 0, 0, None
    for event in history:
        if _jumped(record, event.version):
            version, attempt, status = event.version - 1, event.attempt, event.source
            attempt -= event.event is Event.CLAIM
        if event.version != version + 1:
            yield f"version {event.version} follows version {version}"
        if event.source != status:
            yield f"version {event.version} ({event.event}) starts from {event.source}; the job was {status}"
        if not allowed(event.event, event.source, event.target):
            yield f"version {event.version}: {event.event} from {event.source} to {event.target} is not an edge"
        expected = attempt + (event.event is Event.CLAIM)
        if event.attempt != expected:
            yield f"version {event.version} ({event.event}) has attempt {event.attempt}, expected {expected}"
        version, status = event.version, event.target
        attempt = max(attempt, event.attempt)
    if record.version != version:
        yield f"the record is at version {record.version}, its history at {version}"
    if record.attempt != attempt:
        yield f"the record is at attempt {record.attempt}, its history at {attempt}"


def _jumped(record: JobRecord, version: int) -> bool:
    """Return whether this is the first event after the dropped middle."""
    return trimmed(record.history) and record.history[HISTORY_HEAD].version == version


def retry_bound(evidence: Evidence) -> Iterator[Finding]:
    """S10: failures count once, never beyond max_attempts; an exhausted job is failed, with a reason."""
    for record in evidence.records:
        if record.status is Status.FAILED and not (record.last_error or (record.history[-1].reason or "")):
            yield record.job_id, "is failed without a reason"
        if record.failures > record.max_attempts:
            yield record.job_id, f"has {record.failures} failures of at most {record.max_attempts}"
        if record.snoozes > SNOOZES_MAX or record.give_backs > GIVE_BACKS_MAX:
            yield record.job_id, f"counts {record.snoozes} snoozes and {record.give_backs} give-backs"
        if not trimmed(record.history):
            yield from ((record.job_id, sentence) for sentence in _budget(record))


def _budget(record: JobRecord) -> Iterator[str]:
    for life in generations(record.history):
        kinds = Counter(event.event for event in life)
        if kinds[Event.SNOOZE] > SNOOZES_MAX:
            yield f"was snoozed {kinds[Event.SNOOZE]} times, over the cap of {SNOOZES_MAX}"
        if kinds[Event.GIVE_BACK] > GIVE_BACKS_MAX:
            yield f"was given back {kinds[Event.GIVE_BACK]} times, over the cap of {GIVE_BACKS_MAX}"
        failures = 0
        for event in life:
            failures += event.event in FAILURES
            if event.event not in FAILURES:
                continue
            if event.target is Status.RETRYING and failures >= record.max_attempts:
                yield (
                    f"continues after {failures} failures (version {event.version});"
                    f" max_attempts is {record.max_attempts}"
                )
            spent = event.event is Event.EXHAUST or (event.event is Event.RESCUE and event.target is Status.FAILED)
            if spent and failures < record.max_attempts:
                yield f"gave up after {failures} of {record.max_attempts} failures (version {event.version})"
    if record.failures != failures:
        yield f"counts {record.failures} failures; its history has {failures}"


def cancel_or_complete(evidence: Evidence) -> Iterator[Finding]:
    """S15: a generation ends cancelled or completed, never both; an acknowledged cancel is not undone."""
    for record in evidence.records:
        for life in generations(record.history):
            ends = {event.target: event.version for event in life if event.target in TERMINAL}
            if Status.CANCELLED in ends and Status.COMPLETED in ends:
                yield (
                    record.job_id,
                    f"was completed (version {ends[Status.COMPLETED]}) and cancelled"
                    f" (version {ends[Status.CANCELLED]}) in one life",
                )
    for op in evidence.of("apply"):
        acknowledged = op.outcome == "ok" and op.item.event is Event.CANCEL and op.item.token is None
        found = evidence.find(op.job_id)
        if not acknowledged or found is None:
            continue
        retried = any(
            later.item.event is Event.MANUAL_RETRY for later in evidence.on("apply", op.job_id) if later.known
        )
        if found.status is not Status.CANCELLED and not retried:
            yield op.job_id, f"was cancelled for {op.process}, acknowledged, and ended {found.status}"


def lease_exclusion(evidence: Evidence) -> Iterator[Finding]:
    """S7, in store time: a claim ends by a settlement, or not before the last expiry that its holder knows."""
    for record in evidence.records:
        held: HistoryEvent | None = None
        for event in record.history:
            if event.event is Event.CLAIM:
                if held is not None and not trimmed(record.history):
                    told = _last_lease(evidence, record.job_id, held.attempt, NEVER)
                    if told is None or event.at < told:
                        yield (
                            record.job_id,
                            f"attempt {event.attempt} was claimed while attempt {held.attempt} held it",
                        )
                held = event
                continue
            if event.event is Event.RESCUE and held is not None:
                yield from _rescued_early(evidence, record.job_id, held, event)
            if ends_a_claim(event):
                held = None


def leases_go_with_claims(evidence: Evidence) -> Iterator[Finding]:
    """S7: a running job has a lease, without which it would never be rescued; no other job has one."""
    for record in evidence.records:
        if (record.lease_expires_at is not None) != (record.status is Status.PROCESSING):
            yield record.job_id, f"is {record.status}, and its lease ends at {record.lease_expires_at}"


def _rescued_early(evidence: Evidence, job_id: str, claim: HistoryEvent, rescue: HistoryEvent) -> Iterator[Finding]:
    calls = [
        op
        for op in evidence.on("apply", job_id, Outcome.OK, Outcome.INFO)
        if op.item.event is Event.RESCUE and op.attempt == rescue.attempt
    ]
    told = _last_lease(evidence, job_id, claim.attempt, min((op.invoked for op in calls), default=0))
    if told is None or rescue.at >= told:
        return
    worker = claim.by or ""
    if worker not in evidence.dead_workers:
        early = told - rescue.at
        yield job_id, f"attempt {claim.attempt} of {worker} was rescued {early} µs before its lease ended"
        return
    seen = evidence.last_sign.get(evidence.process_of.get(worker, ""), 0)
    done = min((op.returned for op in calls if op.returned is not None), default=NEVER)
    if seen > done:
        yield (
            job_id,
            f"attempt {claim.attempt} of {worker} was rescued as that of a dead worker, which still lived",
        )


def _last_lease(evidence: Evidence, job_id: str, attempt: int, before: int) -> Instant | None:
    told = [lease for moment, lease in evidence.leases(job_id, attempt) if moment <= before]
    return told[-1] if told else None


def not_before(evidence: Evidence) -> Iterator[Finding]:
    """S13, in store time: a job becomes claimable at its due time, or at once if it was not delayed."""
    for record in evidence.records:
        due = _first_due(evidence, record.job_id)
        for event in record.history:
            if event.event in (Event.MANUAL_RETRY, Event.RESCHEDULE):
                due = None  # the caller chooses the time, and it may be now
            if due is not None and event.target is Status.PENDING and event.at < due:
                yield (
                    record.job_id,
                    f"was made pending {due - event.at} µs before it was due (version {event.version})",
                )
            if event.target in (Status.RETRYING, Status.SCHEDULED) and event.event is not Event.SUBMIT:
                due = _due_after(evidence, record.job_id, event) or due


def _first_due(evidence: Evidence, job_id: str) -> Instant | None:
    for op in evidence.on("insert", job_id):
        if op.known and op.item.scheduled_for is not None:
            return op.item.scheduled_for
    return None


def _due_after(evidence: Evidence, job_id: str, event: HistoryEvent) -> Instant | None:
    dues = [
        op.item.scheduled_for
        for op in evidence.on("apply", job_id)
        if op.known and op.item.event is event.event and op.attempt == event.attempt and op.item.scheduled_for
    ]
    return min(dues, default=None)


def deduplication(evidence: Evidence) -> Iterator[Finding]:
    """S11: a key has one active job, and every submit with the key returns it."""
    by_key: dict[str, list[JobRecord]] = defaultdict(list)
    for record in (*evidence.records, *evidence.archive.values()):
        if record.dedup_key is not None:
            by_key[record.dedup_key].append(record)
    for key, holders in by_key.items():
        for one, other in combinations(holders, 2):
            yield from _two_of_a_key(evidence, key, one, other)
    for op in evidence.of("insert", Outcome.OK):
        if op.item.dedup_key is not None:
            yield from _answered_wrongly(evidence, op, op.item.dedup_key)


def _two_of_a_key(evidence: Evidence, key: str, one: JobRecord, other: JobRecord) -> Iterator[Finding]:
    orders = _possible_orders(evidence, one, other)
    first, second = orders[0]
    if all(_both_guard(evidence, *order) for order in orders):
        yield second.job_id, f"was accepted under key {key!r} while {first.job_id} guarded it"


def _possible_orders(evidence: Evidence, one: JobRecord, other: JobRecord) -> list[tuple[JobRecord, JobRecord]]:
    """Yield which of the two may have been stored first, as far as callers can tell."""
    if evidence.born(one.job_id) < evidence.asked_for(other.job_id):
        return [(one, other)]
    if evidence.born(other.job_id) < evidence.asked_for(one.job_id):
        return [(other, one)]
    return [(one, other), (other, one)]


def _both_guard(evidence: Evidence, first: JobRecord, second: JobRecord) -> bool:
    """Return whether the second was submitted or retried while the key belonged to the first."""
    until = _window(evidence, first.job_id)
    if until is not None:
        return second.created_at < until
    if first.status not in TERMINAL and second.status not in TERMINAL:
        return True
    lives = evidence.lives(first.job_id)
    if _window(evidence, second.job_id) is not None:
        lives = lives[:1]  # by the time of another generation, the second one's window may have ended
    return any(
        max(begun, other_begun) < min(ended, other_ended)
        for begun, ended in lives
        for other_begun, other_ended in evidence.lives(second.job_id)
    )


def _window(evidence: Evidence, job_id: str) -> Instant | None:
    for op in evidence.on("insert", job_id):
        if op.known and op.item.dedup_until is not None:
            return min(op.item.dedup_until, FOREVER)
    return None


def _answered_wrongly(evidence: Evidence, op: Operation, key: str) -> Iterator[Finding]:
    answered = evidence.find(op.answer.job_id)
    if answered is None:
        return
    if answered.dedup_key != key and answered.job_id != op.job_id:
        yield answered.job_id, f"answered for key {key!r}, which is not its own ({answered.dedup_key!r})"
    elif op.answer.existing and answered.job_id != op.job_id:
        until = _window(evidence, answered.job_id)
        guarded = until is not None and op.now < until
        if not guarded and evidence.end_done(answered.job_id) < op.invoked:
            yield answered.job_id, f"answered for key {key!r} although it had ended: that submission was lost"


_BADLY = (Status.FAILED, Status.CANCELLED)


def dependencies(evidence: Evidence) -> Iterator[Finding]:
    """S12: no claim before a job's trigger rule is met, and no end because of a rule that is met; each edge counts
    once."""
    for record in evidence.records:
        parents = []
        for parent_id in _parents(evidence, record):
            parent = evidence.find(parent_id)
            if parent is not None:
                parents.append(parent)
            elif not evidence.may_be_gone(parent_id):
                yield record.job_id, f"depends on {parent_id}, which is not there"
        for parent in parents:
            yield from _claimed_too_early(evidence, record, parent)
            yield from _retried_too_early(evidence, record, parent)
            yield from _policy(evidence, record, parent)
        if parents and all(_known_end(evidence, parent) for parent in parents):
            yield from _rule(evidence, record, parents)
    if evidence.edges is not None:
        yield from _edges(evidence, evidence.edges)


def _parents(evidence: Evidence, record: JobRecord) -> set[str]:
    asked = {parent for op in evidence.on("insert", record.job_id) if op.known for parent in op.item.depends_on}
    return asked | set(record.dependencies)


def _known_end(evidence: Evidence, parent: JobRecord) -> bool:
    """Return the outcome of a job that ran in one generation: its current state."""
    return evidence.retries_by_hand(parent) == 0


def _waits_for_all(child: JobRecord) -> bool:
    return child.trigger_rule not in (TriggerRule.ONE_SUCCESS, TriggerRule.ONE_FAILED)


def _claimed_too_early(evidence: Evidence, child: JobRecord, parent: JobRecord) -> Iterator[Finding]:
    claims = [event for event in generations(child.history)[0] if event.event is Event.CLAIM]
    if not claims or _joined(child, parent) or not _waits_for_all(child):
        return
    if child.trigger_rule == TriggerRule.ALL_SUCCESS and not _succeeded(evidence, parent):
        yield child.job_id, f"was claimed, and {parent.job_id}, on which it depends, never succeeded"
        return
    claimed = [
        op.returned
        for op in evidence.on("claim", child.job_id, Outcome.OK)
        if op.attempt == claims[0].attempt and op.returned is not None
    ]
    begun = _end_called(evidence, child, parent)
    if claimed and begun and min(claimed) < min(begun):
        yield child.job_id, f"was claimed before {parent.job_id}, on which it depends, had ended as it must"


def _end_called(evidence: Evidence, child: JobRecord, parent: JobRecord) -> list[Moment]:
    if any(event.event in (Event.RELEASE, Event.REUSE) and event.target in TERMINAL for event in parent.history):
        return []  # ended by the end of another job, without a call
    ends = (Status.COMPLETED,) if child.trigger_rule == TriggerRule.ALL_SUCCESS else tuple(TERMINAL)
    return [op.invoked for op in evidence.on("apply", parent.job_id) if op.item.target in ends and op.known]


def _rule(evidence: Evidence, child: JobRecord, parents: Sequence[JobRecord]) -> Iterator[Finding]:
    """Check the first generation of a job, with dependencies of one generation: its outcome against theirs."""
    first = generations(child.history)[0]
    claimed = any(event.event is Event.CLAIM for event in first)
    broken = any(event.target in _BADLY for event in _releases(first))
    ends = [parent.status for parent in parents if not _joined(child, parent)]
    if not ends or child.reused_from is not None:
        return
    match TriggerRule(child.trigger_rule):
        case TriggerRule.ALL_SUCCESS:
            forbids_start, forbids_end = any(end in _BADLY for end in ends), not any(end in _BADLY for end in ends)
        case TriggerRule.ALL_DONE:
            forbids_start, forbids_end = any(end not in TERMINAL for end in ends), True
        case TriggerRule.ONE_SUCCESS:
            forbids_start, forbids_end = Status.COMPLETED not in ends, Status.COMPLETED in ends
        case TriggerRule.ONE_FAILED:
            forbids_start, forbids_end = Status.FAILED not in ends, Status.FAILED in ends
        case TriggerRule.NONE_FAILED:
            forbids_start, forbids_end = Status.FAILED in ends, Status.FAILED not in ends
    said = f"under {child.trigger_rule}, and what it depends on is {sorted(ends)}"
    if claimed and forbids_start:
        yield child.job_id, f"was claimed {said}"
    if broken and forbids_end:
        yield child.job_id, f"was ended {said}"
    waits = child.status is Status.WAITING and child.awaits is None and len(generations(child.history)) == 1
    if waits and child.trigger_rule == TriggerRule.ONE_SUCCESS and Status.COMPLETED in ends and evidence.ended:
        yield child.job_id, f"is waiting {said}"


def _releases(life: Sequence[HistoryEvent]) -> Iterator[HistoryEvent]:
    """Return the releases by dependencies, not by children."""
    for_children = False
    for event in life:
        if event.event is Event.WAIT_FOR_CHILDREN:
            for_children = True
        elif event.event is Event.RELEASE:
            if not for_children:
                yield event
            for_children = False


def _retried_too_early(evidence: Evidence, child: JobRecord, parent: JobRecord) -> Iterator[Finding]:
    if child.trigger_rule != TriggerRule.ALL_SUCCESS:
        return
    retried = any(
        event.event is Event.MANUAL_RETRY and event.target is Status.PENDING for event in child.history
    )  # a job that waits again is checked by what it waits for
    if retried and not _succeeded(evidence, parent) and not _joined(child, parent):
        yield child.job_id, f"was retried by hand, and {parent.job_id}, on which it depends, never succeeded"


def _succeeded(evidence: Evidence, job: JobRecord) -> bool:
    """Return whether a job completed in any generation; for an archived job, earlier ones are known only from calls."""
    logged = any(event.target is Status.COMPLETED for event in job.history)
    told = any(op.known and op.item.target is Status.COMPLETED for op in evidence.on("apply", job.job_id))
    return job.status is Status.COMPLETED or (told if job.archived_at is not None else logged)


def _joined(child: JobRecord, parent: JobRecord) -> bool:
    """Return whether an edge joins an identical job: if that one does not complete, this one runs by itself."""
    return child.content_hash is not None and child.content_hash == parent.content_hash


def _policy(evidence: Evidence, child: JobRecord, parent: JobRecord) -> Iterator[Finding]:
    lives = len(generations(child.history)), 1 + evidence.retries_by_hand(parent)
    came_to_nothing = parent.status in (Status.FAILED, Status.CANCELLED)
    if lives != (1, 1) or not came_to_nothing or _joined(child, parent) or child.reused_from is not None:
        return
    if child.trigger_rule != TriggerRule.ALL_SUCCESS:
        return  # the outcome of a single one does not decide
    if child.status not in TERMINAL:
        if evidence.ended:
            yield (
                child.job_id,
                f"is {child.status} although {parent.job_id}, on which it depends, is {parent.status}",
            )
        return
    wanted = Status.FAILED if child.on_dependency_failure == "fail" else Status.CANCELLED
    by_hand = child.history[-1].event is Event.CANCEL
    parents = (evidence.find(other) for other in _parents(evidence, child))
    others = {other.status for other in parents if other is not None}
    if child.status is not wanted and not by_hand:
        yield (
            child.job_id,
            f"ended {child.status}; its parents ended {sorted(others)} and its policy is {wanted}",
        )


def _edges(evidence: Evidence, edges: Sequence[Edge]) -> Iterator[Finding]:
    rows = Counter((edge.parent, edge.child) for edge in edges)
    unmet: dict[str, set[str]] = defaultdict(set)
    for edge in edges:
        parent = evidence.by_id.get(edge.parent)
        if parent is None:
            continue
        lived_once = len(generations(parent.history)) == 1
        if not edge.met:
            unmet[edge.child].add(edge.parent)
        if edge.met and parent.status not in TERMINAL and lived_once:
            yield edge.child, f"has its dependency on {edge.parent} met, which is {parent.status}"
        if not edge.met and parent.status in TERMINAL and evidence.ended:
            yield edge.child, f"has its dependency on {edge.parent} unmet, which is {parent.status}"
    for record in evidence.records:
        for parent_id in _parents(evidence, record):
            if rows[parent_id, record.job_id] != 1:
                yield (
                    record.job_id,
                    f"has {rows[parent_id, record.job_id]} edges to {parent_id}, on which it depends",
                )
        waits = record.status is Status.WAITING and record.awaits is None
        if waits and not unmet[record.job_id] and evidence.ended:
            yield record.job_id, "is waiting although everything it depends on is met"


def _children(evidence: Evidence) -> Mapping[str, Sequence[JobRecord]]:
    found: dict[str, list[JobRecord]] = defaultdict(list)
    for record in evidence.records:
        if record.parent_job_id is not None:
            found[record.parent_job_id].append(record)
    return found


def numbers_of_parents(evidence: Evidence) -> Iterator[Finding]:
    """S22: a parent's counts are those of its children."""
    if not evidence.ended:
        return  # some may still be to be stored
    children = _children(evidence)
    for record in evidence.records:
        stand = [child.status for child in children.get(record.job_id, ())]
        are = Brood(
            len(stand),
            sum(status not in TERMINAL for status in stand),
            stand.count(Status.FAILED),
            stand.count(Status.CANCELLED),
        )
        said = Brood(record.children, record.open_children, record.failed_children, record.cancelled_children)
        if said != are:
            yield record.job_id, f"says of its children {said!r}, and they are {are!r}"


def children_of_committed_runs(evidence: Evidence) -> Iterator[Finding]:
    """S23: a child of a run exists only if the run was committed, or the call that submitted it succeeded."""
    brought = {job.job_id for op in evidence.of("stage") for job in op.item.jobs}
    brought |= {op.job_id for op in evidence.brought}
    for record in evidence.records:
        if record.parent_job_id is None or record.job_id not in brought:
            continue
        if not any(op.known for op in evidence.on("insert", record.job_id)):
            yield record.job_id, f"was brought by a run of {record.parent_job_id} that did not complete"


def waiting_parents(evidence: Evidence) -> Iterator[Finding]:
    """S24: no parent waits for children that have all ended, and none resumes before they have."""
    children = _children(evidence)
    for record in evidence.records:
        own = children.get(record.job_id, ())
        if record.awaits is not None and evidence.ended and all(child.status in TERMINAL for child in own):
            yield record.job_id, "waits for its children, which have all ended"
        if not trimmed(record.history):
            yield from _went_on_too_early(evidence, record, own)


def _went_on_too_early(evidence: Evidence, parent: JobRecord, own: Sequence[JobRecord]) -> Iterator[Finding]:
    for waited, claimed in _returns(parent.history):
        called = _called(evidence, parent.job_id, waited)
        returned = [
            op.returned
            for op in evidence.on("claim", parent.job_id, Outcome.OK)
            if op.attempt == claimed and op.returned is not None
        ]
        for child in own:
            if not returned or len(generations(child.history)) > 1 or not _was_there(evidence, child, waited, called):
                continue
            ends = [op.invoked for op in evidence.on("apply", child.job_id) if op.known and op.item.target in TERMINAL]
            if child.status not in TERMINAL or (ends and min(ends) > min(returned)):
                yield parent.job_id, f"continued (attempt {claimed}) before its child {child.job_id} had ended"


def _returns(history: Sequence[HistoryEvent]) -> Iterator[tuple[int, int]]:
    """Return the attempts that waited, each with the attempt that resumed after it."""
    waited: int | None = None
    for event in history:
        if event.event is Event.WAIT_FOR_CHILDREN:
            waited = event.attempt
        elif event.event is Event.CLAIM and waited is not None:
            yield waited, event.attempt
            waited = None
        elif event.event is Event.MANUAL_RETRY:
            waited = None


def _called(evidence: Evidence, job_id: str, attempt: int) -> Moment:
    """Return when the wait of an attempt was first called."""
    asked = [
        op.invoked
        for op in evidence.on("apply", job_id)
        if op.known and op.attempt == attempt and op.item.event is Event.WAIT_FOR_CHILDREN
    ]
    return min(asked, default=0)


def _was_there(evidence: Evidence, child: JobRecord, attempt: int, called: Moment) -> bool:
    """Return whether a child certainly existed before the wait, or was submitted with it."""
    if evidence.born(child.job_id) < called:
        return True
    return any(
        job.job_id == child.job_id
        for verb in ("apply", "stage", "insert_children")
        for op in evidence.on(verb, child.parent_job_id or "", Outcome.OK)
        if op.attempt is not None and op.attempt <= attempt and (op.returned or NEVER) < NEVER
        for job in op.item.jobs
    )
