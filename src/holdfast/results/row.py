"""ResultRow: a model that is a table. `class Point(ResultRow, table="points", key="number"): …`"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeVar

import pydantic
from msgspec.structs import astuple
from pydantic import BaseModel, ConfigDict, PlainValidator, TypeAdapter, WithJsonSchema

from holdfast import codec
from holdfast.clock import to_datetime
from holdfast.errors import ConfigurationError, InvalidRow
from holdfast.results import tables
from holdfast.results.tables import Dimensions
from holdfast.store.tables import ColumnKind, ResultTable, StoredRow, Value

R = TypeVar("R", bound="ResultRow")


class Vector:
    """`embedding: Vector[384]`: numbers of 32 bits, from a list, a tuple or a numpy array."""

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
        """What any engine would give back: validation and storage agree."""
        numbers = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(numbers, list | tuple):
            raise ValueError("a vector is a list of numbers")
        if len(numbers) != dimensions:
            raise ValueError(f"it has {len(numbers)} dimensions, not {dimensions}")
        return tables.unpacked(tables.packed(numbers))

    return rounded


class ResultRow(BaseModel):
    """Rows of a job. A subclass names its table, the field that is its key and, where rows are asked for by it, the
    field that is its subject. These fields are filled when rows are put."""

    model_config = ConfigDict(extra="forbid")

    job_id: str = ""
    created_at: datetime | None = None
    parent_job_id: str | None = None
    root_job_id: str | None = None
    job_stage: str | None = None

    __result_table__: ClassVar[ResultTable | None] = None
    __result_nullable__: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        """Pydantic hands the options to both hooks; the other one builds the table, once the fields are known."""
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
            raise ConfigurationError(f'{cls.__name__} has a key or a subject, but no table: write table="points", too')
        if table is None:
            cls.__result_table__ = None  # of a subclass, not its parent's
            return
        kinds = {
            name: tables.kind_of(field.annotation, field.metadata)
            for name, field in cls.model_fields.items()
            if name not in OWN
        }
        cls.__result_nullable__ = frozenset(name for name, (_, _, nullable) in kinds.items() if nullable)
        cls.__result_table__ = tables.table_of(
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
            f"{getattr(model, '__name__', model)!s:.80} is no result table: write"
            ' class Point(ResultRow, table="points", key="number")'
        )
    return table


def checked(model: type[R], row: R | Mapping[str, Any]) -> R:
    """A row that was put."""
    if isinstance(row, model):
        return row
    if not isinstance(row, Mapping):
        raise InvalidRow(f"{model.__name__}: a row is one, or a dict, not {type(row).__name__}")
    try:
        return model.model_validate(row)
    except pydantic.ValidationError as error:
        raise InvalidRow(f"{model.__name__}: {_why(error)}") from None


def values_of(row: ResultRow, job_id: str) -> tuple[Value, ...]:
    """As they are stored. A row that says that it is another job's is a mistake, not a wish."""
    if row.job_id not in ("", job_id):
        raise InvalidRow(f"{type(row).__name__}: a row of job {row.job_id} was put by job {job_id}: leave job_id out")
    table = table_of(type(row))
    as_json = _json_fields(type(row))
    given = {column.name: getattr(row, column.name) for column in table.columns}
    if as_json:
        if codec.has_nan(row.model_dump(include=as_json)):  # which the next line would write as null
            raise InvalidRow(f"{table.name}: NaN and infinities are no JSON; use None")
        given |= row.model_dump(mode="json", include=as_json)
    return tables.encoded(table, given)


@lru_cache(maxsize=1_000)
def _json_fields(model: type[ResultRow]) -> set[str]:
    return {column.name for column in table_of(model).columns if column.kind is ColumnKind.JSON}


def plain(table: ResultTable, stored: StoredRow) -> dict[str, Any]:
    """A row without its model; what is JSON as it reads."""
    fields = _own(stored)
    for column, value in zip(table.columns, stored.values, strict=True):
        is_json = column.kind is ColumnKind.JSON and value is not None
        fields[column.name] = codec.decode(str(value)) if is_json else tables.decoded(column, value)
    return fields


def _own(stored: StoredRow) -> dict[str, Any]:
    return dict(zip(OWN, (stored.job_id, to_datetime(stored.created_at), *astuple(stored.origin)), strict=True))


def from_stored(model: type[R], stored: StoredRow) -> R:
    fields = _own(stored)
    try:
        for column, value in zip(table_of(model).columns, stored.values, strict=True):
            if value is None and column.name not in model.__result_nullable__:
                continue  # a column that came after this row: its default counts
            if column.kind is ColumnKind.JSON and value is not None:
                fields[column.name] = _adapter(model, column.name).validate_json(str(value))
            else:
                fields[column.name] = tables.decoded(column, value)
        aliases = _aliases(model)
        return model.model_validate({aliases.get(name, name): value for name, value in fields.items()})
    except pydantic.ValidationError as error:
        raise InvalidRow(
            f"a stored row of job {stored.job_id} does not fit {model.__name__}: {_why(error)}; a field that came later"
            " needs a default"
        ) from None


@lru_cache(maxsize=1_000)
def _aliases(model: type[ResultRow]) -> dict[str, str]:
    """What fields are called where a row is made, if not by their names."""
    named = {name: field.validation_alias for name, field in model.model_fields.items()}
    return {name: alias for name, alias in named.items() if isinstance(alias, str)}


@lru_cache(maxsize=1_000)
def _adapter(model: type[ResultRow], name: str) -> TypeAdapter[Any]:
    """Kept: making one takes longer than a page of rows."""
    field = model.model_fields[name]
    annotation: Any = field.annotation
    return TypeAdapter(Annotated[(annotation, *field.metadata)] if field.metadata else annotation)


def _why(error: pydantic.ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
