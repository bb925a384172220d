"""Submitting: what is accepted is stored as it was given; what is not gets a typed error and nothing is stored."""

import asyncio
import json
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pydantic
import pytest
from pydantic import BaseModel, Field

from backstay import (
    Backstay,
    BlockingContext,
    ConfigurationError,
    Context,
    InvalidOption,
    InvalidPayload,
    InvalidSubmission,
    JobHandler,
    JobNotFound,
    NotOpen,
    PayloadTooLarge,
    Status,
    UnknownDependency,
    UnknownJobType,
    codec,
)
from backstay.limits import PAYLOAD_BYTES_MAX


class Summary(BaseModel):
    user_id: int
    day: str = "today"


def with_summary(app: Backstay) -> Any:
    @app.job("daily_summary", priority="high", max_attempts=7, timeout=60)
    async def daily_summary(payload: Summary, ctx: Context) -> dict[str, bool]:
        return {"sent": True}

    @app.job("free")
    async def free(payload: Any) -> None: ...

    return daily_summary


async def total(app: Backstay) -> int:
    return sum((await app.counts()).values())


async def test_a_submitted_job_can_be_read_back_with_every_default_of_its_handler(app: Backstay) -> None:
    daily_summary = with_summary(app)
    async with app:
        handle = await daily_summary.submit(Summary(user_id=7))
        job = await app.get(handle.job_id)
    assert (job.status, job.job_type, job.queue, job.priority) == ("pending", "daily_summary", "default", 75)
    assert (job.payload, job.max_attempts, job.timeout_seconds) == ({"user_id": 7, "day": "today"}, 7, 60)
    assert (job.attempt, job.failures, job.version, job.result, job.progress) == (0, 0, 1, None, 0.0)
    assert job.created_at.tzinfo is UTC and uuid.UUID(job.job_id).version == 7


async def test_the_handle_of_a_new_job_shows_what_was_stored_without_reading_it(app: Backstay) -> None:
    daily_summary = with_summary(app)
    async with app:
        handle = await daily_summary.submit({"user_id": 7}, subject="u7", tags=["a", "b"], created_by="me", stage="s")
        stored = (await app.get(handle.job_id)).to_dict()
    shown = {name: getattr(handle, name) for name in stored if name != "result"}
    del stored["result"]
    assert shown == stored


@pytest.mark.parametrize(
    "payload",
    [
        {"user_id": "x"},
        {},
        {"user_id": float("nan")},
        None,
        {"user_id": 1, "day": "\0"},
        {"user_id": 1, "day": "\ud800"},
    ],
)
async def test_a_payload_that_does_not_fit_is_refused_and_nothing_is_stored(app: Backstay, payload: Any) -> None:
    with_summary(app)
    async with app:
        with pytest.raises(InvalidPayload):
            await app.submit("daily_summary", payload)
        assert await total(app) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", "a\0b", 2**63, {"\0": 1}, [float("-inf")]])
async def test_what_not_every_engine_can_keep_is_refused_even_without_a_model(app: Backstay, value: Any) -> None:
    with_summary(app)
    async with app:
        with pytest.raises(InvalidPayload):
            await app.submit("free", {"value": value})
        assert await total(app) == 0


