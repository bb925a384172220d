"""What happens to jobs between the moment retention looks at them and the moment it moves them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import apsw
import pytest

import backstay.app
from backstay import Backstay, Status
from backstay.clock import Instant, SystemClock
from backstay.core.records import RetentionPolicy, Retired
from backstay.engines.sqlite.store import SQLiteStore
from backstay.files.local import LocalFiles
from backstay.limits import RELEASE_BATCH_MAX, RESULT_INLINE_BYTES_MAX
from backstay.ops import retention
from backstay.ops.retention import Retention
from backstay.ops.wait import Trouble
from backstay.worker import maintenance
from backstay.worker.maintenance import Janitor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
AT_ONCE = RetentionPolicy(Retention(completed=0, failed=0, cancelled=0).keep(), {}, None)
LARGE = "x" * (RESULT_INLINE_BYTES_MAX + 1)


class Interrupted(SQLiteStore):
    """A rival gets in after the next look, before what was found is moved."""

    rival: Callable[[], Awaitable[Any]] | None = None

    async def _read(self, run: Callable[[apsw.Connection, *Ts], T], *arguments: *Ts) -> T:
        found = await super()._read(run, *arguments)
        rival, self.rival = self.rival, None
        if rival is not None:
            await rival()
        return found

    async def retire_all(self, rival: Callable[[], Awaitable[Any]] | None = None) -> int:
        self.rival = rival
        return (await self.retire(AT_ONCE, SystemClock().now(), 500, None)).archived


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backstay]:
    monkeypatch.setattr(backstay.app, "open_url", Interrupted)
    app = Backstay(f"sqlite:///{tmp_path / 'jobs.db'}", poll_interval=0.05)

    @app.job("quick")
    async def quick(payload: str = "") -> str:
        return payload

    async with app:
        yield app


async def _ended(app: Backstay, payload: str = "", **options: Any) -> str:
    job = await app.submit("quick", payload, **options)
    async with app.worker():
        await job.result(timeout=10)
    return job.job_id


def _store(app: Backstay) -> Interrupted:
    assert isinstance(app.store, Interrupted)
    return app.store


async def _stayed(app: Backstay, *job_ids: str) -> list[str]:
    return [job_id for job_id in job_ids if (await app.get(job_id)).archived_at is None]


async def test_a_job_that_is_retried_after_the_look_stays(app: Backstay) -> None:
    retried, other = await _ended(app), await _ended(app)
    assert await _store(app).retire_all(lambda: app.retry(retried)) == 1
    assert await _stayed(app, retried, other) == [retried]
    assert (await app.get(retried)).status is Status.PENDING


@pytest.mark.parametrize("part", ["root", "leaf"])
async def test_a_tree_of_which_a_part_is_retried_after_the_look_stays_whole(app: Backstay, part: str) -> None:
    root = await _ended(app)
    leaf, twig = await _ended(app, parent=root), await _ended(app, parent=root)
    assert await _store(app).retire_all(lambda: app.retry({"root": root, "leaf": leaf}[part])) == 0
    assert await _stayed(app, root, leaf, twig) == [root, leaf, twig]


async def test_a_tree_that_grows_after_the_look_stays_whole(app: Backstay) -> None:
    root = await _ended(app)
    assert await _store(app).retire_all(lambda: app.submit("quick", "", parent=root)) == 0
    assert await _stayed(app, root) == [root]


async def test_a_tree_that_has_ended_leaves_as_a_whole(app: Backstay) -> None:
    root = await _ended(app)
    leaf = await _ended(app, parent=root)
    assert await _store(app).retire_all() == 2
    assert await _stayed(app, root, leaf) == []


async def test_a_job_stays_until_its_end_has_reached_all_that_wait_for_it(app: Backstay) -> None:
    parent = await app.submit("quick", "")
    await app.submit_many(("quick", "", {"depends_on": [parent.job_id]}) for _ in range(RELEASE_BATCH_MAX + 1))
    await app.cancel(parent.job_id)
    assert (await app.counts())["waiting"] == 1, "the end of the parent has reached all of them already"
    await _store(app).retire_all()
    assert await _stayed(app, parent.job_id) == [parent.job_id]
    await app.store.release(SystemClock().now(), 100)
    await _store(app).retire_all()
    assert await _stayed(app, parent.job_id) == []


async def test_a_large_result_that_was_reused_outlives_the_job_that_made_it(app: Backstay) -> None:
    donor = await _ended(app, LARGE, content_hash="same")
    again = await app.submit("quick", LARGE, content_hash="same", reuse=True)
    once_more = await app.submit("quick", LARGE, content_hash="same", reuse=True)
    assert (await app.get(once_more.job_id)).status is Status.COMPLETED
    files = LocalFiles(str(app.store.files_root))
    await _leaves(app, donor)
    assert await app.result(again.job_id) == await app.result(once_more.job_id) == LARGE
    await _leaves(app, again.job_id)
    assert await app.result(once_more.job_id) == LARGE
    assert await app.purge(older_than=0) == 1
    assert not any((files.root / each).exists() for each in (donor, again.job_id, once_more.job_id))


async def _leaves(app: Backstay, job_id: str) -> None:
    """It alone, at the moment at which it ended: the others ended later."""
    record = (await app.get(job_id)).row
    assert record.completed_at is not None
    clock = Stopped(record.completed_at + 1)
    files = LocalFiles(str(app.store.files_root))
    assert [each async for each in retention.steps(app.store, clock, files, AT_ONCE)] == [1]
    assert await _stayed(app, job_id) == []


class Stopped(SystemClock):
    __slots__ = ("_at",)

    def __init__(self, at: Instant) -> None:
        self._at = at

    def now(self) -> Instant:
        return self._at


@pytest.mark.parametrize("workers", [1, 8])
async def test_all_workers_together_give_retention_the_same_share(
    workers: int, app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    class OfManyWorkers:
        def __getattr__(self, name: str) -> Any:
            return getattr(app.store, name)

        async def count_workers(self) -> int:
            return workers

    class ASecondEachTime(SystemClock):
        ticks = 0

        def monotonic(self) -> float:
            self.ticks += 1
            return float(self.ticks)

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(maintenance.asyncio, "sleep", rest)
    await Janitor(OfManyWorkers(), ASecondEachTime(), None, Retention(), Trouble(maintenance.log, app.clock)).clean_up()  # type: ignore[arg-type]
    assert rests == [maintenance.REST_FACTOR * workers]


async def test_retention_takes_up_to_half_of_the_store_while_jobs_expire_faster_than_it_removes_them(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a busy store grows without end. Once it has caught up, it takes its tenth again."""
    rests: list[float] = []
    steps = 12

    class Behind:
        def __getattr__(self, name: str) -> Any:
            return getattr(app.store, name)

        async def retire(self, *asked: Any) -> Retired:
            nonlocal steps
            steps -= 1
            return Retired(archived=500, dropped=0, next="more" if steps > 0 else None)

    class HalfAMinuteEachTime(SystemClock):
        ticks = 0

        def monotonic(self) -> float:
            self.ticks += 1
            return 30.0 * self.ticks

    async def rest(seconds: float) -> None:
        rests.append(seconds / 30)

    monkeypatch.setattr(maintenance.asyncio, "sleep", rest)
    janitor = Janitor(Behind(), HalfAMinuteEachTime(), None, Retention(), Trouble(maintenance.log, app.clock))  # type: ignore[arg-type]
    await janitor.clean_up()
    assert rests[0] == maintenance.REST_FACTOR
    assert rests[-1] == maintenance.REST_FACTOR_MIN
    for _ in range(5):
        monkeypatch.setattr(maintenance, "RETIRE_INTERVAL_SECONDS", 600.0)  # a pass is over sooner than that
        await janitor.clean_up()
    assert rests[-1] == maintenance.REST_FACTOR


@pytest.mark.parametrize(
    ("kept", "seconds"), [(None, 600), (7 * 86_400, 600), (600, 150), (30, 60)], ids=lambda each: str(each)
)
def test_a_store_that_keeps_jobs_for_minutes_is_looked_at_more_often(
    kept: float | None, seconds: float, app: Backstay
) -> None:
    keep = Retention(completed=kept, failed=None, cancelled=None)
    janitor = Janitor(None, app.clock, None, keep, Trouble(maintenance.log, app.clock))  # type: ignore[arg-type]
    assert janitor.rest_seconds() == seconds
