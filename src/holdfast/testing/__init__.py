"""For those who test what they built on Holdfast: a clock, ways to run jobs, assertions, the crash test.

`history` and `checker` are for those who test an engine of Holdfast.
"""

from holdfast.testing.asserting import assert_not_submitted, assert_submitted
from holdfast.testing.crashing import CrashReport, Trial, crash_test
from holdfast.testing.manual_clock import ManualClock
from holdfast.testing.running import drain, inline
from holdfast.testing.urls import throwaway_url

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
