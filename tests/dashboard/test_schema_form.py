"""Forms made from schemas: which field each part of a payload gets, and what is read from what was filled in."""

from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from backstay import codec
from backstay.dashboard import schema_form
from backstay.dashboard.schema_form import Field, Kind


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    street: str
    number: int | None = None


class Line(BaseModel):
    sku: str
    count: Annotated[int, pydantic.Field(ge=1, le=99)] = 1
    gift: bool = False


class Order(BaseModel):
    customer: str = pydantic.Field(description="Who pays.")
    amount: float
    day: date
    at: datetime
    colour: Colour = Colour.BLUE
    mode: Literal["fast", "slow"]
    rush: bool = False
    consent: bool | None = None
    address: Place
    second: Place | None = None
    lines: list[Line] = []
    tags: list[str] = []
    toppings: set[Literal["a", "b", "c"]] = set()
    extra: dict[str, Any] = {}
    language: str = "en"
    note: str | None = None


def form(annotation: Any) -> Field:
    return schema_form.form_of(codec.encode(TypeAdapter(annotation).json_schema()).decode())


def kinds(field: Field) -> dict[str, Kind]:
    return {each.name: each.kind for each in field.fields}


def test_each_part_of_a_payload_gets_the_field_that_suits_it() -> None:
    assert kinds(form(Order)) == {
        "customer": Kind.TEXT,
        "amount": Kind.NUMBER,
        "day": Kind.DATE,
        "at": Kind.MOMENT,
        "colour": Kind.CHOICE,
        "mode": Kind.CHOICE,
        "rush": Kind.BOOLEAN,
        "consent": Kind.CHOICE,
        "address": Kind.OBJECT,
        "second": Kind.OBJECT,
        "lines": Kind.LIST,
        "tags": Kind.LIST,
        "toppings": Kind.CHOICES,
        "extra": Kind.JSON,
        "language": Kind.TEXT,
        "note": Kind.TEXT,
    }


def test_a_field_tells_what_its_schema_tells() -> None:
    customer, *_ = form(Order).fields
    assert (customer.label, customer.description, customer.required) == ("Customer", "Who pays.", True)
    item = next(each for each in form(Order).fields if each.name == "lines").item
    assert item is not None
    count = item.fields[1]
    assert (count.low, count.high, count.default, count.hint) == (1, 99, 1, "whole number, 1 to 99")


FILLED = {
    "payload/customer": ["Anna"],
    "payload/amount": ["12.5"],
    "payload/day": ["2026-11-16"],
    "payload/at": ["2026-11-16T09:30"],
    "payload/colour": ['"red"'],
    "payload/mode": ['"fast"'],
    "payload/consent": ["true"],
    "payload/address/street": ["Elm Street"],
    "payload/address/number": ["5"],
    "payload/lines/0@row": ["1"],
    "payload/lines/0/sku": ["A"],
    "payload/lines/0/count": ["3"],
    "payload/lines/0/gift": ["1"],
    "payload/tags/0@row": ["1"],
    "payload/tags/0": ["x"],
    "payload/toppings": ['"a"', '"c"'],
    "payload/extra": ['{"k": [1, null]}'],
    "payload/language": ["de"],
    "payload/note": [""],
}


def test_a_filled_form_is_the_payload_that_its_model_takes() -> None:
    filled = schema_form.read(form(Order), FILLED)
    assert filled.errors == {}
    assert filled.value == {
        "customer": "Anna",
        "amount": 12.5,
        "day": "2026-11-16",
        "at": "2026-11-16T09:30:00Z",
        "colour": "red",
        "mode": "fast",
        "rush": False,
        "consent": True,
        "address": {"street": "Elm Street", "number": 5},
        "lines": [{"sku": "A", "count": 3, "gift": True}],
        "tags": ["x"],
        "toppings": ["a", "c"],
        "extra": {"k": [1, None]},
        "language": "de",
    }
    Order.model_validate(filled.value)


