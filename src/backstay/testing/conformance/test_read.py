"""Conformance: get, find, counts, dead letters, and signals (listen)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from backstay.core.lifecycle import cancel, reschedule
from backstay.core.port import Store
from backstay.core.records import DeadGroup, Query, QueueChange, Rate, Signal
from backstay.core.states import Status
from backstay.errors import BackstayError
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    a_firing,
    a_schedule,
    cancelled,
    claim_one,
    completed,
    failed,
    in_state,
    new_job,
    record,
    running,
    settle,
    submit,
    submit_many,
)

ORDERS = ["created", "priority"]
ROOT, OTHER_ROOT = "01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"


async def _all_pages(store: Store, limit: int, **query: Any) -> list[str]:
    found: list[str] = []
    after = None
    for _ in range(100):
        page = await store.find(Query(**query, limit=limit, after=after))
        assert len(page.items) <= limit
        found += [job.job_id for job in page.items]
        after = page.next
        if after is None:
            return found
    raise AssertionError("the pages do not come to an end")


class TestGet:
    async def test_records_come_in_the_order_that_was_asked_for(self, store: Store) -> None:
        one, two = await submit_many(store, 2)
        unknown = new_job().job_id

        found = await store.get([two, unknown, one, two])

        assert [job and job.job_id for job in found] == [two, None, one, two]

    async def test_nothing_is_an_answer_to_nothing(self, store: Store) -> None:
        assert await store.get([]) == []

    async def test_a_reader_in_another_store_sees_the_same(self, store: Store, second_store: Store) -> None:
        for state in Status:
            job = await in_state(store, state)
            assert await second_store.get([job.job_id]) == [job]


class TestStatuses:
    async def test_each_says_what_its_record_says(self, store: Store) -> None:
        jobs = [await in_state(store, state) for state in Status]

        found = await store.statuses([*(job.job_id for job in jobs), new_job().job_id])

        assert found == [*Status, None]


class TestFind:
    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("state", Status)
    async def test_by_state(self, store: Store, state: Status, order: str) -> None:
        wanted = [await in_state(store, state) for _ in range(2)]
        for other in set(Status) - {state}:
            await in_state(store, other)

        page = await store.find(Query(status=state, order=order))

        assert {job.job_id for job in wanted} <= {job.job_id for job in page.items}
        assert {job.status for job in page.items} == {state}

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize(
        ("qualifier", "field", "value", "other"),
        [
            ("job_type", "job_type", "embed", "other"),
            ("queue", "queue", "q1", "q2"),
            ("subject", "subject", "song-1", "song-2"),
            ("tag", "tags", '["red","blue"]', '["bluered"]'),
            ("created_by", "created_by", "me", "you"),
            ("root", "root_job_id", ROOT, OTHER_ROOT),
            ("content_hash", "content_hash", "h1", "h2"),
        ],
    )
    async def test_by_qualifier(
        self, store: Store, qualifier: str, field: str, value: str, other: str, order: str
    ) -> None:
        matching: dict[str, Any] = {field: value}
        different: dict[str, Any] = {field: other}
        wanted = await submit_many(store, 2, **matching)
        await submit(store, **different)
        await submit(store)

        asked: dict[str, Any] = {qualifier: "blue" if qualifier == "tag" else value}
        page = await store.find(Query(order=order, **asked))

        assert {job.job_id for job in page.items} == set(wanted)
        assert page.next is None

    @pytest.mark.parametrize("state", [None, Status.PROCESSING])
    async def test_by_worker(self, store: Store, state: Status | None) -> None:
        claim = await running(store)
        await submit(store)

        page = await store.find(Query(worker="worker-1", status=state))
        assert [job.job_id for job in page.items] == [claim.job_id]
        assert (await store.find(Query(worker="worker-2", status=state))).items == ()

    async def test_qualifiers_narrow_one_another(self, store: Store) -> None:
        fields: dict[str, Any] = {
            "subject": "s",
            "queue": "q",
            "job_type": "t",
            "tags": '["a"]',
            "created_by": "me",
        }
        wanted = await submit(store, **fields)
        for name in fields:
            other: dict[str, Any] = {name: '["x"]'}
            await submit(store, **(fields | other))

        query = Query(subject="s", queue="q", job_type="t", tag="a", created_by="me", status=Status.PENDING, root=None)
        assert [job.job_id for job in (await store.find(query)).items] == [wanted]

    async def test_created_means_the_newest_first(self, store: Store) -> None:
        ids = [await submit(store, now=NOW + i) for i in range(5)]

        page = await store.find(Query())

        assert [job.job_id for job in page.items] == ids[::-1]

    async def test_priority_means_the_order_of_claims(self, store: Store) -> None:
        low = await submit(store, priority=10)
        late = await submit(store, priority=90, scheduled_for=NOW)
        early = await submit(store, priority=90, scheduled_for=NOW - 1)

        page = await store.find(Query(order="priority"))

        assert [job.job_id for job in page.items] == [early, late, low]

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize(
        "query",
        [
            {},
            {"status": Status.PENDING},
            {"subject": "s"},
            {"root": ROOT},
            {"content_hash": "h"},
            {"job_type": "work"},
            {"tag": "t"},
        ],
        ids=str,
    )
    async def test_pages_show_every_match_exactly_once_and_in_order(
        self, store: Store, query: dict[str, Any], order: str
    ) -> None:
        common = {"subject": "s", "root_job_id": ROOT, "content_hash": "h", "tags": '["t"]'}
        ids = [await submit(store, priority=i % 3, scheduled_for=NOW - i % 2, now=NOW + i, **common) for i in range(23)]

        whole = [job.job_id for job in (await store.find(Query(order=order, limit=100, **query))).items]

        assert sorted(whole) == sorted(ids)
        for limit in (1, 5, 23):
            assert await _all_pages(store, limit, order=order, **query) == whole

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("query", [{}, {"status": Status.PENDING}, {"subject": "s"}, {"job_type": "work"}], ids=str)
    async def test_jobs_of_one_instant_and_priority_have_the_same_order_on_pages_of_any_size(
        self, store: Store, query: dict[str, Any], order: str
    ) -> None:
        jobs = sorted((new_job(subject="s") for _ in range(12)), key=lambda job: job.job_id, reverse=True)
        ids = [answer.job_id for answer in await store.insert(jobs, NOW)]
        later = await submit(store, subject="s", now=NOW + 1, scheduled_for=NOW + 1)

        whole = await _all_pages(store, 100, order=order, **query)

        assert sorted(whole) == sorted([*ids, later])
        assert whole.index(later) == (0 if order == "created" else len(ids))
        for limit in (1, 5):
            assert await _all_pages(store, limit, order=order, **query) == whole

    @pytest.mark.parametrize(
        "query", [{}, {"queue": "q1"}, {"job_type": "t2"}, {"queue": "q0", "job_type": "t1"}, {"subject": "s"}], ids=str
    )
    async def test_pending_jobs_of_all_queues_and_types_are_in_one_order(
        self, store: Store, query: dict[str, Any]
    ) -> None:
        ids = {}
        for i in range(36):
            named: dict[str, Any] = {"queue": f"q{i % 2}", "job_type": f"t{i % 3}", "subject": "s" if i % 5 else None}
            keys: dict[str, Any] = ({}, {"fairness_key": f"f{i % 7}"}, {"concurrency_key": "gpu"})[i % 4 % 3]
            priority, due = (10, 50, 90)[i % 11 % 3], NOW - i % 5
            job_id = await submit(store, priority=priority, scheduled_for=due, **named, **keys)
            ids[job_id] = (-priority, due, job_id), named
        await in_state(store, Status.PROCESSING)
        await in_state(store, Status.SCHEDULED, queue="q1", job_type="t2", subject="s")

        order = [
            job_id
            for job_id, (_, named) in sorted(ids.items(), key=lambda each: each[1][0])
            if all(named[name] == value for name, value in query.items())
        ]
        for limit in (1, 4, 50):
            pages = await _all_pages(store, limit, status=Status.PENDING, order="priority", **query)
            assert pages == order

    @pytest.mark.parametrize("state", [Status.SCHEDULED, Status.PROCESSING, Status.COMPLETED])
    async def test_pages_of_other_states_are_complete_too(self, store: Store, state: Status) -> None:
        ids = [(await in_state(store, state)).job_id for _ in range(7)]

        assert sorted(await _all_pages(store, 2, status=state)) == sorted(ids)
        assert sorted(await _all_pages(store, 2, status=state, order="priority")) == sorted(ids)

    async def test_jobs_that_arrive_meanwhile_do_not_shift_the_pages(self, store: Store) -> None:
        ids = [await submit(store, now=NOW + i) for i in range(6)]
        first = await store.find(Query(limit=3))
        await submit(store, now=NOW + 10)

        second = await store.find(Query(limit=3, after=first.next))

        assert [job.job_id for job in (*first.items, *second.items)] == ids[::-1]

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("after", ["nonsense", "", "1~2", "9" * 40, "9" * 40 + "~1~x", "1~x~y"])
    async def test_a_cursor_that_no_page_gave_is_refused(self, store: Store, order: str, after: str) -> None:
        with pytest.raises(BackstayError):
            await store.find(Query(order=order, after=after))

    async def test_an_order_that_does_not_exist_is_refused(self, store: Store) -> None:
        with pytest.raises(BackstayError):
            await store.find(Query(order="random"))

    async def test_text_that_looks_like_a_statement_is_only_text(self, store: Store) -> None:
        odd = "'; DROP TABLE job; -- %_\\ :status ?1 $1 #n"
        job_id = await submit(store, subject=odd, created_by=odd)

        page = await store.find(Query(subject=odd, created_by=odd))

        assert [job.job_id for job in page.items] == [job_id]
        assert (await store.find(Query(subject="%"))).items == ()

    async def test_a_found_record_is_the_whole_record(self, store: Store) -> None:
        parent = await submit(store)
        await submit(store, depends_on=(parent,))

        page = await store.find(Query(status=Status.PENDING))

        assert page.items == (await record(store, parent),)


class TestCounts:
    async def test_an_empty_store_counts_nothing_in_every_state(self, store: Store) -> None:
        assert await store.counts() == {state.value: 0 for state in Status}

    async def test_every_job_is_counted_in_its_state(self, store: Store) -> None:
        for state in Status:
            await in_state(store, state)

        # The waiting one has a pending dependency.
        assert await store.counts() == {state.value: 1 + (state is Status.PENDING) for state in Status}


class TestDead:
    async def test_dead_letters_are_grouped_by_type_and_error_the_largest_first(self, store: Store) -> None:
        await failed(store, "KeyError", "a", job_type="embed")
        for message in ("1", "2", "3"):
            newest = await running(store, job_type="embed", max_attempts=1)
            await settle(store, newest.fails("ValueError", message), now=NOW + int(message))
        await failed(store, "ValueError", "b", job_type="lrc")
        await completed(store)

        groups = await store.dead(10)

        assert groups[0] == DeadGroup("embed", "ValueError", 3, newest.job_id, "ValueError: 3", NOW + 3)
        assert {(each.job_type, each.error_type, each.count) for each in groups[1:]} == {
            ("embed", "KeyError", 1),
            ("lrc", "ValueError", 1),
        }

    async def test_a_job_that_failed_with_its_dependency_is_a_dead_letter(self, store: Store) -> None:
        parent = await failed(store)
        child = await submit(store, depends_on=(parent,), on_dependency_failure="fail")

        [group] = [each for each in await store.dead(10) if each.newest_job_id == child]

        assert group.error_type == "DependencyFailed"

    async def test_a_group_is_named_by_the_last_error_of_its_jobs(self, store: Store) -> None:
        claim = await running(store, max_attempts=2)
        await settle(store, claim.fails("First", "x"))
        await store.promote(NOW + 10**9, 10)
        [job] = (await store.find(Query(status=Status.PENDING))).items
        again = await claim_one(store, job.job_id, slots={job.job_type: 1})
        await settle(store, again.fails("Second", "y"))

        [group] = await store.dead(10)

        assert (group.error_type, group.newest_error) == ("Second", "Second: y")

    async def test_no_more_groups_than_asked(self, store: Store) -> None:
        for i in range(3):
            await failed(store, f"Error{i}")

        assert len(await store.dead(2)) == 2


DEADLINE_SECONDS = 20.0


class SignalRecorder:
    """Collects signals; `heard` returns when the expected one has arrived."""

    def __init__(self, store: Store, *signals: Signal) -> None:
        self.got: list[Signal] = []
        self._arrived = asyncio.Event()
        self.stop = store.listen(frozenset(signals), self._hear)

    def _hear(self, signal: Signal) -> None:
        self.got.append(signal)
        self._arrived.set()

    async def heard(self) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self._arrived.wait()

    async def heard_anew(self) -> None:
        """As `heard`, for a signal that no earlier call has returned."""
        await self.heard()
        self._arrived.clear()


async def _insert_due(store: Store) -> None:
    await submit(store)


async def _insert_for_later(store: Store) -> None:
    await submit(store, scheduled_for=NOW + HOUR)


async def _complete(store: Store) -> None:
    await completed(store)


async def _fail(store: Store) -> None:
    await failed(store)


async def _cancel(store: Store) -> None:
    await cancelled(store)


async def _retry(store: Store) -> None:
    await settle(store, (await running(store)).fails())


async def _give_back(store: Store) -> None:
    await settle(store, (await running(store)).gives_back())


async def _cancel_running(store: Store) -> None:
    claim = await running(store)
    await settle(store, cancel(await record(store, claim.job_id), by=None, reason=None))


async def _insert_special(store: Store) -> None:
    await submit(store, dedup_key="k")


async def _put_off(store: Store) -> None:
    job_id = await submit(store)
    edit = reschedule(await record(store, job_id), run_at=NOW + HOUR, now=NOW, by=None, reason=None)
    await settle(store, edit)


async def _resume(store: Store) -> None:
    for paused in (True, False):
        await store.change_queue("default", QueueChange(paused=paused), NOW)


async def _fire(store: Store) -> None:
    schedule = a_schedule(next_at=NOW)
    await store.save_schedule(schedule, None)
    await store.fire([a_firing(schedule)], NOW)


async def _save_schedule(store: Store) -> None:
    await store.save_schedule(a_schedule(), None)


async def _hold_back(store: Store) -> None:
    for _ in range(2):
        await submit(store, rate_key="api", rate=Rate(1, HOUR))


CASES = [
    (Signal.READY, _insert_due),
    (Signal.READY, _insert_special),
    (Signal.READY, _give_back),
    (Signal.READY, _resume),
    (Signal.READY, _fire),
    (Signal.DUE, _insert_for_later),
    (Signal.DUE, _retry),
    (Signal.DUE, _put_off),
    (Signal.DUE, _hold_back),
    (Signal.PLANNED, _save_schedule),
    (Signal.ENDED, _complete),
    (Signal.ENDED, _fail),
    (Signal.ENDED, _cancel),
    (Signal.STOPPED, _cancel_running),
]


class TestListen:
    @pytest.mark.parametrize(("signal", "change"), CASES)
    async def test_a_change_is_heard_in_the_same_store(
        self, store: Store, signal: Signal, change: Callable[[Store], Awaitable[None]]
    ) -> None:
        recorder = SignalRecorder(store, signal)

        await change(store)
        await recorder.heard()

        assert set(recorder.got) == {signal}
        recorder.stop()

    @pytest.mark.parametrize(("signal", "change"), CASES)
    async def test_a_change_is_heard_in_another_store(
        self, store: Store, second_store: Store, signal: Signal, change: Callable[[Store], Awaitable[None]]
    ) -> None:
        recorder = SignalRecorder(second_store, signal)

        await change(store)
        await recorder.heard()

        assert set(recorder.got) == {signal}
        recorder.stop()

    async def test_a_promotion_makes_jobs_ready(self, store: Store, second_store: Store) -> None:
        await submit(store, scheduled_for=NOW + 1)
        near, far = SignalRecorder(store, Signal.READY), SignalRecorder(second_store, Signal.READY)

        await store.promote(NOW + 1, 10)

        await near.heard()
        await far.heard()
        near.stop()
        far.stop()

    async def test_a_released_dependent_is_ready(self, store: Store) -> None:
        parent = await running(store)
        await submit(store, depends_on=(parent.job_id,))
        recorder = SignalRecorder(store, Signal.READY)

        await settle(store, parent.completes())

        await recorder.heard()
        recorder.stop()

    async def test_who_is_woken_finds_what_woke_it(self, store: Store, second_store: Store) -> None:
        recorder = SignalRecorder(second_store, Signal.READY)
        idle = 0  # a hint may arrive when a listener connects, even without a change, but only once

        for expected in (1, 2, 3):
            inserting = asyncio.create_task(submit(store))
            await recorder.heard_anew()
            while (await second_store.counts())["pending"] < expected:
                idle += 1
                assert idle == 1
                await recorder.heard_anew()
            await inserting
        recorder.stop()

    async def test_only_the_wanted_signals_arrive(self, store: Store, second_store: Store) -> None:
        for each in (store, second_store):
            ready, ended = SignalRecorder(each, Signal.READY), SignalRecorder(each, Signal.ENDED)

            await submit(store)
            await ready.heard()
            await completed(store)
            await ended.heard()

            assert (set(ready.got), set(ended.got)) == ({Signal.READY}, {Signal.ENDED})
            ready.stop()
            ended.stop()

    async def test_who_stopped_listening_hears_nothing_more(self, store: Store, second_store: Store) -> None:
        for each in (store, second_store):
            stopped, still = SignalRecorder(each, Signal.READY), SignalRecorder(each, Signal.READY)
            stopped.stop()

            await submit(store)
            await still.heard()

            assert stopped.got == []
            still.stop()
