"""What is kept back of a payload, and what a traceback is as frames."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay import ConfigurationError
from backstay.observers import Sentry, Tracing
from backstay.observers.redaction import PAYLOAD_CHARACTERS_MAX, Redaction
from backstay.observers.sentry import frames_of


@pytest.mark.parametrize(
    "name",
    ["password", "Password", "db_password", "API-KEY", "apiKey", "x_api_key", "accessToken", "client_secret", "cookie"],
)
def test_a_field_that_sounds_like_a_secret_is_kept_back(name: str) -> None:
    redacted = Redaction().redact(json.dumps({name: "s3cret", "other": 1}))
    assert json.loads(redacted.payload) == {name: "•••", "other": 1}
    assert redacted.scrubbed("it was s3cret") == "it was •••"


@pytest.mark.parametrize("name", ["author", "key", "monkey", "pass_mark", "tokyo", "keyboard"])
def test_a_field_that_does_not_is_told(name: str) -> None:
    assert json.loads(Redaction().redact(json.dumps({name: "x"})).payload) == {name: "x"}


def test_names_of_the_users_own_are_kept_back_too() -> None:
    redacted = Redaction(["IBAN", "birth-day"]).redact('{"iban": "DE1", "birth_day": "1815-12-10", "born": 1}')
    assert json.loads(redacted.payload) == {"iban": "•••", "birth_day": "•••", "born": 1}


@pytest.mark.parametrize("observer", [Sentry, Tracing])
def test_one_name_where_a_list_is_meant_is_refused(observer: Any) -> None:
    with pytest.raises(ConfigurationError, match=r'redact=\["iban"\]'):
        observer(redact="iban")


def test_what_is_kept_back_whole_is_scrubbed_in_parts() -> None:
    redacted = Redaction().redact(json.dumps({"credentials": {"user": "ada-l", "codes": [123456, 'a"b\nc']}}))
    assert (
        redacted.scrubbed("""ada-l, 123456, 'a"b\\nc', {"codes":["a\\"b\\nc"]}""")
        == """•••, •••, '•••', {"codes":["•••"]}"""
    )


def test_a_password_in_a_url_is_kept_back_wherever_it_stands() -> None:
    redacted = Redaction().redact('{"url": "https://ada:pass@example.org/x?y=1"}')
    assert redacted.payload == '{"url":"https://ada:•••@example.org/x?y=1"}'
    assert (
        redacted.scrubbed("amqp://u:pw@h, see https://example.org/a:b") == "amqp://u:•••@h, see https://example.org/a:b"
    )


@pytest.mark.parametrize("payload", ["", "not json", "[" * 5000, "[" * 900 + "]" * 900, "null", '"a text"', "17"])
def test_a_payload_that_is_no_object_or_no_json_breaks_nothing(payload: str) -> None:
    assert len(Redaction().redact(payload, marks=["not a path", "/a"]).payload) <= 10


@given(
    st.recursive(st.text(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
)
def test_no_secret_is_told_however_deep_it_lies(value: Any) -> None:
    document = {"outer": [value, {"token": ["bs_canary_1", value, {"x": "bs_canary_2"}]}]}
    redacted = Redaction().redact(json.dumps(document))
    assert "bs_canary" not in redacted.payload and "bs_canary" not in redacted.scrubbed(
        f"{document!r} {json.dumps(document)}"
    )


def test_a_large_payload_is_cut() -> None:
    assert len(Redaction().redact(json.dumps({"x": "y" * 200_000})).payload) < PAYLOAD_CHARACTERS_MAX + 60


def _text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _raise() -> None:
    raise ValueError("inner")


def test_a_traceback_becomes_frames_from_the_oldest_call_on() -> None:
    with pytest.raises(ValueError, match="inner") as caught:
        _raise()
    frames = frames_of(_text_of(caught.value))
    assert [frame["function"] for frame in frames][-1] == "_raise"
    assert frames[-1]["context_line"] == 'raise ValueError("inner")'
    assert frames[-1]["abs_path"] == __file__ and frames[-1]["in_app"]


def test_of_two_exceptions_in_a_row_the_frames_are_those_of_the_last() -> None:
    def handle() -> None:
        try:
            _raise()
        except ValueError as error:
            raise KeyError("outer") from error

    with pytest.raises(KeyError) as caught:
        handle()
    assert [frame["function"] for frame in frames_of(_text_of(caught.value))][-1] == "handle"


@pytest.mark.parametrize("text", ["", "no traceback at all", 'File "x", line', "at Foo.bar(Foo.java:3)\n"])
def test_what_is_no_traceback_of_python_has_no_frames(text: str) -> None:
    assert frames_of(text) == []


def test_a_traceback_whose_beginning_was_cut_off_keeps_the_rest() -> None:
    text = 'ile "/a/b.py", line 1, in cut\n    x\n  File "/a/site-packages/c.py", line 2, in kept\n    y\nError: no'
    [frame] = frames_of(text)
    assert (frame["function"], frame["lineno"], frame["in_app"]) == ("kept", 2, False)
