"""A full disk: what was acknowledged is there, what runs can settle, and when there is room again it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.fleet import ROOT

RUNNING = 20


def _run(*command: str) -> Any:
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.root
def test_on_a_full_disk_running_jobs_settle_and_acknowledged_is_present(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("NOT RUN: a disk of its own (tmpfs) needs root; only the file limit below stands in for it")
    report = _run("unshare", "--mount", sys.executable, "-m", "tests.campaigns.disk_full", str(tmp_path), "1")
    for cycle in report["cycles"]:
        assert cycle["violations"] == []
        assert cycle["refused"] > 0
        assert cycle["acknowledged"] == cycle["present"]
        assert cycle["settled_on_full_disk"] == RUNNING, cycle["errors"]
        assert cycle["still_full"]
        assert cycle["goes_on"]
        assert cycle["deaths"] == [], cycle["errors"]


def test_where_a_file_may_not_grow_acknowledged_is_present(tmp_path: Path) -> None:
    report = _run(sys.executable, "-m", "tests.campaigns.file_limit", str(tmp_path))
    assert report["violations"] == []
    assert report["refused"] > 0
    assert report["acknowledged"] == report["present"] > 10
