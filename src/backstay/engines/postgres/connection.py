"""Connections to PostgreSQL: URL, pool, safety checks, transactions, SQL files, retries and errors.

The pool is our own: the driver's pool creates a task, four timers and a proxy each time a connection is acquired, which
would be most of the cost of a single submit. Statements come from files below sql/, read once; `backstay.` in them
becomes the schema's own name.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import re
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import resources
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg
import msgspec

from backstay import failpoints, limits
from backstay.clock import Instant
from backstay.core import open_files
from backstay.core.admission import Turn
from backstay.core.job_fields import ARCHIVED_FIELDS, HOMES, ID_FIELDS, PLAIN_FIELDS, Home
from backstay.core.records import FOREVER, NEW_DEFAULTS, ClaimedJob, Kind, NewJob, QueueRow
from backstay.core.states import BOUNDS_MICROS, BUCKETS, Counted
from backstay.engines import places, sql_files, sql_rows
from backstay.engines.sql_rows import Counts, Noted
from backstay.errors import (
    BackstayError,
    ConfigurationError,
    DedupConflict,
    ForkedStore,
    InvalidOption,
    InvalidSubmission,
    NotOpen,
    QueueFull,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreMoved,
    StoreUnavailable,
    StoreUnsafe,
    UnknownDependency,
)

IDLE_SECONDS_MAX = 300.0  # longer, and a proxy may have dropped the connection
Connection = Any  # asyncpg's


class Pool:
    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int, patience: float) -> None:
        self._connect = connect
        self._size = size
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._idle: list[tuple[Connection, float]] = []  # the connection returned last is used first
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._all: set[Connection] = set()
        self._opening = 0
        self._closed = False

    def lend(self) -> Loan:
        return Loan(self)

    async def take(self) -> Connection:
        while True:
            while self._idle:
                connection, since = self._idle.pop()
                if not connection.is_closed() and self._loop.time() - since < IDLE_SECONDS_MAX:
                    return connection
                self._drop(connection)
            if len(self._all) + self._opening < self._size:
                return await self._open()
            if (connection := await self._wait()) is not None:
                return connection

    async def _open(self) -> Connection:
        self._opening += 1
        try:
            connection = await self._connect()
        except BaseException:
            self._opening -= 1
            self._tell_next(None)  # another waiter may try instead
            raise
        self._opening -= 1
        self._all.add(connection)
        if self._closed:
            self._drop(connection)
            raise asyncpg.InterfaceError("the pool is closed")
        return connection

    async def _wait(self) -> Connection | None:
        """Return a released connection; None if one was lost and a new one may be opened."""
        waiter: asyncio.Future[Connection | None] = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._patience):
                return await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                given = waiter.result()  # handed to us at the moment of the timeout
                if given is None:
                    self._tell_next(None)
                else:
                    self.put_back(given)
            raise

    def put_back(self, connection: Connection) -> None:
        if self._closed or connection.is_closed():
            self._drop(connection)
            self._tell_next(None)
        elif not self._tell_next(connection):
            self._idle.append((connection, self._loop.time()))

    def _tell_next(self, connection: Connection | None) -> bool:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.terminate()

    async def close(self, seconds: float) -> None:
        """Close the connections, gracefully if the server answers in time."""
        self._closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(asyncpg.InterfaceError("the pool is closed"))
        idle, self._idle = self._idle, []
        await asyncio.gather(*(each.close(timeout=seconds) for each, _ in idle), return_exceptions=True)
        for connection in tuple(self._all):
            self._drop(connection)


class Loan:
    """A connection for as long as the block lasts. Not a generator, which would cost a submit more than the pool."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def __aenter__(self) -> Connection:
        self._connection = await self._pool.take()
        return self._connection

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        # Where the server has answered, the connection can be reused; else an unread answer may be under way.
        if error is not None and not isinstance(error, asyncpg.PostgresError | BackstayError):
            self._connection.terminate()
        self._pool.put_back(self._connection)


_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
OPTIONS = {"schema", "pool", "wake", "pgbouncer", "clock"}
POOL_CONNECTIONS = 5  # claim, settle, submit and read at the same time, plus one spare
POOL_CONNECTIONS_MAX = 100