async def test_a_payload_at_the_limit_is_stored_and_one_byte_more_is_refused(app: Backstay) -> None:
    with_summary(app)
    fits = "é" * ((PAYLOAD_BYTES_MAX - 2) // 2)
    async with app:
        handle = await app.submit("free", fits)
        assert (await app.get(handle.job_id)).payload == fits
        with pytest.raises(PayloadTooLarge, match="PAYLOAD_BYTES_MAX"):
            await app.submit("free", fits + "x")
        assert await total(app) == 1


async def test_an_unknown_type_is_refused_and_the_known_ones_are_named(app: Backstay) -> None:
    with_summary(app)
    async with app:
        with pytest.raises(UnknownJobType, match="daily_summary"):
            await app.submit("dayly_summary", {})
        assert await total(app) == 0


async def test_an_app_without_the_code_can_submit_to_a_type_that_another_announced(
    app: Backstay, make_app: Any
) -> None:
    with_summary(app)
    async with app, make_app() as other:
        handle = await other.submit("daily_summary", {"user_id": 1})
        assert (await app.get(handle.job_id)).priority == 75


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 101},
        {"priority": "hot"},
        {"priority": True},
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"run_at": datetime.now(UTC), "delay": 1},
        {"delay": "soon"},
        {"delay": -1},
        {"delay": 1e12},
        {"queue": "a b"},
        {"job_id": "7"},
        {"dedup_for": "forever"},
        {"dedup_key": "k", "dedup_for": "ever"},
        {"reuse": True},
        {"max_attempts": 0},
        {"timeout": 0},
        {"tags": [""]},
        {"subject": ""},
        {"subject": "x" * 600},
        {"subject": "\ud800"},
        {"depends_on": ["x"]},
        {"trigger_rule": "never"},
        {"nonsense": 1},
    ],
)
async def test_an_option_that_cannot_be_meant_is_refused_and_nothing_is_stored(
    app: Backstay, options: dict[str, Any]
) -> None:
    with_summary(app)
    async with app:
        with pytest.raises(InvalidOption):
            await app.submit("free", 1, **options)
        assert await total(app) == 0


async def test_submit_many_stores_all_or_none(app: Backstay) -> None:
    with_summary(app)
    async with app:
        with pytest.raises(InvalidPayload, match="job 2 of 3"):
            await app.submit_many([("free", 1), ("free", 2), ("daily_summary", {"user_id": "x"})])
        with pytest.raises(UnknownDependency):
            await app.submit_many([("free", 1), ("free", 2, {"depends_on": [str(uuid.uuid4())]})])
        with pytest.raises(InvalidSubmission):
            await app.submit_many([("free",)])  # type: ignore[list-item]
        assert await total(app) == 0
        handles = await app.submit_many([("free", n) for n in range(500)] + [("free", 500, {"delay": 60})])
        assert [(await app.get(each.job_id)).payload for each in handles[::100]] == [0, 100, 200, 300, 400, 500]
        assert (handles[-1].status, handles[0].status) == ("scheduled", "pending")


class Loose(BaseModel):
    text: str = ""
    ratio: float | None = 1.5
    secret: pydantic.SecretStr = pydantic.SecretStr("")
    rest: Any = 0


STORED = [
    {"text": "tomorrow"},
    {"text": "Grüße 😀\n\t\x07 \\u0041 NaN, Infinity, null"},
    {"ratio": None},
    {"ratio": 1e300},
    {"secret": "s3cret"},
    {"rest": [[], {"a": {"b": [None, True]}}]},
    {"rest": 2**63 - 1},
    {"rest": {"0" * 25: "1" * 25}},
]
REFUSED = [
    {"ratio": float("nan")},
    {"rest": float("inf")},
    {"text": "a\0b"},
    {"text": "\ud800"},
    {"rest": 2**63},
    {"rest": json.loads("[" * 65 + "]" * 65)},
    {"text": "x" * (PAYLOAD_BYTES_MAX + 1)},
    {"text": 1},
    "text",
]


@pytest.mark.parametrize("payload", STORED)
async def test_many_jobs_are_stored_as_each_would_be(app: Backstay, payload: Any) -> None:
    loose = app.job("typed")(_typed)
    async with app:
        one = await loose.submit(payload)
        many = await app.submit_many([("typed", payload), ("typed", {}), *[("typed", payload)] * 18])
        found = [(await app.get(job.job_id)).row for job in many]
        assert {each.payload for each in (found[0], *found[2:])} == {(await app.get(one.job_id)).row.payload}
        assert [job.job_id for job in many] == [each.job_id for each in found] == sorted(job.job_id for job in many)
        assert [(job.payload, job.status) for job in many] == [
            (codec.decode(each.payload), "pending") for each in found
        ]


