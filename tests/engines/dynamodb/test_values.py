"""Values keep what they are on their way through DynamoDB's JSON."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.engines.dynamodb.schema import decode, encode, size

SCALARS = st.one_of(
    st.text(),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e30, max_value=1e30),
    st.binary(max_size=20),
    st.booleans(),
    st.sets(st.text(min_size=1), min_size=1),
)
ITEMS = st.dictionaries(st.text(min_size=1), st.recursive(SCALARS, st.lists, max_leaves=5))


@given(ITEMS)
def test_an_item_comes_back_as_it_was(item: dict[str, object]) -> None:
    assert decode(encode(item)) == item


@pytest.mark.parametrize(
    ("text", "number"), [("1E+2", 100), ("1.5", 1.5), ("-7", -7), ("1763300000000000", 1763300000000000)]
)
def test_numbers_are_whole_where_they_were(text: str, number: float) -> None:
    [value] = decode({"n": {"N": text}}).values()

    assert value == number and type(value) is type(number)


def test_none_is_absence() -> None:
    assert encode({"a": None, "b": "x"}) == {"b": {"S": "x"}}


def test_a_size_counts_names_and_bytes() -> None:
    assert size({"ab": "é", "n": 1234}) == 2 + 2 + 1 + 4