class Address(msgspec.Struct, frozen=True):
    dsn: str  # for the driver
    shown: str  # the URL that identifies this queue, without a password
    schema: str = "backstay"
    pool: int = POOL_CONNECTIONS
    wake: bool = True  # NOTIFY others
    listen: bool = True  # LISTEN to others; without it, workers poll
    pgbouncer: bool = False  # in transaction mode: no prepared statements, no session settings, no LISTEN
    caller_clock: bool = False  # times are the caller's, not the server's: for tests


def parse(url: str) -> Address:
    parts = _split(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    own = {name: given.pop(name) for name in list(given) if name in OPTIONS}
    schema = own.get("schema", "backstay")
    if not _SCHEMA.fullmatch(schema):
        raise ConfigurationError(f"schema={schema!r:.60}: use 1 to 48 of a-z 0-9 _, not beginning with a digit")
    pgbouncer = _flag("pgbouncer", own.get("pgbouncer", "false"))
    wake = _flag("wake", own.get("wake", "true"))
    clock = own.get("clock", "server")
    if clock not in ("server", "caller"):
        raise ConfigurationError(f"clock={clock!r:.60}: use server or caller")
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(given, quote_via=quote), ""))
    user, _, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    return Address(
        dsn=dsn,
        shown=f"postgresql://{f'{name}@' if name else ''}{host}{parts.path}?schema={schema}",
        schema=schema,
        pool=_pool(own.get("pool")),
        wake=wake,
        listen=wake and not pgbouncer,
        pgbouncer=pgbouncer,
        caller_clock=clock == "caller",
    )


_HOST = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::(\d{0,5}))?")


def _split(url: str) -> SplitResult:
    # The message has nothing of the URL: where a password contains a slash, a part of it is taken for the port.
    wrong = ConfigurationError(
        "the URL has a port that is not a number from 1 to 65535, or a host that is not one: write"
        " postgresql://user:password@host:5432/database, and in a password %2F for /, %40 for @ and %3A for :"
    )
    try:
        parts = urlsplit(url)
    except ValueError:  # an IPv6 address without its brackets
        raise wrong from None
    for host in parts.netloc.rpartition("@")[2].split(","):
        found = _HOST.fullmatch(host)
        if found is None or (found[1] and not 1 <= int(found[1]) <= 65535):
            raise wrong
    return parts


def _flag(name: str, text: str) -> bool:
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise ConfigurationError(f"{name}={text!r:.60}: use true or false")


def _pool(text: str | None) -> int:
    if text is None:
        return POOL_CONNECTIONS
    if not text.isdigit() or not 1 <= int(text) <= POOL_CONNECTIONS_MAX:
        raise ConfigurationError(f"pool={text!r:.60}: use 1 to {POOL_CONNECTIONS_MAX} connections")
    return int(text)


GRANTS = "USAGE on the schema and SELECT, INSERT, UPDATE, DELETE on all its tables (docs/howto/postgresql.md)"
CAUSES_MAX = 10  # how many causes of an error are examined

# Two transactions conflicted: one of them is repeated, and nothing of it was applied.
COLLISIONS = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
)
# The server is unavailable, or about to be. Whether the last statement was applied is unknown.
OUTAGES = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,  # it became a standby: another server is the primary now
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    ConnectionError,
    TimeoutError,
    asyncio.TimeoutError,
    OSError,
)


def is_outage(error: BaseException) -> bool:
    return isinstance(error, OUTAGES) and not is_misconfigured(error)


def is_misconfigured(error: BaseException) -> bool:
    """Return whether an error is permanent: a URL that the driver cannot parse, or encryption that one side does not
    support."""
    if isinstance(error, asyncpg.ClientConfigurationError | ssl.SSLCertVerificationError):
        return True
    return isinstance(error, ConnectionError) and "SSL upgrade" in str(error)


def is_collision(error: BaseException) -> bool:
    return isinstance(error, COLLISIONS)


