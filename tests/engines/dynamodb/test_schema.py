"""Keys are ordered as what they stand for, are never too long, and never meet."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.core.states import Status
from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb.attributes import Form
from backstay.engines.dynamodb.schema import Item
from backstay.ids import new_ids

FIRST, SECOND = new_ids(2, 1_763_300_000_000_000)
NAMES = st.text(max_size=512)
TYPES = st.text(min_size=1, max_size=128)
INSTANTS = st.integers(-1, 2**62)
PRIORITIES = st.integers(0, 100)


def _job(**changes: object) -> Item:
    job: Item = {
        "job_id": FIRST,
        "job_type": "PCA",
        "queue": "default",
        "status": "pending",
        "priority": 50,
        "created_at": 1_763_300_000_000_000,
        "scheduled_for": 1_763_300_000_000_000,
        "version": 1,
    }
    job.update(changes)
    return {name: value for name, value in job.items() if value is not None}


@given(st.lists(st.tuples(PRIORITIES, st.integers(0, 9_999_999_999_999_999)), min_size=2))
def test_places_are_in_the_order_of_claims(jobs: list[tuple[int, int]]) -> None:
    by_key = sorted(jobs, key=lambda job: schema.place(*job, FIRST))

    assert by_key == sorted(jobs, key=lambda job: (-job[0], job[1]))


@given(INSTANTS, INSTANTS)
def test_instants_keep_their_order(one: int, other: int) -> None:
    assert len(schema.at(one)) == 16
    if one < other:
        assert schema.at(one) <= schema.at(other)


@given(NAMES, NAMES, NAMES, NAMES)
def test_composed_names_never_meet(a: str, b: str, c: str, d: str) -> None:
    if (a, b) != (c, d):
        assert schema.joined(a, b) != schema.joined(c, d)
        assert schema.in_lane(a) + schema.in_lane(b) != schema.in_lane(c) + schema.in_lane(d)


@given(NAMES)
def test_a_part_is_short_and_has_no_separator(name: str) -> None:
    part = schema.part(name)

    assert len(part.encode()) <= 200
    assert "|" not in part and "#" not in part


@given(st.text(alphabet="a~|%\x00\U0010ffff", max_size=9))
def test_every_part_lies_between_the_bounds_that_queries_end_with(name: str) -> None:
    part = schema.part(name)

    assert part < schema.HIGH
    assert "\x00" not in part and "\x01" not in part


def test_a_name_that_looks_like_a_cut_one_is_another() -> None:
    long = "n" * 300

    assert schema.part(schema.part(long)) != schema.part(long)


@given(NAMES, TYPES, st.integers(1, 2**31), st.one_of(st.none(), NAMES))
def test_no_key_is_too_long(queue: str, job_type: str, version: int, fairness_key: str | None) -> None:
    item = _job(queue=queue, job_type=job_type, payload_version=version, fairness_key=fairness_key)
    item |= {"concurrency_key": "k", "rate_key": queue, "rate_count": 1, "rate_micros": 1, "content_hash": "h"}

    for name, value in schema.derived(item, 1).items():
        assert 1 <= len(value.encode()) <= 1024, name


def test_a_pending_job_is_ready_unless_it_is_parked() -> None:
    found = schema.derived(_job(), 1)
    assert found["gr"] == "ready"
    assert schema.lane_and_place(found["gq"]) == (("default|", "PCA|"), schema.place(50, 1_763_300_000_000_000, FIRST))
    assert "gr" not in schema.derived(_job(parked="c", concurrency_key="k"), 1)


def test_one_shard_means_plain_values_and_more_are_all_used() -> None:
    assert Form().stored(_job(), FIRST)["status"] == "pending"
    ids = new_ids(200, 1)

    found = {Form(4).stored(_job(job_id=job_id), job_id)["status"] for job_id in ids}

    assert found == set(schema.all_shards("pending", 4)) == {"pending", "pending#1", "pending#2", "pending#3"}


def test_all_jobs_of_a_fairness_key_are_in_one_shard() -> None:
    found = {schema.derived(_job(job_id=each, fairness_key="tenant"), 8)["gr"] for each in new_ids(50, 1)}

    assert len(found) == 1


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"status": "processing", "lease_expires_at": 1}, "run|"),
        ({}, "in|default|PCA|1|"),
        ({"parked": "c"}, "out|default|PCA|1|"),
        ({"parked": "r"}, "off|"),
        ({"status": "scheduled"}, "off|"),
        ({"status": "completed", "completed_at": 1}, "end|"),
    ],
)
def test_a_key_index_tells_who_runs_and_who_waits(changes: Item, begins: str) -> None:
    assert schema.derived(_job(concurrency_key="k", **changes), 1)["gk"].startswith(begins)


def test_what_retention_leaves_is_in_one_index_only() -> None:
    assert schema.derived({"job_id": FIRST, "archived_at": 5, "files": 1}, 1) == {
        "ga": "files",
        "gz": f"{5:016d}|{FIRST.replace('-', '')}",
    }


@pytest.mark.parametrize("status", [each.value for each in Status])
def test_every_derived_attribute_is_a_known_one(status: str) -> None:
    item = _job(status=status, lease_expires_at=1, completed_at=1, concurrency_key="k", content_hash="h")

    assert set(schema.derived(item, 1)) <= set(schema.DERIVED)


def test_records_of_different_kinds_never_meet() -> None:
    made = [
        schema.SCHEMA_KEY,
        schema.SIGNALS_KEY,
        schema.turn("scan"),
        schema.queue_row("a"),
        schema.fair_lane("a", "b"),
        schema.body(FIRST, "w", 0),
        schema.guard("a"),
        schema.edge(FIRST, SECOND),
        schema.needs(FIRST),
        schema.step(FIRST, "step", "a"),
        schema.mailbox("a"),
        schema.key_gate("a"),
        schema.rate_gate("a", 1, 1),
        schema.queue_gate("a"),
        schema.waiting_key("a", 1),
        schema.turns_lane("a", "b"),
        schema.turn_of("a", "b", None),
        schema.turn_of("a", "b", ""),
        schema.schedule("a"),
        schema.worker("a"),
        schema.job_type("a"),
        schema.journal("a", 0),
        schema.mark("ended", FIRST),
    ]

    assert all(len(set(pair)) == 2 for pair in itertools.combinations(made, 2))