@pytest.mark.parametrize("payload", REFUSED)
async def test_one_of_many_jobs_is_refused_as_it_would_be_alone(app: Backstay, payload: Any) -> None:
    loose = app.job("typed")(_typed)
    async with app:
        with pytest.raises(InvalidPayload) as alone:
            await loose.submit(payload)
        with pytest.raises(type(alone.value)) as among_many:
            await app.submit_many([(loose, {})] * 12 + [(loose, payload)] + [(loose, {})] * 7)
        assert str(among_many.value) == f"job 12 of 20: {alone.value}"
        assert await total(app) == 0


async def _typed(payload: Loose) -> None: ...


async def test_a_repeated_submit_with_the_same_id_returns_the_same_job(app: Backstay) -> None:
    with_summary(app)
    job_id = str(uuid.uuid4())
    async with app:
        first = await app.submit("free", 1, job_id=job_id)
        second = await app.submit("free", 1, job_id=job_id.upper())
        assert (first.job_id, first.deduplicated) == (job_id, False)
        assert (second.job_id, second.deduplicated) == (job_id, True)
        assert await total(app) == 1


async def test_the_options_of_submit_are_kept(app: Backstay) -> None:
    with_summary(app)
    later = datetime.now(UTC) + timedelta(hours=1)
    async with app:
        parent = await app.submit("free", 0)
        handle = await app.submit(
            "free",
            1,
            priority="urgent",
            run_at=later,
            queue="slow",
            subject="c19305",
            tags=("x", "y"),
            parent=parent,
            stage="PCA",
            max_attempts=2,
            timeout=timedelta(minutes=2),
            created_by="tester",
            content_hash="h",
        )
        job = await app.get(handle.job_id)
    assert (job.priority, job.status, job.queue, job.subject) == (100, Status.SCHEDULED, "slow", "c19305")
    assert (job.tags, job.parent_job_id, job.root_job_id) == (["x", "y"], parent.job_id, parent.job_id)
    assert (job.job_stage, job.max_attempts, job.timeout_seconds) == ("PCA", 2, 120)
    assert (job.created_by, job.content_hash, job.scheduled_for) == ("tester", "h", later)


async def test_sixty_four_who_submit_together_share_a_few_commits(app: Backstay) -> None:
    with_summary(app)
    async with app:
        commits = 0

        def count() -> int:
            nonlocal commits
            commits += 1
            return 0

        app.store._writer.connection.set_commit_hook(count)  # type: ignore[attr-defined]
        await asyncio.gather(*(app.submit("free", n) for n in range(64)))
        assert await total(app) == 64
        assert commits <= 3


async def test_the_event_loop_goes_on_while_the_file_is_locked_by_another(app: Backstay, tmp_path: Path) -> None:
    with_summary(app)
    async with app:
        other = apsw.Connection(f"{tmp_path}/jobs.db")
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(app.submit("free", 1))
        for _ in range(100):
            await asyncio.sleep(0)
            assert (await asyncio.wait_for(app.counts(), 5))["pending"] == 0  # readers do not wait for the writer
        assert not waiting.done()
        other.execute("COMMIT")
        other.close()
        assert (await asyncio.wait_for(waiting, 10)).status == "pending"


async def test_an_app_that_is_not_open_says_so(app: Backstay) -> None:
    with_summary(app)
    with pytest.raises(NotOpen, match="async with app"):
        await app.submit("free", 1)


async def test_reading_an_unknown_job_is_a_typed_error(app: Backstay) -> None:
    async with app:
        with pytest.raises(JobNotFound):
            await app.get(str(uuid.uuid4()))
        with pytest.raises(InvalidOption):
            await app.get("nonsense")


async def test_a_handler_class_registers_like_a_function(app: Backstay) -> None:
    @app.job("sync_user")
    class SyncUser(JobHandler[Summary]):
        async def handle(self, payload, ctx):  # type: ignore[no-untyped-def]
            return payload.user_id

    async with app, app.worker():
        assert await (await app.submit("sync_user", {"user_id": 3})).result(timeout=10) == 3
        with pytest.raises(InvalidPayload):
            await app.submit("sync_user", {"user_id": "x"})


