"""A move among those who go on using the queue, and those who give it up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, ConfigurationError, MoveFailed, StoreMoved, StoreUnavailable, transfer
from backstay.clock import MICROS
from backstay.core import dumps
from backstay.core.records import ClaimedJob, ClaimRequest
from backstay.engines import open_url
from backstay.engines.sqlite import results
from backstay.engines.sqlite.store import SQLiteStore
from backstay.testing.conformance.factories import running
from backstay.transfer import Progress
from tests.engines.transfer.full_queue import app_at, fill, same
from tests.support.eventually import eventually


class Queue:
    """An app whose one handler waits until it may go on."""

    def __init__(self, url: str) -> None:
        self.app = Backstay(url, poll_interval=0.05)
        self.started, self.go_on = asyncio.Event(), asyncio.Event()

        @self.app.job("waits")
        async def waits(payload: Any) -> Any:
            self.started.set()
            await self.go_on.wait()
            return payload


@pytest.fixture
def here(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/here.db"


@pytest.fixture
def there(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/there.db"


async def test_it_waits_for_what_runs_and_takes_nothing_else(here: str, there: str) -> None:
    queue = Queue(here)
    waiting = asyncio.Event()

    def show(progress: Progress) -> None:
        if progress.step == "waiting":
            waiting.set()

    async with queue.app:
        running, pending = [await queue.app.submit("waits", number) for number in range(2)]
        async with queue.app.worker(concurrency=1):
            await queue.started.wait()
            move = asyncio.create_task(transfer.move(here, there, show=show))
            await waiting.wait()
            with pytest.raises(StoreMoved, match="is being transferred to"):
                await queue.app.submit("waits", 3)
            queue.go_on.set()
            await move
        assert await running.result() == 0
    async with Backstay(there) as app:
        assert (await app.get(running.job_id)).result == 0
        assert (await app.get(pending.job_id)).status.value == "pending"


async def test_a_worker_of_a_queue_that_moved_says_so_once_and_goes_on_when_it_is_given_up(
    here: str, there: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(here)
    queue.go_on.set()
    async with queue.app:
        job = await queue.app.submit("waits", 1)
        await transfer.move(here, there)
        claims = _counted(queue.app, monkeypatch)
        async with queue.app.worker(concurrency=1):
            with caplog.at_level(logging.WARNING, logger="backstay.worker"):
                await eventually(lambda: _looked(claims, 3))
            assert [record.getMessage().count("was transferred") for record in caplog.records].count(1) == 1
            await transfer.thaw(here, there, force=True)
            assert await job.result(timeout=10) == 1


async def test_a_worker_that_starts_on_a_queue_that_moved_waits_like_one_that_was_running(
    here: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(here)
    async with queue.app:
        job = await queue.app.submit("waits", 1)
        await transfer.move(here, there)

        async def refuse(*_: object) -> bool:
            """As a PostgreSQL queue does that was frozen before its last release was done."""
            raise StoreMoved(f"this queue was transferred to {there}")

        monkeypatch.setattr(queue.app.store, "release", refuse)
        async with queue.app.worker(concurrency=1):
            monkeypatch.undo()
            await transfer.thaw(here, there, force=True)
            queue.go_on.set()
            assert await job.result(timeout=60) == 1


def _counted(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> list[ClaimRequest]:
    """Every claim that the app's workers ask for."""
    asked: list[ClaimRequest] = []
    claim = app.store.claim

    async def counting(request: ClaimRequest, now: int) -> list[ClaimedJob]:
        asked.append(request)
        return await claim(request, now)

    monkeypatch.setattr(app.store, "claim", counting)
    return asked


async def _looked(claims: list[ClaimRequest], times: int) -> bool:
    return len(claims) >= times


