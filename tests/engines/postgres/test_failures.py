"""A server that is there and does not do what it is asked: said in Backstay's own errors, and got over by itself."""

import asyncio
import errno
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from backstay import Backstay
from backstay.core.records import Signal, Verdict
from backstay.core.states import Status
from backstay.engines.postgres import connection as postgres_connection
from backstay.engines.postgres.files import files_of
from backstay.engines.postgres.store import PostgresStore
from backstay.errors import ConfigurationError, StoreBusy, StoreUnavailable
from backstay.files.local import LOG_FILE
from backstay.testing.conformance.factories import NOW, Claim, new_job, record, request
from tests.support.eventually import eventually
from tests.support.servers.postgres import Postgres
from tests.support.servers.proxy import Proxy


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url(schema=f"failing_{secrets.token_hex(3)}")


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(f"{url}&clock=caller&wake=false")
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def foreigner(postgres: Postgres) -> AsyncIterator[Any]:
    """Someone else on the same server."""
    connection = await asyncpg.connect(postgres.url())
    yield connection
    await connection.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs give up on a server after half a second."""
    monkeypatch.setattr(postgres_connection, "OUTAGE_SECONDS", 0.5)


@pytest.fixture
def server() -> Iterator[Postgres]:
    """One that this test may spoil."""
    with Postgres(settings={"max_connections": "15", "superuser_reserved_connections": "0"}) as own:
        yield own


def an_app(url: str) -> Backstay:
    app = Backstay(url, lease=5, poll_interval=0.5)

    @app.job("double", max_attempts=20, backoff=None)
    async def double(payload: dict[str, int], ctx: Any) -> int:
        return 2 * payload["n"]

    return app


@asynccontextmanager
async def held(foreigner: Any, statement: str) -> AsyncIterator[None]:
    """Someone else's transaction has run it, and does not end."""
    transaction = foreigner.transaction()
    await transaction.start()
    await foreigner.execute(statement)
    try:
        yield
    finally:
        await transaction.rollback()


async def someone_waits(postgres: Postgres, count: int = 1) -> None:
    """For a lock."""
    watcher = await asyncpg.connect(postgres.url())

    async def waiting() -> bool:
        found = await watcher.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return bool(found >= count)

    await eventually(waiting)
    await watcher.close()


async def all_free_connections(server: Postgres) -> list[Any]:
    taken: list[Any] = []
    while True:
        try:
            taken.append(await asyncpg.connect(server.url()))
        except asyncpg.TooManyConnectionsError:
            return taken


# Read-only


@pytest.mark.usefixtures("impatient")
async def test_a_read_only_server_is_unavailable_until_it_takes_writes_again(server: Postgres) -> None:
    app = an_app(server.url())
    async with app, app.worker():
        await (await app.submit("double", {"n": 1})).result(timeout=10)
        operator = await asyncpg.connect(server.url())
        await operator.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await operator.execute("SELECT pg_reload_conf()")

        async def refused() -> bool:
            try:
                await app.submit("double", {"n": 2})
            except StoreUnavailable as error:
                return "read-only" in str(error)
            return False

        await eventually(refused)
        await operator.execute("SET default_transaction_read_only = off")
        await operator.execute("ALTER SYSTEM RESET default_transaction_read_only")
        await operator.execute("SELECT pg_reload_conf()")
        await operator.close()

        async def accepted() -> bool:
            try:
                return await (await app.submit("double", {"n": 3})).result(timeout=10) == 6
            except StoreUnavailable:
                return False

        await eventually(accepted)


@pytest.mark.usefixtures("impatient")
async def test_a_standby_is_unavailable_until_it_is_promoted(server: Postgres) -> None:
    app = an_app(server.url())
    async with app, app.worker():
        await (await app.submit("double", {"n": 1})).result(timeout=10)
        await asyncio.to_thread(server.stop)
        server.become_standby()
        await asyncio.to_thread(server.start)
        with pytest.raises(StoreUnavailable, match="read-only"):
            await app.submit("double", {"n": 2})
        operator = await asyncpg.connect(server.url())
        assert await operator.fetchval("SELECT pg_promote()")
        await operator.close()
        assert await (await app.submit("double", {"n": 3})).result(timeout=10) == 6


