"""The suite that proves an engine keeps the port. Engine-independent: it sees nothing but the verbs.

To run it against an engine, give a test module two fixtures and everything in here:

    from holdfast.store.conformance import *  # noqa: F403

    @pytest_asyncio.fixture
    async def store(tmp_path): ...  # an opened, empty store; closed afterwards

    @pytest_asyncio.fixture
    async def second_store(store): ...  # another store, opened on the same place

It needs pytest-asyncio with asyncio_mode = "auto". Time is an argument of every verb, so nothing sleeps.
Claims that must have run out have a lease of zero, so an engine may take leases by its server's clock.
"""

from __future__ import annotations

import pytest

_MODULES = (
    "factories",
    "inserting",
    "depending",
    "reusing",
    "claiming",
    "moving",
    "settling",
    "holding",
    "upkeep",
    "reading",
    "listening",
    "racing",
)
# Before they are imported: a failed assert in here should say as much as one in the engine's own tests.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES))

from holdfast.store.conformance.claiming import TestClaim, TestConcurrencyKeys  # noqa: E402
from holdfast.store.conformance.depending import TestCascades, TestDependencies, TestReleaseOutbox  # noqa: E402
from holdfast.store.conformance.holding import TestExtend, TestNote, TestSteps  # noqa: E402
from holdfast.store.conformance.inserting import TestDedup, TestInsert, TestOwnId  # noqa: E402
from holdfast.store.conformance.listening import TestListen  # noqa: E402
from holdfast.store.conformance.moving import TestEdges, TestGuards  # noqa: E402
from holdfast.store.conformance.racing import TestRaces  # noqa: E402
from holdfast.store.conformance.reading import TestCounts, TestDead, TestFind, TestGet  # noqa: E402
from holdfast.store.conformance.reusing import TestJoin, TestReuse  # noqa: E402
from holdfast.store.conformance.settling import TestErrors, TestHistory, TestSettle  # noqa: E402
from holdfast.store.conformance.upkeep import TestExpired, TestOpen, TestPromote, TestTypes, TestWorkers  # noqa: E402

__all__ = [
    "TestCascades",
    "TestClaim",
    "TestConcurrencyKeys",
    "TestCounts",
    "TestDead",
    "TestDedup",
    "TestDependencies",
    "TestEdges",
    "TestErrors",
    "TestExpired",
    "TestExtend",
    "TestFind",
    "TestGet",
    "TestGuards",
    "TestHistory",
    "TestInsert",
    "TestJoin",
    "TestListen",
    "TestNote",
    "TestOpen",
    "TestOwnId",
    "TestPromote",
    "TestRaces",
    "TestReleaseOutbox",
    "TestReuse",
    "TestSettle",
    "TestSteps",
    "TestTypes",
    "TestWorkers",
]