def translate(error: BaseException, where: str) -> BaseException:
    match error:
        case BackstayError():
            return error
        case asyncpg.PostgresError(sqlstate="BS001"):
            return DedupConflict(str(error))
        case asyncpg.PostgresError(sqlstate="BS002"):
            return UnknownDependency(str(error))
        case asyncpg.PostgresError(sqlstate="BS003"):
            return QueueFull(str(error), queue=str(getattr(error, "detail", "") or ""))
        case asyncpg.PostgresError(sqlstate="BS005"):
            return InvalidSubmission(str(error))
        case asyncpg.PostgresError(sqlstate="BS006"):
            return StoreMoved(str(error))
        case _ if is_misconfigured(error):
            return ConfigurationError(f"{where} rejects the URL: {error}")
        case asyncpg.UndefinedObjectError() | asyncpg.CantChangeRuntimeParamError() if "parameter" in str(error):
            return ConfigurationError(
                f"{where}: an option of the URL is known neither here nor to the server ({error}); here there are"
                f" {', '.join(sorted(OPTIONS))}"
            )
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return ConfigurationError(f"{where} rejects the login: {error}")
        case asyncpg.InvalidCatalogNameError():
            return ConfigurationError(f"{where}: {error}; create it first")
        case asyncpg.InvalidSchemaNameError() | asyncpg.UndefinedTableError() | asyncpg.UndefinedFunctionError():
            return SchemaMismatch(f'{where} has no tables of this release ({error}): run "backstay migrate"')
        case asyncpg.ProtocolViolationError() if "startup parameter" in str(error):
            return ConfigurationError(f"{where} is behind a connection pooler ({error}): add pgbouncer=true to the URL")
        case asyncpg.InvalidSQLStatementNameError() | asyncpg.DuplicatePreparedStatementError():
            return ConfigurationError(f"{where} is behind a connection pooler ({error}): add pgbouncer=true to the URL")
        case asyncpg.InsufficientPrivilegeError():
            return StoreError(f"{where}: {error}; grant the role {GRANTS}")
        case asyncpg.DiskFullError():
            return StoreFull(f"{where} has no space left: free some; nothing of this call was stored")
        case asyncpg.QueryCanceledError():
            return StoreBusy(f"{where} took too long ({error}): retry the call")
        case _ if is_collision(error):
            return StoreBusy(f"{where}: blocked by other transactions ({error}): retry the call")
        case asyncpg.ReadOnlySQLTransactionError():
            return StoreUnavailable(f"{where} is read-only, like a standby ({error}): retry the call")
        case OSError() if open_files.is_shortage(error):
            return StoreUnavailable(f"no connection to {where}: {open_files.what_to_do()}")
        case _ if is_outage(error):
            return StoreUnavailable(
                f"{where} cannot be reached ({type(error).__name__}: {error}): check that it is running"
                " and that the URL is right; it is safe to retry"
            )
        case asyncpg.PostgresError():
            return StoreError(f"{type(error).__name__} on {where}: {error}")
        case _:
            return error


def refused(state: str, message: str, detail: str, where: str) -> BackstayError:
    """Return the error for an SQLSTATE on a caller's own connection."""
    again = "roll back and retry your transaction"
    match state:
        case "BS001":
            return DedupConflict(message)
        case "BS002":
            return UnknownDependency(message)
        case "BS003":
            return QueueFull(message, queue=detail)
        case "BS005":
            return InvalidSubmission(message)
        case "BS006":
            return StoreMoved(message)
        case "25P02":
            return InvalidOption("connection= is in a transaction that has failed: roll it back before you submit")
        case "25006":
            return InvalidOption(
                "connection= is in a read-only transaction, or on a standby: submit in one that can write"
            )
        case "3F000" | "42883" | "42P01":
            return InvalidOption(
                f"connection= does not see the queue ({message}): connect it to the database of {where}"
            )
        case "42501":
            return StoreError(f"{where}: {message}; grant the role of connection= {GRANTS}")
        case "53100":
            return StoreFull(f"{where} has no space left: free some; nothing of this call was stored")
        case "57014" | "55P03" | "40001" | "40P01":
            return StoreBusy(f"{where}: blocked by other transactions ({message}): {again}")
        case _ if state.startswith(("08", "57P")):
            return StoreUnavailable(f"{where}: the connection was lost ({message}): {again}")
        case _:
            return StoreError(f"{where}: {message} (SQLSTATE {state})")


