"""Checking a payload against the stored schema of a type whose code is not here."""

from datetime import date
from enum import Enum
from typing import Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field, TypeAdapter

from holdfast import schemas
from holdfast.errors import InvalidPayload


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    zip: int | None = None


class Order(BaseModel):
    name: str = Field(min_length=2)
    age: int | None = None
    home: Address
    others: list[Address] = []
    colour: Colour = Colour.RED
    kind: Literal["a", "b"] = "a"
    day: date | None = None


SCHEMA = msgspec.json.encode(TypeAdapter(Order).json_schema()).decode()
GOOD: dict[str, Any] = {"name": "Ada", "home": {"street": "Elm"}}


def problem(payload: Any) -> str:
    with pytest.raises(InvalidPayload) as caught:
        schemas.check("order", SCHEMA, msgspec.json.encode(payload).decode())
    return str(caught.value)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"age": None},
        {"age": 5, "others": [{"street": "Oak", "zip": 7}]},
        {"colour": "blue", "kind": "b", "day": "2026-05-01"},
        {"something": "else"},
    ],
)
def test_what_fits_passes(more: dict[str, Any]) -> None:
    schemas.check("order", SCHEMA, msgspec.json.encode(GOOD | more).decode())


def test_a_type_without_a_schema_takes_anything() -> None:
    schemas.check("order", None, "[1, 2]")


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({}, "'name' is a required property; payload: 'home' is a required property"),
        (GOOD | {"name": "A"}, "name: 'A' is too short"),
        (GOOD | {"name": 5}, "name: 5 is not of type 'string'"),
        (GOOD | {"age": "old"}, "age: 'old' is not of type 'integer' and 'old' is not of type 'null'"),
        (GOOD | {"home": {"street": 1}}, "home.street: 1 is not of type 'string'"),
        (GOOD | {"others": [{"street": "Oak"}, {"zip": 3}]}, "others.1: 'street' is a required property"),
        (GOOD | {"colour": "green"}, "colour: 'green' is not one of ['red', 'blue']"),
        (GOOD | {"kind": "c"}, "kind: 'c' is not one of ['a', 'b']"),
        (None, "payload: None is not of type 'object'"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(payload: Any, says: str) -> None:
    assert problem(payload).startswith("payload of order: ")
    assert says in problem(payload)


def test_a_long_value_does_not_hide_what_is_wrong_with_it() -> None:
    said = problem(GOOD | {"home": ["x" * 10_000]})

    assert "is not of type 'object'" in said
    assert len(said) < 500


def test_of_many_problems_the_first_are_named_and_the_others_counted() -> None:
    said = problem(GOOD | {"others": [{"street": n} for n in range(30)]})

    assert "others.0.street" in said
    assert "and 25 more" in said
