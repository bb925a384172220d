"""A store writes, and its answer never arrives: whatever was asked, the caller is told what is true.

`from tests.engines.lost_answers.suite import *`, with the fixtures `store` and `unheard`:
`await unheard(store.claim(…))` loses the answer to the call's first write."""

from collections.abc import Awaitable
from typing import Protocol, TypeVar

import msgspec
import pytest

from backstay.core import dumps
from backstay.core.dumps import FROM, INTO, JobDump, MoveState
from backstay.core.lifecycle import Raised, cancel, manual_retry, reprioritise, rescue
from backstay.core.output import START, OutputPart
from backstay.core.port import Store
from backstay.core.records import LimitChange, LimitOf, NewJob, Note, QueueChange, Rate, Staged, Verdict
from backstay.core.schedules import defined, timing
from backstay.core.states import Status
from backstay.testing.conformance.factories import (
    DAY,
    HOUR,
    NOW,
    SECOND,
    Claim,
    a_firing,
    a_policy,
    a_schedule,
    an_error,
    new_job,
    quiet,
    record,
    request,
    submit,
    submit_many,
)
from backstay.testing.conformance.test_access import a_key, an_entry
from backstay.testing.conformance.test_durable_waits import a_wait, payloads, sent_to_key

T = TypeVar("T")


class Unheard(Protocol):
    async def __call__(self, call: Awaitable[T]) -> T: ...


async def claimed(store: Store, **asked: object) -> Claim:
    await submit(store, **asked)
    wanted = request()
    [job] = await store.claim(wanted, NOW)
    return Claim(job, wanted.token)


@pytest.mark.parametrize("fields", [{}, {"dedup_key": "k"}, {"concurrency_key": "c", "concurrency_limit": 1}])
async def test_a_submitted_job_is_stored_once(store: Store, unheard: Unheard, fields: dict[str, object]) -> None:
    job = new_job(**fields)

    [answer] = await unheard(store.insert([job], NOW))

    assert (answer.job_id, answer.status, answer.existing) == (job.job_id, Status.PENDING, None)
    assert (await store.counts())["pending"] == 1


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"concurrency_key": "c", "concurrency_limit": 5},
        {"rate_key": "r", "rate": Rate(9, SECOND)},
        {"fairness_key": "tenant"},
    ],
    ids=["plain", "key", "rate", "turns"],
)
async def test_a_claim_is_told_what_it_took_and_takes_no_more(
    store: Store, unheard: Unheard, limit: int, fields: dict[str, object]
) -> None:
    await store.insert([new_job(**fields) for _ in range(5)], NOW)

    taken = await unheard(store.claim(request(limit=limit), NOW))

    assert [job.attempt for job in taken] == [1] * limit
    assert (await store.counts())["processing"] == limit


@pytest.mark.parametrize("how", ["plain", "with a log", "failed"])
async def test_a_settlement_is_applied_once_and_not_called_stale(store: Store, unheard: Unheard, how: str) -> None:
    claim = await claimed(store)
    settles = {
        "plain": claim.completes(),
        "with a log": claim.completes(log_location="/log"),
        "failed": claim.ends(Raised(an_error())),
    }

    assert await unheard(store.apply([settles[how]], NOW)) == [Verdict.APPLIED]

    assert len((await record(store, claim.job_id)).history) == 3
    counted = [each for each in await store.counters(NOW - DAY, NOW + DAY) if each.outcome != "submitted"]
    assert sum(each.count for each in counted) == 1


async def test_whoever_leaves_a_key_leaves_it_once(store: Store, unheard: Unheard) -> None:
    claim = await claimed(store, concurrency_key="gpu")
    waiting = await submit(store, concurrency_key="gpu")

    assert await unheard(store.apply([claim.completes()], NOW)) == [Verdict.APPLIED]

    assert [job.job_id for job in await store.claim(request(), NOW)] == [waiting]


async def test_an_edit_is_applied_once_and_not_called_stale(store: Store, unheard: Unheard) -> None:
    job_id = await submit(store)

    seen = await record(store, job_id)
    urgent = reprioritise(seen, priority=90, by="me", reason=None)
    assert await unheard(store.apply([urgent], NOW)) == [Verdict.APPLIED]
    assert await store.apply([urgent], NOW) == [Verdict.STALE]  # asked for anew it is another edit, of what is gone

    seen = await record(store, job_id)
    assert await unheard(store.apply([cancel(seen, by="me", reason=None)], NOW)) == [Verdict.APPLIED]

    seen = await record(store, job_id)
    again = manual_retry(seen, now=NOW, by="me", reason=None)
    assert await unheard(store.apply([again], NOW)) == [Verdict.APPLIED]
    assert [entry.event for entry in (await record(store, job_id)).history] == [
        "submit",
        "reprioritise",
        "cancel",
        "manual_retry",
    ]


