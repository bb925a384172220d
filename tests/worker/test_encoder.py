"""What a handler returns is encoded within bounds: of size, of memory, and of time."""

from __future__ import annotations

import asyncio
import enum
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, computed_field, field_serializer

from backstay import Backoff, Backstay
from backstay.worker import encoder
from tests.support.eventually import eventually


def endless() -> Iterator[int]:
    yield from itertools.count()


class Computed(BaseModel):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def numbers(self) -> Iterable[int]:
        return itertools.count()  # runs in C, and holds every thread


class Huge(BaseModel):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        return "x" * (65 * 2**20)


class Field(BaseModel):
    numbers: Iterable[int]


@dataclass
class Plain:
    numbers: Any


class Number(enum.Enum):
    LARGE = 10**100_000


class Fine(BaseModel):
    number: int = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def next(self) -> int:
        return self.number + 1


class Endless(list[int]):
    def __iter__(self) -> Any:
        return itertools.count()


def doubled(times: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(times):
        found = [found, found]
    return found


def nested(times: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(times):
        found = [found]
    return found


RESULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "a generator": (endless, "InvalidResult"),
    "a generator inside": (lambda: {"a": [1, endless()]}, "InvalidResult"),
    "an iterator in C": (itertools.count, "InvalidResult"),
    "a model with an iterator": (lambda: Field(numbers=itertools.count()), "InvalidResult"),
    "a model that computes an iterator": (Computed, "InvalidResult"),
    "a dataclass with a generator": (lambda: Plain(endless()), "InvalidResult"),
    "a huge integer": (lambda: [10**1_000_000], "InvalidResult"),
    "an enum of a huge integer": (lambda: Number.LARGE, "InvalidResult"),
    "more levels than are stored": (lambda: nested(5_000), "InvalidResult"),
    "lists that share their parts": (lambda: doubled(60), "ResultTooLarge"),
    "a huge computed field": (Huge, "ResultTooLarge"),
    "a huge text": (lambda: "x" * (65 * 2**20), "ResultTooLarge"),
}


@pytest.mark.parametrize("isolation", ["async", "thread"])
@pytest.mark.parametrize("name", RESULTS)
async def test_a_result_without_end_or_beyond_all_bounds_is_refused(app: Backstay, isolation: str, name: str) -> None:
    make, expected = RESULTS[name]

    if isolation == "async":

        @app.job("work", max_attempts=1)
        async def work(payload: int) -> Any:
            return make()

    else:

        @app.job("work", max_attempts=1)
        def work_in_thread(payload: int) -> Any:
            return make()

    async with app, app.worker():
        handle = await app.submit("work", 1)
        await asyncio.gather(handle.result(timeout=60), return_exceptions=True)
        job = await app.get(handle.job_id)
    assert (job.status, job.errors[-1]["type"]) == ("failed", expected)


async def test_a_result_beyond_the_limit_is_final_however_many_attempts_are_left(app: Backstay) -> None:
    @app.job("work", max_attempts=5)
    async def work(payload: int) -> Any:
        return doubled(60)

    async with app, app.worker():
        handle = await app.submit("work", 1)
        await asyncio.gather(handle.result(timeout=60), return_exceptions=True)
        job = await app.get(handle.job_id)
    assert (job.status, job.attempt) == ("failed", 1)


async def test_models_lists_with_ways_of_their_own_and_large_results_come_back_as_they_are(app: Backstay) -> None:
    large = [{"number": number, "text": "ü"} for number in range(2_000)]

    @app.job("work")
    async def work(payload: int) -> Any:
        return [Fine(), Endless([1, 2]), large, {"set": {1}, "plain": Plain(b"x")}]

    @app.batch_job("many")
    async def batch(payloads: list[int]) -> list[Any]:
        return [large for _ in payloads]

    async with app, app.worker():
        found = await (await app.submit("work", 1)).result(timeout=30)
        assert await (await app.submit("many", 1)).result(timeout=30) == large
    assert found == [{"number": 1, "next": 2}, [1, 2], large, {"set": [1], "plain": {"numbers": "x"}}]


async def test_a_serializer_that_never_ends_blocks_no_other_job_and_is_stopped_at_its_timeout(app: Backstay) -> None:
    class Never(BaseModel):
        number: int = 1

        @field_serializer("number")
        def say(self, number: int) -> int:
            begun.set()
            while True:
                number += 1

    begun = threading.Event()

    @app.job("never", timeout=1.0, max_attempts=2, backoff=Backoff(base=60))
    async def never(payload: int) -> Any:
        return Never()

    @app.job("other")
    async def other(payload: int) -> str:
        return "done"

    async def is_stopped() -> bool:
        return not any(thread.name == "backstay-encoder" for thread in threading.enumerate())

    async with app, app.worker():
        handle = await app.submit("never", 1)
        await asyncio.to_thread(begun.wait, 30)
        assert await (await app.submit("other", 1)).result(timeout=30) == "done"
        await eventually(is_stopped, 30)

        async def has_failed() -> bool:
            return (await app.get(handle.job_id)).status == "retrying"

        await eventually(has_failed, 30)
        assert (await app.get(handle.job_id)).errors[-1]["type"] == "JobTimeout"


async def test_a_serializer_that_produces_without_end_is_stopped_before_it_fills_the_memory(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "RESULT_MEMORY_BYTES_MAX", 50 * 2**20)

    class Fills(BaseModel):
        number: int = 1

        @field_serializer("number")
        def say(self, number: int) -> Any:
            return (number for number in itertools.repeat(10**18))

    @app.job("fills", max_attempts=1)
    async def fills(payload: int) -> Any:
        return Fills()

    async with app, app.worker():
        handle = await app.submit("fills", 1)
        await asyncio.gather(handle.result(timeout=60), return_exceptions=True)
        job = await app.get(handle.job_id)
    assert job.errors[-1]["type"] == "InvalidResult" and "MiB of memory" in job.errors[-1]["message"]
