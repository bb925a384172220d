"""Models and result tables: which column a field becomes, and rows on their way into the store and back. Pure.

What one engine could not keep is refused here, so that all of them keep the same.
"""

from __future__ import annotations

import math
import re
import sys
import types
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

from holdfast import codec
from holdfast.clock import to_datetime, to_instant
from holdfast.errors import ConfigurationError, InvalidPayload, InvalidRow
from holdfast.limits import (
    JSON_INT_MAX,
    JSON_INT_MIN,
    RESULT_KEY_BYTES_MAX,
    RESULT_ROW_BYTES_MAX,
    VECTOR_DIMENSIONS_MAX,
)
from holdfast.store.tables import Column, ColumnKind, ResultTable, RowOrigin, Value

KEY_KINDS = (ColumnKind.INTEGER, ColumnKind.TEXT, ColumnKind.UUID)
DECIMAL_DIGITS_MAX = 38  # what DynamoDB keeps, and how far its point may be away
DECIMAL_EXPONENTS = range(-130, 126)
_TABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")  # with "result_" and "_subject" still a name of PostgreSQL
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_ENDS_OF_INDEXES = ("_subject", "_pkey")  # of another table's: SQLite and PostgreSQL name both alike
_OURS = ("job_id", "created_at", *RowOrigin.__struct_fields__)
_OF_ENGINES = frozenset(("ctid", "xmin", "cmin", "xmax", "cmax", "tableoid", "rowid", "oid", "_rowid_"))


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Of a vector: Annotated[list[float], Dimensions(384)]."""

    count: int


# From a model to a table


def kind_of(annotation: Any, metadata: Iterable[Any] = ()) -> tuple[ColumnKind, int, bool]:
    """The kind of a field, the dimensions of a vector, and whether it may be None."""
    for each in metadata:
        if isinstance(each, Dimensions):
            return ColumnKind.VECTOR, each.count, False
    while hasattr(annotation, "__supertype__"):
        annotation = annotation.__supertype__
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return kind_of(inner, more)
    if origin in (Union, types.UnionType):
        rest = [each for each in get_args(annotation) if each is not type(None)]
        kind, dimensions, _ = kind_of(rest[0]) if len(rest) == 1 else (ColumnKind.JSON, 0, False)
        return kind, dimensions, len(rest) < len(get_args(annotation))
    if origin is Literal:
        return _kind_of_classes({type(value) for value in get_args(annotation)}), 0, False
    return _kind_of_classes({annotation}), 0, annotation is Any


_CLASSES: tuple[tuple[type, ColumnKind], ...] = (
    (bool, ColumnKind.BOOLEAN),  # which is an int, too
    (int, ColumnKind.INTEGER),
    (float, ColumnKind.NUMBER),
    (str, ColumnKind.TEXT),
    (bytes, ColumnKind.BYTES),
    (datetime, ColumnKind.MOMENT),
    (UUID, ColumnKind.UUID),
    (Decimal, ColumnKind.DECIMAL),
)


def _kind_of_classes(classes: set[Any]) -> ColumnKind:
    kinds = {
        next((kind for known, kind in _CLASSES if isinstance(each, type) and issubclass(each, known)), ColumnKind.JSON)
        for each in classes
    }
    return kinds.pop() if len(kinds) == 1 else ColumnKind.JSON


def table_of(
    model: str,
    kinds: Mapping[str, tuple[ColumnKind, int, bool]],
    *,
    table: str,
    key: str | None,
    subject: str | None,
    subject_index: bool,
) -> ResultTable:
    """The table that a model declares; ConfigurationError where it cannot be one."""
    if not isinstance(table, str) or not _TABLE.fullmatch(table):
        raise ConfigurationError(f"{model}: table={table!r:.80}: use a letter, then up to 47 of A-Z a-z 0-9 _")
    if table.lower().endswith(_ENDS_OF_INDEXES):
        raise ConfigurationError(f"{model}: table={table!r}: so ends the name of an index of another table; rename it")
    columns = tuple(Column(name, kind, dimensions) for name, (kind, dimensions, _) in kinds.items())
    _refuse_names(model, [column.name for column in columns])
    if key is None or key not in kinds:
        raise ConfigurationError(f"{model}: key={key!r}: name the field that tells the rows of a job apart")
    if kinds[key][0] not in KEY_KINDS or kinds[key][2]:
        raise ConfigurationError(f"{model}: key {key!r}: use int, str or UUID, and never None")
    if subject is not None and (subject not in kinds or kinds[subject][0] is not ColumnKind.TEXT):
        raise ConfigurationError(f"{model}: subject={subject!r}: name a field that is a text")
    if subject_index and subject is None:
        raise ConfigurationError(f"{model}: subject_index=True needs subject=: by which field should rows be found?")
    for column in columns:
        if column.kind is ColumnKind.VECTOR and not 1 <= column.dimensions <= VECTOR_DIMENSIONS_MAX:
            raise ConfigurationError(f"{model}.{column.name}: a vector has 1 to {VECTOR_DIMENSIONS_MAX:,} dimensions")
    return ResultTable(table, key, columns, subject, bool(subject_index))


def _refuse_names(model: str, names: list[str]) -> None:
    for name in names:
        if not _COLUMN.fullmatch(name) or name.lower().startswith("hf_"):
            raise ConfigurationError(
                f"{model}.{name}: a column is a letter or _, then up to 62 of A-Z a-z 0-9 _, and not hf_…: that is ours"
            )
        if name.lower() in _OF_ENGINES:
            raise ConfigurationError(f"{model}.{name}: PostgreSQL or SQLite has a column {name} of its own; rename it")
    if len({name.lower() for name in (*_OURS, *names)}) < len(names) + len(_OURS):
        raise ConfigurationError(
            f"{model}: two fields, or one and one of {', '.join(_OURS)}, differ in case alone: one column to SQLite"
        )


# From a row to values


def encoded(table: ResultTable, row: Mapping[str, Any]) -> tuple[Value, ...]:
    """A row's values in the order of the columns; of JSON columns, what they serialise to. InvalidRow says why not."""
    values: list[Value] = []
    for column in table.columns:
        value = row[column.name]
        try:
            kept = None if value is None else _ENCODE[column.kind](value, column)
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidRow(f"{table.name}.{column.name} = {value!r:.80}: {error}") from None
        values.append(kept)
        if column.name == table.key:
            _refuse_key(table, kept)
        if column.name == table.subject and table.subject_index:
            _refuse_long(table, column.name, kept)
    if (size := size_of(values)) > RESULT_ROW_BYTES_MAX:
        raise InvalidRow(
            f"{table.name}: a row has {size:,} bytes, and the limit is {RESULT_ROW_BYTES_MAX:,}: keep what is large as"
            " an artifact, and its name in the row"
        )
    return tuple(values)


