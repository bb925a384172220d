"""Many jobs cancelled or retried at once: by id or by a search, counted first, within a bound, with every refusal."""

from __future__ import annotations

import contextlib
import secrets
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backstay import Actor, Backstay, InvalidOption, JobNotFound, VersionConflict, limits
from backstay.cli import app_loader
from backstay.clock import to_datetime
from backstay.core.records import Transition, Verdict
from backstay.ops import edit

NOT_THERE = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Backstay]:
    async with sample(Backstay(f"sqlite:///{tmp_path}/jobs.db")) as app:
        yield app


def sample(app: Backstay) -> Backstay:
    @app.job("mail", queue="post")
    async def mail(payload: int) -> None: ...

    @app.job("other")
    async def other(payload: int) -> None: ...

    return app


async def mails(app: Backstay, count: int) -> list[str]:
    return [job.job_id for job in await app.submit_many([("mail", n) for n in range(count)])]


async def statuses(app: Backstay, job_ids: list[str]) -> list[str]:
    return [job.status.value for job in await app.get_many(job_ids) if job is not None]


async def test_jobs_are_cancelled_by_id_and_each_refusal_has_its_reason(app: Backstay) -> None:
    first, second, third = await mails(app, 3)
    await app.cancel(second)

    found = await app.cancel_many([first, second, first, NOT_THERE, third], by="ada", reason="not today")

    assert found.changed == [first, third]
    assert {(each.job_id, each.job_type, each.why) for each in found.refused} == {
        (second, "mail", "it is already cancelled"),
        (NOT_THERE, None, "no such job"),
    }
    assert (found.by_status, found.more, found.dry_run) == ({"pending": 2}, False, False)
    last = (await app.history(first))[-1]
    assert (last.by, last.reason) == ("ada", "not today")


async def test_a_search_takes_the_conditions_of_find_and_leaves_other_jobs_alone(app: Backstay) -> None:
    job_ids = await mails(app, 3)
    other = await app.submit("other", 1)
    later = await app.submit("mail", 9, delay=60, subject="later")

    assert (await app.cancel_many(job_type="mail", subject="later")).changed == [later.job_id]
    assert sorted((await app.cancel_many(queue="post")).changed) == sorted(job_ids)
    assert await statuses(app, [other.job_id]) == ["pending"]
    assert sorted((await app.retry_many(job_type="mail", status="cancelled")).changed) == sorted(
        [*job_ids, later.job_id]
    )


async def test_one_bulk_change_is_one_entry_in_the_trail(app: Backstay) -> None:
    job_ids = await mails(app, 250)
    await app.cancel_many(job_type="mail", status="pending", by="ada")

    [entry] = await app.audit_trail()
    assert (entry.action, entry.target, entry.by) == ("jobs.bulk_cancel", "jobs status:pending job_type:mail", "ada")
    assert entry.before["asked"] == len(job_ids)
    assert (len(entry.before["ids"]), entry.before["ids_left_out"]) == (100, 150)
    assert entry.after == {"done": len(job_ids), "refused": {}}


async def test_the_trail_says_until_when_and_why_jobs_were_changed(app: Backstay) -> None:
    job_ids = await mails(app, 1)
    await app.cancel_many(created_until=datetime(2100, 1, 1, tzinfo=UTC), reason="not today")

    [entry] = await app.audit_trail()
    assert entry.target == "jobs created_until:2100-01-01T00:00:00+00:00"
    assert entry.before == {"asked": 1, "ids": job_ids, "reason": "not today"}


async def test_the_longest_reason_leaves_room_for_the_ids(app: Backstay) -> None:
    await mails(app, 150)
    await app.cancel_many(job_type="mail", reason="\x01" * limits.REASON_LENGTH_MAX)
    [entry] = await app.audit_trail()
    assert len(entry.before["ids"]) == 100


