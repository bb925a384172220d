"""A watch looks once for all who follow it: on a signal, otherwise from time to time, and never too often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backstay import Backstay
from backstay.clock import SystemClock
from backstay.core.records import Signal
from backstay.errors import StoreUnavailable
from backstay.server import watch
from backstay.server.problems import Problem
from backstay.server.watch import Signals, Watches
from tests.support.eventually import eventually

ALL = frozenset(Signal)
KEY = ("thing", "1")
PATIENCE = 20.0


class Thing:
    """Something to look at, which counts the looks."""

    def __init__(self) -> None:
        self.value = 0
        self.looks = 0
        self.error: StoreUnavailable | None = None

    async def look(self) -> int:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return self.value


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Backstay]:
    async with Backstay(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.job("letter")
        async def letter(payload: dict[str, str]) -> None: ...

        yield app


async def test_all_who_follow_a_thing_share_its_looks(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(app.store), "record_seconds", 3600.0)
    watches, thing = Watches(app, ALL), Thing()
    async with watches.on(KEY, 0, thing.look) as one, watches.on(KEY, 0, thing.look) as other:
        assert one is other
        await one.wait(0, PATIENCE)
        assert thing.looks == 1


async def test_a_signal_has_the_thing_looked_at(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(app.store), "record_seconds", 3600.0)
    watches, thing = Watches(app, ALL, 0.0), Thing()
    async with watches.on(KEY, 0, thing.look) as watch:
        await watch.wait(0, PATIENCE)
        thing.value = 1
        await app.submit("letter", {})
        await watch.wait(1, PATIENCE)
        assert watch.latest == 1


async def test_without_a_signal_the_thing_is_looked_at_as_often_as_progress_is_written(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(app.store), "record_seconds", 0.01)
    watches, thing = Watches(app, ALL, 0.0), Thing()
    async with watches.on(KEY, 0, thing.look) as watch:
        thing.value = 1
        await watch.wait(0, PATIENCE)
        await watch.wait(1, PATIENCE)
        assert watch.latest == 1


async def test_a_store_that_is_away_changes_nothing(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(app.store), "record_seconds", 0.01)
    watches, thing = Watches(app, ALL, 0.0), Thing()
    async with watches.on(KEY, 7, thing.look) as watch:
        thing.error = StoreUnavailable("away")
        await watch.wait(0, PATIENCE)
        assert (watch.latest, watch.error) == (7, thing.error)
        thing.error, thing.value = None, 8

        async def is_back() -> bool:
            return (watch.latest, watch.error) == (8, None)

        await eventually(is_back)


async def test_nothing_is_looked_at_once_the_last_follower_has_left(app: Backstay) -> None:
    watches, thing = Watches(app, ALL, 0.0), Thing()
    async with watches.on(KEY, 0, thing.look) as watch:
        await watch.wait(0, PATIENCE)
    assert watch.task is not None and watch.task.done()
    assert not watches._watches


async def test_signals_are_listened_to_only_while_someone_waits(app: Backstay) -> None:
    signals = Signals(app, ALL)
    await app.submit("letter", {})
    with signals.listening():
        assert signals.count == 0
        await app.submit("letter", {})
        await asyncio.wait_for(signals.wait(0), PATIENCE)
    seen = signals.count
    await app.submit("letter", {})
    assert signals.count == seen


async def test_a_stream_too_many_is_told_what_to_do_instead(app: Backstay) -> None:
    watches = Watches(app, ALL)
    leave = watches.place("one", most=2, share=1, instead="come back")
    with pytest.raises(Problem, match="this key has 1 streams open, which is the limit: come back") as of_key:
        watches.place("one", most=2, share=1, instead="come back")
    watches.place("other", most=2, share=1, instead="come back")
    with pytest.raises(Problem, match="this server has 2 streams open"):
        watches.place("third", most=2, share=1, instead="come back")
    leave()
    leave()  # twice is once
    watches.place("third", most=2, share=1, instead="come back")
    assert (of_key.value.status, of_key.value.headers["Retry-After"]) == (429, "5")
    assert watches.streams == 2


async def test_a_look_that_takes_long_is_not_repeated_at_once(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(app.store), "record_seconds", 0.0)
    rests: list[float] = []

    rested = asyncio.Event()

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        rested.set()
        await asyncio.Event().wait()

    class ASecondEachTime(SystemClock):
        ticks = 0

        def monotonic(self) -> float:
            self.ticks += 1
            return float(self.ticks)

    app.clock = ASecondEachTime()
    monkeypatch.setattr(watch.asyncio, "sleep", rest)
    watches, thing = Watches(app, ALL, 0.0), Thing()
    async with watches.on(KEY, 0, thing.look) as one:
        await one.wait(0, PATIENCE)
        await rested.wait()
    assert rests == [watch.REST * 1.0]
