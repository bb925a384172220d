"""Conformance: durable waits: recorded steps, sleeps, and events that are sent to jobs and to correlation keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay.core import dumps, waits
from backstay.core.dependencies import Awaits
from backstay.core.event_details import Awaited, Received, Slept
from backstay.core.lifecycle import Sleeping, WaitingForEvent, cancel, reprioritise
from backstay.core.port import Store
from backstay.core.records import Hold, Verdict
from backstay.core.states import Event, Status
from backstay.core.waits import Delivery, Ending, EventWait, NewEvent, StepKind
from backstay.limits import EVENTS_KEPT_DAYS, EVENTS_KEPT_MAX
from backstay.testing.conformance.factories import (
    DAY,
    HOUR,
    MINUTE,
    NOW,
    Claim,
    cancelled,
    claim_again,
    claim_ids,
    new_job,
    quiet,
    record,
    retry_by_hand,
    running,
    settle,
    status,
    submit,
)
from backstay.testing.conformance.test_transfer import carry, everything

APPLIED, STALE = Verdict.APPLIED, Verdict.STALE
RECORDED, KEPT, REPEATED = Delivery.RECORDED, Delivery.KEPT, Delivery.REPEATED
ROUNDS = 10


def event(event_id: str = "e1", name: str = "approved", payload: str = "true", **to: Any) -> NewEvent:
    return NewEvent(event_id, name, payload, **to)


def a_wait(name: str = "approved", **changes: Any) -> EventWait:
    return EventWait(name, changes.pop("wait", name), NOW, **changes)


async def sent(store: Store, job_id: str, event_id: str = "e1", **changes: Any) -> Delivery:
    [answer] = await store.send([event(event_id, job_id=job_id, **changes)], NOW)
    return answer


async def sent_to_key(store: Store, key: str, event_id: str = "e1", **changes: Any) -> Delivery:
    now = changes.pop("now", NOW)
    [answer] = await store.send([event(event_id, key=key, **changes)], now)
    return answer


async def waits_for(store: Store, claim: Claim, wait: EventWait | None = None) -> None:
    """Settle an attempt that waits, having seen what has come so far."""
    inbox = await store.inbox(claim.job_id)
    await settle(store, claim.ends(WaitingForEvent(wait or a_wait(), inbox.seen)))


async def waiting(store: Store, wait: EventWait | None = None, **changes: Any) -> Claim:
    claim = await running(store, **changes)
    if wait is not None and wait.key is not None:
        assert await store.listen_for(claim.hold, wait, NOW) is APPLIED
    await waits_for(store, claim, wait)
    return claim


async def payloads(store: Store, job_id: str) -> list[str]:
    """Return the payloads of the events that were sent to a job, in order."""
    return [waits.sent_of(each.answer).payload for each in (await store.inbox(job_id)).sent]


class TestStepsOfAllKinds:
    async def test_a_job_lists_its_steps_with_their_kinds(self, store: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "charge", '"paid"', NOW)
        await store.record_step(claim.hold, "charge", '{"until": 1}', NOW + 1, StepKind.SLEEP)
        await sent(store, claim.job_id)

        steps = {(each.kind, each.name): each for each in await store.steps(claim.job_id, 100)}

        assert set(steps) == {(StepKind.STEP, "charge"), (StepKind.SLEEP, "charge"), (StepKind.SENT, "e1")}
        assert steps[StepKind.STEP, "charge"].answer == '"paid"'
        assert steps[StepKind.STEP, "charge"].attempt == 1
        assert len(await store.steps(claim.job_id, 2)) == 2
        assert await store.step(claim.job_id, "charge") == '"paid"'
        assert await store.step(claim.job_id, "charge", StepKind.SLEEP) == '{"until": 1}'
        assert await store.step(claim.job_id, "charge", StepKind.EVENT) is None

    async def test_a_manual_retry_without_steps_forgets_sleeps_and_events_too(self, store: Store) -> None:
        claim = await running(store)
        await store.record_step(claim.hold, "nap", "{}", NOW, StepKind.SLEEP)
        await store.record_step(claim.hold, "own", "1", NOW, StepKind.OWN)
        await sent(store, claim.job_id)
        await settle(store, claim.completes())
        await retry_by_hand(store, claim.job_id, forget_steps=True)

        assert [each.kind for each in await store.steps(claim.job_id, 100)] == [StepKind.OWN]
        assert (await store.inbox(claim.job_id)).sent == ()
        assert await sent(store, claim.job_id, "e2", payload="2") is RECORDED
        assert await payloads(store, claim.job_id) == ["2"]


class TestSleep:
    async def test_a_sleeping_job_is_scheduled_and_counts_nothing(self, store: Store) -> None:
        claim = await running(store)
        child = new_job(parent_job_id=claim.job_id, root_job_id=claim.job_id)
        await settle(store, claim.ends(Sleeping("cooldown", NOW + DAY), children=(child,)))

        job = await record(store, claim.job_id)
        assert (job.status, job.scheduled_for) == (Status.SCHEDULED, NOW + DAY)
        assert (job.failures, job.snoozes, job.waits, job.lease_expires_at) == (0, 0, 0, None)
        assert (job.history[-1].event, job.history[-1].details) == (Event.SLEEP, Slept("cooldown"))
        assert (await record(store, child.job_id)).parent_job_id == claim.job_id

        assert (await store.promote(NOW + DAY, 10)).count == 1
        assert (await claim_again(store, claim, now=NOW + DAY)).job.scheduled_for == NOW + DAY


class TestEventsOfJobs:
    async def test_a_job_that_waits_for_an_event_holds_nothing(self, store: Store) -> None:
        claim = await waiting(store, a_wait(until=NOW + DAY))

        job = await record(store, claim.job_id)
        assert job.status is Status.WAITING
        assert job.awaits == a_wait(until=NOW + DAY).stored
        assert (job.lease_expires_at, job.failures, job.waits) == (None, 0, 0)
        assert (job.history[-1].event, job.history[-1].details) == (Event.WAIT_FOR_EVENT, Awaited("approved"))
        assert await claim_ids(store, slots={claim.job.job_type: 1}) == []
        await quiet(store)
        assert await status(store, claim.job_id) is Status.WAITING

    async def test_an_event_wakes_the_job_that_waits_for_it(self, store: Store) -> None:
        claim = await waiting(store)

        assert await sent(store, claim.job_id, payload='{"by": "ada"}') is RECORDED

        job = await record(store, claim.job_id)
        assert (job.status, job.awaits, job.scheduled_for) == (Status.PENDING, None, NOW)
        assert (job.history[-1].event, job.history[-1].details) == (Event.RELEASE, Received("approved", "e1"))
        again = await claim_again(store, claim)
        found = waits.next_event(await store.inbox(claim.job_id), a_wait())
        assert found is not None
        assert (found[0], found[1].payload, found[1].key) == ("e1", '{"by": "ada"}', None)
        await settle(store, again.completes())

    async def test_another_event_does_not_wake_it(self, store: Store) -> None:
        claim = await waiting(store)

        assert await sent(store, claim.job_id, name="rejected") is RECORDED

        assert await status(store, claim.job_id) is Status.WAITING
        assert waits.next_event(await store.inbox(claim.job_id), a_wait()) is None

    async def test_an_event_that_came_first_is_kept(self, store: Store) -> None:
        job_id = await submit(store, job_type="early")
        assert await sent(store, job_id, payload="1") is RECORDED
        assert await sent(store, job_id, "e2", payload="2") is RECORDED
        assert await status(store, job_id) is Status.PENDING

        assert sorted(await payloads(store, job_id)) == ["1", "2"]

    async def test_a_wait_does_not_begin_when_an_event_has_come_that_it_has_not_seen(self, store: Store) -> None:
        claim = await running(store)
        seen = (await store.inbox(claim.job_id)).seen
        await sent(store, claim.job_id)

        await settle(store, claim.ends(WaitingForEvent(a_wait(), seen)))

        job = await record(store, claim.job_id)
        assert (job.status, job.awaits) == (Status.PENDING, None)
        events = [each.event for each in job.history[-2:]]
        assert events == [Event.WAIT_FOR_EVENT, Event.RELEASE]
        await settle(store, (await claim_again(store, claim)).completes())

    async def test_of_a_wait_and_an_event_at_once_one_sees_the_other(self, store: Store, second_store: Store) -> None:
        for _ in range(ROUNDS):
            claim = await running(store)
            inbox = await store.inbox(claim.job_id)
            waits_now = claim.ends(WaitingForEvent(a_wait(), inbox.seen))
            await asyncio.gather(store.apply([waits_now], NOW), sent(second_store, claim.job_id))
            assert await status(store, claim.job_id) is Status.PENDING

    async def test_the_settlement_of_a_wait_may_be_repeated(self, store: Store) -> None:
        claim = await running(store)
        ends = claim.ends(WaitingForEvent(a_wait(), 0))
        await settle(store, ends)
        await settle(store, ends)
        await sent(store, claim.job_id)

        assert await store.apply([ends], NOW) == [APPLIED]
        assert await status(store, claim.job_id) is Status.PENDING

    async def test_an_event_with_the_same_id_has_one_effect(self, store: Store) -> None:
        claim = await waiting(store)
        assert await sent(store, claim.job_id, payload="1") is RECORDED
        assert await sent(store, claim.job_id, payload="2") is REPEATED
        again = await claim_again(store, claim)
        assert await payloads(store, claim.job_id) == ["1"]
        await settle(store, again.completes())

        assert await sent(store, claim.job_id, payload="3") is REPEATED  # also after its end

    async def test_an_event_is_received_once(self, store: Store) -> None:
        claim = await running(store)
        await sent(store, claim.job_id, "e1", payload="1")
        await store.record_step(claim.hold, "approved", waits.encoded(Ending("e1", "1")), NOW, StepKind.EVENT)

        inbox = await store.inbox(claim.job_id)

        assert [each.name for each in inbox.endings] == ["approved"]
        assert waits.next_event(inbox, a_wait(wait="approved (2)")) is None

    async def test_an_attempt_that_lost_its_claim_receives_nothing(self, store: Store) -> None:
        claim = await running(store)
        await sent(store, claim.job_id)
        await settle(store, claim.gives_back())
        await claim_again(store, claim)

        ending = waits.encoded(Ending("e1", "1"))
        assert await store.record_step(claim.hold, "approved", ending, NOW, StepKind.EVENT) is STALE

        assert (await store.inbox(claim.job_id)).endings == ()

    async def test_events_of_one_call_are_answered_in_order(self, store: Store) -> None:
        job_id, gone = await submit(store), await cancelled(store)
        unknown = new_job().job_id

        answers = await store.send(
            [event("e1", job_id=job_id), event("e1", job_id=job_id), event(job_id=gone), event(job_id=unknown)], NOW
        )

        assert answers == [RECORDED, REPEATED, Delivery.ENDED, Delivery.GONE]

    async def test_whoever_waits_can_be_changed(self, store: Store) -> None:
        one, other = await waiting(store), await waiting(store)
        await settle(store, reprioritise(await record(store, one.job_id), priority=90, by=None, reason=None))
        await settle(store, cancel(await record(store, other.job_id), by=None, reason=None))

        assert (await record(store, one.job_id)).priority == 90
        assert await status(store, other.job_id) is Status.CANCELLED
        assert await sent(store, other.job_id) is Delivery.ENDED
        assert await sent(store, one.job_id) is RECORDED
        assert await status(store, one.job_id) is Status.PENDING

    async def test_the_end_of_a_child_does_not_wake_a_parent_that_waits_for_an_event(self, store: Store) -> None:
        claim = await running(store)
        child = new_job(parent_job_id=claim.job_id, root_job_id=claim.job_id, job_type=f"{claim.job.job_type}-child")
        await settle(store, claim.ends(WaitingForEvent(a_wait(), 0), children=(child,)))
        [taken] = await store.claim(_request(child.job_type), NOW)

        await settle(store, Claim(taken, TOKEN).completes())

        job = await record(store, claim.job_id)
        assert (job.status, job.open_children, job.children) == (Status.WAITING, 0, 1)
        await sent(store, claim.job_id)
        again = await claim_again(store, claim)
        await settle(store, again.waits())  # for its children, of which none is open
        assert await status(store, claim.job_id) is Status.PENDING


TOKEN = "0123456789abcdef" * 2


def _request(job_type: str) -> Any:
    from backstay.testing.conformance.factories import request

    return request(slots={job_type: 1}, token=TOKEN)


class TestTimeouts:
    async def test_a_wait_that_times_out_is_due(self, store: Store) -> None:
        claim = await waiting(store, a_wait(until=NOW + HOUR))
        await waiting(store, a_wait())  # without a timeout

        assert (await store.promote(NOW + MINUTE, 10)).count == 0
        assert await status(store, claim.job_id) is Status.WAITING
        assert (await store.promote(NOW + HOUR, 10)).count == 1

        job = await record(store, claim.job_id)
        assert (job.status, job.awaits, job.scheduled_for) == (Status.PENDING, None, NOW + HOUR)
        assert (job.history[-1].event, job.history[-1].source) == (Event.DUE, Status.WAITING)
        again = await claim_again(store, claim, now=NOW + HOUR)
        assert waits.is_over(NOW + HOUR, NOW, again.job.scheduled_for)
        await settle(store, again.completes(now=NOW + HOUR), now=NOW + HOUR)

    async def test_the_next_timeout_is_known(self, store: Store) -> None:
        await waiting(store, a_wait(until=NOW + HOUR))

        assert (await store.promote(NOW, 10)).next_due_at is not None

    async def test_an_event_ends_the_timeout(self, store: Store) -> None:
        claim = await waiting(store, a_wait(until=NOW + HOUR))
        await sent(store, claim.job_id)

        assert (await store.promote(NOW + DAY, 10)).count == 0
        assert (await record(store, claim.job_id)).scheduled_for == NOW

    async def test_at_most_as_many_are_due_as_asked_for(self, store: Store) -> None:
        claims = [await waiting(store, a_wait(until=NOW + number)) for number in range(3)]

        assert (await store.promote(NOW + HOUR, 2)).count == 2
        await store.promote(NOW + HOUR, 2)

        assert {await status(store, each.job_id) for each in claims} == {Status.PENDING}


class TestEventsOfKeys:
    async def test_an_event_goes_to_the_job_that_listens(self, store: Store) -> None:
        claim = await waiting(store, a_wait(key="order:7"))
        assert await sent_to_key(store, "order:8") is KEPT
        assert await sent_to_key(store, "order:7", name="other") is KEPT
        assert await status(store, claim.job_id) is Status.WAITING

        assert await sent_to_key(store, "order:7", "e2", payload="2") is RECORDED

        assert await status(store, claim.job_id) is Status.PENDING
        found = waits.next_event(await store.inbox(claim.job_id), a_wait(key="order:7"))
        assert found is not None
        assert (found[0], found[1].payload, found[1].key) == ("e2", "2", "order:7")

    async def test_each_event_goes_to_one_job_the_first_that_listens(self, store: Store) -> None:
        first, second = await waiting(store, a_wait(key="k")), await waiting(store, a_wait(key="k"))

        assert await sent_to_key(store, "k", "e1") is RECORDED
        assert (await status(store, first.job_id), await status(store, second.job_id)) == (
            Status.PENDING,
            Status.WAITING,
        )
        assert await sent_to_key(store, "k", "e2") is RECORDED
        assert await status(store, second.job_id) is Status.PENDING
        assert await sent_to_key(store, "k", "e3") is KEPT

    async def test_an_event_that_came_first_is_kept_for_the_first_that_listens(self, store: Store) -> None:
        assert await sent_to_key(store, "k", payload="1") is KEPT
        claim, other = await running(store), await running(store)
        wait = a_wait(key="k")

        for _ in range(2):
            assert await store.listen_for(claim.hold, wait, NOW) is APPLIED
            assert await store.listen_for(other.hold, wait, NOW) is APPLIED

        assert await payloads(store, claim.job_id) == ["1"]
        assert await payloads(store, other.job_id) == []
        assert await sent_to_key(store, "k", "e2") is RECORDED

    async def test_a_wait_that_has_its_event_leaves_the_next_one_to_others(self, store: Store) -> None:
        first, other = await running(store), await running(store)
        wait = a_wait(key="k")
        await store.listen_for(first.hold, wait, NOW)
        assert await sent_to_key(store, "k", "e1", payload="1") is RECORDED
        assert await sent_to_key(store, "k", "e2", payload="2") is KEPT

        for claim in (first, other):  # the first one again, as an attempt does that begins where another was lost
            assert await store.listen_for(claim.hold, wait, NOW) is APPLIED

        assert await payloads(store, first.job_id) == ["1"]
        assert await payloads(store, other.job_id) == ["2"]
        assert await sent_to_key(store, "k", "e3") is KEPT

    async def test_an_event_is_kept_for_a_week(self, store: Store) -> None:
        await sent_to_key(store, "k")
        claim = await running(store)
        late = NOW + round(EVENTS_KEPT_DAYS) * DAY + 1

        await store.listen_for(claim.hold, a_wait(key="k"), late)

        assert await payloads(store, claim.job_id) == []

    async def test_a_key_keeps_so_many_events(self, store: Store) -> None:
        for number in range(EVENTS_KEPT_MAX):
            assert await sent_to_key(store, "k", f"e{number}") is KEPT

        assert await sent_to_key(store, "k", "more") is Delivery.FULL
        assert await sent_to_key(store, "k", "e3") is REPEATED

    async def test_an_event_with_the_same_id_has_one_effect(self, store: Store) -> None:
        first, second = await waiting(store, a_wait(key="k")), await waiting(store, a_wait(key="k"))

        assert await sent_to_key(store, "k") is RECORDED
        assert await sent_to_key(store, "k") is REPEATED

        assert await status(store, first.job_id) is Status.PENDING
        assert await status(store, second.job_id) is Status.WAITING

    async def test_a_job_that_has_ended_gets_no_event(self, store: Store) -> None:
        gone, other = await waiting(store, a_wait(key="k")), await waiting(store, a_wait(key="k"))
        await settle(store, cancel(await record(store, gone.job_id), by=None, reason=None))

        assert await sent_to_key(store, "k") is RECORDED

        assert await status(store, other.job_id) is Status.PENDING

    async def test_a_wait_that_no_longer_listens_gets_no_event(self, store: Store) -> None:
        claim = await running(store)
        wait = a_wait(key="k")
        await store.listen_for(claim.hold, wait, NOW)

        assert await store.stop_listening(claim.hold, wait, NOW) is APPLIED

        assert await sent_to_key(store, "k") is KEPT
        assert await payloads(store, claim.job_id) == []

    @pytest.mark.parametrize("is_gone", [False, True])
    async def test_only_the_holder_of_a_claim_listens(self, store: Store, is_gone: bool) -> None:
        claim = await running(store)
        hold = Hold(new_job().job_id if is_gone else claim.job_id, 1, "another")
        wait = a_wait(key="k")

        refused = [await store.listen_for(hold, wait, NOW), await store.stop_listening(hold, wait, NOW)]

        assert set(refused) == {Verdict.GONE if is_gone else STALE}
        assert await sent_to_key(store, "k") is KEPT

    async def test_of_many_events_and_listeners_at_once_each_finds_one(self, store: Store, second_store: Store) -> None:
        claims = [await running(store) for _ in range(5)]
        wait = a_wait(key="k")

        await asyncio.gather(
            *(store.listen_for(each.hold, wait, NOW) for each in claims),
            *(sent_to_key(second_store, "k", f"e{number}") for number in range(5)),
        )

        assert [len(await payloads(store, each.job_id)) for each in claims] == [1] * 5

    async def test_a_wait_for_children_and_one_for_an_event_are_told_apart(self, store: Store) -> None:
        claim = await waiting(store, a_wait(key="k", schema="{}"))

        found = waits.awaits_of((await record(store, claim.job_id)).awaits or "")

        assert isinstance(found, EventWait)
        assert found == a_wait(key="k", schema="{}")
        assert isinstance(waits.awaits_of('{"for":"children","rule":"all_done","on_failure":"fail"}'), Awaits)


class TestTransferOfWaits:
    async def test_waits_and_events_come_along(self, store: Store, elsewhere: Store) -> None:
        claim = await waiting(store, a_wait(key="k", until=NOW + HOUR))
        other = await waiting(store)
        await sent(store, other.job_id, name="early")
        await sent_to_key(store, "later", payload="7")

        await carry(store, elsewhere)

        for kind in dumps.KINDS:
            items = await everything(store, kind)
            assert sorted(await everything(elsewhere, kind)) == sorted(store.fit(kind, item) for item in items), kind
        assert await sent_to_key(elsewhere, "k") is RECORDED
        assert await status(elsewhere, claim.job_id) is Status.PENDING
        assert await sent(elsewhere, other.job_id, "e1") is REPEATED
        assert await sent(elsewhere, other.job_id, "e2") is RECORDED
        assert await status(elsewhere, other.job_id) is Status.PENDING
        assert await sent_to_key(elsewhere, "later") is REPEATED

    async def test_a_timeout_comes_along(self, store: Store, elsewhere: Store) -> None:
        claim = await waiting(store, a_wait(until=NOW + HOUR))

        await carry(store, elsewhere)

        await elsewhere.promote(NOW + HOUR, 10)
        assert await status(elsewhere, claim.job_id) is Status.PENDING
