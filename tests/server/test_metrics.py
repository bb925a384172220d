"""/metrics: what Prometheus reads, by Prometheus' own parser."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from backstay import Backoff, Backstay, Context, Retention
from backstay.core.records import ClaimRequest
from backstay.core.states import BOUNDS
from backstay.core.stats import TotalFigures
from backstay.server import asgi
from backstay.server.metrics import KEPT_SECONDS, PAIRS_MAX, Snapshot, exposition
from backstay.server.worker_summary import WorkerSummary
from backstay.testing import ManualClock, drain

CANARY = "bs_canary_51b7"
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
FAMILIES = {
    "backstay_jobs": "counter",
    "backstay_job_duration_seconds": "histogram",
    "backstay_job_wait_seconds": "histogram",
    "backstay_queue_depth": "gauge",
    "backstay_queue_oldest_age_seconds": "gauge",
    "backstay_workers": "gauge",
    "backstay_leases_lost": "counter",
    "backstay_reused": "counter",
    "backstay_reuse_saved_seconds": "counter",
    "backstay_build_info": "gauge",
}
Read = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Read:
    """Every sample by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(read: Read, name: str, **labels: str) -> float | None:
    return read.get((name, frozenset(labels.items())))


def of(read: Read, *names: str) -> dict[Any, float]:
    return {key: number for key, number in read.items() if key[0].endswith(names)}


