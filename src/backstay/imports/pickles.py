"""Reads pickled plain data without running any of it.

Unpickling calls whatever functions the pickle names, so a pickle of another system is not unpickled here. Its opcodes
are read one by one, and only those that make plain data are understood: numbers, texts, lists, dictionaries,
sets, and a few types of the standard library, which become what JSON has for them. Everything else is refused by name.

One part of a pickle can be used in many places, so a short pickle can say something endless: the size of what it says
is counted, and limited.
"""

from __future__ import annotations

import pickletools
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import msgspec

from backstay.imports.source import Unmappable
from backstay.limits import JSON_DEPTH_MAX, RESULT_BYTES_MAX

_PART_BYTES = 64  # what a number or an empty list counts, so that there are at most a million
_MARK = object()
_PUSHED = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple, "EMPTY_SET": list}
_GETS, _PUTS = {"GET", "BINGET", "LONG_BINGET"}, {"PUT", "BINPUT", "LONG_BINPUT"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Name(msgspec.Struct, frozen=True):
    """A global that a pickle names. It is never looked up."""

    name: str


def read_pickle(content: bytes, what: str, *, exceptions: bool = False) -> Any:
    """Return what a pickle says, as JSON has it. Unmappable if it is not plain data. `exceptions`: an exception is read
    as its type and arguments."""
    try:
        said = _Reading(exceptions).run(content)
    except Unmappable as error:
        raise Unmappable(f"{what} cannot be read without running code: {error}") from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError):
        raise Unmappable(f"{what} is not a pickle that can be read") from None
    return _Plain(what).of(said, 0)


class _Reading:
    """The stack machine of pickles, with the opcodes of plain data."""

    def __init__(self, exceptions: bool) -> None:
        self._exceptions = exceptions
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                break
            self._do(opcode.name, argument)
        [said] = self._stack
        return said

    def _do(self, name: str, argument: Any) -> None:
        stack, memo = self._stack, self._memo
        if name in _PUSHED:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _GETS:
            stack.append(memo[int(argument)])
        elif name in _PUTS:
            memo[int(argument)] = stack[-1]
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        else:
            self._do_more(name, argument)

    def _do_more(self, name: str, argument: Any) -> None:
        stack = self._stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "MARK":
                stack.append(_MARK)
            case "POP":
                stack.pop()
            case "POP_MARK":
                self._marked()
            case "DUP":
                stack.append(stack[-1])
            case "TUPLE":
                stack.append(tuple(self._marked()))
            case "LIST" | "FROZENSET":
                stack.append(self._marked())
            case "DICT":
                stack.append(_pairs(self._marked()))
            case "APPEND":
                item = stack.pop()
                _listed(stack[-1]).append(item)
            case "APPENDS" | "ADDITEMS":
                items = self._marked()
                _listed(stack[-1]).extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _mapped(stack[-1]).update(_pairs([key, value]))
            case "SETITEMS":
                items = self._marked()
                _mapped(stack[-1]).update(_pairs(items))
            case "GLOBAL":
                stack.append(_Name(str(argument).replace(" ", ".")))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(_Name(f"{module}.{attribute}"))
            case "REDUCE" | "NEWOBJ":
                arguments, named = stack.pop(), stack.pop()
                stack.append(_failure(named, arguments) if self._is_failure(named) else _made(named, arguments))
            case "BUILD":
                state, made = stack.pop(), stack.pop()
                if isinstance(made, _Failure):
                    stack.append(made)
                    return
                if made != _Name("uuid.UUID") or not isinstance(state, dict):
                    raise Unmappable("it holds an object with a state of its own")
                stack.append(str(UUID(int=state["int"])))
                self._memo = {key: stack[-1] if value is made else value for key, value in self._memo.items()}
            case _:
                raise Unmappable(f"it uses {name}")

    def _is_failure(self, named: Any) -> bool:
        return self._exceptions and isinstance(named, _Name) and named.name.endswith(("Error", "Exception"))

    def _marked(self) -> list[Any]:
        """Take what was pushed since the last mark."""
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
        taken = self._stack[at + 1 :]
        del self._stack[at:]
        return taken


class _Failure(msgspec.Struct, frozen=True):
    """An exception, which is never made."""

    said: dict[str, Any]


def _failure(named: _Name, arguments: Any) -> _Failure:
    return _Failure({"exc_type": named.name.rpartition(".")[2], "exc_message": list(arguments)})


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("items for what is not a list")
    return value


def _mapped(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError("items for what is not a dictionary")
    return value


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _made(named: Any, arguments: Any) -> Any:
    """Return what a call would make, of the types that are known to be plain."""
    if not isinstance(named, _Name) or not isinstance(arguments, tuple):
        raise ValueError("a call of what is not a name")
    match named.name, arguments:
        case "datetime.datetime", (bytes() as raw, *zone) if len(raw) == 10:
            year, month, day = raw[0] << 8 | raw[1], raw[2] & 0x7F, raw[3]
            micros = raw[7] << 16 | raw[8] << 8 | raw[9]
            tz = zone[0] if zone and isinstance(zone[0], timezone) else None
            if zone and tz is None:
                raise Unmappable("it holds a time with a zone that is not an offset")
            return datetime(year, month, day, raw[4], raw[5], raw[6], micros, tzinfo=tz)
        case "datetime.date", (bytes() as raw,) if len(raw) == 4:
            return date(raw[0] << 8 | raw[1], raw[2], raw[3])
        case "datetime.timedelta", (int() as days, int() as seconds, int() as micros):
            return timedelta(days, seconds, micros)
        case "datetime.timezone", (timedelta() as offset,):
            return timezone(offset)
        case "datetime.timezone", ():
            return UTC
        case "decimal.Decimal", (str() as digits,):
            return digits
        case "collections.OrderedDict", ():
            return {}
        case (
            ("builtins.set" | "builtins.frozenset" | "__builtin__.set" | "__builtin__.frozenset"),
            (list() as items,),
        ):
            return list(items)
        case "uuid.UUID", ():
            return _Name("uuid.UUID")
        case _:
            raise Unmappable(f"it holds a {named.name}")


class _Plain:
    """Copies what was read into what JSON has, within a limit."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._left = RESULT_BYTES_MAX

    def of(self, value: Any, depth: int) -> Any:
        self._left -= _PART_BYTES + (len(value) if isinstance(value, str | bytes | bytearray) else 0)
        if self._left < 0 or depth > JSON_DEPTH_MAX:
            raise Unmappable(f"{self._what} is larger or deeper than what can be stored here")
        match value:
            case None | bool() | int() | float() | str():
                return value
            case bytes() | bytearray():
                return {"base64": b64encode(value).decode()}
            case datetime() | date():
                return value.isoformat()
            case timedelta():
                return value.total_seconds()
            case list() | tuple():
                return [self.of(each, depth + 1) for each in value]
            case dict():
                if not all(isinstance(key, str) for key in value):
                    raise Unmappable(f"{self._what} has a dictionary with keys that are not text")
                return {key: self.of(each, depth + 1) for key, each in value.items()}
            case _Failure():
                return self.of(value.said, depth)
            case _Name():
                raise Unmappable(f"{self._what} cannot be read without running code: it names {value.name}")
            case _:
                raise Unmappable(f"{self._what} is not plain data")
