"""Trees over more than one commit: what one process has begun another ends, and parents that many count on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
import pytest

from backstay import failpoints
from backstay.core.dependencies import Brood, TriggerRule
from backstay.core.lifecycle import cancel, manual_retry
from backstay.core.records import Hold, NewJob, Staged, Verdict
from backstay.core.states import Status
from backstay.engines.dynamodb import holder, outbox, schema
from backstay.engines.dynamodb.commit import Commit
from backstay.engines.dynamodb.expressions import Ask
from backstay.engines.dynamodb.outbox import GRACE_MICROS
from backstay.engines.dynamodb.schema import Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.store import DynamoStore
from backstay.failpoints import FailpointReached
from backstay.testing.conformance.factories import (
    DAY,
    NOW,
    Claim,
    a_policy,
    claim_again,
    claim_one,
    ended,
    new_job,
    quiet,
    record,
    request,
    retire,
    running,
    settle,
    status,
    submit,
    submit_many,
)
from backstay.testing.conformance.test_children import brood
from backstay.testing.conformance.test_results import POINTS, batch
from backstay.testing.conformance.test_waiting_parents import waiting
from tests.support.servers.dynamo_proxy import DynamoProxy
from tests.support.servers.dynamodb import DynamoDB

LATER = NOW + GRACE_MICROS
MANY = 130  # more than a commit takes, and than a slice
ALL_SUCCESS = TriggerRule.ALL_SUCCESS


@pytest.fixture(autouse=True)
def no_failpoints() -> Iterator[None]:
    yield
    failpoints.switch("")


def children_of(parent: Claim, count: int) -> tuple[NewJob, ...]:
    return tuple(new_job(parent_job_id=parent.job_id, own_id=True) for _ in range(count))


async def stage(store: DynamoStore, parent: Claim, *parts: Sequence[NewJob]) -> Staged:
    for number, jobs in enumerate(parts):
        assert await store.stage(parent.hold, number, jobs, NOW) is Verdict.APPLIED
    return Staged(len(parts), sum(map(len, parts)))


async def lies_in(store: DynamoStore, partition: str) -> list[str]:
    ask = Ask(table=Table.RECORDS, hash=partition, consistent=True)
    return [row["sk"] async for row in store._open().tables.ask(ask)]


async def marks(store: DynamoStore) -> list[str]:
    return [mark.kind async for mark in outbox.marks(store._open().tables, 100)]


async def end_all(store: DynamoStore, count: int) -> None:
    done = 0
    while done < count:
        asked = request(limit=min(100, count - done))
        claims = [Claim(job, asked.token) for job in await store.claim(asked, NOW)]
        assert claims
        await settle(store, *(claim.completes() for claim in claims))
        done += len(claims)


class TestUnpacking:
    @pytest.mark.parametrize(
        "point",
        [
            "unpack.before=raise",
            "unpack.uncommitted=raise@2",
            "unpack.committed=raise@2",
            "unpack.between=raise",
            "unpack.uncommitted=raise@5",
            "unpack.committed=raise@5",
        ],
    )
    async def test_what_one_process_has_begun_another_ends(
        self, store: DynamoStore, second_store: DynamoStore, point: str
    ) -> None:
        parent = await running(store)
        jobs = children_of(parent, 70)
        staged = await stage(store, parent, jobs[:35], jobs[35:])
        failpoints.switch(point)
        with pytest.raises(FailpointReached):
            await store.apply([parent.waits(staged=staged)], NOW)
        failpoints.switch("")
        assert await status(store, parent.job_id) is Status.WAITING

        await quiet(second_store, now=LATER)

        assert await brood(store, parent.job_id) == Brood(70, 70)
        assert await lies_in(store, schema.staged(parent.job_id, 1)) == []
        assert await marks(store) == []
        await end_all(store, 70)
        assert await status(store, parent.job_id) is Status.PENDING

    async def test_two_that_unpack_at_once_store_each_child_once(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        parent = await running(store)
        staged = await stage(store, parent, children_of(parent, MANY))
        failpoints.switch("unpack.before=raise")
        with pytest.raises(FailpointReached):
            await store.apply([parent.completes(staged=staged)], NOW)
        failpoints.switch("")

        await asyncio.gather(store.release(LATER, 1_000), second_store.release(LATER, 1_000))

        assert await brood(store, parent.job_id) == Brood(MANY, MANY)
        assert await marks(store) == []

    async def test_more_children_than_a_commit_takes_come_with_a_wait_that_holds(self, store: DynamoStore) -> None:
        parent = await running(store)

        await settle(store, parent.waits(children=children_of(parent, 100)))

        assert await brood(store, parent.job_id) == Brood(100, 100)
        await end_all(store, 99)
        assert await status(store, parent.job_id) is Status.WAITING
        await end_all(store, 1)
        assert await status(store, parent.job_id) is Status.PENDING

    async def test_a_parent_is_held_until_the_last_is_stored(self, store: DynamoStore) -> None:
        parent = await running(store)
        jobs = children_of(parent, 40)
        staged = await stage(store, parent, jobs[:20], jobs[20:])
        failpoints.switch("unpack.between=raise")
        with pytest.raises(FailpointReached):
            await store.apply([parent.waits(staged=staged)], NOW)
        failpoints.switch("")

        await end_all(store, 20)

        assert await status(store, parent.job_id) is Status.WAITING  # though all that are stored have ended
        await quiet(store, now=LATER)
        await end_all(store, 20)
        assert await status(store, parent.job_id) is Status.PENDING

    async def test_of_a_call_that_came_to_nothing_only_the_named_parts_come(self, store: DynamoStore) -> None:
        parent = await running(store)
        first, left_over = children_of(parent, 1), children_of(parent, 2)
        await stage(store, parent, first, left_over)

        await settle(store, parent.completes(staged=Staged(1, 1)))

        assert await brood(store, parent.job_id) == Brood(1, 1)
        assert await lies_in(store, schema.staged(parent.job_id, 1)) == []

    async def test_a_part_of_several_pieces_comes_whole(self, store: DynamoStore) -> None:
        parent = await running(store)
        jobs = [msgspec.structs.replace(job, payload=f'"{"x" * 30_000}"') for job in children_of(parent, 25)]
        staged = await stage(store, parent, jobs)
        assert len(await lies_in(store, schema.staged(parent.job_id, 1))) == 3

        await settle(store, parent.completes(staged=staged))

        assert await brood(store, parent.job_id) == Brood(25, 25)
        assert (await record(store, jobs[24].job_id)).payload == jobs[24].payload

    async def test_what_an_attempt_staged_that_came_to_nothing_goes(self, store: DynamoStore) -> None:
        parent = await running(store)
        await stage(store, parent, children_of(parent, 3))
        assert await store.release(LATER, 10) == 0  # it runs on
        assert len(await lies_in(store, schema.staged(parent.job_id, 1))) == 1

        await settle(store, parent.gives_back())
        await quiet(store)

        assert await lies_in(store, schema.staged(parent.job_id, 1)) == []
        assert await marks(store) == []

    async def test_retention_leaves_a_parent_whose_children_are_on_their_way(self, store: DynamoStore) -> None:
        parent = await running(store)
        staged = await stage(store, parent, children_of(parent, 3))
        failpoints.switch("unpack.before=raise")
        with pytest.raises(FailpointReached):
            await store.apply([parent.completes(staged=staged)], NOW)
        failpoints.switch("")

        assert await retire(store, a_policy(0, 0, 0), now=NOW + DAY) == 0


class TestParentsThatEnd:
    async def test_the_end_of_a_parent_is_made_by_another_where_the_first_died(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        root = await running(store)
        middle = await running(store, parent_job_id=root.job_id)
        leaf = await running(store, parent_job_id=middle.job_id)
        after = await submit(store, depends_on=(root.job_id,))
        await settle(store, root.waits(ALL_SUCCESS), middle.waits(ALL_SUCCESS))
        failpoints.switch("release.uncommitted=raise")
        with pytest.raises(FailpointReached):
            await store.apply([leaf.ends_as(Status.FAILED)], NOW)
        failpoints.switch("")
        assert await store.statuses([leaf.job_id, middle.job_id]) == [Status.FAILED, Status.WAITING]

        await quiet(second_store)

        ends = [Status.FAILED, Status.FAILED, Status.CANCELLED]
        assert await store.statuses([middle.job_id, root.job_id, after]) == ends
        assert await marks(store) == []

    async def test_a_child_that_runs_again_before_the_end_is_made_is_waited_for(self, store: DynamoStore) -> None:
        parent, [child] = await waiting(store, rule=ALL_SUCCESS)
        failpoints.switch("release.uncommitted=raise")
        with pytest.raises(FailpointReached):
            await store.apply([child.ends_as(Status.FAILED)], NOW)
        failpoints.switch("")
        again = manual_retry(await record(store, child.job_id), now=NOW, by=None, reason=None)
        await settle(store, again)

        await quiet(store)
        assert await status(store, parent.job_id) is Status.WAITING
        await settle(store, (await claim_again(store, child)).completes())

        assert await status(store, parent.job_id) is Status.PENDING
        assert await brood(store, parent.job_id) == Brood(1)

    async def test_many_ends_go_up_in_one_batch(self, store: DynamoStore) -> None:
        """More children than a commit takes, of parents that all end by it."""
        trees = [await waiting(store, 5, rule=ALL_SUCCESS, on_failure="cancel") for _ in range(12)]

        await settle(store, *(child.ends_as(Status.FAILED) for _, children in trees for child in children))
        await quiet(store)

        assert set(await store.statuses([parent.job_id for parent, _ in trees])) == {Status.CANCELLED}
        assert await marks(store) == []


class TestCommits:
    async def test_the_ends_of_one_parents_children_share_their_write_of_it(
        self, store: DynamoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parent = await running(store)
        await settle(store, parent.waits(children=children_of(parent, 40)))
        asked = request()
        children = [Claim(job, asked.token) for job in await store.claim(asked, NOW)]
        commits: list[int] = []
        inner = Commit.run

        async def counted(self: Commit, *args: object, **more: object) -> None:
            commits.append(1)
            await inner(self, *args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Commit, "run", counted)
        await settle(store, *(child.completes() for child in children))

        assert (len(children), len(commits)) == (40, 1)
        assert await status(store, parent.job_id) is Status.PENDING

    async def test_children_that_end_do_not_refuse_one_another(
        self, store: DynamoStore, second_store: DynamoStore
    ) -> None:
        parent, children = await waiting(store, 40)
        stores = (store, second_store)

        await asyncio.gather(*(stores[i % 2].apply([child.completes()], NOW) for i, child in enumerate(children[:-1])))

        assert await brood(store, parent.job_id) == Brood(40, 1)
        assert (await record(store, parent.job_id)).version == 3

    async def test_a_child_whose_dependents_are_many_counts_with_its_end(self, store: DynamoStore) -> None:
        parent, [child] = await waiting(store)
        dependents = await submit_many(store, 90, depends_on=(child.job_id,))

        await settle(store, child.completes())

        assert await status(store, parent.job_id) is Status.PENDING
        assert set(await store.statuses(dependents)) == {Status.PENDING}

    async def test_children_that_are_cancelled_by_a_wide_cascade_all_count(self, store: DynamoStore) -> None:
        parent = await running(store)
        first = await running(store, parent_job_id=parent.job_id)
        await submit_many(store, 90, parent_job_id=parent.job_id, depends_on=(first.job_id,))
        await settle(store, parent.waits())

        await settle(store, first.ends_as(Status.FAILED))
        await quiet(store)

        assert await brood(store, parent.job_id) == Brood(91, 0, 1, 90)
        assert await status(store, parent.job_id) is Status.PENDING

    async def test_a_child_with_many_dependencies_that_ended_badly_counts_when_they_are_linked(
        self, store: DynamoStore
    ) -> None:
        bad = [await ended(store, Status.CANCELLED) for _ in range(2)]
        others = await submit_many(store, 45, job_type="other")
        parent, [child] = await waiting(store)
        late = await submit(
            store, parent_job_id=parent.job_id, depends_on=(*others, *bad), trigger_rule=TriggerRule.NONE_FAILED
        )
        await settle(store, child.completes())
        assert await status(store, parent.job_id) is Status.WAITING

        for job_id in others[:-1]:
            await settle(store, (await claim_one(store, job_id, slots={"other": 1})).completes())
        await settle(store, (await claim_one(store, others[-1], slots={"other": 1})).ends_as(Status.FAILED))
        await quiet(store)

        assert await store.statuses([late, parent.job_id]) == [Status.CANCELLED, Status.PENDING]
        assert await brood(store, parent.job_id) == Brood(2, 0, 0, 1)


class TestCrowds:
    """Processes that end children of one parent at the same moment, as DynamoDB sees it: transactions take their time,
    and two on one item exclude each other."""

    @pytest.fixture
    def line(self, dynamodb: DynamoDB) -> Iterator[DynamoProxy]:
        with DynamoProxy(dynamodb.port) as proxy:
            yield proxy

    @pytest.fixture
    async def crowd(
        self, store: DynamoStore, url: str, dynamodb: DynamoDB, line: DynamoProxy
    ) -> AsyncIterator[list[DynamoStore]]:
        stores = [DynamoStore(url.replace(f":{dynamodb.port}", f":{line.port}")) for _ in range(6)]
        for each in stores:
            await each.open()
        line.contend(0.02)
        yield stores
        line.heal()
        for each in stores:
            await each.close()

    @pytest.mark.parametrize("rule", [TriggerRule.ALL_DONE, ALL_SUCCESS])
    async def test_all_are_counted(self, store: DynamoStore, crowd: list[DynamoStore], rule: TriggerRule) -> None:
        parent, children = await waiting(store, 24, rule=rule)
        ends = [Status.COMPLETED, Status.COMPLETED, Status.FAILED]
        settled = [child.ends_as(ends[i % 3]) for i, child in enumerate(children)]

        answers = await asyncio.gather(*(each.apply(settled[i * 4 : i * 4 + 4], NOW) for i, each in enumerate(crowd)))

        assert answers == [[Verdict.APPLIED] * 4] * 6
        assert await brood(store, parent.job_id) == Brood(24, 0, 8)
        target = Status.PENDING if rule is TriggerRule.ALL_DONE else Status.FAILED
        assert await status(store, parent.job_id) is target
        assert await marks(store) == []
        assert sum(each.meter.conflicts for each in crowd) > 0


class TestFences:
    """A claim that is lost between the look and the commit."""

    @pytest.fixture
    async def lost(self, store: DynamoStore, monkeypatch: pytest.MonkeyPatch) -> Claim:
        parent = await running(store)
        await settle(store, parent.gives_back())
        await claim_again(store, parent)
        inner = holder.verdict
        looks = iter([Verdict.APPLIED])

        async def a_look_too_early(session: Session, hold: Hold) -> Verdict:
            return next(looks, None) or await inner(session, hold)

        monkeypatch.setattr(holder, "verdict", a_look_too_early)
        return parent

    @pytest.mark.parametrize("count", [2, 120], ids=["in one commit", "through the journal"])
    async def test_children_at_once_are_refused_by_the_commit(
        self, store: DynamoStore, lost: Claim, count: int
    ) -> None:
        jobs = children_of(lost, count)

        assert await store.insert_children(lost.hold, jobs, NOW) is None

        assert await brood(store, lost.job_id) == Brood()
        assert await marks(store) == []

    async def test_a_part_is_refused_by_the_commit_and_goes(self, store: DynamoStore, lost: Claim) -> None:
        assert await store.stage(lost.hold, 0, children_of(lost, 2), NOW) is Verdict.STALE

        await quiet(store)

        assert await lies_in(store, schema.staged(lost.job_id, 1)) == []
        assert await marks(store) == []

    async def test_the_first_rows_of_a_table_are_refused_by_the_job(
        self, store: DynamoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.declare([POINTS])
        claim = await running(store)
        await settle(store, claim.gives_back())
        looks = iter([Verdict.APPLIED])
        inner = holder.judge
        monkeypatch.setattr(holder, "judge", lambda hold, item: next(looks, None) or inner(hold, item))

        assert await store.put_rows([batch(claim, POINTS, (1, 0.5))], NOW) == [Verdict.STALE]

        assert (await record(store, claim.job_id)).result_tables == ()


class TestWhatLiesAround:
    async def test_the_list_of_its_children_goes_with_a_tree(self, store: DynamoStore) -> None:
        parent, children = await waiting(store, 3)
        await settle(store, *(child.completes() for child in children))
        await settle(store, cancel(await record(store, parent.job_id), by=None, reason=None))
        assert len(await lies_in(store, schema.kids(parent.job_id))) == 3

        assert await retire(store, a_policy(), now=NOW + 2 * DAY) == 4

        assert await lies_in(store, schema.kids(parent.job_id)) == []
