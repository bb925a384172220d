"""The shapes of a job: the table of their fields, and what one shape takes over from another."""

from __future__ import annotations

import msgspec
from msgspec.json import schema_components

from backstay.core.job_fields import DOCUMENT_FIELDS, JOB_FIELDS, PLAIN_FIELDS, USUAL, Home, Insert
from backstay.core.records import NEW_DEFAULTS, ClaimedJob, JobRecord, NewJob, Node, shared
from backstay.core.states import Status
from backstay.job import JobDocument

CLAIM = ClaimedJob(*"jtq", 50, "{}", 4, 9, 2, 5, 1, 3, 60, 100, 200, 300, *"sprlatcmdh", "w", 250, 2, "n", 7, 1, "b", 6)


def test_a_new_job_begins_with_the_fields_that_every_job_has_and_that_submit_fills_by_position() -> None:
    assert [name for name in NewJob.__struct_fields__ if name not in NEW_DEFAULTS] == [
        *("job_id", "job_type", "queue", "priority", "payload", "scheduled_for", "max_attempts", "timeout_micros")
    ]


# Of a new job, what tells the store how to insert it.
INSTRUCTIONS = {
    *("special", "own_id", "dedup_until", "dedup_conflict_is_error", "dedup_replaces", "debounce_micros"),
    *("depends_on", "reuse_since", "rate"),
}


def test_the_table_has_every_field_of_every_shape_once() -> None:
    names = [each.name for each in JOB_FIELDS]
    assert len(names) == len(set(names))
    assert set(names) == set(JobRecord.__struct_fields__)
    assert set(ClaimedJob.__struct_fields__) <= set(names)
    assert set(NewJob.__struct_fields__) - INSTRUCTIONS <= set(names)


def test_an_insert_writes_what_a_new_job_has_and_nothing_else() -> None:
    written = {each.name for each in JOB_FIELDS if each.insert is not Insert.NEVER}
    assert written == set(NewJob.__struct_fields__) - INSTRUCTIONS
    facts = {each.name for each in JOB_FIELDS if each.home is Home.FACT}
    assert facts == written - {"expires_at"} | {"created_at"}  # which a job has until it starts: it is of its place
    assert set(PLAIN_FIELDS) < written


def test_what_is_stored_as_null_is_the_default_of_every_shape() -> None:
    for shape in (NewJob, JobRecord):
        defaults = {each.name: each.default for each in msgspec.structs.fields(shape)}
        assert {name: defaults[name] for name in USUAL} == USUAL


def test_users_see_what_the_table_says_in_json_and_openapi() -> None:
    """`deduplicated` is about the answer and not about the job."""
    assert set(JobDocument.__struct_fields__) == {*DOCUMENT_FIELDS, "deduplicated"}
    [document] = [each for name, each in schema_components([JobDocument])[1].items() if name == "Job"]
    assert set(document["properties"]) == {*DOCUMENT_FIELDS, "deduplicated"}


def test_a_record_has_the_defaults_of_a_new_job() -> None:
    """An engine leaves out what has its default, and a record is read without it."""
    defaults = {each.name: each.default for each in msgspec.structs.fields(JobRecord)}
    assert {name: defaults[name] for name in NEW_DEFAULTS if name in defaults} == {
        name: default for name, default in NEW_DEFAULTS.items() if name in defaults
    }


def test_a_record_has_every_field_of_a_claim() -> None:
    assert [name for name in ClaimedJob.__struct_fields__ if not hasattr(JobRecord, name)] == []


def test_a_record_made_of_a_claim_and_a_claim_made_of_that_are_alike() -> None:
    record = JobRecord(**shared(CLAIM, JobRecord), status=Status.PROCESSING, updated_at=250)

    again = ClaimedJob(**shared(record, ClaimedJob))
    assert again == CLAIM


def test_a_node_of_a_tree_is_made_of_its_record() -> None:
    record = JobRecord(**shared(CLAIM, JobRecord), status=Status.PROCESSING, updated_at=250)

    assert Node.of(record, 3) == Node(*"jtq", 50, Status.PROCESSING, 4, 9, "p", "m", 6, 0, (), (), 3)
