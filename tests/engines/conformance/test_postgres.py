"""The PostgreSQL engine keeps the port."""

import pytest

from backstay.testing.conformance import *  # noqa: F403
from tests.engines.conformance.postgres_fixtures import (  # noqa: F401
    elsewhere,
    emptying,
    nowhere,
    second_store,
    store,
    url,
)
from tests.support.servers.postgres import Postgres


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Postgres:
    return postgres
