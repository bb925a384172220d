"""Conformance: result tables, whose rows are read from the committed attempt alone."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from backstay.core.lifecycle import cancel
from backstay.core.port import Store
from backstay.core.records import Verdict
from backstay.core.result_tables import Column, ColumnKind, ResultTable, RowBatch, RowOrigin, RowQuery, StoredRow, Value
from backstay.core.states import Status
from backstay.errors import DuplicateRow, RowsWithdrawn, SchemaMismatch, UnknownTable
from backstay.testing.conformance.factories import (
    HOUR,
    NOW,
    SECOND,
    Claim,
    a_policy,
    claim_again,
    claim_one,
    completed,
    new_job,
    record,
    remove_files,
    retire,
    retry_by_hand,
    running,
    settle,
    submit,
)

WORDS = ResultTable(
    "words",
    "word",
    (Column("word", ColumnKind.TEXT), Column("topic", ColumnKind.TEXT), Column("count", ColumnKind.INTEGER)),
    subject="topic",
    subject_index=True,
)
POINTS = ResultTable("points", "number", (Column("number", ColumnKind.INTEGER), Column("x", ColumnKind.NUMBER)))
KINDS = ResultTable(
    "kinds",
    "id",
    (
        Column("id", ColumnKind.UUID),
        Column("integer", ColumnKind.INTEGER),
        Column("number", ColumnKind.NUMBER),
        Column("text", ColumnKind.TEXT),
        Column("boolean", ColumnKind.BOOLEAN),
        Column("bytes", ColumnKind.BYTES),
        Column("moment", ColumnKind.MOMENT),
        Column("decimal", ColumnKind.DECIMAL),
        Column("json", ColumnKind.JSON),
    ),
)
VECTORS = ResultTable(
    "vectors", "number", (Column("number", ColumnKind.INTEGER), Column("embedding", ColumnKind.VECTOR, 3))
)
PLACE = RowOrigin(root_job_id="0190c0de-0000-7000-8000-000000000001", job_stage="PCA")
TABLES = (WORDS, POINTS, KINDS)
Row = tuple[Value, ...]


def batch(claim: Claim, table: ResultTable, *rows: Row, part: int = 0, **changes: Any) -> RowBatch:
    return RowBatch(claim.hold, table, part, rows, **changes)


async def put(store: Store, claim: Claim, table: ResultTable, *rows: Row, part: int = 0, now: int = NOW) -> None:
    assert await store.put_rows([batch(claim, table, *rows, part=part)], now) == [Verdict.APPLIED]


async def with_rows(store: Store, table: ResultTable, *rows: Row, **changes: Any) -> str:
    """Return a completed job with these rows."""
    claim = await running(store, **changes)
    await put(store, claim, table, *rows)
    await settle(store, claim.completes())
    return claim.job_id


async def read(store: Store, job_id: str, table: ResultTable = WORDS, **ask: Any) -> list[Row]:
    """Read all pages of a job."""
    found: list[StoredRow] = []
    query = RowQuery(job_id=job_id, **ask)
    for _ in range(1_000):
        page = await store.rows(table, query)
        assert len(page.items) <= query.limit
        found += page.items
        if page.next is None:
            return [row.values for row in found]
        query = msgspec.structs.replace(query, after=page.next, attempt=page.attempt)
    raise AssertionError("its pages do not come to an end")


async def read_by_subject(store: Store, subject: str, limit: int = 100) -> list[tuple[str, Value]]:
    found: list[tuple[str, Value]] = []
    after: str | None = None
    for _ in range(1_000):
        page = await store.rows_by_subject(WORDS, subject, after, limit)
        found += [(row.job_id, row.values[0]) for row in page.items]
        if page.next is None:
            return found
        after = str(page.next)
    raise AssertionError("its pages do not come to an end")


def words(*names: str, topic: str | None = "pets") -> list[Row]:
    return [(name, topic, len(name)) for name in names]


def vector(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


class TestDeclare:
    async def test_a_table_is_made_once_and_listed(self, store: Store, second_store: Store) -> None:
        await store.declare(TABLES)

        assert await second_store.declare(TABLES) == []
        assert {table.name: table for table in await second_store.result_tables()} == {
            each.name: each for each in TABLES
        }

    async def test_a_column_that_comes_later_is_empty_in_older_rows(self, store: Store) -> None:
        await store.declare(TABLES)
        job_id = await with_rows(store, WORDS, ("cat", "pets", 3))
        larger = msgspec.structs.replace(WORDS, columns=(*WORDS.columns, Column("score", ColumnKind.NUMBER)))

        assert await read(store, job_id, larger) == [("cat", "pets", 3, None)]
        await store.declare([larger])
        newer = await with_rows(store, larger, ("dog", "pets", 3, 0.5))

        assert await read(store, job_id, larger) == [("cat", "pets", 3, None)]
        assert await read(store, newer, larger) == [("dog", "pets", 3, 0.5)]
        assert await store.declare(TABLES) == []  # older code next to newer code
        older = await with_rows(store, WORDS, ("eel", "pets", 3))
        assert await read(store, older, larger) == [("eel", "pets", 3, None)]

    async def test_a_run_of_older_code_leaves_nothing_of_a_run_of_newer(self, store: Store) -> None:
        larger = msgspec.structs.replace(WORDS, columns=(*WORDS.columns, Column("score", ColumnKind.NUMBER)))
        await store.declare([larger])
        first = await running(store)
        await put(store, first, larger, ("cat", "pets", 3, 0.5))
        await settle(store, first.gives_back())
        second = await claim_again(store, first)
        await put(store, second, WORDS, ("cat", "pets", 3))

        await settle(store, second.completes())

        assert await read(store, first.job_id, larger) == [("cat", "pets", 3, None)]

    @pytest.mark.parametrize(
        "changed",
        [
            msgspec.structs.replace(POINTS, key="x"),
            msgspec.structs.replace(POINTS, columns=(POINTS.columns[0], Column("x", ColumnKind.TEXT))),
            msgspec.structs.replace(POINTS, name="Points"),
            msgspec.structs.replace(POINTS, columns=(*POINTS.columns, Column("X", POINTS.columns[1].kind))),
        ],
        ids=["another key", "another kind", "a name that differs in case alone", "a column that does"],
    )
    async def test_what_would_change_a_stored_table_is_refused(self, store: Store, changed: ResultTable) -> None:
        await store.declare(TABLES)

        with pytest.raises(SchemaMismatch, match="another name"):
            await store.declare([changed])

    async def test_what_was_never_declared_is_neither_written_nor_read(self, store: Store) -> None:
        strange = msgspec.structs.replace(POINTS, name="never_declared")
        claim = await running(store)

        with pytest.raises(UnknownTable, match="never_declared"):
            await store.put_rows([batch(claim, strange, (1, 0.5))], NOW)
        with pytest.raises(UnknownTable, match="never_declared"):
            await store.rows(strange, RowQuery(job_id=claim.job_id))


class TestPutRows:
    async def test_nobody_sees_rows_before_the_completion(self, store: Store, second_store: Store) -> None:
        await store.declare(TABLES)
        claim = await running(store)
        await put(store, claim, WORDS, *words("cat", "dog"))
        assert await read(second_store, claim.job_id) == []

        await settle(store, claim.completes())

        assert await read(second_store, claim.job_id) == words("cat", "dog")
        assert (await record(store, claim.job_id)).result_tables == ("words",)

    async def test_rows_of_a_run_that_failed_are_never_seen(self, store: Store) -> None:
        await store.declare(TABLES)
        first = await running(store)
        await put(store, first, WORDS, *words("cat", "dog"))
        await settle(store, first.gives_back())
        second = await claim_again(store, first)
        await put(store, second, WORDS, ("dog", "pets", 99))

        await settle(store, second.completes())

        assert await read(store, first.job_id) == [("dog", "pets", 99)]

    async def test_a_part_that_is_put_again_is_there_once(self, store: Store) -> None:
        await store.declare(TABLES)
        claim = await running(store)
        for count in (1, 2):
            await put(store, claim, WORDS, ("cat", "pets", count), part=0)
            await put(store, claim, WORDS, ("dog", "pets", count), part=1)

        await settle(store, claim.completes())

        assert await read(store, claim.job_id) == [("cat", "pets", 2), ("dog", "pets", 2)]

    async def test_a_key_twice_in_one_run_is_refused_and_the_first_stays(self, store: Store) -> None:
        await store.declare(TABLES)
        claim = await running(store)
        await put(store, claim, WORDS, *words("cat", "dog"), part=0)

        with pytest.raises(DuplicateRow, match=f"dog.*{claim.job_id}") as caught:
            await store.put_rows([batch(claim, WORDS, ("dog", "pets", 7), part=1)], NOW)

        assert caught.value.job_id == claim.job_id
        await settle(store, claim.completes())
        assert await read(store, claim.job_id) == words("cat", "dog")

    async def test_a_run_that_lost_its_claim_puts_nothing(self, store: Store) -> None:
        await store.declare(TABLES)
        stale = await running(store)
        await settle(store, stale.gives_back())
        late = batch(stale, WORDS, *words("late"))
        assert await store.put_rows([late], NOW) == [Verdict.STALE]
        holder = await claim_again(store, stale)
        await put(store, holder, WORDS, *words("right"))

        answers = await store.put_rows([late, batch(holder, POINTS, (1, 1.0))], NOW)

        assert answers == [Verdict.STALE, Verdict.APPLIED]
        await settle(store, holder.completes())
        assert await store.put_rows([batch(holder, WORDS, *words("later"))], NOW) == [Verdict.STALE]
        assert await read(store, holder.job_id) == words("right")
        assert await read(store, holder.job_id, POINTS) == [(1, 1.0)]

    async def test_a_job_that_is_not_there_has_no_rows(self, store: Store) -> None:
        await store.declare(TABLES)
        claim = await running(store)
        nobody = msgspec.structs.replace(claim.job, job_id="0190c0de-0000-7000-8000-00000000dead")

        answer = await store.put_rows([batch(Claim(nobody, claim.token), WORDS, *words("cat"))], NOW)

        assert answer == [Verdict.GONE]

    async def test_many_jobs_and_tables_in_one_call(self, store: Store) -> None:
        await store.declare(TABLES)
        one, other = await running(store), await running(store)
        many = [batch(one, WORDS, *words("cat")), batch(other, WORDS, *words("dog")), batch(one, POINTS, (5, 0.25))]

        assert await store.put_rows(many, NOW) == [Verdict.APPLIED] * 3

        await settle(store, one.completes(), other.completes())
        assert [await read(store, each.job_id) for each in (one, other)] == [words("cat"), words("dog")]
        assert sorted((await record(store, one.job_id)).result_tables) == ["points", "words"]

    async def test_no_rows_at_all_are_a_result_too(self, store: Store) -> None:
        await store.declare(TABLES)
        claim = await running(store)
        await put(store, claim, WORDS)

        await settle(store, claim.completes())

        assert await read(store, claim.job_id) == []
        assert (await record(store, claim.job_id)).result_tables == ("words",)

    async def test_a_part_of_the_largest_size_is_kept(self, store: Store) -> None:
        await store.declare(TABLES)
        rows = [(n, n / 3) for n in range(500)]

        job_id = await with_rows(store, POINTS, *rows)

        assert await read(store, job_id, POINTS) == rows


class TestRowsOfReused:
    async def test_a_job_that_reuses_a_result_answers_with_its_rows(self, store: Store) -> None:
        await store.declare(TABLES)
        donor = await with_rows(store, WORDS, *words("cat", "dog"), job_type="embed", content_hash="h")

        chain = [await reused(store) for _ in range(2)]

        for job_id in chain:
            assert await read(store, job_id, limit=1) == words("cat", "dog")
            assert (await record(store, job_id)).result_tables == ("words",)
        page = await store.rows(WORDS, RowQuery(job_id=chain[1]))
        assert {row.job_id for row in page.items} == {donor}

    async def test_one_who_joined_answers_with_the_rows_of_its_leader(self, store: Store) -> None:
        await store.declare(TABLES)
        leader = await running(store, job_type="embed", content_hash="h")
        joined = await reused(store)
        await put(store, leader, WORDS, *words("cat"))
        assert await read(store, joined) == []

        await settle(store, leader.completes())

        assert await read(store, joined) == words("cat")

    async def test_rows_of_a_donor_that_ran_again_are_withdrawn(self, store: Store) -> None:
        await store.declare(TABLES)
        donor = await with_rows(store, WORDS, *words("cat", "dog"), job_type="embed", content_hash="h")
        job_id = await reused(store)
        await retry_by_hand(store, donor)
        again = await claim_one_of(store, donor, "embed")
        await put(store, again, WORDS, *words("dog"))

        with pytest.raises(RowsWithdrawn, match=donor):
            await store.rows(WORDS, RowQuery(job_id=job_id))

    async def test_they_stay_withdrawn_when_the_donor_that_ran_again_is_archived(self, store: Store) -> None:
        await store.declare(TABLES)
        donor = await with_rows(store, WORDS, *words("cat", "dog"), job_type="embed", content_hash="h")
        root = await submit(store, job_type="top")  # whose tree is kept
        [answer] = await store.insert(
            [new_job(job_type="embed", content_hash="h", reuse_since=0, parent_job_id=root)], NOW
        )
        again = await run_again(store, donor)
        await put(store, again, WORDS, *words("dog"))
        await settle(store, again.completes())

        assert await retire(store, a_policy(0, 0, 0, job_types=("embed",)), now=NOW + SECOND) == 1

        with pytest.raises(RowsWithdrawn, match=donor):
            await store.rows(WORDS, RowQuery(job_id=answer.job_id))

    async def test_a_result_whose_rows_are_withdrawn_is_not_reused(self, store: Store) -> None:
        await store.declare(TABLES)
        donor = await with_rows(
            store, WORDS, *words("cat"), job_type="embed", content_hash="h", max_attempts=1, subject="town"
        )
        [first] = await store.insert(
            [new_job(job_type="embed", content_hash="h", reuse_since=0, subject="town")], NOW + SECOND
        )
        older = await with_rows(store, WORDS, *words("owl"), job_type="embed", subject="town")
        await settle(store, (await run_again(store, donor)).fails())

        [answer] = await store.insert(
            [new_job(job_type="embed", content_hash="h", reuse_since=0, subject="town")], NOW + SECOND
        )

        assert (await record(store, first.job_id)).reused_from == donor
        assert (answer.status, answer.reused_from) == (Status.PENDING, None)
        assert await store.latest("town", "embed") == older


class TestRowsOfArchived:
    async def test_rows_go_after_their_job_a_few_at_a_time(self, store: Store) -> None:
        await store.declare(TABLES)
        claim = await running(store, job_type="old")
        await put(store, claim, WORDS, *words("cat", "dog", "owl", topic="gone"))
        await put(store, claim, POINTS, (1, 0.5), (2, 0.5))
        await settle(store, claim.completes())
        kept = await with_rows(store, WORDS, *words("cat"))
        assert await retire(store, a_policy(0, 0, 0, job_types=("old",)), now=NOW + SECOND) == 1

        assert await store.with_files(10) == [claim.job_id]
        dropped = [await store.drop_rows(claim.job_id, 2) for _ in range(4)]

        assert sum(dropped) == 5
        assert max(dropped) <= 2
        assert dropped[-1] == 0
        await store.cleaned([claim.job_id])
        assert await store.with_files(10) == []
        assert await read_by_subject(store, "gone") == []
        assert await read(store, kept) == words("cat")

    async def test_no_column_of_the_table_decides_whose_rows_go(self, store: Store) -> None:
        table = ResultTable(
            "rings", "number", (Column("number", ColumnKind.INTEGER), Column("rowid", ColumnKind.INTEGER))
        )
        await store.declare([table])
        rows = [(n, n) for n in range(5)]
        old = await with_rows(store, table, *rows, job_type="old")
        kept = await with_rows(store, table, *rows)
        assert await retire(store, a_policy(0, 0, 0, job_types=("old",)), now=NOW + SECOND) == 1

        assert [await store.drop_rows(old, limit) for limit in (2, 100, 100)] == [2, 3, 0]

        assert await read(store, kept, table) == rows

    async def test_rows_of_an_attempt_that_was_lost_go_too(self, store: Store) -> None:
        await store.declare(TABLES)
        claim = await running(store, job_type="old", max_attempts=1)
        await put(store, claim, WORDS, *words("cat"))
        await settle(store, claim.fails())
        assert await retire(store, a_policy(0, 0, 0, job_types=("old",)), now=NOW + SECOND) == 1

        assert await store.drop_rows(claim.job_id, 100) == 1

    async def test_rows_stay_as_long_as_a_job_answers_with_them(self, store: Store) -> None:
        await store.declare(TABLES)
        donor = await with_rows(store, WORDS, *words("cat"), job_type="embed", content_hash="h")
        job_id = await reused(store, now=NOW + HOUR)
        assert await retire(store, a_policy(HOUR // 2, 0, 0, job_types=("embed",)), now=NOW + HOUR) == 1
        assert await store.with_files(10) == []
        assert await read(store, job_id) == words("cat")

        await retire(store, a_policy(0, 0, 0, job_types=("embed",)), now=NOW + 3 * HOUR)

        assert donor in await store.with_files(10)
        assert await store.drop_rows(donor, 100) == 1
        await remove_files(store)


async def reused(store: Store, now: int = NOW) -> str:
    [answer] = await store.insert([new_job(job_type="embed", content_hash="h", reuse_since=0)], now)
    return answer.job_id


async def run_again(store: Store, job_id: str) -> Claim:
    await retry_by_hand(store, job_id)
    return await claim_one_of(store, job_id, "embed")


async def claim_one_of(store: Store, job_id: str, job_type: str) -> Claim:
    return await claim_one(store, job_id, slots={job_type: 1})


class TestReadRows:
    async def test_pages_follow_the_key_in_its_own_order(self, store: Store) -> None:
        await store.declare(TABLES)
        numbers = [10, 9, -1, 100, 2**62, -(2**62), 0]
        letters = ["b", "a", "Z", "ä", "aa", "🦉", "1", "10", "9"]
        points = await with_rows(store, POINTS, *((n, 0.0) for n in numbers))
        texts = await with_rows(store, WORDS, *words(*letters))

        for limit in (1, 3, 500):
            assert [row[0] for row in await read(store, points, POINTS, limit=limit)] == sorted(numbers)
            assert [row[0] for row in await read(store, texts, limit=limit)] == sorted(letters, key=str.encode)

    async def test_a_row_has_its_job_and_its_place_in_the_tree(self, store: Store) -> None:
        await store.declare(TABLES)
        claim = await running(store)
        await store.put_rows([batch(claim, WORDS, *words("cat"), origin=PLACE)], NOW)
        await settle(store, claim.completes())

        [row] = (await store.rows(WORDS, RowQuery(job_id=claim.job_id))).items

        assert (row.job_id, row.origin) == (claim.job_id, PLACE)
        assert abs(row.created_at - NOW) < HOUR  # an engine may use its server's clock

    async def test_one_row_by_its_key(self, store: Store) -> None:
        await store.declare(TABLES)
        other = await with_rows(store, WORDS, *words("dog", "owl"))
        job_id = await with_rows(store, WORDS, *words("cat", "dog"))

        assert await read(store, job_id, key="dog") == words("dog")
        assert await read(store, job_id, key="owl") == []
        assert await read(store, other, key="owl") == words("owl")

    async def test_the_rows_of_a_subject(self, store: Store) -> None:
        await store.declare(TABLES)
        job_id = await with_rows(store, WORDS, *words("cat", "elk"), *words("oak"), *words("fir", topic="trees"))
        await with_rows(store, WORDS, *words("ash", topic="trees"))

        assert await read(store, job_id, subject="trees") == words("fir", topic="trees")
        assert await read(store, job_id, subject="pets", limit=1) == words("cat", "elk", "oak")
        assert await read(store, job_id, subject="cars") == []

    async def test_what_is_not_completed_has_no_rows_to_see(self, store: Store) -> None:
        await store.declare(TABLES)
        cancelled = await running(store)
        await put(store, cancelled, WORDS, *words("cat"))
        await settle(store, cancel(await record(store, cancelled.job_id), by=None, reason=None))

        for job_id in (cancelled.job_id, await submit(store), "0190c0de-0000-7000-8000-00000000dead"):
            page = await store.rows(WORDS, RowQuery(job_id=job_id))
            assert (page.items, page.attempt) == ((), 0)

    async def test_rows_are_withdrawn_while_their_job_runs_again(self, store: Store) -> None:
        await store.declare(TABLES)
        job_id = await with_rows(store, WORDS, *words("cat", "dog"), job_type="again")
        first = await store.rows(WORDS, RowQuery(job_id=job_id, limit=1))
        following = RowQuery(job_id=job_id, limit=1, after=first.next, attempt=first.attempt)

        await retry_by_hand(store, job_id)

        assert await read(store, job_id) == []
        with pytest.raises(RowsWithdrawn, match=job_id):
            await store.rows(WORDS, following)
        again = await claim_one_of(store, job_id, "again")
        await put(store, again, WORDS, *words("owl"))
        await settle(store, again.completes())
        assert await read(store, job_id) == words("owl")
        with pytest.raises(RowsWithdrawn, match=job_id):
            await store.rows(WORDS, following)

    async def test_what_goes_in_comes_out(self, store: Store) -> None:
        await store.declare(TABLES)
        rows: list[Row] = [
            (
                "00000000-0000-4000-8000-000000000001",
                2**63 - 1,
                0.1 + 0.2,
                'a "text" \\ with\nlines, ä and 🦉',
                True,
                bytes(range(256)),
                NOW,
                "12345678901234567890.12345678",
                '{"b": [1, -0.0, null], "a": "\\u0000"}',
            ),
            ("00000000-0000-4000-8000-000000000002", -(2**63), -1.5e300, "", False, b"", 0, "-0.001", "null"),
            ("00000000-0000-4000-8000-000000000003", 0, 5e-324, "null", None, None, -1, "0", "[]"),
            ("00000000-0000-4000-8000-000000000004", *[None] * 8),
        ]

        job_id = await with_rows(store, KINDS, *rows)

        found = await read(store, job_id, KINDS)
        assert [as_values(row) for row in found] == [as_values(row) for row in rows]
        assert [[type(value) for value in row] for row in found] == [[type(value) for value in row] for row in rows]

    @pytest.mark.parametrize("number", [0.0, -2.5, 1 / 3, 1e-7, 1.7976931348623157e308, math.pi * 1e125])
    async def test_numbers_keep_every_digit(self, store: Store, number: float) -> None:
        await store.declare(TABLES)
        job_id = await with_rows(store, POINTS, (1, number))

        assert await read(store, job_id, POINTS) == [(1, number)]


class TestVectors:
    async def test_vectors_stay_vectors(self, store: Store) -> None:
        await store.declare([VECTORS])
        rows: list[Row] = [(1, vector(0.5, -1, 3e38)), (2, vector(0, 1e-30, -0.1)), (3, None)]

        job_id = await with_rows(store, VECTORS, *rows)

        assert await read(store, job_id, VECTORS) == rows


class TestRowsBySubject:
    async def test_the_rows_of_all_completed_jobs_in_the_order_in_which_they_came(self, store: Store) -> None:
        await store.declare(TABLES)
        first, second, third = [await running(store) for _ in range(3)]
        await put(store, first, WORDS, *words("cat", "dog", topic="birds"), now=NOW)
        await put(store, second, WORDS, *words("ant", topic="birds"), *words("bee", topic="bees"), now=NOW + SECOND)
        await put(store, third, WORDS, *words("gnu", topic="birds"), now=NOW + 2 * SECOND)
        await settle(store, second.completes(), first.completes())

        for limit in (1, 100):
            assert await read_by_subject(store, "birds", limit) == [
                (first.job_id, "cat"),
                (first.job_id, "dog"),
                (second.job_id, "ant"),
            ]
        assert await read_by_subject(store, "nobody") == []

    async def test_rows_of_attempts_that_came_to_nothing_are_not_among_them(self, store: Store) -> None:
        await store.declare(TABLES)
        first = await running(store)
        await put(store, first, WORDS, *words("cat", "dog", topic="fish"))
        await settle(store, first.gives_back())
        second = await claim_again(store, first)
        await put(store, second, WORDS, *words("dog", topic="fish"))
        assert await read_by_subject(store, "fish") == []

        await settle(store, second.completes())

        assert await read_by_subject(store, "fish") == [(first.job_id, "dog")]


class TestLatest:
    async def test_the_job_that_completed_last(self, store: Store) -> None:
        await store.declare(TABLES)
        kind: dict[str, Any] = {"job_type": "report", "subject": "town"}
        early, late, running_on = [await running(store, **kind) for _ in range(3)]
        for claim in (early, late, running_on):
            await put(store, claim, WORDS, *words("cat"))
        await settle(store, late.completes(now=NOW + SECOND), now=NOW + SECOND)
        await settle(store, early.completes(now=NOW + 2 * SECOND), now=NOW + 2 * SECOND)
        await with_rows(store, WORDS, job_type="report", subject="village")
        await with_rows(store, WORDS, job_type="other", subject="town")
        await completed(store, **kind)  # has written nothing, and so has no rows

        assert await store.latest("town", "report") == early.job_id
        await retry_by_hand(store, early.job_id)
        assert await store.latest("town", "report") == late.job_id
        assert await store.latest("nowhere", "report") is None
        assert await store.latest("town", "none") is None


def as_values(row: Sequence[Value]) -> tuple[Any, ...]:
    """Return a row of KINDS with its decimal and its JSON as values: engines keep those, not trailing zeros or the
    order of names."""
    *others, decimal, nested = row
    return (
        *others,
        None if decimal is None else Decimal(str(decimal)),
        None if nested is None else json.loads(str(nested)),
    )
