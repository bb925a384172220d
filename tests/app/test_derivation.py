"""What a type derives from its payload holds on every path; for those of SQL see tests/engines/postgres."""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from pydantic import BaseModel, Field

from backstay import Backstay, ConfigurationError, Context, InvalidOption, InvalidPayload, PriorityBy
from backstay.server import asgi
from backstay.testing import ManualClock, drain
from tests.app.report_app import go_to, look

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Text(BaseModel):
    rule: int
    text: str = Field(alias="inputText")
    model: str = "small"
    severity: Literal["critical", "normal"] | None = None


def declared(app: Backstay, **options: Any) -> Backstay:
    @app.job(
        "embed",
        **{
            "subject": "rule:{rule}",
            "content_hash": "{model}:{md5(text)}",
            "reuse": True,
            "dedup_key": "embed {rule}/{sha256(text)}",
            "priority": PriorityBy("severity", {"critical": "urgent"}, otherwise="low"),
            **options,
        },
    )
    async def embed(payload: Text) -> str:
        return payload.text.upper()

    @app.job("outer")
    async def outer(payload: Any, ctx: Context) -> str:
        return (await ctx.submit("embed", payload, at_once=True)).job_id

    return app


@pytest.fixture(params=["sqlite", "postgres", "dynamodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/jobs.db"
        case "postgres":
            return str(request.getfixturevalue("postgres").url(schema=f"derived_{secrets.token_hex(3)}"))
        case _:
            return str(request.getfixturevalue("dynamodb").url())


MD5 = "4124bc0a9335c27f086f24ba207a4912"  # of "aa"
SHA = "961b6dd3ede3cb8ecbaacbd68de040cd78eb2ed5889130cceb4c49268ea4d506"
WANTED = ("rule:7", f"small:{MD5}", f"embed 7/{SHA}", 25)


async def derived(app: Backstay, job_id: str) -> tuple[Any, ...]:
    job = await app.get(job_id)
    return job.subject, job.content_hash, job.dedup_key, job.priority


def over_http(app: Backstay) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(asgi(app)), base_url="http://127.0.0.1")


async def test_a_job_has_what_its_type_derives_on_every_path(url: str) -> None:
    payload = {"rule": 7, "inputText": "aa"}
    app, without_code = declared(Backstay(url, clock=ManualClock(NOON))), Backstay(url)
    async with app, without_code:
        first = await app.submit("embed", payload)
        assert await derived(app, first.job_id) == WANTED
        again = await without_code.submit("embed", payload)
        assert (again.job_id, again.deduplicated) == (first.job_id, True)
        for each in (app, without_code):
            async with over_http(each) as http:
                answer = await http.post("/jobs/embed", json={"payload": payload})
                assert (answer.status_code, answer.json()["job_id"]) == (200, first.job_id), answer.text
        await app.submit("outer", payload)
        (outer,) = [job for job in await drain(app) if job.job_type == "outer"]
        # The first has completed by now, or not: its child is it, or has its result.
        assert await derived(app, outer.result) == WANTED

        await app.schedule("hourly", "@hourly", "embed", {"rule": 8, "inputText": "aa", "severity": "critical"})
        await look(app, NOON + timedelta(hours=1))
        (ticked,) = await app.find(subject="rule:8")
        assert await derived(app, ticked.job_id) == ("rule:8", f"small:{MD5}", f"embed 8/{SHA}", 100)
        assert ticked.status == "completed" and ticked.reused_from is not None, "a known text runs no handler"


async def test_each_of_many_jobs_has_what_its_type_derives(app: Backstay) -> None:
    async with declared(app, reuse=False):
        handles = await app.submit_many(("embed", {"rule": n % 200, "inputText": "aa"}) for n in range(300))
        assert [handle.subject for handle in handles] == [f"rule:{n % 200}" for n in range(300)]
        assert [handle.deduplicated for handle in handles] == [False] * 200 + [True] * 100
        assert {handle.content_hash for handle in handles} == {WANTED[1]}


async def test_what_a_submit_says_itself_goes_before_what_is_derived(app: Backstay) -> None:
    async with declared(app):
        payload = {"rule": 7, "inputText": "aa"}
        job = await app.submit("embed", payload, subject="mine", dedup_key="own", priority=3, content_hash="h")
        assert await derived(app, job.job_id) == ("mine", "h", "own", 3)
        assert (await app.submit("embed", payload, content_hash="h", dedup_key="x", reuse=False)).status == "pending"


async def test_a_function_derives_what_no_template_can(app: Backstay) -> None:
    declared(
        app,
        subject=lambda text: f"rule {text.rule:04}",
        content_hash=lambda text: None,
        dedup_key=lambda text: text.text[::-1],
        priority=lambda text: min(100, 10 * text.rule),
    )
    async with app:
        job = await app.submit("embed", {"rule": 7, "inputText": "abc"})
        assert await derived(app, job.job_id) == ("rule 0007", None, "cba", 70)


async def test_a_submit_without_the_code_of_a_function_is_refused_unless_it_says_the_value(
    make_app: Callable[..., Backstay],
) -> None:
    app, without_code = declared(make_app(), subject=lambda text: f"r{text.rule}"), make_app()
    async with app, without_code:
        payload = {"rule": 7, "inputText": "aa"}
        with pytest.raises(InvalidOption, match="embed computes its subject in code, which is not here"):
            await without_code.submit("embed", payload)
        async with over_http(without_code) as http:
            answer = await http.post("/jobs/embed", json={"payload": payload})
            assert answer.status_code == 422 and "computes its subject in code" in answer.text
        assert (await without_code.submit("embed", payload, subject="r7")).subject == "r7"


async def test_a_function_that_fails_refuses_the_payload_and_says_which(app: Backstay) -> None:
    declared(app, priority=lambda text: {"x": 1}[text.text])
    async with app:
        with pytest.raises(InvalidPayload, match="payload of embed: priority cannot be computed: KeyError: 'aa'"):
            await app.submit("embed", {"rule": 7, "inputText": "aa"})
        assert await app.find() == []


async def test_where_a_field_is_null_there_is_no_such_value(app: Backstay) -> None:
    async with declared(app, subject="{severity}", dedup_key="{severity}"):
        job = await app.submit("embed", {"rule": 7, "inputText": "aa"})
        assert (job.subject, job.row.dedup_key) == (None, None)


@pytest.mark.parametrize("missed", ["all", "one"])
async def test_one_job_per_key_and_day_whoever_submits_it(make_app: Callable[..., Backstay], missed: str) -> None:
    clock = ManualClock(NOON)
    app = declared(make_app(clock=clock), dedup_key="summary:{rule}", dedup_per="day", content_hash=None, reuse=False)
    payload = {"rule": 7, "inputText": "aa"}
    async with app:
        first = await app.submit("embed", payload)
        assert first.row.dedup_key == "summary:7:2030-01-01"
        await drain(app)
        assert (await app.submit("embed", payload)).deduplicated, "the day is taken also after its job has ended"
        tomorrow = await app.submit("embed", payload, delay=timedelta(hours=13))
        assert tomorrow.row.dedup_key == "summary:7:2030-01-02", "the day on which it is due"

        await app.schedule("six", "@every 6h", "embed", payload, missed=missed)
        await look(app, NOON + timedelta(days=3))
        keys = sorted(job.dedup_key or "" for job in await app.find())
        days = ["01", "02", "03", "04"] if missed == "all" else ["01", "02", "04"]
        assert keys == [f"summary:7:2030-01-{day}" for day in days]


async def test_a_schedule_with_a_dedup_key_submits_nothing_while_its_job_is_active(
    make_app: Callable[..., Backstay],
) -> None:
    app = make_app(clock=ManualClock(NOON))

    @app.job("sync")
    async def sync(payload: Any) -> None: ...

    async with app:
        await app.schedule("sync", "@hourly", "sync", {}, dedup_key="sync")
        first = await app.submit("sync", {}, dedup_key="sync")
        await look(app, NOON + timedelta(hours=1))
        assert [job.job_id for job in await app.find()] == [first.job_id]
        assert (await app.get_schedule("sync")).last_job_id == first.job_id, "the job that stands for the tick"
        await drain(app)
        await look(app, NOON + timedelta(hours=2))
        assert len(await app.find(status="pending")) == 1


async def test_a_dedup_window_of_a_schedule_counts_from_each_tick(make_app: Callable[..., Backstay]) -> None:
    app = make_app(clock=ManualClock(NOON))

    @app.job("sync")
    async def sync(payload: Any) -> None: ...

    async with app:
        said: dict[str, Any] = {"dedup_key": "sync", "dedup_for": timedelta(minutes=90)}
        first = await app.schedule("sync", "@hourly", "sync", {}, **said)
        go_to(app, NOON + timedelta(minutes=1))
        assert await app.schedule("sync", "@hourly", "sync", {}, **said) == first, "said again, nothing changes"
        for hour in (1, 2, 3):
            await look(app, NOON + timedelta(hours=hour))
            await drain(app)
        assert [job.tick_at for job in await app.find()] == [NOON + timedelta(hours=3), NOON + timedelta(hours=1)]


async def test_a_key_for_some_queues_reuses_nothing_and_shares_the_derived_key_in_the_queue_of_the_type(
    make_app: Callable[..., Backstay],
) -> None:
    app = declared(make_app(), queue="mine")
    payload = {"rule": 7, "inputText": "aa"}
    async with app, over_http(app) as http:
        await app.submit("embed", {**payload, "rule": 1})
        await drain(app)
        key = {"X-API-Key": (await app.create_key("some", ["submit", "read"], queues=["mine", "else"])).text}

        async def submit(**body: Any) -> Any:
            answer = await http.post("/jobs/embed", json={"payload": payload, **body}, headers=key)
            assert answer.status_code in (200, 201), answer.text
            return answer.json()

        made = await submit()
        assert (made["status"], made["reused_from"], made["dedup_key"]) == ("pending", None, WANTED[2])
        assert (await app.submit("embed", payload)).job_id == made["job_id"]
        other = await submit(queue="else")
        assert other["job_id"] != made["job_id"], "in another queue the key is its own"
        assert other["job_id"] == (await submit(queue="else"))["job_id"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"subject": "rule"}, "names no field of the payload"),
    ({"subject": "{rle}"}, "no field 'rle'; it has rule, text, model, severity"),
    ({"subject": "{rule"}, "write {field} or {md5(field)}"),
    ({"subject": "{md4(rule)}"}, "md4() is unknown"),
    ({"subject": 7}, "use a template"),
    ({"reuse_by": ["text"]}, "reuse_by and content_hash"),
    ({"content_hash": None}, "reuse needs content_hash or reuse_by"),
    ({"dedup_key": None, "dedup_for": "forever"}, "dedup_for needs a dedup_key"),
    ({"dedup_key": None, "dedup_per": "day"}, "dedup_per needs a dedup_key"),
    ({"dedup_per": "week"}, 'use "day"'),
    ({"dedup_for": "ever"}, 'use "active", "forever"'),
    ({"reuse": -1}, "use seconds or a timedelta"),
    ({"priority": PriorityBy("sevrity", {})}, "no field 'sevrity'"),
]


@pytest.mark.parametrize(("options", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_declaration_that_cannot_be_meant_is_refused_when_it_is_registered(
    app: Backstay, options: dict[str, Any], says: str
) -> None:
    with pytest.raises((ConfigurationError, InvalidOption)) as refused:
        declared(app, **options)
    assert says in str(refused.value)


async def test_a_value_that_is_no_word_is_refused(app: Backstay) -> None:
    @app.job("loose", subject="{of}")
    async def loose(payload: dict[str, Any]) -> None: ...

    async with app:
        for value in (1.5, ["a"], {"a": 1}):
            with pytest.raises(InvalidPayload, match="subject is derived from of, which has to be a string"):
                await app.submit("loose", {"of": value})
        assert (await app.submit("loose", {"of": True})).subject == "true"
        assert (await app.submit("loose", {"of": {"of": 1}["of"]})).subject == "1"
        assert (await app.submit("loose", {})).subject is None
