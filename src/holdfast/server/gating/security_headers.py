"""What every answer says to a browser: run nothing but ours, guess no types, tell nobody where one came from."""

from __future__ import annotations

from collections.abc import Iterable

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'"
)

_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
# Unless a route says something else: an artifact has a policy of its own, a style sheet may be kept.
_USUALLY = ((b"content-security-policy", POLICY.encode()), (b"cache-control", b"no-store"))

Headers = list[tuple[bytes, bytes]]


def added(given: Iterable[tuple[bytes, bytes]], request_id: str) -> Headers:
    found = [(name.lower(), value) for name, value in given]
    names = {name for name, _ in found}
    ours = [*_ALWAYS, (b"x-request-id", request_id.encode())]
    replaced = {name for name, _ in ours}
    return [
        *(each for each in found if each[0] not in replaced),
        *ours,
        *(each for each in _USUALLY if each[0] not in names),
    ]
