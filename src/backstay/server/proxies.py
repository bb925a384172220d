"""Proxies in front of the server, which may say where a request comes from and how.

Anyone can send `X-Forwarded-For`. It is believed only if the connection comes from a proxy that was named, and read
from the right, where each proxy adds the address that it was called from: the right-most address that is not one of
our proxies is the client. What is left of it was sent by the client itself.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starlette.types import Scope

from backstay.errors import ConfigurationError
from backstay.server.request import address

log = logging.getLogger("backstay.server")
_FOR, _PROTO = b"x-forwarded-for", b"x-forwarded-proto"
FORWARDED = frozenset((_FOR, _PROTO))  # a request without these is what it says, no matter who sent it
_MAPPED_BITS = 96  # of an IPv4 address within IPv6, ::ffff:10.0.0.1
_SCHEMES = ("http", "https")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class _Named:
    network: ipaddress.IPv4Network | ipaddress.IPv6Network
    zone: str | None  # None: on any interface

    def has(self, found: Address) -> bool:
        if found.version != self.network.version or found not in self.network:
            return False
        return self.zone is None or self.zone == getattr(found, "scope_id", None)


class Proxies:
    """The named proxies: addresses and networks, `10.0.0.0/8`, `::1`, `fe80::1%eth0`. None: the application that mounts
    us, or its server, has read what they say."""

    def __init__(self, given: Sequence[str] | None) -> None:
        texts = [given] if isinstance(given, str) else given or ()
        self._is_ours = given is not None
        self._named = tuple(_named(part.strip()) for text in texts for part in text.split(",") if part.strip())
        self._has_warned = False

    def applied(self, scope: Scope) -> Scope:
        """Return the request as its client made it, if one of the proxies passes it on; else as it is."""
        if not self._is_ours:
            return scope
        peer = scope["client"][0] if scope.get("client") else None
        found = None if peer is None else address(peer)
        if found is None or not self._has(found):
            self._warn(peer, scope)
            return scope
        client = self._client(found, scope)
        changed: Scope = {**scope, "client": (str(client), 0)} if client is not found else dict(scope)
        scheme = next(_values(scope, _PROTO), "").lower()
        if scheme in _SCHEMES:
            changed["scheme"] = scheme
        return changed

    def _has(self, found: Address) -> bool:
        return any(each.has(found) for each in self._named)

    def _client(self, proxy: Address, scope: Scope) -> Address:
        client = proxy
        for text in _values(scope, _FOR):
            found = _address(text)
            if found is None:
                break  # "unknown", or nonsense: all that is known is who said so
            client = found
            if not self._has(found):
                break
        return client

    def _warn(self, peer: str | None, scope: Scope) -> None:
        """Log it once: all clients of a proxy that was not named look like one."""
        if self._has_warned or not any(name == _FOR for name, _ in scope["headers"]):
            return
        self._has_warned = True
        log.warning(
            "X-Forwarded-For from %s is ignored, because it is not a named proxy: if it is yours, name it with --proxy"
            " or BACKSTAY_PROXIES",
            peer or "an unknown address",
        )


def _named(text: str) -> _Named:
    whole, slash, length = text.partition("/")
    try:
        found = ipaddress.ip_address(_unbracketed(whole))
        bits = int(length) if slash else found.max_prefixlen
        zone = getattr(found, "scope_id", None)
        mapped = getattr(found, "ipv4_mapped", None)
        if mapped is not None:
            found, bits = mapped, bits - _MAPPED_BITS
        kind = ipaddress.IPv4Network if found.version == 4 else ipaddress.IPv6Network
        return _Named(kind((found.packed, bits), strict=False), zone)
    except ValueError:
        raise ConfigurationError(
            f"{text!r:.80} is not an address or a network of a proxy: give 10.0.0.7, 10.0.0.0/8, ::1 or fe80::1%eth0"
        ) from None


def _values(scope: Scope, header: bytes) -> Iterator[str]:
    """Return the elements of a header that is a list, the last one first. It may be sent several times, and empty
    elements do not count (RFC 9110, 5.6.1)."""
    for name, value in reversed(list(scope["headers"])):
        if name == header:
            parts = (part.strip() for part in reversed(value.decode("latin-1").split(",")))
            yield from (part for part in parts if part)


def _address(text: str) -> Address | None:
    """Parse an address as proxies write it: some add the port."""
    if text.count(":") == 1 or text.startswith("["):
        text = text.rpartition(":")[0] if not text.endswith("]") else text
    return address(_unbracketed(text))


def _unbracketed(text: str) -> str:
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text
