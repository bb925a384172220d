"""Which names a request may be addressed to, and what comes from this machine. Pure.

A page of a stranger can make a browser ask this machine under the stranger's own name (DNS rebinding); the name then
stands in `Host`, and is none of ours. An address in `Host` cannot be had that way: it is a name's to change, not its.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from holdfast.errors import ConfigurationError

_FORWARDED = frozenset(
    (
        b"forwarded",
        b"via",
        b"x-forwarded",
        b"x-real-ip",
        b"x-client-ip",
        b"x-original-host",
        b"x-envoy-external-address",
        b"cf-connecting-ip",
        b"true-client-ip",
    )
)
_FORWARDED_START = b"x-forwarded-"


class Hosts:
    """The allow-list. None: whoever is around us has checked that."""

    def __init__(self, given: Sequence[str] | None) -> None:
        if isinstance(given, str):
            raise ConfigurationError(f"hosts={given!r:.80}: give a list of names")
        self._any = given is None or "*" in given
        self._names = frozenset(name.lower().rstrip(".") for name in given or () if not name.startswith("*"))
        self._endings = tuple(name[1:].lower().rstrip(".") for name in given or () if name.startswith("*."))

    def allows(self, host: str | None) -> bool:
        if self._any:
            return True
        name = name_of(host)
        if name is None:
            return False
        return is_loopback(name) or address(name) is not None or self._names_it(name)

    def _names_it(self, name: str) -> bool:
        return name in self._names or bool(self._endings and name.endswith(self._endings))


def name_of(host: str | None) -> str | None:
    """The name or address in a Host header, without its port; None where it is neither."""
    if not host:
        return None
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not _is_port(port)):
            return None
    else:
        name, colon, port = host.partition(":")
        if colon and not _is_port(colon + port):
            return None
    return name.lower().rstrip(".") or None


def _is_port(text: str) -> bool:
    return text[:1] == ":" and (not text[1:] or (text[1:].isascii() and text[1:].isdigit()))


@lru_cache(maxsize=1024)
def address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def is_loopback(name: str) -> bool:
    """Whether a name or an address is this machine's own for itself."""
    found = address(name)
    return name == "localhost" or name.endswith(".localhost") if found is None else found.is_loopback


def is_forwarded(names: Sequence[bytes]) -> bool:
    """Whether someone in between speaks for another: then where it comes from says nothing about who asks."""
    return any(name in _FORWARDED or name.startswith(_FORWARDED_START) for name in names)


def network(client: str | None) -> str:
    """What a client's failures are counted under; one who has an IPv6 address has 2⁶⁴ of them."""
    found = None if client is None else address(client)
    if found is None:
        return client or "unknown"
    return str(found) if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))
