"""The archive from a user's side: what is left of a job, what still answers for it, and that its files go."""

import shutil
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backstay import ArtifactNotFound, Backstay, Context, IllegalTransition, JobCancelled, JobFailed, ResultGone
from backstay.testing import ManualClock, drain
from tests.app.ended_jobs import DAY, LARGE, NOON, archived, ended, folder, with_work


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
async def app(make_app: Callable[..., Backstay], clock: ManualClock) -> AsyncIterator[Backstay]:
    async with with_work(make_app(clock=clock)) as app:
        yield app


FIGURES = [
    *("job_type", "queue", "status", "priority", "subject", "tags", "created_by", "version", "worker_id"),
    *("created_at", "started_at", "completed_at", "processing_time_ms", "attempt", "failures", "max_attempts"),
    *("metrics", "progress", "stage"),
]


async def test_what_is_left_of_a_job_are_its_figures(app: Backstay, clock: ManualClock) -> None:
    handle = await app.submit("work", "ok", subject="s", tags=["t"], created_by="ada", priority=70)
    before = (await drain(app))[0]
    clock.advance(3600)
    await app.purge(older_than=0)

    job = await handle.record()

    assert job.archived_at == NOON + timedelta(hours=1)
    for field in FIGURES:
        assert getattr(job, field) == getattr(before, field), field
    assert job.metrics == {"rows": 42}
    assert (job.payload, job.result, job.logs["entries"], job.history) == (None, None, [], [])
    assert job.to_dict()["archived_at"] == job.archived_at
    assert await app.history(handle.job_id) == []


async def test_a_job_keeps_its_history_for_a_week_and_its_figures_for_a_year(app: Backstay, clock: ManualClock) -> None:
    handle = await app.submit("work", "ok")
    await drain(app)
    clock.advance(7 * DAY - timedelta(seconds=60))
    assert await app.purge() == 0
    history = await app.history(handle.job_id)
    assert [(each.event, each.target) for each in history] == [
        ("submit", "pending"),
        ("claim", "processing"),
        ("complete", "completed"),
    ]

    clock.advance(120)
    assert await app.purge() == 1
    clock.advance(364 * DAY)
    await app.purge()
    job = await handle.record()
    assert (job.status, job.created_at, job.completed_at) == ("completed", NOON, NOON)
    assert job.archived_at == NOON + timedelta(days=7, seconds=60)


async def test_how_an_archived_job_ended_is_still_told_to_who_waits_for_it(app: Backstay) -> None:
    done, failed = await ended(app, "ok", "fail")
    cancelled = (await app.submit("work", "x", delay=60)).job_id
    await app.cancel(cancelled, reason="no")
    await app.purge(older_than=0)

    with pytest.raises(ResultGone, match="submit it again"):
        await app.result(done, timeout=5)
    with pytest.raises(JobFailed, match="no such thing"):
        await app.result(failed, timeout=5)
    with pytest.raises(JobCancelled):
        await app.result(cancelled, timeout=5)


async def test_an_archived_job_cannot_be_changed_and_the_error_says_what_to_do(app: Backstay) -> None:
    [failed] = await ended(app, "fail")
    await app.purge(older_than=0)

    with pytest.raises(IllegalTransition, match=r"archived .* submit it again"):
        await app.retry(failed)
    for change in (app.cancel, app.reschedule):
        with pytest.raises(IllegalTransition, match="archived"):
            await change(failed)
    with pytest.raises(IllegalTransition, match="archived"):
        await app.reprioritise(failed, 1)
    assert await app.retry_dead() == 0


async def test_it_is_no_longer_listed_or_counted(app: Backstay) -> None:
    await ended(app, "a", "fail")
    await app.purge(older_than=0)

    assert await app.find() == []
    assert await app.dead() == []
    assert sum((await app.counts()).values()) == 0


