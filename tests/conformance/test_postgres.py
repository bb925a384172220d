"""The PostgreSQL engine keeps the port."""

import pytest

from holdfast.store.conformance import *  # noqa: F403
from tests.conformance.on_postgres import elsewhere, second_store, store, url  # noqa: F401
from tests.servers.postgres import Postgres


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Postgres:
    return postgres
