"""Redaction of payloads and error texts before they are sent to an outside service. Pure.

A field is secret because of its name, a name that the user adds, or a mark of its job type
(core/sensitive.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from backstay import codec
from backstay.core.sensitive import MASK, masked
from backstay.errors import ConfigurationError

PAYLOAD_CHARACTERS_MAX = 8_000  # enough to recognise the payload; 256 KiB are too much for a report
_SCRUBBED_MIN = 4  # a shorter secret occurs in any text by chance
_NAMES = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "accesskey", "privatekey", "credential",
    "authorization", "cookie", "sessionid", "dsn", "connectionstring",
)  # fmt: skip
_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)(?=@)")


class RedactedPayload:
    """A job's payload with its secrets masked, and the means to mask them in other texts."""

    def __init__(self, payload: str, secrets: Iterable[str]) -> None:
        self.payload = payload if len(payload) <= PAYLOAD_CHARACTERS_MAX else _cut(payload)
        self._secrets = sorted({each for each in secrets if len(each) >= _SCRUBBED_MIN}, key=len, reverse=True)

    def scrubbed(self, text: str) -> str:
        """Mask secrets in a message or traceback: handlers write values into them."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return without_passwords(text)


class Redaction:
    def __init__(self, names: Iterable[str] = ()) -> None:
        if isinstance(names, str):
            raise ConfigurationError(f'redact={names!r}: give a list of fields: redact=["{names}"]')
        self._names = (*_NAMES, *filter(None, map(_plain, names)))

    def redact(self, payload: str, marks: Iterable[str] = ()) -> RedactedPayload:
        try:
            value = codec.decode(payload)
            shown = masked(marks, self._covered(value))
            return RedactedPayload(without_passwords(msgspec.json.encode(shown).decode()), _hidden(value, shown))
        except (ValueError, RecursionError):  # inserted by SQL: not JSON, or nested too deeply
            return RedactedPayload("", ())

    def _covered(self, value: Any) -> Any:
        match value:
            case dict():
                return {
                    name: MASK if part is not None and self._is_secret(name) else self._covered(part)
                    for name, part in value.items()
                }
            case list():
                return [self._covered(part) for part in value]
            case _:
                return value

    def _is_secret(self, name: str) -> bool:
        plain = _plain(name)
        return any(each in plain for each in self._names)


def without_passwords(text: str) -> str:
    """Mask passwords in URLs."""
    return _IN_URL.sub(rf"\1:{MASK}", text)


def _plain(name: str) -> str:
    """Normalise a name: API-Key, api_key and apiKey are the same."""
    return "".join(each for each in name.lower() if each.isalnum())


def _hidden(value: Any, shown: Any) -> Iterator[str]:
    """Yield every text inside a masked value, as is and as it looks in a repr or in JSON."""
    match value, shown:
        case dict(), dict():
            for name, part in value.items():
                yield from _hidden(part, shown.get(name))
        case list(), list():
            for part, of_shown in zip(value, shown, strict=True):
                yield from _hidden(part, of_shown)
        case _ if shown == MASK and value != MASK:
            yield from _texts(value)


def _texts(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for part in value.values():
                yield from _texts(part)
        case list():
            for part in value:
                yield from _texts(part)
        case str():
            yield value
            yield repr(value)[1:-1]
            yield msgspec.json.encode(value).decode()[1:-1]
        case int() | float() if not isinstance(value, bool):
            yield str(value)


def _cut(text: str) -> str:
    return f"{text[:PAYLOAD_CHARACTERS_MAX]}… ({len(text):,} characters in all)"
