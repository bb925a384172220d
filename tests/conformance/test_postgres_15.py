"""The PostgreSQL engine keeps the port on an older server too, where the machine has one.

The whole suite takes minutes there and has nothing to do with versions for the most part: each statement is run at
least once by these, and by the model. HOLDFAST_POSTGRES_15=all runs everything.
"""

import os

import pytest

from tests.conformance.on_postgres import elsewhere, second_store, store, url  # noqa: F401
from tests.servers.postgres import Postgres

if os.environ.get("HOLDFAST_POSTGRES_15") == "all":
    from holdfast.store.conformance import *  # noqa: F403

    del TestVectors  # noqa: F821  # pgvector is no part of that server
else:
    from holdfast.store.conformance import (  # noqa: F401
        TestClaim,
        TestConcurrencyKeys,
        TestDead,
        TestDependencies,
        TestDepths,
        TestDiagnose,
        TestExpired,
        TestFilesOfArchived,
        TestFire,
        TestInsert,
        TestOpen,
        TestPayloadVersions,
        TestPutRows,
        TestRateDue,
        TestReadRows,
        TestRetire,
        TestRowsBySubject,
        TestSettle,
        TestTurns,
        TestTypes,
    )


@pytest.fixture(scope="module")
def server(postgres_15: Postgres) -> Postgres:
    return postgres_15
