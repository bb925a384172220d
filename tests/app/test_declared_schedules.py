"""Schedules in code: workers store them, newer code changes and removes its own, and what people made stays."""

import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import msgspec
import pytest
from pydantic import BaseModel

from backstay import Backstay, ConfigurationError, Context, InvalidOption, InvalidPayload, InvalidSchedule
from backstay.clock import to_datetime
from backstay.core import declarations
from backstay.core.records import WorkerRow
from backstay.ops.declare import Declarer
from backstay.sync import Backstay as BlockingBackstay
from backstay.testing import ManualClock
from tests.app.report_app import HOUR, MINUTE, NOON, Report, look, ticks, with_report

Make = Callable[..., Backstay]


@pytest.fixture
async def store_app(make_app: Make) -> AsyncIterator[Backstay]:
    """Keeps the queue open, on the clock that all apps of a test use."""
    async with make_app(clock=ManualClock(NOON - 5 * MINUTE)) as app:
        yield app


async def _start_worker(app: Backstay) -> None:
    """What a worker of this code does when it starts."""
    async with app:
        assert await Declarer(app.store, app.clock, app._code()).declare()


def _reports(make_app: Make, clock: object, name: str = "reports", **schedules: str) -> Backstay:
    app = with_report(make_app(clock=clock, name=name))
    for each, rule in schedules.items():
        app.cron(each, rule, "report", {"kind": each})
    return app


async def _rules(app: Backstay) -> dict[str, str]:
    return {each.name: each.cron for each in await app.schedules()}


async def test_a_worker_that_starts_stores_the_schedules_of_its_code(make_app: Make) -> None:
    app = make_app(name="reports")

    @app.job("nightly", cron="30 3 * * *", timezone="Europe/Berlin", cron_payload={"kind": "night"}, missed="all")
    async def nightly(payload: Report, ctx: Context) -> None: ...

    app.cron("weekly", "0 7 * * MON", nightly, Report(kind="week"), overlap="skip", priority="high")

    async with app:
        assert await app.schedules() == []  # only a worker declares
        async with app.worker():
            found = {each.name: each for each in await app.schedules()}
    first, second = found["nightly"], found["weekly"]
    assert (first.cron, first.timezone, first.missed) == ("30 3 * * *", "Europe/Berlin", "all")
    assert (first.job_type, first.payload, first.declared_by) == ("nightly", {"kind": "night", "pages": 1}, "reports")
    assert (second.job_type, second.overlap, second.priority) == ("nightly", "skip", 75)


async def test_declaring_again_changes_nothing(make_app: Make, store_app: Backstay) -> None:
    app = _reports(make_app, store_app.clock, hourly="@hourly")
    await _start_worker(app)
    before = await store_app.schedules()
    trail = len(await store_app.audit_trail())

    await _start_worker(app)

    assert await store_app.schedules() == before
    assert len(await store_app.audit_trail()) == trail


async def test_newer_code_changes_removes_and_adds_its_own_schedules_and_no_others(
    make_app: Make, store_app: Backstay
) -> None:
    clock = store_app.clock
    await _start_worker(_reports(make_app, clock, kept="@hourly", changed="@hourly", removed="@hourly"))
    await _start_worker(_reports(make_app, clock, name="billing", invoices="@daily"))
    async with _reports(make_app, clock) as by_hand:
        await by_hand.schedule("manual", "@weekly", "report", {"kind": "x"})

    await _start_worker(_reports(make_app, clock, kept="@hourly", changed="@daily", added="@monthly"))

    assert await _rules(store_app) == {
        "kept": "@hourly",
        "changed": "@daily",
        "added": "@monthly",
        "invoices": "@daily",
        "manual": "@weekly",
    }
    entries = [(each.by, each.action, each.target) for each in await store_app.audit_trail(limit=3)]
    assert ("code:reports", "schedule.delete", "removed") in entries


async def test_code_that_declares_nothing_any_more_removes_the_last_of_its_schedules(
    make_app: Make, store_app: Backstay
) -> None:
    await _start_worker(_reports(make_app, store_app.clock, hourly="@hourly"))

    await _start_worker(_reports(make_app, store_app.clock))

    assert await store_app.schedules() == []


async def test_a_schedule_that_an_operator_paused_stays_paused(make_app: Make, store_app: Backstay) -> None:
    await _start_worker(_reports(make_app, store_app.clock, hourly="@hourly"))
    await store_app.pause_schedule("hourly", by="ada")

    await _start_worker(_reports(make_app, store_app.clock, hourly="@daily"))

    [schedule] = await store_app.schedules()
    assert (schedule.cron, schedule.paused_by) == ("@daily", "ada")


