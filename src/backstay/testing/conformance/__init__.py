"""The conformance suite of the port: an engine is done when it passes. It uses nothing but the verbs.

To run it against an engine, give a test module four fixtures and everything in here:

    from backstay.testing.conformance import *  # noqa: F403

    @pytest_asyncio.fixture
    async def store(tmp_path): ...  # an opened, empty store; closed afterwards

    @pytest_asyncio.fixture
    async def second_store(store): ...  # another store, opened on the same place

    @pytest_asyncio.fixture
    async def elsewhere(): ...  # an opened, empty store at another place

    @pytest.fixture
    def nowhere(): ...  # a store that is not open, at a place where no queue was made

`many` says how many jobs are more than one transaction takes, for tests that need that many; see there.

It needs pytest-asyncio with asyncio_mode = "auto". Time is an argument of every verb, so nothing sleeps. Claims that
must have expired have a lease of zero, so an engine may judge leases by its server's clock.
"""

from __future__ import annotations

import pytest

_MODULES = (
    "factories",
    "test_access",
    "test_changes",
    "test_children",
    "test_claim",
    "test_counters",
    "test_dependencies",
    "test_durable_waits",
    "test_insert",
    "test_lifecycle",
    "test_limits",
    "test_lost",
    "test_maintenance",
    "test_output",
    "test_read",
    "test_results",
    "test_retention",
    "test_settle",
    "test_transfer",
    "test_waiting_parents",
)
# Before the imports: a failed assert in here should be as detailed as one in the engine's own tests.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES))

from backstay.testing.conformance.test_access import TestAuditTrail, TestExportOfAccess, TestKeys  # noqa: E402
from backstay.testing.conformance.test_changes import TestExpire, TestRemove, TestReplace, TestUpdate  # noqa: E402
from backstay.testing.conformance.test_children import (  # noqa: E402
    TestChildren,
    TestChildrenAtOnce,
    TestChildrenWithTheCompletion,
    TestStagedChildren,
)
from backstay.testing.conformance.test_claim import (  # noqa: E402
    TestAhead,
    TestClaim,
    TestConcurrencyKeys,
    TestPayloadVersions,
    TestTurns,
)
from backstay.testing.conformance.test_counters import (  # noqa: E402
    TestBuckets,
    TestCounters,
    TestDepths,
    TestReuseCounters,
    TestTotals,
)
from backstay.testing.conformance.test_dependencies import (  # noqa: E402
    TestCascades,
    TestDependencies,
    TestReleaseOutbox,
    TestRulesAtSubmit,
    TestRulesOfMany,
    TestTriggerRules,
)
from backstay.testing.conformance.test_durable_waits import (  # noqa: E402
    TestEventsOfJobs,
    TestEventsOfKeys,
    TestSleep,
    TestStepsOfAllKinds,
    TestTimeouts,
    TestTransferOfWaits,
)
from backstay.testing.conformance.test_insert import TestDedup, TestInsert, TestJoin, TestOwnId, TestReuse  # noqa: E402
from backstay.testing.conformance.test_lifecycle import TestEdges, TestGuards, TestRaces, TestWaitingAgain  # noqa: E402
from backstay.testing.conformance.test_limits import (  # noqa: E402
    TestMaxPending,
    TestPause,
    TestPausedType,
    TestPausedUntil,
    TestQueues,
    TestRateCost,
    TestRateDue,
    TestRates,
    TestRunLimits,
)
from backstay.testing.conformance.test_lost import TestLostJobs  # noqa: E402
from backstay.testing.conformance.test_maintenance import (  # noqa: E402
    TestDeclarations,
    TestDiagnose,
    TestErase,
    TestExpired,
    TestFire,
    TestOpen,
    TestPromote,
    TestSchedules,
    TestTypes,
    TestWorkers,
)
from backstay.testing.conformance.test_output import TestOutput, TestOutputOfAttempts, TestOutputOfEndedJobs  # noqa: E402
from backstay.testing.conformance.test_read import (  # noqa: E402
    TestCounts,
    TestDead,
    TestFind,
    TestGet,
    TestListen,
    TestStatuses,
)
from backstay.testing.conformance.test_results import (  # noqa: E402
    TestDeclare,
    TestLatest,
    TestPutRows,
    TestReadRows,
    TestRowsBySubject,
    TestRowsOfArchived,
    TestRowsOfReused,
    TestVectors,
)
from backstay.testing.conformance.test_retention import (  # noqa: E402
    TestArchive,
    TestDedupOfArchived,
    TestDependingOnArchived,
    TestEndOfTheArchive,
    TestFilesOfArchived,
    TestPassesOfRetention,
    TestRetire,
    TestTrees,
)
from backstay.testing.conformance.test_settle import (  # noqa: E402
    TestErrors,
    TestExtend,
    TestHistory,
    TestNote,
    TestReprioritise,
    TestReschedule,
    TestSettle,
    TestSteps,
)
from backstay.testing.conformance.test_transfer import (  # noqa: E402
    TestAdoption,
    TestExport,
    TestExportOfRows,
    TestExportOfTrees,
    TestFreeze,
)
from backstay.testing.conformance.test_waiting_parents import TestChildrenRaces, TestWaitingParents  # noqa: E402


@pytest.fixture
def many() -> int:
    """More jobs than fit into one transaction. An engine whose tests are slow may override this fixture with fewer."""
    return 1_100


__all__ = [
    "TestAdoption",
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
    "TestDeclarations",
    "TestDeclare",
    "TestDedup",
    "TestDedupOfArchived",
    "TestDependencies",
    "TestDependingOnArchived",
    "TestDepths",
    "TestDiagnose",
    "TestEdges",
    "TestEndOfTheArchive",
    "TestErase",
    "TestErrors",
    "TestEventsOfJobs",
    "TestEventsOfKeys",
    "TestExpire",
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
    "TestLostJobs",
    "TestMaxPending",
    "TestNote",
    "TestOpen",
    "TestOutput",
    "TestOutputOfAttempts",
    "TestOutputOfEndedJobs",
    "TestOwnId",
    "TestPassesOfRetention",
    "TestPause",
    "TestPausedType",
    "TestPausedUntil",
    "TestPayloadVersions",
    "TestPromote",
    "TestPutRows",
    "TestQueues",
    "TestRaces",
    "TestRateCost",
    "TestRateDue",
    "TestRates",
    "TestReadRows",
    "TestReleaseOutbox",
    "TestRemove",
    "TestReplace",
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
    "TestRunLimits",
    "TestSchedules",
    "TestSettle",
    "TestSleep",
    "TestStagedChildren",
    "TestStatuses",
    "TestSteps",
    "TestStepsOfAllKinds",
    "TestTimeouts",
    "TestTotals",
    "TestTransferOfWaits",
    "TestTrees",
    "TestTriggerRules",
    "TestTurns",
    "TestTypes",
    "TestUpdate",
    "TestVectors",
    "TestWaitingAgain",
    "TestWaitingParents",
    "TestWorkers",
    "many",
]
