"""Where the driver's exceptions end: which are over by themselves, and what the others mean."""

from __future__ import annotations

import asyncio
import ssl

import asyncpg

from holdfast.errors import (
    ConfigurationError,
    DedupConflict,
    HoldfastError,
    InvalidOption,
    QueueFull,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreMoved,
    StoreUnavailable,
    UnknownDependency,
)
from holdfast.stores.postgres.address import OPTIONS

GRANTS = "USAGE on the schema and SELECT, INSERT, UPDATE, DELETE on all its tables (docs/howto/postgresql.md)"
CAUSES_MAX = 10  # how far back an error's causes are looked at

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
    return isinstance(error, OUTAGES) and not is_misconfigured(error)


def is_misconfigured(error: BaseException) -> bool:
    """What no waiting mends: a URL that the driver cannot read, or encryption that one of the two does not want."""
    if isinstance(error, asyncpg.ClientConfigurationError | ssl.SSLCertVerificationError):
        return True
    return isinstance(error, ConnectionError) and "SSL upgrade" in str(error)


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
        case asyncpg.PostgresError(sqlstate="HF006"):
            return StoreMoved(str(error))
        case _ if is_misconfigured(error):
            return ConfigurationError(f"{where} cannot be connected to as the URL says: {error}")
        case asyncpg.UndefinedObjectError() | asyncpg.CantChangeRuntimeParamError() if "parameter" in str(error):
            return ConfigurationError(
                f"{where}: an option of the URL is known neither here nor to the server ({error}); here there are"
                f" {', '.join(sorted(OPTIONS))}"
            )
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
            return StoreError(f"{where}: {error}; grant the role {GRANTS}")
        case asyncpg.DiskFullError():
            return StoreFull(f"{where} has no space left: free some; nothing of this call was stored")
        case asyncpg.QueryCanceledError():
            return StoreBusy(f"{where} took too long ({error}): repeat the call")
        case _ if is_collision(error):
            return StoreBusy(f"{where}: others kept what this needed ({error}): repeat the call")
        case asyncpg.ReadOnlySQLTransactionError():
            return StoreUnavailable(f"{where} takes no writes now, as a standby does ({error}): repeat the call")
        case _ if is_outage(error):
            return StoreUnavailable(
                f"{where} cannot be reached ({type(error).__name__}: {error}): see that it runs,"
                " and that the URL names it; repeating is safe"
            )
        case asyncpg.PostgresError():
            return StoreError(f"{type(error).__name__} on {where}: {error}")
        case _:
            return error


def refused(state: str, message: str, detail: str, where: str) -> HoldfastError:
    """What an SQLSTATE means to one who submits on a connection of their own."""
    again = "roll back, and repeat your transaction"
    match state:
        case "HF001":
            return DedupConflict(message)
        case "HF002":
            return UnknownDependency(message)
        case "HF003":
            return QueueFull(message, queue=detail)
        case "HF006":
            return StoreMoved(message)
        case "25P02":
            return InvalidOption("connection= is in a transaction that has failed: roll it back before you submit")
        case "25006":
            return InvalidOption(
                "connection= is in a transaction that only reads, or on a standby: submit in one that writes"
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
            return StoreBusy(f"{where}: others kept what this needed ({message}): {again}")
        case _ if state.startswith(("08", "57P")):
            return StoreUnavailable(f"{where}: the connection was lost ({message}): {again}")
        case _:
            return StoreError(f"{where}: {message} (SQLSTATE {state})")


def guest_error(error: BaseException, where: str) -> BaseException:
    """An error that a driver raised on a connection that is not ours. What is no driver's is not ours to explain."""
    cause: BaseException | None = error
    seen = 0
    while cause is not None and seen < CAUSES_MAX:
        state = getattr(cause, "sqlstate", None) or getattr(getattr(cause, "orig", None), "sqlstate", None)
        if state is not None:
            return refused(state, first_line(cause), "", where)
        cause, seen = cause.__cause__, seen + 1
    lost = any(kind.__name__ == "OperationalError" for kind in type(error).__mro__)  # psycopg's, or SQLAlchemy's of it
    if lost or isinstance(error, OSError):
        return StoreUnavailable(
            f"{where}: the connection was lost ({first_line(error)}): roll back and repeat your transaction"
        )
    if type(error).__module__.partition(".")[0] in ("asyncpg", "psycopg", "sqlalchemy"):
        return InvalidOption(f"connection= cannot be used ({type(error).__name__}: {first_line(error)})")
    return error


def first_line(error: BaseException) -> str:
    return next(iter(str(getattr(error, "orig", None) or error).splitlines()), "")