async def test_a_job_may_depend_on_an_archived_one_and_a_key_for_ever_still_answers(app: Backstay) -> None:
    [done] = await ended(app, "a", dedup_key="once", dedup_for="forever")
    await app.purge(older_than=0)

    again = await app.submit("work", "a", dedup_key="once", dedup_for="forever", dedup="error")
    assert (again.job_id, again.deduplicated) == (done, True)
    follower = await app.submit("work", "b", depends_on=[done])
    assert follower.status == "pending"


async def test_a_repeated_id_is_answered_from_the_archive_and_runs_nothing(app: Backstay) -> None:
    [done] = await ended(app, "a")
    await app.purge(older_than=0)

    again = await app.submit("work", "a", job_id=done)

    assert (again.status, await drain(app)) == ("completed", [])


# Files


async def test_the_files_of_a_job_go_with_it(app: Backstay, tmp_path: Path) -> None:
    large, kept = await ended(app, "large", "keep")
    assert (await app.get(large)).result == LARGE
    assert folder(tmp_path, large).is_dir() and folder(tmp_path, kept).is_dir()

    await app.purge(older_than=0)

    assert not folder(tmp_path, large).exists() and not folder(tmp_path, kept).exists()
    assert await app.artifacts(kept) == []
    with pytest.raises(ArtifactNotFound):
        await app.artifact(kept, "report.txt")


async def test_after_a_crash_between_archive_and_files_the_next_pass_removes_them(
    app: Backstay, make_app: Callable[..., Backstay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, kept = await ended(app, "large", "keep")
    with monkeypatch.context() as crash:
        crash.setattr(app._files, "remove", _die)
        with pytest.raises(Died):
            await app.purge(older_than=0)
    assert await archived(app, large, kept) == [True, True]
    assert folder(tmp_path, large).is_dir()

    async with make_app(clock=app.clock) as other:
        await other.purge()

    assert not folder(tmp_path, large).exists() and not folder(tmp_path, kept).exists()
    assert await app.store.with_files(10) == []


class Died(BaseException):
    """As if the process had ended here."""


def _die(job_ids: list[str]) -> None:
    raise Died


async def test_files_that_cannot_be_removed_now_are_tried_again_and_keep_nothing_else(
    app: Backstay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, free = await ended(app, "large", "keep")
    rmtree = shutil.rmtree

    def refuse(path: Path) -> None:
        if path.name == stuck:
            raise PermissionError("not yours")
        rmtree(path)

    with monkeypatch.context() as trouble:
        trouble.setattr(shutil, "rmtree", refuse)
        assert await app.purge(older_than=0) == 2
    assert f"could not remove the files of job {stuck}" in caplog.text
    assert folder(tmp_path, stuck).is_dir() and not folder(tmp_path, free).exists()

    await app.purge()
    assert not folder(tmp_path, stuck).exists()


async def test_a_large_result_stays_as_long_as_a_job_that_reused_it(
    app: Backstay, clock: ManualClock, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"content_hash": "h", "reuse": True}
    [donor] = await ended(app, "large", **options)
    clock.advance(6 * DAY)
    again = await app.submit("work", "large", **options)
    assert again.reused_from == donor
    clock.advance(2 * DAY)

    assert await app.purge() == 1
    assert await archived(app, donor) == [True]
    assert (await again.record()).result == LARGE

    clock.advance(8 * DAY)
    await app.purge()
    assert not folder(tmp_path, donor).exists()


async def test_what_an_attempt_left_behind_that_was_never_recorded_goes_too(
    make_app: Callable[..., Backstay], clock: ManualClock, tmp_path: Path
) -> None:
    app = make_app(clock=clock)

    @app.job("work")
    async def work(payload: None, ctx: Context) -> None: ...

    async with app:
        handle = await work.submit(None)
        await drain(app)
        await app.retry(handle.job_id)
        await drain(app)
        assert app._files is not None
        app._files.write(handle.job_id, 1, "left.txt", b"by a run that died before it could tell of it")
        await app.purge(older_than=0)
    assert not folder(tmp_path, handle.job_id).exists()
