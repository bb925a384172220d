"""API keys: their text, what is stored of them, and whom they let in."""

from __future__ import annotations

import re
import statistics
import time
from typing import Any

import msgspec
import pytest

from backstay import limits
from backstay.core import access_keys
from backstay.core.records import ApiKey
from backstay.errors import InvalidOption

NOW = 1_763_300_000_000_000
DAY = 86_400 * 1_000_000


def made(**changes: Any) -> tuple[str, ApiKey]:
    fields: dict[str, Any] = {"name": "ci", "scopes": ["read"], "now": NOW}
    return access_keys.make(**(fields | changes))


def checked(text: str, *known: ApiKey, now: int = NOW) -> ApiKey | None:
    parsed = access_keys.parse(text)
    return None if parsed is None else access_keys.check(parsed, {key.key_id: key for key in known}, now)


# Their text


def test_a_text_says_what_it_is_and_where_it_is_for() -> None:
    text, key = made()
    other, _ = made(env="test")

    assert re.fullmatch(rf"bs_live_{key.key_id}_[0-9A-Za-z]{{43}}_[0-9A-Za-z]{{6}}", text)
    assert other.startswith("bs_test_")


def test_no_two_are_alike() -> None:
    found = [made() for _ in range(200)]

    assert len({text for text, _ in found}) == len({key.key_id for _, key in found}) == 200
    assert len({key.secret_hash for _, key in found}) == 200


def test_a_text_that_was_cut_or_typed_wrong_is_known_as_such_without_a_store() -> None:
    text, _ = made()

    assert access_keys.parse(text) is not None
    for place in range(len(text)):
        other = "x" if text[place] != "x" else "y"
        assert access_keys.parse(text[:place] + other + text[place + 1 :]) is None
        assert access_keys.parse(text[:place]) is None
    for wrong in (text + "0", text + "\n", " " + text, "", "bs_live", text.upper(), text * 2, "x" * 100_000):
        assert access_keys.parse(wrong) is None


def test_another_environment_in_the_text_is_no_longer_that_key() -> None:
    text, _ = made()

    assert access_keys.parse(text.replace("bs_live_", "bs_test_")) is None


# What is stored and shown


def test_nothing_that_is_stored_or_shown_has_the_secret_in_it() -> None:
    text, key = made(queues=["mail*"], by="me")
    secret = text.split("_")[3]
    parsed = access_keys.parse(text)
    created = access_keys.CreatedKey(text, access_keys.info(key, NOW))

    for shown in (repr(key), repr(parsed), repr(created), str(created), str(access_keys.info(key, NOW))):
        assert secret not in shown
        assert key.secret_hash not in shown
    assert secret not in msgspec.json.encode(key).decode()
    assert key.secret_hash == access_keys.digest(secret)


def test_a_text_in_a_message_is_masked() -> None:
    text, key = made()
    secret = text.split("_")[3]

    masked = access_keys.masked(f"Authorization: Bearer {text}, and again {text}; {text[:-10]}")

    assert secret not in masked
    assert secret[:20] not in masked
    assert masked.startswith(f"Authorization: Bearer bs_live_{key.key_id}_…, and again bs_live_{key.key_id}_…")
    assert access_keys.masked("nothing to hide, bs_ and bs_live_abc") == "nothing to hide, bs_ and bs_live_abc"


# Who is let in


def test_the_right_text_is_let_in_and_others_are_not() -> None:
    text, key = made()
    stranger, other = made()

    assert checked(text, key, other) == key
    assert checked(stranger, key) is None
    forged = access_keys.ParsedKey(key.key_id, stranger.split("_")[3])
    assert access_keys.check(forged, {key.key_id: key}, NOW) is None


def test_neither_an_expired_nor_a_revoked_key_is_let_in() -> None:
    text, key = made(expires_at=NOW + DAY)

    assert checked(text, key, now=NOW + DAY - 1) == key
    assert checked(text, key, now=NOW + DAY) is None
    assert checked(text, msgspec.structs.replace(key, revoked_at=NOW)) is None


