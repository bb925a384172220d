"""Signature version 4. Pure: keys and the time go in, headers come out."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import quote

import msgspec


class Keys(msgspec.Struct, frozen=True):
    """The keys that sign a request. They never appear in a message."""

    access_key: str
    secret_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"Keys({self.access_key[:4]}…)"


class Signer:
    """For one service and region. The derived key of a day is kept: four of five hashes are those."""

    def __init__(self, service: str, region: str) -> None:
        self._service = service
        self._region = region
        self._kept: tuple[str, str, bytes] = ("", "", b"")

    def headers(
        self,
        keys: Keys,
        now: datetime,
        method: str,
        host: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body_hash: str,
    ) -> dict[str, str]:
        """All headers of the request: those given, and what proves them."""
        stamp = now.strftime("%Y%m%dT%H%M%SZ")
        signed = {name.lower(): value.strip() for name, value in headers.items()}
        signed |= {"host": host, "x-amz-date": stamp}
        if keys.session_token is not None:
            signed["x-amz-security-token"] = keys.session_token
        names = sorted(signed)
        listed = ";".join(names)
        canonical = "\n".join(
            [
                method,
                quote(path, safe="/-_.~"),
                canonical_query(query),
                *(f"{name}:{signed[name]}" for name in names),
                "",
                listed,
                body_hash,
            ]
        )
        day = stamp[:8]
        scope = f"{day}/{self._region}/{self._service}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode())}"
        proof = hmac.new(self._key(keys.secret_key, day), text.encode(), hashlib.sha256).hexdigest()
        signed["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, SignedHeaders={listed}, Signature={proof}"
        )
        return signed

    def _key(self, secret: str, day: str) -> bytes:
        if self._kept[:2] != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            self._kept = (secret, day, key)
        return self._kept[2]


def canonical_query(query: Mapping[str, str]) -> str:
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
