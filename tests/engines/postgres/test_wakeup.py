"""Wake-ups by NOTIFY: also of a process that leaves at once, and never at the price of a close that hangs."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest

from backstay.core.records import Signal
from backstay.engines.postgres import wakeup
from backstay.engines.postgres.connection import Statements
from backstay.engines.postgres.store import PostgresStore
from backstay.errors import StoreError
from backstay.testing.conformance.factories import NOW, new_job, submit
from tests.support.servers.postgres import Postgres
from tests.support.servers.proxy import Proxy


class Ear:
    def __init__(self, store: PostgresStore, *signals: Signal) -> None:
        self.heard: asyncio.Queue[Signal] = asyncio.Queue()
        self.stop = store.listen(frozenset(signals or (Signal.READY, Signal.PLANNED)), self.heard.put_nowait)

    async def hears(self, signal: Signal) -> None:
        async with asyncio.timeout(20):
            while await self.heard.get() is not signal:
                pass


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url(schema=f"wake_{secrets.token_hex(3)}")


@pytest.fixture
async def ear(url: str) -> AsyncIterator[Ear]:
    store = PostgresStore(url)
    await store.open()
    ear = Ear(store)
    for _ in range(2):  # on connecting it is told of everything that it may have missed
        await asyncio.wait_for(ear.heard.get(), 20)
    yield ear
    ear.stop()
    await store.close()


async def test_a_process_that_submits_and_leaves_wakes_the_workers(url: str, ear: Ear) -> None:
    store = PostgresStore(url)
    await store.open()

    await submit(store)
    await store.close()

    await ear.hears(Signal.READY)


async def test_all_that_was_committed_is_told_though_a_signal_is_being_sent(url: str, ear: Ear) -> None:
    store = PostgresStore(url)
    await store.open()

    await submit(store)
    assert store._waker is not None
    store._waker.committed({Signal.PLANNED})
    await store.close()

    await ear.hears(Signal.PLANNED)


async def test_a_server_that_does_not_answer_holds_a_close_only_shortly(
    url: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(postgres.port) as proxy:
        store = PostgresStore(url.replace(f":{postgres.port}/", f":{proxy.port}/"))
        await store.open()
        monkeypatch.setattr("backstay.engines.postgres.wakeup.CLOSE_SECONDS", 0.05)
        monkeypatch.setattr("backstay.engines.postgres.connection.CONNECT_SECONDS", 0.05)
        proxy.silence()
        assert store._waker is not None
        store._waker.committed({Signal.READY})

        async with asyncio.timeout(10):  # less than a single statement may take
            await store.close()


async def test_a_single_submit_wakes_the_workers_with_its_own_commit(url: str, ear: Ear) -> None:
    store = PostgresStore(url)
    await store.open()
    waker = store._waker
    assert waker is not None and waker._sender is not None
    waker._sender.task.cancel()  # nothing else could tell them

    await submit(store)

    await ear.hears(Signal.READY)
    await store.close()


async def test_signals_that_a_failed_submit_was_to_carry_are_sent_all_the_same(url: str, ear: Ear) -> None:
    store = PostgresStore(url)
    await store.open()
    job = await submit(store)
    assert store._waker is not None and store._waker._sender is not None
    await asyncio.sleep(0)  # the sender is at rest
    store._waker._sender.sent_at = float("-inf")
    store._waker.committed({Signal.PLANNED})

    with pytest.raises(StoreError):
        await store.insert([msgspec.structs.replace(new_job(), job_id=job)], NOW)

    await ear.hears(Signal.PLANNED)
    await store.close()


async def test_who_begins_to_wait_for_results_later_is_told_what_ends(url: str, ear: Ear) -> None:
    waits = PostgresStore(url)
    await waits.open()
    works = Ear(waits)  # listens as a worker does, until …
    await works.hears(Signal.PLANNED)
    late = Ear(waits, Signal.ENDED)
    await late.hears(Signal.ENDED)  # of what it may have missed
    other = PostgresStore(url)
    await other.open()
    assert other._waker is not None

    other._waker.committed({Signal.ENDED})

    await late.hears(Signal.ENDED)
    await other.close()
    await waits.close()


async def test_workers_are_not_woken_because_jobs_end_elsewhere(url: str, ear: Ear) -> None:
    store = PostgresStore(url)
    await store.open()
    assert store._waker is not None
    worker = await asyncpg.connect(url.partition("?")[0])
    told: asyncio.Queue[str] = asyncio.Queue()
    await worker.add_listener(store._waker._channel, lambda *heard: told.put_nowait(str(heard[-1])))

    store._waker.committed({Signal.ENDED, Signal.READY})

    assert (await asyncio.wait_for(told.get(), 20)).split()[1:] == [Signal.READY]
    await store.close()
    await worker.close()


async def test_a_connection_that_has_sent_a_signal_waits_for_the_disk_again(url: str) -> None:
    connection = await asyncpg.connect(url.partition("?")[0])
    meanwhile = connection.transaction()
    await meanwhile.start()
    await connection.execute(Statements("backstay")["notify"], "channel", "payload")
    assert await connection.fetchval("SHOW synchronous_commit") == "off"
    await meanwhile.commit()

    assert await connection.fetchval("SHOW synchronous_commit") == "on"
    await connection.close()


async def test_submits_carry_no_signals_while_those_that_do_take_long(
    url: str, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(url)
    await store.open()
    monkeypatch.setattr(wakeup, "CARRY_SECONDS", 0.0)
    monkeypatch.setattr(wakeup, "CARRY_SLOW_SECONDS", 0.0)  # every one takes longer
    assert store._waker is not None
    assert store._waker.carried(Signal.READY) is not None

    store._waker.committed({Signal.READY}, "carried")

    assert store._waker.carried(Signal.READY) is None
    await submit(store)
    await ear.hears(Signal.READY)
    await store.close()
