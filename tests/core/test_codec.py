"""codec.py: JSON that every engine keeps unchanged, and a reason for what is refused."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.codec import decode, flat_json, from_json, result_json, to_json
from backstay.errors import InvalidPayload
from backstay.limits import JSON_DEPTH_MAX, JSON_INT_MAX, JSON_INT_MIN

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(JSON_INT_MIN, JSON_INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=30,
)


@given(documents)
def test_what_goes_in_comes_out(document: Any) -> None:
    assert decode(to_json(document)) == document


@given(documents)
def test_a_round_trip_is_exact_to_the_byte(document: Any) -> None:
    once = to_json(document)

    assert to_json(decode(once)) == once
    assert to_json(from_json(once)) == once


@given(documents)
def test_what_is_written_is_accepted_when_read_strictly(document: Any) -> None:
    assert from_json(to_json(document)) == document


@given(documents)
def test_other_readers_of_json_agree(document: Any) -> None:
    assert json.loads(to_json(document)) == document


@given(st.text())
def test_text_is_either_kept_exactly_or_refused(value: str) -> None:
    keepable = "\0" not in value and value == value.encode("utf-8", "ignore").decode()
    if keepable:
        assert decode(to_json(value)) == value
    else:
        with pytest.raises(InvalidPayload):
            to_json(value)


def nested(depth: int, innermost: Any, *, objects: bool = False) -> Any:
    """`innermost` inside `depth` containers."""
    for _ in range(depth):
        innermost = {"a": innermost} if objects else [innermost]
    return innermost


REFUSED = [
    pytest.param(math.nan, id="nan"),
    pytest.param(math.inf, id="infinity"),
    pytest.param(-math.inf, id="minus infinity"),
    pytest.param({"deep": [{"x": math.nan}]}, id="nan inside"),
    pytest.param("a\0b", id="nul"),
    pytest.param({"\0": 1}, id="nul in a name"),
    pytest.param("\ud800", id="lone high surrogate"),
    pytest.param("a\udfffb", id="lone low surrogate"),
    pytest.param({"\ud800": 1}, id="surrogate in a name"),
    pytest.param(2**63, id="2**63"),
    pytest.param(-(2**63) - 1, id="-2**63-1"),
    pytest.param([10**400], id="10**400"),
    pytest.param(nested(JSON_DEPTH_MAX + 1, 1), id="65 lists"),
    pytest.param(nested(JSON_DEPTH_MAX + 1, 1, objects=True), id="65 objects"),
    pytest.param(nested(JSON_DEPTH_MAX, []), id="65 lists, the innermost empty"),
    pytest.param(nested(JSON_DEPTH_MAX, {}), id="64 lists and an empty object"),
    pytest.param(nested(100_000, 1), id="100,000 lists"),
    pytest.param(object(), id="an object"),
    pytest.param({1: "a", "1": "b"}, id="names that become the same"),
]


@pytest.mark.parametrize("value", REFUSED)
def test_what_an_engine_could_not_keep_is_refused(value: Any) -> None:
    with pytest.raises(InvalidPayload, match="the payload"):
        to_json(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(InvalidPayload):
        to_json(loop)


ACCEPTED = [
    pytest.param("NaN", id="the word NaN"),
    pytest.param({"Infinity": "-Infinity"}, id="the word Infinity"),
    pytest.param("\\u0000", id="a backslash and u0000"),
    pytest.param("\\ud800", id="a backslash and ud800"),
    pytest.param("\x01\x1f\x7f", id="control characters"),
    pytest.param("🎿" * 10, id="four-byte characters"),
    pytest.param("\u202e\u2028", id="right-to-left and line separators"),
    pytest.param("9" * 400, id="digits in a string"),
    pytest.param([JSON_INT_MAX, JSON_INT_MIN], id="the largest integers"),
    pytest.param(1e308, id="a large float"),
    pytest.param(5e-324, id="the smallest float"),
    pytest.param(nested(JSON_DEPTH_MAX, 1), id="64 lists"),
    pytest.param(nested(JSON_DEPTH_MAX, "x", objects=True), id="64 objects"),
    pytest.param(nested(JSON_DEPTH_MAX - 1, []), id="64 lists, the innermost empty"),
    pytest.param([[]] * 1000, id="many lists side by side"),
    pytest.param("[{" * 100, id="brackets in a string"),
]


@pytest.mark.parametrize("value", ACCEPTED)
def test_what_only_looks_dangerous_is_kept(value: Any) -> None:
    assert decode(to_json(value)) == value
    assert from_json(to_json(value)) == value


@pytest.mark.parametrize(
    "document",
    [
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e999",
        '{"a":1,"a":2}',
        '{"a":{"b":1,"b":1}}',
        '"\\u0000"',
        '"\\ud800"',
        '"\\udc00\\ud800"',
        '"\ud800"',
        str(2**63),
        "9" * 5000,
        "[" * 65 + "]" * 65,
        "[" * 1_000_000,
        "",
        "{",
        "{'a': 1}",
        "[1,]",
        "01",
        "\ufeff1",
        '"\x01"',
        "1 2",
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_strict_reading_refuses(document: str) -> None:
    with pytest.raises(InvalidPayload, match="the payload"):
        from_json(document)


def test_strict_reading_refuses_what_is_not_utf_8() -> None:
    with pytest.raises(InvalidPayload, match="UTF-8"):
        from_json(b'"\xff"')


@given(st.binary(max_size=30))
def test_strict_reading_refuses_or_agrees_but_never_breaks(raw: bytes) -> None:
    try:
        value = from_json(raw)
    except InvalidPayload:
        return
    assert value == msgspec.json.decode(raw)


def test_a_refusal_names_what_was_refused() -> None:
    with pytest.raises(InvalidPayload, match="the result"):
        to_json(math.nan, "result")


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())


@given(
    st.dictionaries(
        st.text(st.characters()) | st.integers(), anything | st.lists(st.integers(), max_size=2), max_size=5
    )
)
def test_the_short_way_of_a_flat_result_writes_what_the_long_way_writes_or_leaves_it_to_that(value: Any) -> None:
    flat = flat_json(value)
    assert flat is None or flat == result_json(value)


@pytest.mark.parametrize("value", [None, {}, {"ok": True}, {"n": 1, "x": 0.5, "text": "é", "none": None}])
def test_usual_results_take_the_short_way(value: Any) -> None:
    assert flat_json(value) == result_json(value)
