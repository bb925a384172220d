"""JSON encoding and validation: one writer and one validator, so that all engines store the same text.

Rejected, with the reason: NaN and infinities (not JSON), NUL (PostgreSQL text cannot store it), lone surrogates (not
UTF-8), integers beyond 64 bits, nesting beyond 64 levels. Text is stored as it was written; engines never re-serialise
it.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pydantic_core

from backstay.errors import InvalidPayload, InvalidResult
from backstay.limits import ERROR_TEXT_MAX, JSON_DEPTH_MAX, JSON_INT_MAX, JSON_INT_MIN

# All digits become the same one: then one search finds a number of 19 digits, five times faster than a pattern.
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_BACKSLASH, _CAPITAL_N, _CAPITAL_I = b"\\NI"  # as numbers: the fastest search there is

decode = msgspec.json.decode
encode = msgspec.json.encode


def to_json(value: Any, what: str = "payload") -> str:
    """Return the JSON text of a value; raise InvalidPayload with the reason if it cannot be stored."""
    try:
        raw = pydantic_core.to_json(value, inf_nan_mode="constants")
    except (
        pydantic_core.PydanticSerializationError,
        UnicodeEncodeError,
        RecursionError,
        ValueError,
    ) as error:
        raise InvalidPayload(f"the {what} is not JSON: {_why(error)}") from None
    if may_repeat_names(value, raw):
        inspect(raw, what)
    return checked(raw, what)


def result_json(value: Any) -> str:
    """The JSON text of what a handler returned, or InvalidResult."""
    try:
        return to_json(value, "result")
    except InvalidPayload as error:
        raise InvalidResult(str(error)) from None


def clean(text: str, *, keep_end: bool = False, limit: int = ERROR_TEXT_MAX) -> str:
    """Text that every engine stores: no NUL, no lone surrogates, not too long."""
    text = text[-limit:] if keep_end else text[:limit]
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def may_repeat_names(value: Any, raw: bytes) -> bool:
    """Return whether a value may have duplicate names: {1: …, "1": …} becomes an object with one name twice, and
    readers disagree on which one counts."""
    if raw.count(b"{") > 1:
        try:
            return len(encode(decode(raw))) != len(raw)
        except (msgspec.MsgspecError, RecursionError):
            return True
    return isinstance(value, dict) and not all(type(name) is str for name in value)


def checked(raw: bytes, what: str) -> str:
    """Return JSON that a serializer wrote as text; raise InvalidPayload if an engine cannot store it."""
    if _suspicious(raw):
        inspect(raw, what)
    return raw.decode()


def has_nan(value: Any) -> bool:
    """Return whether a value contains a NaN or an infinity. Serializers write them as null, which would change the
    data."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case float() as number:
                if not math.isfinite(number):
                    return True
            case dict() as mapping:
                waiting.extend(mapping.values())
            case list() | tuple() | set() | frozenset() as items:
                waiting.extend(items)
            case _:
                pass
    return False


def from_json(text: str | bytes, what: str = "payload") -> Any:
    """Parse JSON from a person or another program, strictly."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    inspect(raw, what)
    return msgspec.json.decode(raw)


def _suspicious(raw: bytes) -> bool:
    """Return whether a document needs a full check. These cheap scans clear nearly every document: a single byte is
    found many times faster than a word, and its absence clears the word."""
    return (
        (_BACKSLASH in raw and b"\\u" in raw)
        or (_CAPITAL_N in raw and b"NaN" in raw)
        or (_CAPITAL_I in raw and b"Infinity" in raw)
        or (len(raw) > JSON_DEPTH_MAX and raw.count(b"{") + raw.count(b"[") > JSON_DEPTH_MAX)
        or (len(raw) >= len(_LONG_NUMBER) and _LONG_NUMBER in raw.translate(_DIGITS_ALIKE))
    )


def inspect(raw: bytes, what: str) -> Any:
    """Run the full check, for documents that the cheap scans could not clear; return the parsed value."""
    try:
        document = json.loads(raw.decode(), parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
        problem = _problem(document)
    except RecursionError:
        problem = f"it is nested deeper than {JSON_DEPTH_MAX}"
    except UnicodeDecodeError:
        problem = "it is not UTF-8 (a lone surrogate, or another encoding)"
    except json.JSONDecodeError as error:
        raise InvalidPayload(f"the {what} is not valid JSON: {error}") from None
    except (ValueError, InvalidPayload) as error:
        problem = str(error)
    if problem:
        raise InvalidPayload(f"the {what} cannot be stored: {problem}")
    return document


def _problem(document: Any) -> str | None:
    level = [document]
    for depth in range(JSON_DEPTH_MAX + 1):
        deeper: list[Any] = []
        for value in level:
            match value:
                case str():
                    if "\0" in value:
                        return "it has a NUL character, which PostgreSQL text cannot hold"
                    if not value.isascii() and _has_surrogate(value):
                        return "it has a lone surrogate, which is not UTF-8"
                case bool():
                    pass
                case int():
                    if not JSON_INT_MIN <= value <= JSON_INT_MAX:
                        return "it has an integer beyond 64 bits: send it as a string"
                case float():
                    if value in (float("inf"), float("-inf")):
                        return "it has a number too large for a 64-bit float"
                case dict():
                    deeper.extend(value.keys())
                    deeper.extend(value.values())
                case list():
                    deeper.extend(value)
                case _:
                    pass
        if not deeper:
            return None
        level = deeper
        if depth == JSON_DEPTH_MAX - 1 and any(isinstance(value, dict | list) for value in level):
            break
    return f"it is nested deeper than {JSON_DEPTH_MAX}"


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _refuse_constant(name: str) -> None:
    raise InvalidPayload(f"{name} is not JSON")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise InvalidPayload("an object has the same name twice")
    return document


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError) or "surrogate" in str(error):
        return "it has a lone surrogate, which is not UTF-8"
    if isinstance(error, RecursionError) or "recursion" in str(error).lower() or "Circular" in str(error):
        return f"it refers to itself or is nested deeper than {JSON_DEPTH_MAX}"
    return str(error)[:300]
