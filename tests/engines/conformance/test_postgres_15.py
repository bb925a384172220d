"""The PostgreSQL engine keeps the port on an older server too, where the machine has one.

The whole suite takes minutes there and has nothing to do with versions for the most part: each statement is run at
least once by these, and by the model. BACKSTAY_POSTGRES_15=all runs everything.
"""

import os

import pytest

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

if os.environ.get("BACKSTAY_POSTGRES_15") == "all":
    from backstay.testing.conformance import *  # noqa: F403

    del TestVectors  # noqa: F821  # pgvector is no part of that server
else:
    pass


@pytest.fixture(scope="module")
def server(postgres_15: Postgres) -> Postgres:
    return postgres_15