def test_a_handler_that_cannot_work_is_refused_when_it_is_registered(app: Backstay) -> None:
    async def swapped(ctx, payload) -> None: ...  # type: ignore[no-untyped-def]

    async def three(a: int, b: int, ctx: Context) -> None: ...

    async def wrong_context(payload: int, ctx: BlockingContext) -> None: ...

    def no_model(payload: threading.Lock) -> None: ...

    def fine(payload: int) -> None: ...

    for function in (swapped, three, wrong_context, no_model):
        with pytest.raises(ConfigurationError, match="x:"):
            app.job("x")(function)
    with pytest.raises(ConfigurationError, match=r'@app.job\("name"\)'):
        app.job(fine)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="max_attempts"):
        app.job("x", max_attempt=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match="Backoff"):
        app.job("x", backoff=5)(fine)  # type: ignore[arg-type]
    app.job("x")(fine)
    with pytest.raises(ConfigurationError, match="already"):
        app.job("x")(fine)


async def test_a_field_with_an_alias_arrives_under_it(make_app: Callable[..., Backstay]) -> None:
    app = make_app()

    class Letter(BaseModel):
        sender: str = Field(alias="from")

    @app.job("letter")
    async def letter(payload: Letter, ctx: Context) -> str:
        return payload.sender

    async with app, app.worker():
        by_name = await letter.submit(Letter(**{"from": "ada"}))
        by_dict = await app.submit("letter", {"from": "bob"})

        assert [await job.result(timeout=10) for job in (by_name, by_dict)] == ["ada", "bob"]


async def test_many_jobs_inside_a_transaction_of_the_callers_own_go_with_its_rollback(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: int) -> None: ...

    async with app:
        mine = apsw.Connection(str(app.store.path))  # type: ignore[attr-defined]
        mine.execute("BEGIN IMMEDIATE")
        await app.submit_many([("work", 1), (work, 2, {"priority": 80})], connection=mine)
        with pytest.raises(InvalidOption, match="job 0 of 1: connection applies to all jobs or none"):
            await app.submit_many([("work", 3, {"connection": mine})])
        mine.execute("ROLLBACK")
        assert sum((await app.counts()).values()) == 0
        mine.execute("BEGIN IMMEDIATE")
        await app.submit_many([("work", 1), ("work", 2)], connection=mine)
        mine.execute("COMMIT")
        assert (await app.counts())["pending"] == 2
        mine.close()


async def test_a_secret_of_a_payload_reaches_its_handler(app: Backstay) -> None:
    class Login(pydantic.BaseModel):
        name: str
        password: pydantic.SecretStr
        at: datetime
        old: list[pydantic.SecretStr] = []

    @app.job("log_in")
    async def log_in(payload: Login) -> list[str]:
        return [payload.password.get_secret_value(), payload.at.isoformat(), payload.old[0].get_secret_value()]

    async with app, app.worker():
        given = {"name": "ann", "password": "s3cret", "at": "2026-01-02T03:04:05Z", "old": ["before"]}
        by_dict = await app.submit("log_in", given)
        by_model = await log_in.submit(Login.model_validate(given))
        for job in (by_dict, by_model):
            assert await job.result(timeout=30) == ["s3cret", "2026-01-02T03:04:05+00:00", "before"]


@pytest.mark.parametrize("options", [{}, {"dedup_key": "once"}], ids=str)
async def test_a_submit_on_another_event_loop_is_refused_and_stores_nothing(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("work")
    async def work(payload: int) -> None: ...

    def elsewhere() -> None:
        asyncio.run(asyncio.wait_for(app.submit("work", 1, **options), 5))

    async with app:
        with pytest.raises(NotOpen, match=r"another event loop: use backstay\.sync"):
            await asyncio.to_thread(elsewhere)
        own = await asyncio.gather(*(app.submit("work", n) for n in range(3)))
        assert {job.job_id for job in await app.find()} == {job.job_id for job in own}
