"""Checks AWS signatures (version 4) of requests as they arrive, written from Amazon's description of them."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>[^,]+), ?SignedHeaders=(?P<names>[^,]+),"
    r" ?Signature=(?P<signature>[0-9a-f]{64})"
)
_MUST_BE_SIGNED = {"host", "x-amz-date"}


def fault(
    secrets: Mapping[str, str], service: str, method: str, target: str, headers: Mapping[str, str], body: bytes
) -> str | None:
    """Return what is wrong with the signature of a request; None if it is right. `target`: path and query as they were
    sent. `headers`: with small names."""
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None:
        return "it is not signed"
    names, scope = found["names"].split(";"), found["scope"].split("/")
    if not set(names) >= _MUST_BE_SIGNED:
        return f"its signature leaves out {', '.join(sorted(_MUST_BE_SIGNED - set(names)))}"
    moment = headers["x-amz-date"]
    if scope[0] != moment[:8] or scope[2:] != [service, "aws4_request"]:
        return f"its signature is for {found['scope']}"
    hashed = hashlib.sha256(body).hexdigest()
    declared = headers.get("x-amz-content-sha256", hashed)
    if declared != hashed and not declared.startswith(("UNSIGNED-", "STREAMING-")):
        return "its body is not the one that was signed"
    secret = secrets.get(found["key"])
    if secret is None:
        return f"there is no access key {found['key']}"
    path, _, query = target.partition("?")
    parameters = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(query, keep_blank_values=True)
    )
    canonical = "\n".join(
        [
            method,
            path,
            "&".join(f"{name}={value}" for name, value in parameters),
            *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in names),
            "",
            found["names"],
            declared,
        ]
    )
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), "sha256")
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    signed = "\n".join(["AWS4-HMAC-SHA256", moment, found["scope"], hashed])
    return None if hmac.new(key, signed.encode(), "sha256").hexdigest() == found["signature"] else "it is wrong"
