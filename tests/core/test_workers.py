"""A worker is in one state, and the same wherever it is shown."""

from typing import Any

import pytest

from backstay.clock import MICROS
from backstay.core.records import BlockedLoop
from backstay.core.workers import STATES, state_of
from backstay.limits import LEASE_SECONDS
from backstay.testing.conformance.factories import NOW, a_worker

LEASE = round(LEASE_SECONDS * MICROS)


@pytest.mark.parametrize(
    ("row", "state"),
    [
        ({}, "idle"),
        ({"running": ("a",)}, "working"),
        ({"running": ("a",), "stopping": True}, "stopping"),
        ({"running": ("a",), "stopping": True, "stuck": ("a",)}, "stuck"),
        ({"running": ("a",), "stuck": ("a",), "blocked": BlockedLoop(NOW)}, "blocked"),
        ({"blocked": BlockedLoop(NOW), "heartbeat_at": NOW - LEASE - 1}, "silent"),
        ({"stuck": ("a",), "heartbeat_at": NOW - LEASE - 1}, "silent"),
        ({"heartbeat_at": NOW - LEASE}, "idle"),
        ({"heartbeat_at": NOW - LEASE - 1, "lease_micros": 2 * LEASE}, "idle"),
        ({"heartbeat_at": NOW - LEASE, "lease_micros": LEASE // 2}, "silent"),
    ],
)
def test_what_weighs_most_is_the_state_and_its_own_lease_tells_whether_it_is_silent(
    row: dict[str, Any], state: str
) -> None:
    assert state_of(a_worker(**row), NOW) == state
    assert state in STATES
