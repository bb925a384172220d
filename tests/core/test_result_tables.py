"""Models become tables, and rows become values that every engine keeps."""

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Literal, NewType

import pytest
from pydantic import BaseModel, Field

from backstay import ConfigurationError, Dimensions, InvalidRow, ResultRow, Vector
from backstay.core.result_tables import Column, ColumnKind, ResultTable, RowOrigin, StoredRow
from backstay.limits import RESULT_KEY_BYTES_MAX, RESULT_ROW_BYTES_MAX, VECTOR_DIMENSIONS_MAX
from backstay.results import model as results_model
from backstay.results.model import checked, from_stored, key_value, table_of, values_of
from backstay.results.writer import Parts

JOB = "0190c0de-0000-7000-8000-000000000001"


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Place(BaseModel):
    town: str
    since: date


Score = NewType("Score", float)


class Everything(ResultRow, table="everything", key="number", subject="topic", subject_index=True):
    number: int
    topic: str | None = None
    score: Score = Score(0.5)
    colour: Colour = Colour.RED
    level: Level = Level.LOW
    side: Literal["left", "right"] = "left"
    yes: bool = True
    raw: bytes = b"\0"
    at: datetime | None = None
    ref: uuid.UUID | None = None
    price: Decimal | None = None
    embedding: Vector[3] | None = None
    other: Annotated[list[float], Dimensions(2)] = Field(default_factory=lambda: [1.0, 2.0])
    tags: set[str] = Field(default_factory=set)
    places: list[Place] = Field(default_factory=list)
    anything: Any = None
    either: int | str = 1


KINDS = {
    "number": ColumnKind.INTEGER,
    "topic": ColumnKind.TEXT,
    "score": ColumnKind.NUMBER,
    "colour": ColumnKind.TEXT,
    "level": ColumnKind.INTEGER,
    "side": ColumnKind.TEXT,
    "yes": ColumnKind.BOOLEAN,
    "raw": ColumnKind.BYTES,
    "at": ColumnKind.MOMENT,
    "ref": ColumnKind.UUID,
    "price": ColumnKind.DECIMAL,
    "embedding": ColumnKind.VECTOR,
    "other": ColumnKind.VECTOR,
    "tags": ColumnKind.JSON,
    "places": ColumnKind.JSON,
    "anything": ColumnKind.JSON,
    "either": ColumnKind.JSON,
}


def stored(row: ResultRow) -> StoredRow:
    return StoredRow(JOB, 0, RowOrigin(), values_of(row, JOB))


def test_a_field_becomes_the_column_of_its_type() -> None:
    table = table_of(Everything)

    assert {column.name: column.kind for column in table.columns} == KINDS
    assert [column.dimensions for column in table.columns if column.dimensions] == [3, 2]
    assert (table.name, table.key, table.subject, table.subject_index) == ("everything", "number", "topic", True)


def test_a_row_comes_back_as_it_was_put() -> None:
    row = Everything(
        number=7,
        topic="ä",
        at=datetime(2026, 11, 16, 12, 30, 0, 123456, tzinfo=UTC),
        ref=uuid.uuid4(),
        price=Decimal("12345678901234567890.5"),
        embedding=[0.1, 1, -3e38],
        tags={"a"},
        places=[Place(town="Turku", since=date(1229, 1, 1))],
        anything={"deep": [1, None]},
        either="x",
    )

    found = from_stored(Everything, stored(row))

    assert found.model_dump(exclude={"job_id", "created_at"}) == row.model_dump(exclude={"job_id", "created_at"})
    assert (found.job_id, found.created_at) == (JOB, datetime(1970, 1, 1, tzinfo=UTC))
    assert type(found.colour) is Colour


def test_a_field_that_came_later_has_its_default_in_older_rows() -> None:
    values = tuple(1 if column.name == "number" else None for column in table_of(Everything).columns)

    found = from_stored(Everything, StoredRow(JOB, 0, RowOrigin(), values))

    assert (found.score, found.side, found.tags, found.topic) == (0.5, "left", set(), None)


def test_a_stored_row_that_does_not_fit_says_what_the_field_needs() -> None:
    class Later(ResultRow, table="later", key="number"):
        number: int
        needed: str

    with pytest.raises(InvalidRow, match=r"does not fit Later: needed: .*default"):
        from_stored(Later, StoredRow(JOB, 0, RowOrigin(), (1, None)))


def test_aliases_are_the_models_affair() -> None:
    class Aliased(ResultRow, table="aliased", key="number"):
        number: int = Field(alias="n")

    row = checked(Aliased, {"n": 4})

    assert from_stored(Aliased, stored(row)).number == 4


class Numbers:
    """As numpy's arrays do."""

    def tolist(self) -> list[float]:
        return [0.1, 0.2, 0.3]


