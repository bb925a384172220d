"""Sensitive fields: where schemas mark them, that marks add up, and what is masked."""

from typing import Annotated, Any

import msgspec
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, SecretStr, TypeAdapter

from backstay import Backstay, codec
from backstay.core import sensitive
from backstay.core.records import JobType
from backstay.core.sensitive import MASK
from backstay.limits import SENSITIVE_FIELDS_MAX

HIDDEN = {"sensitive": True}


class Login(BaseModel):
    user: str
    password: SecretStr
    token: str = Field(json_schema_extra={"sensitive": True})


class Deep(BaseModel):
    logins: list[Login] = []
    by_name: dict[str, Login] = {}
    maybe: Login | None = None
    note: str = ""


class Folder(BaseModel):
    name: str
    key: SecretStr | None = None
    folders: "list[Folder]" = []


def marks(schema: Any) -> tuple[str, ...]:
    return sensitive.marks_of(codec.encode(schema).decode())


def of_type(annotation: Any) -> tuple[str, ...]:
    return marks(TypeAdapter(annotation).json_schema())


SECRET = {"user": "anna", "password": "canary", "token": "canary"}
COVERED = {"user": "anna", "password": MASK, "token": MASK}


def test_secret_fields_are_masked_wherever_they_are() -> None:
    payload = {"logins": [SECRET], "by_name": {"a": SECRET}, "maybe": SECRET, "note": "canary of mine"}
    covered = sensitive.masked(of_type(Deep), payload)
    assert covered == {"logins": [COVERED], "by_name": {"a": COVERED}, "maybe": COVERED, "note": "canary of mine"}


def test_what_only_one_alternative_marks_is_masked_too() -> None:
    assert sensitive.masked(of_type(SecretStr | int), "canary") == MASK
    assert sensitive.masked(of_type(list[SecretStr]), ["canary", "canary"]) == [MASK] * 2


def test_nothing_is_masked_without_marks_and_none_stays_none() -> None:
    assert sensitive.masked(sensitive.marks_of(None), SECRET) == SECRET
    assert sensitive.masked(sensitive.marks_of("no json, password"), SECRET) == SECRET
    assert sensitive.masked(of_type(Login), {"user": "anna", "password": None})["password"] is None


def test_a_model_that_contains_itself_is_masked_at_every_depth() -> None:
    inner = {"name": "c", "key": "canary"}
    payload = {"name": "a", "key": "canary", "folders": [{"name": "b", "key": "canary", "folders": [inner]}]}
    covered = sensitive.masked(of_type(Folder), payload)
    assert covered["folders"][0]["folders"][0] == {"name": "c", "key": MASK}
    assert "canary" not in str(covered)
    assert covered["name"] == "a"


def test_a_schema_that_never_ends_still_has_an_end() -> None:
    again, marked = {"$ref": "#/$defs/A"}, {"properties": {"password": HIDDEN}}
    looping = {"$defs": {"A": {"anyOf": [again, marked]}}, **again}
    assert sensitive.masked(marks(looping), {"password": "canary"}) == {"password": MASK}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/$defs/S"}}, "$defs": {"S": HIDDEN}},
        {"properties": {"a": {"$ref": "#/definitions/S"}}, "definitions": {"S": HIDDEN}},
        {"properties": {"a": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": HIDDEN}},
        {"properties": {"a": {"$ref": "#secret"}}, "$defs": {"S": {"$anchor": "secret", **HIDDEN}}},
        {"properties": {"a": {"$dynamicRef": "#s"}}, "$defs": {"S": {"$dynamicAnchor": "s", **HIDDEN}}},
        {"$id": "urn:x", "properties": {"a": {"$ref": "urn:x#/$defs/S"}}, "$defs": {"S": HIDDEN}},
        {"properties": {"a": {"$ref": "#/properties/b"}, "b": HIDDEN}},
        {"properties": {"a": {"$ref": "#/$defs/Plain", "sensitive": True}}, "$defs": {"Plain": {"type": "string"}}},
        *({word: [{"type": "object"}, {"properties": {"a": HIDDEN}}]} for word in ("anyOf", "oneOf", "allOf")),
        *({"if": {"type": "object"}, word: {"properties": {"a": HIDDEN}}} for word in ("then", "else")),
        {"if": {"properties": {"a": HIDDEN}}},
        {"dependentSchemas": {"b": {"properties": {"a": HIDDEN}}}},
        {"dependencies": {"b": {"properties": {"a": HIDDEN}}, "c": ["b"]}},
        {"patternProperties": {"^a$": HIDDEN}},
        {"additionalProperties": HIDDEN},
        {"unevaluatedProperties": HIDDEN},
        {"properties": {"a": {"format": "password"}}},
        {"properties": {"a": {"writeOnly": True}}},
        {"properties": {"a": {"contentMediaType": "application/json", "contentSchema": {"items": HIDDEN}}}},
        {"properties": {"a": {"items": [True, {}]}, "b": {}}, "allOf": [{"properties": {"a": HIDDEN}}]},
    ],
)
def test_a_mark_is_found_behind_every_keyword(schema: dict[str, Any]) -> None:
    assert sensitive.masked(marks(schema), {"a": "canary"}) == {"a": MASK}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"items": HIDDEN}, [MASK, MASK]),
        ({"prefixItems": [True, HIDDEN]}, ["one", MASK]),
        ({"items": [{}, HIDDEN]}, ["one", MASK]),
        ({"items": [HIDDEN], "additionalItems": {}}, [MASK, "two"]),
        ({"items": [{}], "additionalItems": HIDDEN}, [MASK, MASK]),
        ({"contains": HIDDEN}, [MASK, MASK]),
        ({"unevaluatedItems": HIDDEN}, [MASK, MASK]),
    ],
)
def test_a_mark_is_found_in_lists(schema: dict[str, Any], shown: list[str]) -> None:
    assert sensitive.masked(marks(schema), ["one", "two"]) == shown


