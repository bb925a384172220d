"""A queue in which there is one of everything, and a judge who knows nothing of how it was moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import msgspec

from backstay import Backoff, Backstay, Cancel, Context
from backstay.core.records import JobRecord
from backstay.files.local import LOG_FILE, StoredFile
from backstay.results.model import ResultRow
from tests.support.eventually import eventually

ENDED = ("completed", "failed", "cancelled")
LARGE = 100_000  # a result that is kept as a file


class Point(ResultRow, table="points", key="number", subject="place", subject_index=True):
    number: int
    place: str
    weight: float
    price: Decimal


def app_at(url: str, **options: Any) -> Backstay:
    app = Backstay(url, **options)

    @app.job("rich", results=[Point])
    async def rich(payload: dict[str, int], ctx: Context) -> dict[str, Any]:
        number = payload["n"]
        ctx.log.info("this is %d", number)
        ctx.metric("size", number)
        await ctx.once("charge", lambda: number)
        await ctx.artifact("plot.txt", f"plot {number}")
        rows = [Point(number=i, place="here", weight=i / 3, price=Decimal("1.50") * i) for i in range(3)]
        await ctx.results(Point).put(rows)
        return {"n": number}

    @app.job("large")
    async def large(payload: Any) -> str:
        return "x" * LARGE

    @app.job("plain")
    async def plain(payload: Any) -> Any:
        return payload

    @app.job("dies", max_attempts=1)
    async def dies(payload: str) -> None:
        raise ValueError(payload)

    @app.job("later", max_attempts=3, backoff=Backoff(base=3000))
    async def later(payload: str) -> None:
        raise LookupError(payload)

    @app.job("stops")
    async def stops(payload: Any) -> None:
        raise Cancel("not wanted")

    @app.job("parent")
    async def parent(payload: int, ctx: Context) -> int:
        for number in range(payload):
            await ctx.submit("child", number)
        return len(await ctx.wait_for_children())

    @app.job("child", queue="children")
    async def child(payload: int) -> int:
        return payload

    @app.job("keyed", global_concurrency=1)
    async def keyed(payload: Any) -> None: ...

    return app


async def fill(app: Backstay, plain: int = 20) -> None:
    """One of everything, and `plain` jobs beside it, half of which have run."""
    async with app:
        await _archived(app)
        await _submit_plain(app, plain // 2)
        for number in range(3):
            await app.submit("rich", {"n": number}, subject="here", tags=["a"], content_hash=f"h{number}", stage="one")
        await app.submit("large", 1, content_hash="large", reuse=True)
        await app.submit("parent", 3)
        for job_type in ("dies", "later", "stops"):
            await app.submit(job_type, "why")
        async with app.worker(concurrency=8, queues=["default"]):  # and nobody for the children
            await eventually(lambda: _quiet(app), seconds=30 + plain / 100)
        await app.submit("large", 2, content_hash="large", reuse=True)  # answered with the other's file
        await _submit_plain(app, plain - plain // 2)
        open_ = await app.submit("plain", "open", priority=1, dedup_key="while active")
        await app.submit("plain", "waits", depends_on=[open_], on_dependency_failure="fail")
        await app.submit("plain", "any", depends_on=[open_], trigger_rule="all_done")
        await app.submit("plain", "due", delay=3600, dedup_key="for ever", dedup_for="forever")
        await app.submit_many([("keyed", n) for n in range(3)])
        await app.pause_queue("mail", by="me", reason="why")
        await app.limit_queue("default", 100_000)
        await app.limit(job_type="plain", concurrency=50, by="me")
        await app.limit(key="a key", rate="100/m", by="me")
        await app.pause_type("paused", by="me", reason="why")
        await app.schedule("nightly", "30 3 * * *", "plain", "good night")
        created = await app.create_key("the shop", ["submit"], queues=["mail*"], by="me")
        for number in range(3):
            async with app.audited("queue.pause", f"q{number}", by="me", via="http", before={"n": number}) as entry:
                entry.after = created.key


async def _submit_plain(app: Backstay, count: int) -> None:
    for start in range(0, count, 5_000):
        await app.submit_many([("plain", {"n": n}) for n in range(start, min(count, start + 5_000))])


async def _archived(app: Backstay) -> None:
    async with app.worker(concurrency=2):
        for job_type in ("rich", "plain"):
            await (await app.submit(job_type, {"n": 7}, dedup_key=f"old {job_type}", dedup_for="forever")).result(
                timeout=30
            )
    await app.purge(older_than=0)


async def _quiet(app: Backstay) -> bool:
    counts = await app.counts()
    waits = [job.status.value for job in await app.find(job_type="parent")]
    return counts["pending"] == 3 and not counts["processing"] and waits == ["waiting"]


async def jobs_of(app: Backstay) -> AsyncIterator[JobRecord]:
    after = None
    while True:
        page = await app.find(after=after, limit=500)
        for job in page:
            yield job.row
        after = page.next
        if after is None:
            return


async def same(old: Backstay, new: Backstay) -> int:
    """Assert that both hold the same; how many jobs that are."""
    async with old, new:
        left, right = [job async for job in jobs_of(old)], [job async for job in jobs_of(new)]
        # SQL engines list jobs as they came in, whatever the clock said then. DynamoDB lists them by the time that it
        # said, and jobs of one instant by their ids.
        if new.url.startswith("dynamodb"):
            assert [job.created_at for job in right] == sorted((job.created_at for job in right), reverse=True)
        else:
            assert [job.created_at for job in right] == [job.created_at for job in left]
        if "dynamodb" in old.url + new.url:
            left, right = sorted(left, key=_arrival), sorted(right, key=_arrival)
        assert [job.job_id for job in right] == [job.job_id for job in left]
        for mine, other in zip(left, right, strict=True):
            assert _without_places(other) == _without_places(mine)
            await _same_files(old, new, mine, other)
        for name in ("old rich", "old plain", "while active", "for ever"):
            assert await _answers_for(new, name) == await _answers_for(old, name)
        assert await new.counts() == await old.counts()
        assert await new.queues() == await old.queues()
        assert await new.store.queues() == await old.store.queues()
        assert await new.store.limits() == await old.store.limits() != []
        assert await new.store.keys() == await old.store.keys() != []
        assert await new.audit_trail() == await old.audit_trail() != []
        assert await new.totals() == await old.totals() != []
        assert await new.store.schedules() == await old.store.schedules()
        assert await new.store.job_types() == await old.store.job_types()
        counted = [(each.minute, each.job_type, each.outcome, each.count) for each in await _counters(old)]
        assert counted
        assert [(each.minute, each.job_type, each.outcome, each.count) for each in await _counters(new)] == counted
        for job in left:
            if job.job_type == "rich":
                assert await new.store.step(job.job_id, "charge") == await old.store.step(job.job_id, "charge")
                rows = await new.results(Point).all(job.job_id)
                assert rows == await old.results(Point).all(job.job_id)
                assert len(rows) == 3
        return len(left)


def _arrival(job: JobRecord) -> tuple[int, str]:
    return job.created_at, job.job_id


async def _counters(app: Backstay) -> list[Any]:
    found = await app.store.counters(0, app.clock.now() + 1)
    return sorted(found, key=lambda each: (each.minute, each.job_type, each.queue, each.priority, each.outcome))


async def _answers_for(app: Backstay, key: str) -> str | None:
    """The job that a dedup key stands for, asked for without making one."""
    guards = await app.store.export("guards", None, 500)
    decoded = [msgspec.msgpack.decode(each) for each in guards.items]
    return next((each["job_id"] for each in decoded if each["dedup_key"] == key), None)


def _without_places(job: JobRecord) -> JobRecord:
    """Where files are, and who is kept out of sight by a key, is each store's own affair."""
    return msgspec.structs.replace(
        job,
        parked=False,
        log_location=None if job.log_location is None else "",
        artifacts=None
        if job.artifacts is None
        else msgspec.json.encode([_what(each) for each in _files(job)]).decode(),
        result_artifact=None if job.result_artifact is None else "",
        dependencies=tuple(sorted(job.dependencies)),
        dependent_jobs=tuple(sorted(job.dependent_jobs)),
    )


