"""Rolling deploys: old and new workers side by side, payloads that wait through one, submits without the code."""

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from backstay import Backoff, Backstay, InvalidOption, InvalidPayload, JobFailed, UnknownJobType
from backstay.testing import ManualClock
from tests.app import versioned_jobs
from tests.support.eventually import eventually


class Old(BaseModel):
    name: str


class New(BaseModel):
    first: str
    last: str


def split(payload: Any, version: int) -> Any:
    assert version == 1
    first, _, last = payload["name"].partition(" ")
    return {"first": first, "last": last}


def old_release(app: Backstay) -> Backstay:
    @app.job("greet")
    async def greet(payload: Old) -> str:
        return f"old: {payload.name}"

    @app.job("other")
    async def other(payload: None) -> None: ...

    return app


def new_release(app: Backstay, upcast: Any = split, **options: Any) -> Backstay:
    @app.job("greet", version=2, upcast=upcast, backoff=Backoff(0.001, 1, jitter=0), **options)
    async def greet(payload: New) -> str:
        return f"new: {payload.last}, {payload.first}"

    return app


ADA = {"name": "Ada Lovelace"}


# Side by side


async def test_a_new_payload_waits_for_a_new_worker_and_an_old_one_runs_on_either(
    make_app: Callable[..., Backstay],
) -> None:
    async with old_release(make_app()) as old, new_release(make_app()) as new:
        async with old.worker():
            newer = await new.submit("greet", {"first": "Ada", "last": "Lovelace"})
            older = await old.submit("greet", ADA)
            assert await older.result(timeout=10) == "old: Ada Lovelace"
            await (await old.submit("other")).result(timeout=10)  # the old worker goes on claiming
            assert (await newer.record()).status == "pending"
            assert (await old.explain(newer.job_id)).reason == "no_worker_for_version"

            async with new.worker():
                assert await newer.result(timeout=10) == "new: Lovelace, Ada"
        async with new.worker():
            older = await old.submit("greet", ADA)
            assert (older.payload_version, newer.payload_version) == (1, 2)
            assert await older.result(timeout=10) == "new: Lovelace, Ada"


async def test_with_both_kinds_of_workers_every_job_of_either_release_completes_once(
    make_app: Callable[..., Backstay],
) -> None:
    async with old_release(make_app()) as old, new_release(make_app()) as new, old.worker(), new.worker():
        olds = await old.submit_many([("greet", {"name": f"A {n}"}) for n in range(50)])
        news = await new.submit_many([("greet", {"first": "A", "last": str(n)}) for n in range(50)])
        for n, (older, newer) in enumerate(zip(olds, news, strict=True)):
            assert await older.result(timeout=20) in (f"old: A {n}", f"new: {n}, A")
            assert await newer.result(timeout=20) == f"new: {n}, A"
        assert {(await handle.record()).failures for handle in (*olds, *news)} == {0}


async def test_a_job_that_waits_through_a_deploy_is_brought_up_to_date(make_app: Callable[..., Backstay]) -> None:
    async with old_release(make_app()) as old:
        waiting = await old.submit("greet", ADA)
    async with new_release(make_app()) as new, new.worker():
        assert await new.result(waiting.job_id, timeout=10) == "new: Lovelace, Ada"
        job = await new.get(waiting.job_id)
    assert (job.payload, job.payload_version) == (ADA, 1)  # as it was submitted


async def test_an_older_payload_that_fits_as_it_is_needs_no_upcast(make_app: Callable[..., Backstay]) -> None:
    app = make_app()

    @app.job("greet", version=7)
    async def greet(payload: Old) -> str:
        return payload.name

    async with old_release(make_app()) as old:
        waiting = await old.submit("greet", ADA)
    async with app, app.worker():
        assert await app.result(waiting.job_id, timeout=10) == "Ada Lovelace"


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_upcasts_run_where_the_handler_runs(make_app: Callable[..., Backstay], isolation: str) -> None:
    async with old_release(make_app()) as old:
        good = await old.submit("greet", ADA)
        bad = await old.submit("greet", {"name": "broken"})
    app = make_app()
    if isolation == "process":
        versioned_jobs.bind(app)
    else:

        @app.job("greet", version=2, upcast=versioned_jobs.split, max_attempts=1)
        def greet(payload: versioned_jobs.Name) -> str:
            return f"{payload.last}, {payload.first}"

    async with app, app.worker():
        assert await app.result(good.job_id, timeout=20) == "Lovelace of version 1, Ada"

        async def told() -> bool:
            return "upcast from version 1 raised KeyError" in str((await app.get(bad.job_id)).last_error)

        await eventually(told)


async def test_an_upcast_may_give_the_model_or_json_that_a_strict_one_reads(make_app: Callable[..., Backstay]) -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        day: date

    async with old_release(make_app()) as old:
        by_json = await old.submit("greet", {"name": "2030-01-02"})
        by_model = await old.submit("greet", {"name": "model"})
    app = make_app()

    def upcast(payload: Any, version: int) -> Any:
        return Strict(day=date(2030, 1, 1)) if payload["name"] == "model" else {"day": payload["name"]}

    @app.job("greet", version=2, upcast=upcast)
    async def greet(payload: Strict) -> str:
        return str(payload.day)

    async with app, app.worker():
        assert await app.result(by_json.job_id, timeout=10) == "2030-01-02"
        assert await app.result(by_model.job_id, timeout=10) == "2030-01-01"


# Never lost


def broken(payload: Any, version: int) -> Any:
    raise LookupError("no idea what this was")


