"""Settings that all tests share."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.servers.dynamodb import DynamoDB, wait_for_replies
from tests.support.servers.postgres import Postgres, installed_binaries

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


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores wait for DynamoDB as long as it takes: a server that shares a busy machine is slow, not gone."""
    wait_for_replies(monkeypatch)


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """Undo the logging of `worker` and `serve` run in this process: their stderr is closed after the test."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in handlers:
            root.removeHandler(handler)