def guest_error(error: BaseException, where: str) -> BaseException:
    """Translate a driver's error on the caller's own connection; other errors are returned unchanged."""
    cause: BaseException | None = error
    seen = 0
    while cause is not None and seen < CAUSES_MAX:
        state = getattr(cause, "sqlstate", None) or getattr(getattr(cause, "orig", None), "sqlstate", None)
        if state is not None:
            return refused(state, first_line(cause), "", where)
        cause, seen = cause.__cause__, seen + 1
    # from psycopg, or SQLAlchemy's wrapper of it
    lost = any(kind.__name__ == "OperationalError" for kind in type(error).__mro__)
    if lost or isinstance(error, OSError):
        return StoreUnavailable(
            f"{where}: the connection was lost ({first_line(error)}): roll back and retry your transaction"
        )
    if type(error).__module__.partition(".")[0] in ("asyncpg", "psycopg", "sqlalchemy"):
        return InvalidOption(f"connection= cannot be used ({type(error).__name__}: {first_line(error)})")
    return error


def first_line(error: BaseException) -> str:
    return next(iter(str(getattr(error, "orig", None) or error).splitlines()), "")


_FOLDER = resources.files("backstay.engines.postgres")
_UUIDS = ID_FIELDS | {"joins"}
_BESIDE = ("joins", "awaited", "unmet", "rate_count", "rate_micros")  # of a job in transfer, besides its record
_TYPES = {str: "text", int: "bigint", float: "double precision", bool: "boolean"}
_KINDS = {each.name: each.type for each in msgspec.structs.fields(NewJob)}


def _type(name: str) -> str:
    """Return the type that a field is sent as; a column that holds less takes it over by assignment."""
    if name in _UUIDS:
        return "uuid"
    [found] = [sql for kind, sql in _TYPES.items() if _KINDS[name] in (kind, kind | None)]
    return found


# What insert_one and insert_plain bind: two instants, when each job is due, and then these fields; insert_one has a
# wake-up before them.
INSERTED = tuple(name for name in PLAIN_FIELDS if name != "scheduled_for")
_ARRAYS = [f"${number}::{_type(name)}[]" for number, name in enumerate(INSERTED, start=4)]
_BOUND = {name: f"${number}" for number, name in enumerate(INSERTED, start=5)}
USUAL = tuple(name for name in INSERTED if name not in NEW_DEFAULTS)  # what insert_usual binds of them


def _read_as(name: str) -> str:
    return f"{name}::text" if name in _UUIDS else name


def _archived(name: str) -> str:
    return f"{name}::json AS {name}" if name == "result_tables" else name


_OF_PLACE = ("attempt", "version", "failures", "priority", "scheduled_for", "suspicion")  # what a claim moves
_OF_DETAIL = (Home.DETAIL, Home.REPORT, Home.CHILDREN)
_DEFAULTS = {each.name: each.default for each in msgspec.structs.fields(ClaimedJob)}


def _claimed(name: str) -> str:
    """Return where a claim has a field of a job from: p its place, r the claim, j the facts, d the detail."""
    column = _read_as(sql_rows.RENAMED.get(name, name))
    if name in _OF_PLACE:
        return f"p.{column}"
    if HOMES[name] in _OF_DETAIL:
        return f"d.{column}" if _DEFAULTS[name] is None else f"coalesce(d.{column}, 0)"
    return f"r.{column}" if HOMES[name] is Home.PLACE else f"j.{column}"


class Candidate(msgspec.Struct, gc=False):
    """What a claim reads of a row of `ready` at the head of its lane. The fields are columns, in their order."""

    job_type: str
    priority: int
    due: Instant  # of jobs that take turns: when the first of them became due
    job_id: str
    at: str  # where its row is
    concurrency_key: str | None
    concurrency_limit: int | None
    rate_key: str | None
    rate_count: int | None
    rate_micros: int | None
    rate_cost: int | None
    turn: Turn | None = None  # not a column


_SPELT = {"due": "scheduled_for", "at": "ctid::text", "job_id": "job_id::text"}
_CANDIDATE = [_SPELT.get(name, name) for name in Candidate.__struct_fields__ if name != "turn"]


def _places(names: Sequence[str]) -> str:
    """Return places for parameters, one for each column."""
    return ", ".join(f"${number}" for number in range(1, len(names) + 1))