def test_a_vector_is_rounded_to_what_every_engine_gives_back() -> None:
    row = Everything(number=1, embedding=Numbers())

    assert row.embedding == [0.10000000149011612, 0.20000000298023224, 0.30000001192092896]
    assert from_stored(Everything, stored(row)).embedding == row.embedding


@pytest.mark.parametrize(
    "vector",
    [[1.0, 2.0], [1, 2, float("nan")], [1, 2, float("inf")], [1, 2, 1e39], ["1", 2, 3], "123", None, [None] * 3],
)
def test_what_is_no_vector_is_refused(vector: Any) -> None:
    class Needed(ResultRow, table="needed", key="number"):
        number: int
        embedding: Vector[3]

    with pytest.raises(InvalidRow, match="embedding"):
        checked(Needed, {"number": 1, "embedding": vector})


def test_a_model_with_vectors_has_a_schema() -> None:
    told = Everything.model_json_schema()["properties"]["embedding"]["anyOf"][0]

    assert told == {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}


def made(base: type = ResultRow, *, fields: dict[str, Any] | None = None, **options: Any) -> type[ResultRow]:
    annotations = fields or {"number": int, "word": str}
    return type("Made", (base,), {"__annotations__": annotations}, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "1st"}, "use a letter"),
        ({"table": "a" * 49}, "use a letter"),
        ({"table": 'x"; DROP TABLE job'}, "use a letter"),
        ({"key": None}, "identifies a row within its job"),
        ({"key": "nobody"}, "identifies a row within its job"),
        ({"key": "point", "fields": {"point": list[int]}}, "use int, str or UUID"),
        ({"key": "point", "fields": {"point": float}}, "use int, str or UUID"),
        ({"key": "number", "fields": {"number": int | None}}, "never None"),
        ({"subject": "nobody"}, "a field of type str"),
        ({"subject": "number"}, "a field of type str"),
        ({"subject_index": True}, "needs subject="),
        ({"fields": {"number": int, "bs_part": int}}, "bs_"),
        ({"fields": {"number": int, "Number": int}}, "differ only in case"),
        ({"fields": {"number": int, "JOB_ID": int}}, "differ only in case"),
        ({"fields": {"number": int, "Job_Stage": str}}, "differ only in case"),
        ({"fields": {"number": int, "ctid": int}}, "of its own"),
        ({"fields": {"number": int, "XMAX": int}}, "of its own"),
        ({"fields": {"number": int, "rowid": int}}, "of its own"),
        ({"fields": {"number": int, "OID": int}}, "of its own"),
        ({"table": "words_subject"}, "reserved for index names"),
        ({"table": "words_PKEY"}, "reserved for index names"),
        ({"fields": {"number": int, "größe": int}}, "A-Z"),
        ({"fields": {"number": int, "job_id": int}}, "job_id hides"),
        ({"fields": {"number": int, "job_id": str}}, "job_id hides"),
        ({"table": None}, "no table"),
        ({"fields": {"number": int, "v": Vector}}, r"Vector\[384\]"),
        ({"fields": {"number": int, "v": Vector[0]}}, "1 to 16,000"),
        ({"fields": {"number": int, "v": Vector[VECTOR_DIMENSIONS_MAX + 1]}}, "1 to 16,000"),
    ],
)
def test_what_cannot_be_a_table_is_an_error_when_it_is_declared(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        made(**({"table": "made", "key": "number"} | options))


def test_a_subject_with_an_index_has_a_length_that_every_engine_keeps() -> None:
    long = {"number": 1, "word": "s" * (RESULT_KEY_BYTES_MAX + 1)}
    plain = made(table="made", key="number", subject="word").__result_table__
    indexed = made(table="made", key="number", subject="word", subject_index=True).__result_table__
    assert plain is not None
    assert indexed is not None

    assert results_model.encoded(plain, long) == (1, long["word"])
    with pytest.raises(InvalidRow, match="a subject with an index has up to 1,000 bytes"):
        results_model.encoded(indexed, long)


def test_a_model_without_a_table_is_no_table_but_may_be_the_base_of_one() -> None:
    base = made()
    child = type("Child", (base,), {"__annotations__": {"more": int}}, table="child", key="number")
    grandchild = type("Grandchild", (child,), {})

    assert [column.name for column in table_of(child).columns] == ["number", "word", "more"]
    for model in (base, grandchild, int):
        with pytest.raises(ConfigurationError, match="is not a result table"):
            table_of(model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("number", 2**63, "64 bits"),
        ("number", -(2**63) - 1, "64 bits"),
        ("score", float("nan"), "NaN"),
        ("score", float("-inf"), "NaN"),
        ("topic", "a\0b", "NUL"),
        ("topic", "\ud800", "surrogate"),
        ("at", datetime(2026, 1, 1), "time zone"),  # noqa: DTZ001
        ("price", Decimal("NaN"), "NaN"),
        ("price", Decimal(1).scaleb(-131), "digits"),
        ("price", Decimal("1" * 39), "digits"),
        ("anything", float("nan"), "NaN"),
        ("anything", {"n": 2**70}, "64 bits"),
        ("raw", bytes(RESULT_ROW_BYTES_MAX), "artifact"),
        ("number", "7", "type str"),
        ("yes", 1, "type int"),
        ("number", None, "no number"),
    ],
)
def test_what_one_engine_could_not_keep_is_refused_for_all(field: str, value: Any, says: str) -> None:
    row = Everything(number=1).model_copy(update={field: value})

    with pytest.raises(InvalidRow, match=says):
        values_of(row, JOB)


