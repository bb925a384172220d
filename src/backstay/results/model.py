"""`ResultRow`, the model of a result table: from fields to columns, and encoding and decoding of rows. Pure.

`class Point(ResultRow, table="points", key="number"): …`. Values that one engine could not store are rejected here, so
that all engines store the same.
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
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin
from uuid import UUID

import pydantic
from msgspec.structs import astuple
from pydantic import BaseModel, ConfigDict, PlainValidator, TypeAdapter, WithJsonSchema

from backstay import codec
from backstay.clock import to_datetime, to_instant
from backstay.core.result_tables import Column, ColumnKind, ResultTable, RowOrigin, StoredRow, Value
from backstay.errors import ConfigurationError, InvalidPayload, InvalidRow
from backstay.limits import (
    JSON_INT_MAX,
    JSON_INT_MIN,
    RESULT_KEY_BYTES_MAX,
    RESULT_ROW_BYTES_MAX,
    VECTOR_DIMENSIONS_MAX,
)

KEY_KINDS = (ColumnKind.INTEGER, ColumnKind.TEXT, ColumnKind.UUID)
DECIMAL_DIGITS_MAX = 38  # the digits that DynamoDB keeps, and the range of its exponent
DECIMAL_EXPONENTS = range(-130, 126)
# with "result_" and "_subject" still within PostgreSQL's limit for names
_TABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_ENDS_OF_INDEXES = ("_subject", "_pkey")  # would clash with the index of another table on SQLite and PostgreSQL
_OURS = ("job_id", "created_at", *RowOrigin.__struct_fields__)
_OF_ENGINES = frozenset(("ctid", "xmin", "cmin", "xmax", "cmax", "tableoid", "rowid", "oid", "_rowid_"))


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The dimensions of a vector: Annotated[list[float], Dimensions(384)]."""

    count: int


# From a model to a table


def kind_of(annotation: Any, metadata: Iterable[Any] = ()) -> tuple[ColumnKind, int, bool]:
    """Return the kind of a field, the dimensions of a vector, and whether it may be None."""
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
    (bool, ColumnKind.BOOLEAN),  # bool is also an int
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


def build_table(
    model: str,
    kinds: Mapping[str, tuple[ColumnKind, int, bool]],
    *,
    table: str,
    key: str | None,
    subject: str | None,
    subject_index: bool,
) -> ResultTable:
    """Return the table that a model declares; raise ConfigurationError if it is invalid."""
    if not isinstance(table, str) or not _TABLE.fullmatch(table):
        raise ConfigurationError(f"{model}: table={table!r:.80}: use a letter, then up to 47 of A-Z a-z 0-9 _")
    if table.lower().endswith(_ENDS_OF_INDEXES):
        raise ConfigurationError(f"{model}: table={table!r}: this ending is reserved for index names; rename it")
    columns = tuple(Column(name, kind, dimensions) for name, (kind, dimensions, _) in kinds.items())
    _refuse_names(model, [column.name for column in columns])
    if key is None or key not in kinds:
        raise ConfigurationError(f"{model}: key={key!r}: name the field that identifies a row within its job")
    if kinds[key][0] not in KEY_KINDS or kinds[key][2]:
        raise ConfigurationError(f"{model}: key {key!r}: use int, str or UUID, and never None")
    if subject is not None and (subject not in kinds or kinds[subject][0] is not ColumnKind.TEXT):
        raise ConfigurationError(f"{model}: subject={subject!r}: name a field of type str")
    if subject_index and subject is None:
        raise ConfigurationError(f"{model}: subject_index=True needs subject=: name the field to find rows by")
    for column in columns:
        if column.kind is ColumnKind.VECTOR and not 1 <= column.dimensions <= VECTOR_DIMENSIONS_MAX:
            raise ConfigurationError(f"{model}.{column.name}: a vector has 1 to {VECTOR_DIMENSIONS_MAX:,} dimensions")
    return ResultTable(table, key, columns, subject, bool(subject_index))


def _refuse_names(model: str, names: list[str]) -> None:
    for name in names:
        if not _COLUMN.fullmatch(name) or name.lower().startswith("bs_"):
            raise ConfigurationError(
                f"{model}.{name}: a column is a letter or _, then up to 62 of A-Z a-z 0-9 _, not starting with bs_,"
                " which is reserved"
            )
        if name.lower() in _OF_ENGINES:
            raise ConfigurationError(f"{model}.{name}: PostgreSQL or SQLite has a column {name} of its own; rename it")
    if len({name.lower() for name in (*_OURS, *names)}) < len(names) + len(_OURS):
        raise ConfigurationError(
            f"{model}: two fields, or one and one of {', '.join(_OURS)}, differ only in case, which is the same"
            " column to SQLite"
        )


# From a row to values


def encoded(table: ResultTable, row: Mapping[str, Any]) -> tuple[Value, ...]:
    """Return a row's values in column order; JSON columns are serialised. InvalidRow says why it cannot be stored."""
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
            f"{table.name}: a row has {size:,} bytes, and the limit is {RESULT_ROW_BYTES_MAX:,}: store large data as"
            " an artifact, and its name in the row"
        )
    return tuple(values)


