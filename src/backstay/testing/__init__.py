"""For tests of applications built on Backstay: a clock, ways to run jobs, assertions, the crash test.

`conformance` and `history` are for tests of an engine of Backstay.
"""

from backstay.testing.assertions import assert_not_submitted, assert_submitted
from backstay.testing.clock import ManualClock, throwaway_url
from backstay.testing.crash_trials import CrashReport, Trial, crash_test
from backstay.testing.drainer import drain, inline

__all__ = [
    "CrashReport",
    "ManualClock",
    "Trial",
    "assert_not_submitted",
    "assert_submitted",
    "crash_test",
    "drain",
    "inline",
    "throwaway_url",
]