def test_what_is_left_blank_is_left_out_or_missed() -> None:
    filled = schema_form.read(form(Order), {})
    assert filled.errors == dict.fromkeys(
        [
            "payload/customer",
            "payload/amount",
            "payload/day",
            "payload/at",
            "payload/mode",
            "payload/address/street",
        ],
        "This field is required.",
    )


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("amount", "much", "a number"),
        ("amount", "nan", "a number"),
        ("amount", "1e999", "a number"),
        ("address/number", "5.5", "a whole number"),
        ("mode", '"warp"', "one of the options"),
        ("mode", "fast", "one of the options"),
        ("at", "tomorrow", "a date and time"),
        ("extra", "{", "JSON"),
        ("extra", '{"a": 1, "a": 2}', "twice"),
    ],
)
def test_what_cannot_be_meant_is_said_at_its_field(name: str, text: str, says: str) -> None:
    errors = schema_form.read(form(Order), {**FILLED, f"payload/{name}": [text]}).errors
    assert [*errors] == [f"payload/{name}"]
    assert says in errors[f"payload/{name}"]


def test_a_form_that_nobody_filled_in_holds_the_defaults() -> None:
    start = schema_form.initial(form(Order))
    assert start["payload/language"] == ["en"]
    assert start["payload/colour"] == ['"blue"']
    assert start["payload/customer"] == [""]
    assert "payload/address@given" in start
    assert "payload/second@given" not in start


def test_a_default_that_is_taken_out_is_not_put_back() -> None:
    assert schema_form.read(form(Order), {**FILLED, "payload/language": [""]}).value["language"] == ""


class Login(BaseModel):
    user: str = "ada"
    password: pydantic.SecretStr = pydantic.SecretStr("hunter2")
    spare: pydantic.SecretStr | None = pydantic.SecretStr("hunter3")


class Site(BaseModel):
    login: Login = Login()


def test_a_secret_keeps_its_default_and_never_becomes_the_asterisks_of_the_schema() -> None:
    """Pydantic writes asterisks into the schema, also into the default of an object around the secret."""
    for model in (Login, Site):
        field = form(model)
        assert "**" not in codec.encode(schema_form.initial(field)).decode()
        filled = schema_form.read(field, schema_form.initial(field))
        assert not filled.errors
        given = filled.value if model is Login else filled.value["login"]
        assert Login.model_validate(given) == Login()


def test_an_object_that_may_be_left_out_counts_only_where_it_was_ticked() -> None:
    given = {**FILLED, "payload/second/street": ["Oak Street"]}
    assert "second" not in schema_form.read(form(Order), given).value
    ticked = schema_form.read(form(Order), {**given, "payload/second@given": ["1"]})
    assert ticked.value["second"] == {"street": "Oak Street"}


def test_rows_that_were_taken_out_or_left_blank_leave_no_gap() -> None:
    order = form(Order)
    given = {
        "payload/tags/1@row": ["1"],
        "payload/tags/1": [" "],
        "payload/tags/4@row": ["1"],
        "payload/tags/4": ["x"],
        "payload/lines/7@row": ["1"],
        "payload/lines/7/sku": ["A"],
    }
    tidy = schema_form.tidied(order, given)
    assert tidy == {
        "payload/tags/0@row": ["1"],
        "payload/tags/0": ["x"],
        "payload/lines/0@row": ["1"],
        "payload/lines/0/sku": ["A"],
    }


def test_a_row_is_added_with_its_defaults_and_taken_out_again() -> None:
    order = form(Order)
    more = schema_form.with_row(order, "payload/lines", FILLED)
    assert more["payload/lines/1/count"] == ["1"]
    assert schema_form.rows("payload/lines", more) == [0, 1]
    less = schema_form.without_row("payload/lines/0", more)
    assert schema_form.rows("payload/lines", less) == [1]
    assert not any(name.startswith("payload/lines/0") for name in less)


def test_rows_are_added_to_lists_only() -> None:
    assert schema_form.with_row(form(Order), "payload/customer", FILLED) == FILLED
    assert schema_form.with_row(form(Order), "elsewhere", FILLED) == FILLED


@pytest.mark.parametrize(
    ("annotation", "kind", "text", "value"),
    [
        (str, Kind.TEXT, "poems", "poems"),
        (int, Kind.INTEGER, "7", 7),
        (bool, Kind.BOOLEAN, "1", True),
        (None, Kind.NOTHING, "", None),
        (dict[str, int], Kind.JSON, '{"a": 1}', {"a": 1}),
        (int | str, Kind.JSON, '"x"', "x"),
        (Any, Kind.JSON, "[1]", [1]),
    ],
)
def test_a_payload_need_not_be_an_object(annotation: Any, kind: Kind, text: str, value: Any) -> None:
    field = form(annotation)
    assert field.kind is kind
    assert schema_form.read(field, {"payload": [text]}).value == value


