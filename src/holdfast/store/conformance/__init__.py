"""The suite that proves an engine keeps the port. Engine-independent: it sees nothing but the verbs.

To run it against an engine, give a test module three fixtures and everything in here:

    from holdfast.store.conformance import *  # noqa: F403

    @pytest_asyncio.fixture
    async def store(tmp_path): ...  # an opened, empty store; closed afterwards

    @pytest_asyncio.fixture
    async def second_store(store): ...  # another store, opened on the same place

    @pytest_asyncio.fixture
    async def elsewhere(): ...  # an opened, empty store at another place

`many` says how many jobs are more than one transaction takes, where a test needs so many; see there.

It needs pytest-asyncio with asyncio_mode = "auto". Time is an argument of every verb, so nothing sleeps.
Claims that must have run out have a lease of zero, so an engine may take leases by its server's clock.
"""

from __future__ import annotations

import pytest

_MODULES = (
    "factories",
    "inserting",
    "depending",
    "ruling",
    "brood",
    "awaiting",
    "staging",
    "retrying",
    "reusing",
    "claiming",
    "turns",
    "rating",
    "versioning",
    "lining_up",
    "moving",
    "settling",
    "editing",
    "holding",
    "upkeep",
    "queueing",
    "scheduling",
    "retiring",
    "archived",
    "counting",
    "reading",
    "listening",
    "racing",
    "tabling",
    "reading_rows",
    "freezing",
    "exporting",
    "access",
    "totalling",
)
# Before they are imported: a failed assert in here should say as much as one in the engine's own tests.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES))

from holdfast.store.conformance.access import TestAuditTrail, TestExportOfAccess, TestKeys  # noqa: E402
from holdfast.store.conformance.archived import (  # noqa: E402
    TestArchive,
    TestDedupOfArchived,
    TestDependingOnArchived,
    TestEndOfTheArchive,
    TestFilesOfArchived,
)
from holdfast.store.conformance.awaiting import TestChildrenRaces, TestWaitingParents  # noqa: E402
from holdfast.store.conformance.brood import TestChildren, TestChildrenAtOnce  # noqa: E402
from holdfast.store.conformance.claiming import TestClaim, TestConcurrencyKeys  # noqa: E402
from holdfast.store.conformance.counting import TestCounters, TestDepths, TestReuseCounters  # noqa: E402
from holdfast.store.conformance.depending import TestCascades, TestDependencies, TestReleaseOutbox  # noqa: E402
from holdfast.store.conformance.editing import TestReprioritise, TestReschedule  # noqa: E402
from holdfast.store.conformance.exporting import (  # noqa: E402
    TestExport,
    TestExportOfRows,
    TestExportOfTrees,
)
from holdfast.store.conformance.freezing import TestFreeze  # noqa: E402
from holdfast.store.conformance.holding import TestExtend, TestNote, TestSteps  # noqa: E402
from holdfast.store.conformance.inserting import TestDedup, TestInsert, TestOwnId  # noqa: E402
from holdfast.store.conformance.lining_up import TestAhead  # noqa: E402
from holdfast.store.conformance.listening import TestListen  # noqa: E402
from holdfast.store.conformance.moving import TestEdges, TestGuards  # noqa: E402
from holdfast.store.conformance.queueing import TestMaxPending, TestPause, TestQueues  # noqa: E402
from holdfast.store.conformance.racing import TestRaces  # noqa: E402
from holdfast.store.conformance.rating import TestRateDue, TestRates  # noqa: E402
from holdfast.store.conformance.reading import TestCounts, TestDead, TestFind, TestGet, TestStatuses  # noqa: E402
from holdfast.store.conformance.reading_rows import (  # noqa: E402
    TestLatest,
    TestReadRows,
    TestRowsBySubject,
    TestVectors,
)
from holdfast.store.conformance.retiring import TestPassesOfRetention, TestRetire, TestTrees  # noqa: E402
from holdfast.store.conformance.retrying import TestWaitingAgain  # noqa: E402
from holdfast.store.conformance.reusing import TestJoin, TestReuse  # noqa: E402
from holdfast.store.conformance.ruling import TestRulesAtSubmit, TestRulesOfMany, TestTriggerRules  # noqa: E402
from holdfast.store.conformance.scheduling import TestFire, TestSchedules  # noqa: E402
from holdfast.store.conformance.settling import TestErrors, TestHistory, TestSettle  # noqa: E402
from holdfast.store.conformance.staging import TestChildrenWithTheCompletion, TestStagedChildren  # noqa: E402
from holdfast.store.conformance.tabling import (  # noqa: E402
    TestDeclare,
    TestPutRows,
    TestRowsOfArchived,
    TestRowsOfReused,
)
from holdfast.store.conformance.totalling import TestBuckets, TestTotals  # noqa: E402
from holdfast.store.conformance.turns import TestTurns  # noqa: E402
from holdfast.store.conformance.upkeep import (  # noqa: E402
    TestDiagnose,
    TestExpired,
    TestOpen,
    TestPromote,
    TestTypes,
    TestWorkers,
)
from holdfast.store.conformance.versioning import TestPayloadVersions  # noqa: E402


@pytest.fixture
def many() -> int:
    """More jobs than one transaction takes. An engine whose tests are slow may have a fixture with fewer of its own."""
    return 1_100


__all__ = [
    "TestAhead",
    "TestArchive",
    "TestAuditTrail",
    "TestBuckets",
    "TestCascades",
    "TestChildren",
    "TestChildrenAtOnce",
    "TestChildrenRaces",
    "TestChildrenWithTheCompletion",
    "TestClaim",
    "TestConcurrencyKeys",
    "TestCounters",
    "TestCounts",
    "TestDead",
    "TestDeclare",
    "TestDedup",
    "TestDedupOfArchived",
    "TestDependencies",
    "TestDependingOnArchived",
    "TestDepths",
    "TestDiagnose",
    "TestEdges",
    "TestEndOfTheArchive",
    "TestErrors",
    "TestExpired",
    "TestExport",
    "TestExportOfAccess",
    "TestExportOfRows",
    "TestExportOfTrees",
    "TestExtend",
    "TestFilesOfArchived",
    "TestFind",
    "TestFire",
    "TestFreeze",
    "TestGet",
    "TestGuards",
    "TestHistory",
    "TestInsert",
    "TestJoin",
    "TestKeys",
    "TestLatest",
    "TestListen",
    "TestMaxPending",
    "TestNote",
    "TestOpen",
    "TestOwnId",
    "TestPassesOfRetention",
    "TestPause",
    "TestPayloadVersions",
    "TestPromote",
    "TestPutRows",
    "TestQueues",
    "TestRaces",
    "TestRateDue",
    "TestRates",
    "TestReadRows",
    "TestReleaseOutbox",
    "TestReprioritise",
    "TestReschedule",
    "TestRetire",
    "TestReuse",
    "TestReuseCounters",
    "TestRowsBySubject",
    "TestRowsOfArchived",
    "TestRowsOfReused",
    "TestRulesAtSubmit",
    "TestRulesOfMany",
    "TestSchedules",
    "TestSettle",
    "TestStagedChildren",
    "TestStatuses",
    "TestSteps",
    "TestTotals",
    "TestTrees",
    "TestTriggerRules",
    "TestTurns",
    "TestTypes",
    "TestVectors",
    "TestWaitingAgain",
    "TestWaitingParents",
    "TestWorkers",
    "many",
]