def _refuse_key(table: ResultTable, key: Value) -> None:
    if key is None or key == "":
        raise InvalidRow(f"{table.name}: a row has no {table.key}, which would identify it")
    _refuse_long(table, table.key, key)


def _refuse_long(table: ResultTable, name: str, value: Value) -> None:
    """Reject values that are too long for an index."""
    if isinstance(value, str) and len(value.encode()) > RESULT_KEY_BYTES_MAX:
        what = "a key" if name == table.key else "a subject with an index"
        raise InvalidRow(f"{table.name}.{name} = {value!r:.80}: {what} has up to {RESULT_KEY_BYTES_MAX:,} bytes")


def size_of(values: Iterable[Value]) -> int:
    """Estimate the size in bytes, never too low."""
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
        raise ValueError("an integer has up to 64 bits; store it as a string")
    return number


def _number(value: Any, _: Column) -> float:
    if not math.isfinite(number := float(_plain(value, int, float))):
        raise ValueError("NaN and infinity cannot be stored; use None")
    return number + 0.0  # -0.0 becomes 0.0: not every engine keeps it


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
        raise ValueError("NaN and infinity cannot be stored; use None")
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    if number and (len(digits) > DECIMAL_DIGITS_MAX or number.adjusted() not in DECIMAL_EXPONENTS):
        raise ValueError(f"a decimal has up to {DECIMAL_DIGITS_MAX} digits, from 1e-130 to 1e126; store it as a string")
    return format(number or abs(number), "f")  # zero without its sign, which not every engine keeps


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
    """Return a vector as little-endian 32-bit numbers, the format of every engine."""
    try:
        kept = array("f", numbers)
    except TypeError:
        raise ValueError("a vector is a list of numbers") from None
    # finite if and only if all of them are: sums of 32-bit numbers cannot overflow 64 bits
    if not math.isfinite(sum(kept)):
        raise ValueError("a vector is made of numbers up to 3.4e38; NaN and infinity are not allowed")
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


# From values to a row


def decoded(column: Column, value: Any) -> Any:
    """Return a stored value as its Python type; JSON stays text."""
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
    """Convert a key given as text, as in a URL, to the type of this table's key."""
    kind = next(column.kind for column in table.columns if column.name == table.key)
    if kind is not ColumnKind.INTEGER or not isinstance(key, str):
        return key
    if not re.fullmatch(r"-?[0-9]{1,19}", key):
        raise InvalidRow(f"{table.name}.{table.key} = {key!r:.80}: it is not an integer")
    return int(key)


def key_value(table: ResultTable, key: Any) -> Value:
    """Convert a requested key to its stored form."""
    kind = next(column for column in table.columns if column.name == table.key)
    if kind.kind is ColumnKind.UUID and isinstance(key, str):
        try:
            key = UUID(key)
        except ValueError:
            raise InvalidRow(f"{table.name}.{table.key} = {key!r:.80}: it is not a UUID") from None
    try:
        found = _ENCODE[kind.kind](key, kind)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidRow(f"{table.name}.{table.key} = {key!r:.80}: {error}") from None
    _refuse_key(table, found)
    return found


R = TypeVar("R", bound="ResultRow")


class Vector:
    """`embedding: Vector[384]`: 32-bit numbers, from a list, a tuple or a numpy array."""

    def __class_getitem__(cls, dimensions: int) -> Any:
        if not isinstance(dimensions, int):
            raise ConfigurationError(f"Vector[{dimensions!r:.80}]: a vector has a number of dimensions: Vector[384]")
        listed = {"type": "array", "items": {"type": "number"}, "minItems": dimensions, "maxItems": dimensions}
        return Annotated[
            list[float], Dimensions(dimensions), PlainValidator(_rounded(dimensions)), WithJsonSchema(listed)
        ]

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise ConfigurationError("a field is a Vector without its number of dimensions: write Vector[384]")


def _rounded(dimensions: int) -> Any:
    def rounded(value: Any) -> list[float]:
        """Return the vector as any engine would return it, so that validation and storage agree."""
        numbers = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(numbers, list | tuple):
            raise ValueError("a vector is a list of numbers")
        if len(numbers) != dimensions:
            raise ValueError(f"it has {len(numbers)} dimensions, not {dimensions}")
        return unpacked(packed(numbers))

    return rounded


