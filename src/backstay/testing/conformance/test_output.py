"""Conformance: the output of running jobs, which their attempts append to and others read."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.core import dumps
from backstay.core.output import START, OutputPart, OutputPlace
from backstay.core.port import Store
from backstay.core.records import Hold, Signal, Verdict
from backstay.core.states import Status
from backstay.limits import OUTPUT_PART_BYTES_MAX
from backstay.testing.conformance.factories import (
    DAY,
    NOW,
    a_policy,
    claim_again,
    retire,
    running,
    settle,
)
from backstay.testing.conformance.test_read import SignalRecorder
from backstay.testing.conformance.test_transfer import carry, everything

APPLIED, STALE, GONE = Verdict.APPLIED, Verdict.STALE, Verdict.GONE


def a_part(hold: Hold, first: int, *entries: str, take: int = 0, before: int = 0) -> OutputPart:
    return OutputPart(hold, take, first, entries, before + sum(map(len, entries)))


async def read(store: Store, job_id: str, after: OutputPlace = START, limit: int = 100) -> list[Any]:
    """Return the numbers and texts of a job's output, with its attempt and take."""
    parts = await store.output(job_id, after, limit)
    return [
        (part.attempt, part.take, number, bytes(entry).decode())
        for part in parts
        for number, entry in enumerate(part.entries, part.first)
    ]


