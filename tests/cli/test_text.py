"""Lengths of time and URLs, as they are written and as they are read."""

from __future__ import annotations

from datetime import timedelta

import pytest

from backstay.cli.output import duration, safe, safe_json, safe_lines, without_password
from backstay.core.checks import span


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0.5", 0.5), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172800)]
)
def test_a_length_of_time_is_written_in_seconds_or_with_units(text: str, seconds: float) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "-5", "5 parsecs", "m", "1m1h"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="1h30m"):
        duration(text)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0042, "4 ms"), (1.25, "1.2 s"), (2, "2 s"), (59.6, "60 s"), (300, "5 min"), (3600, "1 h"), (9000, "2 h 30 min"),
     (200_000, "2 d"), (3597, "1 h"), (35_998, "10 h"), (172_790, "2 d")],
)  # fmt: skip
def test_a_span_is_said_as_short_as_it_can_be(seconds: float, said: str) -> None:
    assert span(seconds) == said


def test_escaping_leaves_ordinary_text_alone_and_shows_the_rest() -> None:
    assert safe("naïve 日本 🚀 'x'") == "naïve 日本 🚀 'x'"
    assert safe("a\nb\x1b[0m\x9b\u202e\ud800") == "a\\nb\\x1b[0m\\x9b\\u202e\\ud800"
    assert safe_lines("a\n\tb\r") == "a\n    b\\r"
    assert safe_json('{"a": "\x9b"}') == '{"a": "\\u009b"}'


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:secret@db:5432/shop?schema=jobs", "postgresql://ada:…@db:5432/shop?schema=jobs"),
        ("postgresql://db/shop?user=ada&password=secret", "postgresql://db/shop?user=ada&password=…"),
        ("postgresql://db:5432/shop", "postgresql://db:5432/shop"),
        ("postgresql://ada@db:5432/shop", "postgresql://ada@db:5432/shop"),
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        (
            "dynamodb://shop?region=local&endpoint=http://127.0.0.1:8000",
            "dynamodb://shop?region=local&endpoint=http://127.0.0.1:8000",
        ),
        (
            "dynamodb://shop?endpoint=http://ada:secret@db:8000&pool=8",
            "dynamodb://shop?endpoint=http://ada:…@db:8000&pool=8",
        ),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