class ResultRow(BaseModel):
    """Rows of a job. A subclass names its table, its key field and, if rows are queried by subject, its subject field.

    The fields below are filled in when rows are stored.
    """

    model_config = ConfigDict(extra="forbid")

    job_id: str = ""
    created_at: datetime | None = None
    parent_job_id: str | None = None
    root_job_id: str | None = None
    job_stage: str | None = None

    __result_table__: ClassVar[ResultTable | None] = None
    __result_nullable__: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        """Accept the options: Pydantic passes them to both hooks; the other one builds the table, once the fields are
        known."""
        super().__init_subclass__(
            **{
                name: value
                for name, value in options.items()
                if name not in ("table", "key", "subject", "subject_index")
            }
        )

    @classmethod
    def __pydantic_init_subclass__(
        cls,
        table: str | None = None,
        key: str | None = None,
        subject: str | None = None,
        subject_index: bool = False,
        **options: Any,
    ) -> None:
        super().__pydantic_init_subclass__(**options)
        hidden = [name for name in OWN if _told(cls, name) != _told(ResultRow, name)]
        if hidden:
            raise ConfigurationError(f"{cls.__name__}.{hidden[0]} hides a field that every result row has: rename it")
        if table is None and not (key is None and subject is None and not subject_index):
            raise ConfigurationError(f'{cls.__name__} has a key or a subject, but no table: also write table="points"')
        if table is None:
            cls.__result_table__ = None  # of a subclass, not its parent's
            return
        kinds = {
            name: kind_of(field.annotation, field.metadata)
            for name, field in cls.model_fields.items()
            if name not in OWN
        }
        cls.__result_nullable__ = frozenset(name for name, (_, _, nullable) in kinds.items() if nullable)
        cls.__result_table__ = build_table(
            cls.__name__, kinds, table=table, key=key, subject=subject, subject_index=subject_index
        )


OWN = tuple(ResultRow.model_fields)


def _told(model: type[ResultRow], name: str) -> tuple[Any, Any]:
    field = model.model_fields[name]
    return field.annotation, field.default


def table_of(model: type[ResultRow]) -> ResultTable:
    table = getattr(model, "__result_table__", None)
    if not isinstance(table, ResultTable):
        raise ConfigurationError(
            f"{getattr(model, '__name__', model)!s:.80} is not a result table: write"
            ' class Point(ResultRow, table="points", key="number")'
        )
    return table


def checked(model: type[R], row: R | Mapping[str, Any]) -> R:
    """Return a validated row."""
    if isinstance(row, model):
        return row
    if not isinstance(row, Mapping):
        raise InvalidRow(f"{model.__name__}: a row must be an instance or a dict, not {type(row).__name__}")
    try:
        return model.model_validate(row)
    except pydantic.ValidationError as error:
        raise InvalidRow(f"{model.__name__}: {_why(error)}") from None


def values_of(row: ResultRow, job_id: str) -> tuple[Value, ...]:
    """Return the values as they are stored. A row that names another job is a mistake."""
    if row.job_id not in ("", job_id):
        raise InvalidRow(f"{type(row).__name__}: a row of job {row.job_id} was put by job {job_id}: leave job_id out")
    table = table_of(type(row))
    as_json = _json_fields(type(row))
    given = {column.name: getattr(row, column.name) for column in table.columns}
    if as_json:
        if codec.has_nan(row.model_dump(include=as_json)):  # the next line would write it as null
            raise InvalidRow(f"{table.name}: NaN and infinity are not JSON; use None")
        given |= row.model_dump(mode="json", include=as_json)
    return encoded(table, given)


@lru_cache(maxsize=1_000)
def _json_fields(model: type[ResultRow]) -> set[str]:
    return {column.name for column in table_of(model).columns if column.kind is ColumnKind.JSON}


def plain(table: ResultTable, stored: StoredRow) -> dict[str, Any]:
    """Return a row without its model, with JSON columns decoded."""
    fields = _own(stored)
    for column, value in zip(table.columns, stored.values, strict=True):
        is_json = column.kind is ColumnKind.JSON and value is not None
        fields[column.name] = codec.decode(str(value)) if is_json else decoded(column, value)
    return fields


def _own(stored: StoredRow) -> dict[str, Any]:
    return dict(zip(OWN, (stored.job_id, to_datetime(stored.created_at), *astuple(stored.origin)), strict=True))


def from_stored(model: type[R], stored: StoredRow) -> R:
    fields = _own(stored)
    try:
        for column, value in zip(table_of(model).columns, stored.values, strict=True):
            if value is None and column.name not in model.__result_nullable__:
                continue  # a column added after this row was stored: use its default
            if column.kind is ColumnKind.JSON and value is not None:
                fields[column.name] = _adapter(model, column.name).validate_json(str(value))
            else:
                fields[column.name] = decoded(column, value)
        aliases = _aliases(model)
        return model.model_validate({aliases.get(name, name): value for name, value in fields.items()})
    except pydantic.ValidationError as error:
        raise InvalidRow(
            f"a stored row of job {stored.job_id} does not fit {model.__name__}: {_why(error)}; a field added later"
            " needs a default"
        ) from None


@lru_cache(maxsize=1_000)
def _aliases(model: type[ResultRow]) -> dict[str, str]:
    """Return the names by which fields are set when a row is created, if they differ from the field names."""
    named = {name: field.validation_alias for name, field in model.model_fields.items()}
    return {name: alias for name, alias in named.items() if isinstance(alias, str)}


@lru_cache(maxsize=1_000)
def _adapter(model: type[ResultRow], name: str) -> TypeAdapter[Any]:
    """Return the adapter of a type. Cached: creating one takes longer than reading a page of rows."""
    field = model.model_fields[name]
    annotation: Any = field.annotation
    return TypeAdapter(Annotated[(annotation, *field.metadata)] if field.metadata else annotation)


def _why(error: pydantic.ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