async def test_a_name_that_someone_has_given_to_a_schedule_stays_theirs(
    make_app: Make, store_app: Backstay, caplog: pytest.LogCaptureFixture
) -> None:
    async with _reports(make_app, store_app.clock) as app:
        before = await app.schedule("hourly", "@daily", "report", {"kind": "mine"})

    with caplog.at_level(logging.WARNING):
        await _start_worker(_reports(make_app, store_app.clock, hourly="@hourly"))
        await _start_worker(_reports(make_app, store_app.clock))  # … and is not removed with the declaration

    assert await store_app.schedules() == [before]
    assert 'remove it ("backstay schedules remove hourly")' in caplog.text


async def test_a_call_does_not_change_what_code_declares(make_app: Make, store_app: Backstay) -> None:
    app = _reports(make_app, store_app.clock, hourly="@hourly")
    await _start_worker(app)

    async with app:
        with pytest.raises(InvalidSchedule, match="declared in the code of reports: change it there"):
            await app.schedule("hourly", "@daily", "report", {"kind": "x"})

    assert await _rules(store_app) == {"hourly": "@hourly"}


async def test_a_type_by_name_waits_until_a_worker_has_announced_it(
    make_app: Make, store_app: Backstay, caplog: pytest.LogCaptureFixture
) -> None:
    app = with_report(make_app(clock=store_app.clock, name="reports"))
    app.cron("mail", "@hourly", "send-mail", {"to": "ada"})
    async with app:
        declarer = Declarer(app.store, app.clock, app._code())
        assert not await declarer.declare()
        assert "no worker has announced the type send-mail yet" in caplog.text
        other = make_app(clock=store_app.clock)
        other.job("send-mail")(_handler)
        async with other:
            assert await declarer.declare()
    [schedule] = await store_app.schedules()
    assert (schedule.job_type, schedule.payload) == ("send-mail", {"to": "ada"})


async def _handler(payload: dict, ctx: Context) -> None: ...


# Deploys


def _worker(app: Backstay, worker_id: str, **changes: object) -> WorkerRow:
    code, now = app._code(), app.clock.now()
    row = WorkerRow(
        worker_id=worker_id,
        host="elsewhere",
        pid=1,
        process_key="",
        version="1",
        queues=("default",),
        job_types=code.job_types,
        concurrency=1,
        started_at=now,
        heartbeat_at=now,
        origin=code.origin,
        declares=code.digest,
    )
    return msgspec.structs.replace(row, **changes)


async def test_an_old_worker_that_starts_again_during_a_deploy_changes_nothing(
    make_app: Make, store_app: Backstay, caplog: pytest.LogCaptureFixture
) -> None:
    clock = store_app.clock
    old = _reports(make_app, clock, kept="@hourly", removed="@hourly")
    new = _reports(make_app, clock, kept="@daily", added="@hourly")
    await _start_worker(old)
    await _start_worker(new)
    await store_app.store.beat(_worker(new, "new"))

    async with old:
        assert not await Declarer(old.store, old.clock, old._code()).declare()

    assert await _rules(store_app) == {"kept": "@daily", "added": "@hourly"}
    assert "newer code has declared its schedules" in caplog.text


@pytest.mark.parametrize("end", ["gone", "stopping", "silent"])
async def test_after_a_rollback_the_old_code_holds_again(make_app: Make, store_app: Backstay, end: str) -> None:
    clock = store_app.clock
    assert isinstance(clock, ManualClock)
    old, new = _reports(make_app, clock, hourly="@hourly"), _reports(make_app, clock, hourly="@daily")
    await _start_worker(old)
    await _start_worker(new)
    await store_app.store.beat(_worker(new, "new", stopping=end == "stopping"))
    if end == "gone":
        await store_app.store.forget(["new"], clock.now())
    elif end == "silent":
        clock.advance(HOUR)

    await _start_worker(old)

    assert await _rules(store_app) == {"hourly": "@hourly"}


async def test_two_apps_with_one_name_do_not_remove_each_others_schedules(
    make_app: Make, store_app: Backstay, caplog: pytest.LogCaptureFixture
) -> None:
    first = _reports(make_app, store_app.clock, name="main:app", hourly="@hourly")
    await _start_worker(first)
    await store_app.store.beat(_worker(first, "first"))
    second = make_app(clock=store_app.clock, name="main:app")
    second.job("invoice", cron="@daily")(_handler)

    async with second:
        assert not await Declarer(second.store, second.clock, second._code()).declare()

    assert await _rules(store_app) == {"hourly": "@hourly"}
    assert "give each its own, Backstay(name=" in caplog.text


