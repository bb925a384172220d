"""Many at once, over two stores on one place: exactly one wins, and the history says who."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import permutations

import msgspec
import pytest

from holdfast.lifecycle import Event, Status, cancel, rescue
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    claim_ids,
    in_state,
    record,
    running,
    submit,
)
from holdfast.store.port import Store
from holdfast.store.types import Verdict

CLAIMERS = 64
ORDERS = list(permutations(["complete", "rescue", "cancel", "extend"]))
WINNERS = {Event.COMPLETE: Status.COMPLETED, Event.RESCUE: Status.RETRYING, Event.CANCEL: Status.CANCELLED}


class TestRaces:
    async def test_of_sixty_four_claimers_one_gets_the_job(self, store: Store, second_store: Store) -> None:
        job_id = await submit(store)

        taken = await asyncio.gather(
            *(claim_ids((store, second_store)[i % 2], worker_id=f"w{i}", limit=1) for i in range(CLAIMERS))
        )

        assert sorted(taken) == [[]] * (CLAIMERS - 1) + [[job_id]]
        assert (await record(store, job_id)).attempt == 1

    async def test_a_claimer_that_asks_for_many_gets_no_more_than_asked(
        self, store: Store, second_store: Store
    ) -> None:
        await store.insert([], NOW)
        for _ in range(5):
            await submit(store)

        taken = await asyncio.gather(*(claim_ids((store, second_store)[i % 2], limit=2) for i in range(8)))

        assert sorted(len(each) for each in taken) == [0, 0, 0, 0, 0, 1, 2, 2]

    async def test_of_two_stores_that_settle_one_wins(self, store: Store, second_store: Store) -> None:
        for _ in range(10):
            claim = await running(store)
            stranger = msgspec.structs.replace(claim, token="stranger")

            verdicts = await asyncio.gather(
                second_store.apply([stranger.completes('"theirs"')], NOW),
                store.apply([claim.completes('"ours"')], NOW),
                second_store.apply([stranger.fails()], NOW),
            )

            assert [each for [each] in verdicts] == [Verdict.STALE, Verdict.APPLIED, Verdict.STALE]
            assert (await record(store, claim.job_id)).result == '"ours"'

    async def test_a_settlement_sent_through_both_stores_has_one_effect(
        self, store: Store, second_store: Store
    ) -> None:
        for _ in range(10):
            claim = await running(store)

            verdicts = await asyncio.gather(
                *((store, second_store)[i % 2].apply([claim.completes()], NOW) for i in range(6))
            )

            assert verdicts == [[Verdict.APPLIED]] * 6
            assert (await record(store, claim.job_id)).version == 3

    @pytest.mark.parametrize("order", ORDERS, ids="-".join)
    async def test_of_complete_rescue_cancel_and_extend_exactly_one_ends_the_claim(
        self, store: Store, second_store: Store, order: tuple[str, ...]
    ) -> None:
        for swapped in (False, True):
            claim = await running(store, lease_micros=0)
            seen = await record(store, claim.job_id)
            [expired] = [each for each in await store.expired(NOW, 10) if each.job_id == claim.job_id]
            stores = (second_store, store) if swapped else (store, second_store)
            contenders = {
                "complete": claim.completes(),
                "rescue": rescue(expired, lease=expired.lease_expires_at, now=NOW, reason="died", by=None),
                "cancel": cancel(seen, by=None, reason=None),
            }

            calls: list[Awaitable[list[Verdict]]] = [
                stores[i % 2].extend([claim.hold], NOW + HOUR, NOW)
                if name == "extend"
                else stores[i % 2].apply([contenders[name]], NOW)
                for i, name in enumerate(order)
            ]
            verdicts = dict(zip(order, await asyncio.gather(*calls), strict=True))

            winners = [name for name in contenders if verdicts[name] == [Verdict.APPLIED]]
            job = await record(store, claim.job_id)
            assert len(winners) == 1
            assert len(job.history) == job.version == 3
            assert job.history[-1].event == winners[0]
            assert job.status is WINNERS[job.history[-1].event]
            assert (job.result is not None) == (winners == ["complete"])
            assert job.lease_expires_at is None

    async def test_of_many_rescuers_one_counts_the_failure(self, store: Store, second_store: Store) -> None:
        await running(store, lease_micros=0)
        [expired] = await store.expired(NOW, 10)
        attempt = rescue(expired, lease=expired.lease_expires_at, now=NOW, reason="died", by=None)

        verdicts = await asyncio.gather(*((store, second_store)[i % 2].apply([attempt], NOW) for i in range(8)))

        assert sum(each == [Verdict.APPLIED] for each in verdicts) == 1
        assert (await record(store, expired.job_id)).failures == 1

    async def test_of_many_editors_one_wins(self, store: Store, second_store: Store) -> None:
        job = await in_state(store, Status.PENDING)
        edits = [cancel(job, by=f"editor-{i}", reason=None) for i in range(8)]

        verdicts = await asyncio.gather(
            *((store, second_store)[i % 2].apply([edit], NOW) for i, edit in enumerate(edits))
        )

        winner = verdicts.index([Verdict.APPLIED])
        assert verdicts.count([Verdict.APPLIED]) == 1
        assert (await record(store, job.job_id)).history[-1].by == f"editor-{winner}"

    async def test_a_cancel_and_a_claim_leave_one_of_them_standing(self, store: Store, second_store: Store) -> None:
        for _ in range(10):
            job = await in_state(store, Status.PENDING)

            [verdict], taken = await asyncio.gather(
                second_store.apply([cancel(job, by=None, reason=None)], NOW), claim_ids(store)
            )

            assert (verdict is Verdict.APPLIED) == (taken == [])

    async def test_parents_that_end_at_once_release_their_child_once(self, store: Store, second_store: Store) -> None:
        parents = [await running(store) for _ in range(8)]
        child = await submit(store, depends_on=tuple(parent.job_id for parent in parents))

        await asyncio.gather(
            *((store, second_store)[i % 2].apply([parent.completes()], NOW) for i, parent in enumerate(parents))
        )

        job = await record(store, child)
        assert (job.status, job.version) == (Status.PENDING, 2)