@pytest.mark.usefixtures("impatient")
async def test_an_app_does_not_open_on_a_standby_without_a_schema_and_says_why(server: Postgres) -> None:
    server.stop()
    server.become_standby()
    server.start()

    with pytest.raises(StoreUnavailable, match="read-only"):
        await PostgresStore(server.url()).open()


# Too many connections


@pytest.mark.usefixtures("impatient")
async def test_a_server_without_a_free_connection_is_unavailable_until_it_has_one(server: Postgres) -> None:
    app = an_app(server.url())
    async with app, app.worker():
        crowd = await all_free_connections(server)
        with pytest.raises(StoreUnavailable, match="too many clients"):
            await PostgresStore(server.url()).open()
        for connection in crowd:
            await connection.close()
        assert await (await app.submit("double", {"n": 4})).result(timeout=10) == 8
        late = PostgresStore(server.url())
        await late.open()
        await late.close()


# Locks of others


async def test_a_deadlock_with_someone_else_is_got_over(
    store: PostgresStore, postgres: Postgres, foreigner: Any
) -> None:
    first, second = sorted((new_job(), new_job()), key=lambda job: job.job_id)
    await store.insert([first, second], NOW)
    asked = request(limit=2)
    claims = [Claim(job, asked.token) for job in await store.claim(asked, NOW)]
    lock = f"SELECT 1 FROM \"{store.address.schema}\".job WHERE job_id = '{{}}' FOR UPDATE"

    async with held(foreigner, lock.format(second.job_id)):
        await foreigner.execute("SET deadlock_timeout = '30s'")  # so that the server ends it at our cost
        settling = asyncio.create_task(store.apply([claim.fails("ValueError", "no") for claim in claims], NOW))
        await someone_waits(postgres)  # we hold the first and want the second
        await foreigner.execute(lock.format(first.job_id))  # until the server ends the circle
    assert await settling == [Verdict.APPLIED] * 2

    for claim in claims:
        assert len((await record(store, claim.job_id)).history) == 3


