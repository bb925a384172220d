"""Wherever a process can be made to die, some plan makes it die."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import backstay
from tests.campaigns.imports import POINTS as IMPORT_POINTS
from tests.campaigns.kills import IN_TREES, POINTS
from tests.campaigns.move_process import POINTS as MOVE_POINTS
from tests.campaigns.retention import KILL_POINTS
from tests.campaigns.ticks import FIRE_POINTS
from tests.crash.test_batches import BATCH_POINTS
from tests.crash.test_declarations import OVERLAP_POINTS
from tests.crash.test_events import LISTEN_POINTS, SEND_POINTS, STOP_POINTS
from tests.crash.test_output import OUTPUT_POINTS
from tests.crash.test_removal import REMOVE_POINTS
from tests.crash.test_rows import DROP_POINTS, PUT_POINTS
from tests.crash.test_sensitive import UNMARK_POINTS

SOURCE = Path(backstay.__file__).parent
# One statement each, and nothing that was said depends on them: a repeated call puts them right.
SAID_AGAIN = {"announce", "audit", "change_limit", "change_queue", "declare", "drop_keys", "drop_schedule", "forget"}
SAID_AGAIN |= {"freeze", "record_step", "save_declaration", "save_key", "save_schedule"}


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_every_failpoint_is_one_at_which_processes_are_killed(engine: str) -> None:
    planned = {*POINTS, *IN_TREES, *FIRE_POINTS, *BATCH_POINTS, *UNMARK_POINTS, *IMPORT_POINTS, *OVERLAP_POINTS}
    planned |= {point for point, _ in OUTPUT_POINTS} | {*LISTEN_POINTS, *STOP_POINTS, *SEND_POINTS, *REMOVE_POINTS}
    planned |= {point for points in KILL_POINTS.values() for point in points}
    planned |= {point for point, _ in [*PUT_POINTS, *DROP_POINTS]} | {point.partition("@")[0] for point in MOVE_POINTS}
    named = {
        name
        for path in (SOURCE / "worker").glob("*.py")
        for name in re.findall(r'failpoints\.hit\("([a-z.]+)"\)', path.read_text())
    }
    stores = (SOURCE / "engines" / engine / "store.py").read_text()
    verbs = set(re.findall(r'_(?:write|at)\(\s*"([a-z_]+)"', stores))
    assert len(named) > 8
    assert len(verbs) > 12
    commits = {f"{verb}.{moment}" for verb in verbs - SAID_AGAIN for moment in ("uncommitted", "committed")}
    assert named | commits <= planned
    assert verbs >= SAID_AGAIN