async def test_a_bulk_change_that_changes_nothing_has_an_entry_that_says_so(app: Backstay) -> None:
    [ended] = await mails(app, 1)
    await app.cancel_many([ended])
    await app.cancel_many([ended, NOT_THERE])
    await app.cancel_many(job_type="mail")

    search, by_id, _ = await app.audit_trail()
    assert (search.outcome, search.before, search.after) == ("ok", {"asked": 0, "ids": []}, {"done": 0, "refused": {}})
    assert (by_id.outcome, by_id.target, by_id.before) == ("ok", "2 jobs", {"asked": 2, "ids": [ended, NOT_THERE]})
    assert by_id.after == {"done": 0, "refused": {"it is already cancelled": 1, "no such job": 1}}


async def test_a_dry_run_says_what_would_happen_and_changes_nothing(app: Backstay) -> None:
    job_ids = await mails(app, 2)

    planned = await app.cancel_many(job_type="mail", dry_run=True)

    assert (sorted(planned.changed), planned.by_status, planned.dry_run) == (sorted(job_ids), {"pending": 2}, True)
    assert await statuses(app, job_ids) == ["pending", "pending"]
    assert await app.audit_trail() == []


async def test_a_search_is_bounded_and_says_that_more_jobs_match(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BULK_MAX", 3)
    monkeypatch.setattr(limits, "BULK_STEP", 2)
    job_ids = await mails(app, 5)

    first = await app.cancel_many(job_type="mail")
    rest = await app.cancel_many(job_type="mail")

    assert (len(first.changed), first.more, len(rest.changed), rest.more) == (3, True, 2, False)
    with pytest.raises(InvalidOption, match="BULK_MAX"):
        await app.cancel_many(job_ids)


async def test_jobs_that_were_submitted_later_are_left_alone(app: Backstay) -> None:
    [early] = await mails(app, 1)
    until = to_datetime((await app.get(early)).row.created_at)
    await mails(app, 1)

    assert (await app.cancel_many(created_until=until)).changed == [early]


async def test_completed_jobs_are_retried_only_if_they_are_asked_for(app: Backstay) -> None:
    job_ids = await mails(app, 2)
    async with app.worker():
        for job_id in job_ids:
            await app.result(job_id, timeout=30)

    assert (await app.retry_many(job_type="mail")).changed == []
    assert sorted((await app.retry_many(job_type="mail", status="completed")).changed) == sorted(job_ids)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"job_type": None},
        {"job_ids": [NOT_THERE], "job_type": "mail"},
        {"job_ids": NOT_THERE},
        {"job_ids": ["x"]},
        {"order": "priority", "job_type": "mail"},
        {"status": "faild"},
        {"job_type": "mail", "reason": ""},
        {"job_type": "mail", "reason": "x" * 99_999},
        {"created_until": "today"},
        {"job_ids": [NOT_THERE[:-4] + f"{n:04x}" for n in range(limits.BULK_MAX + 1)]},
    ],
    ids=lambda options: str(options)[:60],
)
async def test_what_cannot_be_meant_is_refused_and_changes_nothing(app: Backstay, options: dict[str, Any]) -> None:
    job_ids = await mails(app, 1)
    with pytest.raises(InvalidOption):
        await app.cancel_many(**options)
    assert await statuses(app, job_ids) == ["pending"]
    [entry] = await app.audit_trail()
    assert (entry.action, entry.outcome) == ("jobs.bulk_cancel", "InvalidOption")
    with pytest.raises(InvalidOption):
        await app.cancel_many(dry_run=True, **options)
    assert len(await app.audit_trail()) == 1


async def test_an_actor_with_queues_changes_jobs_of_these_queues_only(app: Backstay) -> None:
    job_ids = await mails(app, 2)
    other = await app.submit("other", 1)
    actor = Actor("ada", queues=("po*",))

    found = await app.cancel_many([*job_ids, other.job_id], by=actor)
    assert found.changed == job_ids
    assert [each.why for each in found.refused] == ["no such job"]
    assert (await app.cancel_many(status="pending", by=actor)).changed == []
    assert await statuses(app, [other.job_id]) == ["pending"]


# Memory

LARGE = 100_000
PAGES_HELD = 2.5 * 100 * LARGE  # a page, a copy of it while it is read, and a little


