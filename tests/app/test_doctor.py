"""The check-up: what is well is said to be, and each thing that is not is found, with what to do."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from backstay import Backstay, Context, Finding, ids
from backstay.core import workers
from backstay.core.records import BlockedLoop, ClaimRequest, WorkerRow
from backstay.engines.sqlite import connection, maintenance
from backstay.engines.sqlite.connection import migrations
from backstay.errors import StoreError
from backstay.ops import doctor
from backstay.testing import ManualClock, drain
from tests.campaigns.lost_claims import lose
from tests.support.eventually import eventually
from tests.support.rows_read import RowsRead

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LEASE = 60.0
CHECKS = {
    *("engine", "durability", "file system", "access", "disk space", "schema", "WAL", "reserve", "integrity", "places"),
    *(
        "files",
        "clock",
        "workers",
        "leases",
        "lost jobs",
        "types",
        "versions",
        "due jobs",
        "queues",
        "paused types",
        "schedules",
        "waiting",
    ),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
async def app(make_app: Callable[..., Backstay], clock: ManualClock) -> AsyncIterator[Backstay]:
    app = make_app(clock=clock, lease=LEASE)

    @app.job("work")
    async def work(payload: Any) -> None: ...

    async with app:
        yield app


async def finding(app: Backstay, check: str) -> Finding:
    return next(each for each in await app.check_up() if each.check == check)


async def heard_of(app: Backstay, **changes: Any) -> None:
    """A worker that lives elsewhere, as it tells of itself."""
    fields: dict[str, Any] = {
        "worker_id": "elsewhere",
        "host": "there",
        "pid": 1,
        "process_key": "",
        "version": "1",
        "queues": ("default",),
        "job_types": ("work",),
        "concurrency": 1,
        "started_at": app.clock.now(),
        "heartbeat_at": app.clock.now(),
    }
    await app.store.beat(WorkerRow(**(fields | changes)))


async def test_a_queue_with_a_worker_is_well(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "file_system", lambda path: "ext4")  # tests may run in memory
    await app.submit("work", 1, delay=60)
    await app.schedule("daily", "@daily", "work")
    async with app.worker():
        found = await app.check_up()

    assert {each.check for each in found} == CHECKS
    assert [each for each in found if each.level != "ok"] == []
    assert all(each.says and not each.advice for each in found)


# The file


async def test_a_file_that_others_can_read_is_found(app: Backstay, tmp_path: Path) -> None:
    assert (await finding(app, "access")).level == "ok"
    os.chmod(tmp_path / "jobs.db", 0o644)

    found = await finding(app, "access")

    assert (found.level, found.advice) == ("warn", f"chmod 600 {tmp_path}/jobs.db")
    assert "644" in found.says


@pytest.mark.parametrize(("kind", "level"), [("nfs4", "bad"), ("tmpfs", "warn"), ("ext4", "ok"), (None, "ok")])
async def test_a_file_system_that_cannot_keep_it_is_found(
    app: Backstay, monkeypatch: pytest.MonkeyPatch, kind: str | None, level: str
) -> None:
    monkeypatch.setattr(connection, "file_system", lambda path: kind)

    found = await finding(app, "file system")

    assert found.level == level
    assert (kind or "unknown") in found.says
    assert bool(found.advice) == (level != "ok")


@pytest.mark.parametrize(("free_mib", "level"), [(1, "bad"), (500, "warn"), (50_000, "ok")])
async def test_a_disk_that_fills_up_is_found(
    app: Backstay, monkeypatch: pytest.MonkeyPatch, free_mib: int, level: str
) -> None:
    usage = shutil._ntuple_diskusage(100_000 * 2**20, 0, free_mib * 2**20)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    found = await finding(app, "disk space")

    assert (found.level, bool(found.advice)) == (level, level != "ok")
    assert f"{free_mib:,} MiB" in found.says


async def test_a_write_ahead_log_that_grows_is_found(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    await app.submit("work", 1)
    assert (await finding(app, "WAL")).level == "ok"
    monkeypatch.setattr(maintenance, "WAL_BYTES_WARN", 0)

    found = await finding(app, "WAL")

    assert (found.level, found.advice) == ("warn", "find and end that reader")


async def test_a_reserve_that_was_spent_is_found(app: Backstay, tmp_path: Path) -> None:
    assert (await finding(app, "reserve")).level == "ok"
    (tmp_path / "jobs.db.reserve").unlink()

    assert (await finding(app, "reserve")).level == "warn"


_ENDED = "INSERT INTO ended (seq, status, attempt, failures, version, completed_at) SELECT seq, 'cancelled', 0, 0, 2, 1"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DELETE FROM ready WHERE job_id = :id", "1 has no place"),
        (f"{_ENDED} FROM ready WHERE job_id = :id", "1 has several places"),
        ("UPDATE ready SET priority = priority + 1 WHERE job_id = :id", "1 has a place out of order"),
        ("DELETE FROM job WHERE job_id = :id", "1 place has no job"),
    ],
)
async def test_a_job_that_does_not_have_one_place_is_found(
    app: Backstay, tmp_path: Path, change: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await app.submit_many([("work", n) for n in range(3)])
    monkeypatch.setattr(maintenance, "PLACES_CHECKED_MAX", 3)
    assert (await finding(app, "places")).level == "ok"
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.execute(change, {"id": jobs[0].job_id})
    connection.close()

    found = await finding(app, "places")

    assert (found.level, "restore a whole backup" in found.advice) == ("bad", True)
    assert says in found.says
    assert (jobs[0].job_id in found.says) == ("no job" not in says)


async def test_a_second_place_of_a_job_that_is_older_than_those_that_are_looked_at_is_found(
    app: Backstay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, *_ = await app.submit_many([("work", n) for n in range(9)])
    monkeypatch.setattr(maintenance, "PLACES_CHECKED_MAX", 2)
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.execute(f"{_ENDED} FROM ready WHERE job_id = ?", (old.job_id,))
    connection.close()

    assert f"1 has several places ({old.job_id} among them)" in (await finding(app, "places")).says


@pytest.mark.parametrize("place", ["ready", "later", "waiting"])
async def test_a_place_whose_job_is_gone_is_found(app: Backstay, tmp_path: Path, place: str) -> None:
    await app.submit("work", 1)
    later = await app.submit("work", 2, delay=60)
    await app.submit("work", 3, depends_on=[later.job_id])
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.execute(f"DELETE FROM job WHERE seq IN (SELECT seq FROM {place})")
    connection.close()

    found = await finding(app, "places")

    assert found.level == "bad"
    assert "1 place has no job" in found.says


async def test_a_job_without_a_place_is_named_with_what_to_do(app: Backstay, tmp_path: Path) -> None:
    job = await app.submit("work", 1)
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.execute("DELETE FROM ready")
    connection.close()

    for call in (app.get(job.job_id), app.find(), app.cancel(job.job_id)):
        with pytest.raises(StoreError, match=f'job {job.job_id} has no place.*run "backstay doctor"'):
            await call


async def test_a_schema_of_another_release_is_found(app: Backstay, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = migrations()[-1][0]
    monkeypatch.setattr(maintenance, "migrations", lambda: [(newest + 1, "later", "")])

    found = await finding(app, "schema")

    assert (found.level, found.advice) == ("bad", 'run "backstay migrate"')
    assert f"version {newest}" in found.says


async def test_a_damaged_file_is_found(make_app: Callable[..., Backstay], tmp_path: Path) -> None:
    async with make_app() as app:
        assert (await finding(app, "integrity")).level == "ok"
        root, size = await app.store._read(_page_of_an_index)  # type: ignore[attr-defined]
    with (tmp_path / "jobs.db").open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)

    async with make_app() as app:
        found = await finding(app, "integrity")

    assert (found.level, found.advice) == ("bad", "stop the workers and restore a backup")
    assert found.says


def _page_of_an_index(database: apsw.Connection) -> tuple[int, int]:
    [(root,)] = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'job_subject'")
    return root, database.pragma("page_size")


# Jobs, workers, queues and schedules


async def test_no_worker_at_all_is_found(app: Backstay) -> None:
    found = await finding(app, "workers")

    assert (found.level, "backstay worker" in found.advice) == ("warn", True)


async def test_a_silent_worker_is_found(app: Backstay, clock: ManualClock) -> None:
    await heard_of(app)
    clock.advance(LEASE)
    assert (await finding(app, "workers")).level == "ok"
    clock.advance(1)

    found = await finding(app, "workers")

    assert found.level == "warn"
    assert "1 of 1 not heard from" in found.says and "elsewhere" in found.says


async def test_a_worker_with_a_longer_lease_is_not_silent_so_soon(app: Backstay, clock: ManualClock) -> None:
    await heard_of(app, lease_micros=600_000_000)
    await app.submit("work", 1)
    clock.advance(5 * LEASE)

    assert (await finding(app, "workers")).level == "ok"
    assert (await finding(app, "types")).level == "ok"


@pytest.mark.parametrize("factor", [0.5, 1, 2], ids=["shorter", "same", "longer"])
async def test_everyone_agrees_when_a_worker_is_silent(app: Backstay, clock: ManualClock, factor: float) -> None:
    """Its own lease decides, for doctor and explain as for the command line, the dashboard and the metrics."""
    await heard_of(app, lease_micros=round(factor * LEASE * 1_000_000))
    job_id = (await app.submit("work", 1)).job_id

    async def told() -> tuple[str, str, str]:
        [row] = await app.workers()
        state = workers.state_of(row, app.clock.now())
        return (await finding(app, "workers")).level, (await app.explain(job_id)).reason, state

    clock.advance(factor * LEASE)
    assert await told() == ("ok", "in_line", "idle")
    clock.advance(0.001)
    assert await told() == ("warn", "no_worker", "silent")


async def test_a_thread_that_does_not_stop_is_found(app: Backstay) -> None:
    await heard_of(app, stuck=("some-job",))

    found = await finding(app, "workers")

    assert (found.level, "ctx.cancelled" in found.advice) == ("warn", True)


async def test_a_worker_whose_event_loop_is_blocked_is_found_with_the_handler_that_blocks_it(
    app: Backstay, clock: ManualClock
) -> None:
    await heard_of(app, blocked=BlockedLoop(app.clock.now(), "resize", "some-job", "/srv/shop/jobs.py:7 in resize"))
    clock.advance(40)
    await app.submit("work", 1)

    found = await finding(app, "workers")

    assert found.level == "bad"
    assert "has been blocked for 40 s by resize job some-job, at /srv/shop/jobs.py:7 in resize" in found.says
    assert (await finding(app, "types")).level != "ok"  # it takes no jobs


@pytest.mark.parametrize(("ahead", "level"), [(1, "ok"), (10, "warn"), (100, "bad")])
async def test_a_clock_that_is_ahead_is_found(app: Backstay, ahead: int, level: str) -> None:
    await heard_of(app, heartbeat_at=app.clock.now() + ahead * 1_000_000)

    found = await finding(app, "clock")

    assert (found.level, "NTP" in found.advice) == (level, level != "ok")


async def test_a_claim_that_ran_out_is_found(app: Backstay, clock: ManualClock) -> None:
    await app.submit("work", 1)
    request = ClaimRequest("ghost", "1", ("default",), {"work": 1}, 1, round(LEASE * 1_000_000), "token")
    await app.store.claim(request, clock.now())
    assert (await finding(app, "leases")).level == "ok"
    clock.advance(LEASE + 1)

    found = await finding(app, "leases")

    assert (found.level, found.says) == ("warn", "1 expired; their jobs are waiting to be rescued")


async def test_jobs_that_wait_to_run_alone_are_counted(app: Backstay, clock: ManualClock) -> None:
    assert (await finding(app, "lost jobs")).level == "ok"
    for number in range(3):
        await app.submit("work", number, max_attempts=2)
    await lose(app, "default", "work", 3)

    found = await finding(app, "lost jobs")

    assert (found.level, found.says[:2]) == ("warn", "3 ")


async def test_a_type_that_no_live_worker_takes_is_found(app: Backstay, clock: ManualClock) -> None:
    await app.submit("work", 1)
    await app.submit("work", 2, queue="elsewhere")
    assert "work in default (1)" in (await finding(app, "types")).says
    await heard_of(app)

    found = await finding(app, "types")
    assert (found.level, found.says) == ("warn", "no live worker handles work in elsewhere (1)")

    await heard_of(app, stopping=True)
    assert "work in default (1)" in (await finding(app, "types")).says


@pytest.mark.parametrize("row", ["", "{", "{}", '{"worker_id": 7}', "[1]", "null"])
async def test_a_worker_whose_row_cannot_be_read_is_found_and_hides_no_other(app: Backstay, row: str) -> None:
    await heard_of(app, worker_id="sound")
    await heard_of(app, worker_id="spoilt")
    await app.store._write(  # type: ignore[attr-defined]
        "spoil",
        lambda tx: tx.connection.execute("UPDATE worker SET details = ? WHERE worker_id = 'spoilt'", (row,)),
        essential=False,
    )
    await app.submit("work", 1)

    found = await finding(app, "workers")

    assert (found.level, "spoilt" in found.says) == ("warn", True)
    assert (await finding(app, "types")).level == "ok"  # the other takes it


async def test_a_paused_queue_is_found_with_who_did_it_and_what_waits(app: Backstay) -> None:
    await app.pause_queue("default", by="ada")
    await app.submit("work", 1)
    await app.submit("work", 2, fairness_key="tenant")

    found = await finding(app, "queues")

    assert (found.level, found.says) == ("warn", "paused: default (by ada, 2 pending)")
    assert "resume" in found.advice


async def test_jobs_that_are_past_their_time_are_found(app: Backstay, clock: ManualClock) -> None:
    await app.submit("work", 1, delay=30)
    clock.advance(30 + LEASE)
    assert (await finding(app, "due jobs")).level == "ok"
    clock.advance(1)

    found = await finding(app, "due jobs")

    assert (found.level, found.says) == ("warn", "work has been overdue since 12:00:30 UTC")


async def test_a_missed_tick_is_found(app: Backstay, clock: ManualClock) -> None:
    await app.schedule("hourly", "@hourly", "work")
    await app.schedule("paused", "@hourly", "work")
    await app.pause_schedule("paused")
    clock.advance(3600 + LEASE)
    assert (await finding(app, "schedules")).level == "ok"
    clock.advance(1)

    found = await finding(app, "schedules")

    assert (found.level, found.says) == ("warn", "hourly missed its tick at 2030-01-01 13:00 UTC")


async def test_a_late_schedule_is_found_among_thousands_without_reading_them_all(
    app: Backstay, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SCHEDULES_AHEAD", 3)
    for number in range(9):
        await app.schedule(f"daily-{number}", "@daily", "work")
    store = RowsRead.of(app)
    assert (await finding(app, "schedules")).says == "none behind of the 3 that run next"
    await app.schedule("hourly", "@hourly", "work")
    clock.advance(3600 + LEASE + 1)

    found = await finding(app, "schedules")

    assert (found.level, found.says) == ("warn", "hourly missed its tick at 2030-01-01 13:00 UTC")
    assert store.schedules_read <= 2


async def test_a_schedule_that_a_wrong_clock_has_moved_on_is_found(app: Backstay, clock: ManualClock) -> None:
    await app.schedule("hourly", "@hourly", "work")
    clock.set(NOON + timedelta(days=1))
    async with app.worker(queues=["elsewhere"]):

        async def moved_on() -> bool:
            return (await app.schedules())[0].last_at is not None

        await eventually(moved_on)
    clock.set(NOON)

    found = await finding(app, "schedules")

    assert (found.level, "wrong clock" in found.says) == ("warn", True)
    await app.pause_schedule("hourly")
    await app.resume_schedule("hourly")
    assert (await finding(app, "schedules")).level == "ok"


async def test_a_rule_that_can_no_longer_be_read_is_found(app: Backstay) -> None:
    await app.schedule("hourly", "@hourly", "work")
    await app.store._write(  # type: ignore[attr-defined]
        "spoil", lambda tx: tx.connection.execute("UPDATE schedule SET timezone = 'Nowhere'"), essential=False
    )

    found = await finding(app, "schedules")

    assert found.level == "bad"
    assert "hourly" in found.says and "save it again" in found.advice


async def test_a_pending_type_that_nobody_takes_for_a_lease_is_bad(app: Backstay, clock: ManualClock) -> None:
    await app.submit("work", 1)
    assert (await finding(app, "types")).level == "warn"

    clock.advance(LEASE + 1)

    assert (await finding(app, "types")).level == "bad"


async def test_a_worker_whose_process_is_gone_is_not_taken_for_alive(app: Backstay) -> None:
    ended = await asyncio.create_subprocess_exec("sleep", "60")
    key = f"{workers._machine()}:{ended.pid}:{workers._started(ended.pid)}"
    ended.kill()
    await ended.wait()
    await heard_of(app, process_key=key)

    found = await finding(app, "workers")

    assert (found.level, found.says) == ("warn", "none are alive; 1 died")
    assert [queue.workers for queue in await app.queues()] == [0]


async def test_live_workers_that_do_not_read_the_newest_payloads_are_found(
    app: Backstay, make_app: Callable[..., Backstay]
) -> None:
    newer = make_app()

    @newer.job("work", version=2)
    async def work(payload: Any) -> None: ...

    async with newer:
        await newer.submit("work", 1)
    await heard_of(app, versions={"work": 1})

    found = await finding(app, "versions")

    assert (found.level, found.says) == ("warn", "live workers read work up to 1 of 2")


async def test_older_code_does_not_take_back_what_newer_code_has_announced(make_app: Callable[..., Backstay]) -> None:
    async def work(payload: Any) -> None: ...

    for version in (2, 1):
        app = make_app()
        app.job("work", version=version)(work)
        async with app:
            announced = await app.store.job_types()

    assert [each.version for each in announced] == [2]


async def test_a_place_for_files_that_cannot_be_used_is_bad(make_app: Callable[..., Backstay], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, where a folder was meant")
    async with make_app(artifacts=f"file://{tmp_path}/taken") as app:
        found = await finding(app, "files")

    assert (found.level, bool(found.advice)) == ("bad", True)
    assert f"{tmp_path}/taken is not writable" in found.says


async def test_jobs_that_wait_for_one_another_are_found(app: Backstay, clock: ManualClock) -> None:
    @app.job("family")
    async def family(payload: str, ctx: Context) -> None:
        await ctx.submit("work", None, depends_on=[payload])
        await ctx.wait_for_children()

    elsewhere = ids.new_id(app.clock.now())
    parent = await app.submit("family", elsewhere)
    await app.submit("work", None, job_id=elsewhere, depends_on=[parent])
    await drain(app)
    assert (await finding(app, "waiting")).level == "ok"
    clock.advance(25 * 3600)
    found = await finding(app, "waiting")
    assert found.level == "bad" and f"→ family {parent.job_id}; cancel one of them" in found.says
    await app.cancel(elsewhere)
    await drain(app)
    assert (await finding(app, "waiting")).level == "ok"
