"""Every change by a person or program is in the audit trail, once, whichever face it came through."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from backstay import Actor, Backstay, IllegalTransition, InvalidOption, JobNotFound, StoreMoved
from backstay.core.access_keys import VIA
from backstay.core.dumps import FROM, SEALED, MoveState
from backstay.core.records import AuditEntry
from backstay.sync import Backstay as SyncBackstay

HERE = f"{getpass.getuser()}@{socket.gethostname()}"
Change = Callable[[Backstay, str], Awaitable[Any]]


@pytest.fixture
def app(tmp_path: Path) -> Backstay:
    return sample(Backstay(f"sqlite:///{tmp_path}/jobs.db"))


def sample(app: Backstay) -> Backstay:
    @app.job("mail", queue="post")
    async def mail(payload: str) -> None: ...

    mail.sensitive = ("/once",)  # as earlier code had it
    return app


async def actions(app: Backstay) -> list[str]:
    return [entry.action for entry in reversed(await app.audit_trail())]


CHANGES: dict[str, Change] = {
    "job.cancel": lambda app, job_id: app.cancel(job_id),
    "job.retry": lambda app, job_id: app.retry(job_id),
    "job.rerun": lambda app, job_id: app.rerun(job_id),
    "job.patch": lambda app, job_id: app.reprioritise(job_id, 9),
    "jobs.bulk_cancel": lambda app, _: app.cancel_many(job_type="mail"),
    "jobs.bulk_retry": lambda app, job_id: app.retry_many([job_id]),
    "dead.retry": lambda app, _: app.retry_dead(),
    "jobs.purge": lambda app, _: app.purge(),
    "queue.pause": lambda app, _: app.pause_queue("post"),
    "queue.resume": lambda app, _: app.resume_queue("post"),
    "queue.limit": lambda app, _: app.limit_queue("post", 5),
    "type.unmark": lambda app, _: app.unmark_sensitive("mail", "/once"),
    "schedule.put": lambda app, _: app.schedule("daily", "@daily", "mail", "x"),
    "schedule.pause": lambda app, _: app.pause_schedule("daily"),
    "schedule.resume": lambda app, _: app.resume_schedule("daily"),
    "schedule.run": lambda app, _: app.run_schedule("daily"),
    "schedule.delete": lambda app, _: app.unschedule("daily"),
    "key.create": lambda app, _: app.create_key("ci", ["admin"]),
}
ORDER = [
    "job.patch", "job.cancel", "job.retry", "jobs.bulk_cancel", "jobs.bulk_retry", "job.cancel", "job.rerun",
    *(each for each in CHANGES if not each.startswith("job")), "jobs.purge",
]  # fmt: skip


async def test_each_change_from_python_leaves_one_entry_with_the_user_and_host(app: Backstay) -> None:
    async with app:
        job = await app.submit("mail", "x")
        for action in ORDER:
            await CHANGES[action](app, job.job_id)
        trail = await app.audit_trail()
        assert [entry.action for entry in reversed(trail)] == ORDER
        assert {(entry.by, entry.via, entry.outcome) for entry in trail} == {(HERE, "python", "ok")}
        assert (await app.history(job.job_id))[-1].by == HERE


async def test_the_trail_says_what_by_says_and_so_does_the_history(app: Backstay) -> None:
    async with app:
        job = await app.submit("mail", "x")
        await app.cancel(job.job_id, by="ada", reason="not needed")
        await app.retry(job.job_id, by=Actor("bob", via="http", remote="10.0.0.7"))
        retried, cancelled = await app.audit_trail()
        assert (cancelled.by, cancelled.via, cancelled.remote) == ("ada", "python", None)
        assert (cancelled.before["status"], cancelled.after["status"]) == ("pending", "cancelled")
        assert (retried.by, retried.via, retried.remote) == ("bob", "http", "10.0.0.7")
        assert [entry.by for entry in (await app.history(job.job_id))[-2:]] == ["ada", "bob"]


@pytest.mark.parametrize("by", ["", "x" * 129, "nul\0", 7, Actor("")], ids=repr)
async def test_a_name_that_cannot_be_stored_is_refused_before_anything_changes(app: Backstay, by: Any) -> None:
    async with app:
        job = await app.submit("mail", "x")
        with pytest.raises(InvalidOption, match="by"):
            await app.cancel(job.job_id, by=by)
        assert (await app.get(job.job_id)).status == "pending"
        assert await app.audit_trail() == []


async def test_a_refused_change_is_in_the_trail_with_its_error(app: Backstay) -> None:
    async with app:
        job = await app.submit("mail", "x")
        await app.cancel(job.job_id)
        with pytest.raises(IllegalTransition):
            await app.cancel(job.job_id)
        with pytest.raises(JobNotFound):
            await app.cancel("019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c")
        with pytest.raises(InvalidOption):
            await app.limit_queue("post", 0)
        assert [(entry.action, entry.outcome) for entry in await app.audit_trail()] == [
            ("queue.limit", "InvalidOption"),
            ("job.cancel", "JobNotFound"),
            ("job.cancel", "IllegalTransition"),
            ("job.cancel", "ok"),
        ]


async def test_a_submit_and_the_work_on_a_job_leave_no_entry(app: Backstay) -> None:
    async with app, app.worker():
        await (await app.submit("mail", "x")).result(timeout=30)
        assert await app.audit_trail() == []


async def test_an_app_that_defines_its_schedules_at_every_start_writes_nothing_the_second_time(app: Backstay) -> None:
    for _ in range(2):
        async with app:
            await app.schedule("daily", "@daily", "mail", "x")
    async with app:
        assert await actions(app) == ["schedule.put"]


async def test_a_purge_at_the_start_is_not_a_change_by_anyone(tmp_path: Path) -> None:
    async with Backstay(f"sqlite:///{tmp_path}/jobs.db", purge_on_start=True) as app:
        assert await app.audit_trail() == []


async def test_a_queue_that_was_moved_is_read_and_its_schedules_are_defined_as_before(app: Backstay) -> None:
    async with app:
        job = await app.submit("mail", "x")
        await app.schedule("daily", "@daily", "mail", "x")
        for kind in ("", SEALED):
            await app.store.freeze(MoveState(role=FROM, other="sqlite:///new.db", kind=kind, move_id="m"))
    async with app:
        assert (await app.schedule("daily", "@daily", "mail", "x")).name == "daily"
        assert (await app.cancel_many(job_type="mail", dry_run=True)).changed == [job.job_id]
        for change in (app.cancel(job.job_id), app.pause_queue("post"), app.unschedule("daily")):
            with pytest.raises(StoreMoved):
                await change
        assert await actions(app) == ["schedule.put"]


async def test_a_change_that_was_made_is_answered_though_its_outcome_cannot_be_written(
    app: Backstay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with app:
        job = await app.submit("mail", "x")
        audit = app.store.audit

        async def fails(entries: Sequence[AuditEntry]) -> None:
            if entries[0].outcome is not None:
                raise OSError("the disk is on fire")
            await audit(entries)

        monkeypatch.setattr(app.store, "audit", fails)
        assert (await app.cancel(job.job_id)).status == "cancelled"
        assert "could not write the outcome of job.cancel to the audit trail: OSError: the disk" in caplog.text


def test_the_blocking_face_leaves_the_same_entries(tmp_path: Path) -> None:
    with SyncBackstay(f"sqlite:///{tmp_path}/jobs.db") as app:
        app.pause_queue("post")
        app.resume_queue("post", by="ada")
        assert [(entry.by, entry.via) for entry in app.audit_trail()] == [("ada", "python"), (HERE, "python")]


def test_every_place_that_names_a_face_names_one_of_the_trail() -> None:
    source = Path(__file__).parents[2] / "src/backstay"

    def named() -> Iterator[str]:
        for path in source.rglob("*.py"):
            yield from re.findall(r'via="(\w+)"', path.read_text(encoding="utf-8"))

    assert set(named()) <= set(VIA)
