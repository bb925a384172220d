"""Values as DynamoDB's JSON spells them, and how many bytes they count. Pure.

Texts are S, numbers N, bytes B, sets of texts SS, lists L, mappings M. None is absence: it is never written.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from holdfast.errors import StoreError

Item = dict[str, Any]  # native values; the wire's spelling stays in this file
Wired = dict[str, Any]


def encode(item: Mapping[str, Any]) -> Wired:
    return {name: encode_value(value) for name, value in item.items() if value is not None}


def decode(wired: Mapping[str, Any]) -> Item:
    try:
        return {name: decode_value(value) for name, value in wired.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(f"an item cannot be read, it is not as DynamoDB spells them: {error}") from None


def encode_value(value: Any) -> Wired:
    if isinstance(value, str):
        return {"S": str(value)}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float):
        return {"N": repr(value)}
    if isinstance(value, bytes):
        return {"B": base64.b64encode(value).decode()}
    if isinstance(value, set | frozenset):
        return {"SS": sorted(value)}
    if isinstance(value, list | tuple):
        return {"L": [encode_value(each) for each in value]}
    if isinstance(value, Mapping):
        return {"M": encode(value)}
    raise TypeError(f"{type(value).__name__} has no place in an item")


def decode_value(wired: Mapping[str, Any]) -> Any:
    [(kind, value)] = wired.items()
    match kind:
        case "S" | "BOOL":
            return value
        case "N":
            return _number(value)
        case "B":
            return base64.b64decode(value)
        case "SS":
            return set(value)
        case "L":
            return [decode_value(each) for each in value]
        case "M":
            return decode(value)
        case "NULL":
            return None
        case _:
            raise TypeError(f"a value of kind {kind!r} is not one of ours")


def _number(text: str) -> int | float:
    """DynamoDB gives back 1E+2 for some whole numbers; instants and counts must stay exact."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() and "." not in text else number


def size(item: Mapping[str, Any]) -> int:
    """Bytes as DynamoDB counts them: names and values."""
    return sum(len(name.encode()) + size_of(value) for name, value in item.items() if value is not None)


def size_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bool):
        return 1
    if isinstance(value, int | float):
        return (len(repr(value).lstrip("-").replace(".", "")) + 1) // 2 + 2
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, set | frozenset):
        return sum(size_of(each) for each in value)
    if isinstance(value, list | tuple):
        return 3 + sum(1 + size_of(each) for each in value)
    if isinstance(value, Mapping):
        return 3 + sum(1 + len(name.encode()) + size_of(each) for name, each in value.items())
    return 1