async def test_a_lock_that_is_not_given_back_makes_a_verb_busy_and_leaves_nothing_behind(
    store: PostgresStore, foreigner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _set_timeouts(store, monkeypatch, lock_timeout="200")
    monkeypatch.setattr(postgres_connection, "OUTAGE_SECONDS", 0.5)
    job = new_job()

    async with held(foreigner, f'LOCK TABLE "{store.address.schema}".job IN EXCLUSIVE MODE'):
        with pytest.raises(StoreBusy):
            await store.insert([job], NOW)

    assert await store.get([job.job_id]) == [None]
    assert (await store.insert([job], NOW))[0].status is Status.PENDING


async def test_a_statement_that_takes_too_long_is_ended_and_leaves_nothing_behind(
    store: PostgresStore, foreigner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _set_timeouts(store, monkeypatch, statement_timeout="2000")
    job = new_job()

    async with held(foreigner, f'LOCK TABLE "{store.address.schema}".job IN EXCLUSIVE MODE'):
        with pytest.raises(StoreBusy, match="too long"):
            await store.insert([job], NOW)

    assert await store.get([job.job_id]) == [None]
    assert (await store.insert([job], NOW))[0].status is Status.PENDING


async def _set_timeouts(store: PostgresStore, patch: pytest.MonkeyPatch, **millis: str) -> None:
    usual = postgres_connection.connection_options(store.address)
    changed = {**usual, "server_settings": {**usual["server_settings"], **millis}}
    patch.setattr(postgres_connection, "connection_options", lambda address: changed)
    await store.close()
    await store.open()


# A line that is cut


@pytest.fixture
def line(postgres: Postgres) -> Iterator[Proxy]:
    with Proxy(postgres.port) as proxy:
        yield proxy


@pytest.mark.parametrize("fields", [{}, {"dedup_key": "k"}])
async def test_a_line_cut_before_the_commit_stores_a_job_once(
    url: str, postgres: Postgres, line: Proxy, foreigner: Any, fields: dict[str, str]
) -> None:
    """The server goes on with what it was asked, and the repetition comes while it does."""
    store = PostgresStore(f"{url.replace(f':{postgres.port}/', f':{line.port}/')}&wake=false&clock=caller&pool=1")
    await store.open()
    warming_up = {name: f"another {value}" for name, value in fields.items()}
    await store.insert([new_job(**warming_up)], NOW)  # from now on the server knows the statement: it is only run
    job = new_job(**fields)

    async with held(foreigner, f'LOCK TABLE "{store.address.schema}".job IN EXCLUSIVE MODE'):
        inserting = asyncio.create_task(store.insert([job], NOW))
        await someone_waits(postgres)
        line.cut()
        await someone_waits(postgres, 2)
    [answer] = await inserting

    assert (answer.job_id, answer.status, answer.existing) == (job.job_id, Status.PENDING, None)
    assert (await store.counts())["pending"] == 2
    await store.close()


async def test_a_call_that_was_cut_off_and_then_finds_the_server_busy_is_not_said_to_be_refused(
    url: str, postgres: Postgres, line: Proxy, foreigner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(f"{url.replace(f':{postgres.port}/', f':{line.port}/')}&wake=false&clock=caller&pool=1")
    monkeypatch.setattr(postgres_connection, "OUTAGE_SECONDS", 60)
    await store.open()
    await _set_timeouts(store, monkeypatch, lock_timeout="2000")

    async with held(foreigner, f'LOCK TABLE "{store.address.schema}".job IN EXCLUSIVE MODE'):
        inserting = asyncio.create_task(store.insert([new_job()], NOW))
        await someone_waits(postgres)
        line.cut()
        monkeypatch.setattr(postgres_connection, "COLLISIONS_MAX", 0)  # the lock that it meets next is its last word
        with pytest.raises(StoreUnavailable, match="may have been applied"):
            await inserting
    await store.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", ["silence", "refuse"])
async def test_a_line_that_is_silent_or_refused_hangs_nobody(
    url: str, postgres: Postgres, line: Proxy, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(postgres_connection, "STATEMENT_SECONDS", 0.5)
    monkeypatch.setattr(postgres_connection, "CONNECT_SECONDS", 0.5)
    app = an_app(url.replace(f":{postgres.port}/", f":{line.port}/"))
    async with app, app.worker():
        await (await app.submit("double", {"n": 1})).result(timeout=10)
        getattr(line, how)()
        with pytest.raises(StoreUnavailable):
            await app.submit("double", {"n": 2})
        line.heal()

        async def answered() -> bool:
            try:
                return await (await app.submit("double", {"n": 3})).result(timeout=10) == 6
            except StoreUnavailable:
                return False

        await eventually(answered)


async def test_an_outage_of_wake_ups_is_told_once_and_over_by_itself(
    server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "backstay.postgres")
    store = PostgresStore(server.url(schema=f"told_{secrets.token_hex(3)}"))
    await store.open()
    heard = asyncio.Event()
    store.listen(frozenset({Signal.READY}), lambda _: heard.set())
    await heard.wait()  # it listens now
    heard.clear()

    server.stop("fast")
    levels: list[int] = []

    async def tried_again_and_again() -> bool:
        levels[:] = [each.levelno for each in caplog.records if "interrupted" in each.message]
        return len(levels) >= 3

    await eventually(tried_again_and_again)
    server.start()
    await heard.wait()
    await store.close()
    assert levels[:3] == [logging.WARNING, logging.DEBUG, logging.DEBUG]


# A server that is away


@pytest.mark.usefixtures("impatient")
async def test_what_a_handler_logs_while_the_server_is_away_is_in_its_log_when_it_is_back(
    server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    said, away, more = asyncio.Event(), asyncio.Event(), asyncio.Event()
    app = an_app(server.url())

    @app.job("talk", max_attempts=1)
    async def talk(payload: int, ctx: Any) -> None:
        ctx.log.info("line 1")
        said.set()
        await away.wait()
        ctx.log.info("line 2")
        await more.wait()
        ctx.log.info("line 3")

    async def warned() -> bool:
        return "is buffered until it can be written" in caplog.text

    async with app, app.worker():
        handle = await talk.submit(1)
        await said.wait()
        await asyncio.to_thread(server.stop, "immediate")
        away.set()
        await eventually(warned)
        more.set()  # and the job ends, while the server is still away
        await asyncio.to_thread(server.start)
        await handle.result(timeout=30)
    files = files_of(server.url())
    text = await asyncio.to_thread(files.read_part, handle.job_id, LOG_FILE, 0, 10_000)
    await asyncio.to_thread(files.close)
    assert [line[-6:] for line in (text or b"").decode().splitlines()] == ["line 1", "line 2", "line 3"]
    assert caplog.text.count("is buffered until") == 1
    assert "wrote the buffered logs of 1 job" in caplog.text


async def test_an_app_opens_on_a_server_that_is_about_to_start(server: Postgres) -> None:
    app = an_app(server.url())
    await asyncio.to_thread(server.stop)
    opening = asyncio.ensure_future(app.__aenter__())
    await asyncio.to_thread(server.start)
    await opening
    assert sum((await app.counts()).values()) == 0
    await app.__aexit__()


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_stays_away_is_unavailable_to_one_who_opens_an_app() -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1/nowhere.*check that it is running"):
        await PostgresStore("postgresql://127.0.0.1:1/nowhere").open()


@pytest.mark.parametrize(
    ("option", "says"),
    [("shema=x", "neither here nor to the server .*schema"), ("sslmode=require", "SSL"), ("sslmode=maybe", "sslmode")],
)
async def test_an_option_of_the_url_that_cannot_work_is_said_at_once(
    postgres: Postgres, option: str, says: str
) -> None:
    async with asyncio.timeout(5):
        with pytest.raises(ConfigurationError, match=says):
            await PostgresStore(f"{postgres.url()}?{option}").open()


@pytest.mark.parametrize("answer", [b"", b"E", b"S", b"?"])
async def test_a_connection_cut_while_encryption_is_agreed_on_is_an_outage_that_is_waited_out(
    postgres: Postgres, url: str, answer: bytes
) -> None:
    with Proxy(postgres.port) as proxy:
        store = PostgresStore(url.replace(f":{postgres.port}/", f":{proxy.port}/") + "&wake=off")
        await store.open()
        proxy.encryption_answers += [answer, answer]
        proxy.cut()

        assert sum((await store.counts()).values()) == 0

        assert proxy.encryption_answers == []
        await store.close()


async def test_a_server_that_requires_encryption_is_asked_again_if_it_was_cut(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = asyncpg.connect
    cut = [ConnectionResetError("cut")]

    async def cut_once(*arguments: Any, **options: Any) -> Any:
        if cut:  # as the driver reports it
            raise asyncpg.InvalidAuthorizationSpecificationError("no pg_hba.conf entry, no encryption") from cut.pop()
        return await connect(*arguments, **options)

    monkeypatch.setattr(asyncpg, "connect", cut_once)
    async with store._session.pool().lend():  # so that the next call needs a new connection
        assert sum((await store.counts()).values()) == 0
    assert cut == []


@pytest.mark.parametrize("place", ["h:x", "h:99999", "h:0", "u:secret/x@h", "[::1", "::1", "a:1,b:c", "h:1:2"])
def test_a_url_without_a_proper_port_is_a_clear_error_that_tells_no_password(place: str) -> None:
    with pytest.raises(ConfigurationError, match=r"port.*postgresql://user:password@host:5432/database") as raised:
        PostgresStore(f"postgresql://{place}/db")

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("place", ["h", "h:", "h:5432", "u:p@h:1", "[::1]", "[::1]:5432", "a:1,b:2", "a,b", "u@"])
def test_every_form_of_host_and_port_is_taken(place: str) -> None:
    assert PostgresStore(f"postgresql://{place}/db").address.dsn == f"postgresql://{place}/db"


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_is_stopped_during_the_handshake_is_unavailable_and_the_url_is_not_blamed() -> None:
    async def answer_and_stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)  # "do you encrypt?"
        writer.write(b"N" + b"N\0\0\0\x1aSWARNING\0Mterminating\0\0")  # no, and the notice of a crash
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_and_stop, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(StoreUnavailable):
        await PostgresStore(f"postgresql://postgres@127.0.0.1:{port}/postgres").open()
    server.close()


@pytest.mark.usefixtures("impatient")
async def test_too_few_file_descriptors_are_not_taken_for_a_server_that_is_away(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncpg, "connect", full)

    with pytest.raises(StoreUnavailable, match=r"too many files .*ulimit -n"):
        await PostgresStore(url).open()
