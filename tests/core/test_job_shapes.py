"""The shapes of a job: what engines fill by position, and what one shape takes over from another."""

from __future__ import annotations

import msgspec

from backstay.core import records
from backstay.core.records import (
    ARCHIVED_FIELDS,
    NEW_DEFAULTS,
    PLAIN_FIELDS,
    ROW_FIELDS,
    STORED_FIELDS,
    ClaimedJob,
    JobRecord,
    NewJob,
    Node,
    shared,
)
from backstay.core.states import Status

CLAIM = ClaimedJob(*"jtq", 50, "{}", 4, 9, 2, 5, 1, 3, 60, 100, 200, 300, *"sprlatcmdh", "w", 250, 2, "n", 7, 1, "b", 6)


def test_a_new_job_begins_with_the_fields_that_every_job_has_and_that_submit_fills_by_position() -> None:
    assert [name for name in NewJob.__struct_fields__ if name not in NEW_DEFAULTS] == [
        *("job_id", "job_type", "queue", "priority", "payload", "scheduled_for", "max_attempts", "timeout_micros")
    ]


def test_every_insert_writes_the_fields_before_special_and_no_instruction_to_the_store() -> None:
    assert NewJob.__struct_fields__[: len(ROW_FIELDS) + 1] == (*ROW_FIELDS, "special")
    assert set(PLAIN_FIELDS) < set(ROW_FIELDS) < set(STORED_FIELDS)


def test_a_record_has_the_defaults_of_a_new_job() -> None:
    """An engine leaves out what has its default, and a record is read without it."""
    defaults = {each.name: each.default for each in msgspec.structs.fields(JobRecord)}
    assert {name: defaults[name] for name in NEW_DEFAULTS if name in defaults} == {
        name: default for name, default in NEW_DEFAULTS.items() if name in defaults
    }


def test_every_list_of_fields_names_fields_that_exist() -> None:
    stored = set(JobRecord.__struct_fields__)
    assert stored - set(STORED_FIELDS) == records._COMPUTED
    assert set(STORED_FIELDS) - set(ARCHIVED_FIELDS) == records._NOT_ARCHIVED
    assert set(ROW_FIELDS) - set(PLAIN_FIELDS) == records._SPECIAL_ONLY


def test_a_record_has_every_field_of_a_claim() -> None:
    assert [name for name in ClaimedJob.__struct_fields__ if not hasattr(JobRecord, name)] == []


def test_a_record_has_every_field_of_a_new_job_that_is_not_an_instruction_to_the_store() -> None:
    missing = {name for name in NewJob.__struct_fields__ if not hasattr(JobRecord, name)}
    assert missing == {
        *("special", "own_id", "dedup_until", "dedup_conflict_is_error", "depends_on", "reuse_since", "rate")
    }


def test_a_record_made_of_a_claim_and_a_claim_made_of_that_are_alike() -> None:
    record = JobRecord(**shared(CLAIM, JobRecord), status=Status.PROCESSING, updated_at=250)

    again = ClaimedJob(**shared(record, ClaimedJob))
    assert again == CLAIM


def test_a_node_of_a_tree_is_made_of_its_record() -> None:
    record = JobRecord(**shared(CLAIM, JobRecord), status=Status.PROCESSING, updated_at=250)

    assert Node.of(record, 3) == Node(*"jtq", 50, Status.PROCESSING, 4, 9, "p", "m", 6, 0, (), (), 3)