class Word(ResultRow, table="words", key="word"):
    word: str


@pytest.mark.parametrize("key", ["", "ä" * 501])
def test_a_key_that_is_empty_or_too_long_is_refused(key: str) -> None:
    with pytest.raises(InvalidRow, match="word"):
        values_of(Word(word=key), JOB)


def test_a_row_of_another_job_is_a_mistake() -> None:
    assert values_of(Word(word="a", job_id=JOB), JOB) == ("a",)
    with pytest.raises(InvalidRow, match="leave job_id out"):
        values_of(Word(word="a", job_id="other"), JOB)


@pytest.mark.parametrize("row", [{"word": 1}, {"wrod": "a"}, {"word": "a", "more": 1}, "a", 7, Everything(number=1)])
def test_what_does_not_fit_the_model_is_refused(row: Any) -> None:
    with pytest.raises(InvalidRow, match="Word"):
        checked(Word, row)


def test_a_key_is_asked_for_in_its_own_type() -> None:
    class Thing(ResultRow, table="things", key="id"):
        id: uuid.UUID

    one = uuid.uuid4()
    assert key_value(table_of(Thing), one) == key_value(table_of(Thing), str(one).upper()) == str(one)
    for model, key in ((Thing, "no"), (Everything, "1"), (Word, 1), (Word, None), (Word, "")):
        with pytest.raises(InvalidRow):
            key_value(table_of(model), key)


def parts_of(count: int, size: int = 1) -> list[int]:
    parts: Parts[Word] = Parts(Word, JOB)
    sizes = [len(full) for n in range(count) if (full := parts.add({"word": f"{n:0{size}d}"}))]
    rest = parts.rest()
    assert parts.count == count
    return sizes + ([] if rest is None else [len(rest)])


def test_rows_go_in_parts_that_one_commit_takes() -> None:
    assert parts_of(0) == [0]  # no rows are a result, too
    assert parts_of(500) == [500]
    assert parts_of(501) == [500, 1]
    assert parts_of(1_000) == [500, 500]


def test_wide_rows_make_short_parts() -> None:
    class Wide(ResultRow, table="wide", key="number"):
        number: int
        raw: bytes

    parts: Parts[Wide] = Parts(Wide, JOB)
    sizes = [len(full) for n in range(50) if (full := parts.add(Wide(number=n, raw=bytes(290_000))))]

    assert set(sizes) == {14}


def test_the_columns_of_the_design_document() -> None:
    class CommentEmbedding(ResultRow, table="comment_embeddings", key="comment_id", subject="conversation_id"):
        comment_id: int
        conversation_id: str
        embedding: Vector[384]

    assert table_of(CommentEmbedding).columns == (
        Column("comment_id", ColumnKind.INTEGER),
        Column("conversation_id", ColumnKind.TEXT),
        Column("embedding", ColumnKind.VECTOR, 384),
    )


def test_a_zero_has_no_sign_on_any_engine() -> None:
    table = ResultTable(
        "t", "n", (Column("n", ColumnKind.INTEGER), Column("x", ColumnKind.NUMBER), Column("d", ColumnKind.DECIMAL))
    )

    _, number, price = results_model.encoded(table, {"n": 1, "x": -0.0, "d": Decimal("-0.00")})

    assert (str(number), price) == ("0.0", "0.00")
    assert results_model.encoded(table, {"n": 1, "x": -0.5, "d": Decimal("-0.10")})[1:] == (-0.5, "-0.10")


def test_a_value_that_is_refused_is_said_once() -> None:
    table = ResultTable("t", "n", (Column("n", ColumnKind.INTEGER), Column("at", ColumnKind.MOMENT)))

    with pytest.raises(InvalidRow) as refused:
        results_model.encoded(table, {"n": 1, "at": datetime(2026, 1, 1)})  # noqa: DTZ001

    assert str(refused.value).count("datetime.datetime(2026") == 1
