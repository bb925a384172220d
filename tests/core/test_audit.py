"""Entries of the audit trail."""

from __future__ import annotations

import pytest

from backstay import ids, limits
from backstay.core import access_keys
from backstay.errors import InvalidOption, JobNotFound

NOW = 1_763_300_000_000_000


def test_an_entry_tells_who_changed_what_and_how_it_ended() -> None:
    begun = access_keys.begun(
        "queue.pause", "mail", by="ada", via="http", now=NOW, before={"paused": False}, remote="::1"
    )

    assert access_keys.record(begun).outcome is None
    ended = access_keys.record(access_keys.ended(begun, target="mail", after={"paused": True}, outcome=access_keys.OK))

    assert (ended.by, ended.via, ended.action, ended.target) == ("ada", "http", "queue.pause", "mail")
    assert (ended.before, ended.after, ended.outcome, ended.remote) == (
        {"paused": False},
        {"paused": True},
        "ok",
        "::1",
    )
    assert ended.entry_id == begun.entry_id


def test_entries_are_in_the_order_in_which_they_were_made() -> None:
    made = [access_keys.begun("a", "b", by="c", via="cli", now=NOW + n // 3).entry_id for n in range(30)]

    assert made == sorted(made)


def test_what_is_too_large_is_left_out_and_said_so() -> None:
    entry = access_keys.begun("a", "b", by="c", via="cli", now=NOW, before={"x": "y" * limits.AUDIT_TEXT_BYTES_MAX})

    assert access_keys.record(entry).before == {"left_out_bytes": limits.AUDIT_TEXT_BYTES_MAX + 8}


@pytest.mark.parametrize("odd", ["nul\0byte", "lone \ud800 surrogate", "x" * 10_000, "‮right to left"])
def test_whatever_a_request_names_can_be_stored(odd: str) -> None:
    entry = access_keys.begun("job.cancel", odd, by=odd, via="http", now=NOW, remote=odd)

    for text in (entry.target, entry.by, entry.remote or ""):
        assert len(text) <= limits.KEY_LENGTH_MAX
        assert "\0" not in text
        text.encode()


def test_a_failure_is_named_without_what_its_message_has_in_it() -> None:
    assert access_keys.failure(JobNotFound("no job s3cret")) == "JobNotFound"
    assert access_keys.failure(ValueError("s3cret")) == "Error"


def test_a_cursor_is_the_id_of_an_entry() -> None:
    entry_id = ids.new_id(NOW)

    assert access_keys.cursor(entry_id.upper()) == entry_id
    with pytest.raises(InvalidOption, match="pass the `next` of a page"):
        access_keys.cursor("1' OR '1'='1")