def test_code_that_the_store_has_replaced_stays_known_for_long() -> None:
    declaration = None
    for number in range(100):
        code = declarations.Code("app", (), (), f"d{number}")
        declaration = declarations.replaced(declaration, code, number)
    assert declaration is not None
    assert (declaration.digest, len(declaration.superseded), declaration.superseded[0]) == ("d99", 50, "d98")


async def test_a_worker_that_is_overtaken_while_it_declares_changes_nothing(
    make_app: Make, store_app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = store_app.clock
    old, new = _reports(make_app, clock, hourly="@hourly"), _reports(make_app, clock, hourly="@daily")
    await _start_worker(new)  # then the old one starts, and finds the new one ready to take over again
    async with old:
        schedules = old.store.schedules

        async def overtaken(*args: object, **options: object) -> object:
            monkeypatch.undo()
            await _start_worker(new)
            await store_app.store.beat(_worker(new, "new"))
            return await schedules(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(old.store, "schedules", overtaken)
        assert not await Declarer(old.store, old.clock, old._code()).declare()

    assert await _rules(store_app) == {"hourly": "@daily"}


# Declarations


class Empty(BaseModel):
    pass


async def test_a_job_without_a_payload_of_its_own_gets_an_empty_one(make_app: Make, store_app: Backstay) -> None:
    app = make_app(clock=store_app.clock, name="reports")

    @app.job("model", cron="@hourly")
    async def model(payload: Empty, ctx: Context) -> None: ...

    @app.job("nothing", cron="@hourly")
    async def nothing(payload: None, ctx: Context) -> None: ...

    @app.job("several", cron="@hourly")
    async def several(to: str = "all", *, ctx: Context) -> None: ...

    await _start_worker(app)

    assert [each.payload for each in await store_app.schedules()] == [{}, None, {"to": "all"}]


def test_mistakes_in_a_declaration_are_errors_where_they_are_written(make_app: Make) -> None:
    app = with_report(make_app())
    with pytest.raises(ConfigurationError, match="cron needs cron_payload="):
        app.job("needs-payload", cron="@hourly")(_takes_report)
    with pytest.raises(ConfigurationError, match=r"overlap needs cron="):
        app.job("no-rule", overlap="skip")
    with pytest.raises(InvalidPayload):
        app.cron("a", "@hourly", "report", {"kind": 7})
    for options in ({"overlap": "maybe"}, {"jitter": -1}, {"jitter": 90_000}, {"missed": "some"}):
        with pytest.raises(InvalidSchedule):
            app.cron("a", "@hourly", "report", {"kind": "x"}, **options)
    with pytest.raises(InvalidSchedule, match="has no tick from"):
        app.cron("a", "@daily", "report", {"kind": "x"}, starts_at=NOON, ends_at=NOON + HOUR)
    app.cron("a", "@hourly", "report", {"kind": "x"})
    with pytest.raises(ConfigurationError, match="declared twice"):
        app.cron("a", "@daily", "report", {"kind": "x"})
    with pytest.raises(InvalidOption, match="no option colour"):
        app.cron("b", "@daily", "report", {"kind": "x"}, colour="red")  # type: ignore[call-overload]


async def _takes_report(payload: Report, ctx: Context) -> None: ...


def test_an_app_is_named_by_where_it_was_made(make_app: Make) -> None:
    assert make_app().name == "tests.app.conftest:make_app.make"
    assert MADE_HERE.name == "tests.app.test_declared_schedules:MADE_HERE"
    assert MADE_HERE.sync.name == MADE_HERE.name
    assert BLOCKING.name == "tests.app.test_declared_schedules:BLOCKING"
    assert make_app(name="billing").name == "billing"
    with pytest.raises(InvalidOption, match="cannot be a name of an app"):
        make_app(name="two words")


MADE_HERE = Backstay("sqlite:///never-opened.db")
BLOCKING = BlockingBackstay("sqlite:///never-opened.db")


def test_the_blocking_api_declares_and_backfills_too(make_app: Make) -> None:
    app = BlockingBackstay(make_app().url, name="reports")

    @app.job("report", cron="@every 1d", overlap="replace")
    def report(payload: dict) -> None: ...

    app.cron("other", "@hourly", report, {"a": 1})
    with app:
        with app.worker():
            found = app.schedules()
        now = to_datetime(app.inner.clock.now())
        assert app.backfill("report", now - timedelta(days=2.5), now).ticks in (2, 3)
    assert [(each.name, each.overlap) for each in found] == [("other", "queue"), ("report", "replace")]


async def test_what_code_declares_ticks(make_app: Make, store_app: Backstay) -> None:
    await _start_worker(_reports(make_app, store_app.clock, hourly="@hourly"))

    await look(store_app, NOON)

    assert await ticks(store_app) == [NOON]
