"""postgresql://user:password@host/database?schema=…: what is ours in it, and what is the driver's. Pure."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from holdfast.errors import ConfigurationError

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
OPTIONS = {"schema", "pool", "wake", "pgbouncer", "clock"}
POOL_CONNECTIONS = 5  # claim, settle, submit and read at the same time, and one to spare
POOL_CONNECTIONS_MAX = 100


class Address(msgspec.Struct, frozen=True):
    dsn: str  # for the driver
    shown: str  # the URL with what tells this queue from others: no password in it
    schema: str = "holdfast"
    pool: int = POOL_CONNECTIONS
    wake: bool = True  # NOTIFY others
    listen: bool = True  # LISTEN to them; without, workers poll
    pgbouncer: bool = False  # in transaction mode: no prepared statements, no session settings, no LISTEN
    caller_clock: bool = False  # times are the caller's, not the server's: for tests


def parse(url: str) -> Address:
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    own = {name: given.pop(name) for name in list(given) if name in OPTIONS}
    schema = own.get("schema", "holdfast")
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