@pytest.mark.parametrize(
    ("upcast", "reason"),
    [
        (broken, "upcast from version 1 raised LookupError: no idea what this was"),
        (lambda payload, version: {"first": "Ada"}, "last: Field required"),
        (lambda payload, version: None, "Input should be an object"),
        (None, "first: Field required"),
    ],
    ids=["raises", "does not fit", "gives nothing", "is missing"],
)
async def test_a_payload_that_cannot_be_read_is_retried_with_the_reason_and_ends_as_a_dead_letter(
    make_app: Callable[..., Backstay], upcast: Any, reason: str
) -> None:
    async with old_release(make_app()) as old:
        waiting = await old.submit("greet", ADA, max_attempts=2)
    async with new_release(make_app(), upcast=upcast) as new, new.worker():
        with pytest.raises(JobFailed, match="InvalidPayload"):
            await new.result(waiting.job_id, timeout=10)
        job = await new.get(waiting.job_id)
        assert (job.status, job.failures, job.payload) == ("failed", 2, ADA)
        assert [entry.event for entry in job.history if entry.event in ("retry", "exhaust")] == ["retry", "exhaust"]
        for entry in job.history:
            if entry.event in ("retry", "exhaust"):
                assert reason in str(entry.reason)
        assert [group.error_type for group in await new.dead()] == ["InvalidPayload"]

    async with new_release(make_app()) as mended, mended.worker():
        await mended.retry(waiting.job_id)
        assert await mended.result(waiting.job_id, timeout=10) == "new: Lovelace, Ada"


async def test_a_payload_that_one_worker_cannot_read_may_run_on_another(make_app: Callable[..., Backstay]) -> None:
    """Where nobody has declared a version: the failure is retried, and whoever comes next may do better."""
    app = make_app()

    @app.job("greet", backoff=Backoff(0.001, 1, jitter=0))
    async def greet(payload: New) -> str:
        return payload.last

    async with old_release(make_app()) as old, app:
        waiting = await old.submit("greet", ADA, max_attempts=1_000)
        async with app.worker():

            async def refused() -> bool:
                return (await waiting.record()).failures > 0

            await eventually(refused)
        async with old.worker():
            assert await waiting.result(timeout=10) == "old: Ada Lovelace"


@pytest.mark.parametrize(
    "options", [{"version": 0}, {"version": "2"}, {"version": True}, {"version": 2, "upcast": "split"}], ids=str
)
def test_a_version_or_an_upcast_that_cannot_be_meant_is_refused(app: Backstay, options: Any) -> None:
    with pytest.raises(InvalidOption, match=r"version|upcast"):

        @app.job("greet", **options)
        async def greet(payload: Old) -> None: ...


def test_an_upcast_is_a_plain_function(app: Backstay) -> None:
    async def upcast(payload: Any, version: int) -> Any: ...

    with pytest.raises(InvalidOption, match="plain function"):

        @app.job("greet", version=2, upcast=upcast)
        async def greet(payload: Old) -> None: ...


# Without the code


class Address(BaseModel):
    street: str
    zip: int | None = None


class Order(BaseModel):
    customer: str
    home: Address
    others: list[Address] = []
    note: str | None = None


def with_orders(app: Backstay, **options: Any) -> Backstay:
    @app.job("order", **options)
    async def order(payload: Order) -> str:
        return f"{payload.customer} in {payload.home.street}, {len(payload.others)}, {payload.note}"

    return app


async def test_who_has_not_the_code_can_submit_what_the_announced_schema_takes(
    make_app: Callable[..., Backstay],
) -> None:
    async with with_orders(make_app(), queue="shop", priority=70, version=3) as app, make_app() as other, app.worker():
        short = await other.submit("order", {"customer": "Ada", "home": {"street": "Elm"}})
        assert (short.queue, short.priority, short.payload_version) == ("shop", 70, 3)
        assert await short.result(timeout=10) == "Ada in Elm, 0, None"
        full = {"customer": "Ada", "home": {"street": "Elm", "zip": 5}, "others": [{"street": "Oak"}], "note": None}
        assert await (await other.submit("order", full)).result(timeout=10) == "Ada in Elm, 1, None"


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"customer": "Ada"}, "'home' is a required property"),
        ({"customer": "Ada", "home": {"street": "Elm", "zip": "x"}}, "home.zip: 'x' is not of type 'integer'"),
        ({"customer": "Ada", "home": {"street": "Elm"}, "others": [{"zip": 1}]}, "others.0: 'street' is a required"),
        ("Ada", "'Ada' is not of type 'object'"),
    ],
    ids=["missing", "optional", "nested", "no object"],
)
async def test_what_the_announced_schema_does_not_take_is_refused_and_the_place_is_named(
    make_app: Callable[..., Backstay], payload: Any, says: str
) -> None:
    async with with_orders(make_app()):
        pass
    async with make_app() as other:
        with pytest.raises(InvalidPayload) as caught:
            await other.submit("order", payload)
        assert says in str(caught.value)
        with pytest.raises(InvalidPayload, match="job 1 of 2"):
            await other.submit_many([("order", {"customer": "Ada", "home": {"street": "Elm"}}), ("order", payload)])
        assert sum((await other.counts()).values()) == 0


async def test_a_type_that_nobody_has_announced_is_refused_with_what_to_do(app: Backstay) -> None:
    async with app:
        with pytest.raises(UnknownJobType, match="start its worker once"):
            await app.submit("order", {})


async def test_who_submits_without_the_code_follows_a_deploy_within_seconds(make_app: Callable[..., Backstay]) -> None:
    clock = ManualClock()
    async with old_release(make_app(clock=clock)), make_app(clock=clock) as other:
        assert (await other.submit("greet", ADA)).payload_version == 1
        async with new_release(make_app(clock=clock)):
            clock.advance(10)
            assert (await other.submit("greet", {"first": "Ada", "last": "Lovelace"})).payload_version == 2
