"""A change that is written as a difference makes the item that was meant."""

from hypothesis import given
from hypothesis import strategies as st

from backstay.engines.dynamodb.attributes import Form
from backstay.engines.dynamodb.expressions import (
    Expression,
    Placeholders,
    absent,
    apply,
    at_most,
    below,
    changes,
    equals,
    one_of,
    size_at_most,
    unchanged,
)

ITEMS = st.dictionaries(st.sampled_from("abcde"), st.one_of(st.integers(), st.text(), st.none()))


def _without_none(item: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in item.items() if value is not None}


@given(ITEMS, ITEMS)
def test_the_difference_of_two_items_makes_one_of_the_other(old: dict[str, object], new: dict[str, object]) -> None:
    assert apply(changes(old, new), _without_none(old)) == _without_none(new)


def test_what_is_the_same_is_not_written() -> None:
    assert changes({"a": 1, "b": 2}, {"a": 1, "b": 3}) == Expression(sets={"b": 3})


def test_a_condition_is_spelled_with_placeholders_only() -> None:
    holders = Placeholders()

    text = holders.condition(equals("queue", "mail") & (absent("awaited") | at_most("awaited", 3)))

    assert text == "(#0 = :0) AND ((attribute_not_exists(#1)) OR (#1 <= :1))"
    assert holders.attributes() == {
        "ExpressionAttributeNames": {"#0": "queue", "#1": "awaited"},
        "ExpressionAttributeValues": {":0": {"S": "mail"}, ":1": {"N": "3"}},
    }


def test_a_condition_on_a_job_names_what_its_table_has() -> None:
    holders = Placeholders(Form(subject="room_id", capitals=True))

    assert holders.condition(equals("status", "pending")) == "(#0 = :0) OR (begins_with(#0, :1))"  # in any shard
    assert holders.condition(equals("subject", "12") & below("scheduled_for", 0)) == "(#1 = :2) AND (#2 < :3)"
    assert holders.attributes() == {
        "ExpressionAttributeNames": {"#0": "status", "#1": "room_id", "#2": "scheduled_for"},
        "ExpressionAttributeValues": {
            ":0": {"S": "PENDING"},
            ":1": {"S": "PENDING#"},
            ":2": {"S": "12"},
            ":3": {"S": "1970-01-01T00:00:00.000000Z"},
        },
    }


def test_what_was_not_there_has_to_be_absent_still() -> None:
    assert unchanged({"a": 1}, "a", "b") == equals("a", 1) & absent("b")


def test_lists_and_sizes() -> None:
    assert Placeholders().condition(one_of("s", ["a", "b"])) == "#0 IN (:0, :1)"
    assert Placeholders().condition(size_at_most("s", 2)) == "(attribute_not_exists(#0)) OR (size(#0) <= :0)"


def test_an_update_names_every_kind_of_change() -> None:
    expression = Expression(sets={"a": 1}, removes=("b",), adds={"c": 2}, takes={"d": {"x"}})

    assert Placeholders().update(expression) == "SET #0 = :0 REMOVE #1 ADD #2 :1 DELETE #3 :2"
    assert apply(expression, {"b": 1, "c": 1, "d": {"x"}}) == {"a": 1, "c": 3}