async def test_a_rescue_is_applied_once_and_not_called_stale(store: Store, unheard: Unheard) -> None:
    claim = await claimed(store)
    later = NOW + 3600 * SECOND
    [expired] = await store.expired(later, 10)
    move = rescue(expired, lease=expired.lease_expires_at, now=later, reason="lost", by="sweeper")

    assert await unheard(store.apply([move], later)) == [Verdict.APPLIED]

    assert (await record(store, claim.job_id)).failures == 1


async def test_what_a_holder_says_is_taken(store: Store, unheard: Unheard) -> None:
    claim = await claimed(store)

    assert await unheard(store.extend([claim.hold], NOW + 90 * SECOND, NOW)) == [Verdict.APPLIED]
    assert await unheard(store.note([Note(claim.hold, progress=0.5)], NOW)) == [Verdict.APPLIED]
    assert await unheard(store.record_step(claim.hold, "step", "1", NOW)) is Verdict.APPLIED

    part = OutputPart(claim.hold, 0, 1, ('"a"', '"b"'), 6)
    assert await unheard(store.append_output([part], NOW)) == [Verdict.APPLIED]
    assert [each.text for each in await store.output(claim.job_id, START, 10)] == ['["a","b"]']

    job = await record(store, claim.job_id)
    assert (job.lease_expires_at, job.progress) == (NOW + 90 * SECOND, 0.5)


async def test_a_tick_makes_one_job(store: Store, unheard: Unheard) -> None:
    schedule = a_schedule()
    await store.save_schedule(schedule, None)

    assert await unheard(store.fire([a_firing(schedule)], schedule.next_at)) == [Verdict.APPLIED]

    assert (await store.counts())["pending"] == 1


async def test_operators_are_told_that_it_is_done(store: Store, unheard: Unheard) -> None:
    row = await unheard(store.change_queue("default", QueueChange(paused=True, by="me"), NOW))
    assert row.paused_at == NOW

    limited = await unheard(
        store.change_limit(LimitOf.TYPE, "work", LimitChange(limits=True, concurrency=4, by="me"), NOW)
    )
    assert await store.limits() == [limited]

    nightly = defined(None, "nightly", timing("0 3 * * *", missed="skip"), new_job(), NOW)
    assert nightly is not None
    assert await unheard(store.save_schedule(nightly, None)) is Verdict.APPLIED
    [stored] = await store.schedules()
    assert stored.cron == nightly.cron
    assert await unheard(store.drop_schedule("nightly")) is Verdict.APPLIED
    assert await store.schedules() == []


async def test_a_wait_that_listens_gets_one_event_and_leaves_the_next(store: Store, unheard: Unheard) -> None:
    for number in ("1", "2"):
        await sent_to_key(store, "k", f"e{number}", payload=number)
    claim, other = await claimed(store), await claimed(store)

    assert await unheard(store.listen_for(claim.hold, a_wait(key="k"), NOW)) is Verdict.APPLIED
    assert await store.listen_for(other.hold, a_wait(key="k"), NOW) is Verdict.APPLIED

    assert await payloads(store, claim.job_id) == ["1"]
    assert await payloads(store, other.job_id) == ["2"]


async def test_a_key_and_an_entry_are_stored_once(store: Store, unheard: Unheard) -> None:
    key, entry = a_key(), an_entry()

    assert await unheard(store.save_key(key, new=True)) is Verdict.APPLIED
    await unheard(store.audit([entry]))
    assert await store.keys() == [key]
    assert (await store.audited(None, 10)).items == (entry,)

    await unheard(store.drop_keys([key.key_id]))
    assert await store.keys() == []


async def test_an_hour_is_added_to_the_totals_once(store: Store, unheard: Unheard) -> None:
    for hours in (1, 2, 3):
        await submit(store, now=NOW - hours * HOUR)
    before = await store.totals()

    await unheard(store.retire(a_policy(0, 0, 0), NOW + 3 * HOUR, 10, None))

    assert await store.totals() == before


