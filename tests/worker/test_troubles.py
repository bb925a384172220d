"""A worker says once what is wrong with its store, not in each loop at each try; and stops where no try helps."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from backstay import Backstay
from backstay.errors import StoreError, StoreGone, StoreUnavailable
from tests.support.eventually import eventually

VERBS = ("claim", "promote", "workers", "upcoming")  # what an idle worker asks for


class Sick:
    """A store on which these verbs fail until it is well."""

    def __init__(self, app: Backstay, error: Exception) -> None:
        self._error = error
        self.refused = dict.fromkeys(VERBS, 0)
        self.is_well = False
        for verb in VERBS:
            setattr(app.store, verb, self._failing(verb, getattr(app.store, verb)))

    def _failing(self, verb: str, healthy: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def ask(*args: Any, **options: Any) -> Any:
            if self.is_well:
                return await healthy(*args, **options)
            self.refused[verb] += 1
            raise self._error

        return ask

    async def refused_all(self) -> bool:
        return all(count >= 2 for count in self.refused.values())


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """All but that the worker has started and stopped."""
    records = [record for record in caplog.records if record.name == "backstay.worker"]
    return [record.getMessage() for record in records if not record.msg.startswith("worker %s ")]


@pytest.fixture
def working(app: Backstay, caplog: pytest.LogCaptureFixture) -> Backstay:
    caplog.set_level(logging.INFO)

    @app.job("work")
    async def work(payload: int) -> int:
        return payload

    return app


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ValueError("a bug")], ids=["outage", "bug"])
async def test_an_outage_is_one_line_when_it_begins_and_one_when_it_is_over(
    working: Backstay, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async with working as app, app.worker(poll_interval=0.05):
        sick = Sick(app, error)
        await eventually(sick.refused_all, 20)
        sick.is_well = True

        handle = await app.submit("work", 7)
        assert await handle.result(timeout=20) == 7
        await eventually(lambda: _well(caplog), 20)

    first, last = said(caplog)
    assert "failed, trying again" in first
    assert last.startswith("recovered")


async def _well(caplog: pytest.LogCaptureFixture) -> bool:
    return "recovered" in caplog.text


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
async def test_a_store_that_is_gone_stops_the_worker_with_one_line(
    working: Backstay, caplog: pytest.LogCaptureFixture, busy: bool
) -> None:
    async with working as app:
        worker = app.worker(poll_interval=0.05)
        async with worker:
            sick = Sick(app, StoreGone("it vanished: restore it"))
            if busy:

                async def gone(*_: Any) -> Any:
                    raise StoreGone("it vanished: restore it")

                app.store.apply = gone  # type: ignore[method-assign]
                sick.is_well = True
                await app.submit("work", 1)
            async with asyncio.timeout(20):
                await worker.join()
        assert isinstance(worker.failure, StoreError)

    assert said(caplog) == ["the worker is stopping: it vanished: restore it"]
    assert all(record.exc_info is None for record in caplog.records)
