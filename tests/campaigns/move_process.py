"""Runs the command in a separate process, which dies at a given point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

# The points where a transfer can be interrupted, in order. `restore` is the target's commit of a page.
POINTS = (
    "move.marked",
    "move.frozen",
    "move.drained",
    "restore.uncommitted@2",
    "restore.committed@3",
    "move.files",
    "move.page@2",
    "restore.committed@2",
    "move.copied",
    "count_submits.uncommitted",  # which comes before the counters are compared
    "count_submits.committed",
    "move.verified",
    "move.opened",
)


def run_move(source: str, target: str, *, dies_at: str = "", seconds: float = 120) -> subprocess.CompletedProcess[str]:
    name, _, nth = dies_at.partition("@")
    failpoint = f"{name}=kill9@{nth or 1}" if dies_at else ""
    done = subprocess.run(
        [sys.executable, "-m", "backstay", "move", source, target],
        env={**os.environ, "BACKSTAY_FAILPOINTS": failpoint},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    expected = -signal.SIGKILL if dies_at else 0
    assert done.returncode == expected, (dies_at, done.returncode, done.stderr[-2000:])
    return done