@pytest.fixture
async def large(app: Backstay) -> Backstay:
    @app.job("large")
    async def run(payload: str) -> None: ...

    for _ in range(5):
        await app.submit_many([("large", "x" * LARGE)] * 100)
    return app


@pytest.mark.parametrize(
    "read",
    [
        lambda app: app.cancel_many(job_type="large", dry_run=True),
        lambda app: app.cancel_many(job_type="large"),
        lambda app: app_loader.job_id(app, "abcdefabcdef"),
    ],
    ids=["dry run", "change", "search for a part of an id"],
)
async def test_payloads_are_in_memory_for_a_page_at_a_time(
    large: Backstay, read: Callable[[Backstay], Awaitable[Any]]
) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(JobNotFound):
            await read(large)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < PAGES_HELD


# Races


def interfere(app: Backstay, monkeypatch: pytest.MonkeyPatch, change: Callable[[], Awaitable[Any]], times: int) -> None:
    """Someone else changes jobs between the read and the write, so many times."""
    apply, left = app.store.apply, [times]

    async def late(transitions: list[Transition], now: int) -> list[Verdict]:
        if left[0]:
            left[0] -= 1
            monkeypatch.setattr(app.store, "apply", apply)
            await change()
            monkeypatch.setattr(app.store, "apply", late)
        return await apply(transitions, now)

    monkeypatch.setattr(app.store, "apply", late)


async def test_a_job_that_changes_meanwhile_is_read_again_and_one_that_ended_is_left(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await mails(app, 2)

    async def change() -> None:
        await app.reprioritise(first, 99)
        await app.cancel(second)

    interfere(app, monkeypatch, change, times=1)
    found = await app.cancel_many([first, second], by="anna")

    assert found.changed == [first]
    assert [each.why for each in found.refused] == ["it is already cancelled"]
    assert (await app.history(first))[-1].by == "anna"


async def test_a_dead_letter_that_completed_meanwhile_is_not_run_again(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = await mails(app, 1)
    await app.cancel(job_id)

    async def change() -> None:
        await app.retry(job_id)
        async with app.worker():
            await app.result(job_id, timeout=30)

    interfere(app, monkeypatch, change, times=1)
    found = await app.retry_many(job_type="mail")

    assert (found.changed, [each.why for each in found.refused]) == ([], ["it is already completed"])


async def test_a_job_that_keeps_changing_is_reported_after_a_fixed_number_of_tries(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = await mails(app, 1)
    places = iter(range(1_000))

    async def change() -> None:
        await app.reprioritise(job_id, next(places) % 100)

    interfere(app, monkeypatch, change, times=2 * edit.TRIES)
    found = await app.cancel_many([job_id])
    assert [each.why for each in found.refused] == ["it kept changing while being updated: try again"]
    with pytest.raises(VersionConflict, match="kept changing"):
        await app.cancel(job_id)
    assert (await app.cancel(job_id)).status == "cancelled"


# On the other engines


@pytest.mark.parametrize("engine", ["postgres", "dynamodb"])
async def test_a_server_does_the_same_with_one_entry(request: pytest.FixtureRequest, engine: str) -> None:
    server = request.getfixturevalue(engine)
    place = {"schema": f"bulk_{secrets.token_hex(3)}"} if engine == "postgres" else {}
    async with sample(Backstay(server.url(**place))) as app:
        job_ids = await mails(app, 3)
        planned = await app.cancel_many(job_type="mail", dry_run=True)
        done = await app.cancel_many([*job_ids, NOT_THERE], by="ada")
        again = await app.retry_many(job_type="mail", by="ada")

        assert sorted(planned.changed) == sorted(done.changed) == sorted(again.changed) == sorted(job_ids)
        assert done.reasons == {"no such job": 1}
        assert await statuses(app, job_ids) == ["pending"] * 3
        assert [(entry.action, entry.by, entry.via) for entry in await app.audit_trail()] == [
            ("jobs.bulk_retry", "ada", "python"),
            ("jobs.bulk_cancel", "ada", "python"),
        ]
