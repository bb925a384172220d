"""Settings that all tests share."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.servers.dynamodb import DynamoDB
from tests.servers.postgres import Postgres, installed_binaries

# The gate draws the same examples every time, and a busy machine fails nothing. Campaigns draw anew.
settings.register_profile("gate", derandomize=True, deadline=None, database=None)
settings.load_profile("gate")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests of this process."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_15() -> Iterator[Postgres]:
    """An older one, where the machine has it."""
    binaries = installed_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL 15 on this machine")
    with Postgres(binaries) as server:
        yield server


@pytest.fixture(scope="session")
def dynamodb() -> Iterator[DynamoDB]:
    """One server for all tests of this process; each takes tables of its own."""
    with DynamoDB() as server:
        yield server
