"""An import that is killed in the middle is complete after another run: the campaign, in short form."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.campaigns.imports import SOURCES, Servers, one
from tests.support.servers.dynamodb import DynamoDB
from tests.support.servers.postgres import Postgres
from tests.support.servers.redis import Redis

JOBS, KILLS = 800, 1  # two pages


class Shared(Servers):
    """The servers of all tests."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(ExitStack(), folder)
        self._request = request

    @property
    def postgres(self) -> Postgres:
        found: Postgres = self._request.getfixturevalue("postgres")
        return found

    @property
    def dynamodb(self) -> DynamoDB:
        found: DynamoDB = self._request.getfixturevalue("dynamodb")
        return found

    @property
    def redis(self) -> Redis:
        found: Redis = self._request.getfixturevalue("redis")
        return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
async def test_counts_and_hashes_are_equal_after_a_kill(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    figures = await one(Shared(tmp_path, request), tmp_path, name, SOURCES[name][1], JOBS, KILLS, random.Random(name))

    assert (figures["jobs"], len(figures["kills"])) == (JOBS, KILLS)