@asynccontextmanager
async def asked(
    app: Backstay, client: str = "127.0.0.1", key: str | None = None, **headers: str
) -> AsyncIterator[httpx.AsyncClient]:
    sent = headers if key is None else {**headers, "Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(asgi(app), client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=sent) as http:
        yield http


async def read_from(app: Backstay) -> Read:
    async with asked(app) as http:
        answer = await http.get("/metrics")
    assert answer.status_code == 200
    return parsed(answer.text)


@pytest.fixture(params=["sqlite", "postgres", "dynamodb"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    server = request.getfixturevalue(request.param)
    place = {"schema": f"metrics_{secrets.token_hex(3)}", "clock": "caller"} if request.param == "postgres" else {}
    return str(server.url(**place))


@pytest.fixture
def sqlite_url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def with_mails(app: Backstay) -> Any:
    @app.job("mail", queue="mails", max_attempts=2, backoff=Backoff(0), reuse_by=["to"])
    async def mail(payload: dict[str, str], ctx: Context) -> None:
        if payload["to"] == "nobody" or (payload["to"] == "busy" and ctx.attempt == 1):
            raise ValueError(f"no {payload}")

    return mail


async def test_everything_that_happened_is_counted_and_every_replica_gives_the_same_answer(url: str) -> None:
    app, replica = Backstay(url), Backstay(url)
    mail = with_mails(app)
    async with app, replica:
        for to in ("ada", "busy", "nobody"):
            await mail.submit({"to": to})
        await drain(app)
        await mail.submit({"to": "ada"}, reuse=True)
        await mail.submit({"to": "later"}, delay=3600)
        await mail.submit({"to": "now"})
        read, other = await read_from(app), await read_from(replica)
    jobs = {"job_type": "mail", "queue": "mails"}
    outcomes = {"submitted": 6, "completed": 3, "retried": 2, "failed": 1}
    assert {each: value(read, "backstay_jobs_total", outcome=each, **jobs) for each in outcomes} == outcomes
    for name in ("duration", "wait"):
        assert value(read, f"backstay_job_{name}_seconds_count", **jobs) == 5
        assert value(read, f"backstay_job_{name}_seconds_bucket", le="+Inf", **jobs) == 5
        assert 0 < (value(read, f"backstay_job_{name}_seconds_sum", **jobs) or 0) < 60
    assert value(read, "backstay_queue_depth", status="pending", **jobs) == 1
    assert value(read, "backstay_queue_depth", status="scheduled", **jobs) == 1
    assert 0 < (value(read, "backstay_queue_oldest_age_seconds", queue="mails") or 0) < 60
    assert value(read, "backstay_reused_total") == 1
    assert (value(read, "backstay_reuse_saved_seconds_total") or 0) > 0
    ages = of(read, "age_seconds").keys()
    assert {key: number for key, number in read.items() if key not in ages} == {
        key: number for key, number in other.items() if key not in ages
    }


async def test_workers_are_counted_by_what_they_do_and_lost_leases_too(sqlite_url: str) -> None:
    app = Backstay(sqlite_url, lease=30)
    mail = with_mails(app)
    async with app:
        await mail.submit({"to": "ada"})
        request = ClaimRequest("lost:1:abc", "1", ("mails",), {"mail": 1}, 1, 1, "token")
        assert len(await app.store.claim(request, app.clock.now())) == 1
        async with app.worker():
            read = await read_from(app)
        after = await read_from(app)
    assert value(read, "backstay_workers", state="idle") == 1
    assert value(read, "backstay_leases_lost_total") == 1
    assert {value(after, "backstay_workers", state=state) for state in ("idle", "working", "silent")} == {0}


async def test_no_counter_goes_down_when_retention_drops_what_it_was_summed_from(url: str) -> None:
    clock = ManualClock(NOON)
    app = Backstay(url, clock=clock, retention=Retention(completed=timedelta(0), failed=timedelta(0)))
    mail = with_mails(app)
    async with app:
        for to in ("ada", "nobody"):
            await mail.submit({"to": to})
        await drain(app, advance=True)
        before = await read_from(app)
        clock.advance(timedelta(days=40))
        await app.purge()
        pruned = await read_from(app)
        await mail.submit({"to": "ada"})
        await drain(app, advance=True)
        after = await read_from(app)
        minutes = await app.store.counters(0, app.clock.now() + 1)
    growing = ("_total", "_count", "_sum", "_bucket")
    assert sum(each.count for each in minutes if each.outcome == "submitted") == 1, (
        "the minutes were not pruned, and the test shows nothing"
    )
    assert of(before, *growing) == of(pruned, *growing)
    assert all(after[key] >= number for key, number in of(before, *growing).items())
    assert value(after, "backstay_jobs_total", job_type="mail", queue="mails", outcome="submitted") == 3


async def test_the_answer_has_every_metric_with_its_kind_and_nothing_of_a_payload(sqlite_url: str) -> None:
    app = Backstay(sqlite_url)
    mail = with_mails(app)
    async with app:
        await mail.submit({"to": "nobody", "body": CANARY}, subject=CANARY, tags=[CANARY], created_by=CANARY)
        await drain(app)
        async with asked(app) as http:
            answer = await http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert {each.name: each.type for each in text_string_to_metric_families(answer.text)} == FAMILIES
    assert CANARY not in answer.text


async def test_the_store_is_read_once_a_second_however_many_ask(sqlite_url: str) -> None:
    clock = ManualClock(NOON)
    app = Backstay(sqlite_url, clock=clock)
    mail = with_mails(app)
    async with app, asked(app) as http:
        first = await http.get("/metrics")
        await mail.submit({"to": "ada"})
        assert (await http.get("/metrics")).text == first.text
        clock.advance(KEPT_SECONDS)
        assert (await http.get("/metrics")).text != first.text


async def test_this_machine_may_ask_without_a_key_and_others_need_the_scope_read(sqlite_url: str) -> None:
    async with Backstay(sqlite_url) as app:
        reader = (await app.create_key("prometheus", ["read"])).text
        worker = (await app.create_key("worker", ["work"])).text
        for client, key, headers, status in (
            ("127.0.0.1", None, {}, 200),
            ("127.0.0.1", None, {"X-Forwarded-For": "10.0.0.9"}, 401),
            ("10.0.0.9", None, {}, 401),
            ("10.0.0.9", worker, {}, 403),
            ("10.0.0.9", reader, {}, 200),
        ):
            async with asked(app, client, key, **headers) as http:
                assert (await http.get("/metrics")).status_code == status, (client, key, headers)


async def test_a_key_for_some_queues_sees_the_numbers_of_those(sqlite_url: str) -> None:
    app = Backstay(sqlite_url)
    mail = with_mails(app)
    async with app:
        await mail.submit({"to": "ada"})
        await mail.submit({"to": "ada"}, queue="hidden")
        key = (await app.create_key("prometheus", ["read"], queues=["mail*"])).text
        async with asked(app, "10.0.0.9", key) as http:
            answer = await http.get("/metrics")
        async with asked(app) as http:
            whole = await http.get("/metrics")
    assert 'queue="mails"' in answer.text and "hidden" not in answer.text
    assert "hidden" in whole.text


def totals(names: Iterable[str], count: int = 1) -> list[TotalFigures]:
    bucket = (0, *[count] * len(BOUNDS))
    return [
        TotalFigures(
            job_type="mail",
            queue=queue,
            outcome="completed",
            count=count,
            time_seconds=1.0,
            wait_seconds=2.0,
            time_buckets=bucket,
            wait_buckets=bucket,
        )
        for queue in names
    ]


def test_however_many_names_there_are_series_stay_few_and_none_goes_down() -> None:
    few = [f"queue-{number:04}" for number in range(0, 2 * PAIRS_MAX, 2)]
    many = [f"queue-{number:04}" for number in range(5 * PAIRS_MAX)]
    before = parsed(exposition(Snapshot(totals(few), (), WorkerSummary(), 0)).decode())
    after = parsed(exposition(Snapshot(totals(many), (), WorkerSummary(), 0)).decode())
    assert len(of(before, "jobs_total")) == PAIRS_MAX and len(of(after, "jobs_total")) == PAIRS_MAX + 1
    assert sum(of(after, "jobs_total").values()) == len(many)
    assert all(after.get(key, number) >= number for key, number in of(before, "_total", "_bucket", "_sum").items())
    assert value(after, "backstay_job_duration_seconds_count", job_type="other", queue="other") == 4 * PAIRS_MAX


def test_a_histogram_is_cumulative_over_all_outcomes() -> None:
    both = [
        *totals(["mails"], 3),
        *(TotalFigures(**{**_fields(each), "outcome": "failed"}) for each in totals(["mails"])),
    ]
    read = parsed(exposition(Snapshot(both, (), WorkerSummary(), 0)).decode())
    labels = {"job_type": "mail", "queue": "mails"}
    found = [value(read, "backstay_job_wait_seconds_bucket", le=str(bound), **labels) for bound in BOUNDS]
    assert found == [0.0] + [4.0] * (len(BOUNDS) - 1)
    assert value(read, "backstay_job_wait_seconds_sum", **labels) == 4.0


def _fields(figures: TotalFigures) -> dict[str, Any]:
    return {name: getattr(figures, name) for name in figures.__struct_fields__}
