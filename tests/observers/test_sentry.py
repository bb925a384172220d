"""Errors to Sentry: what arrives there, over HTTP, at a receiver on this machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sentry_sdk
from pydantic import BaseModel, Field, SecretStr, field_serializer

from backstay import Backoff, Backstay, Cancel, Context, Discard, JobFailed, Retry, Snooze
from backstay.core.records import ClaimRequest
from backstay.observers import Sentry
from backstay.testing import drain
from tests.observers.conftest import WorkerProcess
from tests.observers.receiver import Receiver
from tests.support.eventually import eventually

CANARY = "bs_canary_8c1f"


@pytest.fixture
def sentry() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(autouse=True)
def no_client_stays() -> Iterator[None]:
    yield
    sentry_sdk.get_client().close(timeout=5)
    sentry_sdk.get_global_scope().set_client(None)
    sentry_sdk.get_isolation_scope().clear()


class Mail(BaseModel):
    to: str
    body: str = ""
    password: str = CANARY
    pin: SecretStr = SecretStr(CANARY)
    iban: str = CANARY
    note: str = Field(CANARY, json_schema_extra={"sensitive": True})
    nested: dict[str, Any] = {"Api-Key": CANARY, "list": [{"accessToken": CANARY}], "size": 3}
    database: str = f"postgresql://shop:{CANARY}@db/shop"

    @field_serializer("pin", when_used="json")
    def _as_it_is(self, pin: SecretStr) -> str:
        return pin.get_secret_value()


async def test_every_failed_attempt_is_reported_and_the_dead_letter_at_a_level_of_its_own(
    make_app: Callable[..., Backstay], sentry: Receiver
) -> None:
    app = make_app(observers=[Sentry(sentry.dsn)])

    @app.job("mail", max_attempts=2, backoff=Backoff(0), queue="mails")
    async def mail(payload: Mail) -> None:
        raise ConnectionError("the server hung up")

    async with app:
        handle = await mail.submit(Mail(to="ada"), subject="order 7")
        [job] = await drain(app)
    first, dead = sentry.wait_for(2)
    assert [event["level"] for event in (first, dead)] == ["warning", "fatal"]
    assert [event["tags"]["outcome"] for event in (first, dead)] == ["retried", "dead letter"]
    assert [event["contexts"]["job"]["attempt"] for event in (first, dead)] == [1, 2]
    for event in (first, dead):
        assert event["fingerprint"] == ["backstay", "mail", "ConnectionError"]
        assert event["tags"].items() >= {"job_id": handle.job_id, "job_type": "mail", "queue": "mails"}.items()
        told = event["contexts"]["job"]
        assert told["job_id"] == handle.job_id and told["worker_id"] == job.history[-1].by
        assert told["max_attempts"] == 2 and told["subject"] == "order 7"
        [exception] = event["exception"]["values"]
        assert (exception["type"], exception["value"]) == ("ConnectionError", "the server hung up")
        frame = exception["stacktrace"]["frames"][-1]
        assert (frame["filename"], frame["function"]) == ("test_sentry.py", mail.function.__qualname__.split(".")[-1])
        assert frame["context_line"] == 'raise ConnectionError("the server hung up")' and frame["in_app"]
        assert "ConnectionError: the server hung up" in event["extra"]["traceback"]


async def test_a_report_has_the_payload_without_any_secret_and_no_secret_anywhere_else(
    make_app: Callable[..., Backstay], sentry: Receiver
) -> None:
    app = make_app(observers=[Sentry(sentry.dsn, redact=["IBAN"])])

    @app.job("mail", max_attempts=1)
    async def mail(payload: Mail) -> None:
        local = payload.password  # what is in a frame stays there
        raise ValueError(f"cannot log in with {local!r} at {payload.database}")

    async with app:
        await mail.submit(Mail(to="ada"))
        await drain(app)
    [event] = sentry.wait_for(1)
    assert CANARY.encode() not in sentry.raw
    assert '"to":"ada"' in event["extra"]["payload"] and '"size":3' in event["extra"]["payload"]
    assert '"iban":"•••"' in event["extra"]["payload"] and '"pin":"•••"' in event["extra"]["payload"]
    assert event["exception"]["values"][0]["value"] == "cannot log in with '•••' at postgresql://shop:•••@db/shop"


async def test_a_report_of_a_large_payload_stays_small(make_app: Callable[..., Backstay], sentry: Receiver) -> None:
    app = make_app(observers=[Sentry(sentry.dsn)])

    @app.job("mail", max_attempts=1)
    async def mail(payload: Mail) -> None:
        raise ValueError("no")

    async with app:
        await mail.submit(Mail(to="ada", body="x" * 200_000))
        await drain(app)
    [event] = sentry.wait_for(1)
    assert "characters in all" in event["extra"]["payload"] and len(sentry.raw) < 40_000


async def test_only_failures_are_reported(make_app: Callable[..., Backstay], sentry: Receiver) -> None:
    app = make_app(observers=[Sentry(sentry.dsn)])

    @app.job("mail", backoff=Backoff(0))
    async def mail(payload: str, ctx: Context) -> None:
        if ctx.attempt == 1:
            match payload:
                case "snooze":
                    raise Snooze(0)
                case "cancel":
                    raise Cancel("not needed")
                case "retry":
                    raise Retry("busy", after=0)
                case "discard":
                    raise Discard("makes no sense")

    async with app:
        for each in ("complete", "snooze", "cancel", "retry", "discard"):
            await mail.submit(each)
        await drain(app)
    sentry_sdk.flush(10)
    reported = sorted((event["exception"]["values"][0]["type"], event["level"]) for event in sentry.wait_for(2))
    assert reported == [("Discard", "fatal"), ("Retry", "warning")]


async def test_the_programs_own_client_is_used_and_a_failure_is_told_once(
    make_app: Callable[..., Backstay], sentry: Receiver
) -> None:
    sentry_sdk.init(sentry.dsn, release="shop@7", before_send=lambda event, hint: {**event, "environment": "yard"})
    app = make_app(observers=[Sentry("http://public@127.0.0.1:1/1")])

    @app.job("mail", max_attempts=1)
    def mail(payload: str) -> None:
        logging.getLogger("shop").info("sending")
        raise ValueError("no")

    async with app:
        await mail.submit("x")
        await drain(app)
    sentry_sdk.flush(10)
    [event] = sentry.wait_for(1)
    assert (event["release"], event["environment"], event["level"]) == ("shop@7", "yard", "fatal")


async def test_what_a_handler_reports_itself_carries_its_job_and_nothing_of_another(
    make_app: Callable[..., Backstay], sentry: Receiver
) -> None:
    app = make_app(observers=[Sentry(sentry.dsn)])

    @app.job("mail")
    async def mail(payload: str) -> None:
        sentry_sdk.set_tag(payload, "mine")
        sentry_sdk.capture_message(f"look at {payload}")

    async with app:
        handles = await app.submit_many([("mail", "a"), ("mail", "b")])
        async with app.worker(concurrency=1):
            for handle in handles:
                await handle.result(timeout=10)
    events = {event["message"]: event["tags"] for event in sentry.wait_for(2)}
    tags = [events["look at a"], events["look at b"]]
    assert [each["job_id"] for each in tags] == [handle.job_id for handle in handles]
    assert [sorted({"a", "b"} & each.keys()) for each in tags] == [["a"], ["b"]]


@pytest.mark.parametrize("finder", [Backstay.worker, lambda app: app.maintenance("server")], ids=["worker", "server"])
async def test_an_attempt_whose_worker_died_is_reported_by_whoever_finds_it(
    make_app: Callable[..., Backstay], sentry: Receiver, finder: Callable[[Backstay], Any]
) -> None:
    app = make_app(observers=[Sentry(sentry.dsn, redact=["iban"])], lease=1, poll_interval=0.05)

    @app.job("mail", max_attempts=1)
    async def mail(payload: Mail) -> None: ...

    async with app:
        handle = await mail.submit(Mail(to="ada"))
        request = ClaimRequest("lost:1:abc", "1", ("default",), {"mail": 1}, 1, 1, "token")
        assert len(await app.store.claim(request, app.clock.now())) == 1
        async with finder(app):
            with pytest.raises(JobFailed):
                await handle.result(timeout=10)
            [event] = await asyncio.to_thread(sentry.wait_for, 1)  # it is told once the job's end is stored
    assert event["level"] == "fatal" and event["fingerprint"] == ["backstay", "mail", "LeaseLost"]
    assert event["contexts"]["job"]["worker_id"] == "lost:1:abc"
    assert '"to":"ada"' in event["extra"]["payload"]
    assert CANARY.encode() not in sentry.raw


async def test_a_worker_with_a_dsn_in_its_environment_reports_before_it_leaves(
    make_app: Callable[..., Backstay], sentry: Receiver, worker_process: WorkerProcess
) -> None:
    async with make_app() as app:
        with worker_process("tests.observers.reported_jobs:app", BACKSTAY_SENTRY_DSN=sentry.dsn):

            async def announced() -> bool:
                return bool(await app.store.job_types())

            await eventually(announced, 30)
            handle = await app.submit("report", {"token": CANARY})
            with pytest.raises(JobFailed):
                await handle.result(timeout=30)
    [event] = sentry.wait_for(1)
    assert event["contexts"]["job"]["job_id"] == handle.job_id and event["level"] == "fatal"
    assert event["exception"]["values"][0]["stacktrace"]["frames"][-1]["function"] == "report"
    assert CANARY.encode() not in sentry.raw
