"""A later submit replaces a job that waits, a job expires, and a job is removed for good, with what it left behind."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from backstay import (
    Backstay,
    ConfigurationError,
    Context,
    DedupConflict,
    IllegalTransition,
    InvalidOption,
    InvalidPayload,
    JobNotFound,
    VersionConflict,
)
from backstay.testing import ManualClock

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Document(BaseModel):
    document: int
    text: str = ""


def with_index(app: Backstay, **options: Any) -> Any:
    @app.job("index", **options)
    async def index(payload: Document) -> str:
        return payload.text

    return index


# Replace


async def test_ten_saves_are_one_job_with_the_last_text_that_is_due_no_later_than_the_ceiling(make_app: Any) -> None:
    clock = ManualClock(NOON)
    app: Backstay = make_app(clock=clock)
    index = with_index(app, dedup_by=["document"], dedup="replace", debounce_max=timedelta(minutes=5))
    async with app:
        ids, dues = set(), []
        for number in range(10):
            job = await index.submit({"document": 7, "text": str(number)}, delay=60)
            ids.add(job.job_id)
            dues.append((await job.record()).scheduled_for)
            clock.advance(40)
        other = await index.submit({"document": 8}, delay=60)
        record = await app.get(ids.pop())
    assert ids == set() and other.job_id != record.job_id
    assert record.payload == {"document": 7, "text": "9"}
    assert dues == [NOON + min(timedelta(seconds=40 * number + 60), timedelta(minutes=5)) for number in range(10)]


async def test_a_key_of_payload_fields_is_the_same_wherever_it_is_declared(app: Backstay) -> None:
    index = with_index(app)
    async with app:
        first = await index.submit({"document": 7, "text": "a"}, dedup_by=["document"])
        again = await app.submit("index", {"document": 7, "text": "b"}, dedup_by=("document",))
        both = await index.submit({"document": 7, "text": "a"}, dedup_by=["document", "text"])
    assert (again.job_id, first.dedup_key) == (first.job_id, "index:7")
    assert both.job_id != first.job_id


async def test_what_does_not_go_together_is_refused_in_a_sentence(app: Backstay) -> None:
    index = with_index(app)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"dedup": "replace"}, "needs a dedup_key or dedup_by"),
        ({"dedup": "replace", "dedup_key": "k", "content_hash": "h"}, "exclude each other"),
        ({"dedup": "shout", "dedup_key": "k"}, "return, error or replace"),
        ({"dedup_key": "k", "dedup_by": ["document"]}, "give one"),
        ({"dedup_by": ["size"]}, "no field 'size'"),
        ({"dedup_by": "document"}, "use a list of fields"),
        ({"dedup_key": "k", "debounce_max": 5}, 'needs dedup="replace"'),
        ({"dedup_key": "k", "dedup": "replace", "delay": 60, "debounce_max": 5}, "shorter than the delay"),
        ({"expires": 0}, "never run"),
        ({"expires": 60, "delay": 60}, "never run"),
        ({"expires": NOON.replace(tzinfo=None)}, "expires="),
    ]
    async with app:
        for options, words in refused:
            with pytest.raises(InvalidOption, match=words):
                await index.submit({"document": 7}, **options)
        await index.submit({"document": 7}, dedup_key="k")
        with pytest.raises(DedupConflict):
            await index.submit({"document": 8}, dedup_key="k", dedup="error")
    for options, words in (
        ({"dedup": "replace"}, "say what is a repeat"),
        ({"dedup_by": ["document"], "dedup": "replace", "reuse_by": ["text"]}, "exclude each other"),
        ({"dedup_by": ["document"], "debounce_max": 5}, 'needs dedup="replace"'),
    ):
        with pytest.raises(ConfigurationError, match=words):
            with_index(Backstay("sqlite:///unused.db"), **options)


# Expire


async def test_a_job_that_has_not_started_in_time_is_cancelled_by_a_worker_and_says_why(make_app: Any) -> None:
    app: Backstay = make_app()
    index = with_index(app)
    async with app:
        await app.pause_queue("default")
        job = await index.submit({"document": 7}, expires=0.05)
        async with app.worker(poll_interval=0.05):
            ended = await job.wait(timeout=30)
        assert (ended.status, ended.attempt, ended.expires_at) == ("cancelled", 0, None)
        assert [(each.event, each.reason) for each in ended.history][-1] == ("expire", "expired")
        assert "expired" in str(await app.explain(job.job_id))


async def test_a_job_that_starts_in_time_runs_and_a_late_one_does_not(make_app: Any) -> None:
    clock = ManualClock(NOON)
    app: Backstay = make_app(clock=clock)
    index = with_index(app)
    async with app:
        late = await index.submit({"document": 7, "text": "late"}, expires=NOON + timedelta(minutes=1))
        clock.advance(60)
        in_time = await index.submit({"document": 8, "text": "in time"}, expires=60)
        async with app.worker():
            assert await in_time.result(timeout=30) == "in time"
            assert (await late.wait(timeout=30)).status == "cancelled"


# Update


async def test_a_job_that_waits_runs_with_its_new_payload(app: Backstay) -> None:
    index = with_index(app)
    async with app:
        job = await index.submit({"document": 7, "text": "a"})
        changed = await job.update(Document(document=7, text="b"), by="ada", reason="a typo", expected_version=1)
        assert (changed.version, changed.payload) == (2, {"document": 7, "text": "b"})
        with pytest.raises(VersionConflict):
            await job.update({"document": 7}, expected_version=1)
        with pytest.raises(InvalidPayload, match="document"):
            await job.update({"text": "c"})
        async with app.worker():
            assert await job.result(timeout=30) == "b"
        with pytest.raises(IllegalTransition, match="already ended"):
            await job.update({"document": 7})
        named = await index.submit({"document": 7}, content_hash="h")
        with pytest.raises(IllegalTransition, match="stands for its payload"):
            await named.update({"document": 8})
        [*_, entry] = [each for each in await app.audit_trail() if each.action == "job.update"]
    assert (entry.by, entry.outcome) == ("ada", "ok")
    assert "typo" not in str(entry.before) and "text" not in str(entry.after)


# Remove


async def test_a_removed_job_leaves_one_line_of_the_trail_and_nothing_else(app: Backstay, tmp_path: Path) -> None:
    @app.job("work")
    async def work(payload: dict[str, str], ctx: Context) -> str:
        await ctx.artifact("answer.txt", "classified")
        await ctx.once("step", lambda: "classified")
        ctx.log.info("classified")
        return "classified"

    async with app:
        async with app.worker():
            job = await work.submit({"secret": "classified"}, subject="song", dedup_key="k", dedup_for="forever")
            await job.result(timeout=30)
        await job.remove(by="ada", reason="request 4711")
        with pytest.raises(JobNotFound):
            await app.get(job.job_id)
        with pytest.raises(JobNotFound):
            await job.remove()
        assert await app.find(subject="song") == []
        assert not (await work.submit({"secret": "x"}, dedup_key="k")).deduplicated
        entries = [each for each in await app.audit_trail() if each.action == "job.remove"]
    [again, entry] = entries
    assert (entry.by, entry.target, entry.outcome, entry.before) == ("ada", job.job_id, "ok", None)
    assert entry.after == {"reason": "request 4711"}
    assert again.outcome != "ok"
    left = [path for path in tmp_path.rglob("*") if job.job_id in str(path)]
    assert left == []


async def test_a_job_that_waits_is_cancelled_before_it_is_removed_and_its_dependents_with_it(app: Backstay) -> None:
    index = with_index(app)
    async with app:
        job = await index.submit({"document": 7})
        dependent = await index.submit({"document": 8}, depends_on=[job])
        await app.remove(job.job_id)
        assert (await dependent.record()).status == "cancelled"
        assert (await app.counts())["cancelled"] == 1


async def test_a_job_that_runs_or_has_children_is_not_removed(app: Backstay) -> None:
    @app.job("parent")
    async def parent(payload: None, ctx: Context) -> None:
        await ctx.submit("index", {"document": 1}, at_once=True)

    index = with_index(app)
    started: asyncio.Queue[str] = asyncio.Queue()

    @app.job("long")
    async def long(payload: None, ctx: Context) -> None:
        started.put_nowait(ctx.job_id)
        await asyncio.Event().wait()

    async with app, app.worker():
        job = await long.submit(None)
        await started.get()
        with pytest.raises(IllegalTransition, match="is running: cancel it first"):
            await job.remove()
        await job.cancel()
        above = await parent.submit(None)
        await above.result(timeout=30)
        with pytest.raises(IllegalTransition, match="has children"):
            await above.remove()
        [child] = await app.find(job_type=index.name)
        await app.wait(child.job_id, timeout=30)
        await app.remove(child.job_id)
        await above.remove()
