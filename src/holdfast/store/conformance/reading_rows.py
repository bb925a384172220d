"""Rows of result tables are read of the committed attempt alone: by job, by key, by subject, and the latest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from holdfast.errors import RowsWithdrawn
from holdfast.lifecycle import cancel
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    SECOND,
    claim_again,
    completed,
    record,
    retry_by_hand,
    running,
    settle,
    submit,
)
from holdfast.store.conformance.tabling import (
    KINDS,
    PLACE,
    POINTS,
    TABLES,
    VECTORS,
    WORDS,
    Row,
    batch,
    claim_one_of,
    put,
    read,
    read_by_subject,
    vector,
    with_rows,
    words,
)
from holdfast.store.port import Store
from holdfast.store.tables import RowQuery, Value


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
        assert abs(row.created_at - NOW) < HOUR  # an engine may take its server's clock

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
        assert [_with_decimal(row) for row in found] == [_with_decimal(row) for row in rows]
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
        await completed(store, **kind)  # has put nothing, and so has no rows to give

        assert await store.latest("town", "report") == early.job_id
        await retry_by_hand(store, early.job_id)
        assert await store.latest("town", "report") == late.job_id
        assert await store.latest("nowhere", "report") is None
        assert await store.latest("town", "none") is None


def _with_decimal(row: Sequence[Value]) -> tuple[Any, ...]:
    """Engines keep the number of a decimal, not its zeros."""
    return tuple(Decimal(str(v)) if i == 7 and v is not None else v for i, v in enumerate(row))