# Of a record: its columns, and what its history is derived from.
RECORD = (
    *(name for name in sql_rows.COLUMNS if name not in ("history", "updated_at")),
    *("submitted_for", "noted_at", *_BESIDE),
)
_EVENTS = (
    f"(SELECT json_agg(json_build_array({sql_rows.column_list(places.HISTORY, 'v.{}'.format)})"  # noqa: S608
    " ORDER BY v.version)::text FROM backstay.event AS v WHERE v.job_id = standing.job_id)"
)
_LISTS = {
    "inserted_columns": sql_rows.column_list(INSERTED),
    "inserted_values": ", ".join(_BOUND.values()),
    "usual_columns": sql_rows.column_list(USUAL),
    "usual_values": ", ".join(_BOUND[name] for name in USUAL),
    "inserted_arrays": ", ".join(_ARRAYS),
    **{f"${name}": bound for name, bound in _BOUND.items()},
    "claimed_columns": ", ".join(map(_claimed, sql_rows.CLAIMED)),
    "candidate_columns": ", ".join(_CANDIDATE),
    "record_columns": f"{sql_rows.column_list(RECORD, lambda name: f'standing.{_read_as(name)}')}, {_EVENTS}",
    "standing_columns": ", ".join(
        "job_id::text AS key" if name == "key" else _read_as(name) for name in places.STANDING
    ),
    "queue_columns": sql_rows.column_list(QueueRow.__struct_fields__),
    "queue_places": _places(QueueRow.__struct_fields__),
    "limit_columns": sql_rows.column_list(sql_rows.LIMIT_COLUMNS),
    "limit_places": _places(sql_rows.LIMIT_COLUMNS),
    "detail_columns": sql_rows.column_list((*places.DETAIL, *places.KEPT)),
    "detail_changes": ", ".join(
        [f"{name} = excluded.{name}" for name in places.DETAIL]
        + [f"{name} = coalesce(excluded.{name}, d.{name})" for name in places.KEPT]
    ),
    "archived_columns": sql_rows.column_list(ARCHIVED_FIELDS, _archived),
}
_TEXTS = sql_files.read("backstay.engines.postgres", _LISTS)


