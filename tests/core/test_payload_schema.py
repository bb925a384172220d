"""Checking a payload against the stored schema of a type whose code is not here."""

from datetime import date
from enum import Enum
from typing import Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field, TypeAdapter

from backstay.core import payload_schema
from backstay.errors import InvalidPayload


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
        payload_schema.check("order", SCHEMA, msgspec.json.encode(payload).decode())
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
    payload_schema.check("order", SCHEMA, msgspec.json.encode(GOOD | more).decode())


def test_a_type_without_a_schema_takes_anything() -> None:
    payload_schema.check("order", None, "[1, 2]")


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


TREE = {
    "$defs": {
        "node": {
            "properties": {"next": {"allOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]}},
        }
    },
    "$ref": "#/$defs/node",
}


def test_a_payload_that_takes_too_long_to_check_is_refused_and_not_checked_for_ever() -> None:
    payload: Any = {}
    for _ in range(40):
        payload = {"next": payload}
    assert payload_schema.refusal(TREE) is None
    with pytest.raises(InvalidPayload, match="too large or too ambiguous to check"):
        payload_schema.check("tree", msgspec.json.encode(TREE).decode(), msgspec.json.encode(payload).decode())
    payload_schema.check("tree", msgspec.json.encode(TREE).decode(), '{"next": {"next": {}}}')


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"items": {"type": "integer"}}, [1] * 131_000),
        ({"items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, [None] * 52_000),
        ({"uniqueItems": True}, [*range(20_000), *map(str, range(20_000))]),
    ],
    ids=["numbers", "nulls", "a set"],
)
def test_a_payload_of_full_size_is_checked(schema: Any, payload: Any) -> None:
    assert payload_schema.misfits(msgspec.json.encode(schema).decode(), payload) == []


def test_a_set_with_the_same_twice_does_not_fit() -> None:
    [(_, says)] = payload_schema.misfits('{"uniqueItems": true}', [{"a": 1, "b": 2}, {"b": 2, "a": 1}])
    assert says.endswith("has non-unique elements")


@pytest.mark.parametrize("schema", ['{"multipleOf": 0}', '{"$ref": "#/nowhere"}', '{"enum": 3}', '{"minimum": "x"}'])
def test_a_broken_schema_that_was_stored_is_said_to_be_broken(schema: str) -> None:
    with pytest.raises(InvalidPayload, match="the schema announced for the type is broken"):
        payload_schema.check("order", schema, "1")


def test_a_pattern_that_would_backtrack_for_ever_is_not_tried() -> None:
    for schema in ({"pattern": "^(a+)+$"}, {"propertyNames": {"pattern": "^(a+)+$"}}):
        assert payload_schema.refusal(schema) is None
        assert payload_schema.misfits(msgspec.json.encode(schema).decode(), "a" * 60 + "!") == []
        assert payload_schema.misfits(msgspec.json.encode(schema).decode(), {"a" * 60 + "!": 1}) == []


def test_a_remote_reference_in_a_stored_schema_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **options: asked.append(args))
    [(_, says)] = payload_schema.misfits('{"$ref": "http://127.0.0.1:9/schema.json"}', 1)
    assert "is broken" in says
    assert asked == []


def test_a_schema_that_doubles_further_down_is_refused_too() -> None:
    twice = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    below = {"$defs": twice | {"a40": {}}, "properties": {"a": {"items": {"$ref": "#/$defs/a0"}}}}
    assert "more than" in (payload_schema.refusal(below) or "")


def test_the_schema_of_a_large_model_is_taken() -> None:
    fields = {f"f{n}": {"type": "string", "minLength": 2} for n in range(15)}
    models = {f"M{n}": {"type": "object", "properties": fields, "required": ["f1"]} for n in range(80)}
    assert payload_schema.refusal({"$defs": models, "anyOf": [{"$ref": f"#/$defs/{name}"} for name in models]}) is None


def test_schemas_that_models_have_are_taken() -> None:
    assert payload_schema.refusal(msgspec.json.decode(SCHEMA)) is None
    assert (
        payload_schema.refusal(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://a.example/b"}
        )
        is None
    )
    assert payload_schema.refusal({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": True}}) is None
    assert payload_schema.refusal({"properties": {"name": {"pattern": r"^\\p{L}+$"}, "below": {"$ref": "#"}}}) is None


def test_an_error_about_a_sensitive_field_does_not_quote_it() -> None:
    """It is stored where the submit was a step of another job, and logged."""
    secret = {"type": "string", "maxLength": 3, "sensitive": True}
    either = {"anyOf": [{"properties": {"card": secret}}, {"type": "null"}]}
    schema = {"properties": {"card": secret, "cards": {"items": secret}, "either": either, "open": {"maxLength": 1}}}
    payload = {"card": "4111", "cards": ["4112"], "either": {"card": "4113"}, "open": "plain"}
    found = dict(payload_schema.misfits(msgspec.json.encode(schema).decode(), payload))
    assert found[("card",)] == found[("cards", 0)] == "does not match the 'maxLength' of its schema"
    assert found[("either",)] == "does not match the 'anyOf' of its schema"
    assert found[("open",)] == "'plain' is too long"