def _refuse_key(table: ResultTable, key: Value) -> None:
    if key is None or key == "":
        raise InvalidRow(f"{table.name}: a row has no {table.key}, by which it would be told apart")
    _refuse_long(table, table.key, key)


def _refuse_long(table: ResultTable, name: str, value: Value) -> None:
    """What is in an index."""
    if isinstance(value, str) and len(value.encode()) > RESULT_KEY_BYTES_MAX:
        what = "a key" if name == table.key else "a subject with an index"
        raise InvalidRow(f"{table.name}.{name} = {value!r:.80}: {what} has up to {RESULT_KEY_BYTES_MAX:,} bytes")


def size_of(values: Iterable[Value]) -> int:
    """Roughly, in bytes, and not too little."""
    return sum(32 + (len(value) if isinstance(value, bytes) else _text_size(value)) for value in values)


def _text_size(value: Value) -> int:
    return 0 if not isinstance(value, str) else len(value) if value.isascii() else len(value.encode())


def _plain(value: Any, *kinds: type) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"it is of type {type(value).__name__}")
    return value


def _integer(value: Any, _: Column) -> int:
    if not JSON_INT_MIN <= (number := int(_plain(value, int))) <= JSON_INT_MAX:
        raise ValueError("an integer has up to 64 bits; keep it as a text")
    return number


def _number(value: Any, _: Column) -> float:
    if not math.isfinite(number := float(_plain(value, int, float))):
        raise ValueError("NaN and infinities are no numbers to keep; use None")
    return number + 0.0  # of -0.0, which not every engine keeps, 0.0