class Statements:
    """All statements, for one schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._texts = {name: self.named(text) for name, text in _TEXTS.items()}

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def named(self, text: str) -> str:
        return text.replace("backstay.", f'"{self.schema}".')

    def names(self) -> list[str]:
        return sorted(self._texts)


# What the functions in the migrations have in braces: every limit, and the bounds of the buckets that attempts are in.
BOUNDS = {name.lower(): str(bound) for name, bound in vars(limits).items() if name.isupper()} | {
    "timeout_days_max": str(limits.TIMEOUT_SECONDS_MAX // 86_400),
    "forever": str(FOREVER),
    "buckets": str(BUCKETS),
    "bucket_bounds": ", ".join(map(str, BOUNDS_MICROS)),
}


def migrations() -> list[tuple[int, str, str]]:
    """Return (number, name, statements) of each migration, in order."""
    found = []
    for entry in _FOLDER.joinpath("migrations").iterdir():
        if entry.name.endswith(".sql"):
            text = sql_files.filled(entry.read_text(encoding="utf-8"), BOUNDS)
            found.append((int(entry.name[:4]), entry.name.removesuffix(".sql"), text))
    return sorted(found)


class Tx(Noted, eq=False):
    connection: asyncpg.Connection[Any]
    sql: Statements
    unclean: bool = False  # whether the handler's SQL may have changed the state of the session

    async def execute(self, name: str, *values: Any) -> int:
        """Run a statement; return how many rows it changed."""
        status = await self.connection.execute(self.sql[name], *values)
        return int(status.rpartition(" ")[2]) if status[-1:].isdigit() else 0

    async def rows(self, name: str, *values: Any) -> list[Any]:
        return await self.connection.fetch(self.sql[name], *values)

    async def column(self, name: str, *values: Any) -> list[Any]:
        """Return the values of a statement that answers with one column."""
        return [value for (value,) in await self.rows(name, *values)]

    async def row(self, name: str, *values: Any) -> Any | None:
        return await self.connection.fetchrow(self.sql[name], *values)

    async def value(self, name: str, *values: Any) -> Any:
        return await self.connection.fetchval(self.sql[name], *values)

    async def write_counters(self) -> None:
        if self.counts or self.tallies:
            await self.execute("count", *counter_columns(self.counts, self.tallies))


def counter_columns(counts: Counts, tallies: Mapping[tuple[Kind, str], int]) -> Sequence[Any]:
    """Return the columns of the counters, always in the same order, so that two transactions that write the same shard
    cannot deadlock."""
    counted, came = [], []
    for (minute, kind, outcome, bucket), sums in counts.items():
        if outcome is Counted.SUBMITTED:
            came.append((minute, *kind, sums[0]))
        else:
            counted.append((minute, *kind, outcome.value, bucket, *sums))
    tallied = [(*kind, what, jobs) for (kind, what), jobs in tallies.items() if jobs]
    return [*_columns(counted, 9), *_columns(came, 5), *_columns(tallied, 5)]


def _columns(rows: list[Any], width: int) -> Iterable[list[Any]]:
    return [list(column) for column in zip(*sorted(rows), strict=True)] if rows else [[] for _ in range(width)]


T = TypeVar("T")
CONNECT_SECONDS = 5.0
STATEMENT_SECONDS = 15.0  # less than a third of a lease: a call that hangs must not cost the claims
LOCK_SECONDS = 5.0
IDLE_IN_TRANSACTION_SECONDS = 30.0
OUTAGE_SECONDS = 8.0  # how long a verb waits for an unavailable server before it raises
COLLISIONS_MAX = 20  # tries; each conflict means that another transaction made progress
OLDEST_SERVER = 140_000


class Session:
    """Runs verbs on pooled connections, and repeats them after a conflict, or after an outage if the server is back
    soon."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.sql = Statements(address.schema)
        self._pool: Pool | None = None
        self._pid = os.getpid()

    async def open(self) -> None:
        self._pid = os.getpid()
        pool = Pool(functools.partial(connect, self.address), self.address.pool, CONNECT_SECONDS)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OUTAGE_SECONDS
        while True:
            try:
                async with pool.lend():
                    self._pool = pool
                    return
            except Exception as error:
                if not is_outage(error) or loop.time() >= deadline:
                    raise translate(error, self.address.shown) from None
            await asyncio.sleep(random.uniform(0.05, 0.5))  # a restarting server is back soon

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None and os.getpid() == self._pid:
            await pool.close(CONNECT_SECONDS)

    def pool(self) -> Pool:
        if os.getpid() != self._pid:
            raise ForkedStore("this store was opened before fork(): open the app again in the child process")
        if self._pool is None:
            raise NotOpen("the store is not open: use it inside `async with app:`")
        return self._pool

    async def run(
        self, verb: Callable[[Tx, bool], Awaitable[T]], *, transaction: bool, name: str = "read"
    ) -> tuple[T, Tx]:
        """Return the verb's answer once it is committed. The verb is told whether an earlier try may have been applied;
        its name is for failpoints."""
        collisions = 0
        repeat = False
        cancels = _cancels()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OUTAGE_SECONDS
        while True:
            try:
                return await self._once(verb, transaction, name, repeat)
            except Exception as error:
                if _cancels() > cancels:  # the rollback failed too: its error replaced the cancellation
                    raise asyncio.CancelledError from None
                if is_collision(error) and collisions < COLLISIONS_MAX and loop.time() < deadline:
                    collisions += 1
                    await asyncio.sleep(random.uniform(0, min(0.2, 0.002 * 2**collisions)))
                    continue
                # A duplicate is our earlier try, if that was still under way when we checked.
                found_late = repeat and isinstance(error, asyncpg.UniqueViolationError)
                # The URL has worked: a server that now rejects it is restarting, or another one takes its place.
                away = is_outage(error) or is_misconfigured(error)
                if (away or found_late) and loop.time() < deadline:
                    repeat = True
                    await asyncio.sleep(random.uniform(0.05, 0.5))
                    continue
                raise _told(error, self.address.shown, repeat) from None

    async def _once(
        self, verb: Callable[[Tx, bool], Awaitable[T]], transaction: bool, name: str, repeat: bool
    ) -> tuple[T, Tx]:
        async with self.pool().lend() as connection:
            tx = Tx(connection, self.sql)
            if not transaction:
                failpoints.hit_moment(name, "uncommitted")  # a single statement commits by itself
                answer = await verb(tx, repeat)
                failpoints.hit_moment(name, "committed")
                return answer, tx
            try:
                async with connection.transaction():
                    answer = await verb(tx, repeat)
                    await tx.write_counters()
                    failpoints.hit_moment(name, "uncommitted")
                failpoints.hit_moment(name, "committed")
            finally:
                if tx.unclean and not connection.is_closed():
                    await connection.reset()
            return answer, tx