def test_without_a_schema_there_is_one_field_for_json() -> None:
    field = schema_form.form_of(None)
    assert field.kind is Kind.JSON
    assert schema_form.read(field, {"payload": ["{}"]}).value == {}
    assert schema_form.read(field, {"payload": [" "]}).errors == {"payload": "This field is required."}


class Knot(BaseModel):
    name: str
    below: list["Knot"] = []


def test_a_model_of_itself_ends_in_a_field_for_json() -> None:
    knot = form(Knot)
    below = next(each for each in knot.fields if each.name == "below")
    assert below.item is not None
    assert below.item.kind is Kind.JSON


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def test_what_lies_too_deep_is_json() -> None:
    field = schema_form.form_of(codec.encode(_deep(8)).decode())
    depth = 0
    while field.kind is Kind.OBJECT:
        [field] = field.fields
        depth += 1
    assert (depth, field.kind) == (schema_form.DEPTH_MAX, Kind.JSON)


def _all(field: Field) -> list[Field]:
    below = [*field.fields, *([field.item] if field.item else [])]
    return [field, *(each for part in below for each in _all(part))]


def test_references_that_multiply_make_no_endless_form() -> None:
    many = {f"f{n}": {"$ref": "#/$defs/b"} for n in range(30)}
    leaves = {f"g{n}": {"type": "string"} for n in range(30)}
    schema = {
        "type": "object",
        "properties": many,
        "$defs": {
            "b": {"type": "object", "properties": {f"h{n}": {"$ref": "#/$defs/c"} for n in range(30)}},
            "c": {"type": "object", "properties": leaves},
        },
    }
    assert len(_all(schema_form.form_of(codec.encode(schema).decode()))) < 3 * schema_form.FIELDS_MAX


_schemas = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["string", "array", "object", "#/$defs/a", "x"]),
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "anyOf", "$ref", "$defs", "enum", "default", "required", "a", "title"]
            ),
            part,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(_schemas)
def test_no_schema_breaks_the_form(schema: Any) -> None:
    field = schema_form.form_of(codec.encode(schema).decode())
    start = schema_form.initial(field)
    schema_form.read(field, start)
    schema_form.drawn(field, schema_form.tidied(field, start), {})


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)


@given(
    st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip), max_size=5)
)
def test_names_of_any_kind_find_their_way_there_and_back(payload: dict[str, str]) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in payload}, "required": [*payload]}
    field = schema_form.form_of(codec.encode(schema).decode())
    read = schema_form.read(field, schema_form.inputs_of(field, payload))
    assert read.value == {name: text.replace("\r\n", "\n") for name, text in payload.items()}


def test_a_payload_of_another_job_fills_the_form() -> None:
    order = form(Order)
    value = schema_form.read(order, FILLED).value
    assert schema_form.read(order, schema_form.inputs_of(order, value)).value == value


@pytest.mark.parametrize(
    ("place", "path"),
    [
        (("customer",), "payload/customer"),
        (("lines", 0, "count"), "payload/lines/0/count"),
        (("address", "Place", "street"), "payload/address"),
        (("extra", "k", 0), "payload/extra"),
        ((), "payload"),
    ],
)
def test_a_problem_is_shown_at_the_nearest_field(place: tuple[str | int, ...], path: str) -> None:
    assert schema_form.path_of(form(Order), place) == path


def test_a_widget_shows_what_was_typed_even_if_it_is_wrong() -> None:
    order = form(Order)
    given = {**FILLED, "payload/amount": ["much"], "payload/lines/0/count": ["x"]}
    drawn = schema_form.drawn(order, given, schema_form.read(order, given).errors)
    amount = next(each for each in drawn.parts if each.field.name == "amount")
    assert (amount.value, amount.error) == ("much", "Enter a number, such as 0.5.")
    lines = next(each for each in drawn.parts if each.field.name == "lines")
    assert lines.parts[0].parts[1].value == "x"
    assert lines.blank is not None
    assert [each.name for each in lines.blank.parts] == [
        "payload/lines/*/sku",
        "payload/lines/*/count",
        "payload/lines/*/gift",
    ]
    assert lines.blank.parts[1].value == "1"