async def test_a_store_that_is_away_for_a_moment_does_not_end_a_transfer(
    here: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(app_at(here))
    calls = 0

    def often_away(verb: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 3 == 0:
                raise StoreUnavailable("restarting")
            answer = await verb(*arguments)
            if calls % 4 == 0:
                raise StoreUnavailable("cut off before its answer")
            return answer

        return call

    for name in ("export", "restore", "freeze", "moving", "counts"):
        monkeypatch.setattr(SQLiteStore, name, often_away(getattr(SQLiteStore, name)))
    monkeypatch.setattr(transfer, "LOOK_SECONDS", 0.0)
    report = await transfer.move(here, there)
    monkeypatch.undo()
    assert calls > 30
    assert report.copied[dumps.JOBS] > 0
    await same(app_at(here), app_at(there))


async def test_stores_that_are_away_before_a_page_is_through_get_shorter_ones(
    here: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(app_at(here))
    async with app_at(here) as app:
        await app.submit_many([("plain", n) for n in range(100)])
    export, restore, longest = SQLiteStore.export, SQLiteStore.restore, 15

    async def slow_export(store: SQLiteStore, kind: str, after: str | None, limit: int) -> dumps.Exported:
        page = await export(store, kind, after, limit)
        if len(page.items) > longest:
            raise StoreUnavailable("it went away in the middle of a page")
        return page

    async def slow_restore(store: SQLiteStore, kind: str, items: Sequence[bytes], state: dumps.MoveState) -> None:
        if len(items) > longest:
            raise StoreUnavailable("it went away in the middle of a page")
        await restore(store, kind, items, state)

    monkeypatch.setattr(transfer, "LOOK_SECONDS", 0.0)
    for name, slow in (("export", slow_export), ("restore", slow_restore)):
        with monkeypatch.context() as patch:
            patch.setattr(SQLiteStore, name, slow)
            to = f"{there}-{name}"
            await transfer.move(here, to)
        await same(app_at(here), app_at(to))
        await transfer.thaw(here, to, force=True)


async def test_a_store_that_is_away_when_a_transfer_begins_is_waited_for(
    here: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(app_at(here))
    open_, away, reasons = SQLiteStore.open, [here, there], []

    async def late(store: SQLiteStore) -> None:
        if away:
            raise StoreUnavailable(f"{away.pop()} is restarting")
        await open_(store)

    monkeypatch.setattr(SQLiteStore, "open", late)
    monkeypatch.setattr(transfer, "LOOK_SECONDS", 0.0)
    report = await transfer.move(here, there, show=lambda progress: reasons.append(progress.reason))
    assert report.copied[dumps.JOBS] > 0
    assert [reason for reason in reasons if reason] == [f"{there} is restarting", f"{here} is restarting"]


async def test_a_store_that_stays_away_ends_a_transfer(here: str, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(store: SQLiteStore) -> None:
        raise StoreUnavailable("it is gone")

    await fill(app_at(here))
    monkeypatch.setattr(SQLiteStore, "open", gone)
    monkeypatch.setattr(transfer, "MOVE_OUTAGE_SECONDS", 0.0)
    with pytest.raises(StoreUnavailable, match="it is gone"):
        await transfer.move(here, there)


async def test_a_worker_that_died_is_not_waited_for_longer_than_its_lease(here: str, there: str) -> None:
    store = open_url(here)
    await store.open()
    claim = await running(store, lease_micros=0)
    await store.close()

    await transfer.move(here, there)

    async with Backstay(there) as app:
        job = await app.get(claim.job_id)
        assert (job.status.value, job.failures) == ("retrying", 1)


async def test_it_ends_where_a_job_does_not_and_says_who_runs_it(here: str, there: str) -> None:
    queue = Queue(here)
    async with queue.app:
        await queue.app.submit("waits", 1)
        async with queue.app.worker(concurrency=1):
            await queue.started.wait()
            with pytest.raises(MoveFailed, match=r"1 job is still running on .*--grace"):
                await transfer.move(here, there, grace=0)
            with pytest.raises(StoreMoved):
                await queue.app.submit("waits", 2)
            await transfer.thaw(here, there)
            last = await queue.app.submit("waits", 3)
            queue.go_on.set()
            await last.result()

    assert (await transfer.move(here, there)).copied["jobs"] == 2


async def test_half_a_copy_that_was_given_up_is_not_taken_for_the_queue(
    here: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(app_at(here))
    monkeypatch.setattr(transfer.Mover, "_verify", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        await transfer.move(here, there)
    monkeypatch.undo()
    await transfer.thaw(here, there)

    with pytest.raises(MoveFailed, match="abandoned"):
        await transfer.move(here, there)

    async with app_at(here) as app:
        await app.submit("plain", "it goes on here")


async def _interrupted(each: transfer.Mover) -> None:
    raise KeyboardInterrupt


async def test_a_move_is_given_up_only_for_the_place_that_it_goes_to(
    here: str, there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(app_at(here))
    monkeypatch.setattr(transfer.Mover, "_verify", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        await transfer.move(here, there)

    with pytest.raises(MoveFailed, match=f"is being transferred to {there}"):
        await transfer.thaw(here, f"sqlite:///{tmp_path}/third.db")

    assert not (tmp_path / "third.db").exists()
    with pytest.raises(StoreMoved):
        async with app_at(here) as app:
            await app.submit("plain", 1)


@pytest.mark.parametrize("step", ["_drain", "_copy", "_verify", "_open"])
async def test_a_mover_that_still_lives_opens_nothing_once_its_move_was_given_up(
    here: str, there: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await fill(app_at(here))
    _meanwhile(monkeypatch, step, transfer.thaw(here, there))

    with pytest.raises(MoveFailed, match=r"abandoned it|abandoned meanwhile"):
        await transfer.move(here, there)

    async with app_at(here) as app:
        await app.submit("plain", "it goes on here")
    with pytest.raises(StoreMoved):
        async with app_at(there):
            pass


@pytest.mark.parametrize("step", ["_drain", "_copy", "_verify", "_open"])
async def test_a_mover_that_still_lives_changes_nothing_once_another_has_finished(
    here: str, there: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await fill(app_at(here))

    async def finish_and_use() -> None:
        await transfer.move(here, there)
        async with app_at(there) as app:
            await app.submit("plain", "new")

    _meanwhile(monkeypatch, step, finish_and_use())

    with pytest.raises(MoveFailed, match="another run"):
        await transfer.move(here, there)

    async with app_at(there) as app:
        await app.submit("plain", "it goes on there")
    with pytest.raises(StoreMoved, match="was transferred to"):
        async with app_at(here) as app:
            await app.submit("plain", 1)


def _meanwhile(monkeypatch: pytest.MonkeyPatch, step: str, others: Coroutine[Any, Any, None]) -> None:
    """What others do right before a mover's step, or, of its first one, once it has frozen the queue."""
    original = getattr(transfer.Mover, step)

    async def interrupted(each: transfer.Mover) -> Any:
        monkeypatch.setattr(transfer.Mover, step, original)
        if step == "_drain":
            await each._source.freeze(each._leaving)
        await others
        return await original(each)

    monkeypatch.setattr(transfer.Mover, step, interrupted)


async def test_a_queue_does_not_move_into_one_that_has_jobs(here: str, there: str) -> None:
    for url in (here, there):
        async with app_at(url) as app:
            await app.submit("plain", 1)

    with pytest.raises(MoveFailed, match="already has jobs"):
        await transfer.move(here, there)

    async with app_at(here) as app:
        await app.submit("plain", 2)  # and nothing was frozen


async def test_a_queue_moves_to_one_place_only(tmp_path: Path, here: str, there: str) -> None:
    async with app_at(here) as app:
        await app.submit("plain", 1)
    await transfer.move(here, there)

    with pytest.raises(MoveFailed, match="was already transferred to"):
        await transfer.move(here, f"sqlite:///{tmp_path}/third.db")
    assert (await transfer.move(here, there)).copied == {}  # done before


async def test_nothing_is_moved_to_where_it_is(here: str) -> None:
    async with app_at(here):
        pass

    with pytest.raises(ConfigurationError, match="choose another location"):
        await transfer.move(here, here)


async def test_no_queue_is_made_to_be_moved(here: str, there: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no queue"):
        await transfer.move(here, there)

    assert list(tmp_path.iterdir()) == []


async def test_a_queue_that_is_half_there_cannot_be_opened(here: str, there: str) -> None:
    await fill(app_at(here))
    store = open_url(there)
    await store.open()
    first = (await _export(here, dumps.TYPES))[:1]
    state = transfer.MoveState(role="into", move_id="m", other=here, kind=dumps.QUEUES)
    await store.restore(dumps.TYPES, first, state)
    await store.close()

    with pytest.raises(StoreMoved, match="has not finished"):
        async with Backstay(there):
            pass


async def _export(url: str, kind: str) -> list[bytes]:
    store = open_url(url)
    await store.open()
    try:
        return list((await store.export(kind, None, 500)).items)
    finally:
        await store.close()


async def test_a_difference_is_found_and_nothing_is_opened(
    here: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(app_at(here))
    copy = transfer.Mover._copy

    async def losing(each: transfer.Mover) -> None:
        await copy(each)
        connection = each._target._opened()[0].connection  # type: ignore[attr-defined]
        connection.execute("DROP TRIGGER moved_job_delete; DELETE FROM job WHERE job_type = 'dies'")

    monkeypatch.setattr(transfer.Mover, "_copy", losing)

    with pytest.raises(MoveFailed, match=r"jobs differ: .*--thaw"):
        await transfer.move(here, there)

    with pytest.raises(StoreMoved):
        async with Backstay(there):
            pass


async def test_a_file_that_was_lost_before_is_named_and_keeps_nothing_from_moving(
    here: str, there: str, tmp_path: Path
) -> None:
    await fill(app_at(here))
    [plot, *_] = (tmp_path / "here.db.files").glob("*/1/plot.txt")
    plot.unlink()

    report = await transfer.move(here, there)

    assert report.missing_count == 1
    assert report.missing == (plot.as_uri(),)


async def test_a_file_that_does_not_fit_is_found_before_anything_stands_still(
    here: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(app_at(here))
    monkeypatch.setattr(transfer, "open_files", _small_files(there))

    with pytest.raises(MoveFailed, match="--to-artifacts"):
        await transfer.move(here, there)

    async with app_at(here) as app:
        await app.submit("plain", 1)


async def test_a_result_table_that_cannot_be_made_is_found_before_anything_stands_still(
    here: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(app_at(here))
    with monkeypatch.context() as patched:
        patched.setattr(results, "declare", _without_vectors)
        with pytest.raises(ConfigurationError, match="pgvector"):
            await transfer.move(here, there)

    async with app_at(here) as app:
        await app.submit("plain", 1)
    assert (await transfer.move(here, there)).copied["tables"] > 0


def _without_vectors(*_: Any) -> None:
    raise ConfigurationError("pgvector is missing")


def _small_files(url: str) -> Any:
    from backstay.engines import open_files

    def opened(of: str, store: Any, artifacts: str | None) -> Any:
        files = open_files(of, store, artifacts)
        if of == url:
            files.size_max = 1000
        return files

    return opened


async def test_files_that_both_sides_reach_stay_where_they_are(here: str, there: str, tmp_path: Path) -> None:
    files = f"file://{tmp_path}/files"
    old, new = app_at(here, artifacts=files), app_at(there, artifacts=files)
    await fill(old)

    report = await transfer.move(here, there, artifacts=files)

    assert report.files == 0
    await same(old, new)


async def test_jobs_keep_their_time(here: str, there: str) -> None:
    async with app_at(here) as app:
        job = await app.submit("plain", 1, delay=3600)
    await transfer.move(here, there)

    async with app_at(there) as app:
        found = (await app.get(job.job_id)).row
    assert abs(found.scheduled_for - found.created_at - 3600 * MICROS) < MICROS