def test_secrets_are_compared_without_an_early_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And for an id that is not there just the same."""
    compared: list[tuple[str, str]] = []
    real = access_keys.hmac.compare_digest
    monkeypatch.setattr(
        access_keys.hmac, "compare_digest", lambda one, other: compared.append((one, other)) or real(one, other)
    )
    text, key = made()
    stranger, _ = made()

    for given in (text, stranger):
        checked(given, key)

    assert [one == other for one, other in compared] == [True, False]
    assert {len(each) for pair in compared for each in pair} == {64}


def test_how_long_a_refusal_takes_does_not_tell_how_much_was_right() -> None:
    text, key = made()
    known = {key.key_id: key}
    secret = text.split("_")[3]
    near = access_keys.ParsedKey(key.key_id, secret[:-1] + ("0" if secret[-1] != "0" else "1"))
    far = access_keys.ParsedKey(key.key_id, "0" * 43)
    unknown = access_keys.ParsedKey("0" * 12, "0" * 43)

    def took(parsed: access_keys.ParsedKey) -> float:
        spans = []
        for _ in range(40):
            start = time.perf_counter_ns()
            for _ in range(50):
                access_keys.check(parsed, known, NOW)
            spans.append(time.perf_counter_ns() - start)
        return statistics.median(sorted(spans)[:20])

    times = [took(each) for each in (near, far, unknown)]
    assert max(times) < 3 * min(times)  # a difference of a byte would be far less; one of an early end far more


# Sessions


def test_a_session_has_the_rights_that_its_key_has_now_and_ends_with_it() -> None:
    _, key = made(scopes=["read", "submit"])
    text, session = access_keys.open_session(key, NOW)
    narrowed = msgspec.structs.replace(key, scopes=("read",), queues=("mail",), name="renamed")

    found = checked(text, narrowed, session)

    assert found is not None
    assert (found.scopes, found.queues, found.name, found.of) == (("read",), ("mail",), "renamed", key.key_id)
    assert checked(text, session) is None
    assert checked(text, msgspec.structs.replace(key, revoked_at=NOW), session) is None
    assert checked(text, key, session, now=NOW + limits.SESSION_SECONDS * 1_000_000) is None


def test_a_session_does_not_outlive_its_key() -> None:
    _, key = made(expires_at=NOW + 5)
    _, session = access_keys.open_session(key, NOW)

    assert session.expires_at == NOW + 5


def test_sessions_and_the_servers_secret_are_no_keys_that_someone_made() -> None:
    _, key = made()
    _, session = access_keys.open_session(key, NOW)
    secret = msgspec.structs.replace(key, key_id=access_keys.SERVER_SECRET_ID)

    assert [access_keys.is_listed(each) for each in (key, session, secret)] == [True, False, False]
    assert access_keys.parse(f"bs_live_{access_keys.SERVER_SECRET_ID}_{'0' * 43}_000000") is None


def test_keys_are_needed_as_soon_as_there_is_one_and_when_it_is_over_too() -> None:
    _, key = made(expires_at=NOW + 5)
    _, session = access_keys.open_session(key, NOW)

    assert not access_keys.are_needed([])
    assert not access_keys.are_needed([session])
    assert access_keys.are_needed([key, session])
    assert access_keys.are_needed([msgspec.structs.replace(key, revoked_at=NOW)])


# Rights


def test_admin_has_the_other_scopes_in_it_and_no_other_has() -> None:
    allowed = {
        scope: [other for other in access_keys.SCOPES if access_keys.allows(made(scopes=[scope])[1], other)]
        for scope in access_keys.SCOPES
    }

    assert allowed == {"read": ["read"], "submit": ["submit"], "work": ["work"], "admin": list(access_keys.SCOPES)}


@pytest.mark.parametrize(
    ("patterns", "seen", "hidden"),
    [
        ((), ["mail", "anything"], []),
        (("mail",), ["mail"], ["mail2", "Mail", "xmail", ""]),
        (("mail*",), ["mail", "mail.eu"], ["xmail", "mai"]),
        (("*.eu",), [".eu", "mail.eu"], ["mail.eu2", "eu"]),
        (("a*b*c",), ["abc", "axbxc", "abbcc"], ["ab", "acb", "abcx"]),
        (("a*a",), ["aa", "aba"], ["a"]),
        (("ab*ba",), ["abba", "ab-ba"], ["aba"]),
        (("*",), ["mail", ""], []),
        (("mail", "news*"), ["mail", "news.eu"], ["mails"]),
        (("*a*a*",), ["aa", "banana"], ["a", "ban"]),
    ],
)
def test_patterns_of_queues(patterns: tuple[str, ...], seen: list[str], hidden: list[str]) -> None:
    assert all(access_keys.matches(patterns, queue) for queue in seen)
    assert not any(access_keys.matches(patterns, queue) for queue in hidden)


def test_a_pattern_that_nearly_fits_is_refused_in_no_time() -> None:
    start = time.perf_counter()

    assert not access_keys.matches(("*a" * 60 + "*b",), "a" * 128)

    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scopes": []}, "one or more of read"),
        ({"scopes": ["reed"]}, "one or more of read"),
        ({"scopes": "read"}, "a list"),
        ({"queues": "mail"}, "a list"),
        ({"queues": ["a b"]}, "not a queue pattern"),
        ({"queues": [""]}, "not a queue pattern"),
        ({"queues": ["q"] * (limits.KEY_QUEUES_MAX + 1)}, "up to 50"),
        ({"name": None}, "needs a name"),
        ({"name": "x" * 200}, "name"),
        ({"env": "Live"}, "a-z"),
        ({"env": ""}, "a-z"),
    ],
    ids=str,
)
def test_a_key_that_makes_no_sense_is_refused_in_words(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        made(**changes)


def test_scopes_and_patterns_are_kept_once_each() -> None:
    _, key = made(scopes=["submit", "read", "submit"], queues=["b", "a", "b"])

    assert (key.scopes, key.queues) == (("read", "submit"), ("b", "a"))
