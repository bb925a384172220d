"""Wherever a process can be made to die, some plan makes it die."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast
from tests.crash.killing import IN_TREES, POINTS
from tests.crash.retiring import KILL_POINTS
from tests.crash.test_batches import BATCH_POINTS
from tests.crash.ticking import FIRE_POINTS

SOURCE = Path(holdfast.__file__).parent
# One statement each, and nothing that was said depends on them: a repeated call puts them right.
SAID_AGAIN = {"announce", "change_queue", "drop_schedule", "forget", "record_step", "save_schedule"}


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_every_failpoint_is_one_at_which_processes_are_killed(engine: str) -> None:
    planned = {*POINTS, *IN_TREES, *FIRE_POINTS, *BATCH_POINTS}
    planned |= {point for points in KILL_POINTS.values() for point in points}
    named = {
        name
        for path in (SOURCE / "worker").glob("*.py")
        for name in re.findall(r'failpoints\.hit\("([a-z.]+)"\)', path.read_text())
    }
    stores = "".join((SOURCE / "stores" / engine / name).read_text() for name in ("store.py", "tree_verbs.py"))
    verbs = set(re.findall(r'_(?:write|at)\(\s*"([a-z_]+)"', stores))
    assert len(named) > 8
    assert len(verbs) > 12
    commits = {f"{verb}.{moment}" for verb in verbs - SAID_AGAIN for moment in ("uncommitted", "committed")}
    assert named | commits <= planned
    assert verbs >= SAID_AGAIN
