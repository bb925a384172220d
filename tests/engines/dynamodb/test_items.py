"""A job as an item: small, whole, and never larger than an item may be."""

import msgspec
import pytest

from backstay.core.records import ErrorEntry, HistoryEvent, NewJob, Rate
from backstay.core.states import Event, Status
from backstay.engines.dynamodb import history, items
from backstay.engines.dynamodb.schema import Item, size
from backstay.limits import (
    ERROR_TEXT_MAX,
    ERRORS_KEPT_MAX,
    HISTORY_HEAD,
    HISTORY_SLACK,
    HISTORY_TAIL,
    LOG_ENTRIES_MAX,
    LOG_MESSAGE_MAX,
    PAYLOAD_BYTES_MAX,
    REASON_LENGTH_MAX,
    RESULT_INLINE_BYTES_MAX,
)

NOW = 1_763_300_000_000_000
ITEM_BYTES_MAX = 400 * 1024
EMOJI = "\U0001f600"  # four bytes
ESCAPE = "\x1b"  # one byte, and six where it is written as JSON


def _new(**changes: object) -> NewJob:
    fields: dict[str, object] = {
        "job_id": "0198d0c2-6c1e-7001-8a3b-1f2e3d4c5b6a",
        "job_type": "PCA",
        "queue": "default",
        "priority": 50,
        "payload": '{"n":1}',
        "scheduled_for": NOW,
        "max_attempts": 5,
        "timeout_micros": 3_600_000_000,
    }
    return NewJob(**{**fields, **changes})  # type: ignore[arg-type]


def _item(**changes: object) -> Item:
    return items.new_item(_new(**changes), Status.PENDING, NOW, Event.SUBMIT, "w")


def test_a_new_job_reads_as_it_was_submitted() -> None:
    job = _new(subject="s", tags='["a"]', rate_key="r", rate=Rate(1, 2), payload_version=3, fairness_weight=2)

    record = items.record(items.new_item(job, Status.PENDING, NOW, Event.SUBMIT, "w"), {})

    for name in ("job_id", "payload", "subject", "tags", "rate_key", "payload_version", "fairness_weight"):
        assert getattr(record, name) == getattr(job, name)
    assert (record.status, record.version, record.created_at) == (Status.PENDING, 1, NOW)
    assert [each.event for each in record.history] == [Event.SUBMIT]


def test_a_key_of_an_index_that_is_empty_comes_back_empty() -> None:
    item = _item(subject="", content_hash="")

    assert "subject" not in item
    assert (items.record(item, {}).subject, items.record(item, {}).content_hash) == ("", "")


def test_a_plain_job_is_small() -> None:
    assert size(_item(payload='{"n":"' + "x" * 120 + '"}')) < 700


@pytest.mark.parametrize("text", ["x" * 201, EMOJI * 60, "x" * PAYLOAD_BYTES_MAX])
def test_a_long_payload_lies_outside_and_comes_back(text: str) -> None:
    item, records = items.spill(_item(payload=text))
    texts = {(each["pk"], each["sk"]): each["text"] for each in records}

    assert "payload" not in item and size(item) < 700
    assert all(size(each) < ITEM_BYTES_MAX for each in records)
    assert items.record(item, texts).payload == text


def test_a_short_one_stays() -> None:
    item, records = items.spill(_item(payload="x" * 200))

    assert item["payload"] == "x" * 200 and records == []


@pytest.mark.parametrize("events", [30, HISTORY_HEAD + HISTORY_TAIL + HISTORY_SLACK])
@pytest.mark.parametrize("letter", ["x", EMOJI, ESCAPE])
def test_a_job_that_says_as_much_as_it_may_fits_into_an_item(letter: str, events: int) -> None:
    said = letter * ERROR_TEXT_MAX
    error = ErrorEntry(attempt=1, at=NOW, type=letter * 5_000, message=said, traceback=said)
    reason = letter * REASON_LENGTH_MAX
    past = "\n".join(
        history.line(HistoryEvent(i, NOW, Event.RETRY, Status.PROCESSING, Status.RETRYING, i, "me", reason))
        for i in range(events)
    )
    full = _item(payload="x" * PAYLOAD_BYTES_MAX) | {
        "result": "y" * RESULT_INLINE_BYTES_MAX,
        "errors": msgspec.json.encode([error] * ERRORS_KEPT_MAX).decode(),
        "last_error": f"E: {error.message}",
        "history": past,
        "logs": msgspec.json.encode([{"message": letter * LOG_MESSAGE_MAX}] * LOG_ENTRIES_MAX).decode(),
        "metrics": msgspec.json.encode({letter * 100 + str(i): i for i in range(64)}).decode(),
    }

    item, records = items.spill(items.fit(full))

    assert size(item) < 200_000
    assert all(size(each) < ITEM_BYTES_MAX for each in records)
    kept = items.record(item, {(each["pk"], each["sk"]): each["text"] for each in records})
    assert len(kept.errors) == ERRORS_KEPT_MAX
    assert kept.history[-1].reason == reason
    assert (kept.history[0].version, kept.history[-1].version) == (0, events - 1)
    assert len(kept.history) >= 25
    assert kept.logs is not None and len(msgspec.json.decode(kept.logs)) >= 5


def test_what_is_within_its_bounds_is_left_alone() -> None:
    item = _item()

    assert items.fit(item) is item
