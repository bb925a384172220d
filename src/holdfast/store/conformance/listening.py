"""listen: hints that reach the same store and another one on the same place. Nothing waits by the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.lifecycle import cancel, reschedule
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    a_firing,
    a_schedule,
    cancelled,
    completed,
    failed,
    record,
    running,
    settle,
    submit,
)
from holdfast.store.port import Store
from holdfast.store.types import QueueChange, Rate, Signal

DEADLINE_SECONDS = 20.0


class Ear:
    """Collects signals; `heard` comes back when the wanted one has arrived."""

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
        """As `heard`, for a signal that no earlier call has come back with."""
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
        ear = Ear(store, signal)

        await change(store)
        await ear.heard()

        assert set(ear.got) == {signal}
        ear.stop()

    @pytest.mark.parametrize(("signal", "change"), CASES)
    async def test_a_change_is_heard_in_another_store(
        self, store: Store, second_store: Store, signal: Signal, change: Callable[[Store], Awaitable[None]]
    ) -> None:
        ear = Ear(second_store, signal)

        await change(store)
        await ear.heard()

        assert set(ear.got) == {signal}
        ear.stop()

    async def test_a_promotion_makes_jobs_ready(self, store: Store, second_store: Store) -> None:
        await submit(store, scheduled_for=NOW + 1)
        near, far = Ear(store, Signal.READY), Ear(second_store, Signal.READY)

        await store.promote(NOW + 1, 10)

        await near.heard()
        await far.heard()
        near.stop()
        far.stop()

    async def test_a_released_dependent_is_ready(self, store: Store) -> None:
        parent = await running(store)
        await submit(store, depends_on=(parent.job_id,))
        ear = Ear(store, Signal.READY)

        await settle(store, parent.completes())

        await ear.heard()
        ear.stop()

    async def test_who_is_woken_finds_what_woke_it(self, store: Store, second_store: Store) -> None:
        ear = Ear(second_store, Signal.READY)
        idle = 0  # a hint may come when a listener connects, whatever has happened; that is once

        for expected in (1, 2, 3):
            inserting = asyncio.create_task(submit(store))
            await ear.heard_anew()
            while (await second_store.counts())["pending"] < expected:
                idle += 1
                assert idle == 1
                await ear.heard_anew()
            await inserting
        ear.stop()

    async def test_only_the_wanted_signals_arrive(self, store: Store, second_store: Store) -> None:
        for each in (store, second_store):
            ready, ended = Ear(each, Signal.READY), Ear(each, Signal.ENDED)

            await submit(store)
            await ready.heard()
            await completed(store)
            await ended.heard()

            assert (set(ready.got), set(ended.got)) == ({Signal.READY}, {Signal.ENDED})
            ready.stop()
            ended.stop()

    async def test_who_stopped_listening_hears_nothing_more(self, store: Store, second_store: Store) -> None:
        for each in (store, second_store):
            stopped, still = Ear(each, Signal.READY), Ear(each, Signal.READY)
            stopped.stop()

            await submit(store)
            await still.heard()

            assert stopped.got == []
            still.stop()