def _files(job: JobRecord) -> list[StoredFile]:
    return msgspec.json.decode(job.artifacts, type=list[StoredFile]) if job.artifacts else []


def _what(file: StoredFile) -> tuple[str, str, int]:
    return file.name, file.sha256, file.size


async def _same_files(old: Backstay, new: Backstay, mine: JobRecord, other: JobRecord) -> None:
    for file in _files(mine):
        assert await new.artifact(mine.job_id, file.name) == await old.artifact(mine.job_id, file.name)
    if mine.result_artifact is not None:
        assert await new.result(mine.job_id) == await old.result(mine.job_id) == "x" * LARGE
    if mine.log_location is not None:
        assert old._files is not None and new._files is not None
        text = await asyncio.to_thread(old._files.read_part, mine.job_id, LOG_FILE, 0, 10**6)
        assert text
        assert await asyncio.to_thread(new._files.read_part, mine.job_id, LOG_FILE, 0, 10**6) == text
        assert other.log_location == new._files.uri(mine.job_id, LOG_FILE)


async def run_the_rest(app: Backstay, seconds: float = 60) -> dict[str, int]:
    """What was on its way goes on where it is now; how often each job began after the move."""
    async with app:
        before = {job.job_id: job.attempt async for job in jobs_of(app) if job.status.value not in ENDED}
        async with app.worker(concurrency=8):
            await eventually(lambda: _all_ended(app), seconds=seconds)
        return {job.job_id: job.attempt - before[job.job_id] async for job in jobs_of(app) if job.job_id in before}


async def _all_ended(app: Backstay) -> bool:
    counts = await app.counts()
    return not any(counts[name] for name in ("pending", "processing", "waiting"))
