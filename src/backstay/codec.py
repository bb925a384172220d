"""JSON encoding and validation: one writer and one validator, so that all engines store the same text.

Rejected, with the reason: NaN and infinities (not JSON), NUL (PostgreSQL text cannot store it), lone surrogates (not
UTF-8), integers beyond 64 bits, nesting beyond 64 levels. Text is stored as it was written; engines never re-serialise
it.

A result is measured before it is encoded: the encoder takes any iterator and any nesting, writes into memory until it
has all, and cannot be stopped. Iterators are refused, and what would exceed the limit is never written.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
import pydantic_core

from backstay.errors import InvalidPayload, InvalidResult, ResultTooLarge
from backstay.limits import (
    ERROR_TEXT_MAX,
    JSON_DEPTH_MAX,
    JSON_INT_MAX,
    JSON_INT_MIN,
    RESULT_BYTES_MAX,
    RESULT_QUICK_BYTES_MAX,
    RESULT_QUICK_PARTS_MAX,
)

# All digits become the same one: then one search finds a number of 19 digits, five times faster than a pattern.
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_BACKSLASH, _CAPITAL_N, _CAPITAL_I, _BRACE, _BRACKET = b"\\NI{["  # as numbers: the fastest search there is

decode = msgspec.json.decode
encode = msgspec.json.encode


def to_json(value: Any, what: str = "payload", written: Callable[[], None] | None = None) -> str:
    """Return the JSON text of a value; raise InvalidPayload with the reason if it cannot be stored. `written` is called
    when no more code of the value runs."""
    try:
        raw = pydantic_core.to_json(value, inf_nan_mode="constants")
    except (
        pydantic_core.PydanticSerializationError,
        UnicodeEncodeError,
        RecursionError,
        ValueError,
    ) as error:
        raise InvalidPayload(f"the {what} is not JSON: {_why(error)}") from None
    if written is not None:
        written()
    if may_repeat_names(value, raw):
        inspect(raw, what)
    return checked(raw, what)


def result_json(value: Any, written: Callable[[], None] | None = None) -> str:
    """The JSON text of what a handler returned; or InvalidResult, or ResultTooLarge before much memory is used."""
    _measure(value, None)
    return quick_result_json(value, written)


def quick_result_json(value: Any, written: Callable[[], None] | None = None) -> str:
    """The same for a value that has been measured."""
    try:
        text = to_json(value, "result", written)
    except InvalidPayload as error:
        raise InvalidResult(str(error)) from None
    if len(text) > RESULT_BYTES_MAX:
        raise _too_large()
    return text


def flat_json(value: Any) -> str | None:
    """The JSON text of nothing, and of an object with a few plain values, as nearly every result is; None for any other
    value, and for one that needs a closer look. What `to_json` looks for in the text is seen here in the values, at a
    fraction of the cost: only escapes are left."""
    if value is None:
        return "null"
    if type(value) is not dict or len(value) > _FLAT_PARTS_MAX:
        return None
    write: Callable[[Any], bytes] = encode  # the same text as Pydantic's, except for some numbers, in half the time
    for name, part in value.items():
        if type(name) is not str:
            return None
        kind = type(part)
        if kind is str:
            if len(part) > _FLAT_TEXT_MAX:
                return None
        elif kind is int:
            if not JSON_INT_MIN <= part <= JSON_INT_MAX:
                return None
        elif kind is float:
            if not math.isfinite(part):
                return None
            write = pydantic_core.to_json
        elif kind is not bool and part is not None:
            return None
    try:
        raw = write(value)
    except (pydantic_core.PydanticSerializationError, UnicodeEncodeError, ValueError):
        return None
    return None if len(raw) > RESULT_QUICK_BYTES_MAX or b"\\u" in raw else raw.decode()


def is_quick(value: Any) -> bool:
    """Return whether a result can be encoded in no time: it is small, and runs no code of its own. InvalidResult or
    ResultTooLarge where that is plain to see."""
    return _measure(value, RESULT_QUICK_PARTS_MAX)


def _measure(value: Any, parts_max: int | None) -> bool:
    """Walk through a result depth first, with about as much memory as it is deep. Parts may be shared, and a few lists
    that contain each other twice are more than any memory holds: large parts are walked through once. With `parts_max`,
    return False for what has more parts, or code that runs when it is encoded."""
    size = 0  # about as many bytes as it is encoded in, or less
    bytes_max = RESULT_BYTES_MAX if parts_max is None else RESULT_QUICK_BYTES_MAX
    known: dict[int, tuple[Any, int]] = {}  # large parts: kept alive, so that none has the id of another
    stack: list[tuple[Iterator[Any], Any, int]] = [(iter((value,)), None, 0)]
    parts = 0
    while stack:
        inner, whole, before = stack[-1]
        for part in inner:
            kind = type(part)
            parts += 1
            size += 1
            if kind is str:
                size += len(part)
            elif kind is int:
                if not JSON_INT_MIN <= part <= JSON_INT_MAX:
                    raise InvalidResult("the result has an integer beyond 64 bits: return it as a string")
            elif part is not None and kind is not bool and kind is not float:
                if known and id(part) in known:
                    size += known[id(part)][1]
                else:
                    found, length = _inside(part, parts_max is not None)
                    if found is None:
                        return False
                    size += length
                    if length:
                        stack.append((found, part, size))
                        break
            if size > bytes_max:
                break
        else:
            stack.pop()
            if size - before > _LARGE_PART and whole is not None:
                known[id(whole)] = (whole, size - before)
        if size > RESULT_BYTES_MAX:
            raise _too_large()
        if parts_max is not None and (size > bytes_max or parts > parts_max):
            return False
        if len(stack) > JSON_DEPTH_MAX + 1:
            raise InvalidResult(f"the result refers to itself or is nested deeper than {JSON_DEPTH_MAX}")
    return True


_FLAT_PARTS_MAX, _FLAT_TEXT_MAX = 32, 4_096
_LARGE_PART = 1_024


def _inside(part: Any, is_quick: bool) -> tuple[Iterator[Any] | None, int]:
    """The parts of a part, and about how many bytes it has besides them; None for one that is not quick. Subclasses
    cannot pretend to have other parts: the encoder does not ask them either."""
    kind: Any = type(part)
    if hasattr(kind, "__pydantic_serializer__"):
        computed, runs_code = _code_of(kind)
        if is_quick and runs_code:
            return None, 0
        values = [*getattr(part, "__dict__", {}).values(), *(getattr(part, "__pydantic_extra__", None) or {}).values()]
        if computed:
            values += [getattr(part, name) for name in computed]
        return iter(values), 1
    if isinstance(part, dict):
        return iter(dict.values(part)), dict.__len__(part) * 3 + _text_bytes(dict.keys(part))
    if isinstance(part, list):
        return list.__iter__(part), list.__len__(part)
    if isinstance(part, tuple):
        return tuple.__iter__(part), tuple.__len__(part)
    if isinstance(part, set | frozenset | deque):
        return iter(tuple(part)), len(part)
    if isinstance(part, Enum):
        return iter((part.value,)), 1
    if isinstance(part, str | bytes | bytearray):
        return iter(()), len(part)
    if isinstance(part, int):
        return iter((int.__int__(part),)), 1
    if hasattr(kind, "__next__"):
        raise InvalidResult(f"the result has a {type(part).__name__} in it, which may never end: return a list instead")
    if dataclasses.is_dataclass(part):
        return iter([getattr(part, field.name, None) for field in dataclasses.fields(part)]), 1
    return iter(()), Decimal.__sizeof__(part) if isinstance(part, Decimal) else 0  # others are short, or refused later


def _text_bytes(names: Iterable[Any]) -> int:
    return sum(len(name) for name in names if isinstance(name, str))


@functools.lru_cache(maxsize=1_000)
def _code_of(kind: Any) -> tuple[tuple[str, ...], bool]:
    """Return a model's computed fields, and whether its own functions take part in its encoding. A schema that cannot
    be read may have some."""
    computed = tuple(getattr(getattr(kind, "__pydantic_decorators__", None), "computed_fields", ()))
    schema = getattr(kind, "__pydantic_core_schema__", None)
    waiting: list[Any] = [schema]
    runs_code = bool(computed) or not isinstance(schema, dict)
    while waiting and not runs_code:
        part = waiting.pop()
        if isinstance(part, dict):
            how = part.get("serialization")
            runs_code = isinstance(how, dict) and str(how.get("type", "")).startswith("function")
            waiting.extend(part.values())
        elif isinstance(part, list | tuple):
            waiting.extend(part)
    return computed, runs_code


def _too_large() -> ResultTooLarge:
    return ResultTooLarge(f"the result has more than {RESULT_BYTES_MAX:,} bytes (RESULT_BYTES_MAX)")


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


def all_checked(raws: Sequence[bytes]) -> list[str] | None:
    """Return JSON objects that a serializer wrote as texts, in a fraction of the time that `checked` takes for each;
    None if one of them needs a closer look."""
    whole = b"\n".join(raws)
    if _has_suspicious_word(whole) or {raw[0] for raw in raws} != {_BRACE}:
        return None
    if (whole.count(b"{") != len(raws) or _BRACKET in whole) and any(map(_may_be_deep, raws)):
        return None
    texts = whole.decode().split("\n")
    return texts if len(texts) == len(raws) else None


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
    return _has_suspicious_word(raw) or _may_be_deep(raw)


def _has_suspicious_word(raw: bytes) -> bool:
    return (
        (_BACKSLASH in raw and b"\\u" in raw)
        or (_CAPITAL_N in raw and b"NaN" in raw)
        or (_CAPITAL_I in raw and b"Infinity" in raw)
        or (len(raw) >= len(_LONG_NUMBER) and _LONG_NUMBER in raw.translate(_DIGITS_ALIKE))
    )


def _may_be_deep(raw: bytes) -> bool:
    return len(raw) > JSON_DEPTH_MAX and raw.count(b"{") + raw.count(b"[") > JSON_DEPTH_MAX


def inspect(raw: bytes, what: str) -> Any:
    """Run the full check, for documents that someone else wrote, or that the cheap scans could not clear; return the
    parsed value."""
    try:
        document = _STRICT.decode(raw.decode())
        problem = _problem(document) if _suspicious(raw) else None
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


def _finite(number: str) -> float:
    found = float(number)
    if math.isinf(found):
        raise InvalidPayload("it has a number too large for a 64-bit float")
    return found


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates, parse_float=_finite)


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError) or "surrogate" in str(error):
        return "it has a lone surrogate, which is not UTF-8"
    if isinstance(error, RecursionError) or "recursion" in str(error).lower() or "Circular" in str(error):
        return f"it refers to itself or is nested deeper than {JSON_DEPTH_MAX}"
    return str(error)[:300]
