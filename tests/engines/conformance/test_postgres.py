"""The PostgreSQL engine keeps the port."""

import pytest

from backstay.testing.conformance import *  # noqa: F403
from tests.engines.conformance.postgres_fixtures import (  # noqa: F401
    ONE_LOOP,
    elsewhere,
    emptying,
    nowhere,
    second_store,
    spares,
    store,
    url,
)
from tests.support.servers.postgres import Postgres

pytestmark = ONE_LOOP


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Postgres:
    return postgres
