"""The judge of a storm: compares what the queue has stored with the ledgers of those who used it.

It trusts the queue in nothing that the ledgers can tell. Limits are checked by runs whose claim is known to have held
from their begin to their end: those whose result was recorded. So it needs no clock, and no stalled run is held against
the queue.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from backstay.clock import MICROS, Instant
from backstay.core.records import JobRecord
from backstay.core.states import TERMINAL, Event, Status
from tests.campaigns.storm.app import (
    DOOMED_ATTEMPTS,
    KEY_LIMIT,
    NAP_SECONDS,
    RATE_SECONDS,
    RATE_STARTS,
    ROWS,
    TICK_SECONDS,
    TOLD,
    has_a_tree,
)
from tests.campaigns.storm.ledger import Ledger

NANOS = 1_000_000_000
HISTORY_KEPT = 200  # events; of more, those in the middle are dropped
CLOCK_SECONDS = 0.2  # by which claimers' times may differ on one machine: read before the commit
SETTLES = frozenset(
    {
        Event.COMPLETE,
        Event.RETRY,
        Event.EXHAUST,
        Event.DISCARD,
        Event.SNOOZE,
        Event.GIVE_BACK,
        Event.WAIT_FOR_CHILDREN,
        Event.RESCUE,
    }
)


@dataclass(frozen=True)
class Story:
    """A storm that is over."""

    ledger: Ledger
    records: dict[str, JobRecord]
    rows: dict[str, list[tuple[int, str]]]  # job id, to number and nonce of its rows
    output: dict[str, list[tuple[str, int]]]  # and to what it has streamed
    seconds: float  # from its begin until every job had ended
    transfers: tuple[Instant, ...] = ()  # when they ended: buckets are full again
    clock_jumps: int = 0  # each may fill a bucket; and times in histories say nothing
    results: dict[str, dict[str, object]] = field(default_factory=dict)  # decoded

    def __post_init__(self) -> None:
        for record in self.records.values():
            if record.result is not None:
                self.results[record.job_id] = msgspec.json.decode(record.result) or {}


Check = Callable[[Story], Iterator[str]]


def judge(story: Story) -> list[str]:
    """Return every broken promise, as "promise: sentence"."""
    return [f"{name}: {sentence}" for name, check in CHECKS.items() for sentence in check(story)]


def _lost(story: Story) -> Iterator[str]:
    for job_id in sorted(story.ledger.acknowledged - story.records.keys()):
        yield f"{job_id} was acknowledged and is not there"


def _invented(story: Story) -> Iterator[str]:
    asked = {job_id for each in story.ledger.asked for job_id in each.job_ids}
    for record in story.records.values():
        if record.job_id not in asked and record.parent_job_id not in story.records and record.tick_at is None:
            yield f"{record.job_id} ({record.job_type}) was never submitted"


def _half_stored(story: Story) -> Iterator[str]:
    for each in story.ledger.asked:
        present = sum(job_id in story.records for job_id in each.job_ids)
        if len(each.job_ids) > 1 and present not in (0, len(each.job_ids)):
            yield f"{present} of {len(each.job_ids)} jobs of one submit_many are there: {each.job_ids[0]} and others"


def _stuck(story: Story) -> Iterator[str]:
    for record in story.records.values():
        if record.status not in TERMINAL:
            last = record.history[-1] if record.history else None
            yield f"{record.job_id} ({record.job_type}) is {record.status.value}, attempt {record.attempt}, last {last}"


def _ended_wrong(story: Story) -> Iterator[str]:
    for record in story.records.values():
        cancel = story.ledger.cancelled.get(record.job_id)
        match record.status:
            case Status.COMPLETED if record.job_type == "doomed":
                yield f"{record.job_id} completed, and its handler cannot"
            case Status.COMPLETED if cancel:
                yield f"{record.job_id} completed after its cancellation was acknowledged"
            case Status.CANCELLED if cancel is None:
                yield f"{record.job_id} ({record.job_type}) was cancelled, and no one asked for it: {record.last_error}"
            case Status.FAILED if record.job_type != "doomed":
                yield f"{record.job_id} ({record.job_type}) is a dead letter: {record.last_error}"
            case Status.FAILED if record.failures != DOOMED_ATTEMPTS:
                yield f"{record.job_id} failed after {record.failures} failures, not {DOOMED_ATTEMPTS}"


def _completed_twice(story: Story) -> Iterator[str]:
    for record in story.records.values():
        completions = sum(event.event is Event.COMPLETE for event in record.history)
        if completions != (record.status is Status.COMPLETED):
            yield f"{record.job_id} ({record.job_type}) is {record.status.value} with {completions} completions"


def _not_fenced(story: Story) -> Iterator[str]:
    for record in story.records.values():
        yield from _history(record)


def _history(record: JobRecord) -> Iterator[str]:
    attempt: int | None = 0  # None: the claim is among those that were dropped
    before = None
    for event in record.history:
        jumped = before is not None and event.version != before.version + 1
        if jumped:
            attempt = None
        if jumped and len(record.history) < HISTORY_KEPT:
            yield f"{record.job_id} has no version between {before.version if before else 0} and {event.version}"
        if before is not None and not jumped and event.source is not before.target:
            yield f"{record.job_id} went from {event.source} at version {event.version}, and was {before.target}"
        if before is not None and before.target in TERMINAL:
            yield f"{record.job_id} had ended, and then: {event.event.value}"
        if event.event is Event.CLAIM:
            if attempt is not None and event.attempt != attempt + 1:
                yield f"{record.job_id} was claimed as attempt {event.attempt} after {attempt}"
            attempt = event.attempt
        elif event.event in SETTLES and attempt is not None and event.attempt != attempt:
            yield f"{record.job_id}: {event.event.value} of attempt {event.attempt} during attempt {attempt}"
        before = event


def _wrong_result(story: Story) -> Iterator[str]:
    nonces = defaultdict(set)
    for run in story.ledger.runs:
        if run.what == "end":
            nonces[run.job_id, run.attempt].add(run.nonce)
    for record in story.records.values():
        if record.status is not Status.COMPLETED:
            if record.result is not None:
                yield f"{record.job_id} is {record.status.value} and has a result"
            continue
        nonce = story.results.get(record.job_id, {}).get("nonce")
        if nonce not in nonces[record.job_id, record.attempt]:
            whose = [(run.job_id, run.attempt) for run in story.ledger.runs if run.nonce == nonce]
            yield f"{record.job_id} ({record.job_type}), attempt {record.attempt}, has the result of {whose[:1]}"


def _duplicates(story: Story) -> Iterator[str]:
    answers = defaultdict(set)
    for each in story.ledger.asked:
        if each.dedup_key and each.acknowledged:
            answers[each.dedup_key].add(each.answered)
    stored = Counter(record.dedup_key for record in story.records.values() if record.dedup_key)
    for key, count in stored.items():
        if count > 1:
            yield f"{count} jobs have the key {key}"
    for key, ids in answers.items():
        if len(ids) > 1:
            yield f"{key} was answered with {sorted(ids)}"


def _families(story: Story) -> Iterator[str]:
    children = defaultdict(list)
    for record in story.records.values():
        if record.parent_job_id is not None:
            children[record.parent_job_id].append(record)
    for record in story.records.values():
        if record.job_type != "family" or record.status is not Status.COMPLETED:
            continue
        n = msgspec.json.decode(record.payload)["n"]
        expected = 1 + n % 4 + has_a_tree(n)
        told = story.results.get(record.job_id, {}).get("children")
        if not len(children[record.job_id]) == told == expected:
            stored = len(children[record.job_id])
            yield f"{record.job_id} has {stored} children, was told of {told}, and submitted {expected}"


def _dependencies(story: Story) -> Iterator[str]:
    began: dict[str, int] = {}
    ended: dict[str, int] = {}  # by the run that is recorded
    for run in story.ledger.runs:
        if run.what == "begin":
            began[run.job_id] = min(run.at, began.get(run.job_id, run.at))
        elif run.nonce == story.results.get(run.job_id, {}).get("nonce"):
            ended[run.job_id] = run.at
    depends_on = {job_id: needed for each in story.ledger.asked for job_id, needed in each.depends_on.items()}
    for job_id, needed in depends_on.items():
        for dependency in needed:
            if job_id in began and not began[job_id] >= ended.get(dependency, sys.maxsize):
                yield f"{job_id} began before {dependency} had completed"


def _too_early(story: Story) -> Iterator[str]:
    if story.clock_jumps:  # a worker whose clock is ahead starts what is not due yet
        return
    due: dict[str, float] = {}
    for each in story.ledger.asked:
        for job_id, delay in each.delays.items():
            at = each.at + (delay - CLOCK_SECONDS) * NANOS
            due[job_id] = min(at, due.get(job_id, at))  # a repeated submit changes nothing
    for run in story.ledger.runs:
        if run.what == "begin" and run.at < due.get(run.job_id, 0):
            yield f"{run.job_id} began {(due[run.job_id] - run.at) / NANOS:.3f} s before it was due"


def _rows(story: Story) -> Iterator[str]:
    for record in story.records.values():
        if record.job_type == "rows" and record.status is Status.COMPLETED:
            first = record.attempt % 2
            nonce = story.results.get(record.job_id, {}).get("nonce")
            expected = [(number, nonce) for number in range(first, first + ROWS)]
            if sorted(story.rows.get(record.job_id, [])) != expected:
                yield f"{record.job_id}, attempt {record.attempt}, has the rows {story.rows.get(record.job_id)}"


def _output(story: Story) -> Iterator[str]:
    for record in story.records.values():
        if record.job_type == "told" and record.status is Status.COMPLETED:
            nonce = story.results.get(record.job_id, {}).get("nonce")
            if story.output.get(record.job_id) != [(nonce, number) for number in range(TOLD)]:
                found = story.output.get(record.job_id)
                yield f"{record.job_id}, attempt {record.attempt}, has the output {found}"


def _waits(story: Story) -> Iterator[str]:
    """A job that waits receives its own event or none, and does not end before its sleep is over."""
    began: dict[str, int] = {}
    ended: dict[str, int] = {}
    for run in story.ledger.runs:
        if run.kind == "patient" and run.what == "begin":
            began[run.job_id] = min(run.at, began.get(run.job_id, run.at))
        elif run.nonce == story.results.get(run.job_id, {}).get("nonce"):
            ended[run.job_id] = run.at
    for record in story.records.values():
        if record.job_type != "patient" or record.status is not Status.COMPLETED:
            continue
        received = story.results.get(record.job_id, {}).get("received")
        if received not in (None, msgspec.json.decode(record.payload)["n"]):
            yield f"{record.job_id} received {received}, which is the event of another"
        slept = (ended.get(record.job_id, sys.maxsize) - began.get(record.job_id, 0)) / NANOS
        if not story.clock_jumps and slept < NAP_SECONDS - CLOCK_SECONDS:
            yield f"{record.job_id} ended {slept:.3f} s after it began, and sleeps {NAP_SECONDS} s"


def _limits(story: Story) -> Iterator[str]:
    held = {(record.job_id, record.attempt) for record in story.records.values() if record.status is Status.COMPLETED}
    recorded = {result.get("nonce") for result in story.results.values()}
    changes = defaultdict(list)
    for run in story.ledger.runs:
        if run.kind == "keyed" and run.nonce in recorded and (run.job_id, run.attempt) in held:
            changes[run.key].append((run.at, 1 if run.what == "begin" else -1))
    for key, moments in changes.items():
        running = most = 0
        for _, change in sorted(moments):
            running += change
            most = max(most, running)
        if most > KEY_LIMIT:
            yield f"{most} jobs ran at once under the key {key}, whose limit is {KEY_LIMIT}"


def _rates(story: Story) -> Iterator[str]:
    claims = defaultdict(list)
    for record in story.records.values():
        if record.rate_key is not None:
            claims[record.rate_key] += [event.at for event in record.history if event.event is Event.CLAIM]
    bucketfuls = 1 + len(story.transfers) + story.clock_jumps
    allowed = RATE_STARTS * (bucketfuls + (story.seconds + CLOCK_SECONDS) / RATE_SECONDS)
    for key, instants in claims.items():
        if len(instants) > allowed:
            yield f"{len(instants)} starts under the key {key} in {story.seconds:.0f} s: {allowed:.0f} are allowed"
        if not story.clock_jumps:
            yield from _bucket(key, sorted(instants), sorted(story.transfers))


def _bucket(key: str, claims: list[Instant], refills: list[Instant]) -> Iterator[str]:
    """Follow the bucket from claim to claim. A transfer does not carry its level."""
    level, before = float(RATE_STARTS), claims[0]
    for at in claims:
        if any(before <= refill <= at for refill in refills):
            level = RATE_STARTS
        level = min(RATE_STARTS, level + RATE_STARTS * (at - before) / MICROS / RATE_SECONDS) - 1
        before = at
        if level < -RATE_STARTS * CLOCK_SECONDS:
            yield f"at {at} the key {key} had spent {-level:.1f} starts more than its bucket held"
            return


def _ticks(story: Story) -> Iterator[str]:
    ticks = defaultdict(list)
    for record in story.records.values():
        if record.schedule is not None and record.tick_at is not None:
            ticks[record.schedule].append(record.tick_at)
    for name, instants in ticks.items():
        instants.sort()
        for before, after in pairwise(instants):
            if after - before != TICK_SECONDS * MICROS:
                yield f"the schedule {name} has ticks {before} and {after}, {(after - before) / MICROS} s apart"


CHECKS: dict[str, Check] = {
    "lost": _lost,
    "invented": _invented,
    "half stored": _half_stored,
    "stuck": _stuck,
    "ended wrong": _ended_wrong,
    "completed twice": _completed_twice,
    "not fenced": _not_fenced,
    "wrong result": _wrong_result,
    "duplicates": _duplicates,
    "families": _families,
    "dependencies": _dependencies,
    "too early": _too_early,
    "rows": _rows,
    "output": _output,
    "waits": _waits,
    "limit passed": _limits,
    "rate passed": _rates,
    "ticks": _ticks,
}