def _text(value: Any, _: Column) -> str:
    text = str(_plain(value, str))
    if "\0" in text:
        raise ValueError("it has a NUL character, which PostgreSQL text cannot hold")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it has a lone surrogate, which is not UTF-8") from None
    return text


def _moment(value: Any, _: Column) -> int:
    moment: datetime = _plain(value, datetime)
    if moment.tzinfo is None:
        raise ValueError("it has no time zone: write datetime(..., tzinfo=UTC)")
    return to_instant(moment)


def _decimal(value: Any, _: Column) -> str:
    number: Decimal = _plain(value, Decimal)
    if not number.is_finite():
        raise ValueError("NaN and infinities are no numbers to keep; use None")
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    if number and (len(digits) > DECIMAL_DIGITS_MAX or number.adjusted() not in DECIMAL_EXPONENTS):
        raise ValueError(f"a decimal has up to {DECIMAL_DIGITS_MAX} digits, from 1e-130 to 1e126; keep it as a text")
    return format(number or abs(number), "f")  # without the sign of a zero, which not every engine keeps


def _json(value: Any, column: Column) -> str:
    try:
        return codec.to_json(value, column.name)
    except InvalidPayload as error:
        raise ValueError(str(error)) from None


def _vector(value: Any, column: Column) -> bytes:
    if len(value) != column.dimensions:
        raise ValueError(f"it has {len(value)} dimensions, not {column.dimensions}")
    return packed(value)


def packed(numbers: Iterable[float]) -> bytes:
    """Numbers of 32 bits, little-endian: what every engine keeps of a vector."""
    try:
        kept = array("f", numbers)
    except TypeError:
        raise ValueError("a vector is a list of numbers") from None
    if not math.isfinite(sum(kept)):  # which it is if, and only if, all of them are: 32 bits cannot overflow 64
        raise ValueError("a vector is made of numbers up to 3.4e38; NaN and infinities are none")
    return _little_endian(kept).tobytes()


def unpacked(raw: bytes) -> list[float]:
    return _little_endian(array("f", raw)).tolist()


def _little_endian(numbers: array[float]) -> array[float]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


_ENCODE: dict[ColumnKind, Callable[[Any, Column], Value]] = {
    ColumnKind.INTEGER: _integer,
    ColumnKind.NUMBER: _number,
    ColumnKind.TEXT: _text,
    ColumnKind.BOOLEAN: lambda value, _: bool(_plain(value, bool)),
    ColumnKind.BYTES: lambda value, _: bytes(_plain(value, bytes, bytearray, memoryview)),
    ColumnKind.MOMENT: _moment,
    ColumnKind.UUID: lambda value, _: str(_plain(value, UUID)),
    ColumnKind.DECIMAL: _decimal,
    ColumnKind.JSON: _json,
    ColumnKind.VECTOR: _vector,
}


# And back


def decoded(column: Column, value: Any) -> Any:
    """What a stored value is in Python; JSON stays text."""
    if value is None:
        return None
    match column.kind:
        case ColumnKind.MOMENT:
            return to_datetime(value)
        case ColumnKind.UUID:
            return UUID(value)
        case ColumnKind.DECIMAL:
            return Decimal(value)
        case ColumnKind.VECTOR:
            return unpacked(value)
        case _:
            return value


def key_from(table: ResultTable, key: Any) -> Any:
    """A key that came as a text, from a URL, as what it is in this table."""
    kind = next(column.kind for column in table.columns if column.name == table.key)
    if kind is not ColumnKind.INTEGER or not isinstance(key, str):
        return key
    if not re.fullmatch(r"-?[0-9]{1,19}", key):
        raise InvalidRow(f"{table.name}.{table.key} = {key!r:.80}: it is no whole number")
    return int(key)


def key_value(table: ResultTable, key: Any) -> Value:
    """A key that somebody asks for, as it is stored."""
    kind = next(column for column in table.columns if column.name == table.key)
    if kind.kind is ColumnKind.UUID and isinstance(key, str):
        try:
            key = UUID(key)
        except ValueError:
            raise InvalidRow(f"{table.name}.{table.key} = {key!r:.80}: it is no UUID") from None
    try:
        found = _ENCODE[kind.kind](key, kind)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidRow(f"{table.name}.{table.key} = {key!r:.80}: {error}") from None
    _refuse_key(table, found)
    return found