class TestOutput:
    async def test_parts_are_read_in_order_with_their_numbers(self, store: Store) -> None:
        claim = await running(store)
        assert await store.output(claim.job_id, START, 10) == []
        assert await store.output_end(claim.job_id) is None

        assert await store.append_output([a_part(claim.hold, 1, '"a"', '"b"')], NOW) == [APPLIED]
        assert await store.append_output([a_part(claim.hold, 3, '{"n":1.50}', before=6)], NOW) == [APPLIED]

        assert await read(store, claim.job_id) == [(1, 0, 1, '"a"'), (1, 0, 2, '"b"'), (1, 0, 3, '{"n":1.50}')]
        end = await store.output_end(claim.job_id)
        assert end is not None
        assert (end.place, end.size) == (OutputPlace(1, 0, 3), 16)

    async def test_a_reader_continues_behind_the_place_that_it_has_seen(self, store: Store) -> None:
        claim = await running(store)
        for number in (1, 2, 3):
            await store.append_output([a_part(claim.hold, number, str(number))], NOW)

        assert await read(store, claim.job_id, OutputPlace(1, 0, 1)) == [(1, 0, 2, "2"), (1, 0, 3, "3")]
        assert await read(store, claim.job_id, limit=2) == [(1, 0, 1, "1"), (1, 0, 2, "2")]
        assert await read(store, claim.job_id, OutputPlace(1, 0, 3)) == []

    async def test_a_place_inside_a_part_brings_that_part(self, store: Store) -> None:
        claim = await running(store)
        await store.append_output([a_part(claim.hold, 1, "1", "2", "3")], NOW)

        [part] = await store.output(claim.job_id, OutputPlace(1, 0, 2), 10)
        assert (part.first, part.last) == (1, 3)

    async def test_a_repeat_changes_nothing(self, store: Store) -> None:
        claim = await running(store)
        part = a_part(claim.hold, 1, '"once"')
        for _ in range(2):
            assert await store.append_output([part], NOW) == [APPLIED]

        assert await read(store, claim.job_id) == [(1, 0, 1, '"once"')]

    async def test_each_job_is_answered_by_itself(self, store: Store) -> None:
        first, second = await running(store), await running(store)
        foreign = Hold(second.job_id, second.hold.attempt, "not-its-token")
        unknown = Hold("0198d0c2-6c1e-7001-8a3b-1f2e3d4c5b6a", 1, "no-such-job")
        parts = [a_part(first.hold, 1, "1"), a_part(foreign, 1, "2"), a_part(unknown, 1, "3")]

        assert await store.append_output(parts, NOW) == [APPLIED, STALE, GONE]

        assert [await read(store, each.job_id) for each in (first, second)] == [[(1, 0, 1, "1")], []]

    async def test_the_largest_part_fits(self, store: Store) -> None:
        claim = await running(store)
        entry = '"' + "x" * (OUTPUT_PART_BYTES_MAX // 2 - 2) + '"'

        assert await store.append_output([a_part(claim.hold, 1, entry, entry)], NOW) == [APPLIED]
        assert await read(store, claim.job_id) == [(1, 0, 1, entry), (1, 0, 2, entry)]

    async def test_readers_are_signalled(self, store: Store, second_store: Store) -> None:
        claim = await running(store)
        near, far = SignalRecorder(store, Signal.OUTPUT), SignalRecorder(second_store, Signal.OUTPUT)

        await store.append_output([a_part(claim.hold, 1, "1")], NOW)

        await near.heard()
        await far.heard()


class TestOutputOfAttempts:
    async def test_an_attempt_that_is_over_cannot_append(self, store: Store) -> None:
        claim = await running(store)
        await store.append_output([a_part(claim.hold, 1, '"old"')], NOW)
        await settle(store, claim.gives_back())
        second = await claim_again(store, claim)

        assert await store.append_output([a_part(claim.hold, 2, '"late"')], NOW) == [STALE]

        assert await read(store, claim.job_id) == [(1, 0, 1, '"old"')]
        assert await store.append_output([a_part(second.hold, 1, '"new"')], NOW) == [APPLIED]
        assert await store.append_output([a_part(claim.hold, 3, '"late"')], NOW) == [STALE]
        assert await read(store, claim.job_id) == [(2, 0, 1, '"new"')]

    @pytest.mark.parametrize("outcome", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
    async def test_a_settled_attempt_cannot_append_and_its_output_stays(self, store: Store, outcome: Status) -> None:
        claim = await running(store)
        await store.append_output([a_part(claim.hold, 1, "1")], NOW)
        await settle(store, claim.ends_as(outcome))

        assert await store.append_output([a_part(claim.hold, 2, "2")], NOW) == [STALE]
        assert await read(store, claim.job_id) == [(1, 0, 1, "1")]

    async def test_output_of_a_newer_attempt_replaces_that_of_older_ones(self, store: Store) -> None:
        claim = await running(store)
        for number in range(1, 4):
            await store.append_output([a_part(claim.hold, number, str(number))], NOW)
        await settle(store, claim.gives_back())
        second = await claim_again(store, claim)
        assert len(await read(store, claim.job_id)) == 3  # until it has written some

        await store.append_output([a_part(second.hold, 1, '"again"')], NOW)

        assert await read(store, claim.job_id) == [(2, 0, 1, '"again"')]
        assert len(await everything(store, dumps.OUTPUT)) == 1
        assert await read(store, claim.job_id, OutputPlace(1, 0, 3)) == [(2, 0, 1, '"again"')]  # a reader of the first

    async def test_so_does_a_newer_take_of_the_same_attempt(self, store: Store) -> None:
        claim = await running(store)
        await store.append_output([a_part(claim.hold, 1, "1", "2")], NOW)
        await store.append_output([a_part(claim.hold, 1, '"again"', take=1)], NOW)

        assert await read(store, claim.job_id) == [(1, 1, 1, '"again"')]
        assert await read(store, claim.job_id, OutputPlace(1, 0, 2)) == [(1, 1, 1, '"again"')]


class TestOutputOfEndedJobs:
    async def test_the_output_of_a_job_goes_with_it(self, store: Store) -> None:
        claim, other = await running(store), await running(store)
        for each in (claim, other):
            await store.append_output([a_part(each.hold, 1, "1")], NOW)
        await settle(store, claim.completes())

        assert await retire(store, a_policy(0, 0, 0), now=NOW + DAY) == 1

        assert await store.output_end(claim.job_id) is None
        assert await read(store, other.job_id) == [(1, 0, 1, "1")]

    async def test_it_is_transferred_with_its_job(self, store: Store, elsewhere: Store) -> None:
        claim = await running(store)
        await store.append_output([a_part(claim.hold, 1, '"a"', '"b"')], NOW)
        await store.append_output([a_part(claim.hold, 3, '"c"', before=6)], NOW)
        await settle(store, claim.completes())

        await carry(store, elsewhere)

        assert await elsewhere.output(claim.job_id, START, 10) == await store.output(claim.job_id, START, 10)
        assert await everything(elsewhere, dumps.OUTPUT) == await everything(store, dumps.OUTPUT)
        assert await retire(elsewhere, a_policy(0, 0, 0), now=NOW + DAY) == 1
        assert await elsewhere.output_end(claim.job_id) is None