@pytest.mark.parametrize("children", [2, 45])
async def test_an_end_releases_those_who_wait_for_it_once(store: Store, unheard: Unheard, children: int) -> None:
    claim = await claimed(store)
    waiting = await submit_many(store, children, depends_on=(claim.job_id,))

    assert await unheard(store.apply([claim.completes()], NOW)) == [Verdict.APPLIED]

    found = await store.get(waiting)
    assert {(job.status, job.version) for job in found if job is not None} == {(Status.PENDING, 2)}


# Trees


async def _numbers(store: Store, parent: str) -> tuple[int, int]:
    job = await record(store, parent)
    return job.children, job.open_children


def _children(parent: Claim, count: int) -> tuple[NewJob, ...]:
    return tuple(new_job(job_type="child", parent_job_id=parent.job_id, own_id=True) for _ in range(count))


async def test_children_that_are_stored_at_once_are_stored_once(store: Store, unheard: Unheard) -> None:
    parent = await claimed(store)
    jobs = _children(parent, 2)

    answers = await unheard(store.insert_children(parent.hold, jobs, NOW))

    assert answers is not None
    assert [(each.job_id, each.status) for each in answers] == [(job.job_id, Status.PENDING) for job in jobs]
    assert await _numbers(store, parent.job_id) == (2, 2)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_settlement_brings_its_children_once(store: Store, unheard: Unheard, waits: bool) -> None:
    parent = await claimed(store)
    jobs = _children(parent, 3)

    settles = parent.waits(children=jobs) if waits else parent.completes(children=jobs)
    assert await unheard(store.apply([settles], NOW)) == [Verdict.APPLIED]

    assert await _numbers(store, parent.job_id) == (3, 3)
    assert (await record(store, parent.job_id)).version == 3


async def test_what_is_staged_comes_once(store: Store, unheard: Unheard) -> None:
    parent = await claimed(store)
    jobs = _children(parent, 4)

    for part in range(2):
        assert await unheard(store.stage(parent.hold, part, jobs[part * 2 : part * 2 + 2], NOW)) is Verdict.APPLIED
    assert await unheard(store.apply([parent.completes(staged=Staged(2, 4))], NOW)) == [Verdict.APPLIED]
    await quiet(store)

    assert await _numbers(store, parent.job_id) == (4, 4)


async def test_a_parent_goes_on_once(store: Store, unheard: Unheard) -> None:
    parent = await claimed(store)
    [job] = jobs = _children(parent, 1)
    await store.apply([parent.waits(children=jobs)], NOW)
    wanted = request(slots={"child": 1})
    [taken] = await store.claim(wanted, NOW)

    assert await unheard(store.apply([Claim(taken, wanted.token).completes()], NOW)) == [Verdict.APPLIED]

    assert await _numbers(store, parent.job_id) == (1, 0)
    found = await record(store, parent.job_id)
    assert (found.status, found.version, taken.job_id) == (Status.PENDING, 4, job.job_id)


async def test_a_retry_that_has_to_wait_is_applied_once_and_not_called_stale(store: Store, unheard: Unheard) -> None:
    first = await claimed(store, max_attempts=1)
    second = await submit(store, depends_on=(first.job_id,))
    await store.apply([first.ends(Raised(an_error()))], NOW)
    for job_id, stands in ((first.job_id, Status.PENDING), (second, Status.WAITING)):
        seen = await record(store, job_id)
        again = manual_retry(seen, now=NOW, by="me", reason=None, rewait=True)

        assert await unheard(store.apply([again], NOW)) == [Verdict.APPLIED]

        found = await record(store, job_id)
        assert (found.status, found.version) == (stands, seen.version + 1)


async def test_a_queue_is_frozen_once(store: Store, unheard: Unheard) -> None:
    leaving = MoveState(role=FROM, move_id="m", other="elsewhere")

    assert await unheard(store.freeze(leaving)) == 0
    assert await store.moving() == leaving
    await store.freeze(None)
    assert await store.moving() is None


async def test_a_page_that_moves_in_is_stored_once(store: Store, unheard: Unheard) -> None:
    await submit(store)
    [item] = (await store.export(dumps.JOBS, None, 10)).items
    dump = dumps.unpacked(dumps.JOBS, item, JobDump)
    other = msgspec.structs.replace(dump, record=msgspec.structs.replace(dump.record, job_id=new_job().job_id))
    coming = MoveState(role=INTO, move_id="m", other="elsewhere", kind=dumps.JOBS)

    await unheard(store.restore(dumps.JOBS, [dumps.packed(other)], coming))

    assert await store.moving() == coming
    assert (await store.counts())["pending"] == 2
    await store.restore("", [], msgspec.structs.replace(coming, done=True))