def _cancels() -> int:
    """Return how many times this task was cancelled."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


_OWN_TYPES_FROM = 10_000  # below are the numbers of built-in types, which are the same on every server
_described: dict[frozenset[int], Any] = {}


class KnowingConnection(asyncpg.Connection):
    """Asks the server about built-in types once per process.

    The driver asks about an array type again on each connection: two round trips, and a recursive query that costs the
    server more than the connection itself. A driver that does this in another way never calls the method.
    """

    async def _introspect_types(self, numbers: Iterable[int], *more: Any) -> Any:
        asked = frozenset(numbers)
        if asked in _described:
            return _described[asked], _NOTHING_PREPARED
        types, statement = await super()._introspect_types(asked, *more)  # type: ignore[misc]
        if statement.name and max(asked) < _OWN_TYPES_FROM:
            _described[asked] = types
        return types, statement


# In place of the statement that asks: with a name, it has not replaced the one that the driver is about to prepare.
_NOTHING_PREPARED = SimpleNamespace(name="none")


async def connect(address: Address) -> Any:
    try:
        return await asyncpg.connect(
            address.dsn, timeout=CONNECT_SECONDS, command_timeout=STATEMENT_SECONDS, **connection_options(address)
        )
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        # By default, the driver tries again without encryption if the connection is cut while it is agreed on; a server
        # that requires encryption refuses that login. What failed is the connection.
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise
    except ConnectionError as error:
        if not is_misconfigured(error) or _requires_encryption(address.dsn):
            raise
        # The driver connects without encryption if the server has none, unless the URL requires it. A server that is
        # being stopped at that moment sends a notice instead of its answer, which the driver takes for a refusal.
        raise ConnectionResetError("it was stopped while a connection was being opened") from error


def _requires_encryption(dsn: str) -> bool:
    asked = dict(parse_qsl(urlsplit(dsn).query)).get("sslmode") or os.environ.get("PGSSLMODE", "prefer")
    return asked not in ("disable", "allow", "prefer")


def _told(error: BaseException, where: str, repeat: bool) -> BaseException:
    if is_misconfigured(error):
        return StoreUnavailable(
            f"{where} rejects the connection, though it has worked before ({error}); retry the call"
        )
    told = translate(error, where)
    if repeat and isinstance(told, StoreBusy):  # would mean that nothing was applied
        return StoreUnavailable(f"{told}; an earlier attempt was cut off and may have been applied")
    return told


def connection_options(address: Address) -> dict[str, Any]:
    """Return the driver's options. A pooler in transaction mode supports neither session settings nor prepared
    statements."""
    if address.pgbouncer:
        return {"statement_cache_size": 0}
    millis = 1000
    return {
        "connection_class": KnowingConnection,
        "server_settings": {
            "application_name": "backstay",
            "statement_timeout": str(round(STATEMENT_SECONDS * millis)),
            "lock_timeout": str(round(LOCK_SECONDS * millis)),
            "idle_in_transaction_session_timeout": str(round(IDLE_IN_TRANSACTION_SECONDS * millis)),
            "jit": "off",  # our statements are short; compiling them costs more than running them
            "plan_cache_mode": "force_generic_plan",  # planned once: planning a claim takes as long as running it …
            "enable_seqscan": "off",  # … and perhaps while a table was empty that has not stayed so
        },
    }


async def refuse_unsafe(connection: Any, where: str) -> None:
    """Refuse a server whose settings do not guarantee that an acknowledged job is on disk."""
    settings = await connection.fetchrow(_TEXTS["safety"])
    if settings["server_version"] < OLDEST_SERVER:
        raise StoreUnsafe(f"{where} is older than PostgreSQL 14: upgrade it")
    for name in ("fsync", "full_page_writes"):
        if settings[name] == "off":
            raise StoreUnsafe(f"{where} has {name}=off: a crash would lose acknowledged jobs; set it to on")
    if settings["synchronous_commit"] == "off":
        raise StoreUnsafe(
            f"{where} has synchronous_commit=off: a crash would lose acknowledged jobs;"
            " set it to on for this role: ALTER ROLE … SET synchronous_commit = on"
        )
