"""Payload versions: a worker is not given what is newer than it reads, and that hides nothing from it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.lifecycle import Status
from holdfast.store.conformance.factories import (
    HOUR,
    NOW,
    claim_ids,
    claim_one,
    record,
    request,
    settle,
    submit,
    submit_many,
)
from holdfast.store.port import Store
from holdfast.store.types import Rate

KEYS: list[dict[str, Any]] = [
    {},
    {"fairness_key": "tenant"},
    {"concurrency_key": "gpu"},
    {"rate_key": "api", "rate": Rate(1, HOUR)},
]


class TestPayloadVersions:
    @pytest.mark.parametrize("changes", KEYS, ids=str)
    async def test_a_payload_that_is_newer_is_left_to_others(self, store: Store, changes: dict[str, Any]) -> None:
        job_id = await submit(store, payload_version=3, **changes)
        before = await record(store, job_id)

        assert await claim_ids(store, versions={"work": 2}) == []
        assert await record(store, job_id) == before

        assert await claim_ids(store, versions={"work": 3}) == [job_id]

    @pytest.mark.parametrize("version", [1, 2])
    async def test_an_older_or_equal_one_is_taken_and_says_its_version(self, store: Store, version: int) -> None:
        job_id = await submit(store, payload_version=version)

        claim = await claim_one(store, job_id, versions={"work": 2})

        assert claim.job.payload_version == version

    async def test_of_a_type_that_is_not_named_any_version_is_taken(self, store: Store) -> None:
        ids = [await submit(store, payload_version=version) for version in (1, 9)]

        assert await claim_ids(store, versions={"other": 1}) == ids

    async def test_each_type_has_its_own(self, store: Store) -> None:
        await submit(store, job_type="a", payload_version=2)
        taken = await submit(store, job_type="b", payload_version=2)

        assert await claim_ids(store, slots={"a": 9, "b": 9}, versions={"a": 1, "b": 2}) == [taken]

    @pytest.mark.parametrize("changes", KEYS, ids=str)
    async def test_one_that_is_too_new_does_not_hide_those_behind_it(
        self, store: Store, changes: dict[str, Any]
    ) -> None:
        await submit_many(store, 3, payload_version=2, priority=90, **changes)
        readable = await submit(store, **changes)

        assert [readable] in [await claim_ids(store, limit=1, versions={"work": 1}) for _ in range(4)]

    async def test_one_that_is_given_back_is_left_to_those_who_read_it(self, store: Store) -> None:
        job_id = await submit(store, payload_version=2)
        claim = await claim_one(store, job_id)
        await settle(store, claim.gives_back())

        assert await claim_ids(store, versions={"work": 1}) == []
        assert (await record(store, job_id)).status is Status.PENDING
        [again] = await store.claim(request(versions={"work": 2}), NOW)
        assert (again.job_id, again.attempt) == (job_id, 2)