def test_a_field_called_like_a_mark_is_not_one() -> None:
    plain = {"properties": {"sensitive": {"type": "boolean"}, "password": {"type": "string"}, "writeOnly": {}}}
    payload = {"sensitive": True, "password": "shown", "writeOnly": 1}
    assert sensitive.masked(marks(plain), payload) == payload


def test_a_name_may_contain_what_paths_are_made_of() -> None:
    found = marks({"properties": {"a/b": {"properties": {"~1": HIDDEN}}}})
    assert sensitive.masked(found, {"a/b": {"~1": "x", "/": "y"}}) == {"a/b": {"~1": MASK, "/": "y"}}


def test_a_schema_that_doubles_itself_again_and_again_is_read_at_once_and_masks_enough() -> None:
    definitions: dict[str, Any] = {"A0": HIDDEN}
    for number in range(1, 40):
        inner = {"$ref": f"#/$defs/A{number - 1}"}
        definitions[f"A{number}"] = {"properties": {"left": inner, "right": inner}}
    found = marks({"$ref": "#/$defs/A39", "$defs": definitions})
    assert len(found) <= SENSITIVE_FIELDS_MAX
    payload: Any = "canary"
    for number in range(39):
        payload = {"left" if number % 2 else "right": payload}
    assert "canary" not in str(sensitive.masked(found, payload))


def test_marks_add_up_and_too_many_of_them_mask_more_not_less() -> None:
    assert sensitive.union(["/a"], ["/b", "/a"]) == ("/a", "/b")
    nested = [f"/{number}/card" for number in range(SENSITIVE_FIELDS_MAX + 1)]
    assert sensitive.union(nested, ["/b"]) == ("/**/b", "/**/card")
    names = [f"/field{number}" for number in range(SENSITIVE_FIELDS_MAX + 1)]
    assert sensitive.masked(sensitive.union(names), {"any": "thing"}) == MASK


def test_what_was_announced_stays_marked() -> None:
    def said(schema: Any) -> JobType:
        text = codec.encode(schema).decode()
        return JobType(
            job_type="t", queue="q", priority=1, max_attempts=1, timeout_micros=1, payload_schema=text, version=1,
            last_seen=0,
        )  # fmt: skip

    first = sensitive.announced(None, said({"properties": {"card": HIDDEN}}))
    second = sensitive.announced(first, said({"properties": {"card": {}, "pin": HIDDEN}}))
    assert (first.sensitive, second.sensitive) == (("/card",), ("/card", "/pin"))
    assert sensitive.announced(second, said({})).sensitive == ("/card", "/pin")
    assert sensitive.without(second, ["/card"]).sensitive == ("/pin",)


class Named(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    card: Annotated[SecretStr, Field(validation_alias=AliasChoices("cardNumber", "card-no", AliasPath("old", 0)))]
    pin: Annotated[SecretStr, Field(alias="thePin", serialization_alias="PIN")]
    amount: int = 0


class Order(BaseModel):
    payer: Named = Field(alias="paidBy")


def test_a_field_is_sensitive_under_each_of_its_names() -> None:
    app = Backstay("sqlite:///unused.db")

    @app.job("order")
    async def order(payload: Order) -> None: ...

    found = order.sensitive
    names = ("card", "cardNumber", "card-no", "pin", "thePin", "PIN")
    for outer in ("paidBy", "payer"):
        payload = {outer: {**dict.fromkeys(names, "canary"), "old": ["canary", "kept"], "amount": 5}}
        covered = sensitive.masked(found, payload)[outer]
        assert covered == {**dict.fromkeys(names, MASK), "old": [MASK, "kept"], "amount": 5}
    assert msgspec.json.decode(msgspec.json.encode(order.describe(0)), type=JobType).sensitive == found
