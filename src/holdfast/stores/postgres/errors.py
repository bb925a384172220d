"""Where the driver's exceptions end: which are over by themselves, and what the others mean."""

from __future__ import annotations

import asyncio

import asyncpg

from holdfast.errors import (
    ConfigurationError,
    DedupConflict,
    HoldfastError,
    QueueFull,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownDependency,
)

# Two transactions stood in each other's way: one of them runs again, and nothing of it was applied.
COLLISIONS = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
)
# The server is away, or about to be. Whether the last statement was applied is not known.
OUTAGES = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,  # it became a standby: the other one is the primary now
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    ConnectionError,
    TimeoutError,
    asyncio.TimeoutError,
    OSError,
)


def is_outage(error: BaseException) -> bool:
    return isinstance(error, OUTAGES)


def is_collision(error: BaseException) -> bool:
    return isinstance(error, COLLISIONS)


def translate(error: BaseException, where: str) -> BaseException:
    match error:
        case HoldfastError():
            return error
        case asyncpg.PostgresError(sqlstate="HF001"):
            return DedupConflict(str(error))
        case asyncpg.PostgresError(sqlstate="HF002"):
            return UnknownDependency(str(error))
        case asyncpg.PostgresError(sqlstate="HF003"):
            return QueueFull(str(error), queue=str(getattr(error, "detail", "") or ""))
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return ConfigurationError(f"{where} refuses the login: {error}")
        case asyncpg.InvalidCatalogNameError():
            return ConfigurationError(f"{where}: {error}; create it first")
        case asyncpg.InvalidSchemaNameError() | asyncpg.UndefinedTableError() | asyncpg.UndefinedFunctionError():
            return SchemaMismatch(f'{where} has no tables of this release ({error}): run "holdfast migrate"')
        case asyncpg.ProtocolViolationError() if "startup parameter" in str(error):
            return ConfigurationError(f"{where} is behind a connection pooler ({error}): add pgbouncer=true to the URL")
        case asyncpg.InvalidSQLStatementNameError() | asyncpg.DuplicatePreparedStatementError():
            return ConfigurationError(f"{where} is behind a connection pooler ({error}): add pgbouncer=true to the URL")
        case asyncpg.InsufficientPrivilegeError():
            return StoreError(f"{where}: {error}; grant the role what it needs on the schema")
        case asyncpg.DiskFullError():
            return StoreFull(f"{where} has no space left: free some; nothing of this call was stored")
        case asyncpg.QueryCanceledError():
            return StoreBusy(f"{where} took too long ({error}): repeat the call")
        case _ if is_collision(error):
            return StoreBusy(f"{where}: others kept what this needed ({error}): repeat the call")
        case asyncpg.ReadOnlySQLTransactionError():
            return StoreUnavailable(f"{where} takes no writes now, as a standby does ({error}): repeat the call")
        case _ if is_outage(error):
            return StoreUnavailable(f"{where} cannot be reached ({type(error).__name__}: {error}): repeat the call")
        case asyncpg.PostgresError():
            return StoreError(f"{type(error).__name__} on {where}: {error}")
        case _:
            return error


_SUBMITTING: dict[str, type[HoldfastError]] = {
    "HF001": DedupConflict,
    "HF002": UnknownDependency,
    "HF003": QueueFull,
}


def guest_error(error: BaseException, where: str) -> BaseException:
    """An error on a connection that is not ours: what we raise in SQL is our own; the rest stays its driver's."""
    cause: BaseException | None = error
    while cause is not None:
        state = getattr(cause, "sqlstate", None) or getattr(getattr(cause, "orig", None), "sqlstate", None)
        if state in _SUBMITTING:
            return _SUBMITTING[state](str(cause).splitlines()[0])
        cause = cause.__cause__
    return error
